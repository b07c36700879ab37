"""Token-level speculation: the same tokens in fewer forwards, whoever proposes and whatever runs beside it."""

from __future__ import annotations

import asyncio
import random
from array import array
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import make_model

from baton import nano, routers
from baton.bench import tasks
from baton.boundary import ENTROPY, MARGIN, Cap, SegmentMatcher, When
from baton.config import NANO_PAIR, ConfigError, PairConfig, TaskConfig, pair_options, validate
from baton.engines.base import Call, LoadError, Prefix, Read, Sampling, Session, Speculation, Usage
from baton.engines.speculation import ENOUGH, REST, Lookup, Speculator, verified
from baton.engines.transformers import TransformersEngine
from baton.generation import Budget, generate
from baton.pair import Pair
from baton.routers.bail_out import BailOut
from baton.routers.bild import Bild
from baton.routers.margin import Margin
from baton.trace import Role, Trace
from calls import writer

WARM = Sampling(temperature=0.8)
SHARP = Sampling(temperature=0.3)
LOOP = [(3 * n) % 11 for n in range(40)]
PROMPTS = [LOOP, [5], *([(7 * row + 3 * n) % 200 for n in range(length)] for row, length in enumerate((30, 61, 190)))]
NGRAM = Speculation("ngram", tokens=4, ngram_min=1, ngram_max=3)
DRAFT = Speculation("draft_model", tokens=4, model="tiny")
SPECULATIONS = pytest.mark.parametrize("speculation", [NGRAM, DRAFT], ids=["ngram", "draft model"])


def near(model: Any, noise: float = 0.02) -> Any:
    """A model that agrees with another one often, but not always."""
    torch.manual_seed(9)
    with torch.no_grad():
        for weight in model.parameters():
            weight += noise * weight.abs().mean() * torch.randn_like(weight)
    return model


Make = Callable[..., TransformersEngine]


@pytest.fixture
async def make(tokenizer: Any) -> AsyncIterator[Make]:
    made: list[TransformersEngine] = []

    def one(speculation: Speculation | None = None, proposing: Any = None, **settings: Any) -> TransformersEngine:
        draft = None
        if speculation is not None and speculation.method == "draft_model":
            draft = (proposing or near(make_model()), tokenizer)
        engine = TransformersEngine(make_model(), tokenizer, speculative=speculation, draft=draft, **settings)
        made.append(engine)
        return engine

    yield one
    for engine in made:
        await engine.close()


write = writer(40, SHARP)


# The same tokens


@SPECULATIONS
@pytest.mark.parametrize("sampling", [Sampling(), SHARP, WARM, Sampling(1.0, top_p=0.9, top_k=20)], ids=str)
async def test_tokens_and_features_are_those_without_speculation(
    make: Make, speculation: Speculation, sampling: Sampling
) -> None:
    read = Read(features=frozenset((ENTROPY, MARGIN)), top=2, hidden="tokens")
    plain, fast = make(), make(speculation)
    expected = [await write(plain, p, 60, sampling, read=read) for p in PROMPTS]
    alone = [await write(fast, p, 60, sampling, read=read) for p in PROMPTS]
    together = await asyncio.gather(*(write(fast, p, 60, sampling, read=read) for p in PROMPTS))
    for want, *others in zip(expected, alone, together, strict=True):
        for got in others:
            assert got.ids == want.ids == got.matcher.ids
            assert got.all("features") == want.all("features")
            assert got.all("top") == want.all("top")
            assert torch.equal(torch.stack(got.all("hidden")), torch.stack(want.all("hidden")))
    # Text of a random model repeats itself only where it is sampled coldly.
    assert fast.metrics()["tokens_accepted"] > 0 or (speculation is NGRAM and sampling.temperature > 0.5)


async def test_engines_that_share_a_model_run_side_by_side_and_change_nothing(make: Make) -> None:
    read = Read(features=frozenset((ENTROPY,)), hidden="tokens")
    plain = make()
    expected = [await write(plain, p, 60, read=read) for p in PROMPTS]
    fast = plain.speculating(NGRAM)
    try:
        assert (plain.speculation, fast.speculation) == (None, NGRAM)
        both = await asyncio.gather(*(write(e, p, 60, read=read) for p in PROMPTS for e in (plain, fast)))
        for want, got in zip((w for w in expected for _ in range(2)), both, strict=True):
            assert got.ids == want.ids
            assert torch.equal(torch.stack(got.all("hidden")), torch.stack(want.all("hidden")))
        assert fast.metrics()["tokens_accepted"] > 0 == plain.metrics()["tokens_accepted"]
        await fast.close()
        assert (await write(plain, PROMPTS[0], 60, read=read)).ids == expected[0].ids
    finally:
        await fast.close()


