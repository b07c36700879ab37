"""Models that propose tokens to the nano target."""

from __future__ import annotations

import json
from pathlib import Path

import torch
import transformers
from safetensors.torch import save_file

from baton import nano

WIDTH, INNER, HEADS, KEY_HEADS, HEAD, TOKENS = 256, 768, 8, 4, 32, 1024


def save_random_head(folder: Path) -> Path:
    """An Eagle-3 head in the form that published ones have: one Llama layer on three of the target's states.

    It proposes nonsense, which must change no token.
    """
    config = {
        "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "hidden_size": WIDTH,
        "intermediate_size": INNER, "num_hidden_layers": 1, "num_attention_heads": HEADS,
        "num_key_value_heads": KEY_HEADS, "head_dim": HEAD, "vocab_size": TOKENS, "draft_vocab_size": TOKENS,
        "max_position_embeddings": 2048, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "tie_word_embeddings": False,
        "dtype": "float32", "eagle_config": {"eagle_aux_hidden_state_layer_ids": [2, 6, 9]},
    }  # fmt: skip
    shapes = {
        "fc.weight": (WIDTH, 3 * WIDTH),
        "midlayer.self_attn.q_proj.weight": (HEADS * HEAD, 2 * WIDTH),
        "midlayer.self_attn.k_proj.weight": (KEY_HEADS * HEAD, 2 * WIDTH),
        "midlayer.self_attn.v_proj.weight": (KEY_HEADS * HEAD, 2 * WIDTH),
        "midlayer.self_attn.o_proj.weight": (WIDTH, HEADS * HEAD),
        "midlayer.mlp.gate_proj.weight": (INNER, WIDTH),
        "midlayer.mlp.up_proj.weight": (INNER, WIDTH),
        "midlayer.mlp.down_proj.weight": (WIDTH, INNER),
        "lm_head.weight": (TOKENS, WIDTH),
    }
    torch.manual_seed(0)
    tensors = {name: 0.05 * torch.randn(shape) for name, shape in shapes.items()}
    norms = ("norm", "midlayer.input_layernorm", "midlayer.hidden_norm", "midlayer.post_attention_layernorm")
    tensors |= {f"{name}.weight": torch.ones(WIDTH) for name in norms}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


def save_padded_draft(folder: Path) -> Path:
    """The nano draft with as many rows in its matrix as the target has: vLLM wants them equal, whatever they mean."""
    model = transformers.AutoModelForCausalLM.from_pretrained(nano.pair_paths()["draft"], dtype=torch.float32)
    model.resize_token_embeddings(TOKENS, mean_resizing=False)
    model.save_pretrained(folder)
    return folder
