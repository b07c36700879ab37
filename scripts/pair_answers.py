"""Two arms on the same questions: how often one is right where the other is not, and McNemar's test (mid-p).

    python scripts/pair_answers.py benchmarks/nano-learned/answers.jsonl.xz token-router@0.06 margin@0.06

Further pairs of labels may follow. Answers of the quality pass count; a question of which an arm lacks an answer is
left out.
"""

from __future__ import annotations

import argparse
import lzma
import tempfile
from pathlib import Path

import numpy as np

from baton.bench.metrics import QUALITY
from baton.bench.statistics import mcnemar
from baton.records import read_lines
from baton.user_errors import checked

Answers = dict[str, dict[tuple[int, int], bool]]
"""Which are right, by question and then by sample and seed."""


def read(file: Path) -> dict[str, Answers]:
    """By arm; the file may be packed by xz.

    Raises:
        ValueError: there is no such file, or a line is no answer.
    """
    if not file.is_file():
        raise ValueError(f"{file}: there is no such file; give the answers.jsonl of a comparison")
    with tempfile.TemporaryDirectory() as folder:
        plain = file
        if file.suffix == ".xz":
            plain = Path(folder) / file.stem
            with lzma.open(file) as packed:
                plain.write_bytes(packed.read())
        found: dict[str, Answers] = {}
        for row in read_lines(plain, "answer"):
            if row["pass"] == QUALITY:
                answers = found.setdefault(row["arm"], {}).setdefault(row["question"], {})
                answers[row["sample"], row["seed"]] = row["correct"]
    return found


def compared(one: Answers, other: Answers) -> tuple[int, int, float]:
    """On how many answers only one is right, on how many only the other, and the probability of that by chance."""
    asked = sorted({key for arm in (one, other) for answers in arm.values() for key in answers})
    both = [q for q in one if all(key in one[q] and key in other.get(q, ()) for key in asked)]
    mine, theirs = (np.array([[arm[q][key] for key in asked] for q in both], dtype=float) for arm in (one, other))
    return int((mine > theirs).sum()), int((theirs > mine).sum()), mcnemar(mine, theirs)


@checked()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("answers", type=Path)
    parser.add_argument("arms", nargs="+", metavar="ARM", help="labels, two and two")
    asked = parser.parse_args()
    if len(asked.arms) % 2:
        parser.error(f"ARM: {len(asked.arms)} labels are given; give them two and two")
    found = read(asked.answers)
    for name in asked.arms:
        if name not in found:
            parser.error(f"ARM: {name!r} has no answers there; use two of {', '.join(found)}")
    for one, other in zip(asked.arms[::2], asked.arms[1::2], strict=True):
        wins, losses, p = compared(found[one], found[other])
        print(f"{one} against {other}: {wins} to {losses}, p = {p:.2g}")


if __name__ == "__main__":
    main()
