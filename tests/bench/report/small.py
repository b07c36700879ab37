"""A small run that has everything a report shows: decisions, discarded steps, switches, two passes, a failure."""

from __future__ import annotations

import json
from pathlib import Path

import yaml

PAIR = {
    "name": "small",
    "target": "nano:draft",
    "draft": "nano:draft",
    "sampling": {"temperature": 0.8},
    "budget": {"tokens": 56, "answer_reserve": 12},
    "scorers": {"confidence": {"kind": "confidence", "role": "draft"}},
}
ROUTERS = [
    "target",
    "draft",
    {"router": "random", "share_of": "rsd"},
    {"router": "rsd", "knobs": {"scorer": "confidence", "threshold": -0.15}},
]


def recipe(folder: Path, name: str = "small", **changes: object) -> Path:
    rows = {
        split: [
            {"id": f"{split}{n}", "question": f"A {split} farm has {n} goats and buys 3. How many are there?",
             "answer": n + 3, "level": n % 3}
            for n in range(5)
        ]
        for split in ("test", "calibration")
    }  # fmt: skip
    for split, questions in rows.items():
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(q) + "\n" for q in questions))
    base = {
        "name": name, "pair": PAIR, "task": {"name": "farm", "path": "{split}.jsonl"}, "routers": ROUTERS,
        "calibration": {"limit": 2}, "latency": {"limit": 3, "warmup": 0},
    }  # fmt: skip
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(base | changes))
    return path
