"""Attention over packed rows: the sequences of one step lie end to end in one forward, each sees its own keys.

`transformers` models call the function registered here instead of their own attention; what it must know of the rows
travels through the model's keyword arguments as a `Step`.

On a CPU in float32, with one thread, the result for a token depends, bit by bit, on the tokens before it and on
nothing else: not on the other rows, not on how its prefix was cut into forwards, cached, copied or rebuilt. Three
measured properties of torch's CPU kernels make that possible: a row of a matrix product does not depend on the other
rows if there are at least four; the fused attention treats each query alone if every block of queries has at least
four; and its sums over keys have the same order for key counts that `Extents` finds by trial. So queries are padded to
fours, and keys, masked, to such a count. Outside of this are layers that send few tokens each to one of several
experts, and widths that are no multiple of 32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad, scaled_dot_product_attention

from baton.engines.grounding import Watch
from baton.engines.kv import Cache, Geometry

NAME = "baton_packed"
FOUR = 4
"""Fewest rows for which a CPU matrix product gives each row the bits it has among many."""
BLOCK = 512
"""Keys that torch's CPU attention takes at a time."""


class Extents:
    """How many keys attention reads for a sequence of a given length.

    Exact (`of(n) == n`) where results may depend on the batch anyway; else the smallest count from `n` on at which
    the kernel adds up the first `n` keys in the same order as at every other count.
    """

    def __init__(self, geometry: Geometry):
        self.padded = geometry.device.type == "cpu" and geometry.dtype == torch.float32
        self._of = self._measure(geometry) if self.padded else []

    def of(self, length: int) -> int:
        if not self.padded:
            return length
        blocks, rest = divmod(length, BLOCK)
        return blocks * BLOCK + self._of[rest]

    @staticmethod
    def _measure(geometry: Geometry) -> list[int]:
        """`[BLOCK]` extents: attention over each multiple of 16 keys is compared with the same keys in a full block."""
        generator = torch.Generator().manual_seed(0)
        # The default type is the process's, and another library may have set it.
        kind, heads, width = geometry.dtype, geometry.kv_heads, geometry.width
        keys, values = torch.randn(2, 1, heads, BLOCK, width, generator=generator, dtype=kind)
        queries = torch.randn(1, heads, FOUR, width, generator=generator, dtype=kind)

        def attend(length: int, extent: int) -> Tensor:
            mask = torch.zeros(1, 1, 1, extent, dtype=kind)
            mask[..., length:] = float("-inf")
            return scaled_dot_product_attention(
                queries, keys[:, :, :extent], values[:, :, :extent], mask.expand(1, 1, FOUR, extent)
            )

        alike = [n for n in range(16, BLOCK + 1, 16) if torch.equal(attend(n, n), attend(n, BLOCK))]
        return [0, *(next(n for n in alike if n >= length) for length in range(1, BLOCK))]


