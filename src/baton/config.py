"""Configuration files: a pair (`pair.yaml`) and a recipe (`compare.yaml`), checked field by field.

Every mistake is a `ConfigError` with one line a mistake: the file, the field, the value and the remedy.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from baton import nano
from baton.bench.benchmarks import BENCHMARKS
from baton.engines.base import LoadError, Sampling, Speculation
from baton.engines.settings import ServerSettings, VllmSettings
from baton.generation import Budget, Options
from baton.trace import Role

EngineKind = Literal["transformers", "vllm", "openai", "simulated"]
M = TypeVar("M", bound=BaseModel)


class ConfigError(ValueError):
    """A configuration that cannot be used; one readable line a mistake."""


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


def _keyed(field: str) -> BeforeValidator:
    """Lets a bare string stand for a mapping with only that field."""
    return BeforeValidator(lambda value: {field: value} if isinstance(value, str) else value)


class ModelConfig(Strict):
    """One model of a pair and the engine that runs it."""

    model: str = Field(min_length=1)
    """A folder (absolute, or relative to the YAML's folder), a hub id, or `nano:target` / `nano:draft`. With a server,
    only its tokenizer is read here. For the `simulated` engine a file of costs and the role it plays:
    `costs.yaml#target`."""
    engine: EngineKind = "transformers"
    vllm: VllmSettings | None = None
    """How vLLM runs it; goes with `engine: vllm`."""
    server: Annotated[ServerSettings | None, BeforeValidator(lambda value: _server(value))] = None
    """Where it is served; goes with `engine: openai`. An address alone will do."""
    device: str = "auto"
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """`auto`: float32 on a CPU, the checkpoint's own elsewhere."""
    cache_mb: int = Field(default=1024, ge=1)
    """Bound on the engine's key-value caches, in MiB."""
    max_batch: int = Field(default=32, ge=1)
    """Requests that run in one step."""
    threads: int | None = Field(default=None, ge=1)
    """CPU threads of the model; one if left out, which small models run best with and repeat exactly on."""
    speculative: Annotated[Speculation | None, _keyed("method")] = None
    """Token-level speculation inside the engine; none if null. It changes the time that tokens take, not the tokens."""
    trust_remote_code: bool = False
    revision: str | None = None

    @model_validator(mode="after")
    def _fits_engine(self) -> ModelConfig:
        if self.vllm is not None and self.engine != "vllm":
            raise ValueError(f"vllm: it goes with engine vllm, not {self.engine!r}; drop it, or set engine to vllm")
        if self.server is not None and self.engine != "openai":
            raise ValueError(
                f"server: it goes with engine openai, not {self.engine!r}; drop it, or set engine to openai"
            )
        if self.server is None and self.engine == "openai":
            raise ValueError("server: missing; engine openai needs the server's address")
        return self

    @property
    def own(self) -> VllmSettings | ServerSettings | None:
        """The group of its engine's own settings."""
        return self.vllm or self.server


class WeightsConfig(Strict):
    """A scorer's own model."""

    model: str = Field(min_length=1)
    """A folder (absolute, or relative to the YAML's folder) or a hub id; safetensors."""
    device: str = "auto"
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """`auto`: float32 on a CPU, the checkpoint's own elsewhere."""
    max_batch: int = Field(default=32, ge=1)
    """Sequences in one forward."""
    vllm: VllmSettings | None = None
    """How vLLM runs it, where it does."""
    trust_remote_code: bool = False
    revision: str | None = None


class PrmConfig(WeightsConfig):
    """A process reward model."""

    kind: Literal["prm"]
    engine: Literal["transformers", "vllm"] = "transformers"
    """vLLM's pooling runner runs classifiers of tokens, and of sequences, which find an answer's beginning cached."""
    format: Literal["skywork", "qwen", "math-shepherd", "rlhflow", "token-classification"] = "token-classification"
    """How the model wants its input and where its scores are read."""
    separator: str | None = None
    """What closes a step. Skywork: a line break if null. Token classification: null reads the pair's own token ids at
    the end of each step; a text makes the input from texts, each step closed by it."""
    aggregate: Literal["last", "min", "mean", "product"] = "last"
    """Which score of an answer's steps so far counts."""
    cache_mb: int = Field(default=1024, ge=0)
    """Bound on remembered keys and values, in MiB; 0 remembers nothing."""

    @model_validator(mode="after")
    def _runs(self) -> PrmConfig:
        if self.vllm is not None and self.engine != "vllm":
            raise ValueError(f"vllm: it goes with engine vllm, not {self.engine!r}; drop it, or set engine to vllm")
        if self.engine == "vllm" and self.format != "token-classification":
            raise ValueError(f"format: {self.format!r} does not run in vLLM here; use engine transformers")
        if self.engine == "vllm" and self.cache_mb == 0:
            raise ValueError("cache_mb: 0 leaves vLLM no room for a sequence; use 64 or more")
        return self


class JudgeTemplateConfig(Strict):
    """Prompts of your own; `{question}`, `{steps}`, `{step}`, and of two steps `{a}` and `{b}`, are replaced."""

    score: str | None = None
    """Asks for a score of one step, 0 to 9."""
    compare: str | None = None
    """Asks whether two steps say the same."""
    system: str | None = None
    begin: str = ""
    """How the reply begins; the next token is read."""
    same: list[str] = Field(default=["same"], min_length=1)
    """Words that mean yes, lower case."""
    different: list[str] = Field(default=["different"], min_length=1)

    @model_validator(mode="after")
    def _asks(self) -> JudgeTemplateConfig:
        if self.score is None and self.compare is None:
            raise ValueError("score: it is missing, and so is compare; write at least one of the two prompts")
        for name, text, wanted in (("score", self.score, ("{step}",)), ("compare", self.compare, ("{a}", "{b}"))):
            for place in wanted:
                if text is not None and place not in text:
                    raise ValueError(f"{name}: the prompt has no {place}; put it where the step belongs")
        return self


JUDGE_TEMPLATES = ("nano", "specreason", "lookahead", "preference")


class JudgeConfig(Strict):
    """A language model that is asked about steps."""

    kind: Literal["judge"]
    role: Literal["target", "draft"] | None = None
    """Whose model judges; or `model`, one of its own."""
    model: Annotated[ModelConfig, _keyed("model")] | None = None
    template: Annotated[str | JudgeTemplateConfig, BeforeValidator(lambda value: _template(value))] = "specreason"
    """`nano`, `specreason`, `lookahead`, `preference` (of whole answers), or prompts of your own."""
    read: Literal["greedy", "expected"] = "greedy"
    """The likeliest token, or the expectation over the tokens that are an answer."""
    top: int = Field(default=10, ge=1)
    """Likeliest tokens looked at."""

    @model_validator(mode="after")
    def _has_a_model(self) -> JudgeConfig:
        if (self.role is None) == (self.model is None):
            which = "it is missing, and so is model" if self.role is None else f"{self.role!r} stands beside a model"
            raise ValueError(f"role: {which}; set role to target or draft, or model to one of its own")
        if isinstance(self.template, str) and self.template not in JUDGE_TEMPLATES:
            known = ", ".join(JUDGE_TEMPLATES)
            hint = _nearest(self.template, JUDGE_TEMPLATES)
            raise ValueError(f"template: {self.template!r} is unknown{hint}; use one of {known}, or write prompts")
        return self


class EmbeddingConfig(WeightsConfig):
    """An encoder whose embeddings of two steps are compared."""

    kind: Literal["embedding"]
    library: Literal["transformers", "sentence-transformers", "vllm"] = "transformers"
    """`transformers`: the mean (or first) state; `vllm` too, in its pooling runner; `sentence-transformers` runs
    whatever modules the checkpoint has."""

    @model_validator(mode="after")
    def _runs(self) -> EmbeddingConfig:
        if self.vllm is not None and self.library != "vllm":
            raise ValueError(f"vllm: it goes with library vllm, not {self.library!r}; drop it, or set library to vllm")
        return self


class RewardConfig(WeightsConfig):
    """An outcome reward model: a sequence classifier with one label, on the chat of a question and an answer."""

    kind: Literal["reward"]


class ConfidenceConfig(Strict):
    """How sure a model of the pair is of a step."""

    kind: Literal["confidence"]
    role: Literal["target", "draft"] = "draft"
    statistic: Literal["mean", "min", "entropy", "margin"] = "mean"


class ResidentConfig(Strict):
    """A head on hidden states that a model of the pair computes anyway."""

    kind: Literal["resident"]
    model: str = Field(min_length=1)
    """The folder that scripts/train_prm.py wrote with `kind: resident`; it says whose states it reads."""


class TokenConfig(Strict):
    """A head that reads tokens as they are written: a boundary of token routers and segmenters."""

    kind: Literal["token"]
    model: str = Field(min_length=1)
    """The folder that train_token_router.py or train_segmenter.py wrote; it says whose tokens it reads."""


class PolicyHeadConfig(Strict):
    """A trained policy over the steps of an answer, for the router `policy`."""

    kind: Literal["policy"]
    model: str = Field(min_length=1)
    """The folder that train_policy.py wrote."""


class EquivalenceConfig(Strict):
    """A head that compares two versions of a step, in place of a judge."""

    kind: Literal["equivalence"]
    model: str = Field(min_length=1)
    """The folder that train_verifier.py wrote; it says whose states it reads."""


class CallableConfig(Strict):
    """A function of your own."""

    kind: Literal["callable"]
    function: str = Field(pattern=r"^[\w.]+:\w+$")
    """`package.module:name`; takes a `ScoreRequest`, gives a number."""
    arguments: dict[str, Any] = {}
    """Keyword arguments of every call."""
    timeout_s: float | None = Field(default=60.0, gt=0)
    concurrency: int = Field(default=8, ge=1)


ScorerConfig = (
    PrmConfig
    | RewardConfig
    | JudgeConfig
    | EmbeddingConfig
    | ConfidenceConfig
    | ResidentConfig
    | TokenConfig
    | PolicyHeadConfig
    | EquivalenceConfig
    | CallableConfig
)
SCORERS: dict[str, type[Strict]] = {
    "prm": PrmConfig,
    "reward": RewardConfig,
    "judge": JudgeConfig,
    "embedding": EmbeddingConfig,
    "confidence": ConfidenceConfig,
    "resident": ResidentConfig,
    "token": TokenConfig,
    "policy": PolicyHeadConfig,
    "equivalence": EquivalenceConfig,
    "callable": CallableConfig,
}


def _scorer(value: Any) -> Any:
    """A scorer's fields by its kind, so that a mistake is told about that kind and no other."""
    if isinstance(value, Strict):
        return value
    kind = value.get("kind") if isinstance(value, dict) else None
    if kind not in SCORERS:
        hint = _nearest(str(kind), list(SCORERS))
        raise ValueError(f"kind: {kind!r} is unknown{hint}; use one of {', '.join(SCORERS)}")
    return _one_of(SCORERS[kind], value)


def _server(value: Any) -> Any:
    """Lets an address stand for a group, and one address for a list."""
    if isinstance(value, str):
        return {"url": [value]}
    if isinstance(value, dict) and isinstance(value.get("url"), str):
        return {**value, "url": [value["url"]]}
    return value


def _template(value: Any) -> Any:
    return _one_of(JudgeTemplateConfig, value) if isinstance(value, dict) else value


def _one_of(model: type[Strict], value: dict[str, Any]) -> Strict:
    """Builds the member of a union that is meant; a mistake is told as of that member's field."""
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise ValueError(_line(model, dict(error.errors()[0]))) from None


class PairConfig(Strict):
    """A target, a draft, and how they are sampled unless a recipe says otherwise."""

    name: str = Field(min_length=1)
    target: Annotated[ModelConfig, _keyed("model")]
    draft: Annotated[ModelConfig, _keyed("model")]
    sampling: Sampling = Sampling()
    budget: Budget | None = None
    """Kept tokens that the models are good for; null leaves that to the task."""
    system: str | None = None
    """System prompt; none if null."""
    thinking: bool = True
    """Whether the chat template is asked for a thinking phase."""
    cues: str | None = None
    """Cue profile of the pair, for routers that need one: a path relative to the YAML's folder, or `nano:cues`."""
    scorers: dict[str, Annotated[ScorerConfig, BeforeValidator(_scorer)]] = {}
    """What routers score steps by, under the names that they ask for."""


NANO_PAIR = PairConfig(
    name="nano",
    target=ModelConfig(model="nano:target"),
    draft=ModelConfig(model="nano:draft"),
    cues="nano:cues",
    budget=Budget(tokens=768, answer_reserve=64),
    scorers={
        "judge": JudgeConfig(kind="judge", role="target", template="nano", read="expected"),
        "confidence": ConfidenceConfig(kind="confidence", role="draft"),
        "prm": PrmConfig(kind="prm", model="nano:prm"),
        "prm-correct": PrmConfig(kind="prm", model="nano:prm-correct"),
        "resident": ResidentConfig(kind="resident", model="nano:resident"),
        "resident-target": ResidentConfig(kind="resident", model="nano:resident-target"),
        "policy": PolicyHeadConfig(kind="policy", model="nano:policy"),
        "equivalence": EquivalenceConfig(kind="equivalence", model="nano:verifier"),
        "hand-back": TokenConfig(kind="token", model="nano:hand-back"),
        "take-over": TokenConfig(kind="token", model="nano:take-over"),
        "token-router": TokenConfig(kind="token", model="nano:token-router"),
        "token-router-logits": TokenConfig(kind="token", model="nano:token-router-logits"),
    },
)
"""The pair that is shipped with the package; a recipe calls it `nano`."""


class FieldNames(Strict):
    """What the columns of a question file are called. Ids and levels may be missing; rows are then numbered."""

    id: str = "id"
    question: str = "question"
    answer: str = "answer"
    level: str = "level"


class TaskConfig(Strict):
    """Where questions come from, how they are asked and how answers are graded."""

    name: str = "nano"
    """A benchmark (`baton tasks` lists them); any other name goes with a `path`."""
    path: str | None = None
    """JSONL or Parquet file, or the folder that a benchmark's repository was downloaded to, relative to the recipe's
    folder; `{split}` in it is replaced by the split's name. Null fetches a benchmark from the hub."""
    fields: FieldNames = FieldNames()
    grader: Literal["math", "choice", "code", "judge", "reward"] | None = None
    """Null: the benchmark's, or `math`."""
    scorer: str | None = None
    """Which of the pair's scorers grades, for `judge` and `reward`; the one of that name if null."""
    suffix: str | None = None
    """Text after the question in the user's turn, in place of the benchmark's; empty for none."""
    system: str | None = None
    """System prompt, in place of the benchmark's and the pair's."""

    @property
    def graded_by(self) -> str:
        """Name of the grader."""
        benchmark = BENCHMARKS.get(self.name)
        return self.grader or (benchmark.grader if benchmark else "math")

    @property
    def asks(self) -> str | None:
        """Name of the pair's scorer that the grader asks; None if it asks none."""
        return self.scorer or self.graded_by if self.graded_by in {"judge", "reward"} else None

    def check_scorers(self, scorers: Mapping[str, Any]) -> None:
        """Refuses a pair that lacks the scorer which grades.

        Raises:
            ValueError: one line.
        """
        if self.asks is not None and self.asks not in scorers:
            have = f"has {', '.join(scorers)}" if scorers else "has none"
            raise ValueError(
                f"task.scorer: {self.name!r} is graded by the pair's scorer {self.asks!r}, and the pair {have}; "
                "add it under scorers in the pair's YAML, or name one in task.scorer"
            )
        template = getattr(scorers[self.asks], "template", None) if self.asks else None
        if self.graded_by == "judge" and template in {"nano", "specreason", "lookahead"}:
            raise ValueError(
                f"task.scorer: {self.asks!r} has the template {template!r}, which is about single steps; grade by one "
                "with the template preference, or with prompts of your own"
            )

    @model_validator(mode="after")
    def _named(self) -> TaskConfig:
        if self.name == "nano" and self.path is not None:
            raise ValueError(f"path: {self.path!r} goes with a task of your own; give task.name another name than nano")
        if self.name not in BENCHMARKS and self.path is None:
            known = ", ".join(BENCHMARKS)
            raise ValueError(
                f"name: {self.name!r} is unknown{_nearest(self.name, list(BENCHMARKS))}; use one of {known}, "
                "or set task.path to a file"
            )
        return self


class CalibrationConfig(Strict):
    """Questions on which operating points are measured. Never the test split."""

    task: Annotated[TaskConfig | None, _keyed("name")] = None
    """Another task to calibrate on; the recipe's own if null."""
    split: str = "calibration"
    limit: int = Field(default=60, ge=1)
    labels: str | None = None
    """Label set of calibration questions (`baton label`), relative to the recipe's folder; points of `harm` need it."""


class PointConfig(Strict):
    """An operating point: what a router was asked for on the calibration questions."""

    share: float | None = Field(default=None, ge=0, le=1)
    """Target share."""
    accept_rate: float | None = Field(default=None, ge=0, le=1)
    flops: float | None = Field(default=None, gt=0)
    """An answer."""
    p50_s: float | None = Field(default=None, gt=0)
    """Seconds that half of the answers take at most; likewise the other quantiles."""
    p90_s: float | None = Field(default=None, gt=0)
    p95_s: float | None = Field(default=None, gt=0)
    p99_s: float | None = Field(default=None, gt=0)
    harm: float | None = Field(default=None, gt=0, lt=1)
    """What accepted steps may lose of the chance of a right answer, by labelled states."""
    guarantee: Literal["crc"] | None = None
    """`crc`: in expectation over new questions (conformal risk control), beside `harm` only."""

    @property
    def measures(self) -> dict[str, float]:
        """What is asked for, by name."""
        found: dict[str, float] = self.model_dump(exclude_none=True, exclude={"guarantee"})
        return found

    @model_validator(mode="after")
    def _one(self) -> PointConfig:
        if len(given := self.measures) != 1:
            known = ", ".join(name for name in type(self).model_fields if name != "guarantee")
            raise ValueError(f"share: {len(given)} measures are given; give one of {known}")
        if self.guarantee and self.harm is None:
            raise ValueError(f"guarantee: {self.guarantee!r} is one on harm; ask for harm, or drop it")
        return self


class ArmSpeculation(Strict):
    """Token-level speculation of one arm. A model that is left out speculates as the pair says; null is without."""

    target: Annotated[Speculation | None, _keyed("method")] = None
    draft: Annotated[Speculation | None, _keyed("method")] = None

    def over(self, pair: PairConfig) -> dict[Role, Speculation | None]:
        """What each model of the pair does in this arm."""
        asked = self.model_fields_set
        return {
            Role.TARGET: self.target if "target" in asked else pair.target.speculative,
            Role.DRAFT: self.draft if "draft" in asked else pair.draft.speculative,
        }


class PolicyConfig(Strict):
    """A router and its knobs."""

    router: str = Field(min_length=1)
    label: str = ""
    """What results call it; the router's name if empty."""
    knobs: dict[str, Any] = {}

    @property
    def name(self) -> str:
        return self.label or self.router


class RouterConfig(PolicyConfig):
    """One arm of a comparison."""

    share_of: str | None = None
    """Label of an arm whose target share, measured on calibration questions, becomes this arm's `share` knob."""
    at: PointConfig | None = None
    """Operating point that the arm takes its knobs from; goes with `points`."""
    points: str | None = None
    """File that `baton calibrate` writes (`arms` or `thresholds`), relative to the recipe's folder."""
    vary: str | None = None
    """The knob that the operating point sets; the router's main one if null."""
    speculative: ArmSpeculation = ArmSpeculation()
    """In place of the pair's, for this arm alone."""

    @model_validator(mode="after")
    def _pointed(self) -> RouterConfig:
        if (self.at is None) != (self.points is None):
            missing, there = ("at", "points") if self.at is None else ("points", "at")
            raise ValueError(f"{missing}: missing beside {there}; at says which operating point, points which file")
        if self.vary is not None and self.at is None:
            raise ValueError(f"vary: {self.vary!r} goes with an operating point; add at and points, or drop it")
        if self.at is not None and self.share_of is not None:
            raise ValueError(f"share_of: {self.share_of!r} stands beside at; drop one")
        return self


def _arms(entries: Any) -> Any:
    """Each arm by itself, where an entry stands for several (`at: {share: [0.3, 0.5]}`, `sweep: {n: [1, 4]}`)."""
    if not isinstance(entries, list):
        return entries
    return [arm for entry in entries for arm in (_several(entry) if isinstance(entry, dict) else [entry])]


def _several(entry: dict[str, Any]) -> list[dict[str, Any]]:
    name = entry.get("label") or entry.get("router")
    match entry.get("at"):
        case dict(at) if several := [(m, found) for m, found in at.items() if isinstance(found, list)]:
            measure, wanted = several[0]
            arms = [{**entry, "label": f"{name}@{value}", "at": {**at, measure: value}} for value in wanted]
            return [each for arm in arms for each in _several(arm)]
    if "sweep" not in entry:
        return [entry]
    sweep, rest = entry["sweep"], {k: v for k, v in entry.items() if k != "sweep"}
    if not isinstance(sweep, dict) or not all(isinstance(values, list) and values for values in sweep.values()):
        raise ValueError(f"sweep: {sweep!r} cannot be used; give each knob a list of values")
    arms = []
    for values in product(*sweep.values()):
        knobs = dict(zip(sweep, values, strict=True))
        said = ", ".join(f"{knob} {value}" for knob, value in knobs.items())
        arms.append({**rest, "label": f"{name} {said}", "knobs": {**(entry.get("knobs") or {}), **knobs}})
    return arms


class LatencyConfig(Strict):
    """The latency pass: a few questions, arms interleaved question by question."""

    limit: int = Field(default=30, ge=1)
    concurrency: int = Field(default=1, ge=1)
    warmup: int = Field(default=2, ge=0)
    """Questions answered before the clock counts; their answers are dropped."""
    sharded: bool = False
    """Whether a shard times its part of the questions, all arms in turns, beside the other shards. Else the pass is
    left to the comparison without a shard, which then has the machine to itself."""


class SloConfig(Strict):
    """What a reader is promised. An answer is good if it keeps all that is given."""

    ttft_s: float | None = Field(default=None, gt=0)
    """Time to the first token."""
    tpot_s: float | None = Field(default=None, gt=0)
    """Time a token after the first one, mean over the answer."""
    latency_s: float | None = Field(default=None, gt=0)
    """Time to the end of the answer."""

    @model_validator(mode="after")
    def _some(self) -> SloConfig:
        if self.ttft_s is None and self.tpot_s is None and self.latency_s is None:
            raise ValueError("latency_s: it is missing, and so are ttft_s and tpot_s; give at least one limit")
        return self


class LoadPointConfig(Strict):
    """One load: a closed loop (`concurrency`) or an open one (`arrivals`)."""

    concurrency: int | None = Field(default=None, ge=1)
    """Closed loop: so many answers are under way; each that ends lets the next one begin."""
    arrivals: Literal["poisson", "constant", "trace"] | None = None
    """Open loop: questions arrive at random, at even distances, or when a file says; nothing makes them wait."""
    rate: float | None = Field(default=None, gt=0)
    """Arrivals a second."""
    of_capacity: float | None = Field(default=None, gt=0)
    """In place of `rate`: a fraction of the capacity that the first arm with router `target` is found to have."""
    file: str | None = None
    """Arrival times in seconds, one a line, ascending; relative to the recipe's folder."""

    @property
    def name(self) -> str:
        """What the point is called in results and on disk."""
        if self.concurrency is not None:
            return f"closed {self.concurrency}"
        if self.file is not None:
            return f"trace {self.file}"
        return (
            f"{self.arrivals} {self.of_capacity:g} of capacity"
            if self.of_capacity
            else f"{self.arrivals} {self.rate:g}"
        )

    @model_validator(mode="after")
    def _one_loop(self) -> LoadPointConfig:
        if (self.concurrency is None) == (self.arrivals is None):
            raise ValueError("concurrency: give it (a closed loop) or arrivals (an open one), and not both")
        given = [n for n in ("rate", "of_capacity", "file") if getattr(self, n) is not None]
        wanted = "none" if self.arrivals is None else "file" if self.arrivals == "trace" else "rate or of_capacity"
        if wanted == "none" and given:
            raise ValueError(f"{given[0]}: a closed loop has none; drop it, or give arrivals in place of concurrency")
        if wanted != "none" and (len(given) != 1 or given[0] not in wanted.split(" or ")):
            raise ValueError(f"arrivals: {self.arrivals} goes with {wanted}, one of them and nothing else")
        return self


class LoadConfig(Strict):
    """The load pass: each arm under each load, in turns."""

    points: list[LoadPointConfig] = []
    requests: int = Field(default=300, ge=2)
    """Answers that count, for each arm and load."""
    warmup: int = Field(default=30, ge=0)
    """Answers before them, which do not count; as many may follow them so that the load lasts."""
    ramp: bool = False
    """Whether the capacity of every arm is found: closed loops of 1, 2, 4 ... until more gain nothing."""
    slo: SloConfig | None = None
    deadline_s: float | None = Field(default=None, gt=0)
    """Seconds after its arrival at which an answer is cut off (a timeout); the recipe's `timeout_s` if null."""

    @model_validator(mode="after")
    def _something(self) -> LoadConfig:
        if not self.points and not self.ramp:
            raise ValueError("points: it is empty; give a load, such as {arrivals: poisson, rate: 0.5}, or set ramp")
        names = [p.name for p in self.points]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"points: {name!r} stands there twice; drop one")
        return self


