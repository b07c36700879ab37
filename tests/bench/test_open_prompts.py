"""Open prompts in a comparison: a model of the pair compares answers with references, and win rates are reported."""

from __future__ import annotations

import json
from statistics import fmean

import pytest
import yaml

from baton.bench.command import run_compare

PAIR = {
    "name": "small",
    "target": "nano:draft",
    "draft": "nano:draft",
    "sampling": {"temperature": 0.8},
    "budget": {"tokens": 40, "answer_reserve": 20},
    "scorers": {"judge": {"kind": "judge", "role": "target", "template": "preference", "read": "expected", "top": 512}},
}


@pytest.fixture
def recipe(tmp_path):
    def make(**task):
        rows = [{"instruction": f"Say something about {n}.", "output": "It is 3."} for n in range(3)]
        (tmp_path / "open.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
        path = tmp_path / "recipe.yaml"
        whole = {
            "name": "open",
            "pair": PAIR,
            "task": {"name": "alpaca-eval", "path": "open.jsonl", **task},
            "routers": ["target"],
            "latency": {"limit": 1, "warmup": 0},
        }
        path.write_text(yaml.safe_dump(whole))
        return path

    return make


def test_win_rates_are_means_of_the_judges_scores_and_only_the_quality_pass_is_judged(recipe, tmp_path):
    assert run_compare(recipe(), out=tmp_path / "run") == 0
    answers = [json.loads(line) for line in (tmp_path / "run" / "answers.jsonl").read_text().splitlines()]
    judged = {pass_: [a for a in answers if a["pass"] == pass_] for pass_ in ("quality", "latency")}
    assert {a["grade"] for a in judged["latency"]} == {"timeout"}
    for arm in json.loads((tmp_path / "run" / "results.json").read_text())["arms"]:
        mine = [a for a in judged["quality"] if a["arm"] == arm["label"]]
        worth = [(a["score"] or 0.0) if a["finish"] not in {"length", "timeout"} else 0.0 for a in mine]
        assert arm["accuracy"] == pytest.approx(fmean(worth))
        assert arm["grader_timeouts"] == 0
    assert any(a["score"] is not None and 0 < a["score"] < 1 for a in judged["quality"])


def test_a_scorer_that_the_pair_lacks_is_named_before_anything_is_loaded(recipe, tmp_path, capsys):
    assert run_compare(recipe(scorer="jury"), out=tmp_path / "run") == 2
    assert "graded by the pair's scorer 'jury', and the pair has judge; add it under scorers" in capsys.readouterr().err
