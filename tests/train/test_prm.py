"""What a trained reward model is: it knows its labels, nothing it was not told, and serves a router."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
from label_sets import labels, write
from launches import losses, train

from baton.config import NANO_PAIR, PrmConfig
from baton.generation import Budget, Options, generate
from baton.nano import problems
from baton.pair import Pair
from baton.routers.rsd import RSD

pytestmark = pytest.mark.train
LEARN = {"max_steps": 60, "learning_rate": 1e-3, "batch": 16, "held_out": 0.3}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict]:
    folder = tmp_path_factory.mktemp("prm")
    return folder, train(folder / "out", write(folder / "labels", labels(300)), **LEARN)


def test_labels_are_learned_and_the_harm_curve_shows_it(trained):
    _, report = trained
    held = report["held_out"]
    assert held["auc"] > 0.95
    assert held["loss"] < 0.7 * held["base_loss"]
    assert held["harm_against_random"] < -0.05


def test_shuffled_labels_teach_nothing(tmp_path: Path):
    content = labels(400)
    chances = [(label.q_draft, label.q_target) for label in content]
    random.Random(0).shuffle(chances)
    shuffled = [replace(label, q_draft=q, q_target=t) for label, (q, t) in zip(content, chances, strict=True)]
    report = train(tmp_path / "out", write(tmp_path / "labels", shuffled), **LEARN)
    # Some 360 held-out steps: the standard error of the area is 0.03.
    assert 0.4 < report["held_out"]["auc"] < 0.6
    assert abs(report["held_out"]["harm_against_random"]) < 0.03


def test_accumulated_micro_batches_are_the_same_batch(tmp_path: Path):
    data = write(tmp_path / "labels", labels(100))
    whole = train(tmp_path / "whole", data, per_device_train_batch_size=8)
    parts = train(tmp_path / "parts", data, per_device_train_batch_size=2, gradient_checkpointing=True)
    assert losses(parts) == pytest.approx(losses(whole), rel=1e-4)
    assert losses(parts, "grad_norm") == pytest.approx(losses(whole, "grad_norm"), rel=1e-3)


async def test_the_exported_model_gates_a_router(trained):
    folder, _ = trained
    scorers = {"prm": PrmConfig(kind="prm", model=str(folder / "out" / "model"))}
    pair = Pair.load(NANO_PAIR.model_copy(update={"scorers": scorers}), Path())
    try:
        question = problems.load("dev", 1)[0].question
        trace = await generate(
            pair, RSD(threshold=0.5), question, options=Options(budget=Budget(tokens=200, answer_reserve=32))
        )
    finally:
        await pair.close()
    assert trace.decisions
    assert all(0 <= decision.score <= 1 for decision in trace.decisions)
