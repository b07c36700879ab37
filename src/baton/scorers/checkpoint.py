"""A scorer's model on disk: safetensors, no code unless it is trusted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import safe_open
from torch import Tensor
from transformers.utils import logging

from baton.engines.base import LoadError
from baton.engines.transformers import check_device
from baton.flops import Architecture, architecture

FILES = ("*.safetensors", "*.safetensors.index.json", "*.json", "*.txt", "*.model", "*.jinja")


def pooled_runner() -> Any:
    """The module whose models run in vLLM.

    Raises:
        LoadError: vLLM is not installed.
    """
    try:
        return import_module("baton.scorers.pooled")
    except ImportError as error:
        raise LoadError(f"'vllm' is not installed ({error}); pip install 'batonlm[vllm]'", "engine") from error


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A folder with a model and its tokenizer, and how it is to be loaded."""

    folder: Path
    device: torch.device
    dtype: torch.dtype | str
    trust_remote_code: bool = False

    @classmethod
    def find(
        cls, path: str, *, device: str = "auto", dtype: str = "auto", trust_remote_code: bool = False,
        revision: str | None = None,
    ) -> Checkpoint:  # fmt: skip
        """A folder, or a hub id whose files are fetched first.

        Args:
            device: `auto` is the first CUDA device, or else the CPU.
            dtype: `auto` is the checkpoint's on CUDA and float32 on a CPU.

        Raises:
            LoadError: it is not there, or is no safetensors checkpoint.
        """
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        check_device(device)
        if dtype == "auto" and device == "cpu":
            dtype = "float32"
        folder = Path(path)
        if not folder.is_dir():
            folder = _fetch(path, revision, trust_remote_code)
        if not (folder / "config.json").is_file():
            raise LoadError(f"{path}: it has no config.json; give the folder that save_pretrained wrote")
        if not any(folder.glob("*.safetensors")):
            raise LoadError(f"{path}: it is not a safetensors checkpoint; convert it with save_pretrained")
        return cls(folder, torch.device(device), dtype, trust_remote_code)

    def model(self, auto: Any) -> Any:
        """The model by one of `transformers`' auto classes, in evaluation mode on the device.

        Weights that the class does not know (a head that is read apart) are left out.

        Raises:
            LoadError: it cannot be built, or weights that it needs are not there.
        """
        try:
            with _quiet():
                model, seen = auto.from_pretrained(
                    self.folder, dtype=self.dtype, use_safetensors=True, trust_remote_code=self.trust_remote_code,
                    output_loading_info=True,
                )  # fmt: skip
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
            raise LoadError(f"{self.folder}: cannot be loaded: {' '.join(said.split())}; check its files") from error
        # Nothing reads an encoder's pooler; anything else would be random numbers.
        if missing := sorted(key for key in seen["missing_keys"] if "pooler" not in key):
            raise LoadError(f"{self.folder}: it has no weights for {', '.join(missing[:3])}; check the scorer's format")
        return model.to(self.device).eval()

    def tokenizer(self, auto: Any) -> Any:
        """Its tokenizer.

        Raises:
            LoadError: it cannot be built.
        """
        try:
            return auto.from_pretrained(self.folder, trust_remote_code=self.trust_remote_code)
        except (OSError, ValueError, KeyError) as error:
            raise LoadError(f"{self.folder}: its tokenizer cannot be loaded: {' '.join(str(error).split())}") from error

    def cost(self) -> Architecture:
        """What a forward of the backbone costs; no weights are read.

        Raises:
            LoadError: its configuration is of no model that transformers knows.
        """
        try:
            config = transformers.AutoConfig.from_pretrained(self.folder, trust_remote_code=self.trust_remote_code)
            with torch.device("meta"):
                backbone = transformers.AutoModel.from_config(config, trust_remote_code=self.trust_remote_code)
        except (OSError, ValueError, KeyError) as error:
            raise LoadError(
                f"{self.folder}: its configuration cannot be used: {' '.join(str(error).split())}"
            ) from error
        return architecture(backbone)

    def tensors(self, names: Sequence[str]) -> list[Tensor]:
        """Single tensors by their names in the files, in float32 on the device.

        Raises:
            LoadError: one is not there.
        """
        found: dict[str, Tensor] = {}
        for file in sorted(self.folder.glob("*.safetensors")):
            with safe_open(file, framework="pt") as tensors:
                present = set(tensors.keys())
                found |= {name: tensors.get_tensor(name) for name in names if name in present}
        for name in names:
            if name not in found:
                raise LoadError(f"{self.folder}: it has no tensor {name!r}; check the scorer's format")
        return [found[name].float().to(self.device) for name in names]


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the report on weights left out."""
    level = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(level)


def _fetch(path: str, revision: str | None, trust_remote_code: bool) -> Path:
    if path.count("/") != 1 or path.startswith((".", "/", "~")):
        raise LoadError(f"{path}: no such folder; give one with config.json, or a hub id (owner/name)")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    wanted = [*FILES, "*.py"] if trust_remote_code else list(FILES)
    try:
        return Path(snapshot_download(path, revision=revision, allow_patterns=wanted))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError, ValueError) as error:
        raise LoadError(f"{path}: cannot be fetched: {' '.join(str(error).split())}") from error
