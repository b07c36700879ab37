"""Each benchmark's rows are read in the shape that the hub has them, and as questions that were normalised before.

The rows are made up; their columns are those of the published datasets.
"""

from __future__ import annotations

import base64
import json
import os
import pickle
import zlib
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from baton.bench import tasks
from baton.bench.benchmarks import BENCHMARKS, LETTERS, STEM
from baton.bench.grading import GRADERS, Grade, Grader, gold_text
from baton.bench.tasks import Question
from baton.config import ConfigError, TaskConfig, load_pair, pair_options

GSM8K = {
    "question": "Ada has 2 boxes of 600 pens. How many pens?",
    "answer": "She has 2*600=<<2*600=1200>>1200.\n#### 1,200",
}
MATH500 = {
    "problem": "What is $1+1$?",
    "solution": "It is $\\boxed{2}$.",
    "answer": "2",
    "subject": "Algebra",
    "level": 1,
    "unique_id": "test/algebra/1.json",
}
MATH = {"problem": "What is $2+2$?", "level": "Level 3", "type": "Algebra", "solution": "So $\\boxed{\\frac{8}{2}}$."}
AMC = {
    "id": 3,
    "question": "What is $3+3$?",
    "answer": "6",
    "url": "https://x/wiki/index.php/2023_AMC_12A_Problems/Problem_1",
}
AIMO = {
    "id": 4,
    "problem": "What is $4+4$?",
    "solution": "...",
    "answer": "8",
    "url": "https://x/wiki/index.php/2022_AIME_I_Problems/Problem_4",
}
AIME24 = {**AIMO, "url": "https://x/wiki/index.php/2024_AIME_I_Problems/Problem_4", "year": "2024"}
AIME25 = {"problem": "What is $5+5$?", "answer": "10", "id": "0"}
OLYMPIAD = {
    "id": 1606,
    "question": "Solve for $x$.",
    "solution": ["..."],
    "final_answer": ["$1$", "2"],
    "context": "Let $x^2-3x+2=0$.",
    "image_1": None,
    "image_2": None,
    "modality": "Text-only",
    "difficulty": "Competition",
    "is_multiple_answer": True,
    "unit": None,
    "answer_type": "Numerical",
    "error": None,
    "question_type": "Open-ended",
    "subfield": "Algebra",
    "subject": "Math",
    "language": "English",
}
MMLU = {"question": "Which is prime?", "subject": "abstract_algebra", "choices": ["4", "6", "7", "9"], "answer": 2}
GPQA = {
    "Record ID": "rec1",
    "Question": "Which is a noble gas?\n",
    "Correct Answer": "Neon\n",
    "Incorrect Answer 1": "Iron",
    "Incorrect Answer 2": "Lead",
    "Incorrect Answer 3": "Zinc",
    "High-level domain": "Chemistry",
    "Explanation": "It is in group 18.",
    "Subdomain": "General",
}
HUMANEVAL = {
    "task_id": "HumanEval/0",
    "prompt": 'def one(x):\n    """x + 1"""\n',
    "canonical_solution": "    return x + 1\n",
    "test": "def check(candidate):\n    assert candidate(1) == 2\n",
    "entry_point": "one",
}
MBPP = {
    "source_file": "x.ipynb",
    "task_id": 2,
    "prompt": "Write a function that halves.",
    "code": "def half(x):\n  return x / 2",
    "test_imports": ["import math"],
    "test_list": ["assert half(4) == 2", "assert math.isclose(half(1), 0.5)"],
}


def packed(cases: list[dict[str, str]]) -> str:
    return base64.b64encode(zlib.compress(pickle.dumps(json.dumps(cases)))).decode()


LIVE = {
    "question_title": "Sum",
    "question_content": "Print the sum.",
    "platform": "atcoder",
    "question_id": "abc_1",
    "contest_id": "abc",
    "contest_date": "2025-02-01T00:00:00",
    "starter_code": "",
    "difficulty": "easy",
    "public_test_cases": json.dumps([{"input": "1 2\n", "output": "3", "testtype": "stdin"}]),
    "private_test_cases": packed([{"input": "4 5\n", "output": "9", "testtype": "stdin"}]),
    "metadata": "{}",
}
LEET = {
    **LIVE,
    "question_id": "3001",
    "starter_code": "class Solution:\n    def pairs(self, xs: List[int], k: int) -> List[int]:\n        ",
    "public_test_cases": json.dumps([{"input": "[1, 2]\n2", "output": "[2, 4]", "testtype": "functional"}]),
    "private_test_cases": packed([{"input": "[0]\n7", "output": "[0]", "testtype": "functional"}]),
    "metadata": json.dumps({"func_name": "pairs"}),
}
ALPACA = {
    "instruction": "Name a fruit.",
    "output": "An apple.",
    "generator": "gpt4_1106_preview",
    "dataset": "helpful_base",
    "datasplit": "eval",
}
DOLLY = {"instruction": "Name a bird.", "context": "", "response": "A robin.", "category": "open_qa"}


