"""Which models the embedded engine loads and runs, and what it says of those that it cannot."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import transformers
from tiny_models import PADDED, PROMPT, PROMPTS, generated, make_model, write

from baton.engines.base import EngineError, LoadError, Sampling
from baton.engines.chat import load_tokenizer
from baton.engines.transformers import TransformersEngine

# Checkpoints


@pytest.fixture
def checkpoint(tmp_path: Any, tokenizer: Any) -> Any:
    make_model().save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    return tmp_path


async def test_a_saved_checkpoint_loads_in_float32_and_writes_the_same(
    checkpoint: Any, engine: TransformersEngine
) -> None:
    loaded = TransformersEngine.load(str(checkpoint), device="cpu")
    assert loaded._worker.geometry.dtype == torch.float32
    assert loaded.vocabulary.shares_ids(engine.vocabulary)
    assert (await write(loaded, PROMPT, 20)).ids == (await write(engine, PROMPT, 20)).ids
    await loaded.close()


@pytest.mark.parametrize(
    ("remove", "message"),
    [("config.json", "config.json"), ("model.safetensors", "safetensors checkpoint"), ("tokenizer.json", "tokenizer")],
)
def test_a_folder_without_a_needed_file_says_which(checkpoint: Any, remove: str, message: str) -> None:
    (checkpoint / remove).rename(checkpoint / "pytorch_model.bin")
    with pytest.raises(LoadError, match=message) as caught:
        TransformersEngine.load(str(checkpoint), device="cpu")
    assert "\n" not in str(caught.value)
    assert str(checkpoint) in str(caught.value)


def test_a_missing_folder_is_named(tmp_path: Any) -> None:
    with pytest.raises(LoadError, match="no such folder"):
        TransformersEngine.load(str(tmp_path / "nowhere"), device="cpu")


# Families


MIXED = ["linear_attention", "full_attention"]


def small(family: str, **changes: Any) -> Any:
    """A random model of another family, by the name of its classes."""
    config = getattr(transformers, f"{family}Config")(
        vocab_size=PADDED, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, max_position_embeddings=512, initializer_range=0.15, pad_token_id=None,
        bos_token_id=None, eos_token_id=None, **changes,
    )  # fmt: skip
    torch.manual_seed(0)
    return getattr(transformers, f"{family}ForCausalLM")(config).eval()


@pytest.mark.parametrize("family", ["Llama", "Qwen2", "Phi3", "Granite"])
async def test_other_families_write_what_generate_writes(tokenizer: Any, family: str) -> None:
    model = small(family)
    reference = copy.deepcopy(model)
    engine = TransformersEngine(model, tokenizer)
    assert (await write(engine, PROMPT, 20, Sampling())).ids == generated(reference, PROMPT, 20)
    await engine.close()


@pytest.mark.parametrize(
    ("family", "changes", "message"),
    [
        ("Gemma2", {}, "layer 1 needs attention with softcap"),
        ("Mistral", {"sliding_window": 64}, "sliding window of 64"),
        (
            "Qwen3Next",
            {"mlp_only_layers": [0, 1], "layer_types": MIXED},
            r"layers \[0\] bypass",
        ),
    ],
)
def test_attention_that_a_step_cannot_do_is_refused(
    tokenizer: Any, family: str, changes: dict[str, Any], message: str
) -> None:
    model = small(family, **changes)
    with pytest.raises(LoadError, match=message):
        TransformersEngine(model, tokenizer)


def test_a_window_shorter_than_the_context_is_refused(tokenizer: Any) -> None:
    model = make_model(use_sliding_window=True, sliding_window=512, max_window_layers=1)
    with pytest.raises(LoadError, match="sliding window of 512"):
        TransformersEngine(model, tokenizer)


async def test_a_window_as_long_as_the_context_is_full_attention(tokenizer: Any, engine: TransformersEngine) -> None:
    model = make_model(use_sliding_window=True, sliding_window=512, max_window_layers=1)
    windowed = TransformersEngine(model, tokenizer, context=512)
    assert (await write(windowed, PROMPT, 20)).ids == (await write(engine, PROMPT, 20)).ids
    await windowed.close()


# When something is wrong from the start


async def test_a_default_type_that_another_library_set_changes_nothing(tokenizer: Any) -> None:
    plain = TransformersEngine(make_model(), tokenizer)
    expected = (await write(plain, PROMPTS[0], 12)).ids
    await plain.close()
    model = make_model()
    torch.set_default_dtype(torch.bfloat16)
    try:
        engine = TransformersEngine(model, tokenizer)
        assert (await write(engine, PROMPTS[0], 12)).ids == expected
        await engine.close()
    finally:
        torch.set_default_dtype(torch.float32)


async def test_a_model_that_cannot_be_made_ready_is_an_error_of_every_call(tokenizer: Any, monkeypatch: Any) -> None:
    def fail(network: Any) -> None:
        raise RuntimeError("no kernel")

    monkeypatch.setattr("baton.engines.network.Network.prepare", fail)
    engine = TransformersEngine(make_model(), tokenizer)
    for _ in range(2):
        with pytest.raises(EngineError, match="the model cannot be made ready: RuntimeError: no kernel"):
            await write(engine, PROMPTS[0], 3)
    await engine.close()


def test_a_model_of_the_hub_that_cannot_be_had_is_told_how_to_be_brought(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(LoadError, match=r"`hf download some-owner/some-model --local-dir FOLDER` where there is"):
        TransformersEngine.load("some-owner/some-model")
    with pytest.raises(LoadError, match=r"tokenizer cannot be loaded: .* `hf download some-owner/some-model"):
        load_tokenizer("some-owner/some-model")
