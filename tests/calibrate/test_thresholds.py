"""Operating points: the search against curves that are known, what is stored, and what is said where none fits."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from baton import routers
from baton.bench.tasks import Question
from baton.boundary import STEP, Cap
from baton.calibrate.knobs import Knob, find_knob
from baton.calibrate.points import Asked, Points, varied
from baton.calibrate.reliability import Scored
from baton.calibrate.thresholds import YARDSTICK_TOKENS, Settings, Tried, operating_points
from baton.engines.base import EngineLostError
from baton.flops import Architecture
from baton.gate import Threshold
from baton.generation import Generation, Options
from baton.routers.random import Random
from baton.trace import Trace
from scripted import ScriptedEngine, pair
from virtual_clock import run

QUESTIONS = [Question(f"q{n}", f"{n}?", "5", level=str(n % 2)) for n in range(6)]
ANSWER = "one two three. " * 40 + "</think>\\boxed{5}<eos>"
UNIT = Knob("x", 0.0, 1.0, rises=True)


@dataclass(frozen=True)
class Curve:
    """The target writes the part `of(x)` of a hundred tokens, in a single stretch."""

    x: float
    of: Callable[[float], float]

    name: ClassVar[str] = "curve"

    async def __call__(self, gen: Generation) -> None:
        target = round(100 * self.of(self.x))
        if target:
            await gen.write("target", [Cap(target)])
        if target < 100 and not gen.finished:
            await gen.write("draft", [Cap(100 - target)])
        gen.abandon()
        while not gen.finished:
            await gen.write("draft")


@dataclass(frozen=True)
class Gated:
    """Ten steps whose scores are given; rejected ones are the target's."""

    threshold: float
    scores: tuple[float, ...]

    name: ClassVar[str] = "gated"

    async def __call__(self, gen: Generation) -> None:
        for score in self.scores:
            step = await gen.propose("draft", [STEP])
            if gen.decide(Threshold(self.threshold), step, score):
                gen.commit(step)
            else:
                gen.discard(step)
                await gen.write("target", [STEP])
        while not gen.finished:
            await gen.write("draft")


STEPS = "one two three\n\n" * 10 + "</think>\\boxed{5}<eos>"


def engines(text: str = "a" * 100 + "</think>\\boxed{5}<eos>"):
    return pair(ScriptedEngine("target", text), ScriptedEngine("draft", text))


def search(tmp_path: Path, make, knob: Knob, *asked: Asked, models=None, **settings) -> Points:
    return run(
        operating_points(models or engines(), make, knob, asked, QUESTIONS, Options(), tmp_path, Settings(**settings))
    )


def share(value: float) -> Asked:
    return Asked("target_share", value)


@pytest.mark.parametrize("power", [0.2, 1.0, 5.0])
def test_shares_are_found_on_a_bent_curve(tmp_path, power):
    points = search(
        tmp_path, lambda x: Curve(x, lambda v: v**power), UNIT, share(0.3), share(0.5), share(0.7), evaluations=6
    )
    for point in points.points:
        assert point.reached, point
        assert point.found.target_share == pytest.approx(point.asked.value, abs=0.02)
        # The last 11 of 111 tokens are the draft's in any case.
        assert point.found.value == pytest.approx((point.found.target_share * 1.11) ** (1 / power), abs=0.03)
    assert points.notes == []


def test_a_falling_knob_is_searched_as_well(tmp_path):
    knob = Knob("x", 0.001, 10.0, rises=False, log=True)
    points = search(tmp_path, lambda x: Curve(x, lambda v: 1 / (1 + 20 * v)), knob, share(0.4))
    assert points.points[0].reached
    assert points.points[0].found.value == pytest.approx(0.0626, rel=0.2)
    assert points.notes == []


def test_evaluations_are_shared_between_points_and_limited(tmp_path):
    points = search(tmp_path, lambda x: Curve(x, lambda v: v), UNIT, share(0.3), share(0.31), share(0.3), evaluations=2)
    assert len(points.evaluations) <= 2 + 2
    assert [e.value for e in points.evaluations] == sorted({e.value for e in points.evaluations})
    assert points.evaluations[0].value == 0.0
    assert points.evaluations[-1].value == 1.0


