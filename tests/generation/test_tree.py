"""Committing, discarding, inserting, phases and budgets on scripted engines."""

from __future__ import annotations

import asyncio

import pytest
from one_answer import ANSWER, answer, kept

from baton.boundary import BUDGET, CANCELLED, END_OF_TEXT, END_OF_THINKING, SENTENCE, STEP, Cap
from baton.gate import Threshold
from baton.generation import Budget, RouterError
from baton.trace import Kind, Phase, Role
from scripted import WORDS, ScriptedEngine, ScriptedScorer


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


def test_the_last_decision_on_a_segment_can_be_overruled_and_no_other():
    async def policy(gen):
        step, other = await gen.propose("draft", [STEP]), await gen.propose("draft", [STEP], branch=1)
        for score in (1.0, 0.0):
            gen.decide(Threshold(0.5), step, score)
        gen.overrule(step, "nothing better was found")
        with pytest.raises(RouterError, match=f"nothing was decided on segment {other.id}"):
            gen.overrule(other, "")

    trace = answer(policy)
    assert [(d.outcome, d.score, d.reason) for d in trace.decisions] == [
        (True, 1.0, ""),
        (True, 0.0, "nothing better was found"),
    ]


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


def test_text_inserted_below_an_uncommitted_segment_is_part_of_that_alternative_only():
    async def policy(gen):
        step = await gen.propose("draft", [STEP])
        hint = gen.insert("two ", why="test", after=step)
        assert gen.text == ""
        assert gen.view("draft", hint) == (*step.ids, *hint.ids)
        gen.discard(step)
        await gen.write("target", [STEP])

    assert answer(policy).text == "one. Wait, two three.\n\n"
