"""The work folder of a calibration: whose it is, and answers that are stored as they finish and never made twice."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Protocol, TypeVar

from baton.engines.base import Engine, Prefix, TokenScore
from baton.failures import attempted, first_failure
from baton.generation import Options, Router, generate
from baton.pair import Pair
from baton.records import Lines, locked, read_traces, settle
from baton.trace import Trace

T = TypeVar("T")


class Question(Protocol):
    """What calibration needs of a question."""

    @property
    def id(self) -> str: ...
    @property
    def question(self) -> str: ...


Q = TypeVar("Q", bound=Question)


class Progress(Protocol):
    """Told how far a stage is."""

    def __call__(self, stage: str, done: int, total: int) -> None: ...


def claim(work: Path, made_with: Mapping[str, Any], lock: str = ".lock") -> None:
    """Makes `work` the folder of what is made with these settings, or checks that it is.

    Until this process ends, no other one gets the folder: each would cut off the line that the other is writing.
    Processes that write to files of their own in it name a `lock` each.

    Raises:
        ValueError: the folder holds what was made with other settings (the first that differs is named), another
            process is writing to it, or its settings are damaged.
    """
    work.mkdir(parents=True, exist_ok=True)
    try:
        if (path := work.resolve() / lock) not in _HELD:
            _HELD[path] = locked(path)
        settle(work / "settings.json", made_with)
    except ValueError as error:
        raise ValueError(f"work: {error}") from None


_HELD: dict[Path, IO[str]] = {}
"""Locks of this process."""


async def collect(
    pair: Pair,
    router: Router,
    questions: Sequence[Q],
    options: Options,
    store: Path,
    progress: Progress,
    *,
    stage: str = "traces",
    samples: int = 1,
    concurrency: int = 8,
    finish: Callable[[Q, Trace], Awaitable[None]] | None = None,
    between: Callable[[], Awaitable[None]] | None = None,
) -> list[Trace]:
    """The router's answers to `questions`, appended to `store` as they finish; what is there already is not repeated.

    `finish` adds to a trace before it is stored. With `between`, answers are made in blocks of `concurrency`: it runs
    before each, when none of the block before is under way any more. The first answer that fails, also when tried
    again, ends the rest.

    Raises:
        ValueError: the store answers other questions of the same ids.
        EngineError, RouterError: an answer failed; those before it are stored.
    """
    have: dict[tuple[str, int], Trace] = {}
    file = Lines(store)
    have.update({(t.question, t.sample): t for t in read_traces(store)})
    wanted = [(q, s) for q in questions for s in range(samples)]
    for q, s in wanted:
        if (q.id, s) in have and have[q.id, s].question_text != q.question:
            raise ValueError(f"work: {store} answers another question {q.id!r}; give another --work folder")
    missing = [(q, s) for q, s in wanted if (q.id, s) not in have]
    done = len(wanted) - len(missing)
    progress(stage, done, len(wanted))

    async def one(item: tuple[Q, int]) -> None:
        nonlocal done
        question, sample = item
        trace = await attempted(
            lambda: generate(pair, router, question.question, options=options, question_id=question.id, sample=sample)
        )
        if finish is not None:
            await finish(question, trace)
        have[question.id, sample] = trace
        file.append(trace.dumps())
        done += 1
        progress(stage, done, len(wanted))

    with file:
        if between is None:
            await each(missing, one, concurrency)
        else:
            for n in range(0, len(missing), concurrency):
                await between()
                await each(missing[n : n + concurrency], one, concurrency)
    return [have[q.id, s] for q, s in wanted]


async def each(items: Iterable[T], work: Callable[[T], Awaitable[None]], concurrency: int) -> None:
    """Runs `work` on every item, `concurrency` at a time; the first failure cancels the rest and is raised itself."""
    queue = iter(items)

    async def worker() -> None:
        for item in queue:
            await work(item)

    with first_failure():
        async with asyncio.TaskGroup() as group:
            for _ in range(concurrency):
                group.create_task(worker())


async def token_scores(engine: Engine, options: Options, question: str, ids: Sequence[int]) -> list[TokenScore]:
    """How a model sees the tokens of an answer to `question` (its own ids), after its own prompt."""
    prompt = engine.render(options.messages(question), thinking=options.thinking)
    session = engine.open(prompt)
    try:
        scores, _ = await session.logprob(Prefix(prompt), ids)
    finally:
        session.close()
    return scores