@pytest.mark.parametrize("sampling", [Sampling(), WARM], ids=["greedy", "sampled"])
async def test_logits_are_bitwise_those_without_speculation(
    make: Make, sampling: Sampling, monkeypatch: pytest.MonkeyPatch
) -> None:
    from baton.engines import worker

    seen: dict[tuple[int, ...], torch.Tensor] = {}
    draw = worker.draw

    def watch(rows: Any, logits: torch.Tensor) -> list[int]:
        prefixes = [(*r.sought.ids(), *r.proposed[:n]) for r in rows for n in range(1 + len(r.proposed))]
        seen.update(zip(prefixes, logits.clone(), strict=True))
        return draw(rows, logits)

    monkeypatch.setattr(worker, "draw", watch)
    plain, fast = make(), make(DRAFT)
    for prompt in PROMPTS:
        await write(plain, prompt, 60, sampling)
    expected = dict(seen)
    seen.clear()
    await asyncio.gather(*(write(fast, prompt, 60, sampling) for prompt in PROMPTS))
    assert expected.keys() <= seen.keys()
    assert all(torch.equal(seen[prefix], logits) for prefix, logits in expected.items())


async def test_a_draft_model_that_is_the_model_is_always_right(make: Make) -> None:
    fast = make(DRAFT, proposing=make_model())
    for sampling in (Sampling(), WARM):
        usage = (await write(fast, PROMPTS[2], 50, sampling)).usage
        assert usage.sampled == 50
        # Ten forwards of five tokens each.
        assert (usage.sampled - usage.accepted, usage.proposed) == (10, 40)


async def test_rows_with_and_without_proposals_share_a_forward(make: Make) -> None:
    fast = make(NGRAM)
    written = await asyncio.gather(write(fast, LOOP, 80), write(fast, LOOP[:1], 80, until=(Cap(1),)), write(fast, [7]))
    metrics = fast.metrics()
    assert metrics["steps"] < sum(w.usage.sampled - w.usage.accepted for w in written)
    assert metrics["rows"] == sum(w.usage.sampled - w.usage.accepted for w in written)


@SPECULATIONS
@pytest.mark.parametrize("seed", [0, 1])
async def test_any_history_of_calls_writes_what_fresh_sessions_write(
    make: Make, speculation: Speculation, seed: int
) -> None:
    """Branches that fork, rewind, score, leave and close at random, in little memory."""
    rng = random.Random(seed)
    plain = make()
    token = plain._worker.geometry.token_bytes
    small = make(speculation, cache_bytes=(1800 if speculation is DRAFT else 900) * token, max_batch=3,
                 max_batch_tokens=50)  # fmt: skip

    async def branch(session: Session, ids: list[int], depth: int) -> None:
        for _ in range(6):
            turn = rng.randrange(1000)
            action = rng.choice(("write", "write", "leave", "rewind", "append", "score", "fork"))
            if action == "write":
                cap = rng.randint(1, 30)
                mine = await write(small, ids, cap, seed=turn, session=session)
                assert mine.ids == (await write(plain, ids, cap, seed=turn)).ids
                ids = ids + mine.ids
            elif action == "leave":
                call = Call(Prefix(ids), SegmentMatcher([], small.vocabulary, cap=200), 200, WARM, turn)
                async with aclosing(session.generate(call)) as chunks:
                    await anext(chunks)
            elif action == "rewind":
                ids = ids[: rng.randint(1, len(ids))]
            elif action == "append":
                ids = ids + [rng.randrange(20) for _ in range(rng.randint(1, 25))]
            elif action == "score":
                await session.logprob(Prefix(ids), [rng.randrange(200) for _ in range(rng.randint(1, 40))])
            elif depth < 2:
                await asyncio.gather(branch(session.fork(), ids, depth + 1), branch(session, ids, depth + 1))
                return
        session.close()

    await asyncio.gather(*(branch(small.open(p), list(p), 0) for p in (*PROMPTS, *PROMPTS[:2])))
    await write(small, [1, 2], 2)
    metrics = small.metrics()
    assert metrics["tokens_accepted"] > 0
    assert metrics["running"] == metrics["waiting"] == 0
    assert metrics["cache_bytes"] == sum(cache.bytes for pool in small._worker.pools for cache in pool.caches)
    assert not any(cache.pinned for pool in small._worker.pools for cache in pool.caches)


