"""How a server is run: where it listens, who may ask, and how much it takes on."""

from __future__ import annotations

from dataclasses import dataclass

LOOPBACK = frozenset(["127.0.0.1", "localhost", "::1"])


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """The defaults are safe on a machine that others use too."""

    host: str = "127.0.0.1"
    port: int = 8000
    keys: tuple[str, ...] = ()
    """API keys, one of which every request but `/health` must carry; none: no key is asked for."""
    hosts: tuple[str, ...] = ()
    """Names that requests may call the server by, beside its address; a loopback address allows its own names only."""
    slots: int = 16
    """Answers written at once."""
    queue: int = 64
    """Answers that may wait for a slot; further ones are refused with 429."""
    deadline_s: float = 600.0
    """Longest time from a request's arrival to its answer's end; a request may ask for less."""
    body_bytes: int = 1 << 20
    """Largest body of a request."""
    max_tokens: int | None = None
    """Most tokens of an answer; what the models' context leaves if None."""
    choices: int = 8
    """Most answers to one request: prompts times `n`."""
    branches: int = 16
    """Most alternatives, and steps ahead, that a request's knobs may ask of a router."""
    stall_s: float = 30.0
    """A reader who takes nothing for so long is cut off."""
    engine_s: float = 60.0
    """An engine that gives no token to anybody for so long, with requests under way, counts as dead."""
    helper_s: float = 20.0
    """A scorer that has not answered for so long counts as dead."""
    retry_s: float = 2.0
    """Pause before a dead draft or scorer is tried again; doubled up to `retry_most_s`."""
    retry_most_s: float = 30.0
    pulse_s: float = 5.0
    """How often an engine of which nothing was heard is asked for a token."""
    drain_s: float = 30.0
    """Longest wait for answers under way after SIGTERM."""
    log_prompts: bool = False
    """Whether the log has the questions."""
    show_text: bool = False
    """Whether the live page shows the text of answers."""

    def __post_init__(self) -> None:
        for name, least in (("slots", 1), ("queue", 0), ("body_bytes", 1), ("choices", 1), ("branches", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name}: {getattr(self, name)} is too few; use {least} or more")
        for name in ("deadline_s", "stall_s", "engine_s", "helper_s", "retry_s", "pulse_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name}: {getattr(self, name):g} is no time; use a number above 0")
        if not 0 <= self.port <= 65535:
            raise ValueError(f"port: {self.port} is none; use 0 (any that is free) to 65535")
        if self.max_tokens is not None and self.max_tokens < 1:
            raise ValueError(f"max_tokens: {self.max_tokens} leaves no answer; use 1 or more")
        if any(not key.strip() for key in self.keys):
            raise ValueError("keys: one is empty; drop it, or write a key")
