"""The trained model as one safetensors checkpoint that vLLM serves and the PRM scorer loads."""

from __future__ import annotations

import gc
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForTokenClassification
from transformers.integrations.deepspeed import unset_hf_deepspeed_config
from transformers.models.auto.modeling_auto import MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING

from baton.scorers.checkpoint import Checkpoint
from baton.scorers.prm import PrmModel, Row
from baton.scorers.prm_formats import load_format
from baton.training.examples import Example


def export(trainer: Any, source: str, tokenizer: Any, folder: Path, dtype: str) -> Path:
    """Writes the trained model, adapters merged, as a sequence classifier with one label. Called by every process.

    Its score is a step's where the sequence ends at that step; vLLM reads its prefix cache for that.

    Args:
        source: the checkpoint that training began with.
        dtype: of the weights written.
    """
    raw = folder.with_name(folder.name + ".part")
    trainer.save_model(str(raw))
    # Under ZeRO-3 every model that is loaded from here on would be divided among the processes.
    unset_hf_deepspeed_config()
    if trainer.is_world_process_zero():
        model = _merged(raw, source) if (raw / "adapter_config.json").is_file() else _plain(raw)
        shutil.rmtree(folder, ignore_errors=True)
        model.to(getattr(torch, dtype)).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        _as_sequence_classifier(folder)
        shutil.rmtree(raw)
        del model
        gc.collect()
    trainer.accelerator.wait_for_everyone()
    return folder


def _plain(folder: Path) -> Any:
    model, seen = AutoModelForTokenClassification.from_pretrained(folder, output_loading_info=True)
    if missing := sorted(key for key in seen["missing_keys"] if key != "score.bias"):
        raise RuntimeError(f"{folder}: {len(missing)} weights were not saved, the first of them {missing[0]}")
    model.score.bias = None
    return model


def _merged(folder: Path, source: str) -> Any:
    """The checkpoint that training began with, in full precision, and the adapters on it."""
    from peft import PeftModel

    config = AutoConfig.from_pretrained(source)
    config.num_labels, config.classifier_dropout = 1, 0.0
    config.problem_type = "multi_label_classification"
    base = AutoModelForTokenClassification.from_pretrained(source, config=config, dtype=torch.float32)
    base.score.bias = None
    return PeftModel.from_pretrained(base, folder).merge_and_unload()


def _as_sequence_classifier(folder: Path) -> None:
    """Both classes name their weights alike, so only the configuration tells them apart."""
    path = folder / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    kind = MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING[type(AutoConfig.from_pretrained(folder))]
    config |= {"architectures": [kind.__name__], "use_cache": True}
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def prm_scores(folder: Path, examples: Sequence[Example]) -> list[list[float]]:
    """A checkpoint's scores of the examples' steps, as the PRM scorer reads them; on the CPU in float32."""
    loaded = load_format("token-classification", Checkpoint.find(str(folder), device="cpu"), None, {})
    model = PrmModel(loaded.backbone, loaded.head, cache_bytes=0)
    return [r.scores for r in model([Row(n, e.ids, tuple(s.end for s in e.steps)) for n, e in enumerate(examples)])]


def check_mergeable(prm: Path, writer: Path) -> None:
    """Refuses to average weights of different shape; `prm` may be the checkpoint that a training begins with.

    Raises:
        ValueError: a folder holds no weights, or the two are of different shape.
    """
    ours, theirs = _shapes(prm), _shapes(writer)
    common = ours.keys() & theirs.keys()
    if not common:
        raise ValueError(f"merge_into: {writer} has no weight that {prm} has; give a model of the same architecture")
    for name in sorted(common):
        if ours[name] != theirs[name]:
            raise ValueError(
                f"merge_into: {name} is {theirs[name]} in {writer} and {ours[name]} in {prm}; give a model of the same "
                "shape"
            )


def merge_weights(prm: Path, writer: Path, out: Path, share: float) -> None:
    """Averages a reward model's weights with those of the model that it scores or was made from: one set of weights
    that writes (`out/writer`) and scores (`out/prm`), as RSD's merged models (arXiv 2501.19324).

    Args:
        share: of the reward model in the average; what only one of the two has is kept as it is.

    Raises:
        ValueError: the two are of different shape.
    """
    check_mergeable(prm, writer)
    ours, theirs = _tensors(prm), _tensors(writer)
    common = ours.keys() & theirs.keys()
    mean = {n: share * ours[n].float() + (1 - share) * theirs[n].float() for n in common}
    for folder, tensors, name in ((writer, theirs, "writer"), (prm, ours, "prm")):
        target = out / name
        target.mkdir(parents=True, exist_ok=True)
        for file in folder.iterdir():
            if file.is_file() and ".safetensors" not in file.name and file.name != "training.jsonl":
                shutil.copy(file, target / file.name)
        merged = {n: mean.get(n, t).to(t.dtype).contiguous() for n, t in tensors.items()}
        save_file(merged, target / "model.safetensors", metadata={"format": "pt"})


def _tensors(folder: Path) -> dict[str, torch.Tensor]:
    return {name: tensor for file in _files(folder) for name, tensor in load_file(file).items()}


def _shapes(folder: Path) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for file in _files(folder):
        with safe_open(file, framework="pt") as tensors:
            found |= {name: tensors.get_slice(name).get_shape() for name in tensors.keys()}  # noqa: SIM118
    return found


def _files(folder: Path) -> list[Path]:
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ValueError(f"merge_into: {folder} holds no safetensors weights; give the folder of a model")
    return files
