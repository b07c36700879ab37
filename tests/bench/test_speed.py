"""What the engine costs, on scripted models whose tokens take a known time."""

from __future__ import annotations

import pytest

from baton.bench.speed import measure
from baton.generation import Options
from baton.routers.relaygen import RelayGen
from scripted import ScriptedEngine, pair
from virtual_clock import run

TEXT = "one two. Wait, two good. one three.</think>answer one two three<eos>"
QUESTIONS = [("a", "1 + 1?"), ("b", "2 + 2?")]


def test_figures_of_models_whose_tokens_take_a_known_time():
    engines = pair(ScriptedEngine("target", TEXT, delay=0.1), ScriptedEngine("draft", TEXT, delay=0.02))
    told: list[tuple[str, int, int]] = []
    speed = run(
        measure(
            engines, RelayGen(cues=["Wait,"]), QUESTIONS, Options(), rounds=2, concurrency=3,
            progress=lambda *stage: told.append(stage),
        )
    )  # fmt: skip
    assert (speed.target_s, speed.draft_s) == (pytest.approx(0.1), pytest.approx(0.02))
    assert speed.cost_ratio == pytest.approx(5)
    assert (speed.questions, speed.rounds, speed.concurrency) == (2, 2, 3)
    # The end of the text takes a token's time and is none of the answer's.
    assert 1 <= speed.relay_over_ideal < 1.02
    assert speed.switch_s == pytest.approx(0.02 / 3)
    assert (speed.switch_steps, speed.overshoot) == (pytest.approx(0.2 / 3), 0)
    assert speed.batch_gain == {name: pytest.approx(3) for name in ("target", "draft", "relaygen")}
    assert told[-1] == ("at once", 2, 2)
