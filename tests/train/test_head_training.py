"""Heads beside the reward models: each learns its labels, is written as it was trained, and serves its router."""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from divergences import write_divergences
from label_sets import VOCABULARY, encode, labels, write
from launches import QUIET, SCRIPT, launch, losses, train
from trl import ModelConfig

from baton import nano
from baton.config import NANO_PAIR, EquivalenceConfig, PolicyHeadConfig, TokenConfig
from baton.fingerprint import of_weights
from baton.generation import Budget, Options, Router, generate
from baton.nano import problems
from baton.pair import Pair
from baton.routers.lookahead import Lookahead
from baton.routers.policy import Policy
from baton.routers.segmenter import Segmenter
from baton.routers.token_router import TokenRouter
from baton.scorers.policy import PolicyNet
from baton.scorers.resident import ResidentHead
from baton.trace import Trace
from baton.training.config import StepTraining, Training
from baton.training.labels import Label
from baton.training.policy import PolicyJob, PolicyTraining, answers_of, see_answers, went_on
from baton.training.prm import Job
from baton.training.tokens import SegmenterJob, SegmenterTraining, TokenRouterJob, TokenTraining, divergent_tokens
from baton.training.verifier import VerifierJob, VerifierTraining
from baton.vocabulary import Vocabulary

pytestmark = pytest.mark.train
LEARN = {"max_steps": 60, "learning_rate": 3e-3}


def run(job: type[Job], fields: type[Any], out: Path, data: Path, model: str = "nano:draft", **given: Any) -> dict:
    learn = {**LEARN, **{name: given.pop(name) for name in LEARN if name in given}}
    chosen = {"eval_strategy": "steps", "save_strategy": "steps", "eval_steps": 20, "save_steps": 20}
    asked = {"batch": 16, "held_out": 0.3, "hidden": 16, "development": 0.0, **given}
    training = Training(output_dir=str(out), **{**QUIET, **learn, **(chosen if asked["development"] else {})})
    report = job.prepare(fields(data=str(data), **asked), ModelConfig(model_name_or_path=model), training).run()
    assert report["export_difference"] < 1e-4
    return report


async def answered(scorers: dict[str, Any], router: Router) -> Trace:
    pair = Pair.load(NANO_PAIR.model_copy(update={"scorers": scorers}), Path())
    try:
        question = problems.load("dev", 1)[0].question
        return await generate(pair, router, question, options=Options(budget=Budget(96, 16)))
    finally:
        await pair.close()


def reworded(label: Label) -> Label:
    """The target says a harmless step in other words, but for the first of an answer, where texts are equal."""
    if label.state == 0:
        return replace(label, target_ids=label.draft_ids, target_text=label.draft_text)
    text = f"So {label.target_text}"
    return replace(label, target_ids=encode(text), target_text=text)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("labels"), labels(200))


@pytest.mark.parametrize("inputs", ["all", "logits"])
async def test_a_token_router_finds_the_tokens_that_lead_another_way(tmp_path: Path, inputs: str):
    rows = write_divergences(tmp_path / "rows", 120)
    report = run(
        TokenRouterJob,
        TokenTraining,
        tmp_path / "out",
        rows,
        inputs=inputs,
        balance=True,
        top=20,
        blocks=1,
        development=0.2,
    )
    assert report["chosen"]["objective"] == min(losses(report, "eval_objective"))
    about = json.loads((tmp_path / "out" / "model" / "head.json").read_text())
    assert "of the development tokens" in about["chosen"]
    assert about["weights"] == of_weights(nano.models()["draft"])
    # The line was drawn on other questions than it is told of.
    assert next(row for row in report["recalls"] if row["recall"] == 0.95)["threshold"] == about["threshold"]
    assert any(row["found"] != row["recall"] for row in report["recalls"])
    found = {row["recall"]: row["fires"] for row in report["recalls"]}
    # One token in fourteen matters. Log-probabilities tell where tokens may differ, and not what was written.
    assert report["held_out"]["auc"] > (0.99 if inputs == "all" else 0.9)
    assert 0 < found[0.5] <= found[0.95] < (0.2 if inputs == "all" else 0.5)
    scorers = {"token-router": TokenConfig(kind="token", model=str(tmp_path / "out" / "model"))}
    assert (await answered(scorers, TokenRouter())).tokens() > 0


