"""What the tests of step routers share: one run on scripted engines, and its log in the order of the clock."""

from __future__ import annotations

from collections.abc import Callable

from baton.generation import Options, Router, generate
from baton.trace import Trace
from scripted import Script, ScriptedEngine, ScriptedScorer, pair
from virtual_clock import run


def relay(
    router: Router,
    target: Script | ScriptedEngine,
    draft: Script | ScriptedEngine,
    *,
    replay: Trace | None = None,
    scorers: dict[str, ScriptedScorer] | None = None,
    **options,
) -> Trace:
    """One answer; a script becomes an engine without delays."""
    engines = [
        script if isinstance(script, ScriptedEngine) else ScriptedEngine(role, script)
        for role, script in (("target", target), ("draft", draft))
    ]
    return run(generate(pair(*engines, **(scorers or {})), router, "q", options=Options(**options), replay=replay))


def kept(trace: Trace) -> list[tuple[str, str]]:
    return [(str(s.role), s.text) for s in trace.path()]


def dropped(trace: Trace) -> list[tuple[str, str, str]]:
    return [(str(s.role), s.text, s.ended_by.name) for s in trace.segments if not s.kept and s.kind == "write"]


def shared_log(target: ScriptedEngine, draft: ScriptedEngine, *scorers: ScriptedScorer) -> list:
    """Makes engines and scorers write into one log, so that the order of all calls shows."""
    log: list = []
    for part in (target, draft, *scorers):
        part.log = log
    return log


def calls(log: list) -> list[tuple[str, str, str, str]]:
    return [(c.op, c.role, c.text, c.written) for c in log]


def prefers(bad: str) -> Callable:
    """1 for a step without `bad` in it, 0 with it."""
    return lambda request: float(bad not in request.step)
