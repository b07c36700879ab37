"""Published step labels: what each format means, and lines that are not of it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from baton import nano
from baton.cli import app
from baton.engines.chat import load_tokenizer
from baton.training.command import import_labels
from baton.training.labels import load_labels
from baton.training.published import Published, read


def completion(text: str, rating: int | None) -> dict:
    return {"text": text, "rating": rating, "flagged": False}


PRM800K = {
    "question": {"problem": "2 + 3 - 1?", "ground_truth_answer": "4"},
    "label": {
        "steps": [
            {"completions": [completion("2 + 3 = 6.", -1), completion("2 + 3 = 5.", 1)], "chosen_completion": 1,
             "human_completion": None},
            {"completions": [completion("So far so good.", 0), completion("", None)], "chosen_completion": None,
             "human_completion": completion("5 - 1 = 4.", None)},
            {"completions": [completion("The answer is 4.", 1)], "chosen_completion": 0, "human_completion": None},
        ],
        "finish_reason": "solution",
    },
}  # fmt: skip
SHEPHERD = {
    "input": "Two and three? Step 1: 2 + 3 = 5. ки\nStep 2: 5 + 1 = 7. ки\nStep 3: The answer is: 7 ки",
    "label": "Two and three? Step 1: 2 + 3 = 5. +\nStep 2: 5 + 1 = 7. -\nStep 3: The answer is: 7 -",
    "task": "GSM8K",
}
PLAIN = {
    "id": "p1", "question": "2 + 3?", "answer": "5",
    "labelled_steps": [
        {"prefix": [], "step": "Hm.", "label": -1},
        {"prefix": [], "step": "Add.", "label": 0.75},
        {"prefix": ["Add."], "step": "5.", "label": 1},
        {"prefix": ["Add."], "step": " ", "label": 1},
        {"prefix": ["Add."], "step": "6.", "label": None},
    ],
}  # fmt: skip


@pytest.fixture(scope="module")
def words():
    return load_tokenizer(str(nano.pair_paths()["target"]))


def load(tmp_path: Path, words, form: str, *rows: dict) -> Published:
    (tmp_path / "file.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return read(tmp_path / "file.jsonl", form, *words)


def test_prm800k_rates_alternatives_of_which_the_solution_went_on_with_one(tmp_path: Path, words):
    found = load(tmp_path, words, "prm800k", PRM800K)
    text = words[1].text_of
    assert [(x.state, x.sample, x.q_draft, x.taken, x.draft_text) for x in found.labels] == [
        (0, 1, 0.0, "target", "2 + 3 = 6.\n\n"),
        (0, 0, 1.0, "draft", "2 + 3 = 5.\n\n"),
        (1, 1, 1.0, "target", "So far so good.\n\n"),
        (2, 0, 1.0, "draft", "The answer is 4.\n\n"),
    ]
    last = found.labels[-1]
    assert text(last.path_ids) == "2 + 3 = 5.\n\n5 - 1 = 4.\n\n", "a person's step stands before what follows it"
    assert text(last.path_ids[: last.step_ends[0]]) == "2 + 3 = 5.\n\n"
    assert (last.gold, last.harm, last.question_text) == ("4", None, "2 + 3 - 1?")
    assert found.left_out == {"no rating": 1}


def test_math_shepherd_marks_each_step_where_its_tag_stands(tmp_path: Path, words):
    found = load(tmp_path, words, "math-shepherd", SHEPHERD)
    assert [(x.state, x.q_draft, x.draft_text) for x in found.labels] == [
        (0, 1.0, "Step 1: 2 + 3 = 5.\n\n"),
        (1, 0.0, "Step 2: 5 + 1 = 7.\n\n"),
        (2, 0.0, "Step 3: The answer is: 7\n\n"),
    ]
    assert {(x.question_text, x.gold) for x in found.labels} == {("Two and three?", "7")}


def test_plain_labels_are_chances_and_empty_steps_are_counted(tmp_path: Path, words):
    found = load(tmp_path, words, "plain", PLAIN)
    assert [(x.sample, x.q_draft, x.draft_text) for x in found.labels] == [
        (1, 0.0, "Hm.\n\n"),
        (0, 0.75, "Add.\n\n"),
        (0, 1.0, "5.\n\n"),
    ]
    assert found.left_out == {"empty step": 1, "no label": 1}


@pytest.mark.parametrize(("form", "row"), [("prm800k", PRM800K), ("math-shepherd", SHEPHERD), ("plain", PLAIN)])
def test_lines_on_one_question_are_one_question_in_samples_of_their_own(tmp_path: Path, words, form: str, row: dict):
    other = json.loads(json.dumps(row).replace("2 + 3", "4 + 4").replace("Two", "Four"))
    found = load(tmp_path, words, form, row, {**other, "id": "other"}, {**row, "id": "again"}, row)
    once = load(tmp_path, words, form, row).labels
    by_question = {
        text: [x for x in found.labels if x.question_text == text] for text in {x.question_text for x in found.labels}
    }
    assert len({x.question for x in found.labels}) == len(by_question) == 2, "held out by the id, so by the question"
    same = by_question[once[0].question_text]
    assert len(same) == 3 * len(once)
    assert {x.question for x in same} == {once[0].question}
    assert len({(x.sample, x.state) for x in same}) == len(same), "no step stands in another line's solution"


@pytest.mark.parametrize(
    ("form", "row", "said"),
    [
        ("prm800k", {"question": {}}, "row 2: the field 'problem' is missing"),
        ("prm800k", {**PRM800K, "label": {"steps": [{"completions": [completion("x", 7)]}]}}, "rating: 7"),
        ("math-shepherd", {"input": "no tags", "label": ""}, "no step is closed"),
        ("math-shepherd", {"input": "Q ки", "label": "Q +"}, "'Step 1:' is missing"),
        ("math-shepherd", {**SHEPHERD, "label": SHEPHERD["label"].replace("-", "?")}, "'?' stands where step 2"),
        ("plain", {**PLAIN, "labelled_steps": [{"prefix": [], "step": "x", "label": 3}]}, "label: 3.0 is no chance"),
    ],
)
def test_a_line_that_is_not_of_the_format_is_named(tmp_path: Path, words, form: str, row: dict, said: str):
    good = {"prm800k": PRM800K, "math-shepherd": SHEPHERD, "plain": PLAIN}[form]
    with pytest.raises(ValueError, match=r"file\.jsonl: row 2: ") as error:
        load(tmp_path, words, form, good, row)
    assert said in str(error.value)


def test_a_file_in_another_encoding_is_named_and_blank_lines_are_passed_over(tmp_path: Path, words):
    file = tmp_path / "in.jsonl"
    file.write_text(f"\n{json.dumps(PLAIN)}\n\n")
    assert read(file, "plain", *words).labels
    file.write_bytes(b'{"question": "caf\xe9"}\n')
    with pytest.raises(ValueError, match=r"in\.jsonl: row 1: not UTF-8"):
        read(file, "plain", *words)


def test_a_file_without_a_label_is_refused_with_the_reasons(tmp_path: Path):
    row = {**PLAIN, "labelled_steps": [{"prefix": [], "step": " ", "label": 1}]}
    (tmp_path / "in.jsonl").write_text(json.dumps(row))
    with pytest.raises(ValueError, match=r"in\.jsonl: no step of it has a label \(empty step: 1\)"):
        import_labels(tmp_path / "in.jsonl", "plain", "nano", tmp_path / "out")


def test_a_vocabulary_that_cannot_end_a_step_is_named_with_the_row(tmp_path: Path, words):
    tokenizer, vocabulary = words
    deaf = replace(vocabulary, encode=lambda text: vocabulary.encode(text.replace("\n", "")))
    with pytest.raises(ValueError, match=r"row 1: a step ends with a blank line, which is not in the vocabulary"):
        load(tmp_path, (tokenizer, deaf), "plain", PLAIN)


def test_the_command_writes_a_set_whose_card_says_what_it_is(tmp_path: Path):
    (tmp_path / "in.jsonl").write_text(json.dumps(PLAIN))
    args = ["import-labels", str(tmp_path / "in.jsonl"), "--format", "plain", "--out", str(tmp_path / "set")]
    done = CliRunner().invoke(app, args)
    assert done.exit_code == 0, done.output
    assert "3 labelled steps, 1 left out (empty step), 1 left out (no label)" in done.output
    assert len(load_labels(tmp_path / "set")) == 3
    assert "there is no harm" in (tmp_path / "set" / "README.md").read_text()
