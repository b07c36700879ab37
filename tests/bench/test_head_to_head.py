"""A head-to-head finds operating points on calibration questions and tells how far each arm is off the budget.

FLOPs and latency are searched on simulated models, whose costs are known and whose clock is moved.
"""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console

from baton.bench.command import run_compare
from baton.bench.head_to_head_figures import show_results
from baton.bench.runner import compare
from baton.bench.terminal import Progress
from baton.config import ConfigError, load_recipe
from virtual_clock import run

COSTS = {
    "target": {"token_s": 0.1, "tokens": 12, "parameters": 100_000},
    "draft": {"token_s": 0.01, "tokens": 12, "parameters": 10_000},
    "acceptance": 0.5,
    "steps": 4,
    "simulation": {"target_accuracy": 0.9, "draft_accuracy": 0.3},
}
RANDOM = {"router": "random", "knobs": {"share": 0.5}}
HEADS = {
    "flops": {"times": 0.6},
    "latency": {"percentile": 90, "times": 0.7, "questions": 16},
    "tolerance": 0.1,
    "evaluations": 3,
}


def writer(tmp_path: Path):
    def make(**changes: Any) -> Path:
        (tmp_path / "costs.yaml").write_text(yaml.safe_dump(COSTS))
        for split in ("test", "calibration"):
            rows = [
                {"id": f"{split}{n}", "question": f"{split} {1000 + n}: the answer is {1000 + n}", "answer": 1000 + n}
                for n in range(24)
            ]
            (tmp_path / f"{split}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
        pair = {
            "name": "simulated", "thinking": False, "sampling": {"temperature": 1.0},
            "target": {"engine": "simulated", "model": "costs.yaml#target"},
            "draft": {"engine": "simulated", "model": "costs.yaml#draft"},
        }  # fmt: skip
        base = {
            "name": "r", "pair": pair, "task": {"name": "numbers", "path": "{split}.jsonl"},
            "routers": ["target", "draft", RANDOM], "calibration": {"limit": 16},
            "latency": {"limit": 16, "warmup": 0}, "head_to_head": HEADS,
        }  # fmt: skip
        path = tmp_path / "recipe.yaml"
        path.write_text(yaml.safe_dump({**base, **changes}))
        return path

    return make


@pytest.fixture
def recipe(tmp_path: Path):
    return writer(tmp_path)


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> tuple[Path, dict[str, Any]]:
    """A folder with the recipe and its run."""
    folder = tmp_path_factory.mktemp("whole")
    return folder, compared(writer(folder)(), folder / "run")


def compared(path: Path, out: Path) -> dict[str, Any]:
    found = run(compare(load_recipe(path), out, Progress(Console(file=io.StringIO()))))
    assert found is not None
    assert json.loads((out / "results.json").read_text()) == json.loads(json.dumps(found))
    return found


def rows(section: dict[str, Any]) -> dict[str, Any]:
    return {row["label"]: row for row in section["arms"]}


def test_arms_are_moved_to_the_budgets_and_what_they_spend_is_verified_on_test_questions(whole):
    _, found = whole
    assert [a["label"] for a in found["arms"]] == ["target", "draft", "random@flops", "random@p90"]
    by = {a["label"]: a for a in found["arms"]}
    for name, figure in (("flops", lambda a: a["flops"]), ("p90", lambda a: a["latency_s"]["p90"])):
        section = found["head_to_head"][name]
        here = rows(section)
        assert list(here) == ["target", "draft", f"random@{name}"]
        times = HEADS["flops" if name == "flops" else "latency"]["times"]
        assert section["budget"]["test"] == pytest.approx(times * figure(by["target"]))
        assert section["budget"]["calibration"] == pytest.approx(times * here["target"]["calibrated"])
        moved = here[f"random@{name}"]
        assert moved["test"] == pytest.approx(figure(by[f"random@{name}"]))
        assert moved["off"] == pytest.approx(moved["test"] / section["budget"]["test"] - 1)
        assert moved["off_ci"][0] <= moved["off"] <= moved["off_ci"][1]
        assert moved["reached"] or moved["note"]
        assert moved["knob"] == "share"
        assert 0 < moved["value"] < 1
        # Arms that stand as they are have their distance told as well, and no comparison at the budget.
        assert here["target"]["off"] == pytest.approx(1 / times - 1)
        assert not here["target"]["met"]
        assert not here["draft"]["met"]
        assert section["pairs"] == []
        assert by[moved["label"]]["knobs"]["share"] == moved["value"]
        point = found["calibration"]["points"][moved["label"]]
        assert point["split"] == "calibration"
        assert point["value"] == moved["value"]


def test_a_second_start_makes_no_answer_again_and_another_recipe_needs_another_folder(whole):
    folder, first = whole
    stored = {f: f.read_bytes() for f in (folder / "run").rglob("*.jsonl") if f.name != "environment.jsonl"}
    assert len(stored) > 8
    assert compared(folder / "recipe.yaml", folder / "run") == first
    assert all(f.read_bytes() == content for f, content in stored.items())
    with pytest.raises(ConfigError, match="give another folder"):
        compared(writer(folder)(seed=3), folder / "run")


def test_two_arms_that_met_the_budget_are_compared_and_a_missed_budget_is_told(recipe, tmp_path, capsys):
    """Three twins: one is moved by its knob, one stands near the budget, and one knob cannot reach it."""
    routers = [
        "target", {**RANDOM, "label": "moved"}, {**RANDOM, "label": "near", "knobs": {"share": 0.67}},
        {"router": "cascade", "label": "stuck", "knobs": {"threshold": 0.9}},
    ]  # fmt: skip
    heads = {"latency": {"percentile": 50, "times": 0.7, "questions": 24}, "tolerance": 0.12, "evaluations": 3}
    given = recipe(routers=routers, head_to_head={**heads, "vary": {"moved": "share", "stuck": "threshold"}})
    section = (found := compared(given, tmp_path / "run"))["head_to_head"]["p50"]
    here = rows(section)
    assert here["moved@p50"]["met"]
    assert here["near"]["met"]
    assert here["near"]["knob"] is None
    assert here["stuck@p50"]["met"] is False
    assert here["stuck@p50"]["note"]
    pairs = {frozenset((p["a"], p["b"])): p for p in section["pairs"]}
    assert {tuple(sorted(k)) for k in pairs} == {
        ("moved@p50", "near"), ("moved@p50", "stuck@p50"), ("near", "stuck@p50")
    }  # fmt: skip
    equal = pairs[frozenset(("moved@p50", "near"))]
    assert equal["equal"]
    assert equal["accuracy_delta_ci"][0] <= equal["accuracy_delta"] <= equal["accuracy_delta_ci"][1]
    assert not pairs[frozenset(("near", "stuck@p50"))]["equal"]
    console = Console(file=io.StringIO(), width=160)
    show_results(found["head_to_head"], console)
    said = console.file.getvalue()
    assert "At equal P50" in said
    assert "stuck@p50 missed the budget by" in said
    assert "no difference was found" in said or "points more often" in said


def test_a_budget_may_be_a_figure(recipe, tmp_path):
    heads = {"flops": {"value": 5e6}, "tolerance": 0.15}
    found = compared(recipe(head_to_head=heads, latency=None, limit=10, calibration={"limit": 10}), tmp_path / "run")
    section = found["head_to_head"]["flops"]
    assert section["budget"] == {"of": None, "times": None, "calibration": 5e6, "test": 5e6}
    assert rows(section)["random@flops"]["off"] == pytest.approx(found["arms"][2]["flops"] / 5e6 - 1)


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"head_to_head": {}}, "head_to_head.flops: it is missing, and so are latency and memory"),
        ({"head_to_head": {"flops": {"of": "tarfet"}}}, "'tarfet' is no arm (did you mean 'target'?)"),
        ({"head_to_head": {"flops": {"of": "random"}}}, "'random' is moved itself"),
        ({"head_to_head": {"flops": {"value": 1e9, "times": 2}}}, "stands beside of or times"),
        ({"head_to_head": {"flops": {}, "vary": {"x": "y"}}}, "head_to_head.vary: 'x' is no arm"),
        ({"head_to_head": {"flops": {}, "vary": {"target": "share"}}}, "target has no knob 'share'"),
        ({"head_to_head": {"latency": {}}, "latency": None}, "the recipe has no latency pass"),
        ({"head_to_head": {"latency": {}}}, "latency.limit: 16 answers say nothing of a P99; use 300 or more"),
        ({"head_to_head": {"memory": {}}}, "engine 'simulated' of target does not tell its memory"),
        (
            {"routers": ["target", RANDOM, {"router": "random", "label": "twin", "share_of": "random"}]},
            "'twin' takes the share of 'random', which the head-to-head moves",
        ),
    ],
)
def test_what_cannot_be_done_is_refused_in_one_line_before_anything_runs(recipe, tmp_path, capsys, changes, part):
    assert run_compare(recipe(**changes), out=tmp_path / "run") == 2
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert part in said
    assert "recipe.yaml: " in said
    assert not (tmp_path / "run" / "calibration").exists()


def test_a_head_to_head_is_not_cut_into_shards(recipe, tmp_path, capsys):
    assert run_compare(recipe(), out=tmp_path / "run", shard="1/2") == 2
    assert "leave --shard out" in capsys.readouterr().err
