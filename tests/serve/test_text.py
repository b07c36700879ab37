"""What becomes of committed text on its way to a reader, for any way in which it comes in pieces."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from baton.serve.text import Part, Piece, Stop, Text
from baton.trace import Phase, Role, Segment

WRITTEN = st.text(alphabet="ab\n<>/thinké", max_size=30)


def segment(phase: Phase, role: Role = Role.TARGET, number: int = 1) -> Segment:
    return Segment(id=number, parent=0, branch=0, role=role, phase=phase)


def read(text: Text, pieces: list[tuple[Segment, str]]) -> dict[Part, str]:
    out: list[Piece] = []
    for where, piece in pieces:
        out += text.push(where, piece, 0)
    out += text.end()
    return {part: "".join(piece.text for piece in out if piece.part is part) for part in Part}


def cut(text: str, at: list[int]) -> list[str]:
    edges = sorted({0, len(text), *(n % (len(text) + 1) for n in at)})
    return [text[a:b] for a, b in pairwise(edges)]


@given(WRITTEN.filter(lambda t: "</think>" not in t), WRITTEN, st.booleans(), st.lists(st.integers(0, 99)))
def test_reasoning_and_answer_are_told_apart_wherever_the_text_is_cut(
    thought: str, said: str, opened: bool, cuts: list[int]
) -> None:
    if thought.startswith("<think>") or (not opened and "<think>".startswith(thought)):
        return
    thinking, answer = segment(Phase.THINKING), segment(Phase.ANSWER, number=2)
    pieces = [(thinking, some) for some in cut(("<think>" if opened else "") + thought + "</think>", cuts)]
    found = read(Text(chat=True, stops=()), pieces + [(answer, some) for some in cut(said, cuts)])
    assert found == {Part.REASONING: thought, Part.CONTENT: said}


@given(WRITTEN, st.lists(st.sampled_from(["ab", "b", "aab", "\n\n", "hi"]), max_size=3), st.lists(st.integers(0, 99)))
def test_text_ends_before_the_first_stop_text_wherever_it_is_cut(text: str, stops: list[str], cuts: list[int]) -> None:
    stop = Stop(stops)
    sent = ""
    for some in cut(text, cuts):
        sent += stop(some)
        # Nothing is sent that a stop text may still take back.
        assert not any(found in sent for found in stops)
    hit = stop.hit
    sent += stop.rest() if hit is None else ""
    places = [(text.index(found), found) for found in stops if found in text]
    if not places:
        assert (sent, hit) == (text, None)
    else:
        assert sent == text[: min(place for place, _ in places)]
        assert text[len(sent) :].startswith(hit or "?")


def test_a_thinking_phase_that_never_ends_is_reasoning() -> None:
    found = read(Text(chat=True, stops=()), [(segment(Phase.THINKING), "so far </thi")])
    assert found == {Part.REASONING: "so far </thi", Part.CONTENT: ""}


def test_plain_text_keeps_its_marks() -> None:
    found = read(Text(chat=False, stops=()), [(segment(Phase.THINKING), "a</think>b")])
    assert found[Part.CONTENT] == "a</think>b"
