"""A recipe's arm stands at an operating point, and refuses one that was found on something else."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from baton.bench.command import run_compare
from baton.bench.tasks import digest
from baton.calibrate.arms import arms_of, calibrate_arms
from baton.calibrate.points import Asked, Points
from baton.calibrate.thresholds import Settings
from baton.cli import app
from baton.config import ConfigError, load_recipe
from baton.trace import Role

PAIR = {
    "name": "small",
    "target": "nano:draft",
    "draft": "nano:draft",
    "sampling": {"temperature": 0.8},
    "budget": {"tokens": 24, "answer_reserve": 8},
}
ARM = {"router": "random", "at": {"share": 0.5}, "points": "points.json"}


def calibrate(folder: Path, *more: str) -> Any:
    args = ["calibrate", "thresholds", "--pair", "pair.yaml", "--router", "random", "--shares", "0.5"]
    args += ["--out", "points.json"]
    args += ["--task", "calibration.jsonl", "--questions", "6", "--evaluations", "3", "--tolerance", "0.1", *more]
    return CliRunner().invoke(app, args)


def prepare(folder: Path) -> None:
    for split in ("test", "calibration"):
        rows = [{"id": f"{split}{n}", "question": f"{split}: what is {n} plus 1?", "answer": n + 1} for n in range(6)]
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    (folder / "pair.yaml").write_text(yaml.safe_dump(PAIR))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    prepare(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """Points that fit the recipe, made once."""
    place = tmp_path_factory.mktemp("made")
    prepare(place)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        done = calibrate(place)
    assert done.exit_code == 0, done.output
    return place / "points.json"


def compare(folder: Path, **changes: Any) -> int:
    recipe = {
        "name": "r",
        "pair": "pair.yaml",
        "task": {"name": "sums", "path": "{split}.jsonl"},
        "routers": ["target", ARM],
        "latency": None,
        **changes,
    }
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    return run_compare(folder / "recipe.yaml", out=folder / "run")


def test_two_routers_of_a_pair_are_calibrated_one_after_the_other_and_leave_the_working_folder_alone(folder):
    before = {path.name for path in folder.iterdir()}
    for router, knob in (("random", "unit=step"), ("margin", "low=0.1")):
        args = ["calibrate", "thresholds", "--pair", "pair.yaml", "--router", router, "--knob", knob, "--shares", "0.5"]
        args += ["--task", "calibration.jsonl", "--questions", "2", "--evaluations", "1"]
        done = CliRunner().invoke(app, args)
        assert done.exit_code == 0, done.output
        assert f"-> runs/small/points-{router}.json" in done.output
        assert Points.load(folder / "runs" / "small" / f"points-{router}.json").router == router
        assert (folder / "runs" / "small" / f"points-{router}.work" / "settings.json").exists()
    assert {path.name for path in folder.iterdir()} == before | {"runs"}


@pytest.mark.parametrize("changed", ["router", "scorer"])
def test_a_calibration_does_not_go_on_with_changed_code(folder, monkeypatch, changed):
    monkeypatch.syspath_prepend(folder)
    name = f"calibrated_{changed}"
    (folder / f"{name}.py").write_text(OWN)
    scorers = {"own": {"kind": "callable", "function": f"{name}:score"}}
    (folder / "pair.yaml").write_text(yaml.safe_dump({**PAIR, "scorers": scorers}))
    args = ["calibrate", "thresholds", "--pair", "pair.yaml", "--shares", "0.5", "--task", "calibration.jsonl"]
    args += ["--questions", "2", "--evaluations", "1"]
    args += ["--router", f"{name}:Own"] if changed == "router" else ["--router", "rsd", "--knob", "scorer=own"]
    assert (done := CliRunner().invoke(app, args)).exit_code == 0, done.output
    (folder / f"{name}.py").write_text(OWN.replace("0.5", "0.25"))
    again = CliRunner().invoke(app, args)
    assert again.exit_code == 2
    assert f"code.{name}:" in again.stderr


def test_points_of_a_scorer_that_has_changed_since_are_refused(folder, monkeypatch, capsys):
    monkeypatch.syspath_prepend(folder)
    (folder / "scores_since.py").write_text(OWN)
    scorers = {"own": {"kind": "callable", "function": "scores_since:score"}}
    (folder / "pair.yaml").write_text(yaml.safe_dump({**PAIR, "scorers": scorers}))
    args = ["calibrate", "thresholds", "--pair", "pair.yaml", "--shares", "0.5", "--task", "calibration.jsonl"]
    args += ["--questions", "2", "--evaluations", "1", "--out", "points.json"]
    args += ["--router", "rsd", "--knob", "scorer=own"]
    assert (done := CliRunner().invoke(app, args)).exit_code == 0, done.output
    arm = {"router": "rsd", "knobs": {"scorer": "own"}, "points": "points.json", "at": {"share": 0.5}}
    assert compare(folder, routers=["target", arm], limit=1) == 0
    (folder / "scores_since.py").write_text(OWN.replace("0.5", "0.25"))
    capsys.readouterr()
    assert compare(folder, routers=["target", arm], limit=1) == 2
    said = capsys.readouterr().err
    assert "points.json: scorers: 'scores_since:score' has changed since they were calibrated (scorers' code)" in said


OWN = """
from dataclasses import dataclass, field
from typing import ClassVar


