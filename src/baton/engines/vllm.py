"""vLLM in this process: `AsyncLLM`, whose engine core runs in processes of its own, with token ids in and out.

Every call sends its whole prefix, and vLLM's prefix cache makes that cheap. Two models of a pair on one GPU share its
memory by `cache_mb` (the cache alone) or `vllm.memory` (weights and cache). The seed of a request follows from the
call's seed and the prefix's length, so a run repeats as far as vLLM's batching lets it.

An engine belongs to the event loop that first uses it. A copy of the model whose processes died raises
`EngineLostError`; the next call starts it again.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

from baton.engines import chat, likelihood
from baton.engines.base import (
    Chunk,
    CopySession,
    Engine,
    EngineError,
    EngineLostError,
    LoadError,
    Read,
    RequestError,
    Sampling,
    Session,
    Speculation,
    TokenScore,
    UnsupportedError,
    Usage,
    in_order,
    uniform,
)
from baton.engines.settings import VllmSettings
from baton.engines.transformers import check_folder
from baton.engines.vllm_options import engine_arguments, said, start
from baton.flops import Architecture
from baton.leash import Leash
from baton.vocabulary import Vocabulary

# Read when vLLM is imported: what it says of every start would stand between a command and its answer.
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")

from vllm import SamplingParams
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.inputs.engine import tokens_input
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError
from vllm.v1.metrics.loggers import StatLoggerBase

SEED_BITS = 53


@dataclass
class Counts(StatLoggerBase):
    """What one copy of the model has done, by vLLM's own counters."""

    steps: int = 0
    running: int = 0
    waiting: int = 0
    cache_usage: float = 0.0
    cache_usage_peak: float = 0.0
    tokens_sampled: int = 0
    tokens_queried: int = 0
    """Prefix tokens that were looked up in the cache."""
    tokens_cached: int = 0
    tokens_proposed: int = 0
    tokens_accepted: int = 0
    requests: int = 0
    """Those that are done; what follows sums over them."""
    request_s: float = 0.0
    """From vLLM's side of a call to the last token."""
    queued_s: float = 0.0
    """In line in the core."""
    prefill_s: float = 0.0
    """From the first step that computes it to its first token."""

    def record(
        self, scheduler_stats: Any, iteration_stats: Any, mm_cache_stats: Any = None, engine_idx: int = 0
    ) -> None:
        if iteration_stats is not None:
            self.tokens_sampled += iteration_stats.num_generation_tokens
            for request in iteration_stats.finished_requests:
                self.requests += 1
                self.request_s += request.e2e_latency
                self.queued_s += request.queued_time
                self.prefill_s += request.prefill_time
        if scheduler_stats is None:
            return
        self.steps += 1
        self.running, self.waiting = scheduler_stats.num_running_reqs, scheduler_stats.num_waiting_reqs
        self.cache_usage = scheduler_stats.kv_cache_usage
        self.cache_usage_peak = max(self.cache_usage_peak, self.cache_usage)
        self.tokens_queried += scheduler_stats.prefix_cache_stats.queries
        self.tokens_cached += scheduler_stats.prefix_cache_stats.hits
        if (speculated := scheduler_stats.spec_decoding_stats) is not None:
            self.tokens_proposed += speculated.num_draft_tokens
            self.tokens_accepted += speculated.num_accepted_tokens

    def log_engine_initialized(self) -> None:
        return None

    def __call__(self, vllm_config: Any, engine_index: int = 0) -> Counts:
        """vLLM asks for a logger of each of its cores: here there is one."""
        return self

    def speculated(self) -> tuple[int, int, int]:
        """Tokens sampled, proposed and accepted so far."""
        return self.tokens_sampled, self.tokens_proposed, self.tokens_accepted


class _Running(NamedTuple):
    """vLLM and its processes."""

    llm: AsyncLLM
    leash: Leash

    async def end(self) -> None:
        if self.llm.output_handler is not None:
            # It would take the end of the processes for their death.
            self.llm.output_handler.cancel()
        await asyncio.to_thread(self.stop)

    def stop(self) -> None:
        self.llm.shutdown()
        self.leash.drop()


