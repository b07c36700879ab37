"""Tokens drawn from a forward's logits, and what calls asked to read of them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from torch import Tensor

from baton.engines import likelihood, sampling
from baton.engines.rows import Reads, Sample


def draw(rows: Sequence[Sample], logits: Tensor) -> list[int]:
    """For each row the tokens at its position and, one a proposed token, at those that follow."""
    return sampling.draw_at(
        logits, [(row.call, row.position + n) for row in rows for n in range(1 + len(row.proposed))]
    )


def read_runs(rows: list[Sample], runs: list[list[int]], logits: Tensor, states: Tensor, at: list[int]) -> list[Reads]:
    """What is read at each token of each run; rejected tokens are left out."""
    readers = [row for row, run in zip(rows, runs, strict=True) for _ in run]
    if len(readers) < len(at):
        begins = accumulate((1 + len(row.proposed) for row in rows), initial=0)
        kept = [n for begin, run in zip(begins, runs, strict=False) for n in range(begin, begin + len(run))]
        logits, at = logits[kept], [at[n] for n in kept]
    return _read(readers, [token for run in runs for token in run], logits, states, at)


def _read(
    rows: Sequence[Sample], tokens: Sequence[int], logits: Tensor, states: Tensor, where: list[int]
) -> list[Reads]:
    """What each row's call asked to read of its token; numbers are computed for all rows where any asks."""
    wishes = [row.call.read for row in rows]
    reads = [Reads() for _ in rows]
    if any(wish.features for wish in wishes):
        for read, wish, numbers in zip(reads, wishes, sampling.features(logits), strict=True):
            read.features = {feature: numbers[feature] for feature in wish.features}
    count = max(wish.top for wish in wishes)
    if count:
        likely, own = sampling.top(logits, count), sampling.logprobs(logits, tokens)
        for read, wish, pairs, sampled in zip(reads, wishes, likely, zip(tokens, own, strict=True), strict=True):
            if wish.top:
                read.top = likelihood.top([*pairs, sampled], wish.top, sampled[0])
    if any(wish.hidden for wish in wishes):
        for read, state in zip(reads, states[where], strict=True):
            read.hidden = state
    return reads
