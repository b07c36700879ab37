"""Process reward models: a model that scores the steps of a solution, as a scorer."""

from __future__ import annotations

import asyncio
import math
from collections import OrderedDict, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import torch
from torch import Tensor
from transformers import DynamicCache

from baton.engines.base import Engine, EngineError
from baton.engines.settings import VllmSettings
from baton.flops import Architecture, architecture
from baton.scorers.base import Score, Scorer, ScoreRequest, shared
from baton.scorers.batch import Batcher
from baton.scorers.checkpoint import Checkpoint, pooled_runner
from baton.scorers.prm_formats import Format, Head, classifier_layout, load_format
from baton.trace import Role

if TYPE_CHECKING:
    from baton.config import PrmConfig

Aggregate = Literal["last", "min", "mean", "product"]

DROPPED = 16
"""Steps that are left out at a time where an answer outgrows the model's context: what stays is then the same for a
while, and need not be computed again for each step."""
FORWARD = 1 << 16
"""Most tokens in a forward, padding and remembered ones included, unless one row alone has more."""
BRANCH = 256
"""Tokens after which a branch of an answer is worth a cache of its own."""


@dataclass(frozen=True, slots=True)
class Row:
    """A sequence to score: its ids, and the positions after the tokens at which scores are read."""

    generation: int
    ids: tuple[int, ...]
    ends: tuple[int, ...]


@dataclass(slots=True)
class Read:
    """Scores of a row's ends in [0, 1], and tokens computed for it and found in the cache."""

    scores: list[float]
    tokens: int
    cached: int


@dataclass(slots=True, eq=False)
class Known:
    """What is remembered of a sequence: keys and values `[layers, 2, heads, tokens, width]`, and scores by position."""

    ids: tuple[int, ...] = ()
    states: Tensor | None = None
    scores: dict[int, float] = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        return 0 if self.states is None else self.states.nbytes

    def first(self, tokens: int) -> Known:
        """Of its first tokens only."""
        states = None if self.states is None else self.states[:, :, :, :tokens].clone()
        return Known(self.ids[:tokens], states, {end: s for end, s in self.scores.items() if end <= tokens})


class RowModel(Protocol):
    """What scores rows; called from one thread."""

    @property
    def cost(self) -> Architecture:
        """What a forward costs."""
        ...

    @property
    def context(self) -> int:
        """Most tokens of a row."""
        ...

    def __call__(self, rows: Sequence[Row]) -> list[Read]:
        """One `Read` a row, in order."""
        ...

    def held_bytes(self) -> float:
        """Memory of its weights, and the bound on what it remembers."""
        ...

    def close(self) -> None:
        """Frees it. Idempotent."""
        ...


