"""A router that follows a schedule, so that another can wear it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from baton.boundary import Cap
from baton.generation import Generation
from baton.replay.schedule import Part


class Scheduled:
    """Each model writes as many tokens as the schedule says, whatever they are; goes on from where the answer stands.

    A question is the number of its answer in the schedule, and its budget that answer's length. Segments that are
    thrown away are left out. No dataclass, as other routers are: every trace would hold a copy of the whole schedule.
    """

    name: ClassVar[str] = "scheduled"

    def __init__(self, answers: Sequence[Sequence[Part]]):
        self.answers = answers

    def __repr__(self) -> str:
        return self.name

    async def __call__(self, gen: Generation) -> None:
        end = 0
        for part in self.answers[int(gen.question)]:
            end += part.tokens if part.kept else 0
            if not gen.finished and (left := end - gen.written()) > 0:
                await gen.write(part.role, [Cap(left)])
