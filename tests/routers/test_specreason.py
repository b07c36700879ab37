"""SpecReason on scripted engines: exact calls, what is kept and what is discarded."""

from __future__ import annotations

import pytest
from steps import calls, dropped, kept, relay, shared_log

from baton.engines.base import Sampling
from baton.generation import Budget
from baton.routers.specreason import PROMPT, SpecReason
from baton.trace import Kind
from scripted import ScriptedEngine

TEXT = {"": "good.\n\n", "good.\n\n": "two.\n\n", "two.\n\n": "</think>", "</think>": "answer<eos>"}
DRAFT = {**TEXT, "": "bad.\n\n"}
ASK = f"[ask:{PROMPT}]I think the quality score is: "


def marks(of=lambda step: "2" if "bad" in step else "8", text=TEXT):
    """A target that marks what stands before the question, and writes `text` otherwise."""

    def script(written, seed):
        if written.endswith(": "):
            return of(written.removesuffix(ASK))
        return text[max((end for end in text if written.endswith(end)), key=len)]

    return script


def judged(router=None, draft=DRAFT, target=None, **options):
    target = target if isinstance(target, ScriptedEngine) else ScriptedEngine("target", target or marks())
    engines = target, draft if isinstance(draft, ScriptedEngine) else ScriptedEngine("draft", draft)
    log = shared_log(*engines)
    return relay(router or SpecReason(), *engines, **options), log


def test_each_step_is_marked_with_one_token_and_a_low_mark_has_it_rewritten():
    trace, log = judged()
    assert calls(log) == [
        ("write", "draft", "", "bad.\n\n"),
        ("write", "target", "bad.\n\n" + ASK, "2"),
        ("write", "target", "", "good.\n\n"),
        ("write", "draft", "good.\n\n", "two.\n\n"),
        ("write", "target", "good.\n\ntwo.\n\n" + ASK, "8"),
        ("write", "draft", "good.\n\ntwo.\n\n", "</think>"),
        ("write", "target", "good.\n\ntwo.\n\n</think>" + ASK, "8"),
        ("write", "draft", "good.\n\ntwo.\n\n</think>", "answer<eos>"),
        ("write", "target", "good.\n\ntwo.\n\n</think>answer" + ASK, "8"),
    ]
    assert kept(trace) == [("target", "good.\n\n"), ("draft", "two.\n\n"), ("draft", "</think>"), ("draft", "answer")]
    assert dropped(trace) == [("draft", "bad.\n\n", "step")]
    assert [(d.score, d.outcome, d.scorer) for d in trace.decisions] == [
        (2.0, False, "probe:target"),
        *[(8.0, True, "probe:target")] * 3,
    ]
    assert all(s.sampled == 1 for s in trace.segments if s.kind is Kind.PROBE)


def test_the_mark_is_greedy_whatever_the_answers_temperature():
    _, log = judged(sampling=Sampling(temperature=0.6))
    assert {c.temperature for c in log if c.text.endswith(": ")} == {0.0}
    assert {c.temperature for c in log if not c.text.endswith(": ")} == {0.6}


def test_a_reply_that_is_no_digit_is_a_zero():
    trace, _ = judged(target=marks(lambda step: "good"))
    assert [d.score for d in trace.decisions[:1]] == [0.0]
    assert trace.target_share == 1.0


def test_the_expected_mark_is_taken_over_the_digits_among_the_likeliest_tokens():
    engine = ScriptedEngine("target", marks(), top=lambda text: [("9", 0.5), ("good", 0.25), ("4", 0.25)])
    trace, _ = judged(SpecReason(score="expected"), target=engine)
    assert trace.decisions[0].score == pytest.approx((9 * 0.5 + 4 * 0.25) / 0.75)
    none = ScriptedEngine("target", marks(), top=lambda text: [("good", 0.25)])
    assert judged(SpecReason(score="expected"), target=none)[0].decisions[0].score == 0.0


def test_the_first_steps_are_the_targets_and_unscored():
    trace, _ = judged(SpecReason(first_n=2))
    assert kept(trace)[:3] == [("target", "good.\n\n"), ("target", "two.\n\n"), ("draft", "</think>")]
    assert len(trace.decisions) == 2


