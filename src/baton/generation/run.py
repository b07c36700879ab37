"""One answer from a question to its trace."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from baton.generation.answer import Generation
from baton.generation.options import Options, Router, knobs
from baton.generation.reader import OnText
from baton.trace import Role, Trace

if TYPE_CHECKING:
    from baton.pair import Pair


async def generate(
    pair: Pair,
    router: Router,
    question: str,
    *,
    options: Options,
    question_id: str = "",
    sample: int = 0,
    prompts: Mapping[Role, Sequence[int]] | None = None,
    trace: Trace | None = None,
    on_text: OnText | None = None,
    replay: Trace | None = None,
) -> Trace:
    """Writes one answer under `router` and returns its trace.

    `prompts` are token ids by role, in place of the question as each model's template has it: of a conversation, or of
    plain text. `trace` is an empty one to write in, for who wants to see it grow, or to have it whatever happens.

    A generation that runs into `options.timeout` returns with finish `timeout`. One that fails raises: a failure is
    never an answer.

    Raises:
        EngineError: an engine or scorer failed; `retryable` says whether trying again makes sense.
        RouterError: the router asked for something that cannot be.
    """
    trace = trace if trace is not None else Trace()
    trace.question, trace.question_text, trace.sample = question_id or question, question, sample
    trace.router, trace.knobs, trace.pair, trace.seed = router.name, knobs(router), pair.name, options.seed
    asked = (pair.scorers.get(name) for name in getattr(router, "scorers", ()))
    states = frozenset(role for scorer in asked for role in getattr(scorer, "states", ()))
    gen = Generation(
        pair, question, options, trace=trace, prompts=prompts, on_text=on_text, replay=replay, states=states
    )
    try:
        async with asyncio.timeout(options.timeout) as deadline:
            await router(gen)
    except TimeoutError:
        if not deadline.expired():
            raise
        trace.finish = "timeout"
    finally:
        await _to_the_end(gen.close())
    return trace


async def _to_the_end(work: Coroutine[Any, Any, None]) -> None:
    """Awaits `work` even if cancelled meanwhile, and is cancelled then: what is freed half way stays occupied."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            cancelled = error
    task.result()
    if cancelled is not None:
        raise cancelled
