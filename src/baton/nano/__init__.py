"""The nano pair: a small target and a smaller draft trained on Baton's own problems, shipped with the package."""

from __future__ import annotations

from pathlib import Path

from baton.nano import problems
from baton.nano.language import same_prompt, score_prompt

__all__ = ["cue_profile", "models", "pair_paths", "problems", "same_prompt", "score_prompt"]


def cue_profile() -> Path:
    """The cue profile of the pair, as `baton calibrate cues` wrote it."""
    return Path(__file__).parent / "cues.json"


def models() -> dict[str, Path]:
    """The folders of all models that are shipped, by name: the pair's, and what was trained for it."""
    here = Path(__file__).parent
    files = [*here.glob("*/config.json"), *here.glob("*/head.json")]
    found = {file.parent.name: file.parent for file in sorted(files)}
    return {**pair_paths(), **found}


def pair_paths() -> dict[str, Path]:
    """The model folders of the pair under `target` and `draft`.

    Raises FileNotFoundError if the package was installed without its weights.
    """
    here = Path(__file__).parent
    paths = {role: here / role for role in ("target", "draft")}
    for role, path in paths.items():
        if not (path / "model.safetensors").is_file():
            raise FileNotFoundError(f"{role}: {path} holds no weights; reinstall the package from a full checkout")
    return paths