def test_a_share_out_of_reach_is_said_with_the_reach_and_the_nearest(tmp_path):
    points = search(tmp_path, lambda x: Curve(x, lambda v: 0.4 + 0.2 * v), UNIT, share(0.1), share(0.5))
    below, inside = points.points
    assert not below.reached
    assert "out of reach (0.36" in below.note
    assert "nearest 0.36" in below.note
    assert below.found.value == 0.0
    assert inside.reached
    assert points.range("target_share")[0] == below.found.target_share


def test_a_jump_is_said_and_ends_the_search(tmp_path):
    points = search(
        tmp_path, lambda x: Gated(x, (0.2,) * 10), Knob("threshold", 0.0, 1.0, True), share(0.5), models=engines(STEPS)
    )
    (point,) = points.points
    assert not point.reached
    assert "no value lies between those tried" in point.note
    assert len(points.evaluations) == 2


def test_a_curve_that_turns_back_is_noted(tmp_path):
    points = search(
        tmp_path, lambda x: Curve(x, lambda v: 0.9 if 0.2 < v < 0.6 else v / 2), UNIT, share(0.2), evaluations=3
    )
    assert any("is not monotone: it turns back between" in note for note in points.notes)


def test_a_knob_that_goes_the_other_way_than_declared_is_noted(tmp_path):
    points = search(tmp_path, lambda x: Curve(x, lambda v: 1 - v), UNIT, share(0.5))
    assert points.notes == ["target_share should rise with x, and does not here"]
    assert points.points[0].reached


def test_thresholds_are_searched_among_the_scores_that_steps_got(tmp_path):
    """All scores lie within a thousandth of the range's end, where halving the range would find nothing."""
    scores = tuple(1 - 1e-4 * (n + 1) for n in range(10))
    points = search(
        tmp_path,
        lambda x: Gated(x, scores),
        Knob("threshold", 0.0, 1.0, True),
        share(0.3),
        share(0.7),
        Asked("accept_rate", 0.5),
        models=engines(STEPS),
        evaluations=3,
        tolerance=0.05,
    )
    assert [p.reached for p in points.points] == [True, True, True]
    assert points.points[2].found.accept_rate == 0.5


def labelled(questions: int = 40) -> Scored:
    """Ten steps a question: one with score below 0.5 loses everything, one above nothing."""
    scores = np.tile(np.arange(10) / 10, questions)
    harm = (scores < 0.5).astype(float)
    names = np.repeat([f"q{n}" for n in range(questions)], 10).tolist()
    return Scored(scores, 1 - harm, harm, names, ["1"] * len(scores), harm == 2, harm)


def test_a_limit_on_harm_is_kept_by_the_threshold_that_labels_tell(tmp_path):
    plain, safe, wide = Asked("harm", 0.15), Asked("harm", 0.12, "crc"), Asked("harm", 0.9)
    scores = tuple(n / 10 for n in range(10))
    search_with = operating_points(
        engines(STEPS), lambda x: Gated(x, scores), Knob("threshold", 0.0, 1.0, True), [plain, safe, wide], QUESTIONS,
        Options(), tmp_path, Settings(), labelled=labelled(),
    )  # fmt: skip
    points = run(search_with)
    found = [points.point(asked).found for asked in (plain, safe, wide)]
    # One harmful step of ten is within 0.15. With 40 questions the guarantee leaves 0.12 - 0.88 / 40 < 0.1 of 0.12.
    assert [round(e.harm, 6) for e in found] == [0.1, 0.0, 0.5]
    assert [e.accept_rate for e in found] == [0.6, 0.5, 1.0]
    assert 0.4 >= found[0].value > 0.3
    points.save(tmp_path / "points.json")
    assert Points.load(tmp_path / "points.json").point(safe).found == found[1]


def test_a_limit_on_harm_needs_labels_a_gate_and_enough_questions(tmp_path):
    def ask(asked: Asked, make, states: Scored | None) -> None:
        folder = tmp_path / make(0.5).name
        run(operating_points(engines(STEPS), make, UNIT, [asked], QUESTIONS, Options(), folder, labelled=states))

    gated = lambda x: Gated(x, (0.5,) * 10)  # noqa: E731
    with pytest.raises(ValueError, match="harm: no labels tell it"):
        ask(Asked("harm", 0.1), gated, None)
    with pytest.raises(ValueError, match="harm: curve's 'x' is no threshold of a gate"):
        ask(Asked("harm", 0.1), lambda x: Curve(x, lambda v: v), labelled())
    with pytest.raises(ValueError, match=r"3 questions cannot guarantee 0\.1; label 9 or more"):
        ask(Asked("harm", 0.1, "crc"), gated, labelled(3))
    with pytest.raises(ValueError, match="guarantee: 'crc' is none for flops"):
        Asked("flops", 1.0, "crc")


