"""Scorers' models in vLLM's pooling runner: a classifier for process rewards, an encoder for embeddings.

They run in the scorer's own thread, on what waits together.
"""

from __future__ import annotations

import json
import os
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from baton.engines.base import EngineError, EngineLostError, LoadError, roll
from baton.engines.settings import VllmSettings
from baton.engines.vllm_options import engine_arguments, said, start
from baton.flops import Architecture
from baton.scorers.checkpoint import Checkpoint
from baton.scorers.embedding import Embedded, Encoding
from baton.scorers.prm import Read, Row

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

from vllm import LLM, PoolingParams
from vllm.inputs.engine import tokens_input
from vllm.v1.engine.exceptions import EngineDeadError

REMEMBERED = 1 << 16
"""Scores of steps that are kept, so that an answer's earlier steps are not asked for again."""


class Pooled:
    """A model in vLLM's pooling runner. Not thread-safe.

    Args:
        checkpoint: the model and its tokenizer.
        cache_bytes: of keys and values.
        max_batch: most sequences in a step.
        further: arguments of vLLM.

    Raises:
        LoadError: vLLM cannot run it so.
    """

    def __init__(
        self, checkpoint: Checkpoint, settings: VllmSettings, *, cache_bytes: int, max_batch: int, **further: Any
    ):
        self.cost, self._cache_bytes = checkpoint.cost(), cache_bytes
        if settings.replicas > 1:
            raise LoadError(f"{settings.replicas} copies are not run of a scorer; use 1", "vllm.replicas")
        dtype = "auto" if isinstance(checkpoint.dtype, str) else str(checkpoint.dtype).removeprefix("torch.")
        arguments = engine_arguments(
            str(checkpoint.folder), dtype=dtype, cache_bytes=cache_bytes, max_batch=max_batch,
            trust_remote_code=checkpoint.trust_remote_code, revision=None, speculative=None, settings=settings,
        )  # fmt: skip
        try:
            self._llm, self._leash = start(
                lambda: LLM(**arguments, **further, runner="pooling", disable_log_stats=True), None
            )
        except Exception as error:
            # vLLM raises what it likes about a model; its own processes only say that they failed.
            raise LoadError(f"{checkpoint.folder}: vLLM cannot start: {said(error)}; see its messages above") from error

    @property
    def context(self) -> int:
        """Most tokens of a sequence."""
        return int(self._llm.model_config.max_model_len)

    def encode(self, prompts: Sequence[Sequence[int]], task: str, *, raw: bool) -> list[tuple[Tensor, int]]:
        """What the runner gives for each sequence of ids, without the model's last activation if `raw`, and how many
        of the ids it found in its cache.

        Raises:
            EngineError: vLLM refuses one.
        """
        if not prompts:
            return []
        inputs = [tokens_input(list(ids)) for ids in prompts]
        try:
            outputs = self._llm.encode(inputs, PoolingParams(use_activation=not raw), pooling_task=task, use_tqdm=False)
        except EngineDeadError as error:
            raise EngineLostError("vLLM's processes died; see its messages above") from error
        except ValueError as error:
            raise EngineError(f"vLLM refused a request: {' '.join(str(error).split())}") from error
        return [(output.outputs.data.float().cpu(), output.num_cached_tokens or 0) for output in outputs]

    def held_bytes(self) -> float:
        """Memory of the weights and the cache."""
        return float(self.cost.parameters * self._llm.model_config.dtype.itemsize + self._cache_bytes)

    def close(self) -> None:
        self._llm.llm_engine.engine_core.shutdown()
        self._leash.drop()


