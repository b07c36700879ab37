"""The engine protocol: what runs one model, and how a third party adds another.

An engine gives *sessions*. A session is a cache of one growing prefix, never the truth: every call names the
whole prefix it assumes (`Prefix`: length, digest, and the ids to rebuild it from), so an engine that lost,
evicted or never had the cache recomputes it and the caller notices only in `Usage.cached`.

To add an engine, choose the level that fits:

* The backend takes full prefixes (an HTTP server, a library with its own prefix cache): subclass `PrefixEngine`
  and write `stream` (and `logprob` if it can). Sessions, confirm-or-resume at stop ids, and forks are inherited.
* The backend can keep state between calls and look at each token as it is sampled: subclass `Engine` and `Session`.

Either way `SegmentMatcher.push` is called for every sampled token, in order, and generation stops when it returns
True. Errors are raised as `EngineError` (or a subclass), never swallowed.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal, Protocol

from baton.boundary import Feature, SegmentMatcher
from baton.flops import Architecture
from baton.vocabulary import Vocabulary


class EngineError(Exception):
    """An engine could not do a call. `retryable` says whether the same call may succeed later."""

    retryable = False


class EngineLostError(EngineError):
    """The engine (server, process, device) went away in the middle of a call."""

    retryable = True


class RequestError(EngineError):
    """The engine lives, but this call is not for it: its text does not fit, or the server refuses the request."""


class UnsupportedError(RequestError):
    """The engine cannot give what was asked; the message names the feature and an engine that can."""


class LoadError(ValueError):
    """A model cannot be loaded; one line names the folder or setting, what is wrong and the remedy.

    `field` is the field of the model's configuration that is at fault.
    """

    def __init__(self, message: str, field: str = "model"):
        super().__init__(message)
        self.field = field


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are drawn. Temperature 0 is greedy; `top_k` 0, `top_p` 1 and `min_p` 0 switch each filter off."""

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0

    def __post_init__(self) -> None:
        checks = (
            ("temperature", self.temperature >= 0, "use 0 (greedy) or a positive number"),
            ("top_p", 0 < self.top_p <= 1, "use a number in (0, 1]"),
            ("top_k", self.top_k >= 0, "use 0 (off) or a positive count"),
            ("min_p", 0 <= self.min_p <= 1, "use a number in [0, 1]"),
        )
        for name, good, remedy in checks:
            if not good:
                raise ValueError(f"sampling.{name}: {getattr(self, name)!r} is out of range; {remedy}")


@dataclass(frozen=True, slots=True)
class Speculation:
    """Token-level speculation: who proposes the tokens that one forward of the model then verifies.

    It never changes what is written: each token is the one that the model itself draws there.
    """

    method: Literal["ngram", "draft_model", "eagle3", "mtp"]
    """`ngram` looks the last tokens up in the text so far, `draft_model` asks a small model of the same vocabulary,
    `eagle3` a head trained for this model, `mtp` the model's own heads."""
    tokens: int = 4
    """Most tokens proposed for one forward."""
    ngram_min: int = 2
    """Fewest last tokens that must have stood there before."""
    ngram_max: int = 4
    """Last tokens that are looked up first; fewer follow if they are not found."""
    model: str | None = None
    """What proposes: a folder or hub id, as for the model itself."""

    def __post_init__(self) -> None:
        if self.tokens < 1:
            raise ValueError(f"speculative.tokens: {self.tokens} is too few; use 1 or more")
        if self.ngram_min < 1:
            raise ValueError(f"speculative.ngram_min: {self.ngram_min} is too few; use 1 or more")
        if self.ngram_max < self.ngram_min:
            raise ValueError(
                f"speculative.ngram_max: {self.ngram_max} is below speculative.ngram_min ({self.ngram_min}); raise it"
            )
        needed = self.method in ("draft_model", "eagle3")
        if needed and self.model is None:
            raise ValueError(f"speculative.model: it is missing; {self.method} needs the model that proposes")
        if not needed and self.model is not None:
            raise ValueError(f"speculative.model: {self.model!r} is not used by {self.method}; drop it")


@dataclass(frozen=True, slots=True)
class Read:
    """Features asked of a segment, by token or at its end.

    `features` are numbers of each token's predictive distribution before any sampling filter, at temperature 1
    (entropy in nats). `top` asks for that many (id, log-probability) pairs a token, likeliest first, and the sampled
    token's own behind them if it is not among them. `hidden` asks for the last
    hidden state that predicts each token (`"tokens"`: `[tokens, width]`) or the state of the last kept token
    (`"end"`: `[width]`).
    """

    features: frozenset[Feature] = frozenset()
    top: int = 0
    hidden: Literal["", "end", "tokens"] = ""

    def __or__(self, other: Read) -> Read:
        order = ("", "end", "tokens")
        hidden = max(self.hidden, other.hidden, key=order.index)
        return Read(self.features | other.features, max(self.top, other.top), hidden)