def load(folder: Path, name: str, rows: list[dict[str, Any]], split: str = "test") -> list[Question]:
    (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tasks.load(TaskConfig(name=name, path="{split}.jsonl"), split, folder)


@pytest.mark.parametrize(
    ("name", "row", "question", "answer", "level", "known"),
    [
        ("gsm8k", GSM8K, GSM8K["question"], "1200", None, "1"),
        ("math500", MATH500, "What is $1+1$?", "2", "1", "test/algebra/1.json"),
        ("amc2023", AMC, "What is $3+3$?", "6", None, "3"),
        ("aime2024", AIME24, "What is $4+4$?", "8", None, "4"),
        ("aime2025", AIME25, "What is $5+5$?", "10", None, "0"),
        ("olympiadbench", OLYMPIAD, "Let $x^2-3x+2=0$.\n\nSolve for $x$.", "1, 2", "Competition", "1606"),
        ("minerva", {"question": "How fast?", "answer": "3 m/s"}, "How fast?", "3 m/s", None, "1"),
        ("gaokao2023en", {"question": "Find $x$.", "answer": "$\\pi$"}, "Find $x$.", "$\\pi$", None, "1"),
        ("mmlu-stem", MMLU, "Which is prime?\n\nA) 4\nB) 6\nC) 7\nD) 9", "C", None, "1"),
        ("humaneval", HUMANEVAL, HUMANEVAL["prompt"], HUMANEVAL["canonical_solution"], None, "HumanEval/0"),
        ("alpaca-eval", ALPACA, "Name a fruit.", "An apple.", None, "1"),
    ],
)  # fmt: skip
def test_test_rows_become_questions(tmp_path, name, row, question, answer, level, known):
    [q] = load(tmp_path, name, [row])
    assert (q.question, q.answer, q.level, q.id) == (question, answer, level, known)
    assert q.grader == BENCHMARKS[name].grader


@pytest.mark.parametrize(
    ("name", "row", "question", "answer"),
    [
        ("gsm8k", GSM8K, GSM8K["question"], "1200"),
        ("math500", MATH, "What is $2+2$?", "\\frac{8}{2}"),
        ("olympiadbench", MATH, "What is $2+2$?", "\\frac{8}{2}"),
        ("aime2024", AIMO, "What is $4+4$?", "8"),
        ("aime2025", AIME24, "What is $4+4$?", "8"),
        ("amc2023", {**AIMO, "url": "https://x/2022_AMC_12B_Problems/Problem_1", "answer": 8.0}, "What is $4+4$?", "8"),
        ("mmlu-stem", MMLU, "Which is prime?\n\nA) 4\nB) 6\nC) 7\nD) 9", "C"),
        ("alpaca-eval", DOLLY, "Name a bird.", "A robin."),
    ],
)  # fmt: skip
def test_calibration_rows_become_questions(tmp_path, name, row, question, answer):
    [q] = load(tmp_path, name, [row], "calibration")
    assert (q.question, q.answer) == (question, answer)


@pytest.mark.parametrize(
    ("name", "left_out", "kept"),
    [
        ("aime2024", AIME24, AIMO),
        ("mmlu-stem", {**MMLU, "subject": "anatomy"}, MMLU),
        ("alpaca-eval", {**DOLLY, "context": "Robins are birds."}, DOLLY),
        ("math500", {**MATH, "solution": "It has no box."}, MATH),
    ],
)
def test_calibration_leaves_out_the_rows_that_do_not_belong(tmp_path, name, left_out, kept):
    assert [q.id for q in load(tmp_path, name, [{**left_out, "id": "a"}, {**kept, "id": "b"}], "calibration")] == ["b"]


@pytest.mark.parametrize("name", [n for n in BENCHMARKS if n != "nano"])
def test_rows_that_were_normalised_before_are_taken_as_they_are(tmp_path, name):
    row = {"id": "a", "question": "Q?", "answer": "B", "level": 2, "subject": "astronomy"}
    if BENCHMARKS[name].grader == "code":
        row["tests"] = ["assert True"]
    [q] = load(tmp_path, name, [row])
    assert (q.id, q.question, q.answer, q.level) == ("a", "Q?", "B", "2")


def test_options_are_shuffled_alike_every_time_and_say_how(tmp_path):
    rows = [{**GPQA, "Record ID": f"rec{n}", "Question": f"Which gas {n}?"} for n in range(200)]
    questions = load(tmp_path, "gpqa-diamond", rows)
    alone = load(tmp_path, "gpqa-diamond", rows[150:151])
    assert alone == [questions[150]]
    published = ["Neon", "Iron", "Lead", "Zinc"]
    for q in questions:
        shown = [line.partition(") ")[2] for line in q.question.splitlines()[2:]]
        assert shown == [published[n] for n in q.extra["permutation"]] == q.extra["options"]
        assert shown[LETTERS.index(q.answer)] == "Neon"
        assert "group 18" not in json.dumps(q.extra), "explanations do not go into traces"
    counts = [sum(q.answer == letter for q in questions) for letter in "ABCD"]
    assert min(counts) > 30, "the right option may stand anywhere"


async def test_canonical_solutions_of_code_pass_and_others_do_not(tmp_path):
    grader = Grader()
    half, one = load(tmp_path, "humaneval", [MBPP], "calibration")[0], load(tmp_path, "humaneval", [HUMANEVAL])[0]
    assert "assert half(4) == 2" in half.question
    for q in (half, one):
        assert (await grader.grade(q, gold_text(q))).grade is Grade.CORRECT
        assert (
            await grader.grade(q, "```python\ndef one(x): return x\ndef half(x): return x\n```")
        ).grade is Grade.WRONG
        assert not set(q.extra) & {"test", "tests", "test_list", "before"}, "tests do not go into traces"


async def test_livecodebench_runs_programs_and_methods_on_public_and_private_cases(tmp_path):
    grader = Grader()
    program, method = load(tmp_path, "livecodebench", [LIVE, LEET])
    assert "reads standard input" in program.question
    assert "class Solution" in method.question
    assert (program.level, program.extra["contest_date"]) == ("easy", "2025-02-01T00:00:00")
    right = "```python\nprint(sum(map(int, input().split())))\n```"
    assert (await grader.grade(program, right)).grade is Grade.CORRECT
    assert (await grader.grade(program, "```python\ninput(); print(3)\n```")).reason == "line 1 is '3', not '9'"
    body = (
        "```python\nclass Solution:\n    def pairs(self, xs: List[int], k: int) -> List[int]:\n        return {}\n```"
    )
    assert (await grader.grade(method, body.format("tuple(x * k for x in xs)"))).grade is Grade.CORRECT
    assert (await grader.grade(method, body.format("[x + k for x in xs]"))).reason.endswith("it gave [3, 4]")


def test_test_cases_that_would_run_code_are_refused(tmp_path):
    class Evil:
        def __reduce__(self):
            return os.system, ("true",)

    evil = base64.b64encode(zlib.compress(pickle.dumps(Evil()))).decode()
    with pytest.raises(ConfigError, match=r"row 1: it cannot be read as a row of livecodebench .*posix.system"):
        load(tmp_path, "livecodebench", [{**LIVE, "private_test_cases": evil}])


@pytest.mark.parametrize(
    ("name", "row", "parts"),
    [
        ("humaneval", {"question": "Q?", "answer": "A"}, ["row 1: column 'test' is missing", "question, answer"]),
        ("math500", {"text": "Q?", "answer": "A"}, ["row 1: field 'question' is missing", "text, answer"]),
        ("mmlu-stem", {**MMLU, "answer": 20}, ["row 1: it cannot be read as a row of mmlu-stem"]),
    ],
)
def test_rows_of_another_shape_are_refused_by_row(tmp_path, name, row, parts):
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, name, [row])
    assert all(part in str(caught.value) for part in parts), caught.value
    assert "\n" not in str(caught.value)


