"""The embedded engine: a `transformers` model in this process, batched continuously by a thread of its own.

Sessions keep their keys and values, so a relay's next segment computes only the tokens it has not seen, together with
the other sessions' next tokens, and yields its first token from that same forward. In float32 on a CPU a request to a
dense model gives the same tokens, and bitwise the same logits, whatever else runs, is cached or was evicted. That holds
for one thread, the default there: several split a matrix product by its shape, and so let the batch change the bits.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AttentionInterface

from baton.engines import attention
from baton.engines.base import (
    Call,
    Chunk,
    Engine,
    EngineError,
    LoadError,
    Prefix,
    Session,
    Speculation,
    TokenScore,
    Usage,
)
from baton.engines.chat import remedy, render, vocabulary_of
from baton.engines.kv import Geometry
from baton.engines.network import Network
from baton.engines.rows import Fill, Ground, Place, Row, Sample, Score
from baton.engines.speculation import DraftModel, Lookup, Proposer, Speculator
from baton.engines.worker import Worker
from baton.flops import architecture
from baton.vocabulary import Vocabulary

AttentionInterface.register(attention.NAME, attention.attention)

GIGABYTE = 1 << 30
METHODS = ("ngram", "draft_model")
"""Speculation that this engine does."""


class TransformersEngine(Engine):
    """Runs one causal language model with full attention.

    Args:
        model: a `transformers` model in evaluation mode. The engine changes its attention function and owns it.
        tokenizer: its fast tokenizer.
        name: what errors call the model.
        cache_bytes: bound on the keys and values of all sessions, those of a speculating model included; idle ones are
            evicted, least recently used first.
        max_batch: most rows in a step.
        max_batch_tokens: most tokens in a step; longer prefixes are computed in several.
        threads: torch's thread count for the model; None is one on a CPU. More is faster from some 100 million
            parameters on, but then a request's bits depend on its batch.
        context: most tokens of a sequence; None means the model's `max_position_embeddings`.
        speculative: token-level speculation, by `ngram` or `draft_model`; none if None.
        draft: for `draft_model`, the model that proposes and its tokenizer, whose tokens have the same ids.

    Raises:
        LoadError: the attention or tokenizer of a model, or the speculation, is not supported; says what.
    """

    kind = "transformers"

    def __init__(
        self, model: Any, tokenizer: Any, *, name: str = "model", cache_bytes: int = GIGABYTE, max_batch: int = 32,
        max_batch_tokens: int = 2048, threads: int | None = None, context: int | None = None,
        speculative: Speculation | None = None, draft: tuple[Any, Any] | None = None,
    ):  # fmt: skip
        for field, value in (
            ("cache_bytes", cache_bytes),
            ("max_batch", max_batch),
            ("max_batch_tokens", max_batch_tokens),
        ):
            if value < 1:
                raise LoadError(f"{field}: {value} is out of range; use a positive number")
        _check_method(speculative)
        if (speculative is not None and speculative.method == "draft_model") != (draft is not None):
            raise LoadError("draft: it goes with method 'draft_model', and only with that; give both or none")
        self.context = context or _context(model, name)
        self.vocabulary = _vocabulary(model, tokenizer, name)
        self.speculation = speculative
        self._model, self._tokenizer = model, tokenizer
        self._settings: dict[str, Any] = {
            "name": name, "cache_bytes": cache_bytes, "max_batch": max_batch, "max_batch_tokens": max_batch_tokens,
            "threads": threads, "context": context,
        }  # fmt: skip
        self.architecture = architecture(model)
        self.drafting = architecture(draft[0]) if draft is not None else None
        self._weight_bytes = float(sum(m.get_memory_footprint() for m in (model, *(draft or ())[:1])))
        network = _network(model, name, self.vocabulary, self.context)
        speculator: Speculator | None = None
        if speculative is not None:
            proposer: Proposer = Lookup(speculative.ngram_min, speculative.ngram_max)
            if draft is not None:
                small = self._drafting(draft, speculative.model or "draft")
                # Both models hold the same sequences: each gets memory for as many tokens as the other.
                ours, theirs = network.geometry.token_bytes, small.geometry.token_bytes
                given = cache_bytes * theirs // (ours + theirs)
                proposer, cache_bytes = DraftModel(small, given, max_batch_tokens), cache_bytes - given
            speculator = Speculator(speculative, proposer)
        self._worker = Worker(
            network, cache_bytes=cache_bytes, max_batch=max_batch, max_batch_tokens=max_batch_tokens,
            threads=threads or (1 if model.device.type == "cpu" else None), speculator=speculator,
        )  # fmt: skip
        self._worker.start()

    def _drafting(self, draft: tuple[Any, Any], name: str) -> Network:
        """The model that proposes.

        Raises:
            LoadError: it has another vocabulary, or attention that is not supported.
        """
        model, tokenizer = draft
        try:
            if not _vocabulary(model, tokenizer, name).shares_ids(self.vocabulary):
                raise LoadError(
                    f"{name}: its tokens have other ids than the model's, so it cannot propose them; use a model of "
                    "the same family, or method ngram"
                )
            return _network(model, name, self.vocabulary, _context(model, name))
        except LoadError as error:
            raise LoadError(str(error), "speculative.model") from error

    @classmethod
    def load(
        cls, path: str | Path, *, device: str = "auto", dtype: str = "auto", trust_remote_code: bool = False,
        revision: str | None = None, speculative: Speculation | None = None, **settings: Any,
    ) -> TransformersEngine:  # fmt: skip
        """Loads a checkpoint, from a folder or the hub, safetensors only.

        Args:
            path: folder or hub id.
            device: `auto` is the first CUDA device, or else the CPU.
            dtype: `auto` is the checkpoint's on CUDA and float32 on a CPU.
            trust_remote_code: runs Python code that the checkpoint brings.
            speculative: its `model`, if it names one, is loaded to the same device.
            settings: as for the constructor.

        Raises:
            LoadError: one line that names what is missing or unsupported.
        """
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        if dtype == "auto" and device == "cpu":
            dtype = "float32"
        draft = _proposing(speculative, device, dtype)
        model, tokenizer = _pretrained(str(path), device, dtype, revision, trust_remote_code)
        return cls(model, tokenizer, name=str(path), speculative=speculative, draft=draft, **settings)

    def speculating(self, speculative: Speculation | None) -> TransformersEngine:
        model = self._model
        draft = _proposing(speculative, str(model.device), str(model.dtype).removeprefix("torch."))
        return TransformersEngine(model, self._tokenizer, speculative=speculative, draft=draft, **self._settings)

    def speculate(self, on: bool) -> bool:
        self._worker.speculates = on
        return self.speculation is not None

    def open(self, prompt: Sequence[int]) -> Session:
        return TransformersSession(self._worker, Place(Prefix(prompt)))

    def render(self, messages: Sequence[dict[str, str]], *, thinking: bool = True) -> list[int]:
        """As `Engine.render`. For a model without a chat template: the messages' contents, joined by line breaks."""
        return render(self._tokenizer, self.vocabulary, messages, thinking)

    def embeddings(self) -> Any:
        return self._model.get_input_embeddings().weight.detach()

    def metrics(self) -> dict[str, float]:
        """Since the start: `tokens_sampled`, `tokens_prefilled`, `tokens_cached` (found in a cache), `rebuilt_tokens`
        (computed again after an eviction), `steps`, `rows` (summed over steps), `prompt_hits`, `pauses` (rows that
        had to wait for memory), `tokens_proposed` and `tokens_accepted` (by speculation), `evictions`, `busy_seconds`,
        `cache_bytes_peak` (since `forget`); and now: `cache_bytes`, `running`, `waiting`. `weight_bytes` is what
        the model and the one that proposes take in memory."""
        worker = self._worker
        pools = worker.pools
        return {
            "weight_bytes": self._weight_bytes,
            **worker.counts,
            "evictions": sum(pool.evictions for pool in pools),
            "busy_seconds": worker.busy_seconds,
            "cache_bytes": sum(pool.used for pool in pools),
            "cache_bytes_peak": sum(pool.peak for pool in pools),
            "running": len(worker.running),
            "waiting": len(worker.waiting),
        }

    def forget(self) -> None:
        self._worker.forget()

    async def close(self) -> None:
        self._worker.stop()
        await asyncio.to_thread(self._worker.join)


