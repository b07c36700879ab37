"""A pair: `pair.yaml`, and the one that is shipped."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field

from baton import nano
from baton.config.files import read_yaml
from baton.config.model import ModelConfig
from baton.config.scorers import (
    AnyScorer,
    ConfidenceConfig,
    EquivalenceConfig,
    JudgeConfig,
    PolicyHeadConfig,
    PrmConfig,
    ResidentConfig,
    TokenConfig,
)
from baton.config.validation import Name, Strict, keyed, validate
from baton.engines.base import Sampling
from baton.generation import Budget


class PairConfig(Strict):
    """A target, a draft, and how they are sampled unless a recipe says otherwise."""

    name: Name
    target: Annotated[ModelConfig, keyed("model")]
    draft: Annotated[ModelConfig, keyed("model")]
    sampling: Sampling = Sampling()
    budget: Budget | None = None
    """Kept tokens that the models are good for; null leaves that to the task."""
    system: str | None = None
    """System prompt; none if null."""
    thinking: bool = True
    """Whether the chat template is asked for a thinking phase."""
    cues: str | None = None
    """Cue profile of the pair, for routers that need one: a path relative to the YAML's folder, or `nano:cues`."""
    scorers: dict[Name, AnyScorer] = Field(default_factory=dict)
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


def load_pair(path: str | Path) -> PairConfig:
    """Reads a pair's YAML; `nano` is the pair that is shipped with the package.

    Raises:
        ConfigError: the file is missing, is no YAML, or a field is wrong.
    """
    if str(path) == "nano":
        return NANO_PAIR
    return validate(PairConfig, read_yaml(Path(path), "pair"), str(path))


def pair_folder(path: str | Path) -> Path:
    """The folder that the relative paths of a pair's YAML start from; of `nano` the working folder."""
    return Path.cwd() if str(path) == "nano" else Path(path).resolve().parent


def cue_profile(config: PairConfig, base: Path) -> Path | None:
    """Path of the pair's cue profile, if it has one. `base` is the folder of the pair's YAML."""
    if config.cues is None:
        return None
    return nano.cue_profile() if config.cues == "nano:cues" else base / Path(config.cues).expanduser()
