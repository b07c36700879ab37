"""What a plan is made from: step costs, acceptance and step lengths of a pair, and their YAML form."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator, Field, model_validator

from baton.boundary import STEP
from baton.config import ConfigError, Strict, read_yaml, validate
from baton.records import read_traces
from baton.trace import Kind, Segment, Trace

Array = NDArray[np.floating[Any]]
BRANCH_CORRELATION = 0.57
"""Fitted to Lookahead Reasoning's acceptance by width (.63 with one branch, .73 with two; arXiv 2506.19830, GSM8K).
Gives .80 and .86 for four and eight branches, where .77 and .83 were measured."""
FEWEST_AT_RISK = 30
"""Steps below which a position has no acceptance of its own but shares one with all later positions."""


class Lengths(Strict):
    """Step lengths in tokens: constant, lognormal, or drawn from measured ones. They are real numbers."""

    mean: float = Field(default=1.0, gt=0)
    """Of the constant or lognormal length; `values` have their own."""
    sigma: float = Field(default=0.0, ge=0, le=3)
    """Standard deviation of the length's logarithm; 0 for a constant."""
    values: tuple[Annotated[float, Field(gt=0)], ...] = ()
    """Measured lengths, drawn from at random."""

    @model_validator(mode="before")
    @classmethod
    def _measured(cls, data: Any) -> Any:
        if isinstance(data, Mapping) and data.get("values"):
            if "mean" in data or "sigma" in data:
                raise ValueError("values: measured lengths exclude mean and sigma; drop one of them")
            return {**data, "mean": float(np.mean(data["values"]))}
        return data

    def sample(self, rng: np.random.Generator, size: int | tuple[int, ...]) -> Array:
        """Lengths in tokens, of shape `size`."""
        if self.values:
            return rng.choice(np.asarray(self.values, dtype=float), size)
        if self.sigma:
            return rng.lognormal(np.log(self.mean) - self.sigma**2 / 2, self.sigma, size)
        return np.full(size, self.mean)

    @property
    def constant(self) -> Lengths:
        """The same mean without the spread."""
        return Lengths(mean=self.mean)


class Acceptance(Strict):
    """How often a step of the draft is accepted, by its position since the target last wrote."""

    by_position: tuple[Annotated[float, Field(ge=0, lt=1)], ...]
    """Probability that the first, second, ... draft step in a row is accepted, if those before it were; the last one
    holds for all later positions. One entry: independent of position."""
    branch_correlation: float = Field(default=BRANCH_CORRELATION, ge=0, lt=1)
    """Of the branches of one step: 0 if they are accepted independently, near 1 if all of them fare alike."""

    @model_validator(mode="after")
    def _some(self) -> Acceptance:
        if not self.by_position:
            raise ValueError("by_position: it is empty; give a rate from 0 to below 1")
        return self

    @classmethod
    def of(cls, value: float | Sequence[float] | Acceptance) -> Acceptance:
        """From a rate, or rates by position."""
        return value if isinstance(value, cls) else cls.model_validate(_acceptance(value))

    @classmethod
    def observed(cls, answers: Iterable[Sequence[bool]], branch_correlation: float = BRANCH_CORRELATION) -> Acceptance:
        """From outcomes of draft steps, in order, answer by answer. The run that an answer's end cuts off counts as far
        as it was seen.

        Raises:
            ValueError: there is no outcome.
        """
        tried: list[int] = []
        kept: list[int] = []
        for outcomes in answers:
            position = 0
            for outcome in outcomes:
                if position == len(tried):
                    tried.append(0)
                    kept.append(0)
                tried[position] += 1
                kept[position] += outcome
                position = position + 1 if outcome else 0
        if not tried:
            raise ValueError("runs: there is no accepted or rejected draft step in the file; give one that has some")
        own = next((n for n, count in enumerate(tried) if count < FEWEST_AT_RISK), len(tried))
        rates = [k / n for k, n in zip(kept[:own], tried[:own], strict=True)]
        if own < len(tried):
            rates.append(sum(kept[own:]) / sum(tried[own:]))
        # A finite sample may hold no rejection at all; half of one is assumed, so that runs end.
        most = 1 - 0.5 / (sum(tried) + 1)
        return cls(by_position=tuple(min(r, most) for r in rates), branch_correlation=branch_correlation)

    def at(self, position: NDArray[np.int64]) -> Array:
        """Acceptance at positions counted from 0, of the same shape."""
        rates = np.asarray(self.by_position)
        return rates[np.minimum(position, len(rates) - 1)]

    def reach(self, steps: int) -> Array:
        """`[steps]`: probability that the first 0, 1, ... draft steps in a row are all accepted."""
        return np.concatenate([[1.0], np.cumprod(self.at(np.arange(max(steps - 1, 0))))])[:steps]

    @property
    def run(self) -> float:
        """Mean number of accepted draft steps between two steps of the target."""
        rates = self.by_position
        reach = np.concatenate([[1.0], np.cumprod(rates)])
        return float(reach[1:-1].sum() + reach[-1] / (1 - rates[-1]))

    @property
    def rate(self) -> float:
        """Accepted draft steps over all of them, in the long run."""
        return self.run / (self.run + 1)

    def runs(self, rng: np.random.Generator, size: int) -> NDArray[np.int64]:
        """`[size]`: numbers of accepted draft steps before a rejection."""
        runs = np.zeros(size, dtype=np.int64)
        going = np.ones(size, dtype=bool)
        for position, rate in enumerate(self.by_position[:-1]):
            going &= rng.random(size) < rate
            runs[going] = position + 1
        runs[going] += rng.geometric(1 - self.by_position[-1], int(going.sum())) - 1
        return runs

    def of_width(self, width: int) -> Acceptance:
        """Acceptance of at least one of `width` branches: a beta-binomial whose branches correlate."""
        if width == 1:
            return self
        rejected = 1 - np.asarray(self.by_position)
        if self.branch_correlation:
            strength = 1 / self.branch_correlation - 1
            i = np.arange(width)[:, None]
            missed = np.prod((rejected * strength + i) / (strength + i), axis=0)
        else:
            missed = rejected**width
        return self.model_copy(update={"by_position": tuple(float(a) for a in 1 - missed)})


