"""What every engine inherits: prefixes, seeded draws, and sessions on a backend that only takes full prefixes."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.boundary import SENTENCE, STEP, Cues, SegmentMatcher
from baton.engines.base import (
    Call,
    Chunk,
    EngineError,
    Prefix,
    PrefixEngine,
    Read,
    Sampling,
    UnsupportedError,
    Usage,
    roll,
    uniform,
)
from baton.generation import Options, generate
from baton.routers.relaygen import RelayGen
from baton.trace import Role
from scripted import WORDS, ScriptedEngine, pair
from virtual_clock import run

ids = st.lists(st.integers(0, 300), max_size=12)


@given(ids, ids, ids)
def test_a_prefix_is_its_ids_however_it_was_built(a, b, c):
    whole, chained = Prefix([*a, *b, *c]), Prefix(a).extend(b).extend(c)
    assert chained.ids() == whole.ids() == [*a, *b, *c]
    assert (chained.digest, chained.length) == (whole.digest, whole.length)
    for start in range(len(whole) + 1):
        assert chained.ids(start) == whole.ids()[start:]


@given(ids, ids)
def test_different_ids_have_different_digests(a, b):
    assert (roll(0, a) == roll(0, b)) == (a == b)


def test_draws_are_uniform_and_depend_on_seed_and_position_only():
    draws = [uniform(seed, position) for seed in range(40) for position in range(50)]
    assert all(0 <= u < 1 for u in draws)
    assert len(set(draws)) == len(draws)
    assert abs(sum(draws) / len(draws) - 0.5) < 0.02
    assert uniform(3, 7) == uniform(3, 7)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"temperature": -1}, "sampling.temperature: -1 is out of range; use 0 \\(greedy\\)"),
        ({"top_p": 0}, "sampling.top_p: 0 is out of range"),
        ({"top_k": -1}, "sampling.top_k"),
        ({"min_p": 1.1}, "sampling.min_p"),
    ],
)
def test_wrong_sampling_is_named(wrong, message):
    with pytest.raises(ValueError, match=message):
        Sampling(**wrong)


class Remote(PrefixEngine):
    """A backend without sessions that can only stop at token ids, as a server does; it logs its requests."""

    kind = "remote"
    vocabulary = WORDS

    def __init__(self, text: str, chunk: int = 3, prompt: str = "?"):
        self.answer, self.chunk, self.prompt = text, chunk, prompt
        self.requests: list[tuple[int, int, int]] = []

    async def stream(
        self, ids: Sequence[int], stop_ids: frozenset[int], cap: int, sampling: Sampling, seed: int, read: Read
    ) -> AsyncGenerator[Chunk, None]:
        written = WORDS.text_of(ids)[len(self.prompt) :]
        coming = WORDS.encode(self.answer[len(written) :])[:cap]
        stop = next((n for n, i in enumerate(coming, 1) if i in stop_ids), len(coming))
        self.requests.append((len(ids), cap, stop))
        for at in range(0, stop, self.chunk):
            yield Chunk(coming[at : min(stop, at + self.chunk)], 0.0, 0.0)
        yield Chunk([], 0.0, 0.0, usage=Usage(prompt=len(ids), cached=len(ids) - 1, sampled=stop))

    def render(self, messages, *, thinking=True):
        return WORDS.encode(self.prompt)

    def metrics(self):
        return {}

    async def close(self):
        return None


TEXT = "one two. Wait, one good. two 3.5 step.\n\nWaiting three, Wait one.</think>answer one. two.<eos>"


@pytest.mark.parametrize("chunk", [1, 2, 100])
def test_an_engine_that_stops_at_ids_writes_what_one_that_is_asked_every_token_writes(chunk):
    def answer(engine_pair):
        return run(generate(engine_pair, RelayGen(cues=["Wait", "Wait,"]), "q", options=Options()))

    asked = answer(pair(ScriptedEngine("target", TEXT), ScriptedEngine("draft", TEXT)))
    target, draft = Remote(TEXT, chunk), Remote(TEXT, chunk)
    stopped = answer(pair(target, draft))
    rows = [(s.role, s.text, s.ended_by.name, s.detail) for s in asked.path()]
    assert [(s.role, s.text, s.ended_by.name, s.detail) for s in stopped.path()] == rows
    tokens = sum(s.sampled for s in stopped.segments)
    assert len(target.requests) + len(draft.requests) < tokens / 2, "most tokens need no request of their own"


def test_while_a_match_is_undecided_one_token_is_asked_for():
    engine = Remote("one Wait two")

    async def work():
        session = engine.open([])
        matcher = SegmentMatcher([Cues(["Wait"])], WORDS)
        call = Call(Prefix(WORDS.encode("?")), matcher, cap=50)
        chunks = [c async for c in session.generate(call)]
        return matcher, chunks

    matcher, chunks = run(work())
    assert WORDS.text_of(matcher.ids[: matcher.kept]) == "one Wait"
    assert [cap for _, cap, _ in engine.requests] == [50, 1]
    assert matcher.overshoot == 1
    assert chunks[-1].usage == Usage(prompt=1, cached=0, sampled=4)


def test_a_backend_that_gives_nothing_is_an_error_not_an_endless_loop():
    async def work():
        call = Call(Prefix(WORDS.encode("?")), SegmentMatcher([STEP, SENTENCE], WORDS), cap=50)
        async for _ in Remote("").open([]).generate(call):
            pass

    with pytest.raises(EngineError, match="ended a request without a token"):
        run(work())


def test_a_backend_that_cannot_score_says_so():
    async def work():
        await Remote("").open([]).logprob(Prefix([1]), [2])

    with pytest.raises(UnsupportedError, match="'remote' cannot score given tokens"):
        run(work())


def test_of_no_tokens_no_backend_is_asked():
    async def work():
        return await Remote("").open([]).logprob(Prefix([1]), [])

    assert run(work()) == ([], Usage(prompt=1))


def test_roles_are_engines_of_any_kind():
    engines = pair(Remote(TEXT), ScriptedEngine("draft", TEXT))
    trace = run(generate(engines, RelayGen(cues=["Wait,"]), "q", options=Options()))
    assert {s.role for s in trace.path()} == {Role.TARGET, Role.DRAFT}
