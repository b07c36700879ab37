"""Verdicts on routers, each by the fact that should decide it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from baton import routers
from baton.check_pair.advice import BASELINES, WRAPPERS, Advice, Facts, Verdict, advise, remarks_on
from baton.check_pair.answers import Agreement, Answers, Solved, Steps
from baton.check_pair.formats import Formats, read_formats
from baton.config import NANO_PAIR, EmbeddingConfig, PolicyHeadConfig, PrmConfig, TokenConfig

SOLVED = Solved(40, 0.9, (0.77, 0.96), 0.5, (0.35, 0.65), 2, (0.01, 0.16))
STEPS = Steps(in_steps=1.0, steps=6, tokens=40, tokens_p90=80, thinking_closed=1.0, boxed=1.0, truncated=0.0)
AGREEMENT = Agreement(200, 0.5, (0.4, 0.6), 0.9, 8000, 0.9, 0.8, 0.7, 0.99, 0.2)
GOOD = Answers(
    all=SOLVED,
    by_level={"1": replace(SOLVED, draft=0.9), "5": replace(SOLVED, draft=0.1)},
    draft_only=["q1", "q2"],
    steps={"target": STEPS, "draft": STEPS},
    agreement=AGREEMENT,
    seconds_a_token={"target": 0.04, "draft": 0.005},
    cost_ratio=8.0,
    warnings=[],
)
PRM = {
    "prm": PrmConfig(kind="prm", model="some/prm"),
    "embedding": EmbeddingConfig(kind="embedding", model="some/e"),
    "token-router": TokenConfig(kind="token", model="some/head"),
    "policy": PolicyHeadConfig(kind="policy", model="some/policy"),
}


@pytest.fixture(scope="module")
def nano() -> Formats:
    return read_formats(NANO_PAIR, Path.cwd())


def facts(formats: Formats, answers: Answers | None = GOOD, temperature: float = 0.6, **pair: Any) -> Facts:
    return Facts(NANO_PAIR.model_copy(update={"scorers": PRM, **pair}), formats, answers, temperature)


def verdicts(found: Facts) -> dict[str, Advice]:
    return {a.router: a for a in advise(found)}


def test_every_router_gets_a_verdict_and_a_good_pair_suits_all(nano):
    found = verdicts(facts(nano))
    assert found.keys() == set(routers.names()) - BASELINES - WRAPPERS
    assert {a.verdict for a in found.values()} == {Verdict.SUITS}


def test_without_blank_lines_step_routers_are_unfit_and_cue_routers_are_not(nano):
    lines = replace(GOOD, steps={**GOOD.steps, "target": replace(STEPS, in_steps=0.1)})
    found = verdicts(facts(nano, lines))
    unfit = {name for name, a in found.items() if a.verdict is Verdict.UNFIT}
    assert {"rsd", "specreason", "lookahead", "gsi", "glimp", "beam", "speculative-thinking"} <= unfit
    assert not unfit & {"relaygen", "rstitch", "margin", "cascade", "query-router"}
    assert found["rsd"].reasons[0] == "only 10% of the target's text stands in steps parted by blank lines"


def test_two_vocabularies_rule_out_what_passes_ids(nano):
    two = replace(nano, vocabulary=replace(nano.vocabulary, shared=False))
    found = verdicts(facts(two))
    assert found["bild"].verdict is Verdict.UNFIT
    assert {found[name].verdict for name in ("rstitch", "margin", "gsi")} == {Verdict.DOUBTFUL}
    assert found["rsd"].verdict is found["relaygen"].verdict is Verdict.SUITS


def test_without_thinking_relaygen_is_answer_delegation_only(nano):
    plain = replace(nano, target=replace(nano.target, thinking="none"))
    for given in (facts(plain), facts(nano, thinking=False)):
        found = verdicts(given)["relaygen"]
        assert found.verdict is Verdict.UNFIT
        assert "only its answer delegation is left" in found.reasons[0]


def test_a_pair_without_cues_is_told_how_to_get_them(nano):
    found = verdicts(facts(nano, cues=None))["relaygen"]
    assert found.verdict is Verdict.DOUBTFUL
    assert "baton calibrate cues" in found.reasons[0]


def test_a_draft_that_solves_little_makes_gates_doubtful(nano):
    weak = replace(GOOD, all=replace(SOLVED, draft=0.1, draft_ci=(0.04, 0.23)))
    found = verdicts(facts(nano, weak))
    assert found["rsd"].verdict is Verdict.DOUBTFUL
    assert found["rsd"].reasons[0] == "the draft alone solves 10% (4% to 23%): a gate will reject much"
    assert found["cascade"].verdict is Verdict.DOUBTFUL
    assert found["relaygen"].verdict is Verdict.SUITS


def test_a_draft_that_solves_as_much_at_every_level_makes_routers_of_whole_questions_doubtful(nano):
    alike = replace(GOOD, by_level={"1": SOLVED, "5": SOLVED})
    found = verdicts(facts(nano, alike))
    assert {name for name, a in found.items() if a.verdict is Verdict.DOUBTFUL} == {"query-router", "cascade"}
    assert "nothing says which questions to give it" in found["cascade"].reasons[0]


def test_greedy_sampling_rules_out_what_needs_alternatives(nano):
    found = verdicts(facts(nano, temperature=0.0))
    assert {found[n].verdict for n in ("majority", "best-of-n", "beam")} == {Verdict.UNFIT}
    assert found["gsi"].verdict is Verdict.DOUBTFUL
    assert "set n to 1" in found["gsi"].reasons[0]


def test_missing_scorers_are_named(nano):
    found = verdicts(facts(nano, scorers={}))
    assert "no process reward model (scorers: none)" in found["rsd"].reasons[0]
    assert "nothing compares two steps" in found["specguard"].reasons[0]
    assert found["specreason"].verdict is Verdict.SUITS


def test_lookahead_needs_equal_steps_or_a_verifier_that_finds_more(nano):
    apart = replace(GOOD, agreement=replace(AGREEMENT, same_step=0.1))
    with_judge = verdicts(facts(nano, apart))["lookahead"]
    assert with_judge.verdict is Verdict.DOUBTFUL
    assert "`baton plan --draft-step 0.12 --acceptance 0.10`" in with_judge.reasons[0]
    assert "neither judge nor embedding" in verdicts(facts(nano, apart, scorers={}))["lookahead"].reasons[0]


def test_token_routers_need_models_that_agree(nano):
    apart = replace(GOOD, agreement=replace(AGREEMENT, same_token=0.4))
    found = verdicts(facts(nano, apart))
    assert {found[n].verdict for n in ("rstitch", "margin", "bild", "glimp")} == {Verdict.DOUBTFUL}


@pytest.mark.parametrize(("tokens", "p90", "word"), [(3, 8, "more calls than it saves"), (90, 900, "would be cut")])
def test_steps_that_are_too_short_or_too_long_are_told(nano, tokens, p90, word):
    odd = replace(GOOD, steps={**GOOD.steps, "target": replace(STEPS, tokens=tokens, tokens_p90=p90)})
    found = verdicts(facts(nano, odd))["rsd"]
    assert found.verdict is Verdict.DOUBTFUL
    assert word in found.reasons[0]


def test_what_concerns_all_routers_is_said_once(nano):
    assert remarks_on(facts(nano)) == [
        "the draft is right and the target wrong on 2 of 40 questions: there a router can do better than the target"
    ]
    assert remarks_on(facts(nano, None)) == []
    level = replace(GOOD, all=replace(SOLVED, target=0.5), cost_ratio=1.4)
    said = " ".join(remarks_on(facts(nano, level)))
    assert "the target solves no more than the draft (50% against 50%)" in said
    assert "a target token costs only 1.4 draft tokens" in said
    open_ended = replace(GOOD, steps={**GOOD.steps, "draft": replace(STEPS, thinking_closed=0.5)})
    assert "the draft ends its thinking in only 50%" in " ".join(remarks_on(facts(nano, open_ended)))


def test_without_answers_only_what_is_read_is_judged(nano):
    found = verdicts(facts(nano, None))
    assert {a.verdict for a in found.values()} == {Verdict.SUITS}
    assert found["lookahead"].reasons == []


def test_a_router_that_nothing_was_trained_for_is_unfit(nano):
    untrained = {name: scorer for name, scorer in PRM.items() if scorer.kind not in ("token", "policy")}
    found = verdicts(facts(nano, scorers=untrained))
    assert {name for name, a in found.items() if a.verdict is Verdict.UNFIT} == {"token-router", "segmenter", "policy"}
    assert found["policy"].reasons[0].endswith("train it, and add a scorer of kind policy")
