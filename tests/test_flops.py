"""FLOPs by the formula are those that a model's products take."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForCausalLM, AutoModelForTokenClassification, Qwen3Config, Qwen3MoeConfig

from baton import nano
from baton.flops import Architecture, architecture, attended, of_checkpoint

CONFIG = {
    "vocab_size": 320, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "head_dim": 16,
    "num_attention_heads": 4, "num_key_value_heads": 2,
}  # fmt: skip


def model(cls=AutoModelForCausalLM, config=Qwen3Config, **changes):
    torch.manual_seed(0)
    return cls.from_config(config(**{**CONFIG, **changes}), attn_implementation="eager").eval()


def counted(module, tokens: int) -> float:
    """What the matrix products of a forward take, by torch; eager attention computes the masked half too."""
    with FlopCounterMode(display=False) as counter, torch.inference_mode():
        module(input_ids=torch.arange(tokens)[None], use_cache=False)
    return counter.get_total_flops()


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("tokens", [3, 50])
def test_a_forward_takes_what_torch_counts(tied, tokens):
    whole = model(tie_word_embeddings=tied)
    found = architecture(whole)
    expected = found.flops(tokens, predicted=tokens, attended=tokens * tokens)
    # Norms have weights too, which are no matrix products.
    assert expected == pytest.approx(counted(whole, tokens), rel=0.02)
    assert found.head == 320 * 64
    assert found.parameters == whole.num_parameters()


def test_a_scorer_has_no_output_layer_to_speak_of():
    scorer = model(AutoModelForTokenClassification)
    found = architecture(scorer)
    assert found.head == 0
    assert found.flops(20, predicted=0, attended=400) == pytest.approx(counted(scorer, 20), rel=0.02)


def test_a_token_is_sent_to_some_experts_only():
    sparse = model(
        config=Qwen3MoeConfig, num_experts=8, num_experts_per_tok=2, moe_intermediate_size=96, decoder_sparse_step=1
    )
    found = architecture(sparse)
    experts = 3 * 8 * 3 * 64 * 96
    assert found.parameters - 2 * 320 * 64 - found.body == pytest.approx(experts * 6 / 8)


def test_a_checkpoint_costs_by_its_configuration_what_it_costs_loaded():
    path = nano.pair_paths()["draft"]
    assert of_checkpoint(path) == architecture(AutoModelForCausalLM.from_pretrained(path))


def test_a_large_model_is_sized_without_its_weights(tmp_path):
    # Qwen3-32B: 32.8 billion parameters, 31.2 without embeddings, as its model card says.
    Qwen3Config(
        vocab_size=151936, hidden_size=5120, intermediate_size=25600, num_hidden_layers=64, num_attention_heads=64,
        num_key_value_heads=8, head_dim=128, tie_word_embeddings=False,
    ).save_pretrained(tmp_path)  # fmt: skip
    found = of_checkpoint(tmp_path)
    assert found.parameters == pytest.approx(32.8e9, rel=0.005)
    assert found.body == pytest.approx(31.2e9, rel=0.005)
    assert found.attention == 64 * 64 * 256


def test_tokens_attend_to_those_before_them_and_to_themselves():
    assert attended(0, 4) == 1 + 2 + 3 + 4
    assert attended(10, 3) == 11 + 12 + 13
    one = Architecture(10, body=10, head=5, attention=2)
    assert one.flops(3, 1, attended(10, 3)) == 2 * (30 + 5 + 2 * 36)
