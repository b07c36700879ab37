"""Divergences on the nano tokenizer: a draft that writes a minus where the target adds leads another way."""

from __future__ import annotations

import json
import random
from dataclasses import asdict
from pathlib import Path

from label_sets import VOCABULARY, encode

from baton.training.divergence import Divergence


def write_divergences(folder: Path, answers: int, seed: int = 0) -> Path:
    """Rows of one file; half of the tokens at which the draft differs matter."""
    rng = random.Random(seed)
    folder.mkdir(parents=True)
    (plus,), (minus,), (other,) = (encode(text) for text in (" +", " -", " *"))
    with (folder / "1-of-1.jsonl").open("w") as out:
        for number in range(answers):
            prompt = encode(f"<|im_start|>user\nAdd {number}.<|im_end|>\n<|im_start|>assistant\n<think>\n")
            sums = [f"{rng.randint(1, 9)} + {rng.randint(1, 9)} is right.\n\n" for _ in range(4)]
            ids = encode("".join(sums))
            at = [n for n, i in enumerate(ids) if i == plus]
            matters = [rng.random() < 0.5 for _ in at]
            row = Divergence(
                f"q{number}", VOCABULARY.fingerprint, prompt, ids, at, [minus if m else other for m in matters],
                [0.1 if m else 0.9 for m in matters],
            )  # fmt: skip
            out.write(json.dumps(asdict(row)) + "\n")
    return folder
