"""From labelled states to what is trained on: chains, masking, the split, and rows that are refused or counted."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from label_sets import VOCABULARY, encode, rows, write

from baton.training.examples import Rules, read_examples, split
from baton.vocabulary import Vocabulary

RULES = Rules(label="keep", longest=2048)


def test_each_label_stands_once_at_the_last_token_of_its_step(tmp_path: Path):
    content = rows(20)
    found = read_examples(write(tmp_path / "a.parquet", content), VOCABULARY, RULES)
    steps = {step.row: (example, step) for example in found.examples for step in example.steps}
    assert sorted(steps) == list(range(1, 61))
    assert found.steps == 60
    for n, row in enumerate(content, 1):
        example, step = steps[n]
        assert list(example.ids[: step.end]) == row["prompt_ids"] + row["path_ids"] + row["draft_ids"]
        assert VOCABULARY.text_of(example.ids[: step.end]).endswith(row["draft_text"])


def test_steps_that_an_answer_kept_share_a_sequence(tmp_path: Path):
    content = rows(40)
    found = read_examples(write(tmp_path / "a.parquet", content), VOCABULARY, RULES)
    last = {row["question"]: row["state"] for row in content}
    ends_a_chain = sum(row["taken"] == "target" or row["state"] == last[row["question"]] for row in content)
    assert len(found.examples) == ends_a_chain < len(content)


def test_labels_are_soft_and_say_what_was_asked_for(tmp_path: Path):
    row = rows(1, steps=1)[0] | {"q_draft": 0.25, "q_target": 0.875}
    file = write(tmp_path / "a.parquet", [row])
    (keep,) = read_examples(file, VOCABULARY, RULES).examples
    (correct,) = read_examples(file, VOCABULARY, Rules("correct", 2048)).examples
    assert (keep.steps[0].label, keep.steps[0].harm) == (0.375, 0.625)
    assert (correct.steps[0].label, correct.steps[0].harm) == (0.25, 0.625)
    better = write(tmp_path / "b.parquet", [row | {"q_draft": 0.875, "q_target": 0.25}])
    assert read_examples(better, VOCABULARY, RULES).examples[0].steps[0].label == 1.0


def test_states_that_are_missing_break_a_chain_and_lose_no_label(tmp_path: Path):
    content = [row | {"taken": "draft"} for row in rows(1, steps=4)]
    for row, before in zip(content[1:], content[:-1], strict=True):
        row["path_ids"] = before["path_ids"] + before["draft_ids"]
    whole = read_examples(write(tmp_path / "a.parquet", content), VOCABULARY, RULES)
    assert [len(e.steps) for e in whole.examples] == [4]
    gap = read_examples(write(tmp_path / "b.parquet", content[:1] + content[2:]), VOCABULARY, RULES)
    assert [len(e.steps) for e in gap.examples] == [3]
    other = content[2] | {"path_ids": encode("Something else.\n\n")}
    broken = read_examples(write(tmp_path / "c.parquet", [*content[:2], other, content[3]]), VOCABULARY, RULES)
    assert sorted(len(e.steps) for e in broken.examples) == [1, 1, 2]


def test_steps_after_the_first_error_are_masked_and_counted(tmp_path: Path):
    content = [row | {"taken": "draft"} for row in rows(1, steps=4)]
    for row, before in zip(content[1:], content[:-1], strict=True):
        row["path_ids"] = before["path_ids"] + before["draft_ids"]
    for row, q in zip(content, (0.875, 0.125, 0.0, 0.0), strict=True):
        row["q_draft"] = q
    file = write(tmp_path / "a.parquet", content)
    found = read_examples(file, VOCABULARY, Rules("correct", 2048, first_error_below=0.5))
    (example,) = found.examples
    assert [step.label for step in example.steps] == [0.875, 0.125]
    assert len(example.ids) == example.steps[-1].end
    assert found.left_out == {"after the first error": 2}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"draft_ids": [], "draft_text": ""}, "empty step"),
        ({"q_draft": 1.5}, "label outside [0, 1]"),
        ({"q_draft": float("nan")}, "label outside [0, 1]"),
        ({"q_target": -0.25}, "label outside [0, 1]"),
        ({"path_ids": encode("So on.\n\n") * 900}, "longer than the limit"),
    ],
)
def test_a_bad_row_is_named_and_refused_or_counted(tmp_path: Path, change: dict[str, Any], reason: str):
    content = rows(2)
    content[3] |= change
    file = write(tmp_path / "a.parquet", content)
    with pytest.raises(ValueError) as error:
        read_examples(file, VOCABULARY, RULES)
    assert str(error.value).startswith(f"{file}: row 4: {reason}")
    found = read_examples(file, VOCABULARY, Rules("keep", 2048, on_bad="leave_out"))
    assert found.left_out == {reason: 1}
    assert found.steps == 5


def test_nothing_is_cut_to_the_limit(tmp_path: Path):
    content = rows(3)
    file = write(tmp_path / "a.parquet", content)
    lengths = [len(r["prompt_ids"]) + len(r["path_ids"]) + len(r["draft_ids"]) for r in content]
    limit = sorted(lengths)[4]
    found = read_examples(file, VOCABULARY, Rules("keep", limit, on_bad="leave_out"))
    assert found.left_out["longer than the limit"] == sum(n > limit for n in lengths) > 0
    assert sorted(step.end for e in found.examples for step in e.steps) == sorted(n for n in lengths if n <= limit)


def test_states_of_another_tokenizer_are_refused_whatever_becomes_of_bad_rows(tmp_path: Path):
    other = Vocabulary(list(reversed(VOCABULARY.tokens)), VOCABULARY.encode, VOCABULARY.end_of_text)
    file = write(tmp_path / "a.parquet", rows(2))
    with pytest.raises(ValueError, match=r"row 1: .*another tokenizer"):
        read_examples(file, other, Rules("keep", 2048, on_bad="leave_out"))
    small = Vocabulary(VOCABULARY.tokens[:300], VOCABULARY.encode, VOCABULARY.end_of_text)
    with pytest.raises(ValueError, match="another tokenizer"):
        read_examples(file, small, RULES)


def test_rows_without_the_targets_step_can_be_learned_as_correct_alone(tmp_path: Path):
    content = rows(2)
    for row in content[:2]:
        row["q_target"] = None
    file = write(tmp_path / "a.parquet", content)
    assert read_examples(file, VOCABULARY, RULES).left_out == {"no q_target": 2}
    found = read_examples(file, VOCABULARY, Rules("correct", 2048))
    assert not found.left_out
    assert sum(step.harm is None for e in found.examples for step in e.steps) == 2


def test_no_question_is_on_both_sides_of_the_split_and_order_does_not_matter(tmp_path: Path):
    content = rows(60)
    learned, held = split(read_examples(write(tmp_path / "a.parquet", content), VOCABULARY, RULES).examples, 0.25)
    asked = {e.question for e in learned}, {e.question for e in held}
    assert not asked[0] & asked[1]
    assert 5 <= len(asked[1]) <= 25
    random.Random(1).shuffle(content)
    again = read_examples(write(tmp_path / "b.parquet", content), VOCABULARY, Rules("correct", 2048)).examples
    assert {e.question for e in split(again, 0.25)[1]} == asked[1]
    with pytest.raises(ValueError, match=r"held_out: 0\.0 of 60 questions"):
        split(learned + held, 0.0)


def test_a_set_that_is_not_there_is_an_error(tmp_path: Path):
    with pytest.raises(ValueError, match="baton label"):
        read_examples(tmp_path / "none", VOCABULARY, RULES)
