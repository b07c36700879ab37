"""The words of `Generation` on scripted engines: exact calls, tokens, and traces."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest

from baton.boundary import BUDGET, CANCELLED, END_OF_TEXT, END_OF_THINKING, SENTENCE, STEP, Cap, Cues, Feature, When
from baton.engines.base import EngineError, Read, Sampling, UnsupportedError
from baton.gate import Threshold
from baton.generation import Budget, Generation, Options, RouterError, generate
from baton.trace import Kind, Phase, Role, Trace
from scripted import WORDS, BrokenError, ScriptedEngine, ScriptedScorer, pair, vocabulary
from virtual_clock import run

ANSWER = "one. Wait, two three.\n\nstep.</think>answer<eos>"


def router(policy: Callable, **attributes):
    """A coroutine function as a router."""

    class Policy:
        name = "policy"

        async def __call__(self, gen: Generation) -> None:
            await policy(gen)

    for key, value in attributes.items():
        setattr(Policy, key, value)
    return Policy()


def answer(policy: Callable, target=ANSWER, draft=ANSWER, *, scorers=None, **options) -> Trace:
    """Runs a policy on scripted engines; `target` and `draft` are scripts or engines."""
    target = target if isinstance(target, ScriptedEngine) else ScriptedEngine("target", target)
    draft = draft if isinstance(draft, ScriptedEngine) else ScriptedEngine("draft", draft)
    return run(generate(pair(target, draft, **(scorers or {})), router(policy), "q", options=Options(**options)))


def kept(trace: Trace) -> list[tuple[str, str, str]]:
    return [(s.role, s.text, s.ended_by.name) for s in trace.path()]


def test_a_write_streams_only_what_can_no_longer_be_taken_back():
    seen: list[tuple[str, str]] = []

    async def policy(gen):
        switch = Cues(["Wait"])
        await gen.write("target", until=[switch])
        await gen.write("draft", until=[SENTENCE])
        while not gen.finished:
            await gen.write("target")

    engines = pair(ScriptedEngine("target", ANSWER), ScriptedEngine("draft", ANSWER))
    trace = run(
        generate(engines, router(policy), "q", options=Options(), on_text=lambda s, t, n: seen.append((s.role, t)))
    )
    assert "".join(t for _, t in seen) == trace.text == "one. Wait, two three.\n\nstep.</think>answer"
    assert ("target", "Wait") in seen
    assert ("draft", ",") in seen, "the token that confirmed the cue was the target's overshoot, then the draft's"


def test_segments_record_who_wrote_what_and_why_it_ended():
    async def policy(gen):
        switch = Cues(["Wait,"])
        while not gen.finished:
            if gen.phase is Phase.ANSWER:
                await gen.write("draft")
            elif (await gen.write("target", until=[switch])).ended_by is switch:
                await gen.write("draft", until=[SENTENCE])

    trace = answer(policy)
    assert kept(trace) == [
        ("target", "one. Wait,", "cues"),
        ("draft", " two three.\n\n", "sentence"),
        ("target", "step.</think>", "end_of_thinking"),
        ("draft", "answer", "end_of_text"),
    ]
    assert [s.phase for s in trace.path()][-1] is Phase.ANSWER
    assert trace.answer == "answer"
    assert trace.finish == "end_of_text"
    assert trace.switches == 3
    assert trace.segments[0].detail == "Wait,"


def test_the_token_that_confirms_a_match_without_belonging_to_it_is_overshoot():
    async def policy(gen):
        segment = await gen.write("target", until=[Cues(["one"])])
        assert (segment.text, segment.sampled, segment.overshoot) == ("one", 2, 1)
        while not gen.finished:
            await gen.write("target")

    assert answer(policy).text.startswith("one. Wait,")


def test_rejected_steps_are_discarded_and_rewritten_by_the_target_from_the_same_prefix():
    target = ScriptedEngine("target", {"": "good.\n\n"})
    draft = ScriptedEngine("draft", {"": "bad.\n\n", ".\n\n": "</think>", "</think>": "answer<eos>"})
    scorer = ScriptedScorer(lambda r: 0.0 if "bad" in r.step else 1.0)

    async def policy(gen):
        while not gen.finished:
            step = await gen.propose("draft", [STEP])
            if gen.decide(Threshold(0.5), step, await gen.score(step, by="prm")):
                gen.commit(step)
            else:
                gen.discard(step)
                await gen.write("target", [STEP])

    trace = answer(policy, target, draft, scorers={"prm": scorer})
    assert trace.text == "good.\n\n</think>answer"
    assert [(c.role, c.text, c.written) for c in draft.log] == [
        ("draft", "", "bad.\n\n"),
        ("draft", "good.\n\n", "</think>"),
        ("draft", "good.\n\n</think>", "answer<eos>"),
    ]
    assert [(c.text, c.written) for c in target.log] == [("", "good.\n\n")]
    assert [(d.outcome, d.score, d.scorer, d.threshold) for d in trace.decisions] == [
        (False, 0.0, "prm", 0.5),
        (True, 1.0, "prm", 0.5),
        (True, 1.0, "prm", 0.5),
    ]
    assert [s.kept for s in trace.segments] == [False, True, True, True]
    assert all(d.helper_tokens for d in trace.decisions)


def test_branches_draw_different_seeds_and_one_branch_the_same_seed_again():
    seeds: dict[int, list[int]] = {}

    async def policy(gen):
        for pending in gen.start("draft", [STEP], None, 3):
            segment = await pending
            seeds.setdefault(segment.branch, []).append(segment.seed)
            gen.discard(segment)
        again = await gen.propose("draft", [STEP], branch=1)
        seeds[1].append(again.seed)
        other = await gen.propose("target", [STEP])
        assert other.seed not in {s for group in seeds.values() for s in group}

    answer(policy)
    assert len({s[0] for s in seeds.values()}) == 3
    assert len(set(seeds[1])) == 1


def test_children_of_different_branches_draw_different_seeds():
    async def policy(gen):
        first, second = [await p for p in gen.start("draft", [Cap(1)], None, 2)]
        a, b = await gen.propose("draft", after=first), await gen.propose("draft", after=second)
        assert a.seed != b.seed
        gen.commit(first)

    answer(policy)


def test_partial_commit_keeps_the_first_tokens_and_drops_what_was_built_on_the_rest():
    async def policy(gen):
        step = await gen.propose("draft", [STEP])
        child = gen.start("draft", [STEP], after=step)
        gen.commit(step, tokens=2)
        assert gen.text == "one."
        assert (await child).ended_by is CANCELLED
        with pytest.raises(RouterError, match="discarded"):
            gen.commit(child.segment)
        while not gen.finished:
            await gen.write("target")

    trace = answer(policy)
    assert kept(trace)[0] == ("draft", "one.", "cut")
    assert trace.segments[0].sampled > trace.segments[0].kept_tokens == 2


def test_a_committed_segment_can_be_neither_cut_nor_cancelled():
    async def policy(gen):
        pending = gen.start("target", [SENTENCE])
        segment = await pending
        gen.commit(segment)
        with pytest.raises(RouterError, match="committed whole already"):
            gen.commit(segment, 1)
        following = gen.start("draft", [SENTENCE])
        pending.cancel()
        gen.commit(await following)

    trace = answer(policy)
    assert trace.text == "one. Wait, two three.\n\n"
    assert all(s.kept_tokens == len(s.ids) for s in trace.path())


def test_a_commit_cancels_what_is_not_below_it():
    slow = ScriptedEngine("draft", ANSWER, delay=1.0)

    async def policy(gen):
        pending = gen.start("draft", [STEP])
        await asyncio.sleep(1.5)
        assert len(pending.tokens) == 1
        await gen.write("target")
        assert pending.segment.ended_by is CANCELLED or not pending.done
        assert (await pending).ended_by is CANCELLED

    trace = answer(policy, draft=slow)
    assert slow.log[0].cancelled
    assert slow.running == 0
    assert [s.kept for s in trace.segments] == [False, True]


def test_end_of_thinking_moves_to_the_answer_phase_for_every_writer():
    async def policy(gen):
        assert gen.phase is Phase.THINKING
        segment = await gen.write("draft")
        assert segment.ended_by is END_OF_THINKING
        assert gen.phase is Phase.ANSWER
        segment = await gen.write("target")
        assert segment.ended_by is END_OF_TEXT

    answer(policy)


def test_the_answer_reserve_closes_thinking_with_an_inserted_token_outside_the_target_share():
    endless = ScriptedEngine("target", lambda text, seed: "answer<eos>" if "</think>" in text else "one " * 99)

    async def policy(gen):
        while not gen.finished:
            await gen.write("target")

    trace = answer(policy, endless, budget=Budget(tokens=20, answer_reserve=5))
    assert [(s.role, s.kind, len(s.ids), s.kept_tokens) for s in trace.path()] == [
        (Role.TARGET, Kind.WRITE, 15, 15),
        (Role.INSERTED, Kind.INSERT, 1, 0),
        (Role.TARGET, Kind.WRITE, 2, 2),
    ]
    assert trace.segments[0].ended_by is BUDGET
    assert "reserve" in trace.segments[1].detail
    assert trace.finish == "end_of_text"
    assert trace.target_share == 1.0


def test_a_spent_budget_is_reported_as_length():
    async def policy(gen):
        while not gen.finished:
            await gen.write("target")

    trace = answer(policy, lambda text, seed: "one " * 99, budget=Budget(tokens=20, answer_reserve=5))
    assert trace.finish == "length"
    assert trace.tokens() == 20


def test_a_proposal_beyond_the_reserve_is_empty_and_ended_by_the_budget():
    async def policy(gen):
        step = await gen.propose("draft")
        assert len(step.ids) == 6
        beyond = await gen.propose("draft", after=step)
        assert (beyond.ids, beyond.ended_by) == ([], BUDGET)

    answer(policy, draft=lambda text, seed: "one " * 99, budget=Budget(tokens=8, answer_reserve=2))


def test_inserted_text_is_seen_by_both_models():
    target = ScriptedEngine("target", {"hint. ": "one.</think>", "</think>": "answer<eos>"})

    async def policy(gen):
        gen.insert("hint. ", why="test")
        await gen.write("target")
        await gen.write("draft")

    trace = answer(policy, target, {"</think>": "answer<eos>"})
    assert trace.text == "hint. one.</think>answer"
    assert trace.segments[0].detail == "test"
    assert trace.segments[0].kept_tokens == 0


def test_inserted_text_behind_an_end_of_thinking_belongs_to_the_answer():
    async def policy(gen):
        await gen.write("target", [SENTENCE])
        gen.insert("</think>ans", why="enough")
        await gen.write("draft")

    trace = answer(policy, draft="one.</think>answer<eos>")
    assert trace.text == "one.</think>answer"
    assert trace.answer == "answer"


def test_appended_tokens_count_as_written_by_their_role_and_end_the_text():
    async def policy(gen):
        gen.append("target", WORDS.encode("one two</think>"))
        assert gen.phase is Phase.ANSWER
        gen.append("target", WORDS.encode("answer<eos> never"))
        assert gen.finished

    trace = answer(policy)
    assert trace.text == "one two</think>answer"
    assert trace.target_share == 1.0
    assert trace.finish == "end_of_text"


def test_whole_alternatives_grow_side_by_side_and_one_of_them_is_kept():
    scripts = {0: "one.\n\ntwo.</think>bad<eos>", 1: "three.\n\n</think>good<eos>"}
    chosen: dict[int, str] = {}

    def script(text, seed):
        text_of_seed = chosen.setdefault(seed, scripts[min(len(chosen), 1)]) if not text else None
        return next(t for t in ([text_of_seed] if text_of_seed else scripts.values()) if t.startswith(text))[
            len(text) :
        ]

    async def policy(gen):
        pending = [gen.complete("draft", [STEP], branch=k) for k in range(2)]
        lasts = [await p for p in pending]
        assert [s.text for s in gen.path(lasts[0])] == ["one.\n\n", "two.</think>", "bad"]
        assert gen.text == ""
        gen.commit(lasts[1])
        assert gen.finished

    trace = answer(policy, draft=script)
    assert trace.text == "three.\n\n</think>good"
    assert [s.text for s in trace.segments if not s.kept] == ["one.\n\n", "two.</think>", "bad"]


def test_an_alternative_closes_its_own_thinking_where_the_reserve_begins():
    endless = lambda text, seed: "one " * 99  # noqa: E731

    async def policy(gen):
        last = await gen.complete("draft")
        assert [(s.role, len(s.ids), s.ended_by.name) for s in gen.path(last)] == [
            ("draft", 15, "budget"),
            ("inserted", 1, "end_of_thinking"),
            ("draft", 5, "budget"),
        ]
        gen.commit(last)

    trace = answer(policy, draft=endless, budget=Budget(tokens=20, answer_reserve=5))
    assert trace.text.count("</think>") == 1
    assert trace.finish == "length"
    assert trace.tokens() == 20


def test_a_discarded_alternative_stops_writing():
    slow = ScriptedEngine("draft", "one.\n\ntwo.\n\n</think>good<eos>", delay=1.0)

    async def policy(gen):
        pending = gen.complete("draft", [STEP])
        await asyncio.sleep(2.5)
        gen.discard(gen.trace.segments[0])
        await asyncio.sleep(5.0)
        assert [entry.cancelled for entry in slow.log] == [False, True], "and nothing was started after them"
        with pytest.raises(RouterError, match="discarded"):
            await pending
        await gen.write("target", [STEP])

    answer(policy, draft=slow)
    assert slow.running == 0


def test_text_inserted_below_an_uncommitted_segment_is_part_of_that_alternative_only():
    async def policy(gen):
        step = await gen.propose("draft", [STEP])
        hint = gen.insert("two ", why="test", after=step)
        assert gen.text == ""
        assert gen.view("draft", hint) == (*step.ids, *hint.ids)
        gen.discard(step)
        await gen.write("target", [STEP])

    assert answer(policy).text == "one. Wait, two three.\n\n"


def test_many_alternatives_of_many_steps_are_no_lack_of_progress():
    steps = "one.\n\n" * 150 + "</think>answer<eos>"

    async def policy(gen):
        lasts = [await p for p in [gen.complete("draft", [STEP], branch=k) for k in range(8)]]
        gen.commit(lasts[0])

    assert answer(policy, draft=steps).finish == "end_of_text"


def test_a_probe_never_enters_the_answer_and_leaves_its_session_free():
    target = ScriptedEngine("target", lambda text, seed: "7" if text.endswith("score: ") else ANSWER[len(text) :])

    async def policy(gen):
        await gen.write("target", [STEP])
        probe = await gen.probe("target", " score: ", cap=1)
        assert probe.text == "7"
        await gen.write("target")

    trace = answer(policy, target)
    assert "7" not in trace.text
    assert [s.kind for s in trace.segments] == [Kind.WRITE, Kind.PROBE, Kind.WRITE]
    assert trace.segments[2].cached == trace.segments[2].prompt


def test_features_are_recorded_for_kept_tokens_only_and_can_end_a_segment():
    draft = ScriptedEngine(
        "draft", ANSWER, features=lambda text, token: {Feature.ENTROPY: 2.0 if token == "Wait" else 0.1}
    )

    async def policy(gen):
        unsure = When(Feature.ENTROPY, ">", 1.0, keep=False)
        segment = await gen.propose("draft", [unsure])
        assert segment.ended_by is unsure
        assert segment.text == "one. "
        assert segment.features["entropy"] == [0.1] * 3
        assert segment.overshoot == 1
        gen.commit(segment)

    answer(policy, draft=draft)


def test_logprob_scores_a_segment_under_the_other_model_and_reuses_its_cache():
    target = ScriptedEngine("target", "one. two")

    async def policy(gen):
        step = await gen.propose("draft", [Cap(3)])
        scores = await gen.logprob("target", step)
        assert [s.logprob for s in scores] == [0.0, 0.0, 0.0]
        gen.commit(step)
        wrong = await gen.propose("draft", [Cap(1)])
        assert (await gen.logprob("target", [wrong]))[0][0].logprob < -1
        assert target.log[-1].text == "one. "

    trace = answer(policy, target)
    assert [h.by for h in trace.helpers] == ["logprob:target"] * 2
    assert trace.helpers[1].cached == 4


def test_a_probe_can_ask_as_the_user_after_the_text_so_far_and_with_sampling_of_its_own():
    target = ScriptedEngine("target", lambda text, seed: "7" if text.endswith("score: ") else ANSWER[len(text) :])

    async def policy(gen):
        await gen.write("target", [STEP])
        probe = await gen.probe("target", "score: ", ask="good?", sampling=Sampling(temperature=0.25))
        assert probe.text == "7"
        gen.decide(Threshold(5), gen.head, 7)
        await gen.write("target")

    trace = answer(policy, target, sampling=Sampling(temperature=0.5))
    assert [(c.text, c.temperature) for c in target.log] == [
        ("", 0.5),
        ("one. Wait, two three.\n\n[ask:good?]score: ", 0.25),
        ("one. Wait, two three.\n\n", 0.5),
    ]
    assert trace.segments[1].cached == len(WORDS.encode("?one. Wait, two three.\n\n"))
    new = len(WORDS.encode("[ask:good?]score: ")) + 1
    assert (trace.decisions[0].scorer, trace.decisions[0].helper_tokens) == ("probe:target", new)


def test_a_probe_that_asks_after_the_end_of_text_does_not_end_the_turn_twice():
    async def policy(gen):
        last = await gen.propose("target")
        assert last.ended_by is END_OF_TEXT
        probe = await gen.probe("target", ask="?", after=last, cap=1)
        assert probe.prompt == 1 + len(last.ids) - 1 + len(WORDS.encode("[ask:?]"))
        gen.commit(last)

    answer(policy, lambda text, seed: "answer<eos>" if "ask" not in text else "7", thinking=False)


def test_a_probe_about_a_step_is_a_score_during_which_an_optimistic_draft_goes_on():
    draft = ScriptedEngine("draft", ANSWER, delay=0.1)

    async def policy(gen):
        step = await gen.propose("draft", [STEP])
        await gen.probe("target", after=step)
        gen.commit(step)
        await gen.probe("target")
        assert gen.text_of("draft", (await gen.propose("draft", [STEP])).ids) == "step.</think>"

    target = ScriptedEngine("target", lambda text, seed: "7", first_delay=5.0)
    trace = answer(policy, target, draft, optimistic=True)
    assert [c.text for c in draft.log] == ["", "one. Wait, two three.\n\n"]
    assert trace.segments[2].submitted == pytest.approx(trace.segments[0].last)


def test_logprob_is_of_the_temperature_asked():
    draft = ScriptedEngine("draft", ANSWER, likes=lambda text, token: -2.0)

    async def policy(gen):
        step = await gen.propose("draft", [Cap(2)])
        assert [s.logprob for s in await gen.logprob("draft", step, 0.5)] == [-4.0, -4.0]
        assert [[s.logprob for s in scores] for scores in await gen.logprob("draft", [step])] == [[-2.0, -2.0]]

    answer(policy, draft=draft)


def test_grounding_is_refused_by_name_where_the_engine_has_no_attention_maps():
    async def policy(gen):
        await gen.grounding("draft", await gen.propose("draft", [Cap(2)]))

    with pytest.raises(UnsupportedError, match="gives no attention maps"):
        answer(policy)
    draft = ScriptedEngine("draft", ANSWER, grounded=lambda text, token: 0.5 if token == "." else 0.75)

    async def reads(gen):
        assert await gen.grounding("draft", await gen.propose("draft", [Cap(2)])) == [0.75, 0.5]

    assert [h.by for h in answer(reads, draft=draft).helpers] == ["grounding:draft"]


def test_discarding_a_step_cancels_its_scores_and_those_of_several_when_the_last_of_them_goes():
    scorer = ScriptedScorer(lambda r: 1.0, delay=5.0)

    async def policy(gen):
        a, b = await gen.candidates("draft", [STEP], 2)
        assert (a.branch, b.branch) == (0, 1)
        alone, both = gen.score(a, by="prm"), gen.score([a, b], by="prm")
        beside = gen.background(asyncio.sleep(9), a)
        await asyncio.sleep(1)
        gen.discard(a)
        await asyncio.sleep(0.1)
        assert alone.done
        assert beside.done
        assert not both.done
        gen.discard(b)
        with pytest.raises(RouterError, match="after its step was discarded"):
            await both

    trace = answer(policy, scorers={"prm": scorer})
    assert [h.outcome for h in trace.helpers] == ["cancelled", "cancelled"]
    assert all(entry.cancelled for entry in scorer.log)


def test_the_first_of_several_calls_wakes_a_router_and_a_failure_is_raised():
    slow, fast = ScriptedEngine("target", ANSWER, delay=1.0), ScriptedEngine("draft", ANSWER, delay=0.5)
    slow.fail = lambda text: BrokenError("gone") if text else None

    async def policy(gen):
        calls = gen.start("target", [Cap(2)]), gen.start("draft", [Cap(2)])
        await gen.first(calls)
        assert [c.done for c in calls] == [False, True]
        step = await calls[1]
        with pytest.raises(RouterError, match="nothing to wait for"):
            await gen.first([])
        await gen.first([gen.start("target", after=step), calls[0]])

    with pytest.raises(BrokenError, match="gone"):
        answer(policy, slow, fast)


def test_two_vocabularies_keep_one_ledger_each_and_count_differing_seams():
    other = vocabulary("one", "two three", ".\n\n", " ", "answer", ". ", shift=7)
    draft = ScriptedEngine("draft", ANSWER, vocabulary=other)

    async def policy(gen):
        assert not gen.one_vocabulary
        await gen.write("target", [SENTENCE])
        await gen.write("target", [Cap(4)])
        while not gen.finished:
            await gen.write("draft")
        assert other.text_of(gen.view("draft")) == gen.text

    trace = answer(policy, draft=draft)
    assert trace.text == ANSWER.removesuffix("<eos>")
    assert trace.seams > 0
    assert trace.seams_differ > 0, "'.' and ' ' are one token in the draft's vocabulary"
    assert trace.finish == "end_of_text"


def test_a_character_is_never_split_between_two_vocabularies():
    other = vocabulary("漢", shift=3)
    plain = vocabulary()
    text = "漢字</think>x<eos>"
    target = ScriptedEngine("target", text, vocabulary=plain)
    draft = ScriptedEngine("draft", text, vocabulary=other)

    async def policy(gen):
        segment = await gen.write("target", [Cap(1)])
        assert segment.text == "漢"
        while not gen.finished:
            await gen.write("draft")

    assert answer(policy, target, draft).text == "漢字</think>x"


def test_a_feature_never_splits_a_character_between_two_vocabularies():
    def says(before, token):
        return {Feature.ENTROPY: 1.0}

    target = ScriptedEngine("target", "漢字</think>x<eos>", vocabulary=vocabulary(), features=says)
    draft = ScriptedEngine("draft", "漢字</think>x<eos>", vocabulary=vocabulary("漢", shift=3))

    async def policy(gen):
        first = await gen.write("target", [When(Feature.ENTROPY, ">", 0.5)])
        assert first.text == "漢"
        while not gen.finished:
            await gen.write("draft")

    assert answer(policy, target, draft).text == "漢字</think>x"


def test_a_budget_spent_inside_a_character_is_no_failure_with_two_vocabularies():
    target = ScriptedEngine("target", "漢字</think>x<eos>", vocabulary=vocabulary())
    draft = ScriptedEngine("draft", "漢字</think>x<eos>", vocabulary=vocabulary("漢", shift=3))

    async def policy(gen):
        while not gen.finished:
            await gen.write("target")

    trace = answer(policy, target, draft, budget=Budget(6, 2))
    assert (trace.text, trace.finish) == ("漢字</think>", "length")


def test_a_character_split_between_two_segments_is_text_of_the_second():
    plain = vocabulary()
    (end,) = plain.end_of_text

    def encode(text: str) -> list[int]:
        body, mark, _ = text.partition("<eos>")
        return [*body.encode("utf-8", "surrogateescape"), *([end] if mark else [])]

    rest = "漢字".encode()[1:].decode("utf-8", "surrogateescape")
    engine = ScriptedEngine(
        "target", lambda text, _: f"{rest}<eos>" if text else "漢", vocabulary=replace(plain, encode=encode)
    )
    seen: list[str] = []

    async def policy(gen):
        await gen.write("target", [Cap(1)])
        await gen.write("target")

    both = pair(engine, ScriptedEngine("draft", "", vocabulary=engine.vocabulary))
    trace = run(generate(both, router(policy), "q", options=Options(), on_text=lambda s, t, n: seen.append(t)))
    assert trace.text == "".join(seen) == "漢字"
    assert [s.text for s in trace.path()] == ["", "漢字"]


def test_a_cancelled_segment_costs_the_prefix_that_was_not_cached_and_no_more():
    draft = ScriptedEngine("draft", ANSWER, delay=1.0)

    async def policy(gen):
        step = await gen.write("draft", [SENTENCE])
        pending = gen.start("draft")
        await asyncio.sleep(2.5)
        pending.cancel()
        await pending
        assert pending.segment.prompt == 1 + len(step.ids)

    segment = answer(policy, draft=draft).segments[-1]
    assert segment.ended_by is CANCELLED
    assert (segment.prompt - segment.cached, segment.sampled) == (0, 2), "all of its prefix was cached"


def test_a_failing_engine_raises_and_frees_everything():
    draft = ScriptedEngine("draft", ANSWER, delay=1.0)
    target = ScriptedEngine("target", ANSWER, fail=lambda text: BrokenError("gone"))

    async def policy(gen):
        gen.start("draft")
        await asyncio.sleep(0.5)
        await gen.write("target")

    with pytest.raises(BrokenError, match="gone"):
        answer(policy, target, draft)
    assert draft.running == 0


def test_a_scorer_that_returns_too_few_scores_is_an_error():
    class Short(ScriptedScorer):
        async def score(self, requests):
            return []

    async def policy(gen):
        step = await gen.propose("draft", [STEP])
        await gen.score(step, by="prm")

    with pytest.raises(EngineError, match="0 scores for 1 steps"):
        answer(policy, scorers={"prm": Short(lambda r: 0.0)})


def test_a_timeout_keeps_what_was_written_and_is_censored_not_failed():
    target = ScriptedEngine("target", ANSWER, delay=1.0)

    async def policy(gen):
        await gen.write("target", [STEP])
        await gen.write("target")

    seen: list[str] = []
    engines = pair(target, ScriptedEngine("draft", ANSWER))
    trace = run(
        generate(engines, router(policy), "q", options=Options(timeout=12.5), on_text=lambda s, t, n: seen.append(t))
    )
    assert trace.finish == "timeout"
    assert trace.text == "".join(seen) == "one. Wait, two three.\n\nst", "what was shown is not taken back"
    assert trace.tokens() == 12
    assert trace.seconds == 12.5
    assert target.running == 0


@pytest.mark.parametrize("how", ["cancelled", "failed"])
def test_what_a_write_has_shown_stays_where_it_is_broken_off(how):
    class Dying(ScriptedEngine):
        def continuation(self, text, seed):
            return "one. " + ("" if how == "failed" else "two three")

    target = Dying("target", "", delay=1.0)
    seen: list[str] = []

    async def policy(gen):
        with pytest.raises((TimeoutError, EngineError)):
            async with asyncio.timeout(3.5):
                await gen.write("target")
        assert gen.written("target") == 3
        await gen.write("draft")

    engines = pair(target, ScriptedEngine("draft", "one. two</think>answer<eos>"))
    trace = run(generate(engines, router(policy), "q", options=Options(), on_text=lambda s, t, n: seen.append(t)))
    assert trace.text == "".join(seen) == "one. two</think>"
    assert [s.ended_by.name for s in trace.path()] == [how, "end_of_thinking"]


def test_a_router_that_keeps_nothing_is_stopped():
    async def policy(gen):
        while not gen.finished:
            gen.discard(await gen.propose("draft", [Cap(1)]))

    with pytest.raises(RouterError, match="no progress"):
        answer(policy)


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (lambda gen: gen.start("drafter"), "'drafter' is unknown"),
        (lambda gen: gen.score(gen.head, by="prm"), "'prm' is not one of the pair's scorers"),
        (lambda gen: gen.discard(gen.head), "committed"),
    ],
)
def test_a_router_that_asks_for_the_impossible_is_told_what(policy, message):
    async def call(gen):
        policy(gen)

    with pytest.raises(RouterError, match=message):
        answer(call)


def test_an_observation_is_replayed():
    async def policy(gen):
        late = gen.observe("late", asyncio.get_running_loop().time() > 0.5)
        await gen.write("draft" if late else "target")
        while not gen.finished:
            await gen.write("target")

    first = answer(policy)
    assert first.segments[0].role is Role.TARGET
    first.observations[0].value = True
    target, draft = ScriptedEngine("target", ANSWER), ScriptedEngine("draft", ANSWER)
    again = run(generate(pair(target, draft), router(policy), "q", options=Options(), replay=first))
    assert again.segments[0].role is Role.DRAFT


def test_a_trace_reads_back_as_it_was_written():
    async def policy(gen):
        switch = Cues(["Wait,"])
        await gen.write("target", until=[switch], read=Read(features=frozenset([Feature.ENTROPY])))
        while not gen.finished:
            await gen.write("draft")

    import json

    target = ScriptedEngine("target", ANSWER, features=lambda text, token: {Feature.ENTROPY: 0.5})
    trace = answer(policy, target)
    line = trace.dumps()
    assert "\n" not in line
    again = Trace.from_json(json.loads(line))
    assert again.to_json() == trace.to_json()
    assert again.target_share == trace.target_share
    assert again.segments[0].features["entropy"] == [0.5] * 5
