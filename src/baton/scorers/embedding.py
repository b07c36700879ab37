"""Two steps compared by the cosine of their embeddings."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import transformers
from torch import Tensor

from baton.boundary import Shift
from baton.engines.base import Engine, EngineError
from baton.engines.settings import VllmSettings
from baton.flops import Architecture, architecture
from baton.scorers.base import Score, Scorer, ScoreRequest
from baton.scorers.batch import Batcher
from baton.scorers.checkpoint import Checkpoint, pooled_runner
from baton.trace import Role

if TYPE_CHECKING:
    from baton.config import EmbeddingConfig

Embedded = tuple[Tensor, int]
"""A unit vector `[width]` and the tokens that it took."""

SENTENCES = 4096
"""Whose vectors are remembered: each sentence is compared with the one before it and the one after it."""
ENCODER_CACHE_BYTES = 1 << 28
"""Keys and values of the texts in one step of an encoder that vLLM runs; nothing of them is used again."""


class Encoding:
    """What a checkpoint asks of its texts and states: how long a text may be, and which states make its vector.

    One that sentence-transformers saved may ask for the first token's state instead of the mean, and for a length to
    cut texts to: both are read from its folder.
    """

    def __init__(self, checkpoint: Checkpoint):
        self.tokenizer = checkpoint.tokenizer(transformers.AutoTokenizer)
        pooling = _settings(checkpoint.folder / "1_Pooling" / "config.json")
        self.first = bool(pooling.get("pooling_mode_cls_token"))
        limits = [
            _settings(checkpoint.folder / "sentence_bert_config.json").get("max_seq_length"),
            _settings(checkpoint.folder / "config.json").get("max_position_embeddings"),
        ]
        self.longest: int = min((n for n in limits if n), default=512)
        if self.tokenizer.pad_token is None:
            self.tokenizer.pad_token = self.tokenizer.eos_token


class Encoder:
    """A `transformers` encoder: the mean of the last hidden states over a text's tokens, of length one, or what its
    checkpoint asks for (`Encoding`)."""

    def __init__(self, checkpoint: Checkpoint):
        self._model = checkpoint.model(transformers.AutoModel)
        self.weight_bytes = float(self._model.get_memory_footprint())
        self.cost = architecture(self._model)
        self._encoding = Encoding(checkpoint)

    @torch.inference_mode()
    def __call__(self, texts: Sequence[str]) -> list[Embedded]:
        inputs = self._encoding.tokenizer(
            list(texts), padding=True, truncation=True, max_length=self._encoding.longest, return_tensors="pt"
        ).to(self._model.device)
        states = self._model(**inputs).last_hidden_state.float()
        mask = inputs.attention_mask
        weights = mask.float()[:, :, None]
        pooled = states[:, 0] if self._encoding.first else (states * weights).sum(1) / weights.sum(1).clamp(min=1e-9)
        vectors = torch.nn.functional.normalize(pooled, dim=-1).cpu()
        return list(zip(vectors.unbind(0), mask.sum(1).tolist(), strict=True))


class Embedding(Scorer):
    """Cosine similarity of a step and the one it is compared with, -1 to 1; equal texts are 1 without being embedded.

    Published in Lookahead Reasoning (arXiv 2506.19830) with all-mpnet-base-v2 and 0.85 or 0.95 as the threshold. A
    similarity is no sign of correctness: "x = 7" and "x = 9" are near each other for most encoders.

    As a boundary (`Shift`) it compares sentences while they are written, one at a time, so that what is in flight
    beside them changes nothing.

    Args:
        name: what errors call it.
        embed: unit vectors of texts; called by one thread at a time, on what waits together.
        most: texts in one batch.
        weight_bytes: memory of the encoder's weights.
        cost: what a forward of the encoder costs.
        close: frees the encoder.
        shift: similarity below which a sentence turns away from the one before it.
    """

    def __init__(
        self, name: str, embed: Any, most: int = 64, weight_bytes: float = 0.0, cost: Architecture | None = None,
        close: Callable[[], None] | None = None, shift: float = 0.5,
    ):  # fmt: skip
        self.name, self._weight_bytes, self._cost, self._close, self._shift = name, weight_bytes, cost, close, shift
        self._embed, self._turn = embed, threading.Lock()
        self.batcher: Batcher[str, Embedded] = Batcher(name, self._one_at_a_time, most)
        self._vector = lru_cache(SENTENCES)(self._embedded)

    @classmethod
    def load(cls, name: str, config: EmbeddingConfig, engines: Mapping[Role, Engine], base: Path) -> Embedding:
        """From a pair's configuration.

        Raises:
            ValueError: the model cannot be loaded, or the library asked for is not installed.
        """
        from baton.config import located

        checkpoint = Checkpoint.find(
            located(config.model, base), device=config.device, dtype=config.dtype,
            trust_remote_code=config.trust_remote_code, revision=config.revision,
        )  # fmt: skip
        if config.library == "transformers":
            encoder = Encoder(checkpoint)
            return cls(name, encoder, config.max_batch, encoder.weight_bytes, encoder.cost, shift=config.shift)
        if config.library == "vllm":
            pooled = pooled_runner().PooledEncoder(
                checkpoint, config.vllm or VllmSettings(), cache_bytes=ENCODER_CACHE_BYTES, max_batch=config.max_batch
            )
            return cls(name, pooled, config.max_batch, pooled.weight_bytes, pooled.cost, pooled.close, config.shift)
        try:
            library = import_module("sentence_transformers")
        except ImportError:
            raise ValueError(
                "library: 'sentence-transformers' is not installed; pip install it, or use transformers"
            ) from None
        model = library.SentenceTransformer(
            str(checkpoint.folder), device=str(checkpoint.device), trust_remote_code=checkpoint.trust_remote_code,
            model_kwargs={"use_safetensors": True, "dtype": checkpoint.dtype},
        )  # fmt: skip
        encoder_cost = architecture(model[0].auto_model)
        held = sum(p.nbytes for p in model.parameters())
        return cls(name, partial(_by_library, model), config.max_batch, held, encoder_cost, shift=config.shift)

    async def score(self, requests: Sequence[ScoreRequest]) -> list[Score]:
        pairs = [(request.last, self._other(request)) for request in requests]
        texts = list(dict.fromkeys(text for pair in pairs if pair[0] != pair[1] for text in pair))
        embedded = dict(zip(texts, await self.batcher.run(texts), strict=True))
        unpaid = set(texts)
        scores = []
        for one, other in pairs:
            if one == other:
                scores.append(Score(1.0, reason="equal"))
                continue
            # A text that several requests share is paid for by the first of them.
            tokens = sum(embedded[text][1] for text in {one, other} & unpaid)
            unpaid -= {one, other}
            scores.append(Score(float(embedded[one][0] @ embedded[other][0]), tokens=tokens))
        return scores

    @property
    def draws(self) -> Shift:
        return Shift(self, self._shift)

    def likeness(self, one: str, other: str) -> tuple[float, int]:
        """As `boundary.Encoder.likeness`: the cosine, and the tokens of `other`; `one` was the other before.

        Raises:
            EngineError: the encoder failed.
        """
        if one == other:
            return 1.0, 0
        before, (vector, tokens) = self._vector(one)[0], self._vector(other)
        return float(before @ vector), tokens

    def _embedded(self, text: str) -> Embedded:
        try:
            (found,) = self._one_at_a_time([text])
        except EngineError:
            raise
        except Exception as error:
            raise EngineError(f"scorer {self.name!r} failed: {type(error).__name__}: {error}") from error
        return found

    def _one_at_a_time(self, texts: Sequence[str]) -> Sequence[Embedded]:
        with self._turn:
            found: Sequence[Embedded] = self._embed(texts)
        return found

    def architecture(self, engines: Mapping[Role, Engine]) -> Architecture | None:
        return self._cost

    def held_bytes(self) -> float:
        return self._weight_bytes

    async def close(self) -> None:
        await self.batcher.close()
        if self._close is not None:
            await asyncio.to_thread(self._close)

    def _other(self, request: ScoreRequest) -> str:
        if request.against is None:
            raise EngineError(f"scorer {self.name!r} compares two steps and was given one; score it against another")
        return request.against.strip()


def _by_library(model: Any, texts: Sequence[str]) -> list[Embedded]:
    vectors = model.encode(list(texts), normalize_embeddings=True, convert_to_tensor=True, show_progress_bar=False)
    counts = [len(ids) for ids in model.tokenizer(list(texts), truncation=True).input_ids]
    return list(zip(vectors.float().cpu().unbind(0), counts, strict=True))


def _settings(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
