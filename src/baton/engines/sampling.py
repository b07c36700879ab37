"""Drawing tokens from logits, and the numbers a router reads from them.

Every function works on each row alone: what a row gets does not depend on the rows beside it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from baton.boundary import ENTROPY, MARGIN, TOP_PROB, Feature
from baton.engines.base import Call, Sampling, TokenScore, uniform


def draw_at(logits: Tensor, places: Sequence[tuple[Call, int]]) -> list[int]:
    """The token that a call draws at a position, by its seed, from each row of `logits` `[rows, vocabulary]`."""
    return draw(
        logits,
        [call.sampling for call, _ in places],
        [uniform(call.seed, position) if call.sampling.temperature else 0.0 for call, position in places],
    )


def draw(logits: Tensor, samplings: Sequence[Sampling], uniforms: Sequence[float]) -> list[int]:
    """One token a row of `logits` `[rows, vocabulary]`; `uniforms` in [0, 1) decide, greedy rows ignore theirs."""
    random = [n for n, sampling in enumerate(samplings) if sampling.temperature > 0]
    if len(random) == len(samplings):
        return _invert(logits, samplings, uniforms)
    tokens: list[int] = logits.argmax(-1).tolist()
    if random:
        chosen = _invert(logits[random], [samplings[n] for n in random], [uniforms[n] for n in random])
        for n, token in zip(random, chosen, strict=True):
            tokens[n] = token
    return tokens


def _invert(logits: Tensor, samplings: Sequence[Sampling], uniforms: Sequence[float]) -> list[int]:
    """Inverse of the filtered cumulative distribution, tokens in order of falling probability, ties by id.

    In that order each filter keeps a beginning, so the filters together are one count of kept tokens.
    """

    def column(values: Sequence[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float64, device=logits.device)[:, None]

    ordered, ids = logits.sort(dim=-1, descending=True, stable=True)
    weights = ((ordered - ordered[:, :1]).double() / column([s.temperature for s in samplings])).exp()
    ranks = torch.arange(weights.shape[1], device=logits.device)
    kept = ranks < column([s.top_k or weights.shape[1] for s in samplings])
    mass = (weights * kept).cumsum(-1)
    if any(s.top_p < 1 for s in samplings):
        # The token that crosses top_p is kept: drop those whose predecessors have reached it already.
        limit = column([s.top_p for s in samplings]) * mass[:, -1:]
        kept &= torch.cat((torch.zeros_like(mass[:, :1]), mass[:, :-1]), -1) < limit
    if any(s.min_p for s in samplings):
        kept &= weights >= column([s.min_p for s in samplings])
    count = kept.sum(-1, keepdim=True)
    total = mass.gather(-1, count - 1)
    index = torch.searchsorted(mass, column(uniforms) * total, right=True).minimum(count - 1)
    chosen: list[int] = ids.gather(-1, index)[:, 0].tolist()
    return chosen


def features(logits: Tensor) -> list[dict[Feature, float]]:
    """Of each row's distribution at temperature 1, before any filter: entropy (nats), margin and top probability."""
    entropy, first, second = _shape(logits.double().log_softmax(-1))
    rows = zip(entropy.tolist(), (first - second).tolist(), first.tolist(), strict=True)
    return [{ENTROPY: h, MARGIN: m, TOP_PROB: p} for h, m, p in rows]


def top(logits: Tensor, count: int) -> list[list[tuple[int, float]]]:
    """The `count` likeliest (id, log-probability in nats) of each row, likeliest first."""
    values, ids = logits.double().log_softmax(-1).topk(min(count, logits.shape[-1]), -1)
    return [list(zip(i, v, strict=True)) for i, v in zip(ids.tolist(), values.tolist(), strict=True)]


def logprobs(logits: Tensor, tokens: Sequence[int]) -> list[float]:
    """Log-probability in nats of each row's token."""
    own = torch.tensor(tokens, device=logits.device)[:, None]
    found: list[float] = logits.double().log_softmax(-1).gather(-1, own)[:, 0].tolist()
    return found


def scores(logits: Tensor, ids: Sequence[int], temperature: float = 1.0) -> list[TokenScore]:
    """How each row sees the id given for it."""
    logprobs = (logits.double() / temperature).log_softmax(-1)
    entropy, first, second = _shape(logprobs)
    given = logprobs.gather(-1, torch.tensor(ids, device=logits.device)[:, None])[:, 0]
    best, argmax = logprobs.max(-1)
    columns = (given, argmax, best, first - second, entropy)
    return [TokenScore(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]


def _shape(logprobs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Entropy (nats) and the two highest probabilities of each row."""
    probabilities = logprobs.exp()
    entropy = -(probabilities * logprobs).nan_to_num(0.0).sum(-1)
    first, second = probabilities.topk(2, -1).values.unbind(-1)
    return entropy, first, second
