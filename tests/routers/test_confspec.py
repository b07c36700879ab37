"""ConfSpec on scripted engines: exact calls, what is kept and what is discarded."""

from __future__ import annotations

import pytest
from steps import calls, dropped, kept, relay, shared_log

from baton.engines.base import Sampling
from baton.generation import Budget
from baton.routers.confspec import PROMPT, ConfSpec
from scripted import ScriptedEngine, vocabulary

TEXT = {"": "good.\n\n", "good.\n\n": "two.\n\n", "two.\n\n": "</think>", "</think>": "answer<eos>"}
WORDS = vocabulary("good", "bad", "two", "answer", ".\n\n", "Yes", "no")
ASK = f"[ask:{PROMPT}]"


def says(yes: float):
    """Likeliest tokens of a reply: "yes" with that probability of what is left beside another token."""
    return [(" ", 0.1), ("y", 0.0001), ("Yes", 0.9 * yes), ("no", 0.9 * (1 - yes))]


def checked(
    router, draft_says, target_says=lambda step: says(1.0 - 1e-9), draft=None, slow=lambda target: None, **options
):
    def engine(role, text, verdict):
        def script(written, seed):
            return "no" if written.endswith(ASK) else text[max((e for e in text if written.endswith(e)), key=len)]

        top = lambda written: verdict(written.removesuffix(ASK))  # noqa: E731
        return ScriptedEngine(role, script, top=top, vocabulary=WORDS)

    engines = engine("target", TEXT, target_says), engine("draft", draft or {**TEXT, "": "bad.\n\n"}, draft_says)
    slow(engines[0])
    engines[1].delay = 0.1
    log = shared_log(*engines)
    return relay(router, *engines, **options), log


def test_a_sure_draft_decides_alone_for_and_against_its_step():
    trace, log = checked(ConfSpec(), lambda text: says(0.05) if text == "bad.\n\n" else says(0.95))
    assert [(c.role, c.text, c.written) for c in log][:5] == [
        ("draft", "", "bad.\n\n"),
        ("draft", "bad.\n\n" + ASK, "no"),
        ("target", "", "good.\n\n"),
        ("draft", "good.\n\n", "two.\n\n"),
        ("draft", "good.\n\ntwo.\n\n" + ASK, "no"),
    ]
    assert kept(trace) == [("target", "good.\n\n"), ("draft", "two.\n\n"), ("draft", "</think>"), ("draft", "answer")]
    assert dropped(trace) == [("draft", "bad.\n\n", "step")]
    assert [c.text for c in log if c.role == "target"] == [""], "the target was never asked"
    assert {d.reason for d in trace.decisions} == {"the draft's verdict"}
    assert trace.decisions[0].score == pytest.approx(0.05)


@pytest.mark.parametrize(("target_yes", "writer"), [(0.8, "draft"), (0.3, "target")])
def test_an_unsure_draft_asks_the_target(target_yes, writer):
    trace, log = checked(ConfSpec(), lambda text: says(0.7), lambda text: says(target_yes), TEXT)
    assert [(c.role, c.text) for c in log][:3] == [
        ("draft", ""),
        ("draft", "good.\n\n" + ASK),
        ("target", "good.\n\n" + ASK),
    ]
    assert kept(trace)[0] == (writer, "good.\n\n")
    assert trace.decisions[0].reason == "the target's verdict"
    assert trace.decisions[0].score == pytest.approx(target_yes)


def test_a_reply_that_is_neither_is_unsure_from_the_draft_and_a_no_from_the_target():
    trace, log = checked(ConfSpec(), lambda text: [("good", 0.9)], lambda text: [("good", 0.9)])
    assert trace.target_share == 1.0
    assert ("write", "target", "bad.\n\n" + ASK, "no") in calls(log)


def test_replies_can_be_marks():
    top = lambda text: [("9", 0.6), ("5", 0.2), ("0", 0.1)]  # noqa: E731
    trace, _ = checked(ConfSpec(yes=["9"], no=["0", "1", "5"], confidence=0.6), top)
    assert trace.decisions[0].score == pytest.approx(0.6 / 0.9)


def test_the_ends_of_the_confidence_knob_are_the_draft_alone_and_the_target_always():
    _, log = checked(ConfSpec(confidence=0.5), lambda text: says(0.51))
    assert "target" not in {c.role for c in log}
    always, log = checked(ConfSpec(confidence=1.01), lambda text: says(1 - 1e-12))
    assert {d.reason for d in always.decisions} == {"the target's verdict"}


def test_verdicts_are_greedy_probes_that_leave_the_answer_and_the_budget_alone():
    trace, log = checked(ConfSpec(), lambda text: says(0.95), sampling=Sampling(temperature=1.0), budget=Budget(5, 2))
    assert {c.temperature for c in log if c.text.endswith(ASK)} == {0.0}
    assert trace.tokens() <= 5
    assert "yes" not in trace.text.lower()
    assert trace.finish == "end_of_text"


def test_end_of_thinking_end_of_text_cap_and_empty_steps():
    text = {"": "\n\n", "\n\n": "two two two</think>", "two two ": "two</think>", "</think>": "answer<eos>"}
    trace, _ = checked(ConfSpec(step_tokens=4), lambda text: says(0.95), draft=text)
    assert kept(trace) == [("draft", "\n\n"), ("draft", "two two "), ("draft", "two</think>"), ("draft", "answer")]
    assert [s.ended_by.name for s in trace.path()] == ["step", "cap", "end_of_thinking", "end_of_text"]


def test_the_next_step_is_drafted_while_the_target_is_asked_and_cancelled_by_its_no():
    patient, _ = checked(ConfSpec(), lambda text: says(0.7), lambda text: says(0.1 if "bad" in text else 0.9))
    late = lambda engine: setattr(engine, "first_delay", 5.0)  # noqa: E731
    trace, log = checked(
        ConfSpec(), lambda text: says(0.7), lambda text: says(0.1 if "bad" in text else 0.9),
        draft={**TEXT, "": "bad.\n\n", "bad.\n\n": "two " * 99}, slow=late, optimistic=True,
    )  # fmt: skip
    assert [c.text for c in log if c.cancelled] == ["bad.\n\n"]
    assert kept(trace) == kept(patient)


def test_a_deadline_cancels_a_verdict():
    trace, log = checked(
        ConfSpec(), lambda text: says(0.7), slow=lambda engine: setattr(engine, "first_delay", 5.0), timeout=2.0
    )
    assert [(c.role, c.text) for c in log if c.cancelled] == [("target", "bad.\n\n" + ASK)]
    assert (trace.text, trace.finish) == ("", "timeout")


@pytest.mark.parametrize(
    "knobs",
    [{"confidence": 0.4}, {"threshold": 2}, {"step_tokens": 0}, {"prompt": ""}, {"yes": ["no"]}],
    ids=lambda k: next(iter(k)),
)
def test_a_wrong_knob_is_refused_by_name(knobs):
    with pytest.raises(ValueError, match=f"confspec.{next(iter(knobs))}: "):
        ConfSpec(**knobs)
