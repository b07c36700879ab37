"""What a forward of a model costs, from its configuration.

A token costs two operations (a multiplication and an addition) for each weight it is multiplied by, and, in each
layer, two for each number of the keys and values of every token it attends to:

    2 * (body * tokens + head * predicted + attention * attended)

Embeddings are looked up, so they cost nothing, except as output layer where they are tied; the output layer counts for
tokens whose successor is predicted only; of experts those count that a token is sent to. Source: PaLM (Chowdhery et
al. 2022), appendix B, forward pass only (2 N + 4 L H Q T a token, with T the tokens attended to, here the exact ones
instead of the whole context). Softmax, norms' statistics and rotations are left out, as there.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Architecture:
    """What a model's forward depends on."""

    parameters: float
    """All weights, as a model's size is usually told."""
    body: float
    """Weights that each token is multiplied by, without the output layer."""
    head: float = 0.0
    """Weights of the output layer."""
    attention: float = 0.0
    """Over all layers, numbers of a token's key and value that a query is multiplied with."""

    def flops(self, tokens: float, predicted: float, attended: float) -> float:
        """Operations of `tokens` computed, of which `predicted` have a successor predicted; `attended` is the sum
        over them of the tokens each attends to, itself included."""
        return 2 * (self.body * tokens + self.head * predicted + self.attention * attended)


def attended(start: float, tokens: float) -> float:
    """Sum of the tokens that each of `tokens` attends to, the first of which stands after `start` others."""
    return tokens * start + tokens * (tokens + 1) / 2


def architecture(model: Any) -> Architecture:
    """Of a `transformers` model; its weights need not be there (`meta` device).

    Layers with a sliding window count as if they saw everything, linear attention counts by its weights alone.
    """
    import torch

    config = model.config.get_text_config()
    looked_up = {
        id(weight)
        for module in model.modules()
        if isinstance(module, torch.nn.Embedding)
        for weight in module.parameters()
    }
    output = model.get_output_embeddings()
    head = output.weight if output is not None and hasattr(output, "weight") else None
    used = _used_experts(config)
    total = body = 0.0
    # Each weight once: tied ones are told once by `named_parameters`.
    for name, weight in model.named_parameters():
        total += weight.numel()
        if id(weight) not in looked_up and weight is not head:
            body += weight.numel() * (used if ".experts." in name else 1)
    kinds = getattr(config, "layer_types", None) or ["full_attention"] * config.num_hidden_layers
    layers = sum("linear" not in kind for kind in kinds)
    output_layer = float(head.numel()) if head is not None else 0.0
    return Architecture(total, body, output_layer, float(layers * _width(config)))


def of_checkpoint(path: str | Path, revision: str | None = None, trust_remote_code: bool = False) -> Architecture:
    """Of a causal language model by its configuration alone (folder or hub id): no weights are read.

    Raises:
        OSError, ValueError: there is no configuration, or of no known model.
    """
    import torch
    import transformers

    config = transformers.AutoConfig.from_pretrained(path, revision=revision, trust_remote_code=trust_remote_code)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config, trust_remote_code=trust_remote_code)
    model.tie_weights()
    return architecture(model)


def _used_experts(config: Any) -> float:
    """Part of the experts that a token is sent to."""
    names = ("num_experts", "num_local_experts", "n_routed_experts")
    experts = next((n for name in names if (n := getattr(config, name, None))), None)
    return config.num_experts_per_tok / experts if experts else 1.0


def _width(config: Any) -> float:
    """Numbers of a key and a value, over all query heads of a layer."""
    heads = config.num_attention_heads
    if (nope := getattr(config, "qk_nope_head_dim", None)) is not None:
        return float(heads * (nope + config.qk_rope_head_dim + config.v_head_dim))
    each = getattr(config, "head_dim", None) or config.hidden_size // heads
    return float(heads * 2 * each)