def _lengths(value: Any) -> Any:
    return {"mean": value} if isinstance(value, (int, float)) else value


def _acceptance(value: Any) -> Any:
    if isinstance(value, (int, float)):
        return {"by_position": [value]}
    return {"by_position": list(value)} if isinstance(value, (list, tuple)) else value


def _slowdown(value: Any) -> Any:
    if isinstance(value, (int, float)):
        return ((1, 1.0), (2, 1.0 + value))
    return tuple(sorted(value.items())) if isinstance(value, Mapping) else value


class Prompt(Strict):
    """What a prompt takes that is read by itself."""

    tokens: int = Field(gt=1)
    seconds: float = Field(gt=0)
    """From its request to its first token."""


class ModelCosts(Strict):
    """What one model's step costs. Any unit of time will do, if it is the same throughout."""

    step_s: float | None = Field(default=None, gt=0)
    """Seconds of a mean step; or give `token_s`."""
    token_s: float | None = Field(default=None, gt=0)
    """Seconds a token, one sequence at a time."""
    tokens: Annotated[Lengths, BeforeValidator(_lengths)] = Lengths()
    """Length of a step."""
    call_s: float = Field(default=0.0, ge=0)
    """Seconds that a request on a cached prefix adds to its tokens."""
    prefill_token_s: float = Field(default=0.0, ge=0)
    """Seconds a token that the other model wrote and this one has to read."""
    compute_token_s: float = Field(default=0.0, ge=0)
    """Seconds a token that a forward takes at least, where it reads so many that arithmetic bounds it (long prompts,
    many at once); of the `simulated` engine only."""
    prompt: Prompt | None = None
    """A forward that reads as many tokens anew takes at least as long, though not all of it on the GPU: no CUDA graph
    holds it, so that the processor launches it kernel by kernel. Of the `simulated` engine only."""
    parameters: float | None = Field(default=None, gt=0)
    """For FLOPs, taken as 2 a parameter and token (attention left out), and for memory."""
    cache_token_bytes: float | None = Field(default=None, gt=0)
    """Keys and values of a token: 2 x layers x key heads x head width x bytes of a number."""
    slowdown: Annotated[tuple[tuple[float, float], ...], BeforeValidator(_slowdown)] = ((1.0, 1.0),)
    """How much longer a step takes with n steps in flight: a mapping `{1: 1, 16: 1.1}`, linear between its points and
    beyond them, or one number, added for each step after the first."""
    ahead: int = Field(default=0, ge=0, le=4)
    """Forwards that are put together before the one under way ends, for which a new request comes too late (1 where
    vLLM schedules asynchronously); of the `simulated` engine only."""
    context_s: float = Field(default=0.0, ge=0)
    """Seconds that a forward takes longer for each token of context it attends to; of the `simulated` engine only (a
    plan has it in its time a token)."""
    noise: float = Field(default=0.0, ge=0, le=3)
    """Spread of a forward's time, the standard deviation of its logarithm; the mean stays. Of the `simulated` engine
    only."""

    @model_validator(mode="after")
    def _one_time(self) -> ModelCosts:
        if (self.step_s is None) == (self.token_s is None):
            raise ValueError("step_s: give either step_s (a mean step) or token_s (a token), and not both")
        counts = [n for n, _ in self.slowdown]
        if not counts or counts[0] != 1 or len(set(counts)) != len(counts) or min(f for _, f in self.slowdown) <= 0:
            raise ValueError(f"slowdown: {dict(self.slowdown)} has no factor for one step; start with {{1: 1.0, ...}}")
        return self

    @classmethod
    def of(cls, value: float | ModelCosts) -> ModelCosts:
        """From the seconds of a step."""
        return value if isinstance(value, cls) else cls(step_s=float(value))  # type: ignore[arg-type]

    @property
    def per_token_s(self) -> float:
        """Seconds a token."""
        return self.token_s if self.token_s is not None else self.step_s / self.tokens.mean  # type: ignore[operator]

    @property
    def alone_s(self) -> float:
        """Seconds of a mean step in one long request."""
        return self.per_token_s * self.tokens.mean

    @property
    def requested_s(self) -> float:
        """Seconds of a mean step as a request of its own."""
        return self.alone_s + self.call_s

    def slowed(self, in_flight: Array) -> Array:
        """Factor on the time of steps when so many run side by side; of the same shape."""
        counts, factors = (np.asarray(c, dtype=float) for c in zip(*self.slowdown, strict=True))
        slope = (factors[-1] - factors[-2]) / (counts[-1] - counts[-2]) if len(counts) > 1 else 0.0
        factor: Array = np.interp(in_flight, counts, factors) + slope * np.maximum(in_flight - counts[-1], 0.0)
        return factor

    def faster(self, factor: float) -> ModelCosts:
        """The same model whose tokens take `1 / factor` of the time (token-level speculation)."""
        return self.model_copy(update={"step_s": None, "token_s": self.per_token_s / factor})

    def replaced(self, **fields: Any) -> ModelCosts:
        """A copy with other fields; its time a token stays."""
        return self.model_copy(update={"step_s": None, "token_s": self.per_token_s, **fields})