class BudgetConfig(Strict):
    """What every router of a head-to-head is to spend: so many times what one arm spends, or a figure."""

    of: str = "target"
    """Label of the arm that the budget is a multiple of."""
    times: float = Field(default=0.7, gt=0)
    value: float | None = Field(default=None, gt=0)
    """The budget itself, in place of `of` and `times`: FLOPs an answer, seconds, or bytes."""

    @model_validator(mode="after")
    def _one_rule(self) -> BudgetConfig:
        if self.value is not None and self.model_fields_set & {"of", "times"}:
            raise ValueError(f"value: {self.value:g} stands beside of or times; give the figure, or the rule")
        return self


class LatencyBudgetConfig(BudgetConfig):
    """A percentile of the seconds that an answer takes at the concurrency of the latency pass."""

    percentile: Literal[50, 90, 95, 99] = 99
    questions: int = Field(default=300, ge=2)
    """Calibration questions on which it is measured."""


class MemoryBudgetConfig(BudgetConfig):
    """Memory of weights and caches. What an arm's weights leave of it decides how many answers it works on at once."""

    times: float = Field(default=1.0, gt=0)
    concurrency: int = Field(default=8, ge=1)
    """Answers at once of the arm `of`: what that takes is the memory that `times` multiplies."""
    most: int = Field(default=64, ge=1)
    """Answers at once at most, whatever room is left."""
    questions: int = Field(default=64, ge=2)
    """Test questions that each arm answers."""
    calibration: int = Field(default=12, ge=1)
    """Calibration questions on which the memory of one answer is measured."""
    fit: dict[str, str] = {}
    """By label, a whole-number knob that is lowered until the arm fits: its branches or candidates."""


