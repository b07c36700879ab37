"""The loop of routers that hand over at tokens."""

from __future__ import annotations

from baton.boundary import Boundary
from baton.generation import Generation
from baton.trace import Phase


async def hand_over(gen: Generation, doubt: Boundary, taken: Boundary, answer: str) -> None:
    """The draft writes to where it is in `doubt`, the target from there to where it has `taken` over, and so on.

    `answer` says who writes the answer phase: one of the two by itself, or both as before (`relay`).
    """
    while not gen.finished:
        if gen.phase is Phase.ANSWER and answer != "relay":
            await gen.write(answer)
            continue
        stretch = await gen.write("draft", [doubt])
        if stretch.ended_by is doubt:
            await gen.write("target", [taken])