def test_a_draft_cut_at_the_cap_is_not_scored_as_a_step_unless_asked():
    text = {**TEXT, "": "one two.\n\n", "one two.\n\n": "</think>", "one two": ".\n\n"}
    trace, log = judged(SpecReason(step_tokens=3), draft=text, target=marks(text=text))
    assert [(d.outcome, d.reason) for d in trace.decisions][:1] == [(False, "cut short at step_tokens")]
    assert "one two" + ASK not in [c.text for c in log]
    assert kept(trace)[:2] == [("target", "one two"), ("draft", ".\n\n")]
    trace, log = judged(SpecReason(step_tokens=3, score_truncated=True), draft=text, target=marks(text=text))
    assert "one two" + ASK in [c.text for c in log]
    assert kept(trace)[:2] == [("draft", "one two"), ("draft", ".\n\n")]


def test_equal_steps_empty_steps_and_the_word_boxed_do_not_end_the_answer():
    script = iter(["\n\n", ".\n\n", ".\n\n", "one boxed.\n\n", "one boxed.\n\n", "</think>", "answer<eos>"])
    trace, _ = judged(draft=lambda text, seed: next(script))
    assert trace.text == "\n\n.\n\n.\n\none boxed.\n\none boxed.\n\n</think>answer"
    assert trace.finish == "end_of_text"


@pytest.mark.parametrize(
    ("steps", "text"),
    [
        (["one.\n\n", "\\boxed{2}.\n\n"], "one.\n\n\\boxed{2}.\n\n</think>\\boxed{2}.\n\n"),
        (["one.\n\n", "Answer: two.\n\n"], "one.\n\nAnswer: two.\n\n</think>Answer: two.\n\n"),
        (["one.\n\n", "one.\n\n"], "one.\n\none.\n\n</think>one.\n\n"),
    ],
)
def test_the_published_ends_can_be_had(steps, text):
    script = iter([*steps, "never.\n\n"])
    trace, _ = judged(SpecReason(ends_early=True), draft=lambda written, seed: next(script))
    assert trace.text == text
    assert trace.finish == "stopped"
    assert trace.tokens() == trace.tokens("draft"), "what is given as the answer is nobody's"


def test_a_published_end_inside_the_answer_gives_nothing_twice():
    draft = {"": "</think>", "</think>": "\\boxed{2}.\n\n"}
    trace, _ = judged(SpecReason(ends_early=True), draft=draft)
    assert (trace.text, trace.answer) == ("</think>\\boxed{2}.\n\n", "\\boxed{2}.\n\n")


def test_the_end_of_thinking_stays_and_begins_the_answer():
    trace, _ = judged(draft={"": "one.</think>", "</think>": "answer<eos>"})
    assert kept(trace) == [("draft", "one.</think>"), ("draft", "answer")]
    assert trace.answer == "answer"


def test_marks_of_discarded_steps_do_not_eat_the_budget():
    endless = {"": "bad.\n\n", ".\n\n": "bad.\n\n", "</think>": "answer<eos>"}
    text = {"": "good.\n\n", ".\n\n": "good.\n\n", "</think>": "answer<eos>"}
    trace, _ = judged(draft=endless, target=marks(lambda s: "0", text), budget=Budget(8, 2))
    assert kept(trace)[:4] == [("target", "good.\n\n")] * 3 + [("inserted", "</think>")]
    assert trace.finish == "end_of_text"


def test_the_next_step_is_drafted_while_the_mark_is_pending_and_cancelled_by_a_low_one():
    target = ScriptedEngine("target", marks(), first_delay=5.0)
    draft = ScriptedEngine("draft", {**DRAFT, "bad.\n\n": "one " * 99}, delay=0.1)
    trace, log = judged(draft=draft, target=target, optimistic=True)
    assert [(c.text, c.cancelled) for c in log if c.role == "draft"][:2] == [("", False), ("bad.\n\n", True)]
    assert trace.text == judged()[0].text


def test_the_prompt_can_quote_the_step():
    target = lambda text, seed: "9" if text.endswith("[ask:Is bad. right?]mark: ") else "one"  # noqa: E731
    trace, _ = judged(SpecReason(prompt="Is {step} right?", prefill="mark: "), target=target, budget=Budget(2, 0))
    assert trace.decisions[0].score == 9.0


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"threshold": 11}, "specreason.threshold: 11 is no mark"),
        ({"score": "average"}, "specreason.score: 'average' is unknown"),
        ({"first_n": -1}, "specreason.first_n: -1 is too little"),
        ({"step_tokens": 0}, "specreason.step_tokens: 0"),
        ({"prompt": ""}, "specreason.prompt: '' asks nothing"),
    ],
)
def test_a_wrong_knob_is_refused_by_name(knobs, message):
    with pytest.raises(ValueError, match=message):
        SpecReason(**knobs)
