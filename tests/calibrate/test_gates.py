"""Scores of placed steps, on the nano pair's own models: as a router gets them, and against what misleads."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from baton.bench.tasks import Question
from baton.calibrate import adversarial, rescoring
from baton.calibrate.adversarial import MANNERS, cases
from baton.calibrate.gates import Wanted, measure
from baton.calibrate.rescoring import Placed, Read, compares, rescore, scorers_of
from baton.config import EmbeddingConfig, JudgeConfig, load_pair, pair_options
from baton.engines.base import Sampling
from baton.generation import generate
from baton.nano import problems
from baton.pair import Pair
from baton.routers.rsd import RSD
from baton.trace import Role
from baton.training.labels import Label
from baton.training.rollouts import states_of

NANO = load_pair("nano")
OPTIONS = replace(pair_options(NANO), sampling=Sampling(temperature=0.6))


def quiet(stage: str, done: int, total: int) -> None:
    return None


async def rsd_trace(pair: Pair):
    problem = problems.load("train", 1)[0]
    trace = await generate(
        pair, RSD(scorer="judge", threshold=8.9), problem.question, options=OPTIONS, question_id=problem.id
    )
    return problem, trace


async def test_a_step_is_scored_as_the_router_that_wrote_it_had_it_scored(tmp_path: Path):
    pair = Pair.load(NANO, Path.cwd())
    try:
        problem, trace = await rsd_trace(pair)
        by_id = {s.id: s for s in trace.segments}
        words = {role: engine.vocabulary for role, engine in pair.engines.items()}
        states = states_of(Question(problem.id, problem.question, problem.answer), trace, words)
        path = [i for s in trace.path() for i in s.ids]
        wanted, steps = {}, []
        for state in states:
            before = [i for step in state.steps for _, ids in step for i in ids]
            ends = [sum(len(ids) for step in state.steps[: n + 1] for _, ids in step) for n in range(state.number)]
            assert path[: len(before)] == before
            here = next(d for d in trace.decisions if by_id[d.node].prompt == len(trace.prompts["draft"]) + len(before))
            key = str(state.number)
            steps.append(Placed(key, problem.id, problem.question, before, ends, by_id[here.node].ids, ""))
            wanted[key] = here.score
        reads = await rescore(pair, steps, {"judge": False}, OPTIONS, tmp_path / "scores.jsonl", quiet)
        assert {r.key: r.scores["judge"] for r in reads} == pytest.approx(wanted, abs=1e-4)
        assert len(wanted) > 2
        first = reads[0]
        assert -10 < first.scores["draft mean"] <= 0 <= -first.scores["draft entropy"]
        assert first.log_ratio is not None
        # A second call asks nothing again.
        stored = (tmp_path / "scores.jsonl").read_text()
        assert await rescore(pair, steps, {"judge": False}, OPTIONS, tmp_path / "scores.jsonl", quiet) == reads
        assert (tmp_path / "scores.jsonl").read_text() == stored
        with pytest.raises(ValueError, match="no scores by 'confidence'"):
            await rescore(pair, steps, {"confidence": False}, OPTIONS, tmp_path / "scores.jsonl", quiet)
    finally:
        await pair.close()


def label(problem: problems.Problem, step: str, harm: float, pair: Pair, sample: int = 0) -> Label:
    vocabulary = pair.engines[Role.TARGET].vocabulary
    return Label(
        question=problem.id, question_text=problem.question, gold=problem.answer, level=str(problem.level),
        sample=sample, state=0, router="r", prompt_ids=[1], path_ids=[], step_ends=[],
        draft_ids=vocabulary.encode(step), target_ids=vocabulary.encode("x"), draft_text=step, target_text="x",
        taken="draft", draft_outcomes=[1], target_outcomes=[1], q_draft=1 - harm, q_target=1.0, q_draft_se=0.1,
        q_target_se=0.1, draft_tokens=1, target_tokens=1, draft_cut=0, target_cut=0, ungraded=0, sampled_tokens=1,
        continued_by="target",
    )  # fmt: skip


async def test_the_judge_predicts_harm_where_wrong_steps_do_harm_and_the_report_holds_it(tmp_path: Path):
    pair = Pair.load(NANO, Path.cwd())
    try:
        sets: dict[str, list[Label]] = {}
        for split in ("calibration", "test"):
            sets[split] = []
            for problem in problems.load(split, 8):
                mine = [c for c in cases([problem]) if c.manner == "as the pair writes" and c.at == 0]
                for n, case in enumerate(mine):
                    sets[split].append(label(problem, f"{case.step}\n\n", float(not case.right), pair, n))
        wanted = Wanted(sets["calibration"], {"test": sets["test"]}, {"judge": False}, [0.1], misleading=2)
        report = await measure(pair, NANO, Path.cwd(), wanted, OPTIONS, tmp_path, 8, quiet)
    finally:
        await pair.close()
    judge = report["scores"]["judge"]["sets"]["test"]
    assert judge["states"] == len(sets["test"]) > 5
    assert judge["auroc"] > 0.75
    assert set(report["scores"]) == {"judge"} | {f"{r} {s}" for r in ("draft", "target") for s in rescoring.STATISTICS}
    assert judge["accept_rates"][0]["log_ratio"] is not None
    assert set(report["misleading"]["scores"]["judge"]) == set(MANNERS)
    json.dumps(report, allow_nan=False)


def test_a_calibration_question_in_another_set_is_refused():
    class Words:
        vocabulary = type("V", (), {"encode": staticmethod(lambda text: [1])})

    pair = type("P", (), {"engines": {Role.TARGET: Words}})()
    problem = problems.load("calibration", 1)[0]
    known = [label(problem, "x", 0.0, pair)]
    with pytest.raises(ValueError, match="use label sets of splits that share no question"):
        Wanted(known, {"test": known}, {}, [])


def test_which_scorers_compare():
    assert compares(EmbeddingConfig(kind="embedding", model="m"))
    assert compares(JudgeConfig(kind="judge", role="target", template="lookahead"))
    assert not compares(JudgeConfig(kind="judge", role="target", template="specreason"))


def test_all_scorers_of_a_pair_are_those_that_score_a_step_which_is_there_and_another_is_refused_by_name():
    found = scorers_of(NANO)
    assert {"judge", "confidence", "prm", "resident"} <= set(found)
    assert {NANO.scorers[name].kind for name in set(NANO.scorers) - set(found)} == {"equivalence", "policy", "token"}
    with pytest.raises(ValueError, match="'hand-back' reads what only writing a step gives; use it by 'token-router'"):
        scorers_of(NANO, ["judge", "hand-back"])


def test_cases_have_the_same_truth_in_every_manner_and_say_what_is_wrong():
    found = cases(problems.load("calibration", 20))
    assert len(found) == 20 * 3 * len(MANNERS)
    assert len({c.key for c in found}) == len(found)
    for case in found:
        operation = case.problem.operations[case.at]
        if case.manner in ("as the pair writes", "ugly", "praising itself", "code", "JSON"):
            assert (operation.result in case.step) or not case.right
        if case.mistake == "operation":
            assert operation.expression.replace(" ", "") not in case.step.replace(" ", "")
    right = [c.step for c in found if c.right and c.problem is found[0].problem]
    assert len(set(right)) == len(MANNERS)


def test_a_scorer_that_believes_praise_is_found_out():
    found = cases(problems.load("calibration", 10))
    believes = [
        Read(c.key, {"gullible": 1.0 if c.manner == "praising itself" else float(c.right)}, None, 1) for c in found
    ]
    report = adversarial.report(found, believes, {"gullible": 0.5})["gullible"]
    assert (report["as the pair writes"]["auroc"], report["as the pair writes"]["fooled"]) == (1.0, 0.0)
    assert (report["praising itself"]["auroc"], report["praising itself"]["fooled"]) == (0.5, 1.0)
