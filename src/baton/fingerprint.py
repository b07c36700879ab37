"""Digests by which a folder of a model is known again."""

from __future__ import annotations

import hashlib
from pathlib import Path

BLOCK_BYTES = 1 << 20


def of_model(folder: Path) -> str:
    """Digest that changes when a model folder's weights or configuration do."""
    return _digest(folder, "*.json", "*.safetensors")


def of_weights(path: str | Path) -> str | None:
    """Digest that changes when a model folder's weights do; None of what is no folder here, or holds none."""
    folder = Path(path)
    return _digest(folder, "*.safetensors") if any(folder.glob("*.safetensors")) else None


def differ(one: str | None, other: str | None) -> bool:
    """Whether two digests are of different things; what is not known is not held against anything."""
    return one is not None and other is not None and one != other


def _digest(folder: Path, *patterns: str) -> str:
    """Of each file it reads the size and a block at either end, so it costs nothing for large models; a training step
    changes every tensor, and so those blocks."""
    digest = hashlib.sha256()
    for file in sorted(file for pattern in patterns for file in folder.glob(pattern)):
        size = file.stat().st_size
        digest.update(f"{file.name} {size}\n".encode())
        with file.open("rb") as data:
            digest.update(data.read(BLOCK_BYTES))
            data.seek(max(0, size - BLOCK_BYTES))
            digest.update(data.read(BLOCK_BYTES))
    return digest.hexdigest()