def test_a_users_own_names_of_columns_go_before_the_benchmarks(tmp_path):
    (tmp_path / "q.jsonl").write_text(json.dumps({"text": "Q?", "gold": "#### 7", "question": "other"}) + "\n")
    task = TaskConfig(name="gsm8k", path="q.jsonl", fields={"question": "text", "answer": "gold"})
    [q] = tasks.load(task, "test", tmp_path)
    assert (q.question, q.answer) == ("Q?", "7")


def write_repository(folder: Path) -> None:
    """A dataset's repository as the hub has it: a card that names its configurations, and their files."""
    folder.mkdir()
    (folder / "README.md").write_text(
        "---\nconfigs:\n- config_name: gpqa_diamond\n  data_files: d.parquet\n"
        "- config_name: gpqa_main\n  data_files: m.parquet\n---\n"
    )
    rows = [{**GPQA, "Record ID": f"rec{n}", "Question": f"Which gas {n}?"} for n in range(5)]
    parquet.write_table(pyarrow.Table.from_pylist(rows[:2]), folder / "d.parquet")
    parquet.write_table(pyarrow.Table.from_pylist(rows), folder / "m.parquet")


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """What `datasets` makes of files goes away with the test."""
    import datasets.config

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


@pytest.mark.usefixtures("cache")
def test_a_downloaded_repository_gives_its_splits_and_calibration_without_test_questions(tmp_path):
    write_repository(tmp_path / "gpqa")
    task = TaskConfig(name="gpqa-diamond", path="gpqa")
    test, calibration = (tasks.load(task, split, tmp_path) for split in ("test", "calibration"))
    assert [q.id for q in test] == ["rec0", "rec1"]
    assert [q.id for q in calibration] == ["rec2", "rec3", "rec4"]
    tasks.check_disjoint(test, calibration)
    assert [q.id for q in tasks.load(task, "calibration", tmp_path, 2)] == ["rec2", "rec3"]


