"""The benchmarks that Baton knows by name: where their questions are, how they are asked, and how they are graded.

One entry each, at the end of the file. Baton ships none of the questions (but nano's, which are generated): they come
from the hub, or from a file or folder that the user has. A reader makes of a row, in the shape that the hub has it, one
with the columns `question`, `answer`, `id`, `level`, and what the grader needs; a row that has those columns already
stays as it is, so files that were normalised before can be given too.
"""

from __future__ import annotations

import base64
import io
import json
import pickle
import random
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from baton.bench.grading import last_boxed
from baton.generation import Budget
from baton.nano import problems

Row = Mapping[str, Any]
Reader = Callable[[Row], dict[str, Any] | None]
"""Makes a row of the hub's shape a question's; None leaves it out."""

LETTERS = "ABCDEFGHIJ"
SHUFFLE_SEED = 20240612
"""Of the order of options; changing it changes every published figure on shuffled questions."""
TESTS = ("tests", "before", "entry_point")
"""Columns that the grader of code needs."""
LEFT_OUT = (*TESTS, "solution")
"""Columns that are not shown to models and stay out of traces: long, and of no use to a reader of results."""


@dataclass(frozen=True, slots=True)
class Source:
    """A split as the hub has it."""

    repo: str
    split: str
    read: Reader
    config: str | None = None
    revision: str | None = None
    """Commit that the columns were checked against; None reads the newest."""
    files: tuple[str, ...] = ()
    """Files to read as they are, of a repository whose own loading needs code to be run."""
    without_test: bool = False
    """The source is not disjoint from the test split: questions that stand in both are left out."""
    about: str = ""
    """What it is, in a few words."""


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A set of questions, how they are asked, and how answers are graded."""

    name: str
    title: str
    questions: int
    """In the test split."""
    grader: str
    licence: str
    """What is known of the rights in the questions; no legal advice."""
    splits: Mapping[str, Source] = field(default_factory=dict)
    """`test` and `calibration`."""
    suffix: str | None = None
    """What stands after the question in the user's turn."""
    system: str | None = None
    budget: Budget | None = None
    """Kept tokens that its answers need, with thinking."""

    @property
    def calibration(self) -> str:
        """What the default calibration split is."""
        source = self.splits.get("calibration")
        return source.about if source else "calibration"


def renamed(**columns: str) -> Reader:
    """Reads `question="problem"` from the column `problem` where a row has one, else from `question`."""

    def read(row: Row) -> dict[str, Any]:
        out = dict(row)
        for ours, theirs in columns.items():
            if theirs in out:
                out[ours] = out.pop(theirs)
        return out

    return read


def only(read: Reader, keep: Callable[[dict[str, Any]], bool]) -> Reader:
    """Leaves out the rows for which `keep`, asked about what was read, is false."""

    def chosen(row: Row) -> dict[str, Any] | None:
        out = read(row)
        return out if out is not None and keep(out) else None

    return chosen


def gsm8k_row(row: Row) -> dict[str, Any]:
    """The published answers are solutions that end in `#### 1,234`."""
    return {**row, "answer": str(row["answer"]).rpartition("####")[2].replace(",", "").strip()}


def math_row(row: Row) -> dict[str, Any] | None:
    """MATH as it was published has solutions with a boxed answer, and levels such as `Level 5`."""
    out = renamed(question="problem")(row) or {}
    if out.get("answer") is None:
        out["answer"] = last_boxed(str(out.get("solution", "")))
    out["level"] = str(out.get("level", "")).removeprefix("Level ")
    return out if out["answer"] else None


def olympiad_row(row: Row) -> dict[str, Any] | None:
    """Several answers to one question are joined; a question may need what stands in `context`."""
    out = renamed(answer="final_answer", level="difficulty")(row) or {}
    if isinstance(out["answer"], Sequence) and not isinstance(out["answer"], str):
        out["answer"] = ", ".join(str(a).strip().strip("$") for a in out["answer"])
    if context := (out.pop("context", None) or "").strip():
        out["question"] = f"{context}\n\n{out['question']}"
    # Images, of which this part of the dataset has none.
    return {k: v for k, v in out.items() if not k.startswith("image") and v is not None}


def choice_row(row: Row) -> dict[str, Any]:
    """`choices` (or `options`) are put below the question, `answer` is the right one's index or letter."""
    out = renamed(options="choices")(row) or {}
    if out.get("options") is None:
        return out
    answer = out["answer"]
    letter = LETTERS[answer] if isinstance(answer, int) else str(answer).strip().upper()
    return {**out, "answer": letter, "question": with_options(str(out["question"]), out["options"])}