def test_divergences_of_another_tokenizer_or_too_long_are_named(tmp_path: Path):
    rows = write_divergences(tmp_path / "rows", 3)
    with pytest.raises(ValueError, match=r"1-of-1\.jsonl: line 1: it is longer than the limit of 10"):
        divergent_tokens(str(rows), VOCABULARY, 10, 0.5, "refuse")
    file = rows / "1-of-1.jsonl"
    whole = file.read_text()
    for column in ("answer_ids", "draft_ids"):
        file.write_text(re.sub(rf'"{column}": \[\d+', f'"{column}": [99999', whole, count=1))
        with pytest.raises(ValueError, match="line 1: it is outside the vocabulary"):
            divergent_tokens(str(rows), VOCABULARY, 2048, 0.5, "refuse")
        left = divergent_tokens(str(rows), VOCABULARY, 2048, 0.5, "leave_out")
        assert (len(left.examples), dict(left.left_out)) == (2, {"outside the vocabulary": 1})
    file.write_text(whole)
    other = Vocabulary(list(reversed(VOCABULARY.tokens)), VOCABULARY.encode, VOCABULARY.end_of_text)
    with pytest.raises(ValueError, match="line 1: its ids are those of another tokenizer"):
        divergent_tokens(str(rows), other, 2048, 0.5, "leave_out")


async def test_a_segmenter_learns_where_harm_begins(tmp_path: Path, data: Path):
    for name, role in (("hand-back", "draft"), ("take-over", "target")):
        report = run(
            SegmenterJob, SegmenterTraining, tmp_path / name, data, f"nano:{role}", role=role, blocks=1, top=20
        )
        if role == "draft":
            # The target's doubt puts the harm at the minus, or at one of the digits after it.
            assert report["held_out"]["auc"] > 0.7
            measured = SegmenterJob.measured(
                SegmenterTraining(data=str(data), measure=report["model"], blocks=1, top=20, hidden=16),
                ModelConfig(model_name_or_path="nano:draft"), Training(output_dir=str(tmp_path), use_cpu=True),
            )  # fmt: skip
            assert measured["questions"] == 200
            assert measured["auc"] > 0.7
            assert measured["found"] > 0.5
    scorers = {n: TokenConfig(kind="token", model=str(tmp_path / n / "model")) for n in ("hand-back", "take-over")}
    assert (await answered(scorers, Segmenter())).tokens() > 0


async def test_a_policy_weighs_harm_against_the_price_of_the_target(tmp_path: Path, data: Path):
    train(tmp_path / "resident", data, kind="resident", held_out=0.3, batch=16, hidden=16, **LEARN)
    head = str(tmp_path / "resident" / "model")
    scores = {}
    for price in (0.01, 20.0):
        report = run(
            PolicyJob, PolicyTraining, tmp_path / f"{price}", data, head=head, price=price, temperature=0.2,
            learning_rate=0.03,
        )  # fmt: skip
        scores[price] = report["held_out"]["mean_score"]
    assert report["held_out"]["auc"] > 0.8
    # A token that costs nothing is the target's as soon as it may help; one that costs much never is.
    assert scores[0.01] + 0.3 < scores[20.0]
    scorers = {"policy": PolicyHeadConfig(kind="policy", model=str(tmp_path / "0.01" / "model"))}
    trace = await answered(scorers, Policy(threshold=0.5))
    assert trace.decisions
    assert all(0 <= d.score <= 1 for d in trace.decisions)


async def test_a_verifier_learns_which_steps_can_stand_for_each_other(tmp_path: Path):
    data = write(tmp_path / "labels", [reworded(x) for x in labels(200)])
    report = run(VerifierJob, VerifierTraining, tmp_path / "out", data)
    assert report["held_out"]["auc"] > 0.9
    assert report["data"]["left_out"] == {"equal texts, which need no verifier": 200}
    scorers = {"same": EquivalenceConfig(kind="equivalence", model=str(tmp_path / "out" / "model"))}
    trace = await answered(scorers, Lookahead(verifier="same", threshold=0.5, depth=2, asynchronous=False))
    assert any(helper.by == "same" for helper in trace.helpers)


async def test_a_policy_is_trained_on_what_its_router_sees(tmp_path: Path):
    """The scores of an answer's steps, by the router, and by the trainer of the rows that they would make."""
    pair = Pair.load(NANO_PAIR.model_copy(update={"scorers": {"policy": NANO_PAIR.scorers["policy"]}}), Path())
    question = problems.load("dev", 2)[1].question
    try:
        trace = await generate(pair, Policy(threshold=0.6), question, options=Options(budget=NANO_PAIR.budget))
    finally:
        await pair.close()
    by_id, kept = {s.id: s for s in trace.segments}, labels(1)[0]
    rows, path = [], []
    for decision in trace.decisions:
        step = by_id[decision.node]
        path = [i for s in trace.path() if s.id < step.id for i in s.ids]
        rows.append(replace(
            kept, question="1", state=len(rows), prompt_ids=trace.prompts["draft"], path_ids=path,
            step_ends=[len(path)] if path else [], draft_ids=list(step.ids), draft_text=step.text,
            taken="draft" if step.kept else "target",
        ))  # fmt: skip
    assert len(rows) > 4
    assert any(went_on(a, b) and a.taken == "target" for a, b in pairwise(rows)), "the target wrote the draft's text"
    found = answers_of(list(enumerate(rows, 1)), Counter())
    head, _ = ResidentHead.load(nano.models()["policy"])
    draft, budget = str(nano.pair_paths()["draft"]), NANO_PAIR.budget.tokens
    ((seen,),) = see_answers(draft, "float32", torch.device("cpu"), [found], (0, 1), head, budget)
    net, _ = PolicyNet.load(nano.models()["policy"])
    scores = net(seen.features[None])[0][0].sigmoid().tolist()
    assert scores == pytest.approx([decision.score for decision in trace.decisions], abs=2e-3)


