"""Labels of tokens: where the harm of a step stands, and the threshold that finds a share of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from label_sets import labels

from baton.training.tokens import Tally, harmful_tokens

STATE = replace(
    labels(1)[0], prompt_ids=[1, 2], path_ids=[3], step_ends=[1], draft_ids=[10, 11, 12, 13],
    target_ids=[10, 11, 20, 21], q_draft=0.25, q_target=1.0,
)  # fmt: skip


def values(rows, role, doubts=None):
    return [[(step.end, step.label) for step in example.steps] for example in harmful_tokens(rows, role, doubts or {})]


def test_the_drafts_harm_stands_at_the_token_that_the_target_doubts_most():
    assert values([(1, STATE)], "draft", {1: [0.1, 0.2, 5.0, 1.0]}) == [[(4, 0.0), (5, 0.0), (6, 0.75)]]
    (example,) = harmful_tokens([(1, STATE)], "draft", {1: [0.1, 0.2, 5.0, 1.0]})
    assert (example.ids, example.read) == ((1, 2, 3, 10, 11, 12), (10, 11, 12))


def test_a_step_that_does_no_harm_has_harmless_tokens_to_its_end():
    better = replace(STATE, q_draft=1.0, q_target=0.5)
    assert values([(1, better)], "draft") == [[(4, 0.0), (5, 0.0), (6, 0.0), (7, 0.0)]]


def test_the_targets_tokens_tell_harm_until_the_two_steps_part():
    assert values([(1, STATE)], "target") == [[(4, 0.75), (5, 0.75), (6, 0.75)]]
    same = replace(STATE, draft_ids=STATE.target_ids, q_draft=1.0)
    assert values([(1, same)], "target") == [[(4, 0.0), (5, 0.0), (6, 0.0), (7, 0.0)]]


def test_the_threshold_is_the_greatest_that_finds_the_share():
    tally = Tally(np.array([0.9, 0.8, 0.7, 0.6, 0.1]), np.array([1.0, 0.0, 1.0, 0.0, 1.0]))
    assert [tally.threshold(recall) for recall in (0.3, 2 / 3, 1.0)] == [0.9, 0.7, 0.1]
    assert tally.line(0.5, 0.7) == {"recall": 0.5, "threshold": 0.7, "found": pytest.approx(2 / 3), "fires": 0.6}
    assert Tally(tally.scores, np.zeros(5)).threshold(0.9) == 1.0


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=40), st.floats(0.01, 1))
def test_no_higher_threshold_would_do(pairs, recall):
    scores, mass = (np.array(column) for column in zip(*pairs, strict=True))
    threshold = Tally(scores, mass).threshold(recall)
    found, fires = Tally(scores, mass).at(threshold)
    if mass.sum():
        assert found >= recall - 1e-6
        assert mass[scores > threshold].sum() < recall * mass.sum() + 1e-6
        assert fires == pytest.approx(np.mean(scores >= threshold))
