"""A comparison survives failures, kills and interruption, and says in one line what it cannot do.

Both roles of the pair are the small nano model, and budgets are tiny: what the models write does not matter here.
"""

from __future__ import annotations

import gc
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import moody
import pytest
import yaml

from baton import nano
from baton.bench import passes
from baton.bench.command import run_compare
from baton.bench.folder import RunFolder, merge
from baton.config import ConfigError
from baton.trace import Trace

PAIR = {
    "name": "small",
    "target": "nano:draft",
    "draft": "nano:draft",
    "sampling": {"temperature": 0.8},
    "budget": {"tokens": 24, "answer_reserve": 8},
}
QUESTIONS = 12


@pytest.fixture(autouse=True)
def calm(monkeypatch):
    monkeypatch.setattr(passes, "FIRST_PAUSE_SECONDS", 0.0)
    moody.LOST.clear()
    moody.WRONG.clear()
    moody.BROKEN.clear()
    moody.ATTEMPTS.clear()


@pytest.fixture
def recipe(tmp_path: Path):
    def make(**changes: Any) -> Path:
        for split in ("test", "calibration"):
            rows = [
                {"id": f"{split}{n}", "question": f"{split}: what is {n} plus 1?", "answer": n + 1}
                for n in range(QUESTIONS)
            ]
            (tmp_path / f"{split}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
        base = {
            "name": "r",
            "pair": PAIR,
            "task": {"name": "sums", "path": "{split}.jsonl"},
            "routers": ["target", "draft"],
            "latency": {"limit": 3, "warmup": 1},
            "calibration": {"limit": 4},
        }
        path = tmp_path / "recipe.yaml"
        path.write_text(yaml.safe_dump({**base, **changes}))
        return path

    return make


def traces(out: Path) -> list[Trace]:
    return [Trace.from_json(json.loads(line)) for line in (out / "traces.jsonl").read_text().splitlines()]


def tokens(out: Path) -> dict[tuple[str, str, str, int], list[list[int]]]:
    return {(t.extra["pass"], t.extra["arm"], t.question, t.sample): [s.ids for s in t.segments] for t in traces(out)}


def results(out: Path) -> dict[str, Any]:
    return json.loads((out / "results.json").read_text())


def untimed(found: dict[str, Any]) -> dict[str, Any]:
    """What does not depend on the clock."""
    timed = {"latency_s", "ttft_s", "ttfat_s", "tpot_s", "step_s", "switch_s", "throughput_tps", "speedup"}
    # What the caches held at most depends on what ran beside.
    timed |= {"memory_bytes"}
    arms = [{k: v for k, v in arm.items() if k not in timed} for arm in found["arms"]]
    for arm in arms:
        # How much of a prefix was cached depends on what ran before.
        arm["tokens"] = {k: v for k, v in arm["tokens"].items() if k != "prefill"}
        arm.pop("flops")
    return {**{k: v for k, v in found.items() if k != "pareto"}, "arms": arms}


def start(path: Path, out: Path, shard: str = "") -> subprocess.Popen[str]:
    code = (
        "import sys; from baton.bench.command import run_compare; "
        "sys.exit(run_compare(sys.argv[1], out=sys.argv[2], shard=sys.argv[3] or None))"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    return subprocess.Popen(
        [sys.executable, "-c", code, path, out, shard],
        env=env,
        stderr=subprocess.PIPE,
        text=True,
        # A test run started in the background of a shell has Ctrl-C ignored, and so would its children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )


def wait_for_answers(out: Path, count: int, process: subprocess.Popen[str]) -> None:
    file = out / "traces.jsonl"
    for _ in range(6000):
        if file.exists() and file.read_bytes().count(b"\n") >= count:
            return
        assert process.poll() is None, process.stderr.read() if process.stderr else ""
        time.sleep(0.01)
    raise AssertionError("no answers within a minute")


def test_a_run_leaves_everything_that_its_figures_rest_on(recipe, tmp_path, capsys):
    out = tmp_path / "run"
    assert run_compare(recipe(samples=2), out=out) == 0
    found = results(out)
    assert found["valid"]
    assert [a["n"] for a in found["arms"]] == [QUESTIONS, QUESTIONS]
    assert all(a["truncated"] + a["timeouts"] <= 2 * QUESTIONS for a in found["arms"])
    answers = [json.loads(line) for line in (out / "answers.jsonl").read_text().splitlines()]
    assert len(answers) == len(traces(out)) == 2 * (2 * QUESTIONS + 3)
    environment = json.loads((out / "environment.jsonl").read_text())
    assert environment["packages"]["torch"]
    assert json.loads((out / "config.json").read_text())["recipe"]["samples"] == 2
    printed = capsys.readouterr().out
    assert "speed-up" in printed
    assert "results.json" in printed


def test_the_same_run_gives_the_same_tokens_at_any_concurrency(recipe, tmp_path):
    assert run_compare(recipe(concurrency=8), out=tmp_path / "a") == 0
    assert run_compare(recipe(concurrency=1), out=tmp_path / "b") == 0
    assert tokens(tmp_path / "a") == tokens(tmp_path / "b")
    other = run_compare(recipe(concurrency=8), out=tmp_path / "c", seed=1)
    assert other == 0
    assert tokens(tmp_path / "a") != tokens(tmp_path / "c")


def test_several_seeds_are_samples_under_seeds_of_their_own(recipe, tmp_path):
    path = recipe(samples=2, seeds=2, limit=3, latency=None, seed=7)
    assert run_compare(path, out=tmp_path / "run") == 0
    assert {(t.sample, t.seed) for t in traces(tmp_path / "run")} == {(0, 7), (1, 7), (2, 8), (3, 8)}
    assert [(a["n"], a["samples"], len(a["seeds"]["accuracy"])) for a in results(tmp_path / "run")["arms"]] == [
        (3, 2, 2),
        (3, 2, 2),
    ]


def test_a_killed_run_goes_on_where_it_stopped_and_ends_like_one_that_was_not(recipe, tmp_path):
    path = recipe(concurrency=2)
    process = start(path, tmp_path / "killed")
    wait_for_answers(tmp_path / "killed", 5, process)
    process.send_signal(signal.SIGKILL)
    process.wait()
    with (tmp_path / "killed" / "traces.jsonl").open("ab") as file:
        file.write(b'{"schema":1,"question":"test')
    stored = (tmp_path / "killed" / "traces.jsonl").read_bytes().rpartition(b"\n")[0]
    assert not (tmp_path / "killed" / "results.json").exists()
    assert run_compare(path, out=tmp_path / "killed") == 0
    assert (tmp_path / "killed" / "traces.jsonl").read_bytes().startswith(stored)
    assert run_compare(path, out=tmp_path / "whole") == 0
    assert tokens(tmp_path / "killed") == tokens(tmp_path / "whole")
    assert len(traces(tmp_path / "killed")) == len(traces(tmp_path / "whole"))
    assert untimed(results(tmp_path / "killed")) == untimed(results(tmp_path / "whole"))


def test_shards_of_several_processes_make_the_comparison_of_one(recipe, tmp_path, capsys):
    path = recipe(routers=["target", {"router": "random", "share_of": "draft"}, "draft"])
    assert run_compare(path, tmp_path / "whole") == 0
    shards = [tmp_path / "a", tmp_path / "b"]
    for n, shard in enumerate(shards, 1):
        assert run_compare(path, shard, shard=f"{n}/2") == 0
        assert "baton merge" in capsys.readouterr().out
        assert not (shard / "results.json").exists()
    merge(tmp_path / "merged", shards)
    assert run_compare(path, tmp_path / "merged") == 0
    assert tokens(tmp_path / "merged") == tokens(tmp_path / "whole")
    assert untimed(results(tmp_path / "merged")) == untimed(results(tmp_path / "whole"))
    (tmp_path / "merged" / "config.json").unlink()
    assert merge(tmp_path / "merged", shards)[0] == len(traces(tmp_path / "merged")), (
        "a merge that was cut off is redone"
    )
    with pytest.raises(ConfigError, match="holds a run already"):
        merge(tmp_path / "merged", shards)
    assert run_compare(path, tmp_path / "other", seed=5, shard="1/2") == 0
    with pytest.raises(ConfigError, match="seed differs from"):
        merge(tmp_path / "new", [*shards, tmp_path / "other"])
    with pytest.raises(ConfigError, match="it holds no run"):
        merge(tmp_path / "new", [tmp_path / "nowhere"])
    assert run_compare(path, tmp_path / "x", shard="3/2") == 2
    assert "'3/2' is no part of a whole" in capsys.readouterr().err


def test_an_arm_of_a_measured_share_has_one_share_in_the_whole_run(recipe, tmp_path, capsys):
    """As an engine that draws other tokens on another machine would have it: the second shard measures otherwise."""
    half = {"router": "random", "label": "half", "knobs": {"share": 0.5}}
    path = recipe(routers=["target", {"router": "random", "share_of": "half"}, half], latency=None)
    shards = [tmp_path / "a", tmp_path / "b"]
    for n, shard in enumerate(shards, 1):
        assert run_compare(path, shard, shard=f"{n}/2") == 0
    first, second = (json.loads((shard / "shares.json").read_text()) for shard in shards)
    assert first == second
    (shards[1] / "shares.json").write_text(json.dumps({"half": first["half"] + 0.01}))
    count, left_out = merge(tmp_path / "merged", shards)
    assert left_out == {"random": QUESTIONS // 2}
    assert count == 4 + 3 * QUESTIONS - QUESTIONS // 2
    assert run_compare(path, tmp_path / "merged") == 0
    assert run_compare(path, tmp_path / "whole") == 0
    assert untimed(results(tmp_path / "merged")) == untimed(results(tmp_path / "whole"))
    # A run that resumes keeps to the share that its answers have.
    resumed = shards[1]
    assert run_compare(path, resumed) == 0
    assert results(resumed)["arms"][1]["knobs"]["share"] == first["half"] + 0.01


def test_shards_that_time_their_part_at_once_say_so(recipe, tmp_path):
    path = recipe(latency={"limit": 7, "warmup": 1, "sharded": True})
    assert run_compare(path, tmp_path / "whole") == 0
    assert results(tmp_path / "whole")["load"]["latency"]["clients"] == {"most": 1, "mean": 1.0}
    shards = [tmp_path / "a", tmp_path / "b"]
    processes = [start(path, shard, f"{n}/2") for n, shard in enumerate(shards, 1)]
    assert [p.wait(timeout=120) for p in processes] == [0, 0]
    timed = [[t for t in traces(shard) if t.extra["pass"] == "latency"] for shard in shards]
    assert [len(part) for part in timed] == [4 * 2, 3 * 2]
    assert [t.extra["arm"] for t in timed[0][:4]] == ["target", "draft", "target", "draft"]
    assert [t.extra["arm"] for t in timed[1][:4]] == ["draft", "target", "draft", "target"]
    merge(tmp_path / "merged", shards)
    stored = (tmp_path / "merged" / "traces.jsonl").read_bytes()
    assert run_compare(path, tmp_path / "merged") == 0
    assert (tmp_path / "merged" / "traces.jsonl").read_bytes() == stored, "nothing is left to answer"
    assert tokens(tmp_path / "merged") == tokens(tmp_path / "whole")
    found = results(tmp_path / "merged")
    assert found["valid"]
    assert 1 <= found["load"]["latency"]["clients"]["mean"] <= found["load"]["latency"]["clients"]["most"] <= 2


def test_ctrl_c_stops_with_130_says_how_to_go_on_and_leaves_whole_lines(recipe, tmp_path):
    path = recipe(concurrency=2, samples=4)
    process = start(path, tmp_path / "run")
    wait_for_answers(tmp_path / "run", 3, process)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert "the same command goes on from there" in said.splitlines()[-1]
    assert len(traces(tmp_path / "run")) >= 3


def test_an_engine_that_comes_back_costs_attempts_and_no_answer(recipe, tmp_path):
    moody.LOST["test: what is 3 plus 1?"] = 2
    out = tmp_path / "run"
    assert run_compare(recipe(routers=["target", "moody:Moody"], latency=None, retries=2), out=out) == 0
    assert [a["failures"] for a in results(out)["arms"]] == [0, 0]
    failures = [json.loads(line) for line in (out / "failures.jsonl").read_text().splitlines()]
    assert [(f["question"], f["attempt"], f["retryable"]) for f in failures] == [("test3", 0, True), ("test3", 1, True)]


def test_garbage_collections_do_not_stop_answers_under_way(recipe, tmp_path):
    moody.FROZEN.clear()
    assert run_compare(recipe(routers=["target", "moody:Moody"], latency=None, limit=2), out=tmp_path / "run") == 0
    assert len(moody.FROZEN) == 2
    assert min(moody.FROZEN) > 100_000, "what is loaded is left out"
    assert gc.get_freeze_count() == 0, "until the run is over"


def test_a_further_attempt_at_a_timed_answer_is_as_cold_as_the_first(recipe, tmp_path):
    moody.ATTEMPTS.clear()
    out = tmp_path / "run"
    assert (
        run_compare(recipe(routers=["target", "moody:Late"], latency={"limit": 2, "warmup": 0}, limit=2), out=out) == 0
    )
    timed = [t for t in traces(out) if (t.extra["pass"], t.extra["arm"]) == ("latency", "moody:Late")]
    assert len(timed) == 2
    assert len(moody.ATTEMPTS) == 2 + 4, "each timed answer took two attempts"
    assert all(t.segments[0].cached == 0 for t in timed), "the attempt that failed left no prompt behind"


def test_an_answer_that_failed_leaves_all_arms_and_is_tried_again_on_resume(recipe, tmp_path, capsys):
    moody.LOST["test: what is 3 plus 1?"] = 100
    moody.WRONG.add("test: what is 5 plus 1?")
    path, out = recipe(routers=["target", "moody:Moody"], latency=None, retries=1), tmp_path / "run"
    assert run_compare(path, out=out) == 1
    found = results(out)
    assert [(a["n"], a["failures"]) for a in found["arms"]] == [(QUESTIONS - 2, 0), (QUESTIONS - 2, 2)]
    assert not found["valid"]
    assert "2 of 12 questions" in capsys.readouterr().err
    # Trying again can mend a lost engine, and not what the router did.
    assert moody.ATTEMPTS.count("test: what is 3 plus 1?") == 2
    assert moody.ATTEMPTS.count("test: what is 5 plus 1?") == 1
    calls = len(moody.ATTEMPTS)
    moody.LOST.clear()
    moody.WRONG.clear()
    assert run_compare(path, out=out) == 0
    assert len(moody.ATTEMPTS) == calls + 2
    assert [(a["n"], a["failures"]) for a in results(out)["arms"]] == [(QUESTIONS, 0)] * 2


def test_an_error_that_nobody_meant_to_raise_costs_its_answer_and_not_the_run(recipe, tmp_path, capsys):
    moody.BROKEN.add("test: what is 3 plus 1?")
    out = tmp_path / "run"
    assert run_compare(recipe(routers=["target", "moody:Moody"], latency=None), out=out) == 1
    assert [(a["n"], a["failures"]) for a in results(out)["arms"]] == [(QUESTIONS - 1, 0), (QUESTIONS - 1, 1)]
    (failure,) = [json.loads(line) for line in (out / "failures.jsonl").read_text().splitlines()]
    assert failure["error"] == "ZeroDivisionError: division by zero"
    assert "moody.py" in failure["traceback"]


def test_random_takes_the_share_that_its_model_has_on_calibration_questions(recipe, tmp_path):
    arms = [
        "target",
        {"router": "random", "share_of": "half"},
        {"router": "random", "label": "half", "knobs": {"share": 0.5}},
    ]
    out = tmp_path / "run"
    assert run_compare(recipe(routers=arms, latency=None), out=out) == 0
    found = results(out)
    calibrating = [t for t in traces(out) if t.extra["pass"] == "calibration"]
    assert {t.question for t in calibrating} == {f"calibration{n}" for n in range(4)}
    share = sum(t.tokens("target") for t in calibrating) / sum(t.tokens() for t in calibrating)
    assert found["calibration"] == {"split": "calibration", "questions": 4, "target_share": {"half": share}}
    assert found["arms"][1]["knobs"]["share"] == share
    assert "calibration" not in (out / "answers.jsonl").read_text()


def test_a_measured_router_need_not_be_compared(recipe, tmp_path):
    arms = [
        "target",
        {"router": "random", "share_of": "half"},
        {"router": "random", "label": "half", "knobs": {"share": 0.5}},
    ]
    out = tmp_path / "run"
    assert run_compare(recipe(routers=arms, latency=None), out=out, routers=["random"], limit=2) == 0
    found = results(out)
    assert [(a["label"], a["n"]) for a in found["arms"]] == [("random", 2)]
    assert found["calibration"]["target_share"].keys() == {"half"}


def test_arms_take_turns_in_the_latency_pass_one_answer_at_a_time(recipe, tmp_path):
    out = tmp_path / "run"
    assert run_compare(recipe(latency={"limit": 3, "warmup": 2}), out=out) == 0
    timed = [t for t in traces(out) if t.extra["pass"] == "latency"]
    asked = ["test0", "test4", "test8"]
    assert [t.question for t in timed] == [q for q in asked for _ in range(2)]
    assert [t.extra["arm"] for t in timed] == ["target", "draft", "draft", "target", "target", "draft"]
    for before, after in pairwise(timed):
        assert before.extra["started"] + before.seconds <= after.extra["started"] + 0.001


def test_an_arm_may_speculate_in_its_own_way_and_writes_the_same_tokens(recipe, tmp_path):
    pair = {**PAIR, "target": {"model": "nano:draft", "speculative": "ngram"}}
    lookup = {"method": "ngram", "tokens": 3, "ngram_min": 1}
    arms = [
        {"router": "target", "label": "plain", "speculative": {"target": None}},
        {"router": "target", "label": "fast", "speculative": {"target": lookup}},
        "target",
        {"router": "random", "knobs": {"share": 0.5}, "speculative": {"draft": "ngram"}},
    ]
    out = tmp_path / "run"
    assert run_compare(recipe(pair=pair, routers=arms), out=out) == 0
    found = {a["label"]: a for a in results(out)["arms"]}
    assert found["plain"]["speculation"] is None
    assert found["fast"]["speculation"]["target"]["tokens"] == 3
    assert found["random"]["speculation"].keys() == {"target", "draft"}
    wrote = tokens(out)
    for (name, arm, question, sample), ids in wrote.items():
        if arm in ("fast", "target"):
            assert ids == wrote[name, "plain", question, sample]
    assert found["plain"]["acceptance_length"] is None
    assert found["fast"]["acceptance_length"] > 1
    # Against the plain target, and against the first one that speculates.
    assert found["plain"]["speedup"]["p50"] == found["fast"]["speedup_vs_speculation"]["p50"] == 1.0
    assert found["fast"]["speedup"]["p50"] * found["plain"]["speedup_vs_speculation"]["p50"] == pytest.approx(1)


def test_another_pair_and_fewer_timed_answers_may_be_given_on_the_command_line(recipe, tmp_path, monkeypatch):
    (tmp_path / "pairs").mkdir()
    other = {**PAIR, "target": {"model": PAIR["target"], "speculative": "ngram"}}
    (tmp_path / "pairs" / "ngram.yaml").write_text(yaml.safe_dump(other))
    monkeypatch.chdir(tmp_path / "pairs")
    assert run_compare(recipe(), out=tmp_path / "plain") == 0
    assert run_compare(recipe(), out=tmp_path / "ngram", pair="ngram.yaml", timed=1) == 0
    found = results(tmp_path / "ngram")
    assert [arm["speculation"]["target"]["method"] for arm in found["arms"]] == ["ngram", "ngram"]
    timed = [t for t in traces(tmp_path / "ngram") if t.extra["pass"] == "latency"]
    assert len({t.question for t in timed}) < len(
        {t.question for t in traces(tmp_path / "plain") if t.extra["pass"] == "latency"}
    )
    quality = {key: ids for key, ids in tokens(tmp_path / "plain").items() if key[0] == "quality"}
    assert quality == {key: ids for key, ids in tokens(tmp_path / "ngram").items() if key[0] == "quality"}


def test_a_folder_serves_one_recipe_and_the_refusal_names_the_field(recipe, tmp_path, capsys):
    out = tmp_path / "run"
    assert run_compare(recipe(latency=None), out=out, limit=1, routers=["draft"]) == 0
    capsys.readouterr()
    assert run_compare(recipe(latency=None), out=out, limit=2, routers=["draft"]) == 2
    said = capsys.readouterr().err.strip()
    assert "recipe.limit = 1, this one 2" in said
    assert "--out" in said
    rows = [json.dumps({"id": "test0", "question": "another?", "answer": "1"})]
    path = recipe(latency=None)
    (tmp_path / "test.jsonl").write_text("\n".join(rows))
    assert run_compare(path, out=out, limit=1, routers=["draft"]) == 2
    assert "questions.quality" in capsys.readouterr().err
    (out / "config.json").write_text("{")
    capsys.readouterr()
    assert run_compare(recipe(latency=None), out=out, limit=1, routers=["draft"]) == 2
    assert f"{out / 'config.json'} is damaged" in capsys.readouterr().err


def test_of_a_long_value_that_differs_the_refusal_shows_the_beginning(tmp_path):
    RunFolder(tmp_path, {"arms": ["one"] * 100}, {}).close()
    with pytest.raises(ConfigError) as caught:
        RunFolder(tmp_path, {"arms": ["two"]}, {})
    assert len(str(caught.value)) < 400
    assert 'this one ["two"]; give another --out' in str(caught.value)


def test_a_run_is_not_resumed_with_other_weights(recipe, tmp_path, capsys):
    model = tmp_path / "model"
    shutil.copytree(nano.pair_paths()["draft"], model)
    path = recipe(latency=None, pair={**PAIR, "draft": "model"})
    assert run_compare(path, out=tmp_path / "run", limit=1, routers=["draft"]) == 0
    weights = bytearray((model / "model.safetensors").read_bytes())
    weights[-5] ^= 1
    (model / "model.safetensors").write_bytes(weights)
    capsys.readouterr()
    assert run_compare(path, out=tmp_path / "run", limit=1, routers=["draft"]) == 2
    assert "weights.model = " in capsys.readouterr().err


def test_a_run_is_not_resumed_with_another_scorer(recipe, tmp_path, capsys):
    model = tmp_path / "judge"
    shutil.copytree(nano.pair_paths()["draft"], model)
    path = recipe(latency=None, pair={**PAIR, "scorers": {"judge": {"kind": "judge", "model": "judge"}}})
    assert run_compare(path, out=tmp_path / "run", limit=1, routers=["draft"]) == 0
    weights = bytearray((model / "model.safetensors").read_bytes())
    weights[-5] ^= 1
    (model / "model.safetensors").write_bytes(weights)
    capsys.readouterr()
    assert run_compare(path, out=tmp_path / "run", limit=1, routers=["draft"]) == 2
    assert "weights.judge = " in capsys.readouterr().err


def test_two_runs_cannot_write_to_one_folder(tmp_path):
    first = RunFolder(tmp_path, {"a": 1}, {})
    with pytest.raises(ConfigError, match="another comparison is writing"):
        RunFolder(tmp_path, {"a": 1}, {})
    first.close()
    RunFolder(tmp_path, {"a": 1}, {}).close()


def test_a_torn_last_line_is_dropped_and_a_damaged_one_is_named(tmp_path):
    extra = {"pass": "quality", "arm": "a", "grade": "wrong"}
    folder = RunFolder(tmp_path, {}, {})
    folder.append(Trace(question="q1", extra=extra))
    folder.append(Trace(question="q2" * 50_000, extra=extra))
    folder.close()
    file = tmp_path / "traces.jsonl"
    whole = file.read_bytes()
    first = whole.split(b"\n")[0] + b"\n"
    file.write_bytes(whole[:-10])
    folder = RunFolder(tmp_path, {}, {})
    assert [k[2] for k in folder.done()] == ["q1"]
    folder.close()
    assert file.read_bytes() == first
    file.write_bytes(whole[:20])
    folder = RunFolder(tmp_path, {}, {})
    assert folder.done() == {}
    folder.close()
    file.write_bytes(b"{oops\n" + first)
    folder = RunFolder(tmp_path, {}, {})
    with pytest.raises(ValueError, match="line 1 is no trace"):
        folder.done()
    folder.close()


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"routers": ["relaygn"]}, ["recipe.yaml: routers: ", "'relaygn' is unknown", "did you mean 'relaygen'"]),
        ({"routers": [{"router": "random", "knobs": {"shares": 1}}]}, ["random.shares", "did you mean 'share'"]),
        ({"routers": [{"router": "relaygen", "knobs": {"profile": "no.json"}}]}, ["no.json", "baton calibrate cues"]),
        ({"task": {"name": "sums", "path": "empty.jsonl"}}, ["empty.jsonl has no questions"]),
        (
            {"pair": {**PAIR, "target": "models/none/here"}},
            ["recipe.yaml: pair.target.model: ", "no such folder"],
        ),
        (
            {"routers": [{"router": "target", "speculative": {"target": "mtp"}}]},
            ["recipe.yaml: target: speculative.target.method: engine 'transformers' does not do 'mtp'"],
        ),
        (
            {"routers": [{"router": "target", "speculative": {"judge": "ngram"}}]},
            ["recipe.yaml: routers[0].speculative.judge: unknown field", "use one of target, draft"],
        ),
        ({"routers": ["rsd"], "pair": {**PAIR, "target": "models/none"}}, ["'rsd' needs the scorer 'prm'"]),
        ({"rooters": []}, ["recipe.yaml: rooters: unknown field", "did you mean 'routers'"]),
        (
            {
                "routers": ["draft", {"router": "random", "share_of": "draft"}],
                "task": {"name": "sums", "path": "test.jsonl"},
            },
            ["calibration.split: its question 'test0' is test question 'test0'"],
        ),
    ],
)
def test_wrong_input_is_answered_in_one_line_with_exit_code_2(recipe, tmp_path, capsys, changes, parts):
    (tmp_path / "empty.jsonl").write_text("")
    assert run_compare(recipe(**changes), out=tmp_path / "run") == 2
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert all(part in said for part in parts), said
    assert not (tmp_path / "run").exists()