@pytest.mark.usefixtures("cache")
def test_a_downloaded_repository_of_plain_files_is_read(tmp_path):
    (tmp_path / "lcb").mkdir()
    (tmp_path / "lcb" / "test6.jsonl").write_text(json.dumps(LIVE) + "\n" + json.dumps(LEET) + "\n")
    questions = tasks.load(TaskConfig(name="livecodebench", path="lcb"), "test", tmp_path)
    assert [q.id for q in questions] == ["abc_1", "3001"]
    assert len(questions[0].key["tests"]) == 2


@pytest.mark.usefixtures("cache")
def test_a_folder_that_is_no_such_repository_is_refused_in_one_line(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match=r"cannot be loaded as Idavidrein/gpqa .*hf download Idavidrein/gpqa"):
        tasks.load(TaskConfig(name="gpqa-diamond", path="empty"), "test", tmp_path)


def test_without_the_hub_the_way_out_is_told_in_one_line(tmp_path, monkeypatch):
    import datasets.config
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    for name in ("math500", "livecodebench"):
        with pytest.raises(ConfigError) as caught:
            tasks.load(TaskConfig(name=name), "test", tmp_path)
        said = str(caught.value)
        assert said.startswith(f"task.name: {name!r} cannot be fetched from the hub (")
        assert f"hf download {BENCHMARKS[name].splits['test'].repo} --revision" in said
        assert "set task.path" in said
        assert "\n" not in said


def test_a_split_that_a_benchmark_does_not_have_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="split: 'tset' is no split of gsm8k; use one of test, calibration"):
        tasks.load(TaskConfig(name="gsm8k"), "tset", tmp_path)


def test_the_table_is_whole():
    for b in BENCHMARKS.values():
        assert b.grader in GRADERS
        assert b.licence
        if b.name != "nano":
            assert set(b.splits) == {"test", "calibration"}
            assert b.splits["calibration"].about
            assert b.budget
    assert len(STEM) == 18


def test_a_task_brings_its_prompt_and_the_smaller_budget(tmp_path):
    (tmp_path / "pair.yaml").write_text("name: p\ntarget: t\ndraft: d\nsystem: Think.\nbudget: {tokens: 10000}\n")
    pair = load_pair(tmp_path / "pair.yaml")
    math, gsm8k = (pair_options(pair, task=TaskConfig(name=name)) for name in ("math500", "gsm8k"))
    assert (math.budget.tokens, gsm8k.budget.tokens) == (10_000, 8192)
    assert math.messages("1+1?") == [
        {"role": "system", "content": "Think."},
        {"role": "user", "content": "1+1?\n\nPlease reason step by step, and put your final answer within \\boxed{}."},
    ]
    own = pair_options(pair, task=TaskConfig(name="math500", suffix="", system="Be brief."))
    assert [m["content"] for m in own.messages("1+1?")] == ["Be brief.", "1+1?"]
    assert pair_options(pair).suffix == ""