class Scorer(Strict):
    """What a gate's score costs."""

    by: Literal["model", "target"] = "model"
    """`model`: a scorer of its own (RSD). `target`: the target reads the step and writes one token (SpecReason)."""
    step_s: float = Field(default=0.0, ge=0)
    """Seconds a step; with `by: target` added to what the target's own costs give."""
    token_s: float = Field(default=0.0, ge=0)
    """Seconds a token of the step, for a scorer of its own."""
    parameters: float | None = Field(default=None, gt=0)
    prompt_tokens: int = Field(default=0, ge=0)
    """Read beside the step for each score (SpecReason: about 70)."""


class GateCosts(Strict):
    """A gate, apart from the verifier of lookahead: its acceptance is another one."""

    acceptance: Annotated[Acceptance, BeforeValidator(_acceptance)] | None = None
    """The plan's acceptance if null."""
    scores: tuple[float, ...] = ()
    """Scores of draft steps on calibration questions; for thresholds."""
    call_rate: float | None = Field(default=None, gt=0, lt=1)
    """Share of steps that the target may rewrite."""


class CueCosts(Strict):
    """Cue switching: mean lengths of the stretches that target and draft write in turn."""

    target_tokens: float = Field(gt=0)
    draft_tokens: float = Field(gt=0)

    @property
    def target_share(self) -> float:
        return self.target_tokens / (self.target_tokens + self.draft_tokens)


class Speculation(Strict):
    """Token-level speculation inside the target's engine."""

    acceptance: float = Field(ge=0, lt=1)
    cost: float = Field(ge=0)
    """Seconds of one drafted token over those of one target token."""
    tokens: int | None = Field(default=None, ge=1)
    """Tokens that one pass of the target verifies (drafted ones + 1); the plan looks for the best if null."""
    on_draft: bool = False
    """Whether the draft's engine speculates as well, with the same gain."""


