"""What can be read of a distribution of which only the likeliest tokens are known."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from baton.boundary import ENTROPY, MARGIN, TOP_PROB, Feature
from baton.engines.base import Read, TokenScore

Likely = Sequence[tuple[int, float]]
"""(id, log-probability in nats), likeliest first."""


def ranked(logprobs: Mapping[int, float], count: int | None = None) -> list[tuple[int, float]]:
    """The `count` likeliest of the tokens known, likeliest first; all if None."""
    return sorted(logprobs.items(), key=lambda pair: -pair[1])[:count]


def wanted(read: Read, entropy: int) -> int | None:
    """How many likeliest tokens a backend must report for `read`, None for none; `entropy` is how many of them the
    entropy takes (-1: the whole vocabulary)."""
    count = read.top
    if MARGIN in read.features or TOP_PROB in read.features:
        count = max(count, 2)
    if ENTROPY in read.features:
        count = -1 if entropy < 0 else max(count, entropy)
    return count or None


def top(likely: Likely, count: int, sampled: int) -> list[tuple[int, float]]:
    """The `count` likeliest, and the sampled token's own pair behind them if it is not among them but known."""
    chosen = list(likely[:count])
    if any(token == sampled for token, _ in chosen):
        return chosen
    return chosen + [pair for pair in likely[count:] if pair[0] == sampled][:1]


def features(likely: Likely, which: frozenset[Feature]) -> dict[Feature, float]:
    """The numbers in `which`. Margin and top probability are exact; the entropy counts what is not known as one token,
    which makes it a lower bound."""
    numbers: dict[Feature, float] = {}
    if which & {MARGIN, TOP_PROB}:
        first = math.exp(likely[0][1])
        second = math.exp(likely[1][1]) if len(likely) > 1 else 0.0
        numbers = {MARGIN: first - second, TOP_PROB: first}
    if ENTROPY in which:
        numbers[ENTROPY] = entropy(likely)
    return {feature: numbers[feature] for feature in which}


def entropy(likely: Likely) -> float:
    """Entropy in nats, everything that is not known taken as one token."""
    probabilities = [math.exp(logprob) for _, logprob in likely]
    rest = 1.0 - math.fsum(probabilities)
    parts = [p * logprob for p, (_, logprob) in zip(probabilities, likely, strict=True) if p > 0]
    if rest > 1e-12:
        parts.append(rest * math.log(rest))
    return -math.fsum(parts)


def token_score(given: int, known: Mapping[int, float]) -> TokenScore:
    """How a model sees the token `given`, which is one of the tokens known."""
    likely = ranked(known)
    best, best_logprob = likely[0]
    margin = features(likely, frozenset([MARGIN]))[MARGIN]
    return TokenScore(known[given], best, best_logprob, margin, entropy(likely))