def test_the_range_is_widened_to_the_scores_unless_it_was_given(tmp_path):
    scores = tuple(float(n) for n in range(10))
    knob = Knob("threshold", 0.0, 1.0, True)
    wide = search(tmp_path / "a", lambda x: Gated(x, scores), knob, share(0.7), models=engines(STEPS), tolerance=0.05)
    assert wide.points[0].reached
    assert wide.points[0].found.value > 1
    fixed = Knob("threshold", 0.0, 1.0, True, fixed=True)
    kept = search(tmp_path / "b", lambda x: Gated(x, scores), fixed, share(0.7), models=engines(STEPS))
    assert kept.high == 1.0
    assert "out of reach" in kept.points[0].note


def test_whole_numbers_stay_whole(tmp_path):
    knob = Knob("x", 0, 10, rises=True)
    points = search(tmp_path, lambda x: Curve(x, lambda v: v / 10), knob, share(0.4), evaluations=8)
    assert all(isinstance(e.value, int) for e in points.evaluations)
    assert points.points[0].found.value == 4
    assert "no value lies between those tried; nearest 0.3604 at 4" in points.points[0].note


def test_a_measure_that_the_router_does_not_have_is_refused(tmp_path):
    with pytest.raises(ValueError, match="accept_rate: 'curve' has none: it decides nothing by a gate"):
        search(tmp_path, lambda x: Curve(x, lambda v: v), UNIT, Asked("accept_rate", 0.5))


def test_a_second_call_makes_no_answer_twice_and_finds_the_same(tmp_path):
    models = engines()
    target, draft = models.engines.values()
    make = lambda x: Curve(x, lambda v: v**2)  # noqa: E731
    first = search(tmp_path, make, UNIT, share(0.3), models=models)
    calls = len(target.log), len(draft.log)
    assert search(tmp_path, make, UNIT, share(0.3), models=models) == first
    assert (len(target.log), len(draft.log)) == calls


def test_a_search_that_was_cut_off_goes_on_where_it_stopped(tmp_path):
    make = lambda x: Random(share=x)  # noqa: E731
    whole = search(tmp_path / "whole", make, UNIT, share(0.5), models=engines(ANSWER))
    calls = 0

    def breaks(text: str) -> Exception | None:
        nonlocal calls
        calls += 1
        return RuntimeError("killed") if calls > 300 else None

    cut = engines(ANSWER)
    for engine in cut.engines.values():
        engine.fail = breaks
    with pytest.raises(RuntimeError, match="killed"):
        search(tmp_path / "cut", make, UNIT, share(0.5), models=cut)
    stored = sum(len(f.read_text().splitlines()) for f in (tmp_path / "cut").glob("*.jsonl"))
    assert stored > 0
    assert search(tmp_path / "cut", make, UNIT, share(0.5), models=engines(ANSWER)) == whole


def test_an_engine_that_comes_back_costs_no_answer(tmp_path):
    models = engines()
    lost = [EngineLostError("gone")]
    for engine in models.engines.values():
        engine.fail = lambda text: lost.pop() if lost else None
    points = search(tmp_path, lambda x: Curve(x, lambda v: v), UNIT, share(0.5), models=models)
    assert points.points[0].found.n == len(QUESTIONS)


def test_accuracy_and_intervals_are_over_questions(tmp_path):
    wrong = Question("q9", "?", "6")
    # The grader is a process: it needs the real clock.
    points = asyncio.run(
        operating_points(
            engines(), lambda x: Random(share=x), UNIT, [share(1.0)], [*QUESTIONS, wrong], Options(), tmp_path
        )
    )
    found = points.points[0].found
    assert found.n == 7
    assert found.accuracy == pytest.approx(6 / 7)
    assert found.accuracy_ci[0] < 6 / 7 < found.accuracy_ci[1]
    assert found.target_share_ci == (1.0, 1.0)


