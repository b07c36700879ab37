"""Units: what the draft writes before it is judged."""

from __future__ import annotations

import re

import pytest
from steps import kept, prefers, relay

from baton import nano, routers
from baton.boundary import Seen, Shift
from baton.calibrate.profile import CueProfile
from baton.generation import RouterError
from baton.routers.rsd import RSD
from baton.routers.units import tokens_of
from baton.scorers.base import TokenReader
from baton.trace import Role
from scripted import WORDS, ScriptedEngine, ScriptedScorer


class Words:
    """Texts are alike if one holds a word of the other."""

    name = "words"

    def likeness(self, one: str, other: str) -> tuple[float, int]:
        a, b = (re.findall(r"\w+", text) for text in (one, other))
        return float(bool({*a} & {*b})), len(b)


class ByWords(ScriptedScorer):
    """Compares sentences by their words."""

    @property
    def draws(self) -> Shift:
        return Shift(Words(), 0.5)


TEXT = "one two. Therefore, three good.\n\nanswer<eos>"


class Threes(TokenReader):
    """Gives the token `three` away."""

    name, top, threshold = "threes", 0, 0.5

    def read(self, seen: Seen) -> float:
        return float(WORDS.text_of([seen.token]) == "three")


class ThreesOfTheDraft(Threes):
    """And reads the draft's tokens alone."""

    role = Role.DRAFT


def first_segments(unit: str, count: int = 2, **knobs) -> list[str]:
    engines = ScriptedEngine("target", TEXT), ScriptedEngine("draft", TEXT)
    scorers = {"prm": ScriptedScorer(prefers("bad")), "threes": Threes(), "words": ByWords(prefers(""))}
    trace = relay(RSD(unit=unit, **knobs), *engines, scorers=scorers, thinking=False)
    assert trace.text.startswith(TEXT.removesuffix("<eos>"))
    return [text for _, text in kept(trace)][:count]


@pytest.mark.parametrize(
    ("unit", "segments"),
    [
        ("step", ["one two. Therefore, three good.\n\n", "answer"]),
        ("sentence", ["one two.", " Therefore, three good.\n\n"]),
        ("2 tokens", ["one ", "two."]),
        ("threes", ["one two. Therefore, three", " good.\n\nanswer"]),
        ("words", ["one two. Therefore, three good.\n\n", "answer"]),
    ],
)
def test_a_draft_is_judged_unit_by_unit(unit, segments):
    assert first_segments(unit) == segments


def test_cues_are_those_of_the_profile():
    assert "Therefore," in CueProfile.load(nano.cue_profile()).cues
    assert first_segments("cues", 1, profile=nano.cue_profile()) == ["one two. Therefore,"]
    with pytest.raises(ValueError, match=r"rsd\.profile: missing for unit cues"):
        RSD(unit="cues")
    made = routers.create("rsd", {"unit": "cues"}, None, {"cues": nano.cue_profile()})
    assert made.profile == nano.cue_profile()


def test_a_unit_that_nobody_knows_is_a_scorer_that_is_missing():
    assert RSD(unit="nothing").scorers == ("prm", "nothing")
    with pytest.raises(RouterError, match="'nothing' is no scorer of this pair that draws boundaries"):
        first_segments("nothing")
    assert [tokens_of(unit) for unit in ("20 tokens", "0 tokens", "tokens", "step")] == [20, None, None, None]


def test_a_unit_goes_on_over_sentences_that_are_alike_and_what_was_read_to_tell_is_counted():
    text = "one two. two good.\n\nbad. bad one. one step<eos>"
    scorers = {"prm": ScriptedScorer(prefers("bad one")), "words": ByWords(prefers(""))}
    trace = relay(RSD(unit="words"), text, text, scorers=scorers, thinking=False)
    assert kept(trace) == [("draft", "one two. two good.\n\nbad."), ("target", " bad one. one step")]
    # Each sentence that follows another one; "bad one." was written twice, and "one step" is no whole sentence.
    assert sum(call.tokens for call in trace.helpers if call.by == "words") == 2 + 1 + 2 + 2


def test_where_a_head_reads_the_drafts_tokens_the_target_writes_to_the_end_of_the_sentence():
    text = "one three two. bad three. good<eos>"
    scorers = {"prm": ScriptedScorer(prefers("two")), "threes": ThreesOfTheDraft()}
    trace = relay(RSD(unit="threes"), text, text, scorers=scorers, thinking=False)
    assert kept(trace) == [("draft", "one three"), ("target", " two."), ("draft", " bad three"), ("draft", ". good")]
