"""Arms that are set up by other arms, and ones with a speculation of their own."""

from __future__ import annotations

import pytest
from small_runs import PAIR, results, tokens, traces

from baton.bench.command import run_compare


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
    assert run_compare(recipe(routers=arms, latency=None), out=out, routers="random", limit=2) == 0
    found = results(out)
    assert [(a["label"], a["n"]) for a in found["arms"]] == [("random", 2)]
    assert found["calibration"]["target_share"].keys() == {"half"}


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