class PrmModel:
    """Runs a process reward model on rows, padded to one forward; remembers what it computed of each answer.

    Not thread-safe.

    Args:
        backbone: a `transformers` model that gives `last_hidden_state`.
        head: scores from those.
        cache_bytes: bound on the keys and values remembered, least recently used first; 0 remembers nothing. Models
            whose states depend on later tokens, or that keep something else than keys and values, remember nothing.
    """

    def __init__(self, backbone: Any, head: Head, cache_bytes: int = 1 << 30):
        self.backbone, self._head = backbone, head
        self._device = next(backbone.parameters()).device
        self._forward_only = self._continues()
        self.cache_bytes = cache_bytes if self._forward_only else 0
        self._known: OrderedDict[int, list[Known]] = OrderedDict()

    @property
    def context(self) -> int:
        """Most tokens of a row."""
        return int(self.backbone.config.get_text_config().max_position_embeddings)

    @property
    def cost(self) -> Architecture:
        """What a forward of the backbone costs."""
        return architecture(self.backbone)

    def held_bytes(self) -> float:
        """Weights, and the bound on what is remembered."""
        return float(self.backbone.get_memory_footprint()) + self.cache_bytes

    def close(self) -> None:
        """Forgets everything."""
        self._known.clear()

    @torch.inference_mode()
    def __call__(self, rows: Sequence[Row]) -> list[Read]:
        """Scores `rows`. One that begins another of the same answer is read off that one."""
        longest = self._longest(rows) if self._forward_only else rows
        by_row: dict[Row, tuple[dict[int, float], int, int]] = {}
        for work in self._portions(list(dict.fromkeys(longest))):
            by_row.update(zip(work, self._forward(work, [self._find(row) for row in work]), strict=True))
        paid: set[Row] = set()
        reads = []
        for row, source in zip(rows, longest, strict=True):
            scores, computed, cached = by_row[source]
            # Rows that share a computation are charged once.
            fresh = source not in paid
            paid.add(source)
            reads.append(Read([scores[end] for end in row.ends], computed if fresh else 0, cached if fresh else 0))
        return reads

    def _portions(self, rows: list[Row]) -> list[list[Row]]:
        """Rows of one forward each: as many as keep it, padding included, within its size."""
        portions: list[list[Row]] = [[]]
        for row in rows:
            widest = max(len(r.ids) for r in (*portions[-1], row))
            if portions[-1] and widest * (len(portions[-1]) + 1) > FORWARD:
                portions.append([])
            portions[-1].append(row)
        return portions

    def _longest(self, rows: Sequence[Row]) -> list[Row]:
        """For each row the one that is computed in its place: with all the ends that are read from it."""
        heads: list[Row] = []
        ends: dict[Row, set[int]] = {}
        place: dict[Row, Row] = {}
        for row in sorted(set(rows), key=lambda r: len(r.ids), reverse=True):
            over = next((h for h in heads if h.generation == row.generation and h.ids[: len(row.ids)] == row.ids), None)
            if over is None:
                heads.append(row)
                over = row
            place[row] = over
            ends.setdefault(over, set()).update(row.ends)
        full = {h: Row(h.generation, h.ids, tuple(sorted(ends[h]))) for h in heads}
        return [full[place[row]] for row in rows]

    def _find(self, row: Row) -> Known:
        """What is remembered of the beginning of a row, never of all of it unless every score is."""
        known = self._known.get(row.generation, [])
        if known:
            self._known.move_to_end(row.generation)
        best, most = Known(), 0
        for one in known:
            common = shared(one.ids, row.ids)
            if common > most:
                best, most = one, common
        scores = {end: s for end, s in best.scores.items() if end <= most}
        missing = [end for end in row.ends if end not in scores]
        usable = min(most, missing[0] - 1) if missing else most
        return Known(best.ids[:usable], best.states, scores)

    def _forward(self, rows: Sequence[Row], found: Sequence[Known]) -> list[tuple[dict[int, float], int, int]]:
        """Scores by end, tokens computed and tokens found, for each row."""
        todo = [n for n, row in enumerate(rows) if any(end not in found[n].scores for end in row.ends)]
        if todo:
            news = [list(rows[n].ids[len(found[n].ids) :]) for n in todo]
            states, cache = self._run(news, [found[n] for n in todo])
            where = [(at, end) for at, n in enumerate(todo) for end in rows[n].ends if end > len(found[n].ids)]
            index = torch.tensor([[at, end - 1 - len(found[todo[at]].ids)] for at, end in where], device=states.device)
            values = self._head(states[index[:, 0], index[:, 1]].float()).tolist()
            if len(values) != len(where):
                raise EngineError(f"the model gave {len(values)} scores for {len(where)} steps")
            fresh: list[dict[int, float]] = [dict(found[n].scores) for n in todo]
            for (at, end), value in zip(where, values, strict=True):
                fresh[at][end] = value
            if self.cache_bytes:
                past = max(len(found[n].ids) for n in todo)
                self._remember([rows[n] for n in todo], [found[n] for n in todo], fresh, cache, past)
        else:
            fresh = []
        by_row = dict(zip(todo, fresh, strict=True))
        return [
            (by_row[n], len(row.ids) - len(found[n].ids), len(found[n].ids)) if n in by_row
            else (found[n].scores, 0, len(row.ids))
            for n, row in enumerate(rows)
        ]  # fmt: skip

    def _run(self, news: Sequence[Sequence[int]], found: Sequence[Known]) -> tuple[Tensor, Any]:
        """One forward: new tokens padded on the right, what is remembered before them padded on the left.

        Returns the last hidden states `[rows, new tokens, width]` and the cache, None if nothing is to be remembered.
        """
        device = self._device
        past, width = max(len(k.ids) for k in found), max(map(len, news))
        ids = torch.tensor([[*new, *[0] * (width - len(new))] for new in news], device=device)
        starts = torch.tensor([len(k.ids) for k in found], device=device)[:, None]
        lengths = torch.tensor([len(new) for new in news], device=device)[:, None]
        steps = torch.arange(width, device=device)[None]
        mask = torch.cat((torch.arange(past, device=device)[None] >= past - starts, steps < lengths), 1).long()
        cache = None
        if self.cache_bytes:
            cache = DynamicCache()
            if past:
                for layer, (keys, values) in enumerate(self._padded(found, past)):
                    cache.update(keys, values, layer)
        options = {"past_key_values": cache, "use_cache": True} if cache is not None else {"use_cache": False}
        # Positions of padding are never read; they only have to exist.
        positions = (starts + torch.minimum(steps, lengths - 1)).expand(-1, width)
        out = self.backbone(input_ids=ids, attention_mask=mask, position_ids=positions, **options)
        return out.last_hidden_state, cache

    def _padded(self, found: Sequence[Known], past: int) -> list[tuple[Tensor, Tensor]]:
        """Keys and values by layer, `[rows, heads, past, width]`, each row's at the right end."""
        sample = next(k.states for k in found if k.ids)
        assert sample is not None
        layers, two, heads, _, width = sample.shape
        padded = sample.new_zeros(layers, two, len(found), heads, past, width)
        for n, known in enumerate(found):
            if known.ids:
                assert known.states is not None
                padded[:, :, n, :, past - len(known.ids) :] = known.states[:, :, :, : len(known.ids)]
        return [(layer[0], layer[1]) for layer in padded]

    def _remember(
        self, rows: Sequence[Row], found: Sequence[Known], scores: Sequence[dict[int, float]], cache: Any, past: int
    ) -> None:
        """Of rows of one answer, the beginning that they have in common, and what goes on long enough alone."""
        groups: dict[int, list[int]] = defaultdict(list)
        for n, row in enumerate(rows):
            groups[row.generation].append(n)
        for generation, members in groups.items():
            first = rows[members[0]].ids
            common = min(shared(first, rows[n].ids) for n in members)
            fresh = [self._taken(rows[members[0]], found[members[0]], scores[members[0]], cache, members[0], past)]
            if len(members) > 1:
                fresh = [fresh[0].first(common)] + [
                    self._taken(rows[n], found[n], scores[n], cache, n, past)
                    for n in members
                    if len(rows[n].ids) - common >= BRANCH
                ]
            old = self._known.pop(generation, [])
            # What a new one begins with, or shares all but a little with, is not kept twice.
            kept = [k for k in old if all(len(k.ids) - shared(k.ids, f.ids) >= BRANCH for f in fresh)]
            self._known[generation] = [*kept, *fresh]
        self._evict()

    def _taken(self, row: Row, found: Known, scores: dict[int, float], cache: Any, at: int, past: int) -> Known:
        start, new = past - len(found.ids), len(row.ids) - len(found.ids)
        layers = [
            torch.stack((layer.keys[at, :, start : past + new], layer.values[at, :, start : past + new]))
            for layer in cache.layers
        ]
        return Known(row.ids, torch.stack(layers), scores)

    def _evict(self) -> None:
        used = sum(k.bytes for known in self._known.values() for k in known)
        while used > self.cache_bytes and self._known:
            _, dropped = self._known.popitem(last=False)
            used -= sum(k.bytes for k in dropped)

    @torch.inference_mode()
    def _continues(self) -> bool:
        """Whether a forward on remembered keys and values gives what one on the whole sequence gives."""
        ids = torch.tensor([[1, 2, 3, 4]], device=self._device)
        cache = DynamicCache()
        try:
            whole = self.backbone(input_ids=ids, use_cache=False).last_hidden_state
            self.backbone(input_ids=ids[:, :2], past_key_values=cache, use_cache=True)
            rest = self.backbone(
                input_ids=ids[:, 2:], past_key_values=cache, use_cache=True,
                position_ids=torch.tensor([[2, 3]], device=self._device),
            ).last_hidden_state  # fmt: skip
            torch.stack([torch.stack((layer.keys, layer.values)) for layer in cache.layers])
        except (TypeError, ValueError, RuntimeError, AttributeError):
            # An architecture that cannot be continued this way is run on whole sequences.
            return False
        size = whole.float().abs().max().item()
        return bool((whole[:, 2:] - rest).float().abs().max().item() <= 0.02 * size)