# Where a segment ends


@SPECULATIONS
async def test_the_segment_ends_in_the_middle_of_what_was_verified(make: Make, speculation: Speculation) -> None:
    plain, fast = make(), make(speculation, proposing=make_model())
    free = await write(plain, LOOP, 40)
    for end in range(1, 12):

        class StopAt(SegmentMatcher):
            count = end

            def push(self, token_id: int, *reads: Any) -> bool:
                assert len(self.ids) < self.count, "pushed after the end"
                return super().push(token_id, *reads) or len(self.ids) == self.count

        session = fast.open(LOOP)
        cut = await write(fast, LOOP, 40, matcher=StopAt([], fast.vocabulary), session=session)
        assert cut.ids == free.ids[:end] == cut.matcher.ids
        assert cut.usage.sampled == end
        # The cache ends where the segment does, less the last token, which was never forwarded.
        rest = await write(fast, LOOP + cut.ids, 40 - end, session=session)
        assert cut.ids + rest.ids == free.ids
        assert rest.usage.cached == len(LOOP) + end - 1
        session.close()


async def test_nothing_is_proposed_past_a_cap(make: Make) -> None:
    fast = make(DRAFT, proposing=make_model())
    one = await write(fast, LOOP, 40, until=(Cap(1),))
    assert one.usage == Usage(prompt=40, cached=0, sampled=1)
    three = await write(fast, LOOP, 40, until=(Cap(3),))
    assert (three.usage.sampled, three.usage.accepted, three.usage.proposed) == (3, 2, 2)
    assert (await write(fast, LOOP, 2)).usage.proposed == 1


async def test_a_feature_ends_the_segment_at_the_same_token(make: Make) -> None:
    plain, fast = make(), make(DRAFT)
    read = Read(features=frozenset((ENTROPY,)))
    entropies = [f[ENTROPY] for f in (await write(plain, LOOP, 40, read=read)).all("features")]
    until = (When(ENTROPY, ">=", max(entropies[3:]), keep=False),)
    want, got = [await write(e, LOOP, 40, read=read, until=until) for e in (plain, fast)]
    assert got.ids == want.ids
    assert got.matcher.kept == want.matcher.kept < 40


@SPECULATIONS
async def test_the_state_at_the_end_is_that_without_speculation(make: Make, speculation: Speculation) -> None:
    plain, fast = make(), make(speculation)
    for cap in (1, 2, 3, 6, 11):
        want, got = [await write(e, LOOP, cap, read=Read(hidden="end")) for e in (plain, fast)]
        assert torch.equal(got.chunks[-1].hidden[0], want.chunks[-1].hidden[0])


async def test_the_context_can_be_used_up(make: Make, tokenizer: Any) -> None:
    short = TransformersEngine(
        make_model(),
        tokenizer,
        context=64,
        speculative=DRAFT,
        draft=(make_model(max_position_embeddings=48), tokenizer),
    )
    assert (await write(short, PROMPTS[2], 34)).ids == (await write(make(), PROMPTS[2], 34)).ids
    await short.close()


# What the draft model computes


async def test_the_draft_model_reads_what_it_missed_and_nothing_twice(make: Make) -> None:
    fast = make(DRAFT, proposing=make_model())
    session = fast.open(LOOP)
    first = await write(fast, LOOP, 10, session=session)
    # The prompt, then four tokens proposed for each of two forwards; of the second one the first reads two.
    assert first.usage.drafted == len(LOOP) + 3 + 2 + 3
    relayed = [*LOOP, *first.ids, *range(50, 70)]
    second = await write(fast, relayed, 5, session=session)
    assert second.usage.drafted == 2 + 20 + 3
    fork = session.fork()
    third = await write(fast, [*relayed, *second.ids], 5, seed=3, session=fork)
    assert third.usage.drafted < 10
    other = await write(fast, LOOP, 5, seed=8)
    assert other.usage.drafted < 10
    session.close()
    fork.close()


