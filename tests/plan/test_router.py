"""The event simulation foretells the lookahead router on engines with set delays."""

from __future__ import annotations

from random import Random

import pytest

from baton.generation import Budget, Options, generate
from baton.plan.costs import Lengths, ModelCosts
from baton.plan.simulate import simulate_lookahead
from baton.routers.lookahead import Lookahead
from scripted import ScriptedEngine, ScriptedScorer, pair
from virtual_clock import run

STEPS, DELAY, ANSWERS = 60, 0.1, 6


def relayed(acceptance: float, c: float, depth: int, asynchronous: bool, words: tuple[int, ...]) -> float:
    """Speed-up over the target alone, of the scripted engines' virtual seconds; steps have 2 tokens more than words."""

    def script(role: str):
        def write(text: str, seed: int) -> str:
            n = text.count("\n\n")
            rng = Random(f"{role} {seed} {n}")
            first = "one" if role == "target" or rng.random() < acceptance else "bad"
            return first + " step" * rng.choice(words) + ".\n\n" if n < STEPS else "</think>answer<eos>"

        return write

    same = ScriptedScorer(lambda request: float(request.step.startswith("one")))
    router = Lookahead(verifier="same", threshold=0.5, depth=depth, asynchronous=asynchronous, whole_steps=False)
    seconds = 0.0
    for seed in range(ANSWERS):
        target = ScriptedEngine("target", script("target"), delay=DELAY)
        draft = ScriptedEngine("draft", script("draft"), delay=c * DELAY)
        options = Options(seed=seed, budget=Budget(tokens=4000))
        trace = run(generate(pair(target, draft, same=same), router, "q", options=options))
        assert trace.text.count("\n\n") == STEPS
        seconds += trace.seconds
    alone = STEPS * DELAY * (sum(words) / len(words) + 2)
    return ANSWERS * alone / seconds


@pytest.mark.parametrize("asynchronous", [True, False])
@pytest.mark.parametrize(("acceptance", "c", "depth"), [(0.63, 0.2, 5), (0.8, 0.25, 2)])
def test_equal_steps(acceptance, c, depth, asynchronous):
    mode = "async" if asynchronous else "sync"
    foretold = simulate_lookahead(acceptance, depth + 1, 1.0, c, mode=mode, window="drafts", steps=STEPS)
    assert relayed(acceptance, c, depth, asynchronous, (4,)) == pytest.approx(foretold.speedup, rel=0.1)


@pytest.mark.parametrize("asynchronous", [True, False])
def test_unequal_steps(asynchronous):
    words = (1, 9, 3, 2, 14, 5, 1, 7)
    tokens = Lengths(values=tuple(w + 2.0 for w in words))
    target, draft = ModelCosts(token_s=DELAY, tokens=tokens), ModelCosts(token_s=0.2 * DELAY, tokens=tokens)
    mode = "async" if asynchronous else "sync"
    foretold = simulate_lookahead(0.7, 5, target, draft, mode=mode, window="drafts", steps=STEPS)
    assert relayed(0.7, 0.2, 4, asynchronous, words) == pytest.approx(foretold.speedup, rel=0.1)
