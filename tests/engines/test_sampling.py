"""Drawing against a distribution filtered by hand, token by token."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from baton.engines.base import Sampling, uniform
from baton.engines.sampling import draw, features, scores, top

FILTERS = [
    Sampling(temperature=1.0),
    Sampling(temperature=0.5),
    Sampling(temperature=1.7, top_k=7),
    Sampling(temperature=1.0, top_p=0.6),
    Sampling(temperature=0.8, min_p=0.2),
    Sampling(temperature=1.3, top_k=12, top_p=0.8, min_p=0.05),
]


def filtered(logits: list[float], sampling: Sampling) -> dict[int, float]:
    """The distribution of `sampling`, by its definition: temperature, top-k, top-p, min-p, each on what is left."""
    weights = (torch.tensor(logits, dtype=torch.float64) / sampling.temperature).softmax(-1).tolist()
    left = sorted(range(len(weights)), key=lambda i: (-weights[i], i))
    if sampling.top_k:
        left = left[: sampling.top_k]
    total, kept, reached = sum(weights[i] for i in left), [], 0.0
    for i in left:
        if reached >= sampling.top_p:
            break
        kept.append(i)
        reached += weights[i] / total
    kept = [i for i in kept if weights[i] >= sampling.min_p * weights[kept[0]]]
    total = sum(weights[i] for i in kept)
    return {i: weights[i] / total for i in kept}


@pytest.mark.parametrize("sampling", FILTERS, ids=str)
def test_draws_follow_the_filtered_distribution(sampling: Sampling) -> None:
    torch.manual_seed(3)
    logits = torch.randn(20) * 1.5
    expected = filtered(logits.tolist(), sampling)
    count = 8000
    drawn = draw(logits.expand(count, 20), [sampling] * count, [uniform(11, n) for n in range(count)])
    assert set(drawn) <= set(expected)
    observed = [drawn.count(i) for i in expected]
    if len(expected) > 1:
        assert chisquare(observed, [p * count for p in expected.values()]).pvalue > 1e-3


@given(
    logits=st.lists(st.integers(-4, 4), min_size=2, max_size=30),
    u=st.floats(0, 1, exclude_max=True),
    sampling=st.builds(
        Sampling, st.sampled_from((0.3, 1.0, 2.0)), st.sampled_from((0.37, 0.9, 1.0)), st.sampled_from((0, 1, 3)),
        st.sampled_from((0.0, 0.013, 0.5)),
    ),
)  # fmt: skip
def test_a_draw_inverts_the_filtered_distribution_in_order_of_probability(
    logits: list[int], u: float, sampling: Sampling
) -> None:
    expected = filtered([float(x) for x in logits], sampling)
    reached = 0.0
    (drawn,) = draw(torch.tensor([logits], dtype=torch.float32), [sampling], [u])
    assert drawn in expected
    for i, p in expected.items():
        if i == drawn:
            assert reached - 1e-9 <= u <= reached + p + 1e-9
        reached += p


@pytest.mark.parametrize("u", [0.0, 1.0 - 2**-53])
def test_the_ends_of_the_unit_interval_draw_kept_tokens(u: float) -> None:
    logits = torch.linspace(0, -12, 50)[None]
    for sampling in FILTERS:
        assert draw(logits, [sampling], [u])[0] in filtered(logits[0].tolist(), sampling)


def test_rows_do_not_change_each_other() -> None:
    torch.manual_seed(5)
    logits = torch.randn(9, 300) * 3
    samplings = [*FILTERS, Sampling(), Sampling(), Sampling(temperature=0.9, top_p=0.95)]
    uniforms = [uniform(1, n) for n in range(9)]
    together = draw(logits, samplings, uniforms)
    alone = [draw(logits[n : n + 1], samplings[n : n + 1], uniforms[n : n + 1])[0] for n in range(9)]
    assert together == alone
    assert features(logits) == [features(row[None])[0] for row in logits]


def test_greedy_takes_the_first_of_equal_tokens() -> None:
    assert draw(torch.tensor([[0.0, 2.0, 2.0, 1.0]]), [Sampling()], [0.9]) == [1]


def test_a_certain_token_has_no_entropy() -> None:
    logits = torch.tensor([[0.0, float("-inf"), float("-inf")], [1.0, 1.0, 1.0]])
    certain, even = features(logits)
    assert certain == {"entropy": 0.0, "margin": 1.0, "top_prob": 1.0}
    assert even["entropy"] == pytest.approx(torch.tensor(3.0).log().item())
    assert even["margin"] == 0.0


def test_top_and_scores_are_log_probabilities() -> None:
    logits: Any = torch.tensor([[0.5, 0.25, 0.125, 0.125]]).log()
    assert [i for i, _ in top(logits, 2)[0]] == [0, 1]
    assert [p for _, p in top(logits, 2)[0]] == pytest.approx([-0.6931, -1.3863], abs=1e-4)
    assert len(top(logits, 9)[0]) == 4
    (score,) = scores(logits, [2])
    assert (score.logprob, score.argmax, score.argmax_logprob) == pytest.approx((-2.0794, 0, -0.6931), abs=1e-4)
    assert (score.margin, score.entropy) == pytest.approx((0.25, 1.2130), abs=1e-4)


@pytest.mark.parametrize("temperature", [0.25, 0.7, 2.0])
def test_scores_at_a_temperature_are_of_the_distribution_that_is_drawn_from(temperature) -> None:
    values = [0.3, -1.0, 2.0, 0.9]
    expected = filtered(values, Sampling(temperature=temperature))
    found = scores(torch.tensor([values] * 4), range(4), temperature)
    assert [math.exp(s.logprob) for s in found] == pytest.approx([expected[i] for i in range(4)], rel=1e-6)
