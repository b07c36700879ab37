"""At equal memory an arm works on as many answers at once as its own weights leave room for."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import moody
import pytest
import yaml
from made_answers import answer
from rich.console import Console

from baton.bench import memory, metrics, runner
from baton.bench.command import run_compare
from baton.bench.head_to_head_figures import show_results
from baton.bench.memory import MIB, Need
from baton.bench.memory_figures import Ran, figures
from baton.config import NANO_PAIR
from baton.pair import Pair
from baton.trace import Role

TWO = Need({}, {"target": 40.0 * MIB, "draft": 2.0 * MIB}, {"target": 3.0 * MIB, "draft": 0.25 * MIB},
           {"target": 5.0 * MIB, "draft": 0.5 * MIB})  # fmt: skip
ONE = Need({}, {"target": 40.0 * MIB}, {"target": 4.0 * MIB}, {"target": 6.0 * MIB})


def test_what_one_model_leaves_goes_to_more_answers_at_once():
    limit = ONE.at(8)
    assert limit == (40 + 32) * MIB
    assert memory.place(ONE, limit, 64).concurrency == 8
    both = memory.place(TWO, limit, 64)
    # 30 MiB beside the weights: nine answers take 27 and 3, ten would take 30 and 3.
    assert both.concurrency == 9
    assert both.cache_mb == {"target": 27, "draft": 3}
    assert TWO.at(9) <= limit < TWO.at(10)
    assert memory.place(TWO, limit, 4).concurrency == 4


def test_each_cache_holds_its_largest_answer_or_the_arm_does_not_fit():
    assert ONE.cache_mb(1) == {"target": 6}
    assert memory.place(ONE, 46 * MIB, 64).concurrency == 1
    assert memory.place(ONE, 46 * MIB - 1, 64) is None


def recipe(folder: Path, **heads: Any) -> Path:
    for split in ("test", "calibration"):
        rows = [{"id": f"{split}{n}", "question": f"{split}: what is {n} plus 1?", "answer": n + 1} for n in range(10)]
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    pair = {
        "name": "small", "target": "nano:draft", "draft": "nano:draft", "sampling": {"temperature": 0.8},
        "budget": {"tokens": 16, "answer_reserve": 4},
    }  # fmt: skip
    given = {
        "name": "r", "pair": pair, "task": {"name": "sums", "path": "{split}.jsonl"}, "limit": 4, "latency": None,
        "routers": ["target", {"router": "random", "knobs": {"share": 0.5}},
                    {"router": "majority", "label": "votes", "knobs": {"n": 20, "role": "draft"}}],
        "head_to_head": {"memory": {"questions": 4, "calibration": 2, **heads}},
    }  # fmt: skip
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(given))
    return path


def test_arms_run_within_the_same_memory_or_are_lowered_until_they_do(tmp_path):
    """Weights take 2.1 MB a model: two do not fit into 3.3 MB, and beside one there is no room for twenty branches."""
    path, out = recipe(tmp_path, value=3.3e6, fit={"votes": "n"}), tmp_path / "run"
    assert run_compare(path, out=out) == 0
    section = json.loads((out / "results.json").read_text())["head_to_head"]["memory"]
    target, random, votes = section["arms"]
    assert target["weight_bytes"].keys() == {"target"}
    assert random["weight_bytes"].keys() == {"target", "draft"}
    assert votes["weight_bytes"].keys() == {"draft"}
    assert not random["fits"]
    assert random["accuracy"] is None
    assert random["least_bytes"] > section["bytes"]
    for arm in (target, votes):
        assert arm["fits"]
        assert arm["met"]
        assert arm["bytes"] <= section["bytes"] == 3.3e6
        assert arm["failures"] == 0
        assert arm["answers_per_s"] > 0
    assert votes["lowered"]
    assert not target["lowered"]
    assert votes["knobs"]["n"] < 20
    assert votes["concurrency"] < target["concurrency"]
    assert votes["throughput_ratio_ci"][0] <= votes["throughput_ratio"] <= votes["throughput_ratio_ci"][1]
    assert section["questions"] == 4
    console = Console(file=io.StringIO(), width=160)
    show_results({"memory": section}, console)
    assert "random does not fit: its weights and one answer take" in console.file.getvalue()
    kept = {f: f.read_bytes() for f in (out / "memory").iterdir()}
    assert run_compare(path, out=out) == 0
    assert {f: f.read_bytes() for f in (out / "memory").iterdir()} == kept


def test_a_knob_that_is_no_number_of_branches_is_refused(tmp_path, capsys):
    assert run_compare(recipe(tmp_path, value=2.5e6, fit={"votes": "role"}), out=tmp_path / "run") == 2
    assert "head_to_head.memory.fit: votes: 'role' is 'draft', no whole number" in capsys.readouterr().err


def test_an_arm_that_fails_does_not_count_and_is_tried_again(tmp_path, capsys, monkeypatch):
    path = recipe(tmp_path, of="target")
    given = yaml.safe_load(path.read_text())
    path.write_text(yaml.safe_dump({**given, "routers": ["target", "moody:Moody"]}))
    out, questions = tmp_path / "run", [f"test: what is {n} plus 1?" for n in range(4)]
    monkeypatch.setattr(moody, "BROKEN", set())
    answers_before = runner.compare

    async def then_break(*args: Any, **options: Any) -> Any:
        results = await answers_before(*args, **options)
        moody.BROKEN.update(questions[:1])
        return results

    monkeypatch.setattr(runner, "compare", then_break)

    def compared() -> dict[str, Any]:
        assert run_compare(path, out=out) == 0
        return json.loads((out / "results.json").read_text())["head_to_head"]["memory"]

    section = compared()
    target, broken = section["arms"]
    assert target["valid"]
    assert target["accuracy"] is not None
    assert broken["fits"]
    assert not broken["valid"]
    assert broken["failures"] == 1
    assert broken["accuracy"] is None
    assert section["questions"] == section["asked"] == 4, "an arm that does not count takes no question from the others"
    said = " ".join(capsys.readouterr().out.split())
    assert "moody:Moody does not count: 1 of 4 answers failed (limit 1%)" in said
    (line,) = [json.loads(x) for x in (out / "failures.jsonl").read_text().splitlines()]
    assert (line["pass"], line["arm"], line["question"]) == ("memory", "moody:Moody", "test0")
    assert "ZeroDivisionError" in line["traceback"]
    monkeypatch.setattr(runner, "compare", answers_before)
    moody.BROKEN.clear()
    mended = compared()["arms"][1]
    assert mended["valid"]
    assert mended["answers_per_s"] > 0


def test_answers_that_are_cut_off_are_no_answers_and_leave_their_percentiles_unknown():
    def ran(finish: list[str]) -> Ran:
        grades = {"end_of_text": "correct", "timeout": "no_answer"}
        traces = [answer("a", f"q{n}", seconds=1.0 + n, finish=f, grade=grades[f]) for n, f in enumerate(finish)]
        cell = {"cache_bytes_peak": {}, "gpu_memory_bytes": None, "failures": 0}
        return Ran(memory.Place(ONE, 2), cell, [metrics.record(t) for t in traces])

    whole, cut = ran(["end_of_text"] * 4), ran(["end_of_text"] * 2 + ["timeout"] * 2)
    found = figures(cut, whole, 100 * MIB, 64)
    assert found["timeouts"] == 2
    assert found["answers_per_s"] == pytest.approx(2 * 2 / 10)
    assert found["throughput_ratio"] == pytest.approx(0.5)
    assert found["accuracy"] == 0.5
    assert found["latency_s"]["p90"] is None
    assert figures(whole, None, 100 * MIB, 64)["latency_s"]["p90"] == pytest.approx(3.7)


async def test_a_pair_may_be_loaded_for_one_role():
    pair = Pair.load(NANO_PAIR.model_copy(update={"scorers": {}}), Path("/"), [Role.DRAFT])
    try:
        assert list(pair.engines) == [Role.DRAFT]
    finally:
        await pair.close()
