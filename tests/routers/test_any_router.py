"""Rules that hold for any router, whatever the models write, and whenever it is stopped."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from baton import routers
from baton.boundary import ENTROPY, MARGIN, TOP_PROB, Feature
from baton.engines.base import Sampling
from baton.generation import Budget, Options, generate
from baton.pair import Pair
from baton.trace import Trace
from scripted import ScriptedEngine, ScriptedScorer, pair, vocabulary
from virtual_clock import run


def silent_after_three(question: str, text: str) -> str:
    return "" if text.count("good.\n\n") >= 3 else "good.\n\n"


CUES = {"cues": ["Wait", "Wait,", "good"]}
GATE = {"router": "rsd", "knobs": {"n": 2, "step_tokens": 6}}
AHEAD = {"router": "lookahead", "knobs": {"width": 2, "threshold": 0.3, "whole_steps": False}}
KNOBS: dict[str, list[dict[str, Any]]] = {
    "target": [{}],
    "draft": [{}],
    "random": [{"share": 0.5}],
    "rsd": [{}, {"n": 3, "step_tokens": 5, "rescore": True}, {"gate": "sigmoidal"}],
    "specreason": [{}, {"score": "expected", "step_tokens": 4, "first_n": 2}],
    "lookahead": [
        {"threshold": 0.4},
        {"width": 3, "choose": "closest", "threshold": 0.3, "step_tokens": 4, "whole_steps": False},
        {"asynchronous": False, "depth": 3, "whole_steps": False, "verifier": "exact"},
        {"verifier": "target", "threshold": 4},
        {"verifier": "random"},
    ],
    "gsi": [{"n": 3, "step_tokens": 5}],
    "specs": [{"n": 3}, {"n": 1, "step_tokens": 3}],
    "specguard": [{"n": 3}, {"n": 1, "grounding": 0.7}],
    "confspec": [{"step_tokens": 5, "confidence": 0.7}],
    "relaygen": [CUES],
    "relaygen-compat": [CUES, {**CUES, "guard": 0, "empty_closes_thinking": False}],
    "speculative-thinking": [
        {"probe": 3, "burst": 3, "long_burst": 4, "patience": 2},
        {"probe": 3, "burst": 3, "long_burst": 4, "keep_probe": True, "begin": 4, "always": True, "answer": "target"},
    ],
    "glimp": [{"entropy": 2}],
    "rstitch": [{"tau": 0.4, "back": 0.2}],
    "margin": [{}, {"stay": 3}],
    "bild": [{"rollback": 2}],
    "query-router": [{"threshold": 0.5, "tokens": 4}, {"ask": "Can you?"}, {"signal": "prm", "tokens": 3}],
    "cascade": [{"threshold": 0.5}, {"signal": "prm"}],
    "majority": [{"n": 3}],
    "best-of-n": [{"n": 3}, {"n": 3, "score": "outcome"}],
    "beam": [{"width": 2, "expansions": 2}],
    "hybrid": [CUES, {**CUES, "scorer": "prm", "verifier": "judge"}],
    "bail-out": [{"router": GATE, "rejections": 2}, {"router": AHEAD, "rejections": 2}],
    "budget": [{"router": GATE, "share": 0.3, "expected_tokens": 40}, {"router": AHEAD, "share": 0.3}],
    "steady": [{"router": GATE, "share": 0.3}],
    "fallback": [{"router": {"router": "rsd"}, "function": silent_after_three}],
}
ELSEWHERE = {"policy", "segmenter", "token-router", "load-aware"}
"""Routers that need heads, or engines that tell their load: they have such tests of their own."""
CASES = [(name, knobs) for name, several in KNOBS.items() for knobs in several]

PIECES = ("one", " ", "two", ".", "\n\n", ".\n\n", "Wait", ",", "good", "</think>", "<eos>", " three")
WEIGHTS = (6, 6, 5, 2, 1, 2, 1, 1, 2, 0.6, 0.3, 2)
WORDS = vocabulary(*(p for p in PIECES if p not in ("</think>", "<eos>")), "Yes", "no")
FAST, SLOW_SCORER, SLOW_DRAFT = (1.0, 0.13, 0.7), (0.3, 0.1, 5.0), (0.31, 0.9, 0.2)
"""Seconds of a target token, a draft token and a score."""


def chance(*key: object) -> random.Random:
    return random.Random(repr(key))


def model(role: str, world: int) -> Callable[[str, int], str]:
    """Writes by chance; half of the time what any other model would write there."""

    def script(text: str, seed: int) -> str:
        alike = chance(world, text).random() < 0.5
        coin = chance(world, text) if alike else chance(world, text, role, seed)
        return "".join(coin.choices(PIECES, WEIGHTS, k=40)) + "<eos>"

    return script


def says(text: str, token: str) -> dict[Feature, float]:
    coin = chance(text, token)
    margin = coin.random()
    return {ENTROPY: 4 * coin.random(), MARGIN: margin, TOP_PROB: max(margin, coin.random())}


def likeliest(text: str) -> list[tuple[str, float]]:
    yes = chance(text).random()
    return [("Yes", yes / 2), ("no", (1 - yes) / 2), ("9", 0.2), ("2", 0.1)]


def models(world: int, seconds: tuple[float, float, float]) -> Pair:
    engines = [
        ScriptedEngine(
            role, model(role, world), vocabulary=WORDS, features=says, top=likeliest, delay=delay,
            likes=lambda text, token, role=role: -7 * chance(text, token, role).random(),
            grounded=lambda text, token: chance(text, token).random(),
        )
        for role, delay in zip(("target", "draft"), seconds, strict=False)
    ]  # fmt: skip
    value = lambda r: chance(r.before, r.step, r.against).random()  # noqa: E731
    return pair(*engines, **{name: ScriptedScorer(value, delay=seconds[2]) for name in ("prm", "judge", "embedding")})


def answer(name: str, knobs: dict[str, Any], world: int, seconds=FAST, replay: Trace | None = None, **options) -> Trace:
    pair = models(world, seconds)
    options = {"budget": Budget(60, 15), "sampling": Sampling(temperature=0.7), "seed": world} | options
    shown: list[str] = []
    show = lambda segment, text, upto: shown.append(text)  # noqa: E731
    trace = run(
        generate(pair, routers.create(name, knobs), "q", options=Options(**options), on_text=show, replay=replay)
    )
    assert "".join(shown) == trace.text, "what was shown is what stands"
    assert all(engine.running == 0 for engine in pair.engines.values())
    assert all(h.outcome in ("done", "cancelled") for h in trace.helpers)
    assert trace.tokens() <= options["budget"].tokens
    for segment in trace.segments:
        assert segment.ended_by is not None
        assert segment.kept or not segment.kept_tokens
        assert segment.kind != "write" or segment.sampled >= len(segment.ids)
    return trace


def path(trace: Trace) -> list[tuple[str, tuple[int, ...]]]:
    return [(s.role.value, tuple(s.ids)) for s in trace.path()]


def test_every_shipped_router_is_here():
    assert set(routers.names()) <= KNOBS.keys() | ELSEWHERE


@pytest.mark.parametrize(("name", "knobs"), CASES, ids=[f"{name}-{n}" for n, (name, _) in enumerate(CASES)])
def test_an_answer_ends_within_its_budget_repeats_and_replays(name, knobs):
    for world, budget in enumerate((Budget(60, 15), Budget(7, 3))):
        first = answer(name, knobs, world, budget=budget)
        assert first.finish in {"end_of_text", "length"} | ({"stopped"} if name == "fallback" else set())
        assert path(answer(name, knobs, world, budget=budget)) == path(first)
        for other in (SLOW_SCORER, SLOW_DRAFT):
            assert path(answer(name, knobs, world, other, replay=first, budget=budget)) == path(first)


@pytest.mark.parametrize(("name", "knobs"), CASES, ids=[f"{name}-{n}" for n, (name, _) in enumerate(CASES)])
def test_writing_on_while_a_score_is_pending_changes_no_token(name, knobs):
    patient = answer(name, knobs, 2, SLOW_SCORER)
    if not patient.observations or name == "steady":
        assert path(answer(name, knobs, 2, SLOW_SCORER, optimistic=True)) == path(patient)


@pytest.mark.parametrize(("name", "knobs"), CASES, ids=[f"{name}-{n}" for n, (name, _) in enumerate(CASES)])
def test_a_deadline_at_any_moment_cancels_every_call_and_keeps_what_was_shown(name, knobs):
    for deadline in (0.05, 1.15, 4.7, 9.1):
        trace = answer(name, knobs, 1, timeout=deadline, optimistic=deadline > 2)
        assert trace.seconds <= deadline + 1e-9
        assert trace.finish != "timeout" or trace.seconds == pytest.approx(deadline)
