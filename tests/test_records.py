"""Files of lines: what is read back, and what a damaged line is called."""

from __future__ import annotations

from pathlib import Path

import pytest

from baton.records import numbers_or_null, read_objects, read_records, settle


def given(folder: Path, data: bytes) -> Path:
    file = folder / "rows.jsonl"
    file.write_bytes(data)
    return file


def test_objects_are_read_past_a_byte_order_mark_blank_lines_and_other_ends_of_lines(tmp_path):
    file = given(tmp_path, '\ufeff{"a": "x\u2028y"}\r\n\n{"a": 2}'.encode())
    assert list(read_objects(file)) == [{"a": "x\u2028y"}, {"a": 2}]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b'{"a": "\xe9"}', r"rows\.jsonl: row 2: not UTF-8 .*save the file as UTF-8"),
        (b'{"a": ', r"rows\.jsonl: row 2: not valid JSON .*write one object a line"),
        (b"[1]", r"rows\.jsonl: row 2: a list, not an object; write one object a line"),
    ],
)
def test_a_row_that_is_no_object_is_named_by_its_number(tmp_path, line, said):
    with pytest.raises(ValueError, match=said):
        list(read_objects(given(tmp_path, b'{"a": 1}\n\n' + line + b"\n")))


def test_records_end_at_a_torn_line_and_a_line_that_is_something_else_is_named(tmp_path):
    assert list(read_records(given(tmp_path, b'{"n": 1}\n{"n": 2'), lambda row: row["n"], "number")) == [1]
    with pytest.raises(ValueError, match=r"rows\.jsonl: line 2 is no number \('n'\); remove it"):
        list(read_records(given(tmp_path, b'{"n": 1}\n{"m": 2}\n{"n": 3}\n'), lambda row: row["n"], "number"))


@pytest.mark.parametrize(
    ("before", "now", "said"),
    [
        ({"a": {"b": 1}}, {"a": {"b": 2}}, "a.b = 1, now 2"),
        ({"a": {}}, {"a": {"b": None}}, "a.b = not set, now null"),
        ({"a": {"b": None}}, {"a": {}}, "a.b = null, now not set"),
        ({"a": 1, "b": 2}, {"a": 1}, "b = 2, now not set"),
    ],
)
def test_a_folder_is_for_one_set_of_settings_and_a_missing_one_is_not_null(tmp_path, before, now, said):
    file = tmp_path / "settings.json"
    settle(file, before)
    settle(file, before)
    with pytest.raises(ValueError, match=f"{tmp_path} was made with {said}; give another folder, or remove it"):
        settle(file, now)


def test_what_is_no_number_is_null_for_any_reader_of_json():
    report = {"auc": float("nan"), "curve": [{"auc": float("nan"), "loss": 0.5}], "n": 2, "f1": None}
    assert numbers_or_null(report) == {"auc": None, "curve": [{"auc": None, "loss": 0.5}], "n": 2, "f1": None}