def test_a_policy_needs_every_state_of_an_answer(tmp_path: Path):
    content = labels(60, steps=6)
    hole = [x for x in content if (x.question, x.state) != ("q7", 4)]
    fields = {"held_out": 0.3, "development": 0.0}
    asked = PolicyTraining(data=str(write(tmp_path / "hole", hole)), **fields)
    source = str(nano.pair_paths()["draft"])
    _, found = PolicyJob.read(asked, ModelConfig(), None, source)
    assert (found.steps, found.left_out) == (len(hole) - 1, {"after a state without a label": 1})
    spread = PolicyTraining(data=str(write(tmp_path / "spread", [x for x in content if x.state % 3 == 0])), **fields)
    with pytest.raises(ValueError, match=r"data: .*spread has labels of some .*\(60 of 120 .* label with states: null"):
        PolicyJob.read(spread, ModelConfig(), None, source)


@pytest.mark.parametrize(
    ("job", "fields", "measured", "given", "said"),
    [
        (Job, StepTraining, "resident-target", {"kind": "resident"}, "measure: the head reads states of the target"),
        (Job, StepTraining, "resident", {"kind": "resident", "label": "correct"}, "set label: keep"),
        (VerifierJob, VerifierTraining, "verifier", {"role": "target"}, "measure: the head reads states of the draft"),
        (SegmenterJob, SegmenterTraining, "take-over", {}, "was trained with role target, and here it is draft"),
        (SegmenterJob, SegmenterTraining, "token-router", {}, "was trained with label diverges, and here it is harm"),
    ],
)
def test_stored_weights_that_the_data_cannot_be_read_by_are_refused(
    data: Path, tmp_path: Path, job: type[Job], fields: type[Any], measured: str, given: dict[str, Any], said: str
):
    asked = fields(data=str(data), measure=f"nano:{measured}", **given)
    with pytest.raises(ValueError, match=said):
        job.measured(asked, ModelConfig(), Training(output_dir=str(tmp_path), use_cpu=True))


def test_a_policy_reads_a_head_on_the_drafts_states_alone(data: Path, tmp_path: Path):
    with pytest.raises(ValueError, match="head: the head reads states of the target nano:target"):
        run(PolicyJob, PolicyTraining, tmp_path / "out", data, head="nano:resident-target")
    with pytest.raises(ValueError, match="role: 'target' cannot be had"):
        PolicyTraining(data=str(data), role="target")


@pytest.mark.parametrize("script", ["train_segmenter", "train_policy", "train_verifier"])
def test_two_processes_train_the_head_that_one_does(script: str, tmp_path: Path):
    data = write(tmp_path / "labels", [reworded(x) for x in labels(60)])
    own = {"train_segmenter": {"dropout": 0.0, "top": 20, "hidden": 16}}
    given = {"script": SCRIPT.with_name(f"{script}.py"), "held_out": 0.3, **own.get(script, {})}
    one = launch("cpu.yaml", tmp_path / "one", data, **given)
    two = launch("ddp.yaml", tmp_path / "two", data, processes=2, strategy="ddp", **given)
    assert two["processes"] == 2
    assert losses(two) == pytest.approx(losses(one), rel=1e-3, abs=1e-5)
    assert two["held_out"]["auc"] == pytest.approx(one["held_out"]["auc"], abs=1e-3)


def test_shuffled_labels_teach_a_head_nothing(tmp_path: Path):
    content = labels(300)
    chances = [(x.q_draft, x.q_target) for x in content]
    random.Random(0).shuffle(chances)
    shuffled = [replace(reworded(x), q_draft=q, q_target=t) for x, (q, t) in zip(content, chances, strict=True)]
    report = run(VerifierJob, VerifierTraining, tmp_path / "out", write(tmp_path / "labels", shuffled))
    assert 0.35 < report["held_out"]["auc"] < 0.65
