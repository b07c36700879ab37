"""What wrappers are made of: a `Generation` with some of its words replaced."""

from __future__ import annotations

from typing import Any, cast

from baton.generation import Generation, Router


class Wearing:
    """A router that wears another one and needs what that one needs."""

    router: Router

    @property
    def scorers(self) -> tuple[str, ...]:
        return tuple(getattr(self.router, "scorers", ()))

    @property
    def needs_one_vocabulary(self) -> bool:
        return bool(getattr(self.router, "needs_one_vocabulary", False))

    @property
    def one_token_calls(self) -> bool:
        return bool(getattr(self.router, "one_token_calls", False))

    @property
    def takes_tokens(self) -> bool:
        return bool(getattr(self.router, "takes_tokens", False))


class Worn:
    """Passes every word to the generation it stands for, but those that a subclass redefines."""

    def __init__(self, gen: Generation):
        self._gen = gen

    def __getattr__(self, name: str) -> Any:
        return getattr(self._gen, name)

    def as_generation(self) -> Generation:
        """Itself, as the type that a router is written against."""
        return cast(Generation, self)