async def test_a_prompt_longer_than_a_step_is_read_in_parts(make: Make) -> None:
    slow = make(DRAFT, proposing=make_model(), max_batch_tokens=32)
    written = await write(slow, PROMPTS[4], 40)
    assert written.ids == (await write(make(), PROMPTS[4], 40)).ids
    assert written.usage.accepted > 20


async def test_memory_is_shared_with_the_draft_model_and_bounded(make: Make) -> None:
    plain = make()
    limit = 900 * plain._worker.geometry.token_bytes
    tight = make(DRAFT, cache_bytes=limit)
    written = await asyncio.gather(*(write(tight, p, 60) for p in PROMPTS))
    assert [w.ids for w in written] == [(await write(plain, p, 60)).ids for p in PROMPTS]
    assert tight.metrics()["cache_bytes_peak"] <= limit


async def test_a_forgotten_prompt_is_read_again(make: Make) -> None:
    fast = make(DRAFT)
    await write(fast, LOOP, 5)
    assert (await write(fast, LOOP, 5)).usage.drafted < len(LOOP)
    fast.forget()
    assert (await write(fast, LOOP, 5)).usage.drafted >= len(LOOP)


# Proposing


def test_drawn_tokens_are_taken_up_to_the_first_that_was_not_proposed() -> None:
    assert verified([], [4]) == [4]
    assert verified([4, 5], [4, 5, 6]) == [4, 5, 6]
    assert verified([4, 5], [4, 7, 6]) == [4, 7]
    assert verified([4, 5], [3, 5, 6]) == [3]


@pytest.mark.parametrize(
    ("ids", "found"),
    [
        ([1, 2, 3, 9, 1, 2], [3, 9, 1]),
        ([1, 2, 3, 1, 2, 4, 1, 2], [4, 1, 2]),
        ([7, 1, 2, 3, 1, 2, 4, 7, 1, 2], [3, 1, 2]),
        ([5, 5, 5], [5, 5, 5]),
        ([1, 2, 1, 2], [1, 2, 1]),
        ([1, 2, 3, 4], []),
        ([2, 3, 4, 2], []),
        ([1], []),
        ([], []),
        ([0x01000001, 0x00010000, 1, 0x00000100, 0x01000000], []),
    ],
    ids=str,
)
def test_lookup_goes_on_as_the_latest_place_of_the_longest_end_did(ids: list[int], found: list[int]) -> None:
    assert Lookup(shortest=2, longest=3).follow(array("I", ids), 3) == found


def test_a_session_that_is_mostly_wrong_rests() -> None:
    speculator = Speculator(NGRAM, Lookup(1, 3))
    place: Any = object()
    for _ in range(20):
        assert speculator.wants(place) == 4
        speculator.learn(place, 4, 1)
    tries = 0
    while speculator.wants(place):
        speculator.learn(place, 4, 0)
        tries += 1
    assert 1 <= tries < 10
    assert [speculator.wants(place) for _ in range(REST)] == [0] * (REST - 1) + [4]
    assert ENOUGH < 1 / 4


# Loading and configuring


def test_methods_of_other_engines_are_refused_by_name(tokenizer: Any) -> None:
    for method, model in (("eagle3", "head"), ("mtp", None)):
        speculation = Speculation(method, model=model)  # type: ignore[arg-type]
        with pytest.raises(LoadError, match=f"'{method}'; use ngram or draft_model, or engine 'vllm'") as caught:
            TransformersEngine(make_model(), tokenizer, speculative=speculation)
        assert caught.value.field == "speculative.method"


def test_a_draft_model_of_another_vocabulary_is_refused(tokenizer: Any) -> None:
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    other = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="b")
    with pytest.raises(LoadError, match="tiny: its tokens have other ids") as caught:
        TransformersEngine(make_model(), tokenizer, speculative=DRAFT, draft=(make_model(), other))
    assert caught.value.field == "speculative.model"


def pair_config(speculative: Any) -> PairConfig:
    data = NANO_PAIR.model_dump() | {"target": {"model": "nano:target", "speculative": speculative}}
    return validate(PairConfig, {**data, "scorers": {}}, "pair.yaml")


