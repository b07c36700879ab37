"""A comparison under load, on simulated engines and the virtual clock: what is measured, stored, resumed and told."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from rich.console import Console

from baton.bench import load_pass, tasks, terminal
from baton.bench.load_pass import Cells, LoadPass
from baton.bench.runner import compare
from baton.bench.terminal import Progress
from baton.bench.under_load import answered_rate, effective, percentile_interval
from baton.config import ConfigError, load_recipe, recipe_options
from baton.generation import generate
from baton.pair import Pair
from baton.routers.target import Target
from virtual_clock import run

COSTS = {
    "target": {"token_s": 0.1, "tokens": 2},
    "draft": {"token_s": 0.05, "tokens": 2},
    "acceptance": 0.5,
    "steps": 2,
    "simulation": {"target_accuracy": 0.8, "draft_accuracy": 0.6},
}


@pytest.fixture
def recipe(tmp_path: Path):
    def make(costs: dict[str, Any] | None = None, max_batch: int = 32, **changes: Any):
        (tmp_path / "costs.yaml").write_text(yaml.safe_dump({**COSTS, **(costs or {})}))
        for split in ("test", "calibration"):
            rows = [
                {"id": f"{split}{n}", "question": f"{split} {1000 + n}: the answer is {1000 + n}", "answer": 1000 + n}
                for n in range(20)
            ]
            (tmp_path / f"{split}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
        model = {"engine": "simulated", "max_batch": max_batch}
        pair = {
            "name": "simulated", "thinking": False, "sampling": {"temperature": 1.0},
            "target": {**model, "model": "costs.yaml#target"}, "draft": {**model, "model": "costs.yaml#draft"},
        }  # fmt: skip
        base = {
            "name": "r", "pair": pair, "task": {"name": "numbers", "path": "{split}.jsonl"},
            "routers": ["target", "draft"], "latency": None, "limit": 10,
        }  # fmt: skip
        path = tmp_path / "recipe.yaml"
        path.write_text(yaml.safe_dump({**base, **changes}))
        return load_recipe(path)

    return make


def compared(given, out: Path) -> dict[str, Any]:
    found = run(compare(given, out, Progress(Console(file=io.StringIO()))))
    assert found is not None
    return found


def test_every_arm_meets_every_load_and_the_results_tell_both(recipe, tmp_path):
    points = [{"concurrency": 4}, {"arrivals": "poisson", "rate": 0.5}, {"arrivals": "constant", "rate": 1}]
    load = {"points": points, "requests": 40, "warmup": 5, "slo": {"ttft_s": 0.15, "latency_s": 10}}
    found = compared(recipe(load=load), tmp_path / "run")
    names = ["closed 4", "poisson 0.5", "constant 1"]
    assert [p["name"] for p in found["load"]["points"]] == names
    assert found["load"]["points"][1] == {
        "name": "poisson 0.5", "loop": "open", "arrivals": "poisson", "rate": 0.5, "file": None
    }  # fmt: skip
    target, draft = found["arms"]
    for arm, token_s in ((target, 0.1), (draft, 0.05)):
        assert [cell["point"] for cell in arm["load"]] == names
        closed, poisson, constant = arm["load"]
        assert all(c["n"] == 40 and c["valid"] and c["keeps_up"] and c["failures"] == 0 for c in arm["load"])
        tokens = round(closed["latency_s"]["p50"] / token_s)
        assert closed["latency_s"]["p50"] == pytest.approx(tokens * token_s)
        # Four answers at once, each as fast as one alone: nothing slows a forward down here.
        assert closed["answered_rps"] == pytest.approx(4 / closed["latency_s"]["p50"])
        assert closed["throughput_tps"] == pytest.approx(4 / token_s)
        assert closed["in_flight"] == pytest.approx(4)
        assert constant["arrived_rps"] == pytest.approx(1)
        assert constant["answered_rps"] == pytest.approx(1, rel=0.05)
        assert constant["latency_s"]["p50_ci"][0] <= constant["latency_s"]["p50"] <= constant["latency_s"]["p50_ci"][1]
        assert constant["latency_s"]["p99"] is None, "40 answers have no P99"
        assert poisson["lag_s"]["max"] == pytest.approx(0)
        assert arm["goodput_rps"] == max(c["goodput_rps"] for c in arm["load"])
    assert target["load"][2]["speedup"]["p50"] == 1
    assert draft["load"][2]["speedup"]["p50"] == pytest.approx(2, rel=0.1)
    # Only the first token has to be early.
    assert 0 < draft["load"][1]["goodput_rps"] <= draft["load"][1]["answered_rps"]


def test_loads_relative_to_capacity_are_of_what_the_target_can_do(recipe, tmp_path):
    load = {"points": [{"arrivals": "poisson", "of_capacity": 0.5}], "requests": 30, "warmup": 5, "ramp": True}
    found = compared(recipe(load=load, max_batch=4), tmp_path / "run")
    target, draft = found["arms"]
    service = target["ramp"][0]["answered_rps"]
    assert [step["concurrency"] for step in target["ramp"]] == [1, 2, 4, 8, 16]
    assert target["capacity_rps"] == pytest.approx(4 * service, rel=0.05)
    assert draft["capacity_rps"] == pytest.approx(2 * target["capacity_rps"], rel=0.05)
    assert found["load"]["points"][0]["rate"] == pytest.approx(0.5 * target["capacity_rps"])


def test_a_load_beyond_capacity_is_said_not_to_be_kept_up_with_and_deadlines_are_censored(recipe, tmp_path):
    load = {"points": [{"arrivals": "poisson", "rate": 5}], "requests": 60, "warmup": 0, "deadline_s": 8}
    found = compared(recipe(load=load, max_batch=1, routers=["target"]), tmp_path / "run")
    (cell,) = found["arms"][0]["load"]
    assert not cell["keeps_up"]
    assert cell["timeouts"] > 30
    assert cell["n"] == 60, "answers that were cut off stay in"
    assert cell["latency_s"]["p50"] is None, "more than half took at least as long as they were given"
    assert cell["latency_s"]["p50_ci"] is None or cell["latency_s"]["p50_ci"][1] is None
    shown = io.StringIO()
    Console(file=shown, width=160).print(terminal.load_table(found))
    (row,) = [line for line in shown.getvalue().splitlines() if "poisson 5" in line]
    assert "does not keep up" in row
    assert str(cell["timeouts"]) in row.split()


def test_a_cell_is_whole_or_not_there_and_a_resumed_run_measures_what_is_missing(recipe, tmp_path, monkeypatch):
    points = [{"concurrency": 2}, {"arrivals": "poisson", "rate": 1}]
    given = recipe(load={"points": points, "requests": 20, "warmup": 2})
    whole = compared(given, tmp_path / "whole")
    written = Cells.write
    calls = []

    def write_twice(self, load, label, traces):
        calls.append((load, label))
        if len(calls) == 3:
            raise KeyboardInterrupt
        written(self, load, label, traces)

    monkeypatch.setattr(Cells, "write", write_twice)
    with pytest.raises(KeyboardInterrupt):
        compared(given, tmp_path / "cut")
    assert len(list((tmp_path / "cut" / "load").rglob("*.jsonl"))) == 2
    resumed = compared(given, tmp_path / "cut")
    assert calls[3:] == [("poisson 1", "draft"), ("poisson 1", "target")]
    for name in ("answered_rps", "throughput_tps", "latency_s", "ttft_s"):
        ours, theirs = ([cell[name] for arm in r["arms"] for cell in arm["load"]] for r in (resumed, whole))
        assert ours == pytest.approx(theirs) if name.endswith("ps") else rounded(ours) == rounded(theirs)


def rounded(figures: Any) -> Any:
    return json.loads(json.dumps(figures), parse_float=lambda text: round(float(text), 4))


def test_a_load_with_too_many_failures_does_not_count(recipe, tmp_path):
    async def scene():
        asked = []

        async def answer(arm, question, sample, seconds):
            asked.append(question)

        config = recipe(load={"points": [{"concurrency": 2}], "requests": 10}).config.load
        cells = Cells(tmp_path / "load")
        done = []
        load = LoadPass(
            config, cells, ["q1", "q2"], seed=0, base=tmp_path, timeout_s=None, answer=answer, grade=None,
            forget=lambda arm: None, progress=done.append,
        )  # fmt: skip
        await load.run([Arm()], None)
        return cells, done

    cells, done = run(scene())
    assert not cells.has("closed 2", "arm")
    assert len(done) == 10
    results = {"arms": [{"label": "arm", "router": "arm"}], "load": {}}
    load_pass.add_results(results, recipe(load={"points": [{"concurrency": 2}]}).config.load, cells)
    (cell,) = results["arms"][0]["load"]
    assert (cell["n"], cell["valid"]) == (0, False)
    assert "too many requests failed" in cell["reason"]


class Arm:
    label = "arm"


def test_a_load_relative_to_capacity_stays_what_it_was_when_the_run_resumes(recipe, tmp_path, monkeypatch):
    load = {"points": [{"arrivals": "poisson", "of_capacity": 0.5}], "requests": 30, "warmup": 5}
    given = recipe(load=load, max_batch=4)
    first = compared(given, tmp_path / "run")
    cells = Cells(tmp_path / "run" / "load")
    cells.path("poisson 0.5 of capacity", "draft").unlink()
    # A ramp today would find half of it.
    monkeypatch.setattr(load_pass, "answered_rate", lambda answers: answered_rate(answers) / 2)
    again = compared(given, tmp_path / "run")
    assert again["load"]["points"] == first["load"]["points"]
    draft = again["arms"][1]["load"][0]
    assert draft["arrived_rps"] == pytest.approx(first["arms"][1]["load"][0]["arrived_rps"])


def test_a_load_relative_to_a_capacity_whose_ramp_failed_waits_for_the_next_start(recipe, tmp_path):
    broken = [True]

    async def scene():
        async def answer(arm, question, sample, seconds):
            if broken[0] and sample:
                return None
            trace = await generate(pair, Target(), question.question, options=options, question_id=question.id)
            trace.extra |= {"pass": "load", "arm": "arm", "grade": "correct"}
            return trace

        async def grade(trace, question):
            pass

        load = {"points": [{"arrivals": "poisson", "of_capacity": 0.5}], "requests": 8, "warmup": 1}
        given = recipe(load=load, max_batch=1)
        pair, options = Pair.load(given.config.pair, given.pair_base), recipe_options(given.config)
        cells = Cells(tmp_path / "load")
        load = LoadPass(
            given.config.load, cells, tasks.load(given.config.task, "test", given.base, 10), seed=0, base=tmp_path,
            timeout_s=None, answer=answer, grade=grade, forget=lambda arm: None, progress=lambda arm: None,
        )  # fmt: skip
        arm = Arm()
        await load.run([arm], arm)
        return cells

    cells = run(scene())
    assert cells.capacity() is None
    assert not cells.has("poisson 0.5 of capacity", "arm")
    broken[0] = False
    cells = run(scene())
    assert cells.capacity() > 0
    assert cells.has("poisson 0.5 of capacity", "arm")


def test_arrivals_that_leave_nothing_to_count_are_refused(recipe, tmp_path):
    (tmp_path / "times.txt").write_text("1\n2\n3\n")
    given = recipe(load={"points": [{"arrivals": "trace", "file": "times.txt"}], "warmup": 2})
    with pytest.raises(ConfigError, match=r"times.txt has 3 arrivals, which leaves none to count after load.warmup"):
        compared(given, tmp_path / "run")


def test_arrival_times_of_a_file_are_kept(recipe, tmp_path):
    (tmp_path / "times.txt").write_text("\n".join(str(n // 2) for n in range(60)))
    given = recipe(load={"points": [{"arrivals": "trace", "file": "times.txt"}], "warmup": 10}, routers=["target"])
    (cell,) = compared(given, tmp_path / "run")["arms"][0]["load"]
    assert cell["n"] == 60 - 10 - 1
    assert cell["arrived_rps"] == pytest.approx(2, rel=0.05)
    (tmp_path / "times.txt").write_text("\n".join(str(n) for n in range(60)))
    with pytest.raises(ConfigError, match=r"arrivals.times.txt = .* give another folder"):
        compared(given, tmp_path / "run")


@pytest.mark.parametrize(
    ("load", "said"),
    [
        ({}, "load.points: it is empty"),
        ({"points": [{}]}, r"load.points\[0\].concurrency: give it"),
        ({"points": [{"concurrency": 1, "rate": 2}]}, "rate: a closed loop has none"),
        ({"points": [{"arrivals": "poisson"}]}, "arrivals: poisson goes with rate or of_capacity"),
        ({"points": [{"arrivals": "poisson", "rate": 1, "of_capacity": 1}]}, "one of them and nothing else"),
        ({"points": [{"arrivals": "trace", "rate": 1}]}, "arrivals: trace goes with file"),
        ({"points": [{"concurrency": 1}, {"concurrency": 1}]}, "'closed 1' stands there twice"),
        ({"points": [{"concurrency": 1}], "slo": {}}, "give at least one limit"),
    ],
)
def test_a_load_that_makes_no_sense_is_refused_in_one_line(recipe, load, said):
    with pytest.raises(ConfigError, match=said):
        recipe(load=load)


def test_relative_loads_need_a_target(recipe):
    load = {"points": [{"arrivals": "poisson", "of_capacity": 0.5}]}
    with pytest.raises(ConfigError, match="no arm has router target"):
        recipe(load=load, routers=["draft"])


def test_answers_that_fare_alike_count_as_fewer():
    rng = np.random.default_rng(0)
    alone = [effective(rng.random(400), 0.5) for _ in range(20)]
    assert 250 < np.mean(alone) <= 400
    # Each value stands eight times in a row: as good as 50 values.
    alike = [effective(np.repeat(rng.random(50), 8), 0.5) for _ in range(20)]
    assert 30 < np.mean(alike) < 80
    wide, narrow = (percentile_interval(v, 0.5, [False] * 400) for v in (np.repeat(rng.random(50), 8), rng.random(400)))
    assert wide[1] - wide[0] > 1.5 * (narrow[1] - narrow[0])