Points = tuple[tuple[float, float], ...]
"""Values at numbers of requests, ascending; between them it is linear."""


def _points(value: Any) -> Any:
    if isinstance(value, (int, float)):
        return ((1, value),)
    return tuple(sorted(value.items())) if isinstance(value, Mapping) else value


class Sharing(Strict):
    """Two models on the same GPUs: the share of its own speed that each keeps while the other computes too.

    0.5 and 0.5 where their steps take turns, 1 and 1 where neither is slowed. Each by the number of its requests,
    `{1: 0.9, 16: 0.8}`, or one number."""

    target: Annotated[Points, BeforeValidator(_points)]
    draft: Annotated[Points, BeforeValidator(_points)]

    @model_validator(mode="after")
    def _shares(self) -> Sharing:
        for role, points in (("target", self.target), ("draft", self.draft)):
            if not points or not all(0 < share <= 1 for _, share in points):
                raise ValueError(f"sharing.{role}: {dict(points)} is no share of the speed; use numbers in (0, 1]")
        return self

    def keeps(self, role: str, requests: int) -> float:
        """The share of a role's speed with so many requests of its own."""
        counts, shares = zip(*(self.target if role == "target" else self.draft), strict=True)
        return float(np.interp(requests, counts, shares))


class Simulation(Strict):
    """What the `simulated` engine writes. A plan takes nothing from it."""

    target_accuracy: float = Field(default=0.8, ge=0, le=1)
    """Probability that an answer is right if the target wrote all of its steps."""
    draft_accuracy: float = Field(default=0.6, ge=0, le=1)
    agreement: float = Field(default=0.5, ge=0, le=1)
    """How far two answers to one question are right together: correlation of what decides them (0: independent)."""
    steps: Annotated[Lengths | None, BeforeValidator(_lengths)] = None
    """Steps of an answer, drawn for each question; the pair's `steps` if null."""
    sentence_tokens: int = Field(default=8, ge=3)
    """Of a sentence, its cue and its end included; the last one of a step may be longer or shorter."""


class Costs(Strict):
    """A pair as `baton plan` and the `simulated` engine see it."""

    name: str = "pair"
    target: ModelCosts
    draft: ModelCosts
    acceptance: Annotated[Acceptance, BeforeValidator(_acceptance)]
    judge_s: float = Field(default=0.0, ge=0)
    """Seconds of lookahead's verifier, once both steps are there."""
    scorer: Scorer = Scorer()
    gate: GateCosts = GateCosts()
    cue: CueCosts | None = None
    speculation: Speculation | None = None
    sharing: Sharing | None = None
    """Of the GPUs by both models, in the `simulated` engine; each has its own if null."""
    parallel: int = Field(default=8, ge=1)
    """Budget M: tokens that the target may compute side by side for one answer."""
    widest: int = Field(default=4, ge=1)
    """Branches a step, at most."""
    steps: int = Field(default=60, ge=2)
    """Steps of an answer."""
    simulation: Simulation = Simulation()

    @model_validator(mode="after")
    def _target_scores(self) -> Costs:
        if self.scorer.by == "target" and self.target.token_s is None:
            raise ValueError("scorer.by: the target's score costs one of its tokens; give target.token_s, not step_s")
        return self

    @property
    def gate_acceptance(self) -> Acceptance:
        return self.gate.acceptance or self.acceptance

    @property
    def score_s(self) -> float:
        """Seconds of a mean step's score."""
        return float(score_seconds(self.target, self.scorer, self.draft.tokens.mean))


def score_seconds(target: ModelCosts, scorer: Scorer, tokens: Any) -> Any:
    """Seconds to score steps of `tokens` tokens (a number or an array)."""
    if scorer.by == "target":
        read = target.prefill_token_s * (tokens + scorer.prompt_tokens)
        return scorer.step_s + target.call_s + target.per_token_s + read
    return scorer.step_s + scorer.token_s * tokens