class Replica:
    """One copy of the model.

    Args:
        arguments: of `AsyncEngineArgs`.
        threads: of a CPU engine.
        entropy: likeliest tokens that the entropy is read from.
        vocabulary: the ids that mean something.
    """

    kind = "vllm"
    stops = True

    def __init__(
        self, arguments: Mapping[str, Any], *, threads: int | None, entropy: int, vocabulary: Vocabulary,
        speculation: Speculation | None, numbers: Iterator[int],
    ):  # fmt: skip
        self._arguments, self._threads, self._entropy, self._size = arguments, threads, entropy, len(vocabulary)
        self._speculation = speculation
        self._numbers = numbers
        self._starting = asyncio.Lock()
        self.counts = Counts()
        self.epoch = 0
        """Part of what a prefix is found in the cache by: a new one leaves everything cached behind."""
        self.sessions = 0
        self.requests = 0
        """Requests of this copy that run or wait."""
        self.closed = False
        self._restart: asyncio.Future[_Running] | None = None
        self._running = self._start()

    def _start(self) -> _Running:
        def make() -> AsyncLLM:
            return AsyncLLM.from_engine_args(
                AsyncEngineArgs(**self._arguments, skip_tokenizer_init=True, disable_log_stats=True),
                stat_loggers=[self.counts],
            )

        return _Running(*start(make, self._threads))

    @property
    def context(self) -> int:
        """Most tokens of a sequence."""
        return int(self._running.llm.model_config.max_model_len)

    @property
    def weight_size(self) -> int:
        """Bytes that a parameter takes."""
        return int(self._running.llm.model_config.dtype.itemsize)

    def forget(self) -> None:
        """Leaves behind what is cached, and counts the peak anew."""
        self.epoch += 1
        self.counts.cache_usage_peak = self.counts.cache_usage

    async def _alive(self) -> AsyncLLM:
        """The engine, started again if it died.

        Raises:
            EngineLostError: it cannot be started again.
        """
        async with self._starting:
            if self.closed:
                raise EngineError("the engine is closed")
            if self._running.llm.errored:
                # A start goes on where the call that wanted it is cancelled, for the next one.
                self._restart = self._restart or asyncio.ensure_future(self._started_again())
                try:
                    self._running = await asyncio.shield(self._restart)
                finally:
                    if self._restart.done():
                        self._restart = None
        return self._running.llm

    async def _started_again(self) -> _Running:
        await self._running.end()
        self.counts.running = self.counts.waiting = 0
        try:
            return await asyncio.to_thread(self._start)
        except Exception as error:
            # vLLM raises what it likes.
            raise EngineLostError(f"vLLM cannot start again: {said(error)}; see its messages above") from error

    async def stream(
        self, ids: Sequence[int], stop_ids: frozenset[int], cap: int, sampling: Sampling, seed: int, read: Read
    ) -> AsyncGenerator[Chunk, None]:
        """As `PrefixEngine.stream`."""
        self._check(ids, read, sampling)
        count = likelihood.wanted(read, self._entropy)
        params = SamplingParams(
            temperature=sampling.temperature, top_p=sampling.top_p, top_k=sampling.top_k, min_p=sampling.min_p,
            seed=int(uniform(seed, len(ids)) * (1 << SEED_BITS)) if sampling.temperature else None,
            # What ends a text is among the stop ids, where it ends one.
            stop_token_ids=in_order(stop_ids), ignore_eos=True, max_tokens=cap, logprobs=count,
            detokenize=False, output_kind=RequestOutputKind.DELTA, skip_clone=True,
        )  # fmt: skip
        loop = asyncio.get_running_loop()
        usage, sampled, before = None, 0, self.counts.speculated()
        async with aclosing(self._outputs(ids, params)) as outputs:
            async for output in outputs:
                now = loop.time()
                (written,) = output.outputs
                chunk = Chunk([*written.token_ids], now, now)
                self._read(chunk, written.logprobs, read)
                sampled += len(chunk.ids)
                if usage is None:
                    # With the first output, so that a call that is cut off knows its cost.
                    chunk.usage = usage = Usage(len(ids), output.num_cached_tokens or 0)
                if output.finished:
                    if written.finish_reason not in ("stop", "length"):
                        raise EngineError(f"vLLM ended a request by {written.finish_reason!r}")
                    chunk.usage = usage
                    usage.sampled = sampled
                    self._speculated(usage, before)
                yield chunk

    async def logprob(self, ids: Sequence[int], count: int, temperature: float = 1.0) -> tuple[list[TokenScore], Usage]:
        """As `PrefixEngine.logprob`, by vLLM's log-probabilities of a prompt, which read no cache.

        The margin is exact, the entropy a lower bound unless `vllm.logprobs` is -1.

        Raises:
            UnsupportedError: the temperature is not 1.
        """
        if temperature != 1.0:
            raise UnsupportedError(
                f"temperature: engine 'vllm' scores given tokens at temperature 1, not {temperature:g}; "
                "use 'transformers'"
            )
        self._check(ids, Read(), Sampling())
        params = SamplingParams(
            temperature=0.0, max_tokens=1, prompt_logprobs=-1 if self._entropy < 0 else max(2, self._entropy),
            ignore_eos=True, detokenize=False, output_kind=RequestOutputKind.FINAL_ONLY,
        )  # fmt: skip
        scores: list[TokenScore] = []
        cached = 0
        async with aclosing(self._outputs(ids, params)) as outputs:
            async for output in outputs:
                cached = output.num_cached_tokens or 0
                known = output.prompt_logprobs or []
                scores = [
                    likelihood.token_score(given, {i: entry.logprob for i, entry in row.items()})
                    for given, row in zip(ids[-count:], known[-count:], strict=True)
                ]
        return scores, Usage(len(ids) - count, cached, count)

    async def _outputs(self, ids: Sequence[int], params: SamplingParams) -> AsyncGenerator[Any, None]:
        """A request's outputs; closing it aborts the request."""
        llm = await self._alive()
        prompt = tokens_input(list(ids), cache_salt=str(self.epoch))
        self.requests += 1
        try:
            async with aclosing(llm.generate(prompt, params, f"baton-{next(self._numbers)}")) as outputs:
                async for output in outputs:
                    yield output
        except EngineDeadError as error:
            raise EngineLostError("vLLM's processes died in the middle of a request; see its messages above") from error
        except (EngineGenerateError, ValueError) as error:
            cause = error.__cause__ or error
            kind = RequestError if isinstance(cause, ValueError) else EngineError
            raise kind(f"vLLM refused a request: {' '.join(str(cause).split())}") from error
        finally:
            self.requests -= 1

    def _check(self, ids: Sequence[int], read: Read, sampling: Sampling) -> None:
        if read.hidden:
            raise UnsupportedError("hidden: engine 'vllm' gives no hidden states; use 'transformers'")
        if sampling.min_p and self._speculation is not None:
            raise UnsupportedError("sampling.min_p: engine 'vllm' has none beside speculation; drop one of the two")
        if not ids:
            raise EngineError("prefix: it is empty; give at least one token")
        if len(ids) >= self.context:
            raise RequestError(
                f"context: {len(ids)} tokens do not fit the model's {self.context}; "
                "shorten the prompt, lower the budget, or raise vllm.context"
            )

    def _read(self, chunk: Chunk, logprobs: Any, read: Read) -> None:
        """Puts what was asked for beside a chunk's tokens."""
        if any(i >= self._size for i in chunk.ids):
            raise EngineError(f"vLLM sampled ids past the tokenizer's {self._size}; are the model's weights its own?")
        if logprobs is None:
            return
        for sampled, row in zip(chunk.ids, logprobs, strict=True):
            likely = likelihood.ranked({i: entry.logprob for i, entry in row.items()})
            if read.features:
                chunk.features.append(likelihood.features(likely, read.features))
            if read.top:
                chunk.top.append(likelihood.top(likely, read.top, sampled))

    def _speculated(self, usage: Usage, before: tuple[int, int, int]) -> None:
        """vLLM counts for all requests together: a request's share is by its tokens among those sampled meanwhile."""
        if self._speculation is None:
            return
        total, proposed, accepted = (now - then for now, then in zip(self.counts.speculated(), before, strict=True))
        share = min(1.0, usage.sampled / max(1, total))
        usage.proposed, usage.accepted = round(proposed * share), min(round(accepted * share), usage.sampled - 1)
        if self._speculation.method == "draft_model":
            usage.drafted = usage.proposed

    def stop(self) -> None:
        """Ends its processes, before anything was asked of it."""
        self._running.stop()

    async def close(self) -> None:
        async with self._starting:
            if self.closed:
                return
            self.closed = True
            if self._restart is not None:
                with suppress(EngineLostError):
                    self._running = await self._restart
            await self._running.end()
            # Else vLLM would try again when the interpreter, half gone, drops it.
            del self._running


