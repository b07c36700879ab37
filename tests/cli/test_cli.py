"""The command line; wrong input gives one readable line on standard error, exit code 2 and no traceback."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from baton import nano
from baton.cli import app, main
from baton.cli.input import knobs_of, resumable, task_of
from baton.config import NANO_PAIR, PairConfig

QUESTION = "Tom has 3 apples and buys 4. How many has he?"
PAIR = "name: p\ntarget: {target}\ndraft: nano:draft\n"
RECIPE = "name: r\npair: nano\nrouters: [target]\nlatency: null\nlimit: 1\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("x")
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    shutil.copytree(nano.pair_paths()["draft"], tmp_path / "damaged")
    (tmp_path / "damaged" / "model.safetensors").write_bytes(b"no safetensors")
    (tmp_path / "damaged.yaml").write_text(PAIR.format(target="./damaged"))
    (tmp_path / "device.yaml").write_text(PAIR.format(target="{model: nano:target, device: gpu}"))
    return tmp_path


@pytest.mark.parametrize(
    ("args", "parts"),
    [
        (["run", QUESTION, "--router", "random", "--knob", "share=[1"], ["--knob: 'share=[1'", "YAML"]),
        (["run", QUESTION, "--router", "relaygen", "--knob", "cues=[]"], ["relaygen.cues: []", "or leave it out"]),
        (
            ["run", QUESTION, "--router", "rsd", "--knob", "scorer=prn", "--pair", "damaged.yaml"],
            ["needs the scorer 'prn'", "pair 'p' does not have"],
        ),
        (["run", "caf\udce9?"], ["question: it is not UTF-8"]),
        (["bench", "--router", "rsd", "--knob", "scorer=prn"], ["needs the scorer 'prn'", "pair 'nano'"]),
        (
            ["run", QUESTION, "--router", "target", "--pair", "damaged.yaml"],
            ["pair.target.model: ", "damaged: cannot be loaded", "check"],
        ),
        (
            ["run", QUESTION, "--router", "target", "--pair", "device.yaml"],
            ["pair.target.device: 'gpu' is no device", "use auto, cpu or cuda"],
        ),
        (["compare", "missing.yaml"], ["missing.yaml: there is no such file"]),
        (["compare", "recipe.yaml", "--routers", ","], ["only: ',' cannot be used; name at least one arm"]),
        (["compare", "recipe.yaml", "--out", "file"], ["file: file exists", "check the path"]),
        (["compare", "recipe.yaml", "--out", "file/run"], ["file/run: not a directory"]),
        (["calibrate", "cues", "--work", "file"], ["file: file exists"]),
        (["bench", "--questions", "0"], ["questions: 0 is too few"]),
        (["bench", "--rounds", "0"], ["rounds: 0 is too few"]),
        (["bench", "--concurrency", "0"], ["concurrency: 0 is too few"]),
    ],
)
def test_wrong_input_is_answered_in_one_line_with_exit_code_2(args, parts):
    done = CliRunner().invoke(app, args)
    assert done.exit_code == 2, done.exception
    assert isinstance(done.exception, SystemExit)
    said = done.stderr.strip().splitlines()
    assert len(said) == 1, said
    assert said[0].startswith("baton: ")
    assert all(part in said[0] for part in parts), said


def test_who_interrupts_work_that_is_stored_is_told_so_in_one_line(capsys):
    with pytest.raises(typer.Exit) as left, resumable():
        raise KeyboardInterrupt
    assert left.value.exit_code == 130
    assert capsys.readouterr().err == "baton: interrupted; the same command goes on from there\n"


def test_a_pair_of_ones_own_is_told_that_it_is_asked_nanos_questions_unless_a_task_is_named(capsys):
    own = PairConfig.model_validate({"name": "mine", "target": "some/model", "draft": "nano:draft"})
    assert task_of(None, own).name == "nano"
    assert capsys.readouterr().err == "note: mine is asked nano's questions; --task names other ones\n"
    assert task_of("math500", own).name == "math500"
    assert task_of(None, NANO_PAIR).name == "nano"
    assert capsys.readouterr().err == ""


def test_a_knob_may_be_written_as_a_power_of_ten():
    assert knobs_of(["tau=1e-5", "back=-2E+3", "cues=[1e3, e5]", "name=1e"]) == {
        "tau": 1e-5, "back": -2000.0, "cues": [1000.0, "e5"], "name": "1e",
    }  # fmt: skip


def test_the_command_compares_every_arm_of_a_recipe() -> None:
    done = CliRunner().invoke(app, ["compare", "recipe.yaml", "--out", "run"])
    assert done.exit_code == 0, done.output
    assert Path("run/results.json").exists()


def test_the_command_finds_a_router_in_the_working_folder(folder, monkeypatch, capsys) -> None:
    page = (Path(__file__).parents[2] / "docs" / "add-a-router.md").read_text()
    (folder / "turns_here.py").write_text(page.split("```python\n")[1].split("```")[0])
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place])
    monkeypatch.setattr(sys, "argv", ["baton", "run", QUESTION, "--router", "turns_here:Turns", "--knob", "stps=2"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert "turns_here:Turns.stps: unknown knob (did you mean 'steps'?)" in capsys.readouterr().err


DEFECT = """
from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True)
class Defect:
    name: ClassVar[str] = "defect"

    async def __call__(self, gen):
        await gen.write("draft", until=no_such_boundary)
"""


def test_a_defect_of_a_user_s_router_is_shown_from_its_own_line_on(folder, monkeypatch, capsys) -> None:
    monkeypatch.syspath_prepend(folder)
    (folder / "defect_here.py").write_text(DEFECT)
    done = CliRunner().invoke(app, ["run", QUESTION, "--router", "defect_here:Defect"])
    assert done.exit_code == 1
    said = done.stderr.splitlines()
    assert said[said.index("Traceback (most recent call last):") + 1].endswith('defect_here.py", line 11, in __call__')
    assert said[-1] == "NameError: name 'no_such_boundary' is not defined"


def test_one_switch_is_no_switches(folder, monkeypatch) -> None:
    monkeypatch.syspath_prepend(folder)
    once = DEFECT.replace("Defect", "Once").replace(
        'await gen.write("draft", until=no_such_boundary)',
        'await gen.write("draft", [Cap(1)])\n        await gen.write("target", [Cap(1)])',
    )
    (folder / "once_here.py").write_text("from baton.boundary import Cap\n" + once)
    done = CliRunner().invoke(app, ["run", QUESTION, "--router", "once_here:Once"])
    assert done.exit_code == 0, done.output
    assert " · 1 switch · " in done.output
