"""Questions come from the nano splits or a file, and a file that cannot be right is refused by row."""

from __future__ import annotations

import json

import pyarrow
import pytest
from pyarrow import parquet

from baton.bench import tasks
from baton.bench.tasks import Question
from baton.config import ConfigError, FieldNames, TaskConfig

ROWS = [
    {"id": "a", "question": "1+1?", "answer": 2, "level": 1},
    {"id": "b", "question": "2+2?", "answer": 4, "topic": "sum"},
]


def write(path, rows):
    path.write_text("".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in rows))


def load(base, rows, limit=None, **fields):
    write(base / "test.jsonl", rows)
    return tasks.load(TaskConfig(name="mine", path="{split}.jsonl", fields=FieldNames(**fields)), "test", base, limit)


def test_a_file_gives_questions_in_order_with_what_else_it_holds(tmp_path):
    assert load(tmp_path, ROWS) == [Question("a", "1+1?", "2", "1"), Question("b", "2+2?", "4", None, {"topic": "sum"})]
    assert [q.id for q in load(tmp_path, ROWS, limit=1)] == ["a"]


def test_columns_may_have_other_names_and_ids_may_be_missing(tmp_path):
    rows = [{"problem": "1+1?", "solution": "2"}, {"problem": "2+2?", "solution": "4"}]
    loaded = load(tmp_path, rows, question="problem", answer="solution")
    assert [(q.id, q.answer) for q in loaded] == [("1", "2"), ("2", "4")]


def test_parquet_gives_what_jsonl_gives(tmp_path):
    rows = [{"id": "a", "question": "1+1?", "answer": "2", "level": "1"}]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "test.parquet")
    task = TaskConfig(name="mine", path="test.parquet")
    assert tasks.load(task, "test", tmp_path) == load(tmp_path, rows)


@pytest.mark.parametrize(
    ("rows", "parts"),
    [
        ([], ["has no questions"]),
        ([ROWS[0], {"id": "b", "question": "2+2?"}], ["row 2", "'answer' is missing", "task.fields"]),
        ([ROWS[0], {**ROWS[1], "question": "  "}], ["row 2", "the question is empty"]),
        ([ROWS[0], {**ROWS[1], "id": "a"}], ["row 2", "id 'a' is also row 1's"]),
        ([ROWS[0], "{oops"], ["row 2", "not valid JSON"]),
        (["[1]"], ["row 1", "a list, not an object"]),
        ([ROWS[0], {**ROWS[1], "question": None}], ["row 2", "the question is empty"]),
        ([ROWS[0], {**ROWS[1], "question": ["2+2?"]}], ["row 2", "the question is of kind list"]),
        ([ROWS[0], {**ROWS[1], "question": "2+2? \ud83d"}], ["row 2", "half of a character"]),
        ([ROWS[0], {**ROWS[1], "answer": None}], ["row 2", "the answer is empty"]),
        ([ROWS[0], {**ROWS[1], "answer": " "}], ["row 2", "the answer is empty"]),
        ([ROWS[0], {**ROWS[1], "answer": ["4"]}], ["row 2", "the answer is of kind list"]),
    ],
)
def test_a_file_that_cannot_be_right_is_refused_by_row(tmp_path, rows, parts):
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, rows)
    assert all(part in str(caught.value) for part in parts), caught.value
    assert "\n" not in str(caught.value)


def test_a_file_in_another_encoding_is_refused_by_row_and_a_byte_order_mark_is_no_text(tmp_path):
    task = TaskConfig(name="mine", path="test.jsonl")
    rows = [json.dumps(row, ensure_ascii=False) for row in (ROWS[0], {**ROWS[1], "question": "café?"})]
    (tmp_path / "test.jsonl").write_bytes("\n".join(rows).encode("latin-1"))
    with pytest.raises(ConfigError, match=r"test\.jsonl: row 2: not UTF-8 .* save the file as UTF-8"):
        tasks.load(task, "test", tmp_path)
    (tmp_path / "test.jsonl").write_text("\n".join(rows), encoding="utf-8-sig")
    assert [q.question for q in tasks.load(task, "test", tmp_path)] == ["1+1?", "café?"]


def test_a_row_whose_id_is_null_is_known_by_its_number(tmp_path):
    assert [q.id for q in load(tmp_path, [{**row, "id": None} for row in ROWS])] == ["1", "2"]


@pytest.mark.parametrize(
    ("name", "content", "part"),
    [("none.jsonl", None, "there is no file"), ("q.csv", "x", ".jsonl or .parquet"), ("q.parquet", "x", "as Parquet")],
)
def test_a_file_that_is_not_there_or_of_another_kind_is_refused(tmp_path, name, content, part):
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(ConfigError, match=part.replace(".", r"\.")):
        tasks.load(TaskConfig(name="mine", path=name), "test", tmp_path)


def test_nano_questions_carry_level_and_family(tmp_path):
    questions = tasks.load(TaskConfig(), "test", tmp_path, 20)
    assert len({q.id for q in questions}) == 20
    assert all(q.level and q.extra["family"] and q.answer for q in questions)


def test_an_unknown_nano_split_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="split: 'tset' is no split of nano; use one of train"):
        tasks.load(TaskConfig(), "tset", tmp_path)


def test_calibration_that_sees_a_test_question_is_refused_whatever_its_spacing():
    test = [Question("t1", "How many\n apples?", "1"), Question("t2", "Sum of 1 and 2?", "3")]
    tasks.check_disjoint(test, [Question("c1", "How many pears?", "1")])
    with pytest.raises(ConfigError, match=r"'c2' is test question 't2'"):
        tasks.check_disjoint(test, [Question("c1", "How many pears?", "1"), Question("c2", " sum of 1  and 2? ", "3")])


def test_a_spread_subset_reaches_over_the_whole_list():
    questions = [Question(str(n), "?", "") for n in range(100)]
    assert [q.id for q in tasks.spread(questions, 4)] == ["0", "25", "50", "75"]
    assert tasks.spread(questions, 200) == questions
