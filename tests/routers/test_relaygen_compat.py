"""relaygen-compat: each published defect, shown beside relaygen, which does not have it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from baton import routers
from baton.generation import Budget
from baton.routers.relaygen import RelayGen
from baton.routers.relaygen_compat import QWEN3_CUES, R1_CUES, RelayGenCompat
from relay import Relay, follow, relay
from scripted import vocabulary

PIECES = vocabulary(
    *(" ", ".", "\n\n", ".\n\n", "Wait", ",", "one", "two", "three", "bad", "good", "answer", "So", "the", " the"),
    *(" known", " know", "n", "now", "Now", "Now,", "!?"),
)
START = "one two three "
"""Five tokens and a blank: the guard passes before a cue comes."""


def compat(target, draft=None, *, cues=("now", "Wait", "Wait,"), **knobs) -> Relay:
    options = {k: knobs.pop(k) for k in ("budget",) if k in knobs}
    return relay(RelayGenCompat(cues=list(cues), **knobs), target, draft, vocabulary=PIECES, **options)


def fixed(target, draft=None, cues=("now", "Wait", "Wait,")) -> Relay:
    return relay(RelayGen(cues=list(cues)), target, draft, vocabulary=PIECES)


def test_a_cue_fires_inside_a_word_and_the_token_is_cut_there():
    text = START + "known it. two.</think>answer<eos>"
    cut = START + "know two. one two three</think>answer<eos>"
    got = compat(follow(text, cut), follow(cut))
    assert got.path == [
        ("target", "one two three"),
        ("target", ""),
        ("target", " know"),
        ("draft", " two."),
        ("target", " one two "),
        ("target", "three</think>"),
        ("draft", "answer"),
    ]
    billed = got.trace.segments[1]
    assert (billed.sampled, billed.kept_tokens, billed.ended_by.name) == (1, 0, "cut")
    assert fixed(follow(text)).path[0] == ("target", START + "known it. two.</think>")


def test_a_sentence_end_cuts_off_the_paragraph_break_of_its_token():
    text = START + "Wait one.\n\ntwo.</think>answer<eos>"
    cut = START + "Wait one. one two three</think>answer<eos>"
    got = compat(follow(cut), follow(text, cut))
    assert got.path[1:4] == [("target", " Wait"), ("draft", " one"), ("draft", ".")]
    assert "\n\n" not in got.trace.text
    assert fixed(follow(text)).path[1] == ("draft", " one.\n\n")


def test_a_decimal_ends_the_drafts_sentence():
    text = START + "Wait 3.14 one. two.</think>answer<eos>"
    assert compat(follow(text)).path[2] == ("draft", " 3.")
    assert fixed(follow(text)).path[1] == ("draft", " 3.14 one.")


def test_no_cue_stops_the_first_five_tokens_of_the_target():
    text = "Wait one two three Wait one.</think>answer<eos>"
    got = compat(follow(text))
    assert got.calls[:3] == [
        ("target", "", "Wait one two"),
        ("target", "Wait one two", " three Wait"),
        ("draft", "Wait one two three Wait", " one."),
    ]
    assert fixed(follow(text)).path[0] == ("target", "Wait")
    assert compat(follow(text), guard=0).path[0] == ("target", "Wait")


def test_a_cue_that_begins_in_the_guarded_tokens_and_ends_behind_them_fires():
    text = "one two the" + "n" + "ow one.</think>answer<eos>"
    pieces = vocabulary(" ", "one", "two", "the", "n", "ow", ".", "answer")
    got = relay(RelayGenCompat(cues=["now"], guard=6), follow(text), vocabulary=pieces)
    assert got.calls[1] == ("target", "one two then", "ow")


def test_a_bare_cue_fires_before_its_comma_can_come():
    text = START + "Wait, one.</think>answer<eos>"
    assert compat(follow(text)).path[2] == ("draft", ", one.")
    assert fixed(follow(text)).path[0] == ("target", START + "Wait,")


def test_the_first_stop_string_of_the_list_wins_within_a_token():
    text = START + "Now, one. one two three</think>answer<eos>"
    cut = START + "Now one. one two three</think>answer<eos>"
    assert compat(follow(text), cues=["Now,", "Now"]).path[1:3] == [("target", " Now,"), ("draft", " one.")]
    got = compat(follow(text, cut), follow(cut), cues=["Now", "Now,"])
    assert got.path[1:4] == [("target", " "), ("target", "Now"), ("draft", " one.")]


def test_a_cue_with_a_blank_leaves_the_blank_at_the_seam():
    text = START + "So the one. one two three</think>answer<eos>"
    pieces = vocabulary(" ", ".", "one", "two", "three", "So", " the", "the", "answer")
    got = relay(RelayGenCompat(cues=["So "]), follow(text), vocabulary=pieces)
    assert got.path[1:4] == [("target", " So"), ("target", " "), ("draft", "the one.")]
    assert relay(RelayGen(cues=["So "]), follow(text), vocabulary=pieces).path[0] == ("target", START + "So")


def test_an_end_of_text_leaves_the_draft_in_control_until_an_empty_call_closes_the_thinking():
    text = START + "Wait one"
    replies = {START + "Wait": " one<eos>", text: "<eos>"}
    draft = lambda written, seed: replies.get(written, "answer<eos>")  # noqa: E731
    got = compat(follow(text), draft)
    assert [c for c in got.calls if c[0] == "draft"] == [
        ("draft", START + "Wait", " one<eos>"),
        ("draft", START + "Wait one", "<eos>"),
        ("draft", START + "Wait one\n</think>", "answer<eos>"),
    ]
    assert got.trace.text == START + "Wait one\n</think>answer"
    first, second = [s for s in got.trace.segments if s.role == "draft"][:2]
    assert first.seed != second.seed, "an unseeded server would draw anew"
    assert fixed(follow(text), draft).trace.finish == "end_of_text"
    assert compat(follow(text), draft, end_keeps_writer=False).trace.text == START + "Wait one"


def test_an_empty_call_can_end_the_answer_instead():
    draft = lambda written, seed: "<eos>"  # noqa: E731
    text = START + "Wait one"
    assert compat(follow(text), draft).trace.text == START + "Wait\n</think>"
    got = compat(follow(text), draft, empty_closes_thinking=False)
    assert got.trace.text == START + "Wait"
    assert got.trace.finish == "end_of_text"


def test_an_end_of_thinking_among_the_guarded_tokens_is_overlooked_by_the_target():
    text = "one</think>two three. Wait, answer<eos>"
    got = compat(follow(text), follow(text))
    assert got.path == [("target", "one</think>"), ("target", "two three. Wait"), ("draft", ", answer")]
    assert fixed(follow(text)).path == [("target", "one</think>"), ("draft", "two three. Wait, answer")]


def test_the_draft_answers_without_stops():
    text = START + "one</think>two. Wait, three. answer<eos>"
    assert compat(follow(text)).path[-1] == ("draft", "two. Wait, three. answer")


def test_without_its_defects_it_is_relaygen():
    text = "Wait, one known two.\n\nthree 3.14. now. Wait one.</think>answer<eos>"
    whole = compat(
        follow(text), inside_words=False, any_full_stop=False, cut_tokens=False, guard=0, end_keeps_writer=False
    )
    assert whole.path == fixed(follow(text)).path
    assert whole.calls == fixed(follow(text)).calls


def test_tokens_can_be_kept_whole_under_stop_strings():
    text = START + "Wait one.\n\nknown two.</think>answer<eos>"
    got = compat(follow(text), cut_tokens=False)
    assert got.path[2] == ("draft", " one.\n\n")
    assert got.trace.text == text.removesuffix("<eos>")


def test_a_token_that_begins_inside_a_character_is_not_cut():
    halves = vocabulary("one", " ", "two", "three", "Wait", "answer")
    tokens = [*halves.tokens[:-1], b"\xe4\xb8", b"\xad.x", b""]
    split = replace(halves, tokens=tokens, end_of_text=frozenset([len(tokens) - 1]), encode=lambda text: _ids(text))

    def _ids(text: str) -> list[int]:
        out: list[int] = []
        for n, part in enumerate(text.split("中.x")):
            out += [len(tokens) - 3, len(tokens) - 2] if n else []
            out += [i if i < len(halves.tokens) - 1 else len(tokens) - 1 for i in halves.encode(part)]
        return out

    text = START + "Wait中.x one two three</think>answer<eos>"
    got = relay(RelayGenCompat(cues=["Wait"]), follow(text), vocabulary=split)
    assert got.path[2] == ("draft", "中.x")


def test_the_reserve_of_the_budget_closes_the_thinking():
    endless = lambda text, seed: "answer.<eos>" if "</think>" in text else "one " * 50  # noqa: E731
    got = compat(endless, budget=Budget(20, 5))
    assert [s.role for s in got.trace.path() if s.ids] == ["target", "target", "inserted", "draft"]
    assert got.trace.finish == "end_of_text"


def test_published_cue_lists_can_be_named():
    assert routers.create("relaygen-compat", {"cues": "qwen3"}).cues == list(QWEN3_CUES)
    assert (len(QWEN3_CUES), len(R1_CUES)) == (28, 25)
    with pytest.raises(ValueError, match=r"relaygen-compat.cues: 'llama' is no published list; give a list, or one of"):
        routers.create("relaygen-compat", {"cues": "llama"})
    with pytest.raises(ValueError, match=r"relaygen-compat.profile: missing"):
        routers.create("relaygen-compat")
    with pytest.raises(ValueError, match=r"relaygen-compat.guard: -1 is too little"):
        routers.create("relaygen-compat", {"cues": "r1", "guard": -1})
