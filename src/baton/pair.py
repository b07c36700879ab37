"""A target and a draft, loaded and ready, with the scorers that routers ask for by name."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from baton.config import ModelConfig, PairConfig, located
from baton.engines import engine_class
from baton.engines.base import Engine, LoadError, Speculation
from baton.fingerprint import of_weights
from baton.flops import Architecture
from baton.scorers import scorer_class
from baton.scorers.base import Scorer
from baton.trace import Role, speculating

logger = logging.getLogger(__name__)
SILENCE_S = 10.0
"""How long a model may load before it is said what is waited for."""

Speculating = Mapping[Role, Speculation | None]
"""What token-level speculation each role's model does."""


@dataclass(slots=True)
class Pair:
    """The engines of both roles and the scorers by name."""

    name: str
    engines: dict[Role, Engine]
    scorers: dict[str, Scorer] = field(default_factory=dict)

    @classmethod
    def load(cls, config: PairConfig, base: Path, roles: Collection[Role] = (Role.TARGET, Role.DRAFT)) -> Pair:
        """Loads both models, or only those of `roles`, and the scorers. Relative model folders start from `base`.

        Raises:
            ValueError: a model cannot be loaded; one line that names the field, the value and the remedy.
        """
        loaded = {}
        for role, model in ((Role.TARGET, config.target), (Role.DRAFT, config.draft)):
            if role not in roles:
                continue
            try:
                with _said_if_slow(f"the {role}, {model.model}"):
                    loaded[role] = load_engine(model, base)
            except ValueError as error:
                where = error.field if isinstance(error, LoadError) else "model"
                raise ValueError(f"pair.{role}.{where}: {error}") from None
        scorers = {}
        for name, scorer in config.scorers.items():
            try:
                with _said_if_slow(f"the scorer {name}"):
                    scorers[name] = scorer_class(scorer.kind).load(name, scorer, loaded, base)
            except ValueError as error:
                raise ValueError(f"pair.scorers.{name}: {error}") from None
        return cls(config.name, loaded, scorers)

    @property
    def one_vocabulary(self) -> bool:
        """Whether target and draft map the same tokens to the same ids."""
        return self.engines[Role.TARGET].vocabulary.shares_ids(self.engines[Role.DRAFT].vocabulary)

    @property
    def architectures(self) -> dict[str, Architecture]:
        """What a forward costs of each role's model, of the models that propose tokens to them (`trace.speculating`)
        and of each scorer's, where that is known."""
        known: dict[str, Architecture | None] = {}
        for role, engine in self.engines.items():
            known |= {role.value: engine.architecture, speculating(role): engine.drafting}
        for name, scorer in self.scorers.items():
            known[name] = scorer.architecture(self.engines)
        return {name: found for name, found in known.items() if found is not None}

    def held_bytes(self) -> dict[str, float]:
        """Memory of each role's model, weights and largest cache since `forget`, and of each scorer's own; without
        those of engines that cannot tell."""
        held = {}
        for role, engine in self.engines.items():
            measured = engine.metrics()
            if {"weight_bytes", "cache_bytes_peak"} <= measured.keys():
                held[role.value] = measured["weight_bytes"] + measured["cache_bytes_peak"]
        own = {name: scorer.held_bytes() for name, scorer in self.scorers.items()}
        return held | {name: size for name, size in own.items() if size}

    def forget(self) -> None:
        """Asks both engines to drop what finished answers left in their caches, so that the next one starts cold."""
        for engine in self.engines.values():
            engine.forget()

    async def __aenter__(self) -> Pair:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Frees what the engines and scorers hold; `async with` does it at its end."""
        await asyncio.gather(*(scorer.close() for scorer in self.scorers.values()))
        await asyncio.gather(*(engine.close() for engine in self.engines.values()))


class Pairs:
    """A pair under every token-level speculation that a comparison asks for; its models are loaded once."""

    def __init__(self, config: PairConfig, base: Path):
        """Loads the pair as its configuration says.

        Raises:
            ValueError: as `Pair.load`.
        """
        self._config, self._base = config, base
        self.plain = Pair.load(config, base)
        models = {Role.TARGET: config.target, Role.DRAFT: config.draft}
        self._engines = {(r, models[r].speculative): engine for r, engine in self.plain.engines.items()}
        self._pairs = {_key({r: m.speculative for r, m in models.items()}): self.plain}

    def speculating(self, asked: Speculating) -> Pair:
        """The pair whose models speculate as asked.

        Raises:
            ValueError: an engine does not do that speculation, or cannot change what it does.
        """
        if (known := self._pairs.get(_key(asked))) is not None:
            return known
        engines = {role: self._engine(role, speculative) for role, speculative in asked.items()}
        # A scorer that reads a model of the pair reads the arm's own, whose cache has the answer.
        scorers = {
            name: scorer_class(scorer.kind).load(name, scorer, engines, self._base)
            if getattr(scorer, "role", None)
            else self.plain.scorers[name]
            for name, scorer in self._config.scorers.items()
        }
        made = self._pairs[_key(asked)] = Pair(self.plain.name, engines, scorers)
        return made

    def _engine(self, role: Role, speculative: Speculation | None) -> Engine:
        if (role, speculative) not in self._engines:
            try:
                made = self.plain.engines[role].speculating(located_speculation(speculative, self._base))
            except LoadError as error:
                raise ValueError(f"speculative.{role}.{error.field.removeprefix('speculative.')}: {error}") from None
            self._engines[role, speculative] = made
        return self._engines[role, speculative]

    async def close(self) -> None:
        for pair in self._pairs.values():
            await pair.close()


def _key(asked: Speculating) -> tuple[Speculation | None, ...]:
    return asked[Role.TARGET], asked[Role.DRAFT]


@contextmanager
def _said_if_slow(what: str) -> Iterator[None]:
    timer = threading.Timer(SILENCE_S, logger.warning, ("loading %s ...", what))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def load_engine(model: ModelConfig, base: Path) -> Engine:
    """The engine of one model. `nano:target` and `nano:draft` are shipped; a folder wins over a hub id.

    Raises:
        ValueError: the model, or what its speculation needs, cannot be loaded.
    """
    own = {"own": model.own} if model.own is not None else {}
    try:
        engine = engine_class(model.engine)
    except ImportError as error:
        raise LoadError(
            f"{model.engine!r} needs a library that is not installed ({error}); pip install 'batonlm[{model.engine}]'",
            "engine",
        ) from error
    path = located(model.model, base)
    loaded = engine.load(
        path,
        device=model.device,
        dtype=model.dtype,
        cache_bytes=model.cache_mb << 20,
        max_batch=model.max_batch,
        threads=model.threads,
        trust_remote_code=model.trust_remote_code,
        revision=model.revision,
        speculative=located_speculation(model.speculative, base),
        **own,
    )
    if model.server is None:
        loaded.weights = of_weights(path)
    return loaded


def located_speculation(asked: Speculation | None, base: Path) -> Speculation | None:
    """A speculation whose model, if it names one, is the folder or hub id meant.

    Raises:
        LoadError: `nano:` is followed by no shipped model.
    """
    if asked is None or asked.model is None:
        return asked
    return replace(asked, model=located(asked.model, base, "speculative.model"))