def load_costs(path: Path | None, overrides: Mapping[str, Any] | None = None) -> Costs:
    """Reads a pair's costs; `overrides` (nested like the file) go over its fields.

    Beside plain values the file may name files, relative to its folder: `tokens: {traces: FILE}` (lengths of the steps
    that this role wrote), `acceptance: {runs: FILE}` (a traces file, or text with a line of 0 and 1 an answer),
    `gate.scores: FILE` (scores that a traces file holds).

    Raises:
        ConfigError: a file is missing, or a field is wrong.
    """
    data = read_yaml(path, "costs") if path else {}
    _merge(data, overrides or {})
    source = str(path) if path else "options"
    base = path.parent if path else Path.cwd()
    try:
        for role in ("target", "draft"):
            tokens = data.get(role, {}).get("tokens") if isinstance(data.get(role), dict) else None
            if isinstance(tokens, dict) and "traces" in tokens:
                data[role]["tokens"] = {"values": step_lengths(read_traces(base / tokens["traces"]), role)}
        gate = data.get("gate")
        for group in (data, gate if isinstance(gate, dict) else {}):
            given = group.get("acceptance")
            if isinstance(given, dict) and "runs" in given:
                rest = {k: v for k, v in given.items() if k != "runs"}
                group["acceptance"] = Acceptance.observed(read_runs(base / given["runs"]), **rest)
        if isinstance(gate, dict) and isinstance(gate.get("scores"), str):
            gate["scores"] = [s for t in read_traces(base / gate["scores"]) for s, _ in decided(t)]
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{source}: {error}") from None
    return validate(Costs, data, source)


def step_lengths(traces: Iterable[Trace], role: str) -> list[float]:
    """Lengths in tokens of the steps that a role wrote, kept or not.

    A segment that runs over several steps is split at its blank lines; its tokens are shared out by characters.

    Raises:
        ValueError: the role wrote no step.
    """
    lengths = [n for trace in traces for s in trace.segments if s.role == role for n in _steps_of(s)]
    if not lengths:
        raise ValueError(f"tokens.traces: the {role} wrote no step in the file; give traces in which it writes")
    return lengths


def _steps_of(segment: Segment) -> list[float]:
    if segment.kind is not Kind.WRITE or not segment.ids:
        return []
    if segment.ended_by is not None and segment.ended_by.name == STEP.name:
        return [float(len(segment.ids))]
    parts = [part for part in segment.text.split("\n\n") if part.strip()]
    characters = sum(map(len, parts))
    return [len(segment.ids) * len(part) / characters for part in parts]


def decided(trace: Trace) -> list[tuple[float, bool]]:
    """Scores and outcomes of the draft steps that followed the answer's kept text, in order.

    Steps below a rejected one were never up for acceptance. Of the branches of one step the best score counts, and one
    accepted is enough.
    """
    segments = {s.id: s for s in trace.segments}
    found: dict[int | None, tuple[float, bool]] = {}
    for decision in sorted(trace.decisions, key=lambda d: d.seconds):
        node = segments[decision.node]
        parent = node.parent
        if node.role != "draft" or (parent in segments and not segments[parent].kept):
            continue
        score, outcome = found.get(parent, (float("-inf"), False))
        found[parent] = (max(score, decision.score), outcome or decision.outcome)
    return list(found.values())


def read_runs(path: Path) -> list[list[bool]]:
    """Outcomes by answer from a traces file, or from text: a line of 0 and 1 an answer (or a JSON list).

    Raises:
        ValueError: the file is missing, or holds something else.
    """
    if path.suffix == ".jsonl":
        return [[outcome for _, outcome in decided(trace)] for trace in read_traces(path)]
    if not path.is_file():
        raise ValueError(f"acceptance.runs: {path}: there is no such file; check the path")
    answers = []
    for n, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            signs = "".join(str(int(x)) for x in json.loads(line)) if line.startswith("[") else line
        except (ValueError, TypeError):
            signs = line
        signs = signs.replace(" ", "").replace(",", "").strip()
        if set(signs) - {"0", "1"}:
            raise ValueError(
                f"acceptance.runs: {path}: line {n}: {line[:40]!r} is no run; write 1 for an accepted step"
            )
        answers.append([sign == "1" for sign in signs])
    return answers


def _merge(data: dict[str, Any], over: Mapping[str, Any]) -> None:
    for name, value in over.items():
        if isinstance(value, Mapping) and isinstance(data.get(name), dict):
            _merge(data[name], value)
        else:
            data[name] = dict(value) if isinstance(value, Mapping) else value
