"""Runs a router on scripted engines that write one common log, so that a test sees every call in order."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from baton.generation import Options, Router, generate
from baton.scorers.base import ScoreRequest
from baton.trace import Trace
from baton.vocabulary import Vocabulary
from scripted import WORDS, Log, Script, ScriptedEngine, ScriptedScorer, pair
from virtual_clock import run

Value = Callable[[ScoreRequest], float]


@dataclass
class Relay:
    """One answer: its trace, and the calls of both engines and the scorer in the order in which they began."""

    trace: Trace
    log: list[Log] = field(default_factory=list)

    @property
    def calls(self) -> list[tuple[str, str, str]]:
        """Who was called, on which text, and what it wrote or was shown; helper calls are named by their kind."""
        return [(c.role if c.op == "write" else f"{c.op} {c.role}", c.text, c.written) for c in self.log]

    @property
    def path(self) -> list[tuple[str, str]]:
        return [(s.role.value, s.text) for s in self.trace.path()]

    @property
    def dropped(self) -> list[tuple[str, str]]:
        """Segments and probes that are not in the answer, and tokens sampled beyond a kept segment's end."""
        return [(s.role.value, s.text) for s in self.trace.segments if not s.kept]


def relay(
    router: Router,
    target: Script | ScriptedEngine,
    draft: Script | ScriptedEngine | None = None,
    *,
    scorers: Mapping[str, Value] | None = None,
    vocabulary: Vocabulary = WORDS,
    target_says: Callable[[str, str], dict] | None = None,
    draft_says: Callable[[str, str], dict] | None = None,
    **options,
) -> Relay:
    """`target_says` and `draft_says` give the features of a token; a script serves both models if there is one."""
    log: list[Log] = []
    engines = []
    for role, script, says in (("target", target, target_says), ("draft", draft or target, draft_says)):
        engine = script if isinstance(script, ScriptedEngine) else ScriptedEngine(role, script, vocabulary=vocabulary)
        engine.log, engine.features = log, says or engine.features
        engines.append(engine)
    by_name = {name: ScriptedScorer(value, log=log) for name, value in (scorers or {}).items()}
    trace = run(generate(pair(*engines, **by_name), router, "q", options=Options(**options)))
    assert all(e.running == 0 for e in engines)
    return Relay(trace, log)


def follow(*texts: str) -> Callable[[str, int], str]:
    """A model that goes on with the first of the texts that begins as what is written does, else with a blank."""
    return lambda written, seed: next((t[len(written) :] for t in texts if t.startswith(written)), " ")