NOTHING = Read()


def uniform(seed: int, position: int) -> float:
    """The random number in [0, 1) of the token at `position` (tokens from the start of the prompt) under `seed`.

    Counter-based, so a token's draw depends on nothing that happened before it: a segment cut into two calls, or
    run in another batch, samples the same tokens.
    """
    digest = hashlib.blake2b(f"{seed}:{position}".encode(), digest_size=7).digest()
    return (int.from_bytes(digest, "big") >> 3) / (1 << 53)


_MODULUS, _BASE = (1 << 61) - 1, 0x9E3779B97F4A7C15 % ((1 << 61) - 1)


def roll(digest: int, ids: Sequence[int]) -> int:
    """Polynomial hash of a prefix extended by `ids`; depends on the ids only, not on how they were cut."""
    for i in ids:
        digest = (digest * _BASE + i + 1) % _MODULUS
    return digest


class Prefix:
    """Token ids from the first token of the prompt on, as a chain: extending one does not copy what went before."""

    __slots__ = ("digest", "length", "parent", "tail")

    def __init__(self, tail: Sequence[int] = (), parent: Prefix | None = None):
        self.parent, self.tail = parent, tuple(tail)
        self.length: int = len(self.tail) + (parent.length if parent else 0)
        self.digest: int = roll(parent.digest if parent else 0, self.tail)

    def __len__(self) -> int:
        return self.length

    def extend(self, ids: Sequence[int]) -> Prefix:
        return Prefix(ids, self) if ids else self

    def ids(self, start: int = 0) -> list[int]:
        """Ids from position `start` on."""
        parts: list[tuple[int, ...]] = []
        link: Prefix | None = self
        while link is not None and link.length > start:
            parts.append(link.tail[max(0, start - (link.length - len(link.tail))) :])
            link = link.parent
        return [i for part in reversed(parts) for i in part]


@dataclass(slots=True)
class Call:
    """One request: continue `prefix` until `matcher` is decided or `cap` tokens are sampled."""

    prefix: Prefix
    matcher: SegmentMatcher
    cap: int
    sampling: Sampling = field(default_factory=Sampling)
    seed: int = 0
    read: Read = NOTHING
    usage: Usage = field(default_factory=lambda: Usage())
    """What it has cost by now. The engine keeps it, so that the cost of a call that is cancelled is known."""


@dataclass(slots=True)
class Usage:
    """What a call cost: prefix tokens, how many of them were found in a cache, and the tokens computed beside them."""

    prompt: int = 0
    cached: int = 0
    sampled: int = 0
    proposed: int = 0
    """Tokens that speculation had the model verify."""
    accepted: int = 0
    """Sampled tokens that speculation saved a forward: it took `sampled - accepted` forwards."""
    drafted: int = 0
    """Tokens that a speculating model computed to propose: catching up with the prefix included."""


@dataclass(slots=True)
class Chunk:
    """Some sampled tokens. Lists other than `ids` are empty unless asked for by `Read`.

    `first` and `last` are clock readings (seconds, the event loop's clock) of the first and last token in the chunk,
    taken where they were sampled. `usage` is set on the last chunk of a call.
    """

    ids: list[int]
    first: float
    last: float
    features: list[dict[Feature, float]] = field(default_factory=list)
    top: list[list[tuple[int, float]]] = field(default_factory=list)
    hidden: list[Any] = field(default_factory=list)
    usage: Usage | None = None


@dataclass(frozen=True, slots=True)
class TokenScore:
    """How a model sees a given token: all of the predictive distribution before any filter, at the temperature asked.

    `logprob` of the token and `argmax_logprob` of the token the model prefers are in nats, `entropy` of the
    distribution too; `margin` is the probability of the first minus that of the second choice.
    """

    logprob: float
    argmax: int
    argmax_logprob: float
    margin: float
    entropy: float


