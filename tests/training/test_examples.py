"""From labelled states to what is trained on: chains, masking, the split, and rows that are refused or counted."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from label_sets import BAD, LONG, VOCABULARY, accepted, damage, encode, labels, write

from baton.training.examples import Rules, read_examples, read_labels, split
from baton.training.labels import Label
from baton.vocabulary import Vocabulary

RULES = Rules(label="keep", longest=2048)


def length(label: Label) -> int:
    return len(label.prompt_ids) + len(label.path_ids) + len(label.draft_ids)


def test_each_label_stands_once_at_the_last_token_of_its_step(tmp_path: Path):
    content = labels(20)
    found = read_examples(write(tmp_path, content), VOCABULARY, RULES)
    steps = {step.row: (example, step) for example in found.examples for step in example.steps}
    assert sorted(steps) == list(range(1, 61))
    assert found.steps == 60
    for n, label in enumerate(content, 1):
        example, step = steps[n]
        assert list(example.ids[: step.end]) == label.prompt_ids + label.path_ids + label.draft_ids
        assert step.label == label.keep


def test_steps_that_an_answer_kept_share_a_sequence(tmp_path: Path):
    content = labels(40)
    found = read_examples(write(tmp_path, content), VOCABULARY, RULES)
    ends_a_chain = sum(label.taken == "target" or label.state == 2 for label in content)
    assert len(found.examples) == ends_a_chain < len(content)


def test_labels_are_soft_and_say_what_was_asked_for(tmp_path: Path):
    label = replace(labels(1, steps=1)[0], q_draft=0.25, q_target=0.875)
    (keep,) = read_examples(write(tmp_path / "a", [label]), VOCABULARY, RULES).examples
    (correct,) = read_examples(tmp_path / "a", VOCABULARY, Rules("correct", 2048)).examples
    assert (keep.steps[0].label, keep.steps[0].harm) == (0.375, 0.625)
    assert (correct.steps[0].label, correct.steps[0].harm) == (0.25, 0.625)
    better = write(tmp_path / "b", [replace(label, q_draft=0.875, q_target=0.25)])
    assert read_examples(better, VOCABULARY, RULES).examples[0].steps[0].label == 1.0


def test_states_that_are_missing_or_elsewhere_lose_no_label(tmp_path: Path):
    content = accepted(4)

    def chains(rows: list[Label], name: str) -> list[int]:
        return sorted(len(e.steps) for e in read_examples(write(tmp_path / name, rows), VOCABULARY, RULES).examples)

    assert chains(content, "whole") == [4]
    assert chains(content[:1] + content[2:], "gap") == [3]
    path = encode("Something else.\n\n")
    assert chains([*content[:2], replace(content[2], path_ids=path, step_ends=[len(path)]), content[3]], "other") == [
        1, 1, 2,
    ]  # fmt: skip


def test_alternatives_from_one_state_leave_the_kept_steps_in_one_sequence(tmp_path: Path):
    content = accepted(3)
    other = "9 - 9 = 1.\n\n"
    alternative = replace(content[1], draft_ids=encode(other), draft_text=other, taken="target")
    found = read_examples(write(tmp_path, [*content[:2], alternative, content[2]]), VOCABULARY, RULES)
    assert sorted(len(e.steps) for e in found.examples) == [2, 2]
    assert found.steps == 4


def test_steps_after_the_first_error_are_masked_and_counted(tmp_path: Path):
    chances = (0.875, 0.125, 0.0, 0.0)
    content = [replace(label, q_draft=q) for label, q in zip(accepted(4), chances, strict=True)]
    found = read_examples(write(tmp_path, content), VOCABULARY, Rules("correct", 2048, first_error_below=0.5))
    (example,) = found.examples
    assert [step.label for step in example.steps] == [0.875, 0.125]
    assert len(example.ids) == example.steps[-1].end
    assert found.left_out == {"after the first error": 2}


@pytest.mark.parametrize("reason", BAD)
def test_a_bad_row_is_named_and_refused_or_counted(tmp_path: Path, reason: str):
    folder = damage(write(tmp_path, labels(2)), {4: BAD[reason]})
    with pytest.raises(ValueError) as error:
        read_examples(folder, VOCABULARY, RULES)
    assert f"row 4: {reason}" in str(error.value)
    found = read_examples(folder, VOCABULARY, Rules("keep", 2048, on_bad="leave_out"))
    assert found.left_out == {reason.partition(":")[0]: 1}
    assert found.steps == 5


def test_nothing_is_cut_to_the_limit(tmp_path: Path):
    content = labels(3)
    lengths = sorted(map(length, content))
    limit = lengths[4]
    found = read_examples(write(tmp_path, content), VOCABULARY, Rules("keep", limit, on_bad="leave_out"))
    assert found.left_out["longer than the limit"] == sum(n > limit for n in lengths) > 0
    assert sorted(step.end for e in found.examples for step in e.steps) == [n for n in lengths if n <= limit]


def test_what_is_read_of_the_target_must_fit_and_be_of_the_vocabulary(tmp_path: Path):
    both = Rules("keep", 60, on_bad="leave_out", reads=("draft", "target"))
    content = labels(2)
    long = replace(content[1], target_ids=LONG, target_text=VOCABULARY.text_of(LONG))
    write(tmp_path / "long", [content[0], long])
    assert len(read_labels(tmp_path / "long", VOCABULARY, replace(both, reads=("draft",)), Counter())) == 2
    left_out: Counter[str] = Counter()
    assert len(read_labels(tmp_path / "long", VOCABULARY, both, left_out)) == 1
    assert left_out == {"longer than the limit": 1}
    write(tmp_path / "foreign", [content[0], replace(content[1], target_ids=[99_999])])
    with pytest.raises(ValueError, match=r"row 2: .*another tokenizer"):
        read_labels(tmp_path / "foreign", VOCABULARY, both, Counter())


def test_states_of_another_tokenizer_are_refused_whatever_becomes_of_bad_rows(tmp_path: Path):
    folder = write(tmp_path, labels(2))
    other = Vocabulary(list(reversed(VOCABULARY.tokens)), VOCABULARY.encode, VOCABULARY.end_of_text)
    with pytest.raises(ValueError, match=r"row 1: .*another tokenizer"):
        read_examples(folder, other, Rules("keep", 2048, on_bad="leave_out"))
    small = Vocabulary(VOCABULARY.tokens[:300], VOCABULARY.encode, VOCABULARY.end_of_text)
    with pytest.raises(ValueError, match="another tokenizer"):
        read_examples(folder, small, RULES)


def test_a_step_with_bytes_that_form_no_character_is_learned_in_another_vocabulary(tmp_path: Path):
    content = labels(1)
    content[0] = replace(content[0], draft_text="\ufffd" + content[0].draft_text.replace(" = ", " \ufffd= "))
    assert read_examples(write(tmp_path, content), VOCABULARY, RULES).steps == 3


def test_rows_without_the_targets_step_can_be_learned_as_correct_alone(tmp_path: Path):
    content = labels(2)
    content[:2] = [replace(label, q_target=None, q_target_se=None) for label in content[:2]]
    folder = write(tmp_path, content)
    assert read_examples(folder, VOCABULARY, RULES).left_out == {"no step of the target": 2}
    found = read_examples(folder, VOCABULARY, Rules("correct", 2048))
    assert not found.left_out
    assert sum(step.harm is None for e in found.examples for step in e.steps) == 2


def test_no_question_is_on_both_sides_of_the_split_and_order_does_not_matter(tmp_path: Path):
    content = labels(60)
    parts = split(read_examples(write(tmp_path / "a", content), VOCABULARY, RULES).examples, 0.25, 0.25)
    learned, development, held = ({e.question for e in part} for part in parts)
    assert not learned & development
    assert not (learned | development) & held
    assert len(learned | development | held) == 60
    assert all(5 <= len(part) <= 25 for part in (development, held))
    random.Random(1).shuffle(content)
    again = read_examples(write(tmp_path / "b", content), VOCABULARY, Rules("correct", 2048)).examples
    assert {e.question for e in split(again, 0.25, 0.25).development} == development
    # Whether something is chosen does not change what is held out.
    assert {e.question for e in split(again, 0.25).held_out} == held
    with pytest.raises(ValueError, match=r"held_out: 0\.0 and .* of 60 questions"):
        split(again, 0.0)
    with pytest.raises(ValueError, match=r"development: 1e-09 of 60 questions .* 0 to choose on"):
        split(again, 0.25, 1e-9)


def test_a_set_that_is_not_there_is_an_error(tmp_path: Path):
    with pytest.raises(ValueError, match="baton label"):
        read_examples(tmp_path / "none", VOCABULARY, RULES)
