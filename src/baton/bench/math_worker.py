"""The process in which math-verify grades, for `grading.MathGrader`; it imports as little as it can."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import resource
import sys

from math_verify import parse, verify

MEMORY_BYTES = 4 << 30
"""Address space: a tower of powers must not take the machine's memory with it."""


def work() -> None:
    """A line `[text, gold]` in, both texts that hold an expression; a grade out; until the input ends."""
    logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns that its own time limit is off
    # Not every system lets a process lower this limit; the time limit holds all the same.
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))

    def grade(text: str, gold: str) -> str:
        try:
            answer = parse(text, parsing_timeout=None, raise_on_error=True)
            if not answer:
                return "no_answer"
            wanted = parse(gold, parsing_timeout=None, raise_on_error=True)
            same = verify(wanted, answer, timeout_seconds=None, raise_on_error=True)
        except MemoryError:
            return "timeout"
        except Exception:
            # What math-verify cannot read or compare is not the gold answer.
            return "wrong"
        return "correct" if same else "wrong"

    # Whatever a library prints must not get between the grades.
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    print("ready", file=replies)
    for line in sys.stdin:
        text, gold = json.loads(line)
        print(grade(text, gold), file=replies)


if __name__ == "__main__":
    work()