class Session(ABC):
    """A cache of one growing prefix. One call at a time; concurrent branches `fork`."""

    @abstractmethod
    def generate(self, call: Call) -> AsyncGenerator[Chunk, None]:
        """Samples after `call.prefix`, pushing every token into `call.matcher`, until it is decided or at the cap.

        Closing the iterator, or cancelling the task that reads it, frees the engine within one step.

        Raises:
            EngineError: the call could not be done.
        """

    @abstractmethod
    async def logprob(
        self, prefix: Prefix, ids: Sequence[int], temperature: float = 1.0
    ) -> tuple[list[TokenScore], Usage]:
        """Scores `ids` as a continuation of `prefix`: one `TokenScore` an id, and what that cost.

        Raises:
            UnsupportedError: the engine cannot score given tokens.
        """

    async def grounding(self, prefix: Prefix, ids: Sequence[int]) -> tuple[list[float], Usage]:
        """For each of `ids` after `prefix`, the share of its attention (rolled out over the last layers) on `prefix`.

        Raises:
            UnsupportedError: the engine gives no attention maps.
        """
        raise UnsupportedError(f"engine: {type(self).__name__} gives no attention maps; use an engine that does")

    async def extend(self, prefix: Prefix) -> None:  # noqa: B027
        """Optional hint: compute the cache for `prefix` now."""

    def rewind(self, length: int) -> None:  # noqa: B027
        """Optional hint: cached tokens from position `length` on will not be used again."""

    @abstractmethod
    def fork(self) -> Session:
        """A second session that starts from what this one has cached."""

    @abstractmethod
    def close(self) -> None:
        """Frees the cache. Idempotent."""


class Engine(ABC):
    """What runs one model. `kind` is the engine's name in configurations and results."""

    kind: str
    vocabulary: Vocabulary
    speculation: Speculation | None = None
    """The token-level speculation that it does."""
    architecture: Architecture | None = None
    """What a forward of its model costs; None where the engine does not know the model's configuration."""
    drafting: Architecture | None = None
    """The same of the model that proposes tokens, if one does."""
    context: int | None = None
    """Most tokens of a sequence; None where the engine does not know."""
    weights: str | None = None
    """Digest of its model's (`fingerprint.of_weights`); None where they do not lie in a folder here."""

    @classmethod
    def load(
        cls,
        path: str,
        *,
        device: str,
        dtype: str,
        cache_bytes: int,
        max_batch: int,
        threads: int | None,
        trust_remote_code: bool,
        revision: str | None,
        speculative: Speculation | None,
        own: Any = None,
    ) -> Engine:
        """Loads the model at `path` (folder or hub id) as a pair's configuration asks.

        `own` is the configuration's group for this kind of engine (`vllm`, `server`). An engine that cannot do the
        `speculative` asked for refuses it by name (`field` "speculative.method").

        Raises:
            LoadError: one line that names what is missing or unsupported.
        """
        raise LoadError(f"engine: {cls.kind!r} cannot be loaded from a configuration; make it in Python")

    def speculating(self, speculative: Speculation | None) -> Engine:
        """The same model under other token-level speculation (none if None), with a cache of its own.

        Weights are shared where the engine can. Each of the two is closed by itself.

        Raises:
            LoadError: the speculation is not supported, or the engine fixes it when it is loaded.
        """
        raise LoadError(
            f"engine {self.kind!r} fixes its speculation when it is loaded; set it in the pair, for a run of its own",
            "speculative",
        )

    def speculate(self, on: bool) -> bool:
        """Optional: switches token-level speculation for the forwards to come, in the middle of answers, too.

        Whether it did: an engine without speculation, or whose speculation is fixed, returns False.
        """
        return False

    @abstractmethod
    def open(self, prompt: Sequence[int]) -> Session:
        """A session whose prefixes all begin with `prompt` (token ids)."""

    @abstractmethod
    def render(self, messages: Sequence[dict[str, str]], *, thinking: bool = True) -> list[int]:
        """Prompt ids of a conversation by the model's own chat template, ready for the assistant's first token."""

    def embeddings(self) -> Any:
        """The model's input embeddings, a tensor `[rows, width]`.

        Raises:
            LoadError: the engine does not give them.
        """
        raise LoadError(f"engine {self.kind!r} does not give its model's embeddings; use engine transformers")

    @abstractmethod
    def metrics(self) -> dict[str, float]:
        """Counters since the engine started (tokens, steps, cache hits, bytes ...), for reports and load control.

        `running` and `waiting` are requests now. `weight_bytes` is what the weights take, those of a model that
        proposes tokens included, `cache_bytes_peak` the most that keys and values took at one time since `forget`; an
        engine that cannot tell leaves them out.
        """

    def forget(self) -> None:  # noqa: B027
        """Optional hint: drop what finished answers left in the cache, so that the next one starts cold, and count
        `cache_bytes_peak` anew."""

    @abstractmethod
    async def close(self) -> None:
        """Cancels what is running and frees the model. Idempotent."""


class Backend(Protocol):
    """What takes a full prefix a request: a `PrefixEngine`, or one of several copies of a model that it runs."""

    kind: str

    @property
    def stops(self) -> bool:
        """As `PrefixEngine.stops`."""
        ...

    def stream(
        self, ids: Sequence[int], stop_ids: frozenset[int], cap: int, sampling: Sampling, seed: int, read: Read
    ) -> AsyncGenerator[Chunk, None]:
        """As `PrefixEngine.stream`."""
        ...

    async def logprob(self, ids: Sequence[int], count: int, temperature: float = 1.0) -> tuple[list[TokenScore], Usage]:
        """As `PrefixEngine.logprob`."""
        ...