class HeadToHeadConfig(Strict):
    """Comparisons at equal budgets. Operating points are found on the calibration split, and verified on the test."""

    flops: BudgetConfig | None = None
    """Equal FLOPs an answer."""
    latency: LatencyBudgetConfig | None = None
    """Equal latency, in the tail."""
    memory: MemoryBudgetConfig | None = None
    """Equal memory."""
    vary: dict[str, str] | None = None
    """By label, the knob that is moved to meet FLOPs and latency; if null, the main knob of every arm that has one."""
    tolerance: float = Field(default=0.05, gt=0)
    """How far off a budget, relative to it, still counts as met."""
    evaluations: int = Field(default=4, ge=1)
    """Values of a knob that are tried for a budget, beside both ends of its range."""

    @model_validator(mode="after")
    def _some(self) -> HeadToHeadConfig:
        if self.flops is None and self.latency is None and self.memory is None:
            raise ValueError("flops: it is missing, and so are latency and memory; give at least one budget")
        return self


class WandbConfig(Strict):
    """Tracking by Weights & Biases: one run a comparison."""

    project: str = "baton"
    entity: str | None = None
    mode: Literal["online", "offline"] | None = None
    """Online where there is a key, else offline, if null. `WANDB_MODE` comes before that."""
    name: str | None = None
    """Of the W&B run; the name of the comparison's folder if null."""
    tags: list[str] = []


