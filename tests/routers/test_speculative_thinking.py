"""speculative-thinking: probes, bursts, recaps; what is thrown away is counted."""

from __future__ import annotations

import pytest

from baton import routers
from baton.generation import Budget
from baton.routers.speculative_thinking import RECAP, SpeculativeThinking
from baton.trace import Kind
from relay import Relay, follow, relay
from scripted import vocabulary

WORDS = vocabulary(
    *(" ", ".", "\n\n", "one", "two", "three", "wait", "await", "yes", "check", "bad", "good", "answer", "等等", RECAP)
)


def thinking(target, draft=None, budget=None, **knobs) -> Relay:
    options = {"budget": budget} if budget else {}
    router = SpeculativeThinking(**{"probe": 3, "burst": 3, "long_burst": 5, **knobs})
    return relay(router, target, draft, vocabulary=WORDS, **options)


def test_a_neutral_probe_is_thrown_away_counted_and_written_anew():
    text = "one.\n\ntwo three.</think>answer<eos>"
    got = thinking(follow(text))
    assert got.calls == [
        ("draft", "", "one.\n\n"),
        ("draft", "one.\n\n", "two three"),
        ("draft", "one.\n\n", "two three.</think>"),
        ("draft", "one.\n\ntwo three.</think>", "answer<eos>"),
    ]
    probe = got.trace.segments[1]
    assert (probe.kind, probe.sampled, probe.kept_tokens) == (Kind.PROBE, 3, 0)
    assert probe.seed != got.trace.segments[2].seed
    assert got.trace.text == text.removesuffix("<eos>")


def test_a_neutral_probe_can_be_kept():
    text = "one.\n\ntwo three.</think>answer<eos>"
    got = thinking(follow(text), keep_probe=True)
    assert [c[1:] for c in got.calls[1:3]] == [("one.\n\n", "two three"), ("one.\n\ntwo three", ".</think>")]
    assert got.dropped == []


@pytest.mark.parametrize("word", ["wait", "yes"])
def test_doubt_and_affirmation_both_call_the_target_which_writes_in_place_of_the_probe(word):
    draft = f"one.\n\n{word} two three.</think>bad<eos>"
    target = "one.\n\ngood one two.</think>answer<eos>"
    got = thinking(follow(target), follow(draft, target))
    assert got.calls[1:4] == [
        ("draft", "one.\n\n", f"{word} two"),
        ("target", "one.\n\n", "good one"),
        ("draft", "one.\n\ngood one", " two.</think>"),
    ]
    assert got.trace.text == target.removesuffix("<eos>")


@pytest.mark.parametrize(("text", "sentiment"), [("yes wait", -1), ("yes yeah wait", 1), ("two", 0), ("YES", 1)])
def test_the_sentiment_is_the_side_with_more_keywords_and_ties_are_negative(text, sentiment):
    assert SpeculativeThinking()._sentiment(text) == sentiment


def test_keywords_are_substrings_unless_whole_words_are_asked_for():
    published, whole = SpeculativeThinking(), SpeculativeThinking(whole_words=True)
    assert (published._sentiment("await"), whole._sentiment("await")) == (-1, 0)
    assert whole._sentiment("so wait") == whole._sentiment("那么等等，再看") == -1


def test_a_burst_that_verifies_goes_on():
    target = "one.\n\ncheck one two three two one good.</think>answer<eos>"
    got = thinking(follow(target), follow("one.\n\nwait one two.</think>", target))
    assert [(r, t) for r, t in got.path[1:4]] == [
        ("target", "check one"),
        ("target", " two three "),
        ("draft", "two one good.</think>"),
    ]


def test_after_too_many_doubts_a_paragraph_is_followed_by_a_recap_of_the_target_in_place_of_a_probe():
    draft = lambda written, seed: "wait.\n\n"  # noqa: E731
    got = thinking(lambda written, seed: "one " * 500, draft, budget=Budget(60, 20), patience=1)
    assert [(s.role.value, s.kind.value, len(s.ids)) for s in got.trace.segments[:6]] == [
        ("draft", "write", 3),
        ("draft", "probe", 3),
        ("target", "write", 3),
        ("draft", "write", 3),
        ("inserted", "insert", 1),
        ("target", "write", 5),
    ]
    assert got.trace.segments[4].text == RECAP
    assert got.trace.segments[4].detail == "1 negative probes"


def test_the_bursts_of_recaps_and_the_patience_grow_up_to_their_ends():
    draft = lambda written, seed: "wait.\n\n"  # noqa: E731
    target = lambda written, seed: "one " * 500  # noqa: E731
    got = thinking(target, draft, budget=Budget(9000, 20), long_burst=125, patience=15)
    inserted = [n for n, s in enumerate(got.trace.segments) if s.text == RECAP]
    assert [len(got.trace.segments[n + 1].ids) for n in inserted[:5]] == [125, 150, 175, 200, 200]
    assert [got.trace.segments[n].detail.split()[0] for n in inserted[:5]] == ["15", "20", "25", "30", "30"]


def test_drafts_that_do_not_reason_are_begun_and_helped_by_the_target():
    text = "one two three.\n\none two.\n\n</think>answer<eos>"
    got = thinking(follow(text), begin=2, always=True)
    assert got.path[:4] == [
        ("target", "one "),
        ("draft", "two three.\n\n"),
        ("target", "one two"),
        ("draft", ".\n\n"),
    ]


def test_the_end_of_thinking_is_an_end_and_the_answer_can_go_to_one_model():
    text = "one.</think>two.\n\nwait answer<eos>"
    assert thinking(follow(text)).path[1:3] == [("draft", "two.\n\n"), ("target", "wait answer")]
    assert thinking(follow(text), answer="target").path[1:] == [("target", "two.\n\nwait answer")]


def test_no_paragraph_break_is_added_where_none_was_written():
    text = "one two three one two three one two three.</think>answer<eos>"
    got = thinking(follow(text))
    assert got.trace.text == text.removesuffix("<eos>")
    assert [c[0] for c in got.calls] == ["draft", "draft"]


def test_an_end_of_text_at_a_paragraph_ends_the_answer():
    got = thinking(follow("one.\n\n<eos>"))
    assert got.trace.finish == "end_of_text"
    assert got.trace.text == "one.\n\n"


def test_the_budget_ends_bursts_too():
    draft = lambda written, seed: "wait.\n\n"  # noqa: E731
    got = thinking(lambda written, seed: "one " * 50, draft, budget=Budget(12, 4))
    assert got.trace.finish == "length"
    assert got.trace.tokens() == 12


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"probe": 0}, r"speculative-thinking\.probe: 0 is too little; use 1 or more"),
        ({"begin": -1}, r"speculative-thinking\.begin: -1 is too little; use 0 or more"),
        ({"answer": "both"}, r"speculative-thinking\.answer: 'both' is unknown; use one of relay, draft, target"),
    ],
)
def test_a_wrong_knob_is_named_with_its_value_and_a_remedy(knobs, message):
    with pytest.raises(ValueError, match=message):
        routers.create("speculative-thinking", knobs)