def test_points_read_back_as_they_were_written(tmp_path):
    points = search(tmp_path, lambda x: Curve(x, lambda v: v), UNIT, share(0.3), share(0.9))
    points.save(tmp_path / "points.json")
    assert Points.load(tmp_path / "points.json") == points
    written = json.loads((tmp_path / "points.json").read_text())
    assert written["points"][0]["asked"] == {"target_share": 0.3}
    assert written["range"]["accept_rate"] is None


@pytest.mark.parametrize(("content", "message"), [("{", "not valid JSON"), ("[]", "schema 1"), (None, "no such file")])
def test_a_broken_file_is_named(tmp_path, content, message):
    path = tmp_path / "points.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ValueError, match=message):
        Points.load(path)


WEARING = {"fallback", "load-aware"}
"""They have no such knob of their own; the router that they wear has."""
WITHOUT = {"best-of-n", "beam", "majority", "draft", "target", "relaygen", "relaygen-compat"} | WEARING


@pytest.mark.parametrize("name", [n for n in routers.names() if n not in WITHOUT])
def test_every_router_with_a_main_knob_takes_both_ends_of_its_range(name):
    needed = {"bail-out": {"router": "rsd"}, "budget": {"router": "rsd"}, "steady": {"router": "rsd"}}
    given = {**needed.get(name, {}), **({"cues": ["So"]} if name == "hybrid" else {})}
    knob = find_knob(name, given)
    assert knob.rises is not None
    for value in (knob.low, knob.high):
        routers.create(name, varied(given, knob.name, value))


@pytest.mark.parametrize("name", sorted(WITHOUT - WEARING))
def test_routers_without_one_say_so(name):
    with pytest.raises(ValueError, match=f"{name}' has no knob that moves its target share; there is nothing"):
        find_knob(name, {})


def test_a_worn_routers_knob_is_reached_by_a_dot():
    knob = find_knob("bail-out", {"router": {"router": "specreason"}}, "router.threshold")
    assert (knob.name, knob.low, knob.high) == ("router.threshold", 0.0, 10.0)
    made = routers.create("bail-out", varied({"router": {"router": "specreason"}}, knob.name, 9.0))
    assert made.router.threshold == 9.0
    for name in WEARING:
        with pytest.raises(
            ValueError, match="has no knob that moves its target share; name one of the router it wears"
        ):
            find_knob(name, {})


@pytest.mark.parametrize(
    ("router", "knobs", "main"),
    [
        ("rsd", {}, "threshold"),
        ("rsd", {"gate": "constant"}, "p"),
        ("rsd", {"gate": "logistic"}, "threshold"),
        ("lookahead", {}, "threshold"),
        ("lookahead", {"verifier": "exact"}, "depth"),
        ("hybrid", {}, "depth"),
        ("hybrid", {"scorer": "prm"}, "threshold"),
    ],
)
def test_a_knob_that_does_nothing_beside_the_others_is_not_searched(router, knobs, main):
    assert find_knob(router, knobs).name == main


def test_a_knob_that_does_nothing_beside_the_others_is_refused_by_name():
    with pytest.raises(ValueError, match=r"rsd\.p does nothing beside gate=binary; vary threshold"):
        find_knob("rsd", {"gate": "binary"}, "p")
    with pytest.raises(ValueError, match="'rsd' has no knob that moves its target share"):
        find_knob("rsd", {"gate": "clipping"})


def test_a_knob_without_a_declared_range_needs_one():
    with pytest.raises(ValueError, match=r"rsd\.alpha declares no range; give one: --range LOW,HIGH"):
        find_knob("rsd", {}, "alpha")
    assert find_knob("rsd", {}, "alpha", (1.0, 20.0)).high == 20.0
    with pytest.raises(ValueError, match="rsd has no knob 'treshold'; use one of threshold"):
        find_knob("rsd", {}, "treshold")
    with pytest.raises(ValueError, match="range: 2 is not below 1"):
        find_knob("rsd", {}, "threshold", (2.0, 1.0))


def test_the_range_of_a_margin_ends_where_the_way_back_begins():
    assert find_knob("margin", {"high": 0.4}).high == 0.4


def timed_engines(target: float = 0.01, draft: float = 0.001):
    text = "a" * 100 + "</think>\\boxed{5}<eos>"
    return pair(ScriptedEngine("target", text, delay=target), ScriptedEngine("draft", text, delay=draft))


