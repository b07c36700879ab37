"""How one answer is generated, and what a router is."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields, is_dataclass
from typing import TYPE_CHECKING, Any, Protocol

from baton.boundary import Boundary
from baton.engines.base import Sampling

if TYPE_CHECKING:
    from baton.generation.answer import Generation


class RouterError(Exception):
    """A router asked for something that cannot be: a defect of the router, not of the input."""


@dataclass(frozen=True, slots=True)
class Budget:
    """Kept tokens an answer may have, and how many of them are kept back for the answer phase."""

    tokens: int = 2048
    answer_reserve: int = 256

    def __post_init__(self) -> None:
        if self.tokens < 1:
            raise ValueError(f"budget.tokens: {self.tokens} leaves no room for an answer; use 1 or more")
        if not 0 <= self.answer_reserve < self.tokens:
            raise ValueError(
                f"budget.answer_reserve: {self.answer_reserve} is not below budget.tokens ({self.tokens}); lower it"
            )

    def resized(self, tokens: int) -> Budget:
        """A budget of `tokens` that keeps the reserve, or half of it all where the reserve does not fit."""
        return Budget(tokens, min(self.answer_reserve, tokens // 2))


@dataclass(frozen=True, slots=True)
class Options:
    """How one answer is generated, whatever the router."""

    sampling: Sampling = field(default_factory=Sampling)
    budget: Budget = field(default_factory=Budget)
    seed: int = 0
    system: str | None = None
    suffix: str = ""
    """What stands after the question in the user's turn, a blank line between them; scorers do not see it."""
    thinking: bool = True
    timeout: float | None = None
    """Seconds; the answer is then closed with finish `timeout`, its tokens so far kept."""
    optimistic: bool = False
    """While a score is pending, start the segment that would follow if the step is accepted."""
    top: int = 0
    """Likeliest tokens that are read at each token of the answer, beside those that the router reads."""

    def messages(self, question: str) -> list[dict[str, str]]:
        """The conversation that a question stands in."""
        system = [{"role": "system", "content": self.system}] if self.system else []
        asked = f"{question}\n\n{self.suffix}" if self.suffix else question
        return [*system, {"role": "user", "content": asked}]


class Router(Protocol):
    """A policy: decides which model writes the next stretch. A dataclass whose fields are its knobs."""

    @property
    def name(self) -> str: ...

    async def __call__(self, gen: Generation) -> None: ...


def knobs(router: Router) -> dict[str, Any]:
    """A router's knobs in a form that JSON can hold.

    One that a router got later (`"later": True` in its field's metadata) is told only where it is not its default, so
    that runs which were begun without it go on.
    """
    told: dict[str, Any] = {f.name: f for f in fields(router)} if is_dataclass(router) else {}
    values = {name: getattr(router, name) for name in told}
    quiet = {name for name, f in told.items() if f.metadata.get("later") and values[name] == f.default}
    return {name: _plain(value) for name, value in values.items() if name not in quiet}


def _plain(value: Any) -> Any:
    if isinstance(value, Boundary):
        return value.name
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    return value if isinstance(value, (str, int, float, bool, list, dict, type(None))) else str(value)
