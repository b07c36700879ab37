"""Scripts: what is wrong with the input is one line and exit code 2, told in one way by all of them."""

from __future__ import annotations

import ast
import runpy
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parent.parent / "scripts"
COSTS = str(SCRIPTS.parent / "benchmarks" / "relay" / "h200-full-costs.yaml")


@pytest.mark.parametrize("file", sorted(SCRIPTS.glob("*.py")), ids=lambda file: file.stem)
def test_a_script_turns_mistakes_into_one_line(file: Path):
    tree = ast.parse(file.read_text())
    launched = any(isinstance(x, ast.ImportFrom) and x.module == "baton.training.launch" for x in tree.body)
    (main,) = [x for x in tree.body if isinstance(x, ast.FunctionDef) and x.name == "main"] or [None]
    assert launched or (main is not None and "checked()" in map(ast.unparse, main.decorator_list))


MISSING = "there is no such file"
WRONG = [
    ("ablate_prm", ["{missing}", "--out", "{out}"], f"{MISSING}; make it with `baton label`"),
    ("bench_training", ["--shape", "{missing}", "--use_cpu", "--out", "{out}"], f"{MISSING}; give the config.json"),
    ("check_simulator", ["{missing}", "--given", COSTS, "--out", "{out}"], "no such file or directory; check the path"),
    ("check_simulator", ["{other}", "--given", COSTS, "--out", "{out}"], "holds something else than a replay"),
    ("harness_truth", ["--out", "{torn}"], "is damaged"),
    ("label_divergences", ["{missing}", "--out", "{out}"], f"{MISSING}; check the path"),
    ("load_aware_loads", ["{missing}", "--out", "{out}"], f"{MISSING}; check the path"),
    ("load_aware_loads", ["{torn}", "--out", "{out}"], "not valid YAML"),
    ("load_aware_loads", [COSTS, "--at-once", "1,few", "--out", "{out}"], "--at-once: '1,few' is no list of numbers"),
    ("load_aware_loads", [COSTS, "--out", "{other}"], "holds something else than a replay; give another file"),
    ("results_from_answers", ["{missing}"], "no such file or directory; check the path"),
    ("router_table", ["{other}"], "holds no results; give a results.json that `baton compare` wrote"),
    ("sentence_likeness", ["{missing}", "--encoder", "{missing}"], "missing"),
    ("simulate_recipe", ["{missing}", "--out", "{out}"], f"{MISSING}; check the path"),
    ("train_nano", ["--config", "{missing}"], f"{MISSING}; check the path"),
    ("train_prm", ["--config", "{missing}"], f"{MISSING}; check the path"),
    ("train_prm", ["--config", "{torn}"], "not valid YAML"),
]


@pytest.mark.parametrize(("script", "words", "said"), WRONG, ids=[f"{w[0]}-{n}" for n, w in enumerate(WRONG)])
def test_a_file_that_is_missing_or_something_else_is_named(script, words, said, tmp_path, monkeypatch, capsys):
    if script.startswith("train_p"):
        pytest.importorskip("trl")
    files = {name: tmp_path / f"{name}.json" for name in ("missing", "other", "torn", "out")}
    files["other"].write_text('{"something": "else"}')
    files["torn"].write_text('{"something": ')
    monkeypatch.setattr(sys, "argv", [f"{script}.py", *(word.format(**files) for word in words)])
    monkeypatch.syspath_prepend(SCRIPTS)
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(SCRIPTS / f"{script}.py"), run_name="__main__")
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert (ended.value.code, line.partition(": ")[0]) == (2, f"{script}.py")
    assert said in line
    assert str(tmp_path) in line or "--at-once" in line
    assert not files["out"].exists()