class Step:
    """What one forward computes: the next tokens of some sequences, rows of a single token first.

    `ids` and `positions` are packed, and padded to at least four tokens whose keys and values go nowhere.
    """

    def __init__(
        self, rows: Sequence[tuple[Cache, Sequence[int]]], geometry: Geometry, extents: Extents, edge: Tensor,
        watches: Sequence[Watch | None] = (),
    ):  # fmt: skip
        self.geometry = geometry
        self._watches = [(n, watch, len(rows[n][0])) for n, watch in enumerate(watches) if watch is not None]
        self.singles = sum(len(ids) == 1 for _, ids in rows)
        self.sizes = [len(ids) for _, ids in rows]
        self.ids: list[int] = []
        self.positions: list[int] = []
        for cache, ids in rows:
            self.positions.extend(range(len(cache), len(cache) + len(ids)))
            self.ids.extend(ids)
        self.tokens = len(self.ids)
        self.padding = max(0, FOUR - self.tokens) if extents.padded else 0
        self.ids.extend([0] * self.padding)
        self.positions.extend([0] * self.padding)
        self._slots = [cache.slots(len(ids)) for cache, ids in rows]
        self._views = []
        self._masks: list[Tensor | None] = []
        self._short = max(0, FOUR - geometry.group) if extents.padded else 0
        for cache, ids in rows:
            length = len(cache) + len(ids)
            extent = extents.of(length)
            self._views.append(cache.views(extent))
            self._masks.append(self._mask(length, len(ids), extent, extents.padded, edge))

    def _mask(self, length: int, count: int, extent: int, padded: bool, edge: Tensor) -> Tensor | None:
        """What the last `count` of `length` tokens may see of `extent` keys: additive, `[1, 1, queries, extent]`."""
        if count == 1:
            if not padded:
                return None
            start = len(edge) - BLOCK - length
            return edge[start : start + extent].expand(1, 1, self.geometry.group + self._short, extent)
        queries = count + (-count % FOUR if padded else 0)
        last = torch.arange(length - count, length - count + queries, device=edge.device).clamp_(max=length - 1)
        hidden = torch.arange(extent, device=edge.device) > last[:, None]
        return torch.zeros_like(hidden, dtype=edge.dtype).masked_fill_(hidden, float("-inf"))[None, None]

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float | None) -> Tensor:
        """Stores the new keys and values of a layer and attends. All arguments are `[1, (kv_)heads, tokens, width]`;
        returns `[1, tokens, heads, width]`."""
        heads, width = query.shape[1], query.shape[3]
        kv_heads, group = self.geometry.kv_heads, self.geometry.group
        new = torch.stack((key[0], value[0]))
        parts = new.split([*self.sizes, self.padding], dim=2) if len(self.sizes) > 1 or self.padding else (new,)
        for slots, part in zip(self._slots, parts, strict=False):
            slots[layer].copy_(part)
        for watched in self._watches:
            self._show(*watched, layer, query, scale)
        out: list[Tensor] = []
        singles = self.singles
        if singles:
            grouped = query[0, :, :singles].transpose(0, 1).reshape(singles, kv_heads, group, width)
            if self._short:
                grouped = pad(grouped, (0, 0, 0, self._short))
            rows = [
                scaled_dot_product_attention(q, keys[layer][None], values[layer][None], mask, scale=scale)
                for q, (keys, values), mask in zip(
                    grouped.split(1), self._views[:singles], self._masks[:singles], strict=True
                )
            ]
            done = torch.cat(rows) if singles > 1 else rows[0]
            out.append(done[:, :, :group].reshape(singles, heads, width))
        start = singles
        for n in range(singles, len(self.sizes)):
            count, mask = self.sizes[n], self._masks[n]
            assert mask is not None
            q = query[0, :, start : start + count].reshape(kv_heads, group, count, width)
            if mask.shape[2] > count:
                q = pad(q, (0, 0, 0, mask.shape[2] - count))
            keys, values = self._views[n]
            shape = (kv_heads, group, mask.shape[3], width)
            block = scaled_dot_product_attention(
                q, keys[layer][:, None].expand(shape), values[layer][:, None].expand(shape), mask, scale=scale
            )
            out.append(block[:, :, :count].reshape(heads, count, width).transpose(0, 1))
            start += count
        if self.padding:
            out.append(query[0, :, start:].transpose(0, 1))
        return (torch.cat(out) if len(out) > 1 else out[0])[None]

    def _show(self, n: int, watch: Watch, first: int, layer: int, query: Tensor, scale: float | None) -> None:
        """Computes the weights that fused attention keeps to itself, for the new tokens of row `n`."""
        if layer not in watch.layers:
            return
        heads, width = query.shape[1], query.shape[3]
        count, start = self.sizes[n], sum(self.sizes[:n])
        keys = self._views[n][0][layer][:, : first + count]
        q = query[0, :, start : start + count].reshape(len(keys), heads // len(keys), count, width)
        scores = torch.einsum("kgqw,klw->kgql", q.float(), keys.float()) * (width**-0.5 if scale is None else scale)
        ahead = torch.ones(count, first + count, dtype=torch.bool, device=q.device).triu(first + 1)
        weights = scores.masked_fill(ahead, float("-inf")).softmax(-1)
        watch.saw(layer, first, weights.mean((0, 1)))


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    step: Step | Probe | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """The function that models call. Shapes as `Step.attend`."""
    if step is None:
        raise RuntimeError("a model that an engine loaded runs inside that engine only")
    if isinstance(step, Probe):
        step.saw(module, query, key, value, options)
        return query.transpose(1, 2).contiguous(), None
    return step.attend(module.layer_idx, query, key, value, scaling), None  # type: ignore[arg-type]


class Probe:
    """Takes the place of a `Step` in one trial forward: learns the geometry, and what the engine cannot do."""

    def __init__(self, context: int):
        self.context = context
        self.shapes: dict[int, tuple[int, int, int, int]] = {}
        self.problem = ""
        self.sample: Tensor | None = None

    def saw(self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, options: dict[str, Any]) -> None:
        layer: Any = getattr(module, "layer_idx", None)
        window = options.get("sliding_window")
        if window is not None and window < self.context:
            self.problem = f"layer {layer} has a sliding window of {window} tokens"
        for option in ("s_aux", "softcap", "position_bias"):
            if options.get(option) is not None:
                self.problem = f"layer {layer} needs attention with {option}"
        if not isinstance(layer, int) or layer in self.shapes:
            self.problem = f"{type(module).__name__} does not number its layers"
        if key.shape != value.shape or query.shape[3] != key.shape[3]:
            self.problem = f"layer {layer} has keys, values and queries of different widths"
        self.shapes[layer] = (query.shape[1], key.shape[1], key.shape[3], value.shape[3])
        self.sample = key

    def geometry(self, layers: int) -> Geometry:
        """What the trial forward saw.

        Raises:
            ValueError: the model's attention is not one that a `Step` can do; says which layer and why.
        """
        if not self.problem and sorted(self.shapes) != list(range(layers)):
            missing = sorted(set(range(layers)) - set(self.shapes))
            self.problem = f"layers {missing} bypass the attention interface (linear attention or an old model class)"
        if not self.problem and len(set(self.shapes.values())) > 1:
            self.problem = "its layers have different shapes"
        if self.problem or self.sample is None:
            raise ValueError(self.problem)
        heads, kv_heads, width, _ = self.shapes[0]
        return Geometry(layers, heads, kv_heads, width, self.sample.dtype, self.sample.device)
