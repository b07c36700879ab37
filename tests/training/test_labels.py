"""Labels: estimates under early ending, their uncertainty, the stored set, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from math import comb
from pathlib import Path

import pytest

from baton.training.labels import (
    Label,
    from_rows,
    load_labels,
    save_labels,
    standard_error,
    success_rate,
    summary,
)

LABEL = Label(
    question="q1", question_text="1 + 1?", gold="2", level="1", sample=0, state=1, router="random",
    prompt_ids=[1, 2], path_ids=[3, 4], step_ends=[2], draft_ids=[5], target_ids=[6], draft_text="a", target_text="b",
    taken="draft", draft_outcomes=[0, 0, 0, 0], target_outcomes=[1, 1, 1, 1], q_draft=0.0, q_target=1.0,
    q_draft_se=standard_error([0] * 4), q_target_se=standard_error([1] * 4), draft_tokens=9.5, target_tokens=8.0,
    draft_cut=1, target_cut=0, ungraded=0, sampled_tokens=80, continued_by="target",
)  # fmt: skip


def ended(outcomes: tuple[int, ...], look: int) -> tuple[int, ...]:
    """What is left of a row of outcomes where it ends after `look` that are alike."""
    return outcomes[:look] if len(set(outcomes[:look])) == 1 else outcomes


@pytest.mark.parametrize(("look", "n"), [(2, 4), (3, 8), (4, 8), (4, 5)])
@pytest.mark.parametrize("chance", [0.05, 0.5, 0.8])
def test_the_estimate_is_unbiased_though_rollouts_end_early(look: int, n: int, chance: float):
    expected = mean = 0.0
    for outcomes in product((0, 1), repeat=n):
        weight = chance ** sum(outcomes) * (1 - chance) ** (n - sum(outcomes))
        seen = ended(outcomes, look)
        expected += weight * success_rate(seen, look)
        mean += weight * sum(seen) / len(seen)
    assert expected == pytest.approx(chance, abs=1e-12)
    if chance != 0.5:
        assert abs(mean - chance) > 1e-3, "the plain mean is biased, or this test shows nothing"


def test_without_a_look_the_estimate_is_the_mean():
    assert [success_rate([1] * k + [0] * (8 - k)) for k in (0, 3, 8)] == [0, 3 / 8, 1]


def test_the_standard_error_never_says_certain_unless_nothing_is_left_to_chance():
    assert standard_error([1] * 8) > 0.05
    assert standard_error([1, 0] * 32) < standard_error([1, 0] * 4) < standard_error([])
    assert standard_error([1], exact=True) == 0


def test_the_standard_error_is_that_of_jeffreys_posterior():
    a, b = 6.5, 2.5
    assert standard_error([1] * 6 + [0] * 2) ** 2 == pytest.approx(a * b / ((a + b) ** 2 * (a + b + 1)))


def test_harm_is_what_the_drafts_step_loses_and_keep_its_opposite():
    half = replace(LABEL, q_draft=0.25, q_target=0.75)
    better = replace(LABEL, q_draft=1.0, q_target=0.5)
    assert (half.correct, half.harm, half.keep) == (0.25, 0.5, 0.5)
    assert (better.harm, better.keep) == (-0.5, 1.0)
    assert half.harm_se == pytest.approx((LABEL.q_draft_se**2 + (LABEL.q_target_se or 0) ** 2) ** 0.5)


def test_the_same_step_does_no_harm_for_certain():
    same = replace(LABEL, target_ids=[5], q_draft=0.5, q_target=0.5)
    assert (same.same, same.harm, same.harm_se) == (True, 0.0, 0.0)


def test_a_set_is_read_back_as_it_was_written_with_typed_columns(tmp_path: Path):
    from datasets import load_dataset

    labels = [LABEL, replace(LABEL, state=2, level=None, q_target=None, q_target_se=None, target_ids=[])]
    save_labels(tmp_path, labels, {"split": "train"})
    assert load_labels(tmp_path) == labels
    read = load_dataset(str(tmp_path), split="train", cache_dir=str(tmp_path / "cache"))
    assert read.features["draft_ids"].feature.dtype == "int32"
    assert read.features["draft_outcomes"].feature.dtype == "int8"
    assert "| split | train |" in (tmp_path / "README.md").read_text()


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"draft_ids": []}, "draft_ids: an empty step"),
        ({"target_ids": []}, "target_ids: an empty step"),
        ({"q_draft": 1.2}, "q_draft: 1.2 is no chance"),
        ({"draft_outcomes": [2]}, "draft_outcomes: [2]"),
        ({"step_ends": [1]}, "step_ends: [1] do not divide the 2 tokens"),
        ({"step_ends": [2, 1]}, "step_ends: [2, 1]"),
        ({"prompt_ids": []}, "prompt_ids: empty"),
        ({"path_ids": [3, -1]}, "path_ids: -1 is no token id"),
    ],
)
def test_a_row_that_is_no_label_is_named_with_its_number(wrong: dict, said: str):
    rows = [
        {name: getattr(label, name) for name in Label.__dataclass_fields__}
        for label in (LABEL, replace(LABEL, **wrong))
    ]
    with pytest.raises(ValueError, match=r"file: row 2: ") as error:
        list(from_rows(rows, "file"))
    assert said in str(error.value)


def test_a_missing_column_is_named():
    with pytest.raises(ValueError, match="row 1: the column 'question' is missing"):
        list(from_rows([{"text": "x"}], "file"))


def test_the_summary_counts_who_was_better():
    labels = [
        LABEL,
        replace(LABEL, question="q2", q_draft=1.0, q_target=0.9),
        replace(LABEL, question="q3", target_ids=[5], q_target=0.0),
    ]
    found = summary(labels)
    assert found["draft's step"] == {"better": 1, "clearly better": 0, "worse": 1, "clearly worse": 1}
    assert found["same step"] == 1
    assert found["harm"] == pytest.approx((1 - 0.1 + 0) / 3)
    # The step that both write was continued once.
    assert found["continuations"] == 8 + 8 + 4


def test_the_paths_behind_the_estimate_are_all_orders_that_were_not_ended():
    look, n, solved = 4, 8, 6
    orders = [o for o in product((0, 1), repeat=n) if sum(o) == solved and len(set(o[:look])) > 1]
    assert len(orders) < comb(n, solved)
    outcomes = [1] * 3 + [0] + [1] * 3 + [0]
    assert success_rate(outcomes, look) == pytest.approx(sum(o[0] for o in orders) / len(orders))
