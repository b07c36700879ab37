"""Units: what the draft writes before it is judged."""

from __future__ import annotations

import pytest
from steps import kept, prefers, relay

from baton import nano, routers
from baton.boundary import Seen
from baton.calibrate.profile import CueProfile
from baton.generation import RouterError
from baton.routers.rsd import RSD
from baton.routers.units import tokens_of
from baton.scorers.base import TokenReader
from scripted import WORDS, ScriptedEngine, ScriptedScorer

TEXT = "one two. Therefore, three good.\n\nanswer<eos>"


class Threes(TokenReader):
    """Gives the token `three` away."""

    name, top, threshold = "threes", 0, 0.5

    def read(self, seen: Seen) -> float:
        return float(WORDS.text_of([seen.token]) == "three")


def first_segments(unit: str, count: int = 2, **knobs) -> list[str]:
    engines = ScriptedEngine("target", TEXT), ScriptedEngine("draft", TEXT)
    scorers = {"prm": ScriptedScorer(prefers("bad")), "threes": Threes()}
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
    with pytest.raises(RouterError, match="'nothing' is no scorer of this pair that reads tokens"):
        first_segments("nothing")
    assert [tokens_of(unit) for unit in ("20 tokens", "0 tokens", "tokens", "step")] == [20, None, None, None]