class PooledPrm:
    """Scores rows by a classifier of tokens or of sequences with 1 or 2 labels, as `PrmModel` does.

    A sequence classifier is asked once for each step's end, and finds all before it in vLLM's cache. A token classifier
    is asked once for all of them, and computes everything each time.
    """

    def __init__(self, checkpoint: Checkpoint, settings: VllmSettings, *, cache_bytes: int, max_batch: int):
        config = json.loads((checkpoint.folder / "config.json").read_text(encoding="utf-8"))
        names: list[str] = config.get("architectures") or []
        self._sequences = any(name.endswith("ForSequenceClassification") for name in names)
        if not self._sequences and not any(name.endswith("ForTokenClassification") for name in names):
            raise LoadError(
                f"{checkpoint.folder}: {', '.join(names)} is no classifier; use engine transformers", "engine"
            )
        self._pooled = Pooled(checkpoint, settings, cache_bytes=cache_bytes, max_batch=max_batch)
        self._known: OrderedDict[tuple[int, int], float] = OrderedDict()

    @property
    def context(self) -> int:
        return self._pooled.context

    @property
    def cost(self) -> Architecture:
        return self._pooled.cost

    def __call__(self, rows: Sequence[Row]) -> list[Read]:
        return self._by_end(rows) if self._sequences else self._by_token(rows)

    def held_bytes(self) -> float:
        return self._pooled.held_bytes()

    def close(self) -> None:
        self._pooled.close()

    def _by_token(self, rows: Sequence[Row]) -> list[Read]:
        reads = []
        for row, (logits, cached) in zip(
            rows, self._pooled.encode([row.ids for row in rows], "token_classify", raw=True), strict=True
        ):
            scores = _probability(logits[[end - 1 for end in row.ends]])
            reads.append(Read(scores, len(row.ids) - cached, cached))
        return reads

    def _by_end(self, rows: Sequence[Row]) -> list[Read]:
        keys = [[(end, roll(0, row.ids[:end])) for end in row.ends] for row in rows]
        missing: dict[tuple[int, int], tuple[Row, int]] = {}
        for row, own in zip(rows, keys, strict=True):
            for key in own:
                if key not in self._known:
                    missing.setdefault(key, (row, key[0]))
        computed: dict[Row, tuple[int, int]] = {}
        outputs = self._pooled.encode([row.ids[:end] for row, end in missing.values()], "classify", raw=True)
        for (key, (row, end)), (logits, cached) in zip(missing.items(), outputs, strict=True):
            (self._known[key],) = _probability(logits[None])
            tokens, found = computed.get(row, (0, 0))
            computed[row] = tokens + end - cached, found + cached
        # Rows that share a computation are charged once.
        reads = [
            Read([self._known[key] for key in own], *computed.pop(row, (0, len(row.ids))))
            for row, own in zip(rows, keys, strict=True)
        ]
        while len(self._known) > REMEMBERED:
            self._known.popitem(last=False)
        return reads


class PooledEncoder:
    """Embeds texts as `Encoder` does."""

    def __init__(self, checkpoint: Checkpoint, settings: VllmSettings, *, cache_bytes: int, max_batch: int):
        self._encoding = Encoding(checkpoint)
        self._pooled = Pooled(
            checkpoint, settings, cache_bytes=cache_bytes, max_batch=max_batch,
            pooler_config={"pooling_type": "CLS" if self._encoding.first else "MEAN"},
        )  # fmt: skip

    @property
    def cost(self) -> Architecture:
        return self._pooled.cost

    @property
    def weight_bytes(self) -> float:
        return self._pooled.held_bytes()

    def __call__(self, texts: Sequence[str]) -> list[Embedded]:
        longest = min(self._encoding.longest, self._pooled.context)
        ids: list[list[int]] = self._encoding.tokenizer(list(texts), truncation=True, max_length=longest).input_ids
        outputs = self._pooled.encode(ids, "embed", raw=True)
        return [
            (torch.nn.functional.normalize(vector, dim=-1), len(own))
            for own, (vector, _) in zip(ids, outputs, strict=True)
        ]

    def close(self) -> None:
        self._pooled.close()


def _probability(logits: Tensor) -> list[float]:
    """Of `[rows, labels]`: that of the one label, or of the second of two."""
    one = logits[:, 0] if logits.shape[1] == 1 else logits[:, 1] - logits[:, 0]
    values: list[float] = one.sigmoid().tolist()
    return values
