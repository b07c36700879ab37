"""Writes the nano pair with a space where it writes a blank line: the same models and heads in texts without `\\n\\n`.

    python scripts/respell_nano.py runs/nano/flat

Token ids and weights stay as they are; the tokenizers give those tokens that hold a blank line another text. So
whatever is decided by ids (numbers of tokens, heads) or by sentences stays as it was, and what waits for a blank line
waits for the end of thinking.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from baton import nano
from baton.records import write_json
from baton.user_errors import checked
from baton.vocabulary import Vocabulary

BLANK_LINE = "ĊĊ"
"""As byte-level tokenizers write it."""
SPACE = "Ġ"
HEADS = ("resident", "hand-back")


def respelled(tokenizer: dict[str, Any]) -> dict[str, Any]:
    """A `tokenizer.json` whose tokens hold a space for each blank line; two for one that stands alone, as a token that
    is a space is there already. What is not to be written any more cannot be merged either."""
    model = tokenizer["model"]
    vocab = {
        (2 * SPACE if token == BLANK_LINE else token.replace(BLANK_LINE, SPACE)): n
        for token, n in model["vocab"].items()
    }
    merges = [pair for pair in model["merges"] if BLANK_LINE not in "".join(pair)]
    return {**tokenizer, "model": {**model, "vocab": vocab, "merges": merges}}


def respell(out: Path, heads: Sequence[str] = HEADS) -> None:
    """Writes the pair and its heads, a folder each, into `out`."""
    shipped = nano.models()
    for role in ("target", "draft"):
        shutil.copytree(shipped[role], out / role, dirs_exist_ok=True)
        file = out / role / "tokenizer.json"
        write_json(file, respelled(json.loads(file.read_text(encoding="utf-8"))))
    vocabulary = Vocabulary.from_tokenizer(AutoTokenizer.from_pretrained(out / "draft")).fingerprint
    for head in heads:
        shutil.copytree(shipped[head], out / head, dirs_exist_ok=True)
        about = out / head / "head.json"
        write_json(about, {**json.loads(about.read_text(encoding="utf-8")), "vocabulary": vocabulary})


@checked()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    respell(parser.parse_args().out)


if __name__ == "__main__":
    main()