def test_a_latency_is_found_and_its_answers_ran_one_block_at_a_time(tmp_path):
    """A hundred tokens at 10 ms or 1 ms, and eleven of the draft at 1 ms: 0.111 to 1.011 seconds."""
    models = timed_engines()
    make = lambda x: Curve(x, lambda v: v)  # noqa: E731
    found = search(tmp_path, make, UNIT, Asked("p90_s", 0.561), models=models, concurrency=4, tolerance=0.01)
    (point,) = found.points
    assert point.reached
    assert point.found.value == pytest.approx(0.5, abs=0.01)
    assert point.found.p50_s == pytest.approx(0.561, rel=0.01)
    assert point.found.p99_s is None
    assert found.concurrency == 4
    assert [e.slowness for e in found.evaluations] == pytest.approx([1.0] * len(found.evaluations))
    target = models.engines["target"]
    assert sum(entry.sampled == YARDSTICK_TOKENS for entry in target.log) == 2 * len(found.evaluations)
    calls = len(target.log)
    assert search(tmp_path, make, UNIT, Asked("p90_s", 0.561), models=models, concurrency=4, tolerance=0.01) == found
    assert len(target.log) == calls


def test_answers_cut_off_at_their_deadline_take_no_latency_for_granted():
    """Of ten answers two were cut off after a second: P50 is known, P90 is beyond the deadline."""

    def timed(n: int) -> Trace:
        extra = {"pass": "calibration", "arm": "x", "grade": "correct", "yardstick_s": 0.1, "score": 0.5}
        cut = n < 2
        finish = "timeout" if cut else "end_of_text"
        return Trace(question=f"q{n}", seconds=1.0 if cut else 0.1 + n / 100, finish=finish, extra=extra)

    found = Tried.of(0.5, [timed(n) for n in range(10)], {}, 0)
    assert found.summary.p50_s == pytest.approx(0.165)
    assert found.summary.p90_s is None
    assert found.measure("p90_s") == math.inf
    assert found.summary.accuracy == pytest.approx(0.4), "the grader's score, as comparisons tell it"


def test_a_machine_that_slows_down_does_not_move_the_point(tmp_path):
    models = timed_engines()
    slowness = iter([1.0, 3.0, 2.0, 0.5, 4.0])

    def make(x: float) -> Curve:
        # As the search tries its values, one after another.
        now = next(slowness)
        models.engines["target"].delay, models.engines["draft"].delay = 0.01 * now, 0.001 * now
        return Curve(x, lambda v: v)

    knob, asked = UNIT, Asked("p90_s", 0.561)
    found = search(tmp_path, make, knob, asked, models=models, tolerance=0.01, evaluations=2)
    (point,) = found.points
    assert point.reached
    assert point.found.value == pytest.approx(0.5, abs=0.01)
    assert {e.value: e.slowness for e in found.evaluations}[1.0] == pytest.approx(3.0)


def test_latencies_are_not_read_from_answers_made_at_another_load(tmp_path):
    models = timed_engines()
    make = lambda x: Curve(x, lambda v: v)  # noqa: E731
    search(tmp_path, make, UNIT, share(0.5), models=models, concurrency=6)
    before = len(models.engines["target"].log)
    found = search(tmp_path, make, UNIT, Asked("p50_s", 0.561), models=models, concurrency=3)
    assert found.evaluations[0].p50_s is not None
    assert len(models.engines["target"].log) > before


def test_flops_are_found_within_a_part_of_them(tmp_path):
    models = engines()
    sizes = {"target": 1000.0, "draft": 10.0}
    for role, engine in models.engines.items():
        engine.architecture = Architecture(sizes[role], body=sizes[role])
    make = lambda x: Curve(x, lambda v: v)  # noqa: E731
    found = search(tmp_path, make, UNIT, Asked("flops", 1e5), models=models, tolerance=0.03)
    (point,) = found.points
    assert point.reached
    assert point.found.flops == pytest.approx(1e5, rel=0.03)
    with pytest.raises(ValueError, match="p99_s: 6 questions say nothing of it; give 300, or ask for p90_s"):
        search(tmp_path, make, UNIT, Asked("p99_s", 0.5), models=models)


def test_what_is_asked_is_checked():
    with pytest.raises(ValueError, match="target_share: 3 is no share"):
        Asked("target_share", 3)
    with pytest.raises(ValueError, match="measure: 'speed' is unknown"):
        Asked("speed", 0.5)
