"""Schedules of published routers, drawn at the shares that their papers report, always the same.

What a paper reports is quoted beside each; what none reports, the lengths of segments, is assumed and said to be.
Judges that read beside the answer (lookahead) are left out.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from baton.replay.schedule import Part, Schedule
from baton.trace import Role, Trace

ANSWERS, PROMPT = 64, 300
SPREAD = 0.6
"""Standard deviation of the logarithm of a step's tokens; assumed."""
DEPTH = 4
"""Most steps in a row that lookahead takes from the draft."""


def relaygen() -> Schedule:
    """Stretches of the target and of the draft in turn, to 200 tokens (arXiv 2602.06454).

    Reported: the large model writes 69.8 % of the tokens (Qwen3 32B and 1.7B, AIME25). Assumed: stretches of 46 and 20
    tokens in the mean, exponentially distributed.
    """
    return Schedule.draw(ANSWERS, PROMPT, tokens=200, target=46, draft=20, seed=1)


def rsd() -> Schedule:
    """Steps of the draft, each judged when written; the target writes the rejected ones anew (arXiv 2501.19324).

    Reported: 4.4 times fewer FLOPs with 72B, 7B and a reward model of 7B, for which 97 % of the draft's tokens must be
    accepted; at the threshold 0.7 the draft answers 48 % of the questions alone, which is so at 24 steps an answer.
    Assumed: steps of 25 tokens in the mean.
    """

    def answer(rng: random.Random) -> Iterator[Part]:
        for _ in range(24):
            tokens = _step(rng, 25)
            if rng.random() < 0.97:
                yield Part(Role.DRAFT, tokens, "accepted")
            else:
                yield Part(Role.DRAFT, tokens, "rejected")
                yield Part(Role.TARGET, _step(rng, 25))

    return _drawn(answer, seed=2)


def lookahead() -> Schedule:
    """The draft's steps with the target's own beside them, up to the first that is rejected (arXiv 2506.19830).

    Reported: 43 % of the draft's steps are accepted (Qwen3 32B and 1.7B, AIME24), by at most 4 steps ahead, of at most
    100 tokens, the first of an answer being the target's. Assumed: steps of 40 tokens in the mean, 12 an answer. What
    the draft writes after a rejected step is left out.
    """

    def answer(rng: random.Random) -> Iterator[Part]:
        ahead = DEPTH
        for _ in range(12):
            accepted = rng.random() < 0.43
            if accepted and ahead < DEPTH:
                yield Part(Role.TARGET, _step(rng, 40), "beside")
                yield Part(Role.DRAFT, _step(rng, 40))
                ahead += 1
                continue
            if ahead < DEPTH:
                yield Part(Role.DRAFT, _step(rng, 40), "beside")
            yield Part(Role.TARGET, _step(rng, 40))
            ahead = 0

    return _drawn(answer, seed=7)


PUBLISHED: dict[str, Callable[[], Schedule]] = {"relaygen": relaygen, "rsd": rsd, "lookahead": lookahead}


def load_schedule(source: str | Path) -> Schedule:
    """A published schedule by its name, the schedule of a file, or the segments of a run's traces (`.jsonl`).

    `traces.jsonl#rsd` are those of one arm.

    Raises:
        ValueError: there is neither such a name nor such a file, it holds no answer, or those of several arms.
    """
    if str(source) in PUBLISHED:
        return PUBLISHED[str(source)]()
    name, _, arm = str(source).partition(".jsonl#")
    file = Path(f"{name}.jsonl") if arm else Path(source)
    if not file.is_file():
        raise ValueError(f"--schedule: {file}: there is no such file; give one, or one of {', '.join(PUBLISHED)}")
    if file.suffix != ".jsonl":
        return Schedule.load(file)
    from baton.records import read_traces

    return Schedule.of_traces(_of_one_arm(read_traces(file), file, arm))


def _of_one_arm(traces: Iterable[Trace], file: Path, wanted: str) -> Iterator[Trace]:
    """The traces of an arm; of the only one if none is `wanted`."""
    seen: set[str] = set()
    for trace in traces:
        arm = trace.extra.get("arm", trace.router)
        seen.add(arm)
        if not wanted and len(seen) > 1:
            one, other = sorted(seen)
            raise ValueError(
                f"--schedule: {file} has answers of several arms, as {one!r} and {other!r}; name one: {file}#{one}"
            )
        if wanted in ("", arm):
            yield trace
    if wanted and wanted not in seen:
        raise ValueError(f"--schedule: {file} has no answer of {wanted!r}; name one of {', '.join(sorted(seen))}")


def _step(rng: random.Random, mean: float) -> int:
    """Tokens of a step, at most 100, as lookahead's are."""
    return min(100, max(1, round(rng.lognormvariate(math.log(mean) - SPREAD**2 / 2, SPREAD))))


def _drawn(answer: Callable[[random.Random], Iterator[Part]], seed: int) -> Schedule:
    rng = random.Random(seed)
    return Schedule(PROMPT, tuple(tuple(answer(rng)) for _ in range(ANSWERS)))
