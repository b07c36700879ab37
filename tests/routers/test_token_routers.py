"""glimp, rstitch, margin and bild: exact calls, tokens kept and dropped."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from baton import routers
from baton.boundary import ENTROPY, MARGIN, TOP_PROB
from baton.engines.base import Sampling
from baton.generation import Budget
from baton.routers.bild import Bild
from baton.routers.glimp import Glimp
from baton.routers.margin import Margin
from baton.routers.rstitch import RStitch
from relay import follow, relay
from scripted import WORDS, ScriptedEngine, ScriptedSession, pair, vocabulary

TEXT = "one.\n\ntwo bad.\n\nthree.</think>good.\n\nanswer<eos>"


def entropy_after(*ends: str, high=3.0, low=0.1):
    """High entropy for the token that follows a text with one of these ends."""
    return lambda text, token: {ENTROPY: high if any(text.endswith(e) for e in ends) else low}


# glimp


def test_glimp_gives_the_steps_with_an_unsure_first_token_to_the_target():
    got = relay(Glimp(entropy=1.0), TEXT, draft_says=entropy_after("one.\n\n"))
    assert got.calls == [
        ("draft", "", "one.\n\n"),
        ("draft", "one.\n\n", "two"),
        ("target", "one.\n\n", "two bad.\n\n"),
        ("draft", "one.\n\ntwo bad.\n\n", "three.</think>"),
        ("draft", "one.\n\ntwo bad.\n\nthree.</think>", "good.\n\n"),
        ("draft", "one.\n\ntwo bad.\n\nthree.</think>good.\n\n", "answer<eos>"),
    ]
    assert [(s.text, s.sampled, s.overshoot) for s in got.trace.segments][1] == ("", 1, 1)
    assert got.trace.text == TEXT.removesuffix("<eos>")


def test_glimp_looks_at_the_first_token_only():
    got = relay(Glimp(entropy=1.0), TEXT, draft_says=entropy_after("one", "two", "two "))
    assert {c[0] for c in got.calls} == {"draft"}


def test_glimp_lets_the_target_write_an_end_that_the_draft_is_unsure_of():
    short = "one.\n\n</think>answer<eos>"
    got = relay(Glimp(entropy=1.0), short, draft_says=entropy_after("one.\n\n"))
    assert got.path == [("draft", "one.\n\n"), ("draft", ""), ("target", "</think>"), ("draft", "answer")]


def test_glimp_can_leave_the_answer_to_one_model():
    got = relay(Glimp(entropy=1.0, answer="target"), TEXT, draft_says=entropy_after())
    assert got.calls[-1] == ("target", "one.\n\ntwo bad.\n\nthree.</think>", "good.\n\nanswer<eos>")


def test_glimp_stops_at_the_budget():
    got = relay(Glimp(entropy=1.0), lambda text, seed: "one " * 50, draft_says=entropy_after(), budget=Budget(20, 5))
    assert [(r, len(WORDS.encode(t))) for r, t in got.path] == [("draft", 15), ("inserted", 1), ("draft", 5)]
    assert got.trace.finish == "length"


def test_glimp_takes_an_empty_step_for_a_step():
    got = relay(Glimp(entropy=1.0), "\n\none.\n\n</think>answer<eos>", draft_says=entropy_after("one.\n\n"))
    assert got.path == [
        ("draft", "\n\n"),
        ("draft", "one.\n\n"),
        ("draft", ""),
        ("target", "</think>"),
        ("draft", "answer"),
    ]


# rstitch


LOG_V = math.log(len(WORDS))


def test_rstitch_drops_the_unsure_token_and_hands_back_after_a_sure_one():
    target = entropy_after("one.\n\n", "one.\n\ntwo", high=2.0)
    got = relay(RStitch(tau=1.0 / LOG_V), TEXT, draft_says=entropy_after("one.\n\n"), target_says=target)
    assert got.calls[:4] == [
        ("draft", "", "one.\n\ntwo"),
        ("target", "one.\n\n", "two bad"),
        ("draft", "one.\n\ntwo bad", ".\n\nthree.</think>"),
        ("draft", "one.\n\ntwo bad.\n\nthree.</think>", "good.\n\nanswer<eos>"),
    ]
    assert got.path[:2] == [("draft", "one.\n\n"), ("target", "two bad")]
    assert [s.overshoot for s in got.trace.segments] == [1, 0, 0, 0]
    assert got.trace.text == TEXT.removesuffix("<eos>")


def test_rstitch_with_hysteresis_stays_with_the_target_until_it_is_surer():
    says = lambda text, token: {ENTROPY: 0.8}  # noqa: E731
    unsure = entropy_after("one.\n\n", low=0.8)
    at_once = relay(RStitch(tau=1.0 / LOG_V), TEXT, draft_says=unsure, target_says=says)
    held = relay(RStitch(tau=1.0 / LOG_V, back=0.5 / LOG_V), TEXT, draft_says=unsure, target_says=says)
    assert at_once.path[1] == ("target", "two")
    assert held.path[1] == ("target", "two bad.\n\nthree.</think>")
    assert held.path[2] == ("draft", "good.\n\nanswer"), "the draft is asked again after the end of thinking"


def test_rstitch_normalises_by_the_writers_own_vocabulary():
    larger = vocabulary(*(f"piece{n}" for n in range(5000)), shift=1)
    says = lambda text, token: {ENTROPY: 3.0}  # noqa: E731
    tau = 3.0 / math.log(1000)
    draft = ScriptedEngine("draft", TEXT, vocabulary=larger)
    assert relay(RStitch(tau=tau), TEXT, draft, draft_says=says, target_says=says).trace.target_share == 0
    assert relay(RStitch(tau=tau), TEXT, draft_says=says, target_says=says).trace.target_share > 0


def test_rstitch_stops_at_the_budget_whoever_writes():
    endless, unsure = (lambda text, seed: "one " * 40), entropy_after("one one ")
    got = relay(RStitch(tau=1.0 / LOG_V), endless, draft_says=unsure, target_says=unsure, budget=Budget(8, 3))
    assert got.path == [("draft", "one one "), ("target", "one"), ("inserted", "</think>"), ("draft", "one one")]
    assert got.trace.finish == "length"


# margin


def margins(**by_end: float):
    return lambda text, token: {MARGIN: by_end.get(token, 0.9)}


def test_margin_hands_over_below_low_and_back_from_high():
    got = relay(Margin(low=0.3, high=0.6), TEXT, draft_says=margins(two=0.2), target_says=margins(two=0.4, bad=0.6))
    assert got.path[:3] == [("draft", "one.\n\n"), ("target", "two "), ("draft", "bad.\n\nthree.</think>")]
    assert got.trace.segments[0].overshoot == 1


def test_margin_keeps_the_target_for_the_tokens_asked():
    got = relay(Margin(low=0.3, high=0.6, stay=4), TEXT, draft_says=margins(two=0.2), target_says=margins())
    assert got.path[1] == ("target", "two bad.\n\n")


def test_margin_meets_ends_in_the_drafts_stretch_and_in_the_targets():
    doubts = lambda text, token: {MARGIN: 0.1 if text.endswith(("two", "good")) else 0.9}  # noqa: E731
    text = "one.\n\ntwo</think>good answer<eos>"
    got = relay(Margin(), text, draft_says=doubts, target_says=margins())
    assert got.calls == [
        ("draft", "", "one.\n\ntwo</think>"),
        ("target", "one.\n\ntwo", "</think>"),
        ("draft", "one.\n\ntwo</think>", "good "),
        ("target", "one.\n\ntwo</think>good", " "),
        ("draft", "one.\n\ntwo</think>good ", "answer<eos>"),
    ]
    assert [s.overshoot for s in got.trace.segments] == [1, 0, 1, 0, 0]
    last = relay(Margin(), "one two<eos>", draft_says=doubts, target_says=margins())
    assert last.calls == [("draft", "", "one two<eos>"), ("target", "one two", "<eos>")]
    assert last.trace.finish == "end_of_text"


def test_margin_stops_at_the_budget():
    endless = lambda text, seed: "one " * 40  # noqa: E731
    doubts = lambda text, token: {MARGIN: 0.1 if text.endswith("</think>") else 0.9}  # noqa: E731
    got = relay(Margin(), endless, draft_says=doubts, target_says=margins(), budget=Budget(8, 3))
    assert got.path == [
        ("draft", "one one one"),
        ("inserted", "</think>"),
        ("draft", ""),
        ("target", "one"),
        ("draft", "one "),
    ]
    assert got.trace.finish == "length"


# bild


def sure(*unsure_after: str):
    return lambda text, token: {TOP_PROB: 0.2 if any(text.endswith(e) for e in unsure_after) else 0.9}


def test_bild_falls_back_where_the_draft_is_unsure():
    got = relay(Bild(), TEXT, draft_says=sure("two "))
    assert got.calls[:5] == [
        ("draft", "", "one.\n\ntwo bad"),
        ("logprob target", "", "one.\n\ntwo "),
        ("target", "one.\n\ntwo ", "bad"),
        ("draft", "one.\n\ntwo bad", ".\n\nthree.</think>"),
        ("logprob target", "one.\n\ntwo bad", ".\n\nthree.</think>"),
    ]
    assert got.path[:2] == [("draft", "one.\n\ntwo "), ("target", "bad")]
    assert got.trace.text == TEXT.removesuffix("<eos>")


WRONG = TEXT.replace("two", "three")


def test_bild_rolls_back_to_the_first_token_that_the_target_finds_unlikely():
    got = relay(Bild(window=4), follow(TEXT), follow(WRONG, TEXT), draft_says=sure())
    assert got.calls[:3] == [
        ("draft", "", "one.\n\nthree "),
        ("logprob target", "", "one.\n\nthree "),
        ("draft", "one.\n\ntwo", " bad.\n\nthree"),
    ]
    cut, replaced = got.trace.segments[:2]
    assert (cut.text, cut.sampled, cut.kept_tokens) == ("one.\n\n", 4, 2)
    assert (replaced.text, replaced.role.value, replaced.kind.value) == ("two", "target", "append")


def test_bild_draws_the_replacement_where_it_samples():
    sampling = Sampling(temperature=0.7)
    got = relay(Bild(window=4), follow(TEXT), follow(WRONG, TEXT), draft_says=sure(), sampling=sampling)
    assert got.calls[2] == ("target", "one.\n\n", "two")
    assert "append" not in {s.kind.value for s in got.trace.segments}
    assert got.trace.text == TEXT.removesuffix("<eos>")


def test_bild_keeps_an_unlikely_token_that_is_the_targets_own_choice():
    target = ScriptedEngine("target", TEXT, likes=lambda text, token: -9.0)
    got = relay(Bild(window=4), target, TEXT, draft_says=sure())
    assert got.path[0] == ("draft", "one.\n\ntwo ")


class Doubtful(ScriptedEngine):
    """Is a little surprised by every token, also by those that it would have chosen."""

    def open(self, prompt):
        return DoubtfulSession(self, len(prompt))


class DoubtfulSession(ScriptedSession):
    async def logprob(self, prefix, ids, temperature=1.0):
        scores, usage = await super().logprob(prefix, ids, temperature)
        return [replace(s, logprob=-0.1) for s in scores], usage


def test_bild_takes_zero_as_a_value_of_its_knobs():
    got = relay(
        Bild(rollback=0, fallback=0), Doubtful("target", follow(TEXT)), follow(WRONG, TEXT), draft_says=sure("one")
    )
    assert got.calls[0] == ("draft", "", "one.\n\nthree bad.\n\nthree.</think>"), "no doubt of the draft counts"
    assert got.trace.text == TEXT.removesuffix("<eos>"), "every token that is not the target's first choice goes"


def test_bild_ends_with_an_end_inside_the_drafts_window():
    short = "one</think>two<eos>"
    got = relay(Bild(), short, draft_says=sure())
    assert got.calls == [
        ("draft", "", "one</think>"),
        ("logprob target", "", "one</think>"),
        ("target", "one</think>", "two"),
        ("draft", "one</think>two", "<eos>"),
        ("logprob target", "one</think>two", "<eos>"),
    ]
    assert got.trace.finish == "end_of_text"


def test_bild_goes_on_where_the_draft_is_unsure_at_once():
    got = relay(Bild(), "one</think>two<eos>", draft_says=lambda text, token: {TOP_PROB: 0.1})
    assert got.trace.target_share == 1.0
    assert [c[0] for c in got.calls] == ["draft", "target"] * 4
    assert sum(s.overshoot for s in got.trace.segments) == 4


def test_bild_stops_at_the_budget_and_asks_the_target_nothing_beyond_it():
    text = lambda written, seed: ("one two " * 9)[len(written.replace("</think>", "")) :]  # noqa: E731
    got = relay(Bild(window=3), text, draft_says=sure(), budget=Budget(9, 3))
    assert got.path == [
        ("draft", "one two"),
        ("target", " "),
        ("draft", "one "),
        ("inserted", "</think>"),
        ("target", "two"),
        ("draft", " one"),
    ]
    assert [c[0] for c in got.calls] == ["draft", "logprob target", "target"] * 2 + ["draft", "logprob target"]
    assert got.trace.finish == "length"


def test_bild_is_refused_on_a_pair_of_two_vocabularies():
    other = ScriptedEngine("draft", TEXT, vocabulary=vocabulary("one", shift=5))
    with pytest.raises(ValueError, match="'bild' needs one vocabulary"):
        routers.check(Bild(), pair(ScriptedEngine("target", TEXT), other))


@pytest.mark.parametrize(
    ("name", "knobs", "message"),
    [
        ("glimp", {"entropy": -1}, "glimp.entropy: -1 is too little; use 0 or more"),
        ("glimp", {"answer": "judge"}, "glimp.answer: 'judge' is unknown; use one of relay, draft, target"),
        ("rstitch", {"tau": 1.5}, "rstitch.tau: 1.5 is out of range; use a number from 0 to 1"),
        ("rstitch", {"tau": 0.1, "back": 0.2}, "rstitch.back: 0.2 is not between 0 and rstitch.tau"),
        ("margin", {"low": 0.5, "high": 0.4}, "margin.high: 0.4 is below margin.low"),
        ("margin", {"stay": 0}, "margin.stay: 0 is too little"),
        ("bild", {"fallback": 2}, "bild.fallback: 2 is out of range"),
        ("bild", {"window": 0}, "bild.window: 0 is too little"),
    ],
)
def test_a_wrong_knob_is_named_with_its_value_and_a_remedy(name, knobs, message):
    with pytest.raises(ValueError, match=message):
        routers.create(name, knobs)
