"""What size, continuations and soft labels are worth in a reward model: trains one of each, measures all on one truth.

    python scripts/ablate_prm.py runs/nano/labels-16 --out runs/nano/ablation
    benchmarks/nano-table.sh points runs/nano/ablation/table.yaml runs/nano/ablation/work 16
    benchmarks/nano-table.sh compare runs/nano/ablation/table.yaml runs/nano/ablation/compared 16

Each variant learns from the first n continuations of every step, its labels soft, or hard: a step does harm if the
other one solves the question more often by at least one half. `ablation.json` tells how well each finds the harm that
all continuations of the held-out questions show; the recipe that is written compares them as gates of a router.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml

from baton import nano
from baton.cli.input import numbers
from baton.records import write_json
from baton.training.examples import Rules, read_examples, split
from baton.training.export import prm_scores
from baton.training.labels import Label, load_labels, save_labels, standard_error, success_rate
from baton.training.metrics import auc, curve_area, harm_curve
from baton.training.prm import load_tokenizer
from baton.user_errors import checked
from baton.vocabulary import Vocabulary

HERE = Path(__file__).parent.parent
RECIPE = HERE / "recipes" / "nano" / "train" / "prm.yaml"
HELD_OUT = 0.2
HARD = 0.5
"""Difference of the two steps' chances from which a hard label says harm."""


class Variant(NamedTuple):
    size: str
    """`draft` or `target`: the model that training begins with."""
    n: int
    labels: str
    """`soft` or `hard`."""

    @property
    def name(self) -> str:
        return f"{self.size}-{self.n}-{self.labels}"


def fewer(label: Label, variant: Variant) -> Label | None:
    """The label from the first continuations alone; None where a step has none that was graded."""
    draft, target = label.draft_outcomes[: variant.n], label.target_outcomes[: variant.n]
    if not draft or not target:
        return None
    q_draft, q_target = success_rate(draft), success_rate(target)
    if variant.labels == "hard":
        q_draft, q_target = (0.0, 1.0) if q_target - q_draft >= HARD else (1.0, 1.0)
    return replace(
        label, draft_outcomes=draft, target_outcomes=target, q_draft=q_draft, q_target=q_target,
        q_draft_se=standard_error(draft), q_target_se=standard_error(target),
    )  # fmt: skip


def train(variant: Variant, labels: Sequence[Label], out: Path, more: Sequence[str]) -> Path:
    """Trains a variant, unless it is there, in a process of its own."""
    folder = out / variant.name
    if (folder / "training.json").is_file():
        return folder
    data = folder.with_name(f"{variant.name}-labels")
    save_labels(data, [found for x in labels if (found := fewer(x, variant)) is not None], {"variant": variant.name})
    command = [
        sys.executable, str(HERE / "scripts" / "train_prm.py"), "--config", str(RECIPE), "--data", str(data),
        "--output_dir", str(folder), "--model_name_or_path", f"nano:{variant.size}", "--held_out", str(HELD_OUT),
        "--development", "0", "--report_to", "none", *more,
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=HERE)
    if done.returncode == 2:
        raise ValueError(f"{variant.name}: {done.stderr.strip().splitlines()[-1]}")
    if done.returncode:
        raise RuntimeError(f"{variant.name}: training failed: {done.stderr[-500:]}")
    return folder


def measure(folder: Path, labels: Path) -> dict[str, float]:
    """How well a reward model finds the harm of held-out steps, by all their continuations."""
    vocabulary = Vocabulary.from_tokenizer(load_tokenizer(str(nano.pair_paths()["draft"])))
    held = split(read_examples(labels, vocabulary, Rules("keep", 2048)).examples, HELD_OUT).held_out
    scores = prm_scores(folder / "model", held)
    steps = [step for example in held for step in example.steps]
    good = np.array([step.label > 1 - HARD for step in steps])
    flat = np.array([score for row in scores for score in row])
    return {
        "auc": auc(flat, good),
        "harm_against_random": curve_area(harm_curve(held, scores)),
        "steps": len(steps),
        "parameters": sum(t.numel() for t in _weights(folder)),
    }


def _weights(folder: Path) -> list[Any]:
    from safetensors.torch import load_file

    return list(load_file(folder / "model" / "model.safetensors").values())


def recipe(variants: Sequence[Variant], out: Path) -> None:
    """Writes the pair and the comparison of the variants as gates."""
    pair = yaml.safe_load((HERE / "recipes" / "nano" / "pair.yaml").read_text())
    pair["scorers"] = {v.name: {"kind": "prm", "model": str((out / v.name / "model").resolve())} for v in variants}
    (out / "pair.yaml").write_text(yaml.safe_dump(pair, sort_keys=False))
    arms: list[Any] = ["target", "draft", {"router": "random", "sweep": {"share": [0.3, 0.4, 0.5, 0.6, 0.7]}}]
    arms += [
        {"router": "rsd", "label": v.name, "knobs": {"scorer": v.name}, "at": {"share": [0.5]},
         "points": f"points/{v.name}.json"}
        for v in variants
    ]  # fmt: skip
    table = {
        "name": "prm-ablation", "pair": "pair.yaml", "task": "nano", "split": "test",
        "calibration": {"split": "calibration", "limit": 40}, "sampling": {"temperature": 0.6}, "routers": arms,
        "concurrency": 32, "limit": 300, "latency": None,
    }  # fmt: skip
    (out / "table.yaml").write_text(yaml.safe_dump(table, sort_keys=False))


@checked()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("labels", type=Path, help="label set of which every step has all its continuations")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--sizes", default="draft,target")
    parser.add_argument("--n", default="2,8,16")
    parser.add_argument("--jobs", type=int, default=4, help="trainings at once")
    asked, more = parser.parse_known_args()
    counts = numbers("--n", asked.n, int)
    variants = [Variant(*v) for v in product(asked.sizes.split(","), counts, ("soft", "hard"))]
    labels = load_labels(asked.labels)
    asked.out.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(asked.jobs) as pool:
        folders = list(pool.map(lambda v: train(v, labels, asked.out, more), variants))
    found = {v.name: measure(folder, asked.labels) for v, folder in zip(variants, folders, strict=True)}
    write_json(asked.out / "ablation.json", found)
    recipe(variants, asked.out)
    for name, figures in found.items():
        print(name, json.dumps({k: round(v, 4) for k, v in figures.items()}))


if __name__ == "__main__":
    main()
