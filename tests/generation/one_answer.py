"""Policies and scripted engines in one call, for tests of what a generation does."""

from __future__ import annotations

from collections.abc import Callable

from baton.generation import Generation, Options, generate
from baton.trace import Trace
from scripted import ScriptedEngine, pair
from virtual_clock import run

ANSWER = "one. Wait, two three.\n\nstep.</think>answer<eos>"


def router(policy: Callable, **attributes):
    """A coroutine function as a router."""

    class Policy:
        name = "policy"

        async def __call__(self, gen: Generation) -> None:
            await policy(gen)

    for key, value in attributes.items():
        setattr(Policy, key, value)
    return Policy()


def answer(policy: Callable, target=ANSWER, draft=ANSWER, *, scorers=None, **options) -> Trace:
    """Runs a policy on scripted engines; `target` and `draft` are scripts or engines."""
    target = target if isinstance(target, ScriptedEngine) else ScriptedEngine("target", target)
    draft = draft if isinstance(draft, ScriptedEngine) else ScriptedEngine("draft", draft)
    return run(generate(pair(target, draft, **(scorers or {})), router(policy), "q", options=Options(**options)))


def kept(trace: Trace) -> list[tuple[str, str, str]]:
    return [(s.role, s.text, s.ended_by.name) for s in trace.path()]
