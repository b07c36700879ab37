"""What trained heads cost while an answer is written, one answer at a time, on the nano pair.

    python scripts/head_costs.py --questions 12

For scorers of steps it is the time between asking for a score and having it, for heads that read tokens that of reading
them (they run in the engine's thread, between two tokens); both as a share of the time of the answers.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from pathlib import Path
from typing import Any

from baton import routers
from baton.config import NANO_PAIR, pair_options
from baton.generation import generate
from baton.nano import problems
from baton.pair import Pair
from baton.scorers.base import TokenReader
from baton.user_errors import checked

ARMS: dict[str, tuple[str, dict[str, Any]]] = {
    "resident": ("rsd", {"scorer": "resident", "threshold": 0.9}),
    "resident-target": ("rsd", {"scorer": "resident-target", "threshold": 0.9}),
    "prm": ("rsd", {"scorer": "prm", "threshold": 0.9}),
    "confidence": ("rsd", {"scorer": "confidence", "threshold": 0.9}),
    "judge": ("rsd", {"scorer": "judge", "threshold": 7.0}),
    "policy": ("policy", {}),
    "token-router": ("token-router", {}),
    "token-router-logits": ("token-router", {"scorer": "token-router-logits"}),
    "segmenter": ("segmenter", {}),
}


class Clock:
    """Times the reads of token heads."""

    def __init__(self, pair: Pair):
        self.seconds, self.count = 0.0, 0
        for scorer in pair.scorers.values():
            if isinstance(scorer, TokenReader):
                scorer.read = self._timed(scorer.read)  # type: ignore[method-assign]

    def _timed(self, read: Any) -> Any:
        def timed(seen: Any) -> float:
            began = time.perf_counter()
            value: float = read(seen)
            self.seconds += time.perf_counter() - began
            self.count += 1
            return value

        return timed


async def measure(questions: int) -> None:
    pair = Pair.load(NANO_PAIR, Path.cwd())
    clock = Clock(pair)
    options = pair_options(NANO_PAIR)
    asked = [p.question for p in problems.load("dev", questions + 1)]
    print("head                  share of the time   ms a call   calls an answer   answer, s")
    try:
        for name, (router, knobs) in ARMS.items():
            seconds, spent, calls = 0.0, 0.0, 0
            for n, question in enumerate(asked):
                clock.seconds, clock.count = 0.0, 0
                trace = await generate(pair, routers.create(router, knobs), question, options=options)
                if n:  # The first answer warms up.
                    helped = [h.done - h.submitted for h in trace.helpers if h.done is not None]
                    seconds += trace.seconds
                    spent += clock.seconds + sum(helped)
                    calls += clock.count + len(helped)
            share, each = spent / seconds, 1000 * spent / max(1, calls)
            print(f"{name:<22}{share:>17.1%}{each:>12.2f}{calls / questions:>18.1f}{seconds / questions:>12.2f}")
    finally:
        await pair.close()


@checked()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--questions", type=int, default=12)
    asyncio.run(measure(parser.parse_args().questions))


if __name__ == "__main__":
    main()
