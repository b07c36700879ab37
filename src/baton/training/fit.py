"""What a training will need, told before it runs: placement, memory and GPU hours, without loading weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForTokenClassification

from baton.config import located
from baton.flops import architecture, attended
from baton.training.config import StepTraining, Training, check_fields, divide
from baton.training.resident import TOKENS

GIB = 1 << 30
BYTES = {"float32": 4.0, "bfloat16": 2.0, "float16": 2.0}
QUANTISED = 0.55
"""Bytes of a 4-bit weight with its scales."""
ADAM = 8.0
"""Bytes of the two moments of a trained weight."""
KEPT, WORKED = 16.0, 34.0
"""Numbers of a layer's forward that stay for the backward, by token and unit of width: with flash attention, and with
all else that a layer holds while it is computed (Korthikanti et al. 2022, section 4, without attention scores)."""
OVERHEAD = 2.0
"""GiB of a process apart from that: CUDA's context, the allocator's waste, collectives' buffers."""


Lengths = Callable[[str], list[int]]
"""Tokens of each sequence of a training's data, by where that stands."""


def dry_run(asked: StepTraining, model: Any, training: Training, lengths: Lengths) -> dict[str, Any]:
    """Configuration, placement, memory of a GPU and GPU hours of a training, whose data `lengths` measures.

    Memory is an estimate for mixed precision with Adam and attention that stores no scores.

    Raises:
        ValueError: a field is wrong, or the model's shape is not to be had here.
    """
    check_fields(asked, model, training)
    divide(training, asked.batch, asked.processes)
    config = _config(asked, model)
    longest = asked.max_length or int(config.get_text_config().max_position_embeddings)
    with torch.device("meta"):
        network = AutoModelForTokenClassification.from_config(config)
    weights = sum(p.numel() for p in network.parameters())
    trained = _trained(network, asked, model)
    micro = training.per_device_train_batch_size
    memory = _memory(asked, model, training, config, weights, trained, micro * longest)
    needed = sum(memory.values())
    return {
        "config": _shown(asked, model, training),
        "placement": {
            "strategy": asked.strategy,
            "processes": asked.processes,
            "examples_a_process": micro,
            "accumulated": training.gradient_accumulation_steps,
            "global_batch": asked.batch,
        },
        "model": {"parameters": weights, "trained": trained, "longest": longest},
        "memory_gib": {**{name: round(value, 2) for name, value in memory.items()}, "all": round(needed, 1)},
        "gpu_gib": asked.gpu_gib,
        "fits": needed <= asked.gpu_gib,
        "gpu_hours": _hours(asked, model, training, network, longest, lengths),
    }


def _config(asked: StepTraining, model: Any) -> Any:
    """The model's configuration, or that of its shape where the model is not here."""
    source = asked.shape or located(model.model_name_or_path or f"nano:{asked.role}", Path())
    try:
        config = AutoConfig.from_pretrained(source)
    except (OSError, ValueError) as error:
        said = " ".join(str(error).split())[:120]
        raise ValueError(f"shape: {source} cannot be read ({said}); give the model's config.json") from None
    config.num_labels = 1
    return config


def _trained(network: nn.Module, asked: StepTraining, model: Any) -> int:
    """Weights that are trained."""
    width = int(network.score.in_features)  # type: ignore[union-attr, arg-type]
    if asked.kind == "resident":
        return asked.head_weights(width)
    if not model.use_peft:
        # The head's bias is dropped.
        whole: int = sum(p.numel() for p in network.parameters()) - 1
        return whole
    linear = [m for name, m in network.named_modules() if isinstance(m, nn.Linear) and name != "score"]
    adapters: int = sum(model.lora_r * (m.in_features + m.out_features) for m in linear)
    return width + adapters


def _memory(
    asked: StepTraining, model: Any, training: Training, config: Any, weights: int, trained: int, tokens: int
) -> dict[str, float]:
    """GiB of one process, by what they are for; `tokens` are those of a micro-batch of the longest examples."""
    text = config.get_text_config()
    own = BYTES.get(str(model.dtype), 4.0)
    # DeepSpeed trains bf16 weights beside full ones that it divides.
    sharing = asked.strategy in ("zero2", "zero3")
    used = 2.0 if training.bf16 and sharing else own
    master = 4.0 if training.bf16 and sharing else 0.0
    if model.load_in_4bit:
        used = QUANTISED
    all_divided = asked.processes if asked.strategy in ("zero3", "fsdp") else 1
    some_divided = asked.processes if asked.strategy in ("zero2", "zero3", "fsdp") else 1
    number = 2.0 if training.bf16 else 4.0
    if asked.kind == "resident":
        # The model only runs forward, on as many tokens as `see` puts together.
        kept, working = (
            0.0,
            WORKED * max(TOKENS, tokens // training.per_device_train_batch_size) * text.hidden_size * own,
        )
    elif training.gradient_checkpointing:
        kept, working = (
            tokens * text.num_hidden_layers * text.hidden_size * number,
            ((KEPT + WORKED) * tokens * text.hidden_size * number),
        )
    else:
        kept, working = WORKED * tokens * text.num_hidden_layers * text.hidden_size * number / 2, 0.0
    return {
        "weights": weights * used / all_divided / GIB,
        "gradients": trained * (own if not sharing else used) / some_divided / GIB,
        "optimiser": trained * (ADAM + master) / some_divided / GIB,
        "activations": (kept + working) / GIB,
        "overhead": OVERHEAD,
    }


def _hours(
    asked: StepTraining, model: Any, training: Training, network: nn.Module, longest: int, lengths: Lengths
) -> dict[str, float | str]:
    """GPU hours of the training, or of a million tokens where the data is not here yet."""
    shape = architecture(network)
    # Forward, backward to the inputs, backward to the weights; and the forward again where it is not kept.
    passes = 1 if asked.kind == "resident" else (2 if model.use_peft else 3) + bool(training.gradient_checkpointing)
    rate = asked.gpu_tflops * 1e12 * 3600
    try:
        tokens = lengths(asked.data)
    except ValueError:
        per_million = passes * shape.flops(1e6, 0, 1e6 / longest * attended(0, longest)) / rate
        return {"a_million_tokens": round(per_million, 4), "data": f"{asked.data or 'data'} is not there yet"}
    forward = sum(shape.flops(n, 0, attended(0, n)) for n in tokens)
    epochs = 1.0 if asked.kind == "resident" else training.num_train_epochs
    return {"at_most": round(epochs * passes * forward / rate, 4), "tokens": float(sum(tokens))}


def _shown(asked: StepTraining, model: Any, training: Training) -> dict[str, Any]:
    weights = ("model_name_or_path", "dtype", "use_peft", "lora_r", "lora_alpha", "load_in_4bit")
    optimiser = (
        "learning_rate",
        "num_train_epochs",
        "max_steps",
        "bf16",
        "gradient_checkpointing",
        "output_dir",
        "seed",
    )
    return {
        **asdict(asked),
        **{name: getattr(model, name) for name in weights},
        **{name: getattr(training, name) for name in optimiser},
    }
