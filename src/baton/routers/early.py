"""Ends that published loops put to an answer before its end of text: only for comparisons with their figures."""

from __future__ import annotations

from baton.generation import Generation
from baton.trace import Phase, Segment
from baton.vocabulary import THINK_END


def end_with(gen: Generation, step: Segment) -> None:
    """Leaves the answer at a committed step.

    Published grading reads all of the text: where the thinking goes on, the step's text is given as the answer as well,
    as text that neither model wrote.
    """
    if gen.phase is Phase.THINKING and not gen.finished:
        gen.insert(THINK_END + step.text, why="ended early, as published")