class TensorboardConfig(Strict):
    """Tracking by TensorBoard."""

    folder: str | None = None
    """Of the event files; `tensorboard` in the comparison's folder if null."""


class TrackingConfig(Strict):
    """Where a comparison is tracked beside its own folder. A tracker that fails only warns."""

    wandb: WandbConfig | None = None
    tensorboard: TensorboardConfig | None = None


class RecipeConfig(Strict):
    """One comparison: questions x arms x samples."""

    name: str = Field(min_length=1)
    pair: PairConfig
    task: Annotated[TaskConfig, _keyed("name")] = TaskConfig()
    split: str = "test"
    calibration: CalibrationConfig = CalibrationConfig()
    routers: Annotated[list[Annotated[RouterConfig, _keyed("router")]], BeforeValidator(lambda value: _arms(value))] = (
        Field(min_length=1)
    )
    """An entry may stand for several arms: `at` with a list of values, or `sweep` with lists of knobs' values, whose
    combinations are tried."""
    only: list[str] | None = Field(default=None, min_length=1)
    """Labels of the routers to compare; all if null."""
    labels: str | None = None
    """Label set of the split under test (`baton label`), relative to the recipe's folder: results then tell `ece`."""
    samples: int = Field(default=1, ge=1)
    """Answers to each question, under each seed."""
    seeds: int = Field(default=1, ge=1)
    """Seeds of the quality pass: `seed` and the ones after it. With several, results tell how much they matter."""
    margin: float = Field(default=0.02, gt=0, lt=1)
    """Accuracy that a router may lose or gain and still count as equivalent to the target."""
    limit: int | None = Field(default=None, ge=1)
    """Questions of the quality pass; all if null."""
    seed: int = 0
    concurrency: int = Field(default=8, ge=1)
    """Answers in flight in the quality pass."""
    latency: LatencyConfig | None = LatencyConfig()
    """Null leaves the latency pass out."""
    load: LoadConfig | None = None
    """Null leaves the load pass out."""
    head_to_head: HeadToHeadConfig | None = None
    """Null compares the arms as they stand."""
    sampling: Sampling | None = None
    """In place of the pair's."""
    budget: Budget | None = None
    """In place of the pair's and the task's."""
    timeout_s: float | None = Field(default=None, gt=0)
    """Seconds after which an answer is cut off and counted as a timeout; no limit if null."""
    retries: int = Field(default=2, ge=0)
    """Further attempts for an answer that failed."""
    grader_timeout_s: float = Field(default=5.0, gt=0)
    tracking: TrackingConfig | None = None
    """Nothing is tracked if null."""

    @property
    def arms(self) -> list[RouterConfig]:
        """The routers to compare."""
        return [r for r in self.routers if self.only is None or r.name in self.only]

    @property
    def measured(self) -> list[RouterConfig]:
        """The routers whose target share another one takes."""
        wanted = {r.share_of for r in self.arms}
        return [r for r in self.routers if r.name in wanted]

    @model_validator(mode="after")
    def _consistent(self) -> RecipeConfig:
        names = [r.name for r in self.routers]
        for name in self.only or ():
            if name not in names:
                raise ValueError(f"only: {name!r} is unknown{_nearest(name, names)}; use some of {', '.join(names)}")
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"routers: {name!r} stands there twice; give each arm its own label")
        for n, arm in enumerate(self.routers):
            if arm.share_of is None:
                continue
            others = [r.name for r in self.routers if r.name != arm.name and r.share_of is None]
            if arm.share_of not in others:
                hint = _nearest(arm.share_of, others)
                raise ValueError(
                    f"routers[{n}].share_of: {arm.share_of!r} is no other arm{hint}; use another arm's label"
                )
            if "share" in arm.knobs:
                raise ValueError(f"routers[{n}]: knobs.share and share_of exclude each other; drop one")
        relative = self.load and any(p.of_capacity for p in self.load.points)
        if relative and not any(arm.router == "target" for arm in self.arms):
            raise ValueError("load.points: of_capacity is of the target's, and no arm has router target; add one")
        if self.head_to_head is not None:
            self._check_heads(self.head_to_head, [arm.name for arm in self.arms])
        calibrates = self.head_to_head or any(arm.share_of or arm.at for arm in self.arms)
        if calibrates and self.split == self.calibration.split and self.calibration.task in (None, self.task):
            raise ValueError(f"calibration.split: {self.split!r} is the split under test; name another one")
        for task in (self.task, self.calibration.task):
            if task is not None:
                task.check_scorers(self.pair.scorers)
        return self

    def _check_heads(self, heads: HeadToHeadConfig, names: Sequence[str]) -> None:
        for field in ("flops", "latency", "memory"):
            budget: BudgetConfig | None = getattr(heads, field)
            if budget is not None and budget.value is None and budget.of not in names:
                raise ValueError(f"head_to_head.{field}.of: {budget.of!r} is no arm{_nearest(budget.of, names)}")
        for field, wanted in (("vary", heads.vary or {}), ("memory.fit", heads.memory.fit if heads.memory else {})):
            for name in wanted:
                if name not in names:
                    raise ValueError(f"head_to_head.{field}: {name!r} is no arm{_nearest(name, names)}; use its label")
        if heads.latency is not None and self.latency is None:
            raise ValueError("head_to_head.latency: the recipe has no latency pass; set latency")


