"""What the live page is told of an answer that is being written."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from baton.serve.answering import Choice
from baton.serve.live import Live
from baton.serve.text import Text
from baton.serve.wanted import Prompt
from baton.trace import Phase, Role, Segment, Trace


def segment(number: int, role: Role, tokens: int, *, kept: bool) -> Segment:
    made = Segment(id=number, parent=number - 1, branch=0, role=role, phase=Phase.ANSWER, kept=kept)
    made.ids = list(range(tokens))
    made.kept_tokens = tokens if kept else 0
    return made


def test_what_the_reader_has_is_committed_and_the_rest_is_open() -> None:
    segments = [
        segment(1, Role.TARGET, 3, kept=True),
        segment(2, Role.TARGET, 2, kept=True),
        segment(3, Role.DRAFT, 5, kept=False),
        segment(4, Role.DRAFT, 4, kept=False),
    ]
    choice = Choice(0, Prompt("q", {}, True), 0, Text(chat=True, stops=()), trace=Trace(segments=segments))
    choice.segment, choice.shown, choice.written = 3, 4, 9
    job: Any = SimpleNamespace(
        number=7, arrived=1.0, started=1.5, choices=[choice], wanted=SimpleNamespace(router=SimpleNamespace(name="rsd"))
    )
    (row,) = Live().view([job], now=3.0)["running"]
    assert (row["id"], row["tokens"], row["seconds"]) == ("7.0", 9, 2.0)
    assert row["stretches"] == [
        {"writer": "target", "tokens": 5},
        {"writer": "draft", "tokens": 4},
        {"writer": "draft", "tokens": 1, "open": True},
        {"writer": "draft", "tokens": 4, "open": True},
    ]