def gpqa_row(row: Row) -> dict[str, Any]:
    """Options are shuffled by a seed that is fixed, so that the right one is not always the first.

    `permutation` says which of the published options (0 is the right one, then the wrong ones in order) is shown as A,
    B, C and D. What else the rows hold (explanations, who wrote them) is left out.
    """
    if "Correct Answer" not in row:
        return choice_row(row)
    stem = str(row["Question"]).strip()
    options = [str(row[name]).strip() for name in ("Correct Answer", *(f"Incorrect Answer {n}" for n in (1, 2, 3)))]
    permutation = list(range(len(options)))
    # Seeded by the question, so that it does not matter which other ones are loaded.
    random.Random(f"{SHUFFLE_SEED} {stem}").shuffle(permutation)
    shown = [options[n] for n in permutation]
    out = {
        "question": with_options(stem, shown), "answer": LETTERS[permutation.index(0)],
        "options": shown, "permutation": permutation,
        "subject": row.get("High-level domain"),
    }  # fmt: skip
    return out if row.get("Record ID") is None else {**out, "id": row["Record ID"]}


def with_options(stem: str, options: Iterable[str]) -> str:
    """A question of multiple choice as it is asked: its options below it, one a line, under their letters."""
    listed = "\n".join(f"{letter}) {option}" for letter, option in zip(LETTERS, options, strict=False))
    return f"{stem.strip()}\n\n{listed}"


def humaneval_row(row: Row) -> dict[str, Any]:
    """The question is the head of a function; the answer is its body, or a block with the whole function."""
    out = renamed(id="task_id", question="prompt", answer="canonical_solution")(row) or {}
    if "tests" in out:
        return out
    test, name = out.pop("test"), out["entry_point"]
    return {**out, "before": out["question"], "tests": [f"{test}\ncheck({name})"]}


def mbpp_row(row: Row) -> dict[str, Any]:
    """The tests stand in the question, as published: they say what the function is called."""
    out = renamed(id="task_id", question="prompt", answer="code")(row) or {}
    if "tests" in out:
        return out
    tests = list(out.pop("test_list"))
    imports = "\n".join(out.pop("test_imports", None) or [])
    shown = "\n".join(tests)
    question = f"{out['question']}\n\nYour code has to pass these tests:\n```python\n{shown}\n```"
    return {**out, "question": question, "tests": [f"{imports}\n{test}" for test in tests]}


USUAL = """\
import bisect, collections, copy, functools, heapq, itertools, math, operator, random, re, string, sys
from bisect import *
from collections import *
from functools import *
from heapq import *
from itertools import *
from math import *
from typing import *
from builtins import pow  # which that of math hides
sys.setrecursionlimit(50000)
"""
"""What competition sites import before a solution."""


def livecodebench_row(row: Row) -> dict[str, Any]:
    """Solutions are a class with a method where there is code to begin with, else a program that reads and prints."""
    if "tests" in row:
        return {"before": USUAL, **row}
    cases = [*json.loads(row["public_test_cases"]), *_unpacked(row["private_test_cases"])]
    starter = str(row.get("starter_code") or "")
    name = json.loads(row.get("metadata") or "{}").get("func_name")
    if starter.strip():
        task = f"Begin with this code, and complete it:\n```python\n{starter.rstrip()}\n```"
    else:
        task = "Write a whole program that reads standard input and prints to standard output."
    tests = [
        _method_test(name, case["input"], case["output"]) if case["testtype"] == "functional"
        else {"reads": case["input"], "prints": case["output"]}
        for case in cases
    ]  # fmt: skip
    return {
        "id": row["question_id"], "question": f"{row['question_content']}\n\n{task}", "answer": "",
        "level": row.get("difficulty"), "platform": row.get("platform"), "contest_date": str(row.get("contest_date")),
        "before": USUAL, "tests": tests,
    }  # fmt: skip


def _method_test(name: str, arguments: str, wanted: str) -> str:
    """Source that calls the method with arguments of which each stands on a line as JSON."""
    listed = "[" + ",".join(line for line in arguments.split("\n") if line.strip()) + "]"
    return (
        "import json as _json\n"
        f"_got = Solution().{name}(*_json.loads({listed!r}))\n"
        f"assert _json.loads(_json.dumps(_got)) == _json.loads({wanted!r}), f'it gave {{_got!r}}'\n"
    )


class _NoCode(pickle.Unpickler):
    """Reads plain values only: a pickle can otherwise run anything."""

    def find_class(self, module: str, name: str) -> Any:
        raise ValueError(f"the test cases hold {module}.{name}, not text; get the file again")


