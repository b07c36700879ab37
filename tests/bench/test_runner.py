"""A comparison leaves what its figures rest on, repeats, and goes on where it was killed."""

from __future__ import annotations

import importlib
import json
import shutil
import sys

from small_runs import PAIR, QUESTIONS, results, started, tokens, traces, untimed, wait_for_answers

from baton import nano
from baton.bench.command import run_compare


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
    with started(path, tmp_path / "killed") as process:
        wait_for_answers(tmp_path / "killed", 5, process)
        process.kill()
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


def test_a_run_is_not_resumed_with_other_weights(recipe, tmp_path, capsys):
    model = tmp_path / "model"
    shutil.copytree(nano.pair_paths()["draft"], model)
    path = recipe(latency=None, pair={**PAIR, "draft": "model"})
    assert run_compare(path, out=tmp_path / "run", limit=1, routers="draft") == 0
    weights = bytearray((model / "model.safetensors").read_bytes())
    weights[-5] ^= 1
    (model / "model.safetensors").write_bytes(weights)
    capsys.readouterr()
    assert run_compare(path, out=tmp_path / "run", limit=1, routers="draft") == 2
    assert "weights.model = " in capsys.readouterr().err


def test_a_run_is_not_resumed_with_another_scorer(recipe, tmp_path, capsys):
    model = tmp_path / "judge"
    shutil.copytree(nano.pair_paths()["draft"], model)
    path = recipe(latency=None, pair={**PAIR, "scorers": {"judge": {"kind": "judge", "model": "judge"}}})
    assert run_compare(path, out=tmp_path / "run", limit=1, routers="draft") == 0
    weights = bytearray((model / "model.safetensors").read_bytes())
    weights[-5] ^= 1
    (model / "model.safetensors").write_bytes(weights)
    capsys.readouterr()
    assert run_compare(path, out=tmp_path / "run", limit=1, routers="draft") == 2
    assert "weights.judge = " in capsys.readouterr().err


OWN = """
from dataclasses import dataclass
from typing import ClassVar

from baton.boundary import Cap


@dataclass(frozen=True)
class Own:
    name: ClassVar[str] = "own"

    async def __call__(self, gen):
        while not gen.finished:
            await gen.write("draft", [Cap(5)])
"""


def test_a_run_is_not_resumed_with_a_router_of_the_user_s_that_has_changed(recipe, tmp_path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(tmp_path)
    file, out = tmp_path / "own_router.py", tmp_path / "run"
    file.write_text(OWN)
    path = recipe(latency=None, routers=["draft", {"router": "own_router:Own", "label": "own"}])
    assert run_compare(path, out=out, limit=2) == 0
    file.write_text(OWN + "# said in other words\n")
    assert run_compare(path, out=out, limit=2) == 0
    file.write_text(OWN.replace("Cap(5)", "Cap(6)"))
    capsys.readouterr()
    assert run_compare(path, out=out, limit=2) == 2
    assert capsys.readouterr().err.splitlines()[-1] == (
        f"baton: out: {out} holds 2 answers of 'own', whose code has changed since; give another folder, or remove it"
    )


def test_a_run_goes_on_with_a_router_that_was_mended_before_it_answered(recipe, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    file, out = tmp_path / "mended_router.py", tmp_path / "run"
    file.write_text(OWN.replace("Cap(5)", "Cap(no_such)"))
    path = recipe(latency=None, routers=["draft", {"router": "mended_router:Own", "label": "own"}])
    assert run_compare(path, out=out, limit=2) == 1
    file.write_text(OWN)
    monkeypatch.delitem(sys.modules, "mended_router")
    importlib.invalidate_caches()
    assert run_compare(path, out=out, limit=2) == 0
    assert [arm["n"] for arm in results(out)["arms"]] == [2, 2]


def test_a_run_is_not_resumed_with_a_scorer_of_the_user_s_that_has_changed(recipe, tmp_path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(tmp_path)
    file = tmp_path / "own_scorer.py"
    file.write_text("def score(request):\n    return 1.0\n")
    scorers = {"own": {"kind": "callable", "function": "own_scorer:score"}}
    path = recipe(latency=None, pair={**PAIR, "scorers": scorers})
    assert run_compare(path, out=tmp_path / "run", limit=1, routers="draft") == 0
    file.write_text("def score(request):\n    return 0.0\n")
    capsys.readouterr()
    assert run_compare(path, out=tmp_path / "run", limit=1, routers="draft") == 2
    assert "scorers' code.own_scorer:score = " in capsys.readouterr().err
