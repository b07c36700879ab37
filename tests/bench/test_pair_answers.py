"""Two arms of published answers, question by question."""

from __future__ import annotations

import json
import lzma
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "scripts" / "pair_answers.py"


def row(question: str, arm: str, correct: bool, sample: int = 0, **other: str) -> dict[str, object]:
    return {
        "question": question,
        "arm": arm,
        "sample": sample,
        "seed": 0,
        "pass": "quality",
        "correct": correct,
        **other,
    }


def said(file: Path, *arms: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, SCRIPT, file, *arms], capture_output=True, text=True, check=False)


def test_only_questions_on_which_the_arms_differ_decide(tmp_path: Path) -> None:
    rows = [row(f"q{n}", "a", correct=True) for n in range(10)]
    rows += [row(f"q{n}", "b", correct=n >= 6) for n in range(9)]
    rows += [row("q9", "b", correct=True, **{"pass": "latency"})]
    file = tmp_path / "answers.jsonl.xz"
    with lzma.open(file, "wt") as out:
        out.writelines(json.dumps(each) + "\n" for each in rows)
    done = said(file, "a", "b", "b", "a")
    # Mid-p: half of what six of six have by chance, on both sides.
    assert done.stdout == "a against b: 6 to 0, p = 0.016\nb against a: 0 to 6, p = 0.016\n", done.stderr


def test_what_cannot_be_compared_is_told(tmp_path: Path) -> None:
    file = tmp_path / "answers.jsonl"
    file.write_text(json.dumps(row("q", "a", correct=True)) + "\n")
    for words, told in (
        ((file, "a"), "1 labels are given"),
        ((file, "a", "b"), "'b' has no answers there; use two of a"),
        ((tmp_path / "none", "a", "a"), "there is no such file"),
    ):
        done = said(*words)
        assert done.returncode == 2
        assert told in done.stderr
