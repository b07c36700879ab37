"""How alike an encoder finds sentences that follow each other, inside steps and across: where a `shift` may be set.

    python scripts/sentence_likeness.py benchmarks/nano-labels --encoder nano:draft

Reads the answers of a label set. A `shift` at a quantile of all makes a unit end after that share of the sentences.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np

from baton.boundary import SENTENCE
from baton.config import EmbeddingConfig
from baton.nano import pair_paths
from baton.scorers.embedding import Embedding
from baton.training.labels import load_labels
from baton.training.metrics import auc
from baton.training.prm import load_tokenizer
from baton.user_errors import checked
from baton.vocabulary import Vocabulary


def sentences(text: str) -> Iterator[str]:
    """The sentences of a text, with what stands between them at their beginning."""
    while True:
        scanner = SENTENCE.scanner("")
        scanner.feed(text)
        scanner.close()
        if scanner.found is None:
            return
        yield text[: scanner.found]
        text = text[scanner.found :]


@checked()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("labels", type=Path)
    parser.add_argument("--encoder", required=True, help="a model as in a pair's scorer of kind embedding")
    parser.add_argument("--tokenizer", default=str(pair_paths()["target"]), help="of the pair's target")
    parser.add_argument("--answers", type=int, default=120)
    asked = parser.parse_args()
    encoder = Embedding.load("encoder", EmbeddingConfig(kind="embedding", model=asked.encoder), {}, Path())
    vocabulary = Vocabulary.from_tokenizer(load_tokenizer(asked.tokenizer))
    longest: dict[str, list[int]] = {}
    for label in load_labels(asked.labels):
        if len(label.path_ids) > len(longest.setdefault(label.question, [])):
            longest[label.question] = label.path_ids
    found: list[tuple[float, bool]] = []
    for ids in list(longest.values())[: asked.answers]:
        written = list(sentences(vocabulary.text_of(ids)))
        for one, other in pairwise(written):
            found.append((encoder.likeness(one.strip(), other.strip())[0], other.startswith("\n\n")))
    alike, across = (np.array(column) for column in zip(*found, strict=True))
    for name, chosen in (("inside a step", ~across), ("across a blank line", across), ("all", across | True)):
        values = ", ".join(f"{q:.2f}" for q in np.quantile(alike[chosen], (0.1, 0.3, 0.5, 0.7, 0.9)))
        print(f"{name}: {chosen.sum()} pairs, quantiles 10, 30, 50, 70, 90 %: {values}")
    print(f"AUC of a blank line by likeness: {auc(-alike, across):.3f}")


if __name__ == "__main__":
    main()
