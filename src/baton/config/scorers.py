"""What scores steps, by kind."""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, Field, model_validator

from baton.config.model import ModelConfig
from baton.config.validation import Strict, keyed, nearest, one_of
from baton.engines.settings import VllmSettings


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


JUDGE_TEMPLATES = ("nano", "specreason", "lookahead", "preference")


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


def _template(value: Any) -> Any:
    return one_of(JudgeTemplateConfig, value) if isinstance(value, dict) else value


class JudgeConfig(Strict):
    """A language model that is asked about steps."""

    kind: Literal["judge"]
    role: Literal["target", "draft"] | None = None
    """Whose model judges; or `model`, one of its own."""
    model: Annotated[ModelConfig, keyed("model")] | None = None
    template: Annotated[str | JudgeTemplateConfig, BeforeValidator(_template)] = "specreason"
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
            hint = nearest(self.template, JUDGE_TEMPLATES)
            raise ValueError(f"template: {self.template!r} is unknown{hint}; use one of {known}, or write prompts")
        return self


class EmbeddingConfig(WeightsConfig):
    """An encoder whose embeddings of two steps are compared."""

    kind: Literal["embedding"]
    library: Literal["transformers", "sentence-transformers", "vllm"] = "transformers"
    """`transformers`: the mean (or first) state; `vllm` too, in its pooling runner; `sentence-transformers` runs
    whatever modules the checkpoint has."""
    shift: float = Field(default=0.5, ge=-1, le=1)
    """As a unit of what is written: one ends after a sentence whose similarity to the one before is below this."""

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


class HeadConfig(Strict):
    """A head that was trained for a pair."""

    model: str = Field(min_length=1)
    """The folder that its training wrote; it says which model's states or tokens the head reads."""


class ResidentConfig(HeadConfig):
    """A head on hidden states that a model of the pair computes anyway: train_prm.py with `kind: resident`."""

    kind: Literal["resident"]


class TokenConfig(HeadConfig):
    """A head that reads tokens as they are written, a boundary: train_token_router.py or train_segmenter.py."""

    kind: Literal["token"]


class PolicyHeadConfig(HeadConfig):
    """A trained policy over the steps of an answer, for the router `policy`: train_policy.py."""

    kind: Literal["policy"]


class EquivalenceConfig(HeadConfig):
    """A head that compares two versions of a step, in place of a judge: train_verifier.py."""

    kind: Literal["equivalence"]


class CallableConfig(Strict):
    """A function of your own."""

    kind: Literal["callable"]
    function: str = Field(pattern=r"^[\w.]+:\w+$")
    """`package.module:name`; takes a `ScoreRequest`, gives a number."""
    arguments: dict[str, Any] = Field(default_factory=dict)
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
    get_args(each.model_fields["kind"].annotation)[0]: each for each in get_args(ScorerConfig)
}
"""Fields of a scorer, by its kind."""


def _scorer(value: Any) -> Any:
    """A scorer's fields by its kind, so that a mistake is told about that kind and no other."""
    if isinstance(value, Strict):
        return value
    kind = value.get("kind") if isinstance(value, dict) else None
    if kind not in SCORERS:
        hint = nearest(str(kind), list(SCORERS))
        raise ValueError(f"kind: {kind!r} is unknown{hint}; use one of {', '.join(SCORERS)}")
    return one_of(SCORERS[kind], value)


AnyScorer = Annotated[ScorerConfig, BeforeValidator(_scorer)]
"""A scorer of any kind."""
