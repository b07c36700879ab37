"""The pages in docs/ are what the code says."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from baton import routers
from baton.cli import app
from baton.config import PairConfig, RecipeConfig, validate
from baton.config.labels import LabelConfig

ROOT = Path(__file__).parents[1]
NO_PAPER = {"target", "draft", "random", "hybrid", "bail-out", "budget", "fallback", "steady", "load-aware", "policy"}
"""Routers that fix nothing published."""


def test_every_router_has_an_up_to_date_page():
    script = ROOT / "scripts" / "router_docs.py"
    done = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", routers.names())
def test_a_routers_page_says_what_is_faithful_what_is_fixed_when_to_use_it_and_what_each_knob_means(name):
    page = (ROOT / "docs" / "routers" / f"{name}.md").read_text()
    missing = [part for part in ("Faithful:", "Fixed:", "Use it when:") if part not in page]
    assert missing in ([], ["Fixed:"] if name in NO_PAPER else [])
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    assert not [row for row in rows if row.endswith("|  |")], "a knob without a meaning"


PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
PAIR = {"name": "pair", "target": "nano:target", "draft": "nano:draft"}
RECIPE = {"name": "recipe", "task": "nano", "routers": ["target", "draft"]}
OTHERS = {"scrape_configs", "dataset_path"}
"""Fields of other programs' files."""
COMMAND: Any = typer.main.get_command(app)


def blocks(language: str) -> list[Any]:
    """Blocks of code in the pages, each with its place as id."""
    found = []
    for page in PAGES:
        text = page.read_text()
        for block in re.finditer(rf"```{language}\n(.*?)```", text, re.DOTALL):
            line = text[: block.start()].count("\n") + 1
            found.append(pytest.param(block[1], id=f"{page.relative_to(ROOT)}:{line}"))
    return found


@pytest.mark.parametrize("text", blocks("yaml"))
def test_configuration_in_the_pages_has_the_fields_that_there_are(text):
    data = yaml.safe_load(text)
    if OTHERS & data.keys():
        return
    if data.keys() <= PairConfig.model_fields.keys():
        validate(PairConfig, PAIR | data, "block")
    elif data.keys() <= LabelConfig.model_fields.keys() and "router" in data:
        validate(LabelConfig, data | {"pair": PAIR}, "block")
    else:
        scorers = {"scorers": data.pop("scorers")} if "scorers" in data else {}
        given = data.pop("pair", {})
        pair = PAIR | scorers | (given if isinstance(given, dict) else {})
        validate(RecipeConfig, RECIPE | data | {"pair": pair}, "block")


@pytest.mark.parametrize("text", blocks("python"))
def test_python_in_the_pages_is_python_and_names_what_there_is_in_baton(text):
    tree = compile(text, "block", "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and str(node.module).split(".")[0] == "baton":
            module = importlib.import_module(str(node.module))
            assert all(hasattr(module, name.name) for name in node.names), ast.unparse(node)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_in_the_pages_are_those_that_there_are_with_their_options(page):
    text = page.read_text().replace("\\\n", " ")
    unknown = set(re.findall(r"(?:^|`|\$ )baton ([a-z][a-z-]*)", text, re.MULTILINE)) - COMMAND.commands.keys()
    assert not unknown
    for line in re.findall(r"(?<![\w/.-])baton ([a-z][^\n`#|]*)", text):
        known = options_of(line.split())
        unknown = {option for option in re.findall(r"(?<!\S)--[a-z][a-z-]*", line) if known and option not in known}
        assert not unknown, line


def options_of(words: list[str]) -> set[str]:
    """Options of the command that `words` begin with; none if it is no command."""
    command = COMMAND
    while hasattr(command, "commands"):
        if not words or words[0] not in command.commands:
            return set()
        command, words = command.commands[words[0]], words[1:]
    return {"--help", *(name for option in command.params for name in (*option.opts, *option.secondary_opts))}


def test_the_program_in_the_pages_runs_as_printed(capsys):
    (program,) = (block.values[0] for block in blocks("python") if "asyncio.run(" in block.values[0])
    exec(compile(program, "block", "exec"), {})
    said = capsys.readouterr().out
    assert {"target", "draft"} <= {line.split()[0] for line in said.splitlines()}
    assert "target share" in said
