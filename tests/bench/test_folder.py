"""A run's folder: one recipe, one writer, whole lines."""

from __future__ import annotations

import json

import pytest

from baton.bench.command import run_compare
from baton.bench.folder import RunFolder
from baton.config import ConfigError
from baton.trace import Trace


def test_a_folder_serves_one_recipe_and_the_refusal_names_the_field(recipe, tmp_path, capsys):
    out = tmp_path / "run"
    assert run_compare(recipe(latency=None), out=out, limit=1, routers="draft") == 0
    capsys.readouterr()
    assert run_compare(recipe(latency=None), out=out, limit=2, routers="draft") == 2
    said = capsys.readouterr().err.strip()
    told = f"baton: out: {out} was made with recipe.limit = 1, now 2; give another folder, or remove it"
    assert said.splitlines()[-1] == told
    rows = [json.dumps({"id": "test0", "question": "another?", "answer": "1"})]
    path = recipe(latency=None)
    (tmp_path / "test.jsonl").write_text("\n".join(rows))
    assert run_compare(path, out=out, limit=1, routers="draft") == 2
    assert "questions.quality" in capsys.readouterr().err
    (out / "config.json").write_text("{")
    capsys.readouterr()
    assert run_compare(recipe(latency=None), out=out, limit=1, routers="draft") == 2
    assert f"{out / 'config.json'} is damaged" in capsys.readouterr().err


def test_of_a_long_value_that_differs_the_refusal_shows_the_beginning(tmp_path):
    RunFolder(tmp_path, {"arms": ["one"] * 100}, {}).close()
    with pytest.raises(ConfigError) as caught:
        RunFolder(tmp_path, {"arms": ["two"]}, {})
    assert len(str(caught.value)) < 400
    assert 'now ["two"]; give another folder' in str(caught.value)


def test_two_runs_cannot_write_to_one_folder(tmp_path):
    first = RunFolder(tmp_path, {"a": 1}, {})
    with pytest.raises(ConfigError, match="out: another process is writing"):
        RunFolder(tmp_path, {"a": 1}, {})
    first.close()
    RunFolder(tmp_path, {"a": 1}, {}).close()


def test_a_torn_last_line_is_dropped_and_a_damaged_one_is_named(tmp_path):
    extra = {"pass": "quality", "arm": "a", "grade": "wrong"}
    folder = RunFolder(tmp_path, {}, {})
    folder.append(Trace(question="q1", extra=extra))
    folder.append(Trace(question="q2" * 50_000, extra=extra))
    folder.close()
    file = tmp_path / "traces.jsonl"
    whole = file.read_bytes()
    first = whole.split(b"\n")[0] + b"\n"
    file.write_bytes(whole[:-10])
    folder = RunFolder(tmp_path, {}, {})
    assert [k[2] for k in folder.done()] == ["q1"]
    folder.close()
    assert file.read_bytes() == first
    file.write_bytes(whole[:20])
    folder = RunFolder(tmp_path, {}, {})
    assert folder.done() == {}
    folder.close()
    file.write_bytes(b"{oops\n" + first)
    folder = RunFolder(tmp_path, {}, {})
    with pytest.raises(ValueError, match="line 1 is no trace"):
        folder.done()
    folder.close()
