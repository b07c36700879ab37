"""Process reward models: every format against a plain implementation, batched, cached, counted."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from tiny_prms import FORMATS, SIZE, build, make_tokenizer
from transformers import (
    BertConfig,
    BertForTokenClassification,
    Qwen3Config,
    Qwen3ForSequenceClassification,
    Qwen3ForTokenClassification,
)

from baton.boundary import STEP
from baton.config import PrmConfig
from baton.engines.base import EngineError, LoadError
from baton.gate import Threshold
from baton.generation import Budget, Generation, Options, generate
from baton.pair import Pair
from baton.scorers.base import ScoreRequest
from baton.scorers.prm import Prm, PrmModel, Read, Row, aggregated
from baton.trace import Role
from baton.vocabulary import Vocabulary
from scripted import ScriptedEngine

QUESTION = "How many eggs are 16 - 3 - 4?"
STEPS = ["First, 16 - 3 = 13.", "Then 13 - 4 = 9.", "So, 9 eggs\nare left.", "The answer is 9."]
CLOSE = {"abs": 2e-5}


def request(steps: list[str], question: str = QUESTION, generation: int = 1, **more: Any) -> ScoreRequest:
    texts = [s + "\n\n" for s in steps]
    return ScoreRequest(question, tuple(texts[:-1]), texts[-1], "draft", (), 0, generation=generation, **more)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Any]]:
    out = {}
    for kind in FORMATS:
        folder = tmp_path_factory.mktemp(kind)
        out[kind] = (folder, build(kind, folder))
    return out


def load(folder: Path, kind: str, engines: Any = None, **changes: Any) -> Prm:
    separator = "\n\n\n" if kind == "token-classification" and engines is None else None
    config = PrmConfig(kind="prm", model=str(folder), format=kind, **{"separator": separator, **changes})
    return Prm.load("prm", config, engines or {}, Path("/"))


@pytest.mark.parametrize("kind", FORMATS)
async def test_steps_score_as_the_format_was_published(built, kind):
    folder, reference = built[kind]
    scorer = load(folder, kind)
    expected = reference(QUESTION, STEPS)
    assert max(expected) - min(expected) > 0.01
    for n in range(1, len(STEPS) + 1):
        (score,) = await scorer.score([request(STEPS[:n], generation=n)])
        assert score.value == pytest.approx(expected[n - 1], **CLOSE)
    await scorer.close()


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("cache_mb", [0, 64])
async def test_answers_of_any_length_are_scored_together_as_alone(built, kind, cache_mb):
    folder, reference = built[kind]
    scorer = load(folder, kind, cache_mb=cache_mb)
    questions = [QUESTION, "1 + 1?", "What is " + "very " * 20 + "long?"]
    for n in range(1, len(STEPS) + 1):
        requests = [request(STEPS[: max(1, n - k)], q, generation=k) for k, q in enumerate(questions)]
        scores = await scorer.score(requests)
        for r, score in zip(requests, scores, strict=True):
            assert score.value == pytest.approx(reference(r.question, r.path)[-1], **CLOSE)
    assert scorer.batcher.batches == [3] * len(STEPS)
    await scorer.close()


@pytest.mark.parametrize("kind", FORMATS)
async def test_what_was_computed_of_an_answer_is_not_computed_again(built, kind):
    folder, _ = built[kind]
    scorer = load(folder, kind)
    length = 0
    for n in range(1, len(STEPS) + 1):
        (score,) = await scorer.score([request(STEPS[:n])])
        assert score.cached == length
        length += score.tokens
    assert length == sum(map(len, scorer.layout.pieces(request(STEPS), 0)))
    (again,) = await scorer.score([request(STEPS)])
    assert (again.tokens, again.cached) == (0, length)
    await scorer.close()


async def test_the_separator_of_rsds_code_can_be_had(built):
    folder, reference = built["skywork"]
    published, trained = load(folder, "skywork", separator="\n\n"), load(folder, "skywork")
    tokenizer = published.layout.tokenizer
    pieces = published.layout.pieces(request(STEPS), 0)
    assert {piece[-1] for piece in pieces} == {tokenizer.encode("\n\n", add_special_tokens=False)[-1]}
    assert {piece[-1] for piece in trained.layout.pieces(request(STEPS), 0)} == {tokenizer.encode("\n")[-1]}
    assert pieces[0][0] == tokenizer.bos_token_id
    assert pieces[0].count(tokenizer.bos_token_id) == 1
    (score,) = await published.score([request(STEPS)])
    assert score.value != pytest.approx(reference(QUESTION, STEPS)[-1], **CLOSE)
    await published.close()
    await trained.close()


async def test_a_rewritten_step_starts_from_the_step_before(built):
    folder, reference = built["qwen"]
    scorer = load(folder, "qwen")
    await scorer.score([request(STEPS[:3])])
    other = [*STEPS[:2], "No, 8 eggs."]
    (score,) = await scorer.score([request(other)])
    assert score.value == pytest.approx(reference(QUESTION, other)[-1], **CLOSE)
    assert 0 < score.tokens < 20
    await scorer.close()


async def test_candidates_for_a_step_share_what_stands_before_them(built):
    folder, reference = built["skywork"]
    scorer = load(folder, "skywork")
    kept = STEPS[:1]
    await scorer.score([request(kept)])
    for _ in range(3):
        candidates = [[*kept, f"Step {c}."] for c in "abcd"]
        scores = await scorer.score([request(c) for c in candidates])
        for steps, score in zip(candidates, scores, strict=True):
            assert score.value == pytest.approx(reference(QUESTION, steps)[-1], **CLOSE)
            assert score.tokens < 25
        kept = candidates[2]
    await scorer.close()


async def test_steps_of_one_chain_are_read_off_one_sequence(built):
    folder, reference = built["skywork"]
    scorer = load(folder, "skywork")
    scores = await scorer.score([request(STEPS[:n]) for n in (2, 4, 1, 3)])
    expected = reference(QUESTION, STEPS)
    assert [s.value for s in scores] == pytest.approx([expected[n - 1] for n in (2, 4, 1, 3)], **CLOSE)
    assert sum(s.tokens for s in scores) == sum(map(len, scorer.layout.pieces(request(STEPS), 0)))
    await scorer.close()


async def test_requests_of_many_callers_go_through_the_model_together(built):
    folder, _ = built["skywork"]
    scorer = load(folder, "skywork", max_batch=8)
    await asyncio.gather(*(scorer.score([request(STEPS, generation=n)]) for n in range(20)))
    assert sum(scorer.batcher.batches) == 20
    assert len(scorer.batcher.batches) <= 5
    await scorer.close()


async def test_a_cancelled_request_is_dropped_while_it_waits(built):
    folder, _ = built["skywork"]
    scorer = load(folder, "skywork", max_batch=1)
    calls = [asyncio.create_task(scorer.score([request(STEPS, generation=n)])) for n in range(20)]
    await asyncio.sleep(0)
    for call in calls[1:]:
        call.cancel()
    await asyncio.wait(calls)
    await scorer.score([request(STEPS, generation=99)])
    assert sum(scorer.batcher.batches) < 20
    await scorer.close()


async def test_a_full_cache_forgets_and_scores_stay_right(built):
    folder, reference = built["rlhflow"]
    scorer = load(folder, "rlhflow")
    scorer.model.cache_bytes = 150_000
    for n in range(1, 5):
        for generation in range(6):
            (score,) = await scorer.score([request(STEPS[:n], generation=generation)])
            assert score.value == pytest.approx(reference(QUESTION, STEPS)[n - 1], **CLOSE)
    held = sum(k.bytes for known in scorer.model._known.values() for k in known)
    assert 0 < held <= 150_000
    await scorer.close()


@pytest.mark.parametrize(("how", "expected"), [("last", 0.5), ("min", 0.25), ("mean", 0.5), ("product", 0.09375)])
def test_steps_are_aggregated(how, expected):
    assert aggregated([0.75, 0.25, 0.5], how) == expected


async def test_an_aggregate_is_over_all_steps_so_far_also_of_one_long_segment(built):
    folder, reference = built["qwen"]
    scorer = load(folder, "qwen", aggregate="min")
    whole = ScoreRequest(QUESTION, (), "<think>\n" + "\n\n".join(STEPS) + "\n</think>", "target", (), 0)
    (by_step,) = await scorer.score([request(STEPS)])
    (at_once,) = await scorer.score([whole])
    assert by_step.value == at_once.value == pytest.approx(min(reference(QUESTION, STEPS)), **CLOSE)
    await scorer.close()


async def test_an_empty_step_is_a_step_with_a_score_of_its_own(built):
    folder, reference = built["qwen"]
    scorer = load(folder, "qwen")
    (score,) = await scorer.score([request([*STEPS[:2], ""])])
    assert score.value == pytest.approx(reference(QUESTION, [*STEPS[:2], ""])[-1], **CLOSE)
    await scorer.close()


async def test_a_tag_inside_a_step_is_an_error_not_a_shift(built):
    scorer = load(built["math-shepherd"][0], "math-shepherd")
    with pytest.raises(EngineError, match="3 places to read for 2 steps"):
        await scorer.score([request(["Это ки.", "Then 9."])])
    await scorer.close()


async def test_a_model_that_gives_too_few_scores_is_an_error(built):
    folder, _ = built["skywork"]
    scorer = load(folder, "skywork")
    scorer.model._head = lambda states: states[:-1, 0]
    with pytest.raises(EngineError, match="the model gave 3 scores for 4 steps"):
        await scorer.score([request(STEPS)])
    scorer.model._head = lambda states: states[:, 0] * float("nan")
    with pytest.raises(EngineError, match=r"'prm'.*nan"):
        await scorer.score([request(STEPS, generation=2)])
    await scorer.close()


async def test_an_answer_that_outgrows_the_context_loses_its_oldest_steps(built):
    folder, reference = built["qwen"]
    scorer = load(folder, "qwen")
    steps = [f"Step {n} of many, as long as any." for n in range(40)]
    (score,) = await scorer.score([request(steps)])
    assert "first 32 steps did not fit" in score.reason
    assert score.value == pytest.approx(reference(QUESTION, steps[32:])[-1], **CLOSE)
    with pytest.raises(EngineError, match="the model takes 512"):
        await scorer.score([request(["x" * 600])])
    await scorer.close()


# The pair's own ids


@pytest.fixture
def ledger(tmp_path: Path) -> tuple[Path, Any, ScriptedEngine]:
    tokenizer = make_tokenizer(["<think>", "</think>"])
    torch.manual_seed(1)
    model = Qwen3ForTokenClassification(Qwen3Config(**SIZE, head_dim=8, num_labels=2)).eval()
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    return tmp_path, model, ScriptedEngine("draft", "", vocabulary=Vocabulary.from_tokenizer(tokenizer))


async def test_a_classifier_of_the_pairs_vocabulary_reads_the_ids_that_were_written(ledger):
    folder, model, engine = ledger
    encode = engine.vocabulary.encode
    prompt, texts = encode("Q?\n\nA:"), ["One step.\n\n", "Two\n\n\n", "three", " ends.\n\n"]
    # The writer cut its text into other tokens than a tokenizer would.
    pieces = [encode(texts[0]), [*encode("Two"), *encode("\n"), *encode("\n"), *encode("\n")], encode(texts[2])]
    pieces.append(encode(texts[3]))
    ids = [*prompt, *(i for p in pieces for i in p)]
    scorer = load(folder, "token-classification", {Role.DRAFT: engine}, aggregate="product")
    step = ScoreRequest("Q?", tuple(texts[:-1]), texts[-1], "draft", tuple(ids), len(pieces[-1]), prompt=len(prompt))
    (score,) = await scorer.score([step])
    with torch.inference_mode():
        probabilities = model(torch.tensor([ids])).logits[0].softmax(-1)[:, 1]
    ends = [len(prompt) + len(pieces[0]), len(prompt) + len(pieces[0]) + len(pieces[1]), len(ids)]
    assert score.value == pytest.approx(probabilities[[e - 1 for e in ends]].prod().item(), **CLOSE)
    await scorer.close()


async def test_ids_of_another_vocabulary_are_refused(ledger):
    folder, _, engine = ledger
    stranger = ScriptedEngine("target", "")
    with pytest.raises(LoadError, match="without a separator reads the pair's own token ids"):
        load(folder, "token-classification", {Role.TARGET: stranger})
    scorer = load(folder, "token-classification", {Role.TARGET: stranger, Role.DRAFT: engine})
    with pytest.raises(EngineError, match="target wrote the step in another vocabulary"):
        await scorer.score([ScoreRequest("Q", (), "x", "target", (1, 2), 1, prompt=1)])
    await scorer.close()


async def test_a_step_in_the_draft_s_vocabulary_is_read_as_the_target_reads_it(ledger):
    folder, model, engine = ledger
    target = ScriptedEngine("target", "", vocabulary=engine.vocabulary)
    # Another vocabulary: the ids of the words are others.
    draft = ScriptedEngine("draft", "one two.\n\nthree<eos>")
    scorer = load(folder, "token-classification", {Role.TARGET: target, Role.DRAFT: draft})

    @dataclass(frozen=True)
    class Judged:
        name: ClassVar[str] = "judged"

        async def __call__(self, gen: Generation) -> None:
            step = await gen.propose("draft", until=[STEP])
            gen.decide(Threshold(0.5), step, await gen.score(step, by="prm"))
            gen.commit(step)
            await gen.write("draft")

    pair = Pair("two vocabularies", {Role.TARGET: target, Role.DRAFT: draft}, {"prm": scorer})
    trace = await generate(pair, Judged(), "Q", options=Options(budget=Budget(200, 20)))
    ids = [*trace.prompts["target"], *engine.vocabulary.encode("one two.\n\n")]
    with torch.inference_mode():
        expected = model(torch.tensor([ids])).logits[0].softmax(-1)[-1, 1].item()
    assert trace.decisions[0].score == pytest.approx(expected, **CLOSE)
    await pair.close()


async def test_a_model_that_looks_ahead_is_computed_whole(tmp_path):
    settings = {k: v for k, v in SIZE.items() if k != "num_key_value_heads"}
    torch.manual_seed(2)
    model = BertForTokenClassification(BertConfig(**settings, num_labels=2)).eval()
    runner = PrmModel(model.base_model, lambda states: states[:, 0])
    assert runner.cache_bytes == 0
    rows = [Row(1, (5, 6, 7, 8), (2, 4)), Row(2, (9, 9), (2,)), Row(1, (5, 6), (2,))]
    reads = runner(rows)
    for row, read in zip(rows, reads, strict=True):
        with torch.inference_mode():
            states = model.base_model(torch.tensor([row.ids])).last_hidden_state[0]
        alone = [states[end - 1, 0].item() for end in row.ends]
        assert read == Read(pytest.approx(alone, abs=1e-4), len(row.ids), 0)


# What cannot be loaded


@pytest.mark.parametrize(
    ("kind", "other", "message"),
    [
        ("skywork", "qwen", "no tensor 'v_head.summary.weight'; check the scorer's format"),
        ("qwen", "skywork", "no tensor 'score.0.weight'; check the scorer's format"),
    ],
)
def test_a_checkpoint_of_another_format_is_refused(built, kind, other, message):
    with pytest.raises(LoadError, match=message):
        load(built[other][0], kind)


def test_only_safetensors_are_loaded(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(LoadError, match="not a safetensors checkpoint; convert it"):
        load(tmp_path, "skywork")
    with pytest.raises(LoadError, match="no such folder"):
        load(tmp_path / "missing" / "model", "skywork")


def test_a_separator_goes_with_formats_that_leave_it_open(built):
    with pytest.raises(LoadError, match="separator: 'x' goes with format skywork or token-classification"):
        load(built["qwen"][0], "qwen", separator="x")


async def test_a_sequence_classifier_with_one_label_is_read_at_the_end_of_the_ids(tmp_path):
    tokenizer = make_tokenizer()
    model = Qwen3ForSequenceClassification(Qwen3Config(**SIZE, head_dim=8, num_labels=1, pad_token_id=0)).eval()
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    ids = tokenizer.encode("1 + 1?\n\nIt is 2.\n\nSo 2.\n\n")
    draft = ScriptedEngine("draft", "", vocabulary=Vocabulary.from_tokenizer(tokenizer))
    scorer = load(tmp_path, "token-classification", {Role.DRAFT: draft})
    asked = ScoreRequest("1 + 1?", (), "So 2.\n\n", "draft", tuple(ids), 6, prompt=8)
    (score,) = await scorer.score([asked])
    with torch.inference_mode():
        expected = model(torch.tensor([ids])).logits[0, 0].sigmoid().item()
    assert score.value == pytest.approx(expected, **CLOSE)
    weights = sum(p.nbytes for p in model.model.parameters())
    assert scorer.held_bytes() == pytest.approx(weights + scorer.model.cache_bytes, rel=0.01)
    await scorer.close()