class LabelConfig(Strict):
    """Labels of steps: which states are visited, and how it is found what a step does to the outcome."""

    name: str = Field(min_length=1)
    pair: PairConfig
    task: Annotated[TaskConfig, _keyed("name")] = TaskConfig()
    split: str = "train"
    limit: int | None = Field(default=None, ge=1)
    """Questions; all if null."""
    router: Annotated[PolicyConfig, _keyed("router")] = PolicyConfig(
        router="random", knobs={"share": 0.5, "unit": "step"}
    )
    """The policy whose states are labelled."""
    samples: int = Field(default=1, ge=1)
    """Answers of that policy to each question."""
    states: int | None = Field(default=None, ge=1)
    """States labelled of one answer at most, at even distances; all if null."""
    n: int = Field(default=8, ge=1)
    """Continuations of each of the two steps at most."""
    look: int = Field(default=4, ge=0)
    """After this many continuations of a step that all came out the same no more are run; 0 always runs `n`."""
    continued_by: Literal["target", "router"] = "target"
    """Who writes the continuations: the target alone, or the policy that visits."""
    step_tokens: int = Field(default=512, ge=1)
    """Most tokens of a labelled step."""
    seed: int = 0
    concurrency: int = Field(default=32, ge=1)
    """States in flight; each has up to two times `n` continuations."""
    sampling: Sampling | None = None
    """In place of the pair's."""
    budget: Budget | None = None
    """In place of the pair's."""
    max_batch: int | None = Field(default=None, ge=1)
    """Requests in one step of an engine, in place of the pair's."""
    cache_mb: int | None = Field(default=None, ge=1)
    """Bound on each engine's caches in MiB, in place of the pair's."""
    grader_timeout_s: float = Field(default=5.0, gt=0)

    @model_validator(mode="after")
    def _consistent(self) -> LabelConfig:
        if self.look == 1:
            raise ValueError("look: 1 would end every step's rollouts after the first; use 2 or more, or 0 for none")
        sampling = self.sampling or self.pair.sampling
        if self.n > 1 and sampling.temperature == 0:
            raise ValueError(
                "sampling.temperature: 0 makes all continuations of a step alike; use a temperature above 0, or n: 1"
            )
        return self