class PrefixEngine(Engine):
    """An engine whose backend takes a full prefix a request. Subclasses write `stream`; sessions are inherited."""

    stops = True
    """Whether a stream ends by itself after a stop id; one that does not is closed at a segment's end."""

    @abstractmethod
    def stream(
        self, ids: Sequence[int], stop_ids: frozenset[int], cap: int, sampling: Sampling, seed: int, read: Read
    ) -> AsyncGenerator[Chunk, None]:
        """Samples up to `cap` tokens after `ids`, stopping after the first token that is in `stop_ids` (kept in the
        chunk). The last chunk carries `usage`; one before it may, as soon as what was cached is known."""

    async def logprob(self, ids: Sequence[int], count: int, temperature: float = 1.0) -> tuple[list[TokenScore], Usage]:
        """Scores the last `count` of `ids`."""
        raise UnsupportedError(f"engine.kind: {self.kind!r} cannot score given tokens; use 'transformers'")

    def open(self, prompt: Sequence[int]) -> Session:
        return PrefixSession(self)


class PrefixSession(Session):
    """The inherited session: stop at a superset of stop ids, confirm with the matcher, resume if it was not a match.

    While some match is undecided it goes on one token at a time, so that at most one token is sampled in vain.
    """

    def __init__(self, engine: Backend):
        self.engine = engine

    async def generate(self, call: Call) -> AsyncGenerator[Chunk, None]:
        ids, matcher = call.prefix.ids(), call.matcher
        end = len(ids) + call.cap
        total = call.usage
        total.prompt = len(ids)
        last = Chunk([], 0.0, 0.0)
        first, decided = True, False
        while not decided and len(ids) < end:
            cap = 1 if matcher.open else end - len(ids)
            stream = self.engine.stream(tuple(ids), matcher.stop_ids, cap, call.sampling, call.seed, call.read)
            sampled = 0
            async with aclosing(stream) as chunks:
                async for last in chunks:
                    if last.usage is not None:
                        if first:
                            # A resumed request sends again what the one before it computed: the first one's counts.
                            total.cached = last.usage.cached
                        total.proposed += last.usage.proposed
                        total.accepted += last.usage.accepted
                        total.drafted += last.usage.drafted
                    last.usage = None
                    sampled += len(last.ids)
                    if last.ids and not decided:
                        stopped = self.engine.stops and (sampled == cap or last.ids[-1] in matcher.stop_ids)
                        decided = _push(call, last)
                        ids += last.ids
                        yield last
                        if decided and not stopped:
                            break
            total.sampled += sampled
            first = False
            if not sampled:
                raise EngineError(f"engine {self.engine.kind!r} ended a request without a token")
        yield Chunk([], last.last, last.last, usage=total)

    async def logprob(
        self, prefix: Prefix, ids: Sequence[int], temperature: float = 1.0
    ) -> tuple[list[TokenScore], Usage]:
        if not ids:
            return [], Usage(prompt=len(prefix))
        return await self.engine.logprob([*prefix.ids(), *ids], len(ids), temperature)

    def fork(self) -> Session:
        return PrefixSession(self.engine)

    def close(self) -> None:
        return None


@lru_cache(maxsize=64)
def in_order(stop_ids: frozenset[int]) -> list[int]:
    """Stop ids as requests name them, not to be changed. Of a large vocabulary they are thousands, and each cut has
    them sent again."""
    return sorted(stop_ids)


class Copy(Backend, Protocol):
    """One of several backends that run the same model."""

    sessions: int
    """Sessions that are open on it."""


class CopySession(PrefixSession):
    """A session that stays with one copy of a model, and is counted there while it is open."""

    def __init__(self, copy: Copy):
        super().__init__(copy)
        self._copy, self._open = copy, True
        copy.sessions += 1

    @classmethod
    def on_idlest(cls, copies: Sequence[Copy]) -> CopySession:
        """A session on the copy that has the fewest, the first of several."""
        return cls(min(copies, key=lambda copy: copy.sessions))

    def fork(self) -> Session:
        return CopySession(self._copy)

    def close(self) -> None:
        if self._open:
            self._open = False
            self._copy.sessions -= 1


def _push(call: Call, chunk: Chunk) -> bool:
    """Shows a chunk's tokens to the matcher, and drops those after the one that decided the segment."""
    for n, i in enumerate(chunk.ids, start=1):
        features = chunk.features[n - 1] if chunk.features else None
        top, hidden = chunk.top[n - 1] if chunk.top else (), chunk.hidden[n - 1] if chunk.hidden else None
        if call.matcher.push(i, features, top, hidden):
            for column in (chunk.ids, chunk.features, chunk.top, chunk.hidden):
                del column[n:]
            return True
    return False