def score(request):
    return 0.5


@dataclass(frozen=True)
class Own:
    share: float = field(default=0.5, metadata={"vary": (0.0, 1.0), "rises": True})
    name: ClassVar[str] = "own"

    async def __call__(self, gen):
        await gen.write("target" if gen.rng("coin").random() < self.share else "draft")
        while not gen.finished:
            await gen.write("target")
"""


def test_an_arm_takes_its_knob_from_calibrated_points_and_the_result_says_so(folder):
    made = calibrate(folder)
    assert made.exit_code == 0, made.output
    points = Points.load(folder / "points.json")
    assert points.router == "random"
    assert points.questions == [digest(f"calibration: what is {n} plus 1?") for n in range(6)]
    assert (folder / "points.work" / "settings.json").exists()
    again = calibrate(folder)
    assert Points.load(folder / "points.json") == points, again.output
    assert compare(folder) == 0
    found = json.loads((folder / "run" / "results.json").read_text())
    point = points.points[0].found
    assert found["arms"][1]["knobs"]["share"] == point.value
    said = found["calibration"]["points"]["random"]
    assert said["asked"] == {"target_share": 0.5}
    assert said["target_share"] == point.target_share
    assert said["split"] == "calibration.jsonl"


def test_costs_are_those_of_an_arm_with_its_own_speculation(folder, made, capsys):
    shutil.copy(made, folder / "points.json")
    points = Points.load(folder / "points.json")
    flops = replace(points.points[0], asked=Asked("flops", 1e9))
    replace(points, points=[points.points[0], flops]).save(folder / "points.json")
    ngram = {"target": {"method": "ngram", "tokens": 3}}
    for at, code in (({"share": 0.5}, 0), ({"flops": 1e9}, 2)):
        arm = {**ARM, "at": at, "speculative": ngram}
        assert compare(folder, routers=["target", arm], limit=1) == code, capsys.readouterr().err
        shutil.rmtree(folder / "run", ignore_errors=True)
    said = capsys.readouterr().err
    assert "points.json: costs were measured with speculation None, not {'target': {'method': 'ngram'" in said
    told = {"target": {"method": "ngram", "tokens": 3, "ngram_min": 2, "ngram_max": 4, "model": None}}
    replace(points, points=[flops], speculation=told).save(folder / "points.json")
    assert compare(folder, routers=["target", {**ARM, "at": {"flops": 1e9}, "speculative": ngram}], limit=1) == 0


def test_the_arms_of_a_recipe_are_calibrated_on_its_calibration_questions_and_then_compared(folder):
    data = {
        "name": "r", "pair": PAIR, "task": {"name": "sums", "path": "{split}.jsonl"}, "latency": None,
        "calibration": {"limit": 4},
        "routers": [
            "target",
            {"router": "random", "at": {"share": [0.2, 0.6]}, "points": "points/random.json"},
            {"router": "bild", "at": {"share": 0.5}, "points": "points/bild.json", "vary": "rollback"},
            {
                "router": "bail-out", "knobs": {"router": {"router": "random", "knobs": {"share": 0.1}}},
                "at": {"share": 0.5}, "points": "points/worn.json", "vary": "router.share",
            },
        ],
    }  # fmt: skip
    recipe = folder / "recipe.yaml"
    recipe.write_text(yaml.safe_dump(data))
    args = ["calibrate", "arms", "recipe.yaml", "--evaluations", "2", "--tolerance", "0.1"]
    for shard in ("1/2", "2/2"):
        done = CliRunner().invoke(app, [*args, "--shard", shard])
        assert done.exit_code == 0, done.output
    random, bild = (Points.load(folder / "points" / f"{name}.json") for name in ("random", "bild"))
    assert [p.asked.value for p in random.points] == [0.2, 0.6]
    assert (bild.knob, len(bild.questions), bild.split) == ("rollback", 4, "calibration")
    assert run_compare(recipe, out=folder / "run", limit=2) == 0
    arms = {a["label"]: a for a in json.loads((folder / "run" / "results.json").read_text())["arms"]}
    assert arms["random@0.6"]["knobs"]["share"] == random.points[1].found.value
    assert arms["bild"]["knobs"]["rollback"] == bild.points[0].found.value
    worn = Points.load(folder / "points" / "worn.json").points[0].found.value
    assert arms["bail-out"]["knobs"]["router"]["knobs"]["share"] == worn != 0.1
    data["routers"][2]["vary"] = "fallback"
    recipe.write_text(yaml.safe_dump(data))
    assert run_compare(recipe, out=folder / "other", limit=2) == 2
    data["routers"][2]["points"] = "points/random.json"
    recipe.write_text(yaml.safe_dump(data))
    refused = CliRunner().invoke(app, args)
    assert refused.exit_code == 2
    assert "'points/random.json' is another router's too" in refused.output


def test_a_work_folder_serves_one_calibration(folder):
    assert calibrate(folder).exit_code == 0
    other = calibrate(folder, "--temperature", "0.1")
    assert other.exit_code == 2
    assert "was made with generation" in other.stderr
    assert "give another folder" in other.stderr


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        ({"router": "margin"}, ["they are of router 'margin', not 'random'"]),
        (
            {"pair": {"target": {"model": "other", "weights": "1"}, "draft": {"model": "nano:draft"}}},
            ["their target is 'other' with other weights"],
        ),
        ({"scorers": {"prm": {"kind": "prm"}}}, ["the pair's scorer 'prm' was"]),
        ({"generation": {"sampling": {"temperature": 0.0}}}, ["sampling was {'temperature': 0.0}, here"]),
        ({"task": "sums", "split": "test"}, ["calibrated on 'test', the split under test"]),
        ({"questions": [digest("Test:  what is 3 plus 1?")]}, ["1 of their calibration questions are test questions"]),
    ],
)
def test_points_that_do_not_fit_are_refused_in_one_line(folder, made, capsys, change, parts):
    replace(Points.load(made), **change).save(folder / "points.json")
    assert compare(folder) == 2
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert "recipe.yaml: random: points: points.json: " in said
    assert all(part in said for part in parts), said


@pytest.mark.parametrize(
    ("arm", "part"),
    [
        ({**ARM, "at": {"share": 0.9}}, "no point was calibrated for target_share 0.9; use one of target_share 0.5"),
        ({**ARM, "points": "none.json"}, "there is no such file; make one with `baton calibrate thresholds`"),
        ({**ARM, "knobs": {"share": 0.2}}, "knobs.share: 0.2, but it was set to"),
        ({"router": "random", "at": {"share": 0.5}}, "points: missing beside at"),
        (
            {**ARM, "at": {"share": 0.5, "accept_rate": 0.5}},
            "share: 2 measures are given; give one of share, accept_",
        ),
        ({**ARM, "share_of": "target"}, "share_of: 'target' stands beside at; drop one"),
    ],
)
def test_an_arm_that_asks_for_what_is_not_there_is_refused(folder, made, capsys, arm, part):
    shutil.copy(made, folder)
    assert compare(folder, routers=["target", arm]) == 2
    assert part in capsys.readouterr().err


@pytest.mark.parametrize(
    ("args", "part"),
    [
        (["--shares", "half"], "shares: 'half' is no list of numbers"),
        (["--range", "0.1"], "range: '0.1' is no range; give LOW,HIGH"),
        (["--router", "draft"], "'draft' has no knob that moves its target share"),
        (["--router", "rsd"], "needs the scorer 'prm', which pair 'small' does not have"),
        (["--accept-rates", "0.5"], "accept_rate: 'random' has none"),
        (["--evaluations", "0"], "evaluations: 0 is too few"),
    ],
)
def test_wrong_input_of_the_command_is_named(folder, args, part):
    made = calibrate(folder, *args)
    assert made.exit_code == 2, made.output
    assert part in made.stderr


async def test_an_arm_that_speculates_is_calibrated_with_its_speculation(folder, monkeypatch):
    spec = {"target": {"method": "ngram"}}
    arms = [
        {
            "router": "random",
            "at": {"share": 0.5},
            "points": "points.json",
            "speculative": spec,
        },
        {"router": "random", "label": "plain", "at": {"share": 0.5}, "points": "plain.json"},
    ]
    data = {"name": "r", "pair": PAIR, "task": {"name": "sums", "path": "{split}.jsonl"}, "routers": ["target", *arms]}
    recipe = folder / "recipe.yaml"
    recipe.write_text(yaml.safe_dump(data))
    used = []

    async def points_of(wanted, on, *_):
        used.append(on.pair.engines[Role.TARGET])

    monkeypatch.setattr("baton.calibrate.arms.points_of", points_of)
    settings = Settings()
    async for _ in calibrate_arms(load_recipe(recipe), folder / "work", settings):
        pass
    speculating, plain = used
    assert (speculating.speculation is None, plain.speculation is None) == (False, True)
    arms[1]["points"] = "points.json"
    recipe.write_text(yaml.safe_dump(data))
    assert len(arms_of(load_recipe(recipe))) == 1, "a share is the same with and without"
    arms[1]["at"] = {"flops": 1e6}
    recipe.write_text(yaml.safe_dump(data))
    with pytest.raises(ConfigError, match=r"plain: points: 'points.json' is of an arm that speculates otherwise too"):
        arms_of(load_recipe(recipe))