class VllmEngine(Engine):
    """One model, in one or more copies. A session stays with one copy, which has its prefix cached."""

    kind = "vllm"

    def __init__(
        self, replicas: Sequence[Replica], tokenizer: Any, vocabulary: Vocabulary, *,
        speculation: Speculation | None = None, architecture: Architecture | None = None,
        drafting: Architecture | None = None, cache_bytes: int | None = None,
    ):  # fmt: skip
        self.replicas, self.vocabulary, self.speculation = list(replicas), vocabulary, speculation
        self._tokenizer, self._cache_bytes = tokenizer, cache_bytes
        self.architecture, self.drafting = architecture, drafting
        self.context = min(replica.context for replica in self.replicas)

    @classmethod
    def load(
        cls, path: str, *, device: str = "auto", dtype: str = "auto", cache_bytes: int = 1 << 30, max_batch: int = 32,
        threads: int | None = None, trust_remote_code: bool = False, revision: str | None = None,
        speculative: Speculation | None = None, own: VllmSettings | None = None,
    ) -> VllmEngine:  # fmt: skip
        """As `Engine.load`; takes as long as vLLM takes to start, the copies one after the other."""
        settings = own or VllmSettings()
        check_folder(path)
        if device != "auto":
            raise LoadError(f"{device!r} goes with engine transformers; drop it, and set vllm.devices", "device")
        tokenizer, vocabulary = chat.load_tokenizer(path, revision, trust_remote_code)
        numbers = itertools.count(1)
        replicas: list[Replica] = []
        try:
            for n in range(settings.replicas):
                arguments = engine_arguments(
                    path, dtype=dtype, cache_bytes=cache_bytes, max_batch=max_batch,
                    trust_remote_code=trust_remote_code, revision=revision, speculative=speculative,
                    settings=settings, replica=n,
                )  # fmt: skip
                replicas.append(
                    Replica(
                        arguments, threads=threads, entropy=settings.logprobs, vocabulary=vocabulary,
                        speculation=speculative, numbers=numbers,
                    )
                )  # fmt: skip
        except Exception as error:
            # vLLM raises what it likes about a model or an argument; its own processes only say that they failed.
            for replica in replicas:
                replica.stop()
            raise LoadError(f"{path}: vLLM cannot start: {said(error)}; see its messages above") from error
        small = (
            None
            if speculative is None or speculative.method != "draft_model"
            else chat.architecture(str(speculative.model))
        )
        return cls(
            replicas, tokenizer, vocabulary, speculation=speculative, drafting=small,
            architecture=chat.architecture(path, revision, trust_remote_code),
            cache_bytes=cache_bytes if settings.memory is None else None,
        )  # fmt: skip

    def open(self, prompt: Sequence[int]) -> Session:
        """A session on the copy of the model that has the fewest."""
        return CopySession.on_idlest(self.replicas)

    def render(self, messages: Sequence[dict[str, str]], *, thinking: bool = True) -> list[int]:
        return chat.render(self._tokenizer, self.vocabulary, messages, thinking)

    def metrics(self) -> dict[str, float]:
        """By vLLM's counters, summed over the copies: `steps`, `tokens_sampled`, `tokens_prefilled`, `tokens_cached`
        (prefix tokens computed, and found in the cache), `tokens_proposed` and `tokens_accepted` (by speculation),
        `requests` done and their seconds (`request_s`, of which `queued_s` in line and `prefill_s` to the first token);
        `weight_bytes`; `cache_bytes_peak` since `forget`, of the configured `cache_mb`, where that is what bounds the
        cache; and now `cache_usage` (share), `running`, `waiting`."""
        counts = [replica.counts for replica in self.replicas]
        summed = {f.name: float(sum(getattr(c, f.name) for c in counts)) for f in fields(Counts)}
        summed["tokens_prefilled"] = summed.pop("tokens_queried") - summed["tokens_cached"]
        peak = summed.pop("cache_usage_peak")
        summed["cache_usage"] /= len(counts)
        requests = sum(replica.requests for replica in self.replicas)
        # vLLM's word is a step old; requests that it has not seen yet count too.
        summed["running"] = min(summed["running"], requests)
        summed["waiting"] = requests - summed["running"]
        if self.architecture is not None:
            size = self.architecture.parameters + (self.drafting.parameters if self.drafting is not None else 0)
            summed["weight_bytes"] = float(size * sum(replica.weight_size for replica in self.replicas))
        if self._cache_bytes is not None:
            summed["cache_bytes_peak"] = peak * self._cache_bytes
        return summed

    def forget(self) -> None:
        for replica in self.replicas:
            replica.forget()

    async def close(self) -> None:
        await asyncio.gather(*(replica.close() for replica in self.replicas))
