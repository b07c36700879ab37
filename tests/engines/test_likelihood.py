"""Numbers of a distribution of which only the likeliest tokens are known."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from baton.boundary import ENTROPY, MARGIN, TOP_PROB
from baton.engines import likelihood, sampling
from baton.engines.base import Read

ALL = frozenset([ENTROPY, MARGIN, TOP_PROB])
logits = st.lists(st.floats(-8, 8), min_size=3, max_size=30)


@given(logits)
def test_of_the_whole_vocabulary_they_are_those_of_the_logits(values: list[float]) -> None:
    (exact,) = sampling.features(torch.tensor([values], dtype=torch.float64))
    (likely,) = sampling.top(torch.tensor([values], dtype=torch.float64), len(values))
    assert likelihood.features(likely, ALL) == pytest.approx(exact, abs=1e-9)


@given(logits, st.integers(2, 10))
def test_of_the_likeliest_the_entropy_is_a_lower_bound_and_the_others_are_exact(
    values: list[float], count: int
) -> None:
    (exact,) = sampling.features(torch.tensor([values], dtype=torch.float64))
    (likely,) = sampling.top(torch.tensor([values], dtype=torch.float64), count)
    known = likelihood.features(likely, ALL)
    assert known[ENTROPY] <= exact[ENTROPY] + 1e-9
    assert known[MARGIN] == pytest.approx(exact[MARGIN], abs=1e-9)
    assert known[TOP_PROB] == pytest.approx(exact[TOP_PROB], abs=1e-9)


def test_no_more_is_asked_of_the_backend_than_is_read() -> None:
    cases = [
        (Read(), None), (Read(top=5), 5), (Read(frozenset([MARGIN])), 2), (Read(frozenset([TOP_PROB]), top=7), 7),
        (Read(frozenset([ENTROPY])), 20), (Read(frozenset([ENTROPY]), top=30), 30),
    ]  # fmt: skip
    assert [likelihood.wanted(read, 20) for read, _ in cases] == [expected for _, expected in cases]
    assert likelihood.wanted(Read(frozenset([ENTROPY]), top=3), -1) == -1


def test_a_given_token_need_not_be_among_the_likeliest() -> None:
    score = likelihood.token_score(7, {3: math.log(0.6), 5: math.log(0.3), 7: math.log(0.01)})
    assert (score.argmax, score.logprob) == (3, math.log(0.01))
    assert score.margin == pytest.approx(0.3)
