"""What a recipe needs before it is run: memory, latency and GPU hours, from the pair's costs. No GPU, no weights."""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass
from typing import Any

from baton import virtual_clock
from baton.bench.benchmarks import BENCHMARKS
from baton.config import ModelConfig, Recipe, pair_options
from baton.engines.base import Engine
from baton.engines.simulated import SharedGpu, SimulatedEngine
from baton.plan.costs import Costs, ModelCosts
from baton.replay.schedule import Schedule
from baton.replay.turn import Arm, Replayer
from baton.trace import Role

WRITTEN: tuple[Arm, ...] = ("target", "draft", "relay")
PROMPT_TOKENS = 300
SIMULATED_TOKENS = 400
"""Of a simulated answer; longer ones take proportionally longer."""
WEIGHT_BYTES = 2
"""Of a parameter, in bf16."""
WORKSPACE_BYTES = 4e9
"""Of each engine beside weights and cache: activations, graphs, the CUDA context."""
GPU_BYTES = 141e9


@dataclass(frozen=True)
class Latency:
    """An arm's answers, of the expected length."""

    arm: str
    one_s: float
    """With one answer at once."""
    many_s: float
    """With as many as the recipe's quality pass has in flight."""
    gpu_hours: float
    """Of the quality pass and the latency pass."""


@dataclass(frozen=True)
class Fit:
    """One model's part of its GPU's memory. Bytes, tokens."""

    role: str
    weights: float
    cache: float
    """What is left for keys and values; below 0 it does not fit."""
    tokens: float | None
    """That the cache holds; None where a token's bytes are not known."""
    answers: float | None
    """Of the whole budget, that it holds at once."""


@dataclass(frozen=True)
class Needs:
    """What a recipe needs."""

    recipe: str
    answers: int
    """Of an arm's quality pass."""
    tokens: float
    """Expected of an answer."""
    budget: int
    at_once: int
    gpus: int
    latencies: list[Latency]
    fits: list[Fit]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def needs(costs: Costs, recipe: Recipe, questions: int | None = None, gpu_bytes: float = GPU_BYTES) -> Needs:
    """Needs of a recipe's quality and latency passes, an arm of each kind.

    Answers have `steps` steps of the target's mean length; the relay's stretches are `cue`'s. `questions` is needed
    for a task that is no known benchmark.

    Raises:
        ValueError: the costs lack `cue`, the number of questions is not known, or no parameters are given.
    """
    if costs.cue is None:
        raise ValueError("cue: it is missing; give target_tokens and draft_tokens, the mean stretches of the relay")
    config = recipe.config
    count = questions or config.limit
    if count is None:
        if (known := BENCHMARKS.get(config.task.name)) is None:
            raise ValueError(f"questions: task {config.task.name!r} is no known benchmark; give --questions")
        count = known.questions
    budget = pair_options(config.pair, task=config.task, budget=config.budget).budget
    tokens = min(costs.steps * costs.target.tokens.mean, budget.tokens)
    answers = count * config.samples * config.seeds
    gpus = len({gpu for model in _models(recipe).values() for gpu in _gpus(model)})
    timed = min(count, config.latency.limit or count) if config.latency is not None else 0
    latencies = []
    for arm in WRITTEN:
        one, many = (_seconds(costs, arm, load) * tokens / SIMULATED_TOKENS for load in (1, config.concurrency))
        hours = gpus * (answers * many / config.concurrency + timed * one) / 3600
        latencies.append(Latency(arm, one, many, hours))
    fits = [_fit(role, costs, model, budget.tokens, gpu_bytes) for role, model in _models(recipe).items()]
    return Needs(config.name, answers, tokens, budget.tokens, config.concurrency, gpus, latencies, fits)


def _models(recipe: Recipe) -> dict[Role, ModelConfig]:
    return {Role.TARGET: recipe.config.pair.target, Role.DRAFT: recipe.config.pair.draft}


def _gpus(model: ModelConfig) -> tuple[int, ...]:
    if model.vllm is None:
        return (0,)
    return model.vllm.devices or tuple(range(model.vllm.tensor_parallel * model.vllm.replicas))


def _seconds(costs: Costs, arm: Arm, at_once: int) -> float:
    """P50 of answers of `SIMULATED_TOKENS` on simulated engines."""
    assert costs.cue is not None
    drawn = Schedule.draw(
        at_once, PROMPT_TOKENS, SIMULATED_TOKENS, costs.cue.target_tokens, costs.cue.draft_tokens, seed=0
    )
    gpu = SharedGpu(costs.sharing) if costs.sharing is not None else None
    engines: dict[Role, Engine] = {
        role: SimulatedEngine(role, costs, at_once, gpu=gpu) for role in (Role.TARGET, Role.DRAFT)
    }
    turn = virtual_clock.run(Replayer(engines, drawn).turn(at_once, arm, 0, at_once))
    return statistics.median(turn.seconds)


def _fit(role: Role, costs: Costs, model: ModelConfig, budget: int, gpu_bytes: float) -> Fit:
    mine: ModelCosts = costs.target if role is Role.TARGET else costs.draft
    if mine.parameters is None:
        raise ValueError(f"{role}.parameters: they are missing; give the model's, for the memory it takes")
    split = model.vllm.tensor_parallel if model.vllm is not None else 1
    weights = mine.parameters * WEIGHT_BYTES
    share = model.vllm.memory if model.vllm is not None else None
    if share is not None:
        cache = split * (share * gpu_bytes - WORKSPACE_BYTES) - weights
    else:
        cache = float(model.cache_mb << 20)
    tokens = max(0.0, cache) / mine.cache_token_bytes if mine.cache_token_bytes else None
    return Fit(str(role), weights, cache, tokens, tokens / budget if tokens is not None else None)
