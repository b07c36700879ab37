"""Writes what a token router is trained on: where the draft leaves the target's answers, and whether that matters.

python scripts/label_divergences.py recipes/nano/divergences.yaml --out runs/nano/divergences [--shard 2/8]
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from baton.training.divergence import label_recipe
from baton.user_errors import checked


def told(stage: str, done: int, total: int) -> None:
    if done == total or done % 50 == 0:
        print(f"{stage}: {done}/{total}", file=sys.stderr)


@checked()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", type=Path)
    parser.add_argument("--out", type=Path, required=True, help="folder; every shard writes a file of its own there")
    parser.add_argument("--shard", default="1/1", help="which part of the questions, as 2/8")
    parser.add_argument("--limit", type=int, help="questions, in place of the recipe's")
    asked = parser.parse_args()
    rows = label_recipe(asked.recipe, asked.out, asked.shard, asked.limit, told)
    print(f"{rows} answers in {asked.out}")


if __name__ == "__main__":
    main()