class DivergenceConfig(Strict):
    """Where the draft leaves the target's answers and whether that matters: what a token router is trained on."""

    name: str = Field(min_length=1)
    pair: PairConfig
    task: Annotated[TaskConfig, _keyed("name")] = TaskConfig()
    split: str = "train"
    limit: int | None = Field(default=None, ge=1)
    """Questions; all if null."""
    judge: str = "judge"
    """A scorer of the pair that compares two texts, or `exact`."""
    unit: Literal["sentence", "step"] = "sentence"
    """What the target writes to its end after the draft's token, and the judge compares."""
    unit_tokens: int = Field(default=128, ge=1)
    seed: int = 0
    concurrency: int = Field(default=32, ge=1)
    """Answers in flight."""
    sampling: Sampling = Sampling(temperature=0.0)
    """Of the target's answers; greedy as published."""
    budget: Budget | None = None
    """In place of the pair's."""


@dataclass(frozen=True, slots=True)
class DivergenceRecipe:
    """As `LabelRecipe`."""

    config: DivergenceConfig
    base: Path
    pair_base: Path


@dataclass(frozen=True, slots=True)
class LabelRecipe:
    """A recipe of labels and the folders that its relative paths start from."""

    config: LabelConfig
    path: Path
    base: Path
    """Folder of the recipe."""
    pair_base: Path
    """Folder of the pair's YAML."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """A recipe and the folders that its relative paths start from."""

    config: RecipeConfig
    path: Path
    base: Path
    """Folder of the recipe: question files and knobs."""
    pair_base: Path
    """Folder of the pair's YAML: model folders."""