def _unpacked(packed: str) -> list[dict[str, str]]:
    """Private test cases are JSON, or JSON that was pickled, compressed and written in base 64."""
    if packed.lstrip().startswith("["):
        cases: list[dict[str, str]] = json.loads(packed)
        return cases
    text = _NoCode(io.BytesIO(zlib.decompress(base64.b64decode(packed)))).load()
    unpacked: list[dict[str, str]] = json.loads(text)
    return unpacked


def dolly_row(row: Row) -> dict[str, Any] | None:
    """Prompts without a text that they are about, with a human's response as the reference."""
    out = renamed(question="instruction", answer="response")(row) or {}
    return None if (out.pop("context", None) or "").strip() else out


BOXED = "Please reason step by step, and put your final answer within \\boxed{}."
LETTER = "Please reason step by step, and put the letter of the right option within \\boxed{}."
FUNCTION = (
    "Complete this Python function. Give the whole function, with its imports, in one block that begins ```python."
)
CODE = "Solve this in Python. Give the whole code in one block that begins ```python."

SHORT, MEDIUM, LONG = Budget(8192, 1024), Budget(16384, 2048), Budget(32768, 2048)

MATH_TRAIN = Source(
    "DigitalLearningGmbH/MATH-lighteval", "train", math_row,
    revision="0530c78699ea5e8eb5530600900e1f328b48acad", without_test=True, about="MATH train, without test questions",
)  # fmt: skip
AIME_2024 = Source(
    "HuggingFaceH4/aime_2024", "train", renamed(question="problem"),
    revision="2fe88a2f1091d5048c0f36abc874fb997b3dd99a", about="AIME 2024",
)  # fmt: skip

# fmt: off
STEM = frozenset({
    "abstract_algebra", "astronomy", "college_biology", "college_chemistry", "college_computer_science",
    "college_mathematics", "college_physics", "computer_security", "conceptual_physics", "electrical_engineering",
    "elementary_mathematics", "high_school_biology", "high_school_chemistry", "high_school_computer_science",
    "high_school_mathematics", "high_school_physics", "high_school_statistics", "machine_learning",
})
# fmt: on
"""The 18 subjects that MMLU's authors call STEM."""
stem_row = only(choice_row, lambda row: row.get("subject") is None or row["subject"] in STEM)


def _year(*years: int) -> Callable[[dict[str, Any]], bool]:
    """Competition problems by the year in their page's address."""
    return lambda row: any(f"/{year}_" in str(row.get("url", "")) for year in years)


