"""GSI and SPECS on scripted engines: exact calls, what is kept and what is discarded."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from steps import calls, dropped, kept, relay, shared_log

from baton.engines.base import Sampling
from baton.generation import Budget
from baton.routers.gsi import GSI, soft_choice
from baton.routers.specs import SPECS
from scripted import EOS, ScriptedEngine, ScriptedScorer

TEXT = {"": "good.\n\n", "good.\n\n": "</think>", "</think>": "answer<eos>"}


def variants(*steps: str, then=None):
    """The n-th call on an empty text writes the n-th step; other texts go on as `then`."""
    left = list(steps)
    then = then or {"\n\n": "</think>", "</think>": "answer<eos>"}

    def script(text, seed):
        return left.pop(0) if not text else then[max((e for e in then if text.endswith(e)), key=len)]

    return script


def guided(router, target, draft, reward, target_likes=-1.0, draft_likes=-1.0, delay=0.0, **options):
    likes = lambda value: value if callable(value) else lambda text, token: value  # noqa: E731
    engines = (
        ScriptedEngine("target", target, likes=likes(target_likes)),
        ScriptedEngine("draft", draft, likes=likes(draft_likes)),
    )
    scorer = ScriptedScorer(lambda r: reward.get(r.step, 1.0), delay=delay)
    log = shared_log(*engines, scorer)
    return relay(router, *engines, scorers={"prm": scorer}, **options), log


def test_drafts_are_scored_by_the_reward_model_and_by_both_models_and_one_is_kept():
    reward = {"bad.\n\n": 0.0, "good.\n\n": 1.0}
    trace, log = guided(GSI(n=2), "", variants("bad.\n\n", "good.\n\n"), reward)
    assert sorted(calls(log)[:8]) == sorted(
        [
            ("write", "draft", "", "bad.\n\n"),
            ("write", "draft", "", "good.\n\n"),
            ("score", "scorer", "", "bad.\n\n"),
            ("score", "scorer", "", "good.\n\n"),
            *[("logprob", role, "", step) for role in ("target", "draft") for step in ("bad.\n\n", "good.\n\n")],
        ]
    )
    assert kept(trace) == [("draft", "good.\n\n"), ("draft", "</think>"), ("draft", "answer")]
    assert dropped(trace)[0] == ("draft", "bad.\n\n", "step")
    assert trace.decisions[0].score == pytest.approx(1.0), "both models find the step equally likely"


@pytest.mark.parametrize(("target_likes", "outcome"), [(-4.9, True), (-5.1, False)])
def test_the_reward_is_tilted_by_what_the_target_thinks_of_the_draft(target_likes, outcome):
    # Two tokens: (2 * target - 2 * draft) / beta is -0.39 or -0.41 on a reward of 0.9, against 0.5.
    then = {"": "good.\n\n"}
    trace, _ = guided(
        GSI(n=1, n_target=1, beta=20), then, variants("one.\n\n"), {"one.\n\n": 0.9}, target_likes, budget=Budget(3, 1)
    )
    decision = trace.decisions[0]
    assert decision.outcome is outcome
    assert decision.score == pytest.approx(0.9 + 2 * (target_likes + 1) / 20)


def test_after_a_rejection_the_target_writes_its_own_versions_and_the_reward_alone_chooses():
    reward = {"bad.\n\n": 0.1, "one.\n\n": 0.1, "good.\n\n": 0.9}
    target = variants("one.\n\n", "good.\n\n", "one.\n\n")
    trace, log = guided(GSI(n=2, n_target=3), target, variants("bad.\n\n", "bad.\n\n"), reward)
    assert kept(trace)[0] == ("target", "good.\n\n")
    rewrites = [c for c in log if c.role == "target" and c.op == "write"]
    assert [c.written for c in rewrites] == ["one.\n\n", "good.\n\n", "one.\n\n"]
    assert not [c for c in log if c.op == "logprob" and c.written == "good.\n\n"]
    assert dropped(trace)[:2] == [("draft", "bad.\n\n", "step")] * 2
    own = [s for s in trace.segments if s.role == "target"]
    assert len({s.seed for s in own}) == 3


@pytest.mark.parametrize(
    ("router", "sampling", "temperature"),
    [
        (GSI(n=1), Sampling(temperature=0.5), 0.5),
        (GSI(n=1, tempered=False), Sampling(temperature=0.5), 1.0),
        (GSI(n=1), Sampling(temperature=0.0), 1.0),
    ],
)
def test_the_ratio_is_of_the_distributions_sampled_from(router, sampling, temperature):
    trace, log = guided(router, "", variants("one.\n\n"), {}, -1.5, -1.0, sampling=sampling, budget=Budget(3, 1))
    assert {c.temperature for c in log if c.op == "logprob"} == {temperature}
    assert trace.decisions[0].score == pytest.approx(1.0 + 2 * (-0.5 / temperature) / 20)


def test_reward_and_ratio_are_asked_for_side_by_side_and_the_prefix_is_in_the_models_caches():
    trace, _ = guided(GSI(n=1), "", TEXT, {}, delay=3.0)
    helpers = [h for h in trace.helpers if h.nodes == [1]]
    assert [h.by for h in helpers] == ["prm", "logprob:target", "logprob:draft"]
    assert len({h.submitted for h in helpers}) == 1
    again = [h for h in trace.helpers if h.by == "logprob:target"][1]
    assert again.cached == 3, "the prompt and the accepted step are not computed again"


def test_the_soft_choice_follows_its_distribution_and_does_not_overflow():
    counts = Counter(soft_choice([0.0, 0.1], 20, random.Random(seed)) for seed in range(2000))
    assert counts[1] / 2000 == pytest.approx(1 / (1 + 2.718281828**-2), abs=0.03)
    assert soft_choice([-1e6, 1e6], 20, random.Random(0)) == 1


def test_choices_repeat_with_the_seed_and_differ_without():
    def run(seed):
        names = ["one.\n\n", "two.\n\n", "good.\n\n", "three.\n\n"]
        return kept(guided(GSI(n=4), "", variants(*names), {}, seed=seed)[0])[0][1]

    assert run(1) == run(1)
    assert len({run(seed) for seed in range(12)}) > 2


def test_the_answer_ends_at_its_end_of_text_not_at_boxed_nor_at_low_rewards():
    reward = {"boxed one.\n\n": 0.01, "one.\n\n": 0.05, "two.\n\n": 0.05}
    target = variants("boxed one.\n\n", then={"boxed one.\n\n": "</think>"})
    trace, _ = guided(GSI(n=1), target, variants("one.\n\n"), reward)
    assert kept(trace) == [("target", "boxed one.\n\n"), ("draft", "</think>"), ("draft", "answer")]
    assert trace.finish == "end_of_text"


def test_the_published_ends_can_be_had():
    boxed = "\\boxed{1}.\n\n"
    trace, _ = guided(GSI(n=2, ends_early=True), "", variants(boxed, boxed), {})
    assert trace.text == boxed + "</think>" + boxed
    assert trace.finish == "stopped"
    low = {"one.\n\n": 0.09, "two.\n\n": 0.01}
    trace, _ = guided(GSI(n=2, ends_early=True, threshold=-1), "", variants("one.\n\n", "two.\n\n"), low)
    assert trace.tokens() == 2
    endless = lambda text, seed: "one.\n\n"  # noqa: E731
    trace, _ = guided(GSI(n=1, ends_early=True), "", endless, {})
    assert trace.tokens() == 2 * 45


def test_a_cap_and_the_budget_end_drafts():
    endless = lambda text, seed: "answer<eos>" if "</think>" in text else "one " * 99  # noqa: E731
    trace, _ = guided(GSI(n=2, step_tokens=4), "", endless, {}, budget=Budget(10, 4))
    assert [s.ended_by.name for s in trace.path()] == ["cap", "budget", "end_of_thinking", "end_of_text"]


@pytest.mark.parametrize("router", [GSI(n=2), SPECS(n=2)])
def test_ends_of_thinking_and_of_text_and_empty_steps_inside_a_version(router):
    then = {"\n\n": "one</think>", "</think>": "answer<eos>"}
    trace, _ = guided(router, variants("\n\n", "\n\n", then=then), variants("\n\n", "\n\n", then=then), {})
    assert [s.text for s in trace.path()] == ["\n\n", "one</think>", "answer"]
    assert [s.ended_by.name for s in trace.path()] == ["step", "end_of_thinking", "end_of_text"]
    assert [s.phase for s in trace.path()] == ["thinking", "thinking", "answer"]


@pytest.mark.parametrize("router", [GSI(n=2), SPECS(n=2)])
def test_a_deadline_while_the_reward_is_late_cancels_it_and_keeps_nothing_undecided(router):
    steps = {"": "one.\n\n"}
    trace, log = guided(router, steps, steps, {}, delay=9.0, timeout=2.0)
    assert [c.cancelled for c in log if c.op == "score"] == [True, True]
    assert (trace.text, trace.finish) == ("", "timeout")
    assert trace.helpers[0].outcome == "cancelled"


def test_specs_cuts_steps_at_the_cap_and_at_the_budget_whoever_writes():
    endless = lambda text, seed: "answer<eos>" if "</think>" in text else "one " * 99  # noqa: E731
    trace, _ = guided(SPECS(n=2, step_tokens=4), endless, endless, {}, budget=Budget(10, 4))
    assert [(s.role.value, s.ended_by.name) for s in trace.path()] == [
        ("target", "cap"),
        ("draft", "budget"),
        ("inserted", "end_of_thinking"),
        ("draft", "end_of_text"),
    ]


def test_specs_begins_with_the_target_and_hands_over_where_the_reward_is_high():
    reward = {"one.\n\n": 0.5, "good.\n\n": 0.9}
    steps = {"": "one.\n\n", "one.\n\n": "good.\n\n"}
    draft = {"good.\n\n": "two.\n\n", "two.\n\n": "</think>", "</think>": "answer<eos>"}
    trace, log = guided(SPECS(n=2), steps, draft, reward)
    assert kept(trace) == [
        ("target", "one.\n\n"),
        ("target", "good.\n\n"),
        ("draft", "two.\n\n"),
        ("draft", "</think>"),
        ("draft", "answer"),
    ]
    assert "draft" not in {c.role for c in log[: [c.text for c in log].index("one.\n\ngood.\n\n")]}
    assert len(trace.decisions) == 3, "the target's steps are not gated"


def test_specs_returns_to_the_target_for_a_rejected_step_and_stays_until_the_reward_is_high_again():
    reward = {"bad.\n\n": 0.1, "two.\n\n": 0.3}
    target = {"": "good.\n\n", "good.\n\n": "two.\n\n", "two.\n\n": "three.\n\n"}
    draft = {"good.\n\n": "bad.\n\n", "three.\n\n": "</think>", "</think>": "answer<eos>"}
    trace, _ = guided(SPECS(n=1), target, draft, reward)
    assert kept(trace) == [
        ("target", "good.\n\n"),
        ("target", "two.\n\n"),
        ("target", "three.\n\n"),
        ("draft", "</think>"),
        ("draft", "answer"),
    ]
    assert [d.outcome for d in trace.decisions] == [False, True, True]
    assert dropped(trace) == [("draft", "bad.\n\n", "step")]


def test_specs_tilts_the_reward_of_the_draft_by_the_targets_view_only():
    target, draft = {"": "good.\n\n", "good.\n\n": "two.\n\n"}, {"good.\n\n": "one.\n\n"}
    trace, log = guided(SPECS(n=1, beta=4), target, draft, {"good.\n\n": 0.8}, -2.0, -1.0, budget=Budget(4, 0))
    assert trace.decisions[0].score == pytest.approx(1.0 - 2 / 4)
    assert {c.written for c in log if c.op == "logprob"} == {"one.\n\n"}


def test_specs_ends_an_answer_inside_the_targets_first_step():
    trace, _ = guided(SPECS(n=2), "answer<eos>", "", {}, thinking=False)
    assert kept(trace) == [("target", "answer")]
    assert trace.text + EOS == "answer<eos>"


@pytest.mark.parametrize("router", [GSI, SPECS])
@pytest.mark.parametrize("knobs", [{"n": 0}, {"beta": 0}, {"step_tokens": 0}, {"threshold": float("nan")}])
def test_a_wrong_knob_is_refused_by_name(router, knobs):
    with pytest.raises(ValueError, match=f"{router.name}.{next(iter(knobs))}: "):
        router(**knobs)
