"""A replay writes a schedule token for token, times its arms, and its costs foretell it."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from baton.cli import app
from baton.config import ConfigError
from baton.engines.base import EngineLostError
from baton.engines.simulated import SharedGpu, SimulatedEngine
from baton.plan.costs import Costs, load_costs
from baton.replay.matrix import Matrix
from baton.replay.profile import profile
from baton.replay.results import Results
from baton.replay.schedule import Part, Schedule
from baton.replay.turn import Replayer, Turn, planned
from baton.trace import Kind, Role, Segment, Trace
from virtual_clock import run

SCHEDULE = Schedule(
    20,
    (
        (Part(Role.TARGET, 10), Part(Role.DRAFT, 6), Part(Role.TARGET, 4)),
        (Part(Role.TARGET, 14), Part(Role.DRAFT, 6)),
    ),
)
COSTS = Costs.model_validate(
    {
        "target": {"token_s": 0.02, "call_s": 0.005, "prefill_token_s": 0.0001, "slowdown": {1: 1.0, 4: 1.2}},
        "draft": {"token_s": 0.003, "call_s": 0.004, "prefill_token_s": 0.00002, "slowdown": {1: 1.0, 4: 1.1}},
        "acceptance": 0.5,
        "sharing": {"target": {1: 0.9, 4: 0.8}, "draft": 0.4},
    }
)


def replayer(costs: Costs = COSTS, schedule: Schedule = SCHEDULE) -> Replayer:
    assert costs.sharing is not None
    gpu = SharedGpu(costs.sharing)
    return Replayer({role: SimulatedEngine(role, costs, gpu=gpu) for role in (Role.TARGET, Role.DRAFT)}, schedule)


def turn(*wanted) -> Turn:
    return run(replayer().turn(*wanted))


def measured(file: Path, costs: Costs = COSTS, schedule: Schedule = SCHEDULE, **more) -> Results:
    """A whole matrix on simulated engines."""
    results = Results(file, {"schedule": "test"})
    settings = {"loads": (1, 4), "sharing": (1, 4), "answers": 2, "turns": 2, **more}
    run(Matrix(results, replayer(costs, schedule), **settings).measure())
    return results


@pytest.mark.parametrize(
    ("arm", "tokens", "cuts"),
    [("target", (40, 0), 0), ("cut", (40, 0), 3), ("relay", (28, 12), 3), ("draft", (0, 40), 0)],
)
def test_an_arm_writes_the_schedule_token_for_token(arm, tokens, cuts):
    found = turn(1, arm, 0, 2)
    assert (found.tokens["target"], found.tokens["draft"]) == tokens
    assert (found.engines["target"]["tokens_sampled"], found.engines["draft"]["tokens_sampled"]) == tokens
    assert sum(map(len, found.first_s.values())) == cuts
    assert len(found.seconds) == 2


def test_a_relay_takes_what_its_tokens_cuts_and_catch_ups_cost():
    (first, _) = turn(1, "relay", 0, 2).seconds
    written = 14 * 0.02 + 6 * 0.003
    # All that a model did not write itself is read, but the last token of a prefix: what follows it is written.
    read = 0.0001 * (19 + 5) + 0.00002 * 29
    assert first == pytest.approx(written + 2 * 0.005 + 0.004 + read)


def test_beside_each_other_the_draft_writes_until_the_target_is_done():
    found = turn(4, "beside", 0, 4)
    assert found.tokens["target"] == 80
    assert found.tokens["draft"] > 80
    assert len(found.seconds) == 4


def test_latencies_of_an_open_loop_count_from_when_an_answer_was_due():
    slow, fast = (turn(rate, "target", 0, 30) for rate in (0.5, 4.0))
    assert (slow.rate, slow.at_once, len(slow.seconds)) == (0.5, 0, 30)
    assert min(slow.seconds) == pytest.approx(20 * 0.02 + 0.005 + 0.0001 * 19, rel=0.01)
    assert sum(fast.seconds) > sum(slow.seconds)
    assert turn(4.0, "target", 0, 30).seconds == fast.seconds


def test_an_interrupted_matrix_goes_on_and_repeats_a_turn_that_some_arm_missed(tmp_path):
    file = tmp_path / "results.json"
    whole = measured(file)
    assert [row["at_once"] for row in whole.summary()] == [1, 4]
    data = json.loads(file.read_text())
    file.write_text(json.dumps({**data, "turns": data["turns"][:7]}))
    again = measured(file)
    assert [t.key for t in again.turns[:5]] == [t.key for t in whole.turns[:5]]
    assert sorted(t.key for t in again.turns) == sorted(t.key for t in whole.turns)
    assert again.probes == whole.probes
    with pytest.raises(ConfigError, match=r'measured with other settings \(schedule: "test", not "another"\)'):
        Results(file, {"schedule": "another"})


def test_whole_arrivals_a_second_are_told_from_answers_in_flight(tmp_path):
    results = measured(tmp_path / "results.json", loads=(1, 1.0), sharing=(1,), answers=3, turns=1)
    closed, opened = results.summary()
    assert (closed["at_once"], opened["rate"]) == (1, 1.0)
    again = Results(results.file, results.about)
    assert again.loads == [1, 1.0]
    assert [len(again.at(load, "target", "relay", "cut")) for load in (1, 1.0)] == [3, 3]
    assert len(again.turns) == 8


def test_single_requests_of_the_model_that_a_kill_left_out_are_measured_by_the_next_run(tmp_path):
    whole = measured(tmp_path / "results.json", turns=1)
    data = json.loads(whole.file.read_text())
    whole.file.write_text(json.dumps({**data, "probes": data["probes"][:1]}))
    with pytest.raises(ValueError, match="profile: single requests of the draft were not measured"):
        profile(Results(whole.file, whole.about), SCHEDULE, "half")
    assert measured(whole.file, turns=1).probes == whole.probes


async def test_a_turn_that_does_not_end_in_time_is_broken_off_and_the_others_stay(tmp_path, capsys):
    """On the real clock: 20 tokens of the target take 0.4 s, and 400 arrivals would take 20 s."""
    results = Results(tmp_path / "results.json", {}, ("target", "relay"))
    made = replayer()
    whole = Matrix(results, made, (1,), results.arms, answers=1, turns=1, probes=False)
    await whole.measure()
    begun = time.monotonic()
    await replace(whole, loads=(2, 20.0), answers=400, end=begun + 1).measure()
    assert time.monotonic() - begun < 5
    assert [(t.load, t.arm) for t in Results(results.file, {}, results.arms).turns] == [(1, "target"), (1, "relay")]
    said = capsys.readouterr().out
    assert "2 at once: no time for turn 1, target" in said
    assert "20 a second: no time for turn 1, target" in said
    await asyncio.sleep(0.1)
    assert not made.engines[Role.TARGET].metrics()["running"], "a request goes on"
    before = made.engines[Role.TARGET].metrics()["rows"]
    await replace(whole, loads=(4,), end=time.monotonic()).measure()
    assert made.engines[Role.TARGET].metrics()["rows"] == before, "nothing is warmed up for no turn"


def test_an_engine_that_is_lost_is_told_as_what_it_is(monkeypatch):
    made = replayer()

    async def lost(*_):
        raise EngineLostError("gone")

    monkeypatch.setattr(made, "_segment", lost)
    for load, arm in ((2, "relay"), (1.0, "relay"), (1, "beside")):
        with pytest.raises(EngineLostError, match="gone"):
            run(made.turn(load, arm, 0, 4))


def test_a_draft_that_fails_beside_the_target_fails_the_turn(monkeypatch):
    made = replayer()
    segment = made._segment

    async def failing(measured, session, call, role, opening):
        if role is Role.DRAFT:
            raise EngineLostError("gone")
        await segment(measured, session, call, role, opening)

    monkeypatch.setattr(made, "_segment", failing)
    with pytest.raises(EngineLostError, match="gone"):
        run(made.turn(1, "beside", 0, 1))


@pytest.mark.parametrize(
    ("prompt", "answers", "told"),
    [
        (10, [], "no answer"),
        (0, [[["target", 5]]], "0 is no number of tokens"),
        (10, [[["target", 0]]], "0 is no number of tokens"),
        (10, [[["target", "5"]]], "'5' is no number of tokens"),
        (10, [[["judge", 5]]], "a segment of 'judge'"),
        (10, [[["draft", 5, "keep"]]], "that is 'keep'"),
        (10, [[["draft", 5, "discarded"]]], "keeps no segment"),
    ],
)
def test_a_schedule_that_cannot_be_written_is_refused(prompt, answers, told, tmp_path):
    file = tmp_path / "schedule.json"
    file.write_text(json.dumps({"prompt": prompt, "answers": answers}))
    with pytest.raises(ValueError, match=f"--schedule: .*{told}"):
        Schedule.load(file)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--at-once", ""], "--at-once: there is nothing to measure"),
        (["--rate", "nan"], "--rate: 'nan' holds a number"),
        (["--rate", "inf"], "--rate: 'inf' holds a number"),
        (["--sharing", "2"], "--sharing: 2 is not among the answers in flight"),
        (["--profile", "costs.yaml"], "--profile: it takes one answer at a time"),
        (["--scorer", "prn"], "--scorer: 'prn' is no scorer of nano with a model of its own (did you mean 'prm'?)"),
        (["--scorer", "confidence"], "--scorer: 'confidence' is no scorer of nano with a model of its own"),
        (["--scorer", "prm", "--schedule", "relaygen"], "--scorer: 'prm' would read nothing"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_models_are_loaded(words, told, tmp_path):
    out = tmp_path / "results.json"
    done = CliRunner().invoke(app, ["replay", "nano", "--schedule", "rsd", "--out", str(out), *words])
    assert done.exit_code == 2
    assert told in done.stderr
    assert not out.exists()


def test_without_the_cut_target_the_relay_is_compared_all_the_same(tmp_path):
    results = Results(tmp_path / "results.json", {}, ("target", "relay"))
    matrix = Matrix(results, replayer(), (1,), results.arms, turns=2, probes=False)
    run(matrix.measure())
    (row,) = results.summary()
    assert row["turns"] == 2
    assert row["relay_over_target"] == pytest.approx(measured(tmp_path / "all.json").summary()[0]["relay_over_target"])
    assert not [name for name in row if "cut" in name]
    assert results.probes == []
    kept = Results(results.file, {}, ("target", "relay"))
    assert [t.key for t in kept.turns] == [t.key for t in results.turns]


def test_a_profile_gives_back_the_costs_and_foretells_the_relay(tmp_path):
    schedule = Schedule.draw(4, prompt=20, tokens=60, target=20, draft=10, seed=1)
    results = measured(tmp_path / "results.json", schedule=schedule, turns=1)
    found = profile(results, schedule, "again")
    for role in (Role.TARGET, Role.DRAFT):
        model, given = found[role], COSTS.target if role is Role.TARGET else COSTS.draft
        assert model["token_s"] == pytest.approx(given.token_s, rel=0.02)
        assert model["call_s"] == pytest.approx(given.call_s, rel=0.1)
        assert model["prefill_token_s"] == pytest.approx(given.prefill_token_s, rel=0.1)
        assert model["slowdown"][4] == pytest.approx(dict(given.slowdown)[4], rel=0.02)
        # Its own request, the tokens before the last one, and the forward that samples.
        opening = given.call_s + 19 * given.prefill_token_s + given.token_s
        assert model["prompt"] == {"tokens": 20, "seconds": pytest.approx(opening, rel=0.1)}
    assert found["sharing"]["target"][1] == pytest.approx(0.9, abs=0.03)
    assert found["sharing"]["target"][4] == pytest.approx(0.8, abs=0.03)
    costs = Costs.model_validate({**found, "acceptance": 0.5})
    foretold = measured(tmp_path / "foretold.json", costs, schedule, turns=1).summary()
    for one, other in zip(foretold, results.summary(), strict=True):
        for name in ("target_p50_s", "cut_p50_s", "relay_p50_s"):
            assert one[name] == pytest.approx(other[name], rel=0.05)


def test_drawn_answers_have_the_share_of_the_means_each():
    drawn = Schedule.draw(6, prompt=10, tokens=200, target=46, draft=20, seed=3)
    assert drawn == Schedule.draw(6, prompt=10, tokens=200, target=46, draft=20, seed=3)
    for parts in drawn.answers:
        assert sum(part.tokens for part in parts) == 200
        assert sum(part.tokens for part in parts if part.role == "target") / 200 == pytest.approx(46 / 66, abs=0.02)
    assert planned("target", drawn.answers[0]) == [Part(Role.TARGET, 200)]


def test_a_schedule_is_read_from_traces_and_from_its_file(tmp_path):
    kept = [("target", 3), ("target", 2), ("inserted", 1), ("draft", 4)]
    segments = [
        Segment(id=n, parent=n - 1, branch=0, role=Role(role), kind=Kind.WRITE, kept=True, ids=[1] * size,
                kept_tokens=size if role != "inserted" else 0)
        for n, (role, size) in enumerate(kept, 1)
    ]  # fmt: skip
    trace = Trace(prompts={"target": [1] * 30, "draft": [1] * 31}, segments=segments)
    schedule = Schedule.of_traces([trace])
    assert schedule == Schedule(30, ((Part(Role.TARGET, 3), Part(Role.TARGET, 2), Part(Role.DRAFT, 4)),))
    schedule.save(tmp_path / "schedule.json")
    assert Schedule.load(tmp_path / "schedule.json") == schedule
    with pytest.raises(ValueError, match="no answer with tokens"):
        Schedule.of_traces([Trace()])


def test_the_command_replays_simulated_models_and_writes_their_costs(tmp_path, baton: Callable[..., str]):
    costs = {**COSTS.model_dump(mode="json", exclude_none=True), "name": "simulated"}
    for role in ("target", "draft"):
        costs[role]["slowdown"] = dict(costs[role]["slowdown"])
        costs["sharing"][role] = dict(costs["sharing"][role])
    (tmp_path / "costs.yaml").write_text(yaml.safe_dump(costs))
    models = {role: {"engine": "simulated", "model": f"costs.yaml#{role}"} for role in ("target", "draft")}
    (tmp_path / "pair.yaml").write_text(yaml.safe_dump({"name": "simulated", **models}))
    SCHEDULE.save(tmp_path / "schedule.json")
    said = baton(
        "replay", "pair.yaml", "--schedule", "schedule.json", "--out", "results.json", "--at-once", "1,4",
        "--sharing", "1,4", "--turns", "1", "--profile", "measured.yaml",
    )  # fmt: skip
    assert "1 at once, turn 1, relay" in said
    (row,) = json.loads((tmp_path / "results.json").read_text())["summary"][:1]
    assert re.search(rf"^ *1 at once +{row['target_p50_s']:.2f} .* {row['relay_over_target']:.2f} ", said, re.MULTILINE)
    assert load_costs(tmp_path / "measured.yaml").target.token_s == pytest.approx(0.02, rel=0.02)


def test_the_command_has_steps_read_by_the_pairs_reward_model(tmp_path, baton: Callable[..., str]):
    parts = Part(Role.DRAFT, 8, "rejected"), Part(Role.TARGET, 6), Part(Role.DRAFT, 7, "accepted")
    Schedule(30, (parts,)).save(tmp_path / "schedule.json")
    words = ["replay", "nano", "--schedule", "schedule.json", "--answers", "1", "--turns", "1", "--prefix", "64"]
    baton(*words, "--out", "scored.json", "--scorer", "prm")
    results = json.loads((tmp_path / "scored.json").read_text())
    by_arm = {turn["arm"]: turn for turn in results["turns"]}
    assert [len(by_arm[arm]["score_s"]) for arm in ("target", "cut", "relay")] == [0, 0, 2]
    # What is rejected is computed in vain, and the prompt once.
    assert by_arm["relay"]["score_tokens"] == 30 + 8 + 6 + 7
    assert results["summary"][0]["relay_score_ms"] > 0
    assert list(results["about"]["scorer"]) == ["prm"]
    baton(*words, "--out", "unscored.json")
    assert "relay_score_ms" not in json.loads((tmp_path / "unscored.json").read_text())["summary"][0]


@pytest.fixture
def baton(tmp_path: Path) -> Callable[..., str]:
    def command(*words: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "baton.cli", *words], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return command