TABLE = (
    Benchmark(
        "nano", "Generated word problems", problems.SIZES["test"], "math", "Apache-2.0 (part of Baton)",
    ),
    Benchmark(
        "gsm8k", "GSM8K", 1319, "math", "MIT",
        {
            "test": Source(
                "openai/gsm8k", "test", gsm8k_row, "main", "740312add88f781978c0658806c59bc2815b9866",
            ),
            "calibration": Source(
                "openai/gsm8k", "train", gsm8k_row, "main", "740312add88f781978c0658806c59bc2815b9866",
                about="GSM8K train",
            ),
        },
        BOXED, budget=SHORT,
    ),
    Benchmark(
        "math500", "MATH-500", 500, "math", "MIT for the collection; problems (c) their competitions",
        {
            "test": Source(
                "HuggingFaceH4/MATH-500", "test", renamed(question="problem", id="unique_id"),
                revision="6e4ed1a2a79af7d8630a6b768ec859cb5af4d3be",
            ),
            "calibration": MATH_TRAIN,
        },
        BOXED, budget=LONG,
    ),
    Benchmark(
        "amc2023", "AMC 12, 2023", 40, "math", "problems (c) MAA; do not redistribute",
        {
            "test": Source(
                "math-ai/amc23", "test", renamed(), revision="80815d37005feb82cd7f8fbc6901d5d3eff43057",
            ),
            "calibration": Source(
                "AI-MO/aimo-validation-amc", "train", only(renamed(question="problem"), _year(2022)),
                revision="69d78a4a2c840e82d69af6bc742bda09005f6316", without_test=True, about="AMC 12, 2022",
            ),
        },
        BOXED, budget=LONG,
    ),
    Benchmark(
        "aime2024", "AIME I and II, 2024", 30, "math", "problems (c) MAA; do not redistribute",
        {
            "test": AIME_2024,
            "calibration": Source(
                "AI-MO/aimo-validation-aime", "train", only(renamed(question="problem"), _year(2022, 2023)),
                revision="13f9e12f613e720c2a2b2f345dd04b998a29494d", without_test=True, about="AIME 2022 and 2023",
            ),
        },
        BOXED, budget=LONG,
    ),
    Benchmark(
        "aime2025", "AIME I and II, 2025", 30, "math", "problems (c) MAA; do not redistribute",
        {
            "test": Source(
                "math-ai/aime25", "test", renamed(question="problem"),
                revision="563bb8404243c5f09de6ec262f2db674fe5bce9b",
            ),
            "calibration": AIME_2024,
        },
        BOXED, budget=LONG,
    ),
    Benchmark(
        "olympiadbench", "OlympiadBench, English mathematics without images", 674, "math", "Apache-2.0",
        {
            "test": Source(
                "Hothan/OlympiadBench", "train", olympiad_row, "OE_TO_maths_en_COMP",
                "91184b52131e7fc9455fef848035173aea8cc01a",
            ),
            "calibration": MATH_TRAIN,
        },
        BOXED, budget=LONG,
    ),
    Benchmark(
        "minerva", "Minerva (MIT course problems)", 272, "math", "course material: CC BY-NC-SA 4.0",
        {"test": Source("math-ai/minervamath", "test", renamed()), "calibration": MATH_TRAIN},
        BOXED, budget=MEDIUM,
    ),
    Benchmark(
        "gaokao2023en", "GaoKao 2023 in English", 385, "math", "MIT for the collection",
        {
            "test": Source(
                "MARIO-Math-Reasoning/Gaokao2023-Math-En", "train", renamed(),
                revision="6c7bdecd205ed623b5e6c92335deb4f13a7cdd9b",
            ),
            "calibration": MATH_TRAIN,
        },
        BOXED, budget=MEDIUM,
    ),
    Benchmark(
        "mmlu-stem", "MMLU, 18 STEM subjects", 3018, "choice", "MIT",
        {
            "test": Source("cais/mmlu", "test", stem_row, "all", "c30699e8356da336a370243923dbaf21066bb9fe"),
            "calibration": Source(
                "cais/mmlu", "validation", stem_row, "all", "c30699e8356da336a370243923dbaf21066bb9fe",
                without_test=True, about="MMLU validation, without test questions",
            ),
        },
        LETTER, budget=SHORT,
    ),
    Benchmark(
        "gpqa-diamond", "GPQA-Diamond, options shuffled", 198, "choice",
        "CC BY 4.0; gated, and its authors ask that questions are not posted",
        {
            "test": Source(
                "Idavidrein/gpqa", "train", gpqa_row, "gpqa_diamond", "633f5ee89ab8ad4522a9f850766b73f62147ffdd",
            ),
            "calibration": Source(
                "Idavidrein/gpqa", "train", gpqa_row, "gpqa_main", "633f5ee89ab8ad4522a9f850766b73f62147ffdd",
                without_test=True, about="GPQA main, without Diamond",
            ),
        },
        LETTER, budget=LONG,
    ),
    Benchmark(
        "humaneval", "HumanEval", 164, "code", "MIT",
        {
            "test": Source(
                "openai/openai_humaneval", "test", humaneval_row, "openai_humaneval",
                "7dce6050a7d6d172f3cc5c32aa97f52fa1a2e544",
            ),
            "calibration": Source(
                "google-research-datasets/mbpp", "train", mbpp_row, "sanitized",
                "4bb6404fdc6cacfda99d4ac4205087b89d32030c", about="MBPP sanitized train (CC BY 4.0)",
            ),
        },
        FUNCTION, budget=MEDIUM,
    ),
    Benchmark(
        "livecodebench", "LiveCodeBench v6 (January to April 2025)", 175, "code",
        "CC, version not stated; problems (c) LeetCode, AtCoder, Codeforces",
        {
            "test": Source(
                "livecodebench/code_generation_lite", "train", livecodebench_row,
                revision="0fe84c3912ea0c4d4a78037083943e8f0c4dd505", files=("test6.jsonl",),
            ),
            "calibration": Source(
                "livecodebench/code_generation_lite", "train", livecodebench_row,
                revision="0fe84c3912ea0c4d4a78037083943e8f0c4dd505", files=("test5.jsonl",), without_test=True,
                about="LiveCodeBench v5's new problems",
            ),
        },
        CODE, budget=LONG,
    ),
    Benchmark(
        "alpaca-eval", "AlpacaEval 2 prompts", 805, "judge", "CC BY-NC 4.0",
        {
            "test": Source(
                "tatsu-lab/alpaca_eval", "train", renamed(question="instruction", answer="output"),
                files=("alpaca_eval_gpt4_baseline.json",),
            ),
            "calibration": Source(
                "databricks/databricks-dolly-15k", "train", dolly_row,
                revision="bdd27f4d94b9c1f951818a7da7fd7aeea5dbff1a", without_test=True,
                about="Dolly prompts without a context (CC BY-SA 3.0)",
            ),
        },
        budget=SHORT,
    ),
)  # fmt: skip

BENCHMARKS = {b.name: b for b in TABLE}