class TransformersSession(Session):
    """A session of a `TransformersEngine`. A fork copies what it can use of its source's cache at its first call."""

    def __init__(self, worker: Worker, place: Place):
        self._worker, self._place = worker, place
        self._row: Row | None = None
        self._closed = False

    async def generate(self, call: Call) -> AsyncGenerator[Chunk, None]:
        if not call.cap > 0:
            raise EngineError(f"cap: {call.cap} is out of range; use a positive count")
        row = Sample(self._place, call)
        self._start(row)
        try:
            while True:
                chunk: Chunk = await row.result()
                yield chunk
                if chunk.usage is not None:
                    return
        finally:
            row.cancel()
            call.usage = row.usage()

    async def logprob(
        self, prefix: Prefix, ids: Sequence[int], temperature: float = 1.0
    ) -> tuple[list[TokenScore], Usage]:
        """As `Session.logprob`; `Usage.sampled` counts the scored ids."""
        if not ids:
            return [], Usage(prompt=len(prefix))
        row = self._start(Score(self._place, prefix, ids, temperature))
        try:
            result: tuple[list[TokenScore], Usage] = await row.result()
            return result
        finally:
            row.cancel()

    async def grounding(self, prefix: Prefix, ids: Sequence[int]) -> tuple[list[float], Usage]:
        """As `Session.grounding`; `Usage.sampled` counts the ids, which are computed again."""
        if not ids:
            return [], Usage(prompt=len(prefix))
        row = self._start(Ground(self._place, prefix, ids, self._worker.geometry.layers))
        try:
            result: tuple[list[float], Usage] = await row.result()
            return result
        finally:
            row.cancel()

    async def extend(self, prefix: Prefix) -> None:
        """Computes the cache for `prefix` when other rows leave room, and returns when it is there. A call on this
        session meanwhile ends it and keeps what was computed."""
        row = self._start(Fill(self._place, prefix))
        try:
            await row.result()
        finally:
            row.cancel()

    def fork(self) -> Session:
        place = self._place
        return TransformersSession(self._worker, Place(place.prompt, source=place.cache or place.source))

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._row is not None:
            self._row.cancel()
        self._worker.release(self._place)

    def _start(self, row: Row) -> Row:
        if self._closed:
            raise EngineError("the session is closed")
        if not len(row.prefix):
            raise EngineError("prefix: it is empty; give at least one token")
        if self._row is not None and not self._row.done and not self._row.cancelled:
            if not self._row.background:
                raise EngineError("a session does one call at a time; fork it for a second")
            self._row.cancel()
        self._row = row
        self._worker.submit(row)
        return row


