"""docs/results.md names every field of a real results.json, and no other."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from baton.bench.command import run_compare

PAGE = (Path(__file__).parents[2] / "docs" / "results.md").read_text(encoding="utf-8")
CONDITIONAL = {"head_to_head", "answered", "asked", "labelled_decisions", "load.latency.clients"}
"""Fields that a plain run does not have, or that stand inside another one."""
FREE = {"knobs", "speculation", "weights", "memory_bytes", "placement", "by_level", "target_share"}
"""Whose keys are names: of knobs, roles, arms, levels."""


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    for split in ("test", "calibration"):
        rows = [{"id": f"{split}{n}", "question": f"{split} {n}?", "answer": n, "level": "1"} for n in range(3)]
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    pair = {
        "name": "small", "target": "nano:draft", "draft": "nano:draft", "budget": {"tokens": 16, "answer_reserve": 8}
    }  # fmt: skip
    half = {"router": "random", "knobs": {"share": 0.5}}
    recipe = {
        "name": "r", "pair": pair, "task": {"name": "sums", "path": "{split}.jsonl"},
        "routers": ["target", half, "draft"], "latency": {"limit": 2, "warmup": 0}, "seeds": 2,
    }  # fmt: skip
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    assert run_compare(folder / "recipe.yaml", out=folder / "out") == 0
    return folder / "out"


def section(title: str) -> str:
    return PAGE.split(f"## {title}\n")[1].split("\n## ")[0]


def documented(title: str) -> set[str]:
    """Fields in the first column of a section's table."""
    rows = [line.split("|")[1] for line in section(title).splitlines() if line.startswith("| `")]
    return {name for row in rows for name in re.findall(r"`([^`]+)`", row)}


def inner(value: Any) -> Iterator[str]:
    """Names of all fields inside a value, but for those that are no fields."""
    if isinstance(value, dict):
        for name, part in value.items():
            yield name
            if name not in FREE:
                yield from inner(part)
    elif isinstance(value, list):
        for part in value:
            yield from inner(part)


def test_every_field_of_a_run_is_on_the_page_and_every_field_of_the_page_in_a_run(run):
    found = json.loads((run / "results.json").read_text())
    assert documented("The whole") - CONDITIONAL == set(found)
    for arm in found["arms"]:
        assert documented("An arm") - CONDITIONAL == set(arm)


def test_what_stands_inside_a_field_is_named_there(run):
    found = json.loads((run / "results.json").read_text())
    arms = found.pop("arms")
    told = {"The whole": found, "An arm": arms}
    for title, value in told.items():
        names = set(re.findall(r"`([^`]+)`", section(title)))
        assert set(inner(value)) - names == set(), title


def test_an_answers_line_is_told_whole(run):
    line = json.loads((run / "answers.jsonl").read_text().splitlines()[0])
    named = set(re.findall(r"`([^`]+)`", section("Beside it")))
    assert set(line) - named == set()