class Prm(Scorer):
    """Scores steps by a process reward model; all scores are in [0, 1].

    Requests that wait when the model becomes free, of whatever answers, are scored in one forward, and an answer's
    earlier steps are not computed again. A score of 0.7 does not mean the same for two models: calibrate thresholds.

    Args:
        name: what errors call it.
        model: scores rows of token ids.
        layout: makes them of requests.
        aggregate: of the scores of all the steps of the answer so far, which is the score of a request.
        max_batch: most sequences in a forward.
    """

    def __init__(
        self, name: str, model: RowModel, layout: Format, *, aggregate: Aggregate = "last", max_batch: int = 32
    ):
        self.name, self.model, self.layout, self.aggregate = name, model, layout, aggregate
        self.batcher: Batcher[Row, Read] = Batcher(name, self.model, max_batch)

    @classmethod
    def load(cls, name: str, config: PrmConfig, engines: Mapping[Role, Engine], base: Path) -> Prm:
        """From a pair's configuration.

        Raises:
            ValueError: the model cannot be loaded, or is not of the format.
        """
        from baton.config import located

        checkpoint = Checkpoint.find(
            located(config.model, base), device=config.device, dtype=config.dtype,
            trust_remote_code=config.trust_remote_code, revision=config.revision,
        )  # fmt: skip
        writers = {str(role): engine.vocabulary for role, engine in engines.items()}
        cache_bytes = config.cache_mb << 20
        model: RowModel
        if config.engine == "vllm":
            layout = classifier_layout(checkpoint, config.separator, writers)
            model = pooled_runner().PooledPrm(
                checkpoint, config.vllm or VllmSettings(), cache_bytes=cache_bytes, max_batch=config.max_batch
            )
        else:
            loaded = load_format(config.format, checkpoint, config.separator, writers)
            model, layout = PrmModel(loaded.backbone, loaded.head, cache_bytes), loaded.layout
        return cls(name, model, layout, aggregate=config.aggregate, max_batch=config.max_batch)

    async def score(self, requests: Sequence[ScoreRequest]) -> list[Score]:
        prepared = [self._row(r) for r in requests]
        reads = await self.batcher.run([row for row, _ in prepared])
        return [self._score(row, read, skipped) for (row, skipped), read in zip(prepared, reads, strict=True)]

    def architecture(self, engines: Mapping[Role, Engine]) -> Architecture | None:
        return self.model.cost

    def held_bytes(self) -> float:
        """Weights, and the bound on what is remembered, which a long run fills."""
        return self.model.held_bytes()

    async def close(self) -> None:
        await self.batcher.close()
        await asyncio.to_thread(self.model.close)

    def _row(self, request: ScoreRequest) -> tuple[Row, int]:
        """The sequence of a request, and how many of its steps did not fit the context."""
        pieces = self.layout.pieces(request, 0)
        steps, skip = len(pieces), 0
        while sum(map(len, pieces)) > self.model.context:
            if skip == steps - 1:
                raise EngineError(
                    f"scorer {self.name!r}: the question and the last step have {sum(map(len, pieces))} tokens and "
                    f"the model takes {self.model.context}; use a model with a longer context"
                )
            skip = min(steps - 1, skip + DROPPED)
            pieces = self.layout.pieces(request, skip)
        ends, total = [], 0
        for piece in pieces:
            total += len(piece)
            ends.append(total)
        return Row(request.generation, tuple(i for piece in pieces for i in piece), tuple(ends)), skip

    def _score(self, row: Row, read: Read, skipped: int) -> Score:
        scores = read.scores
        if len(scores) != len(row.ends) or not all(map(math.isfinite, scores)):
            raise EngineError(f"scorer {self.name!r}: the model gave {scores} for {len(row.ends)} steps")
        reason = f"its first {skipped} steps did not fit the model's context" if skipped else ""
        return Score(aggregated(scores, self.aggregate), tokens=read.tokens, cached=read.cached, reason=reason)


def aggregated(scores: Sequence[float], how: Aggregate) -> float:
    """One score of the scores of several steps."""
    if how == "last":
        return scores[-1]
    if how == "min":
        return min(scores)
    return math.prod(scores) if how == "product" else math.fsum(scores) / len(scores)