def load_pair(path: str | Path) -> PairConfig:
    """Reads a pair's YAML; `nano` is the pair that is shipped with the package.

    Raises:
        ConfigError: the file is missing, is no YAML, or a field is wrong.
    """
    if str(path) == "nano":
        return NANO_PAIR
    return validate(PairConfig, read_yaml(Path(path)), str(path))


def pair_options(
    config: PairConfig, seed: int = 0, task: TaskConfig | None = None, *,
    sampling: Sampling | None = None, budget: Budget | None = None,
) -> Options:  # fmt: skip
    """How the pair's answers to a task's questions are generated.

    The budget is the pair's or the benchmark's, the smaller one where both have one. `sampling` and `budget` go before
    theirs.
    """
    benchmark = BENCHMARKS.get(task.name) if task else None
    asked_by = [t for t in (task, benchmark) if t is not None]
    budgets = [b for b in (config.budget, benchmark and benchmark.budget) if b]
    return Options(
        sampling=sampling or config.sampling,
        budget=budget or min(budgets, key=lambda b: b.tokens, default=Budget()),
        seed=seed,
        system=next((t.system for t in asked_by if t.system is not None), config.system),
        suffix=next((t.suffix for t in asked_by if t.suffix is not None), ""),
        thinking=config.thinking,
    )


def recipe_options(config: RecipeConfig) -> Options:
    """How a recipe's answers are generated."""
    options = pair_options(config.pair, config.seed, config.task, sampling=config.sampling, budget=config.budget)
    return replace(options, timeout=config.timeout_s)


def located(model: str, base: Path, field: str = "model") -> str:
    """Where the model is that a configuration names in `field`: shipped (`nano:target`), in a folder (or file of costs)
    relative to `base`, or else on the hub.

    Raises:
        LoadError: `nano:` is followed by no shipped model.
    """
    if model.startswith("nano:"):
        shipped = nano.models()
        if (name := model.removeprefix("nano:")) not in shipped:
            raise LoadError(f"{model!r} is not shipped; use one of {', '.join(f'nano:{n}' for n in shipped)}", field)
        return str(shipped[name])
    path = base / Path(model).expanduser()
    file = base / Path(model.partition("#")[0]).expanduser()
    return str(path) if path.is_dir() or file.is_file() else model


def cue_profile(config: PairConfig, base: Path) -> Path | None:
    """Path of the pair's cue profile, if it has one. `base` is the folder of the pair's YAML."""
    if config.cues is None:
        return None
    return nano.cue_profile() if config.cues == "nano:cues" else base / Path(config.cues).expanduser()


