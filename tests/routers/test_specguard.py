"""SpecGuard on scripted engines: exact calls, what is kept and what is discarded."""

from __future__ import annotations

import pytest
from steps import calls, dropped, kept, relay, shared_log

from baton.engines.base import UnsupportedError
from baton.generation import Budget
from baton.routers.specguard import SpecGuard
from scripted import ScriptedEngine, ScriptedScorer


def variants(*steps: str, then=None):
    """The n-th call on an empty text writes the n-th step; then the answer."""
    left = list(steps)
    then = then or {"\n\n": "</think>", "</think>": "answer<eos>"}

    def script(text, seed):
        return left.pop(0) if not text else then[max((e for e in then if text.endswith(e)), key=len)]

    return script


def alike(request):
    """Steps with a common first word are alike."""
    return 0.9 if request.step.split(".")[0].split(" ")[0] == request.against.split(".")[0].split(" ")[0] else 0.1


def guarded(router, draft, target="", likes=lambda text, token: -0.1, similarity=alike, grounded=None, **options):
    engines = ScriptedEngine("target", target), ScriptedEngine("draft", draft, likes=likes, grounded=grounded)
    scorer = ScriptedScorer(similarity)
    log = shared_log(*engines, scorer)
    return relay(router, *engines, scorers={"embedding": scorer}, **options), log


def test_the_version_most_like_the_others_is_kept_where_the_draft_was_sure():
    trace, log = guarded(SpecGuard(n=3), variants("bad.\n\n", "one.\n\n", "one two.\n\n"))
    assert kept(trace) == [("draft", "one.\n\n"), ("draft", "</think>"), ("draft", "answer")]
    compared = [(c.written) for c in log if c.op == "score"][:3]
    assert compared == ["one.\n\n", "one two.\n\n", "one two.\n\n"], "each pair once"
    assert [h.nodes for h in trace.helpers][:3] == [[2, 3], [3], [2]]
    assert calls(log)[6] == ("logprob", "draft", "", "one.\n\n")
    assert [d[1] for d in dropped(trace)][:2] == ["bad.\n\n", "one two.\n\n"]
    assert len({s.seed for s in trace.segments[:3]}) == 3


def test_a_single_unlikely_token_has_the_target_write_versions_of_which_the_consensual_one_stands():
    doubt = lambda text, token: -2.0 if token == "one" else -0.1  # noqa: E731
    target = variants("bad.\n\n", "good.\n\n", "good two.\n\n")
    draft = variants("one.\n\n", "one.\n\n", "one.\n\n")
    trace, log = guarded(SpecGuard(n=3), draft, target, doubt)
    assert trace.decisions[0].score == pytest.approx(1 - 2.0 / 5.0)
    assert not trace.decisions[0].outcome
    assert kept(trace)[0] == ("target", "good.\n\n")
    assert [c.written for c in log if c.role == "target"] == ["bad.\n\n", "good.\n\n", "good two.\n\n"]
    assert sum(s[0] == "draft" for s in dropped(trace)[:3]) == 3


@pytest.mark.parametrize(("pooling", "kept_one"), [("softmax", "a.\n\n"), ("mean", "c.\n\n")])
def test_pooling_by_softmax_counts_large_similarities_more_than_their_mean(pooling, kept_one):
    likeness = {frozenset("ab"): 3.0, frozenset("ad"): -1.1, frozenset("bd"): -1.1}
    trace, _ = guarded(
        SpecGuard(n=4, pooling=pooling),
        variants("a.\n\n", "b.\n\n", "c.\n\n", "d.\n\n"),
        similarity=lambda request: likeness.get(frozenset((request.step[0], request.against[0])), 1.1),
    )
    assert kept(trace)[0][1] == kept_one


def test_grounding_weighs_the_least_attention_on_what_came_before():
    look = lambda text, token: 0.5 if token == "one" else 0.9  # noqa: E731
    router = SpecGuard(n=1, grounding=0.7, threshold=0.6)
    trace, log = guarded(router, variants("one.\n\n"), variants("good.\n\n"), grounded=look)
    assert trace.decisions[0].score == pytest.approx(0.3 * (1 - 0.1 / 5) + 0.7 * 0.5)
    assert not [c for c in log if c.op == "score"], "one version needs no consensus"
    assert not [c for c in guarded(SpecGuard(n=1), variants("one.\n\n"), grounded=look)[1] if c.op == "grounding"]


def test_grounding_is_refused_by_name_where_the_engine_has_no_attention_maps():
    with pytest.raises(UnsupportedError, match=r"specguard.grounding: 0.7: .* gives no attention maps; use .*, or 0"):
        guarded(SpecGuard(n=1, grounding=0.7), variants("one.\n\n"))


def test_end_of_thinking_cap_budget_and_empty_step():
    then = {"\n\n": "one one two</think>", "one one": " two</think>", "</think>": "answer<eos>"}
    trace, _ = guarded(SpecGuard(n=2, step_tokens=3), variants("\n\n", "\n\n", then=then))
    assert kept(trace) == [("draft", "\n\n"), ("draft", "one one"), ("draft", " two</think>"), ("draft", "answer")]
    assert [s.ended_by.name for s in trace.path()] == ["step", "cap", "end_of_thinking", "end_of_text"]
    endless = lambda text, seed: "answer<eos>" if "</think>" in text else "one " * 99  # noqa: E731
    trace, _ = guarded(SpecGuard(n=2), endless, budget=Budget(10, 4))
    assert [s.ended_by.name for s in trace.path()] == ["budget", "end_of_thinking", "end_of_text"]


def test_a_deadline_cancels_the_comparison_of_steps():
    engines = ScriptedEngine("target", ""), ScriptedEngine("draft", variants("one.\n\n", "two.\n\n", "bad.\n\n"))
    late = ScriptedScorer(alike, delay=9.0)
    trace = relay(SpecGuard(n=3), *engines, scorers={"embedding": late}, timeout=2.0)
    assert [c.cancelled for c in late.log] == [True] * 3
    assert (trace.text, trace.finish) == ("", "timeout")
    assert not trace.decisions


@pytest.mark.parametrize(
    "knobs",
    [
        {"n": 0},
        {"pooling": "max"},
        {"grounding": 1.5},
        {"floor": 0.0},
        {"threshold": float("nan")},
        {"step_tokens": 0},
    ],
    ids=lambda k: next(iter(k)),
)
def test_a_wrong_knob_is_refused_by_name(knobs):
    with pytest.raises(ValueError, match=f"specguard.{next(iter(knobs))}: "):
        SpecGuard(**knobs)