@pytest.mark.parametrize(
    ("speculative", "message"),
    [
        ("eagle", "target.speculative.method: 'eagle' is unknown; use one of ngram, draft_model, eagle3, mtp"),
        ({"tokens": 3}, "target.speculative.method: missing; add it"),
        ({"method": "ngram", "tokens": 0}, "target.speculative.tokens: 0 is too few; use 1 or more"),
        ({"method": "ngram", "ngram_max": 1}, "target.speculative.ngram_max: 1 is below speculative.ngram_min (2)"),
        ({"method": "draft_model"}, "target.speculative.model: it is missing; draft_model needs the model"),
        ({"method": "ngram", "model": "x"}, "target.speculative.model: 'x' is not used by ngram; drop it"),
        ({"method": "ngram", "token": 3}, "target.speculative.token: unknown field (did you mean 'tokens'?)"),
    ],
)
def test_a_mistake_in_the_configuration_names_its_field(speculative: Any, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        pair_config(speculative)
    assert f"pair.yaml: {message}" in str(caught.value)


@pytest.mark.parametrize(
    ("speculative", "message"),
    [
        ("mtp", "pair.target.speculative.method: engine 'transformers' does not do 'mtp'"),
        ({"method": "draft_model", "model": "nano:drat"}, "pair.target.speculative.model: 'nano:drat' is not shipped"),
        ({"method": "draft_model", "model": "./no"}, "pair.target.speculative.model: ./no: no such folder"),
    ],
)
def test_what_cannot_be_loaded_names_its_field(tmp_path: Path, speculative: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Pair.load(pair_config(speculative), tmp_path)


# Under routers


@asynccontextmanager
async def nano_pair(speculative: Any) -> AsyncIterator[Pair]:
    pair = Pair.load(pair_config(speculative), Path())
    yield pair
    await pair.close()


async def answers(pair: Pair, router: str, temperature: float, seed: int = 0) -> list[Trace]:
    """Two answers at once, cut short."""
    questions = tasks.load(TaskConfig(), "calibration", Path(), 2)
    options = replace(pair_options(NANO_PAIR, seed), sampling=Sampling(temperature), budget=Budget(90, 25))
    knobs = {"role": "target", "n": 3} if router == "majority" else {}
    policy = routers.create(router, knobs, None, {"cues": nano.cue_profile()})
    return list(
        await asyncio.gather(
            *(generate(pair, policy, q.question, options=options, question_id=q.id) for q in questions)
        )
    )


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("router", ["target", "relaygen", "rstitch", "majority"])
async def test_nano_writes_the_same_answers_in_fewer_forwards(router: str, temperature: float) -> None:
    async with nano_pair(None) as pair:
        plain = await answers(pair, router, temperature)
    for speculative in ({"method": "draft_model", "model": "nano:draft"}, "ngram"):
        async with nano_pair(speculative) as pair:
            fast = await answers(pair, router, temperature)
        assert [[s.ids for s in t.path()] for t in fast] == [[s.ids for s in t.path()] for t in plain]
        for one, other in zip(fast, plain, strict=True):
            assert one.tokens(Role.TARGET) == other.tokens(Role.TARGET)
        written = [s for t in fast for s in t.segments if s.role is Role.TARGET]
        sampled, accepted = sum(s.sampled for s in written), sum(s.accepted for s in written)
        assert sampled / (sampled - accepted) > (1.4 if speculative != "ngram" else 1.0) or router == "rstitch"


async def test_the_draft_speculates_too() -> None:
    data = NANO_PAIR.model_dump() | {"draft": {"model": "nano:draft", "speculative": "ngram"}, "scorers": {}}
    async with nano_pair(None) as pair:
        plain = await answers(pair, "draft", 0.0)
    pair = Pair.load(validate(PairConfig, data, "pair.yaml"), Path())
    fast = await answers(pair, "draft", 0.0)
    await pair.close()
    assert [t.text for t in fast] == [t.text for t in plain]
    assert sum(s.accepted for t in fast for s in t.segments) > 0


async def test_a_router_of_single_tokens_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    async with nano_pair("ngram") as pair:
        for router in (routers.create("relaygen", {"cues": ["Wait"]}), Margin(stay=4)):
            routers.check(router, pair)
        assert not caplog.records
        for router in (Bild(), Margin(), BailOut(Bild())):
            routers.check(router, pair)
    said = [r.getMessage() for r in caplog.records]
    assert len(said) == 3
    assert said[0].startswith("pair.target.speculative: 'ngram' has next to nothing to verify under router 'bild'")
    caplog.clear()
    async with nano_pair(None) as pair:
        routers.check(Bild(), pair)
    assert not caplog.records
