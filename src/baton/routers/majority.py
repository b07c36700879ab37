"""Majority vote: several answers, and the one that most of them agree on (arXiv 2203.11171)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

from baton.generation import Generation
from baton.imports import named
from baton.routers.checks import at_least, one_of
from baton.trace import Phase, Segment


@dataclass(frozen=True)
class Majority:
    """One model writes `n` whole answers side by side; the first of those with the commonest result is kept.

    Faithful: plain votes over sampled answers (self-consistency, arXiv 2203.11171). Answers without a result do not
    vote; of equal counts the one that stands first wins; without any result the first answer is kept.

    Fixed: all alternatives are one generation, so the tokens of those that are not kept are counted as discarded.

    Use it when: the temperature is above 0 (at 0 all answers are the same) and results can be told alike. It is what
    the budget of a relay buys without routing.
    """

    n: int = 8
    """Answers."""
    role: str = "draft"
    """Who writes them: `draft` or `target`."""
    extract: str | Callable[[str], str | None] = field(
        default="baton.bench.grading:last_boxed", metadata={"code": True}
    )
    r"""What tells the result from an answer's text (None for none): `package.module:function`. The last `\boxed{}`."""

    name: ClassVar[str] = "majority"

    def __post_init__(self) -> None:
        at_least("majority.n", self.n, 1)
        one_of("majority.role", self.role, ("draft", "target"))
        _function(self.extract)

    async def __call__(self, gen: Generation) -> None:
        extract = _function(self.extract)
        answers = [await a for a in [gen.complete(self.role, branch=k) for k in range(self.n)]]
        results = [extract(_answer(gen, a)) for a in answers]
        votes = Counter(r for r in results if r is not None)
        # most_common keeps the order in which equal counts were met first.
        best = results.index(votes.most_common(1)[0][0]) if votes else 0
        gen.commit(answers[best])


def _answer(gen: Generation, last: Segment) -> str:
    return "".join(s.text for s in gen.path(last) if s.phase is Phase.ANSWER)


def _function(extract: str | Callable[[str], str | None]) -> Callable[[str], Any]:
    if not isinstance(extract, str):
        return extract
    found = named(extract, "majority.extract")
    if not callable(found):
        raise ValueError(f"majority.extract: {extract!r} is no function; give package.module:function")
    return found  # type: ignore[no-any-return]