def load_recipe(path: str | Path, overrides: Mapping[str, Any] | None = None) -> Recipe:
    """Reads a recipe's YAML with its pair, which may be a path, `nano`, or written out in place.

    `overrides` replaces fields by dotted name (`{"latency.limit": 10}`).

    Raises:
        ConfigError: a file is missing, is no YAML, or a field is wrong.
    """
    data, base, pair_base = _resolved(Path(path), overrides)
    return Recipe(validate(RecipeConfig, data, str(path)), Path(path), base, pair_base)


def load_label_recipe(path: str | Path, overrides: Mapping[str, Any] | None = None) -> LabelRecipe:
    """Reads the YAML of a labelling, as `load_recipe` does that of a comparison.

    Raises:
        ConfigError: a file is missing, is no YAML, or a field is wrong.
    """
    data, base, pair_base = _resolved(Path(path), overrides)
    return LabelRecipe(validate(LabelConfig, data, str(path)), Path(path), base, pair_base)


def load_divergence_recipe(path: str | Path) -> DivergenceRecipe:
    """Reads the YAML of a labelling of divergences, as `load_recipe` does that of a comparison.

    Raises:
        ConfigError: a file is missing, is no YAML, or a field is wrong.
    """
    data, base, pair_base = _resolved(Path(path), None)
    return DivergenceRecipe(validate(DivergenceConfig, data, str(path)), base, pair_base)


def _resolved(path: Path, overrides: Mapping[str, Any] | None) -> tuple[dict[str, Any], Path, Path]:
    """A recipe's fields with its pair read in, its folder and the pair's."""
    data = read_yaml(path)
    for name, value in (overrides or {}).items():
        _replace(data, name, value, path)
    base = pair_base = path.resolve().parent
    if isinstance(data.get("pair"), str):
        named = data["pair"]
        where = "nano" if named == "nano" else base / named
        data["pair"] = load_pair(where)
        pair_base = base if named == "nano" else Path(where).resolve().parent
    return data, base, pair_base


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file.

    Raises:
        ConfigError: the file is missing, is no YAML, or holds something else than a mapping.
    """
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: there is no such file; check the path") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read ({error}); give a YAML file") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f"line {mark.line + 1}: " if mark else ""
        problem = getattr(error, "problem", None) or "unreadable"
        raise ConfigError(f"{path}: {line}not valid YAML ({problem}); check indentation, colons and quotes") from None
    if not isinstance(data, dict):
        found = "empty" if data is None else f"a {type(data).__name__}"
        raise ConfigError(f"{path}: the file is {found}; it must hold fields, one `name: value` a line")
    return data


def validate(model: type[M], data: Mapping[str, Any], source: str) -> M:
    """Builds `model` from plain data.

    Raises:
        ConfigError: a field is wrong; each line begins with `source`.
    """
    try:
        return model.model_validate(data)
    except ValidationError as error:
        lines = dict.fromkeys(_line(model, dict(e)) for e in error.errors())
        raise ConfigError("\n".join(f"{source}: {line}" for line in lines)) from None


def _line(model: type[BaseModel], error: dict[str, Any]) -> str:
    """One mistake as `field: what is wrong; what to do`."""
    loc, kind, value = error["loc"], error["type"], error["input"]
    where = _dotted(loc)
    if kind in {"extra_forbidden", "unexpected_keyword_argument"}:
        known = _fields_at(model, loc[:-1])
        return f"{where}: unknown field{_nearest(str(loc[-1]), known)}; use one of {', '.join(known)}"
    if kind == "missing":
        return f"{where}: missing; add it"
    if kind == "literal_error":
        allowed = error["ctx"]["expected"].replace("'", "").replace(" or ", ", ")
        return f"{where}: {value!r} is unknown; use one of {allowed}"
    if kind == "value_error":
        reason = str(error["ctx"]["error"])
        parent, _, last = where.rpartition(".")
        # A dataclass names itself in its own message ("sampling.top_p: ...").
        if last and reason.startswith(f"{last}."):
            where = parent
        return f"{where}.{reason}" if where else reason
    if kind in {"model_type", "dataclass_type", "dict_type"}:
        return f"{where}: {value!r} cannot be used; give a group of fields, one `name: value` a line"
    reason = error["msg"][0].lower() + error["msg"][1:]
    shown = repr(value) if len(repr(value)) <= 60 else f"{repr(value)[:57]}..."
    return f"{where}: {shown} cannot be used; {reason}"


def _dotted(loc: Sequence[int | str]) -> str:
    out = ""
    for part in loc:
        out += f"[{part}]" if isinstance(part, int) else f".{part}" if out else str(part)
    return out


def _fields_at(model: type[BaseModel], loc: Sequence[int | str]) -> list[str]:
    """Names of the fields of the model (or dataclass) that stands at `loc`."""
    here: Any = model
    for part in loc:
        if isinstance(part, str):
            here = _inner(here.model_fields[part].annotation)
    return [f.name for f in fields(here)] if is_dataclass(here) else list(here.model_fields)


def _inner(annotation: Any) -> Any:
    """The model in `X`, `X | None`, `list[X]` or `Annotated[X, ...]`."""
    if isinstance(annotation, type) and (issubclass(annotation, BaseModel) or is_dataclass(annotation)):
        return annotation
    return next((found for arg in get_args(annotation) if (found := _inner(arg)) is not None), None)


def _nearest(name: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(name, known, 1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def _replace(data: dict[str, Any], name: str, value: Any, path: Path) -> None:
    *parents, last = name.split(".")
    here = data
    for part in parents:
        inner = here.setdefault(part, {})
        if not isinstance(inner, dict):
            raise ConfigError(
                f"{path}: {name}: {part!r} is no group of fields here, so it cannot be set; edit the file"
            )
        here = inner
    here[last] = value