def check_folder(path: str | Path) -> None:
    """Finds what `from_pretrained` would say at length, or not at all, about a local folder.

    Raises:
        LoadError: something that a model needs is missing there.
    """
    folder = Path(path)
    if not folder.exists():
        if folder.is_absolute() or str(path).startswith((".", "~")) or str(path).count("/") != 1:
            raise LoadError(f"{path}: no such folder; give one with config.json, or a hub id (owner/name)")
        return
    if not (folder / "config.json").is_file():
        raise LoadError(f"{path}: it has no config.json; give the folder that save_pretrained wrote")
    if not any(folder.glob("*.safetensors")):
        raise LoadError(f"{path}: it is not a safetensors checkpoint; convert it with save_pretrained")
    if not any((folder / name).is_file() for name in ("tokenizer.json", "tokenizer.model", "vocab.json")):
        raise LoadError(f"{path}: it has no tokenizer.json; save its fast tokenizer there")


def _pretrained(
    name: str, device: str, dtype: str, revision: str | None = None, trust_remote_code: bool = False
) -> tuple[Any, Any]:
    """A model and its tokenizer.

    Raises:
        LoadError: they cannot be loaded.
    """
    check_folder(name)
    check_device(device)
    origin: dict[str, Any] = {"revision": revision, "trust_remote_code": trust_remote_code}
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(name, **origin)
        model = transformers.AutoModelForCausalLM.from_pretrained(
            name, dtype=dtype, use_safetensors=True, attn_implementation="sdpa", **origin
        )
    except Exception as error:
        # The readers of weights and tokenizers raise what they like about a damaged file.
        said = f"{type(error).__name__}: {error}"
        raise LoadError(f"{name}: cannot be loaded: {' '.join(said.split())}; {remedy(name)}") from error
    return model.to(device), tokenizer


def _proposing(speculative: Speculation | None, device: str, dtype: str) -> tuple[Any, Any] | None:
    """The model that proposes and its tokenizer, for the method that needs them.

    Raises:
        LoadError: they cannot be loaded, or the engine does not do the method.
    """
    _check_method(speculative)
    if speculative is None or speculative.method != "draft_model":
        return None
    try:
        return _pretrained(str(speculative.model), device, dtype)
    except LoadError as error:
        raise LoadError(str(error), "speculative.model") from error


def check_device(device: str) -> None:
    """Raises:
    LoadError: torch has no such device here.
    """
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        said = str(error).strip().splitlines()[0]
        raise LoadError(f"{device!r} is no device of this machine ({said}); use auto, cpu or cuda", "device") from error


def _check_method(speculative: Speculation | None) -> None:
    if speculative is not None and speculative.method not in METHODS:
        raise LoadError(
            f"engine 'transformers' does not do {speculative.method!r}; use {' or '.join(METHODS)}, "
            "or engine 'vllm', which does",
            "speculative.method",
        )


def _context(model: Any, name: str) -> int:
    longest: int | None = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if longest is None:
        raise LoadError(f"{name}: its config has no max_position_embeddings; give context if its attention is full")
    return longest


def _vocabulary(model: Any, tokenizer: Any, name: str) -> Vocabulary:
    ends = model.generation_config.eos_token_id if model.generation_config is not None else None
    return vocabulary_of(tokenizer, name, ends)


def _network(model: Any, name: str, vocabulary: Vocabulary, context: int) -> Network:
    return Network(model.eval(), _geometry(model, name, context), vocabulary=len(vocabulary), context=context)


def _geometry(model: Any, name: str, context: int) -> Geometry:
    """Learns from a trial forward of four tokens what the model's attention looks like.

    Raises:
        LoadError: it is not full causal attention through the attention interface.
    """
    if "logits_to_keep" not in inspect.signature(model.forward).parameters:
        raise LoadError(f"{name}: {type(model).__name__} has no logits_to_keep; use a newer model class")
    probe = attention.Probe(context)
    tokens = torch.arange(4, device=model.device)[None]
    try:
        model.set_attn_implementation(attention.NAME)
        with torch.inference_mode():
            model(input_ids=tokens, position_ids=tokens, use_cache=False, logits_to_keep=tokens[0, :1], step=probe)
        return probe.geometry(model.config.get_text_config().num_hidden_layers)
    except (TypeError, ValueError) as error:
        raise LoadError(f"{name}: unsupported attention: {' '.join(str(error).split())}") from error
