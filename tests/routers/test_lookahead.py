"""Lookahead on scripted engines and a virtual clock: exact calls, and wall time against the theory."""

from __future__ import annotations

import hashlib
import math

import pytest
from steps import calls, kept, relay, shared_log

from baton.boundary import CANCELLED
from baton.generation import Budget
from baton.routers.lookahead import Lookahead
from baton.trace import Kind
from scripted import EOS, BrokenError, ScriptedEngine, ScriptedScorer
from virtual_clock import VirtualClockLoop

STEPS = ["one.\n\n", "two.\n\n", "three.\n\n", "good.\n\n"]
TEXT = "".join(STEPS) + "</think>answer<eos>"


def target(script=None, *, delay=1.0):
    """Writes `TEXT`, a step in four tokens or so; from a prefix that left it, as if it had not."""
    return ScriptedEngine("target", script or follow(), delay=delay)


def follow(wrong: str = "", instead: str = ""):
    """The text that follows as many steps as were written, one word of it replaced."""

    def script(text: str, seed: int) -> str:
        at = text.count("\n\n")
        rest = TEXT.split("</think>")[1] if "</think>" in text else "".join(STEPS[at:]) + "</think>answer<eos>"
        return rest.replace(wrong, instead, 1) if wrong else rest

    return script


def draft(script=None, *, delay=0.1):
    return ScriptedEngine("draft", script or follow(), delay=delay)


def exact(**knobs) -> Lookahead:
    return Lookahead(**{"verifier": "exact", "depth": 3, "whole_steps": False, **knobs})


def test_depth_drafts_run_ahead_and_depth_plus_one_steps_of_the_target_at_once():
    engines = target(), draft()
    log = shared_log(*engines)
    peak = 0
    original = engines[0].continuation

    def watch(text, seed):
        nonlocal peak
        peak = max(peak, engines[0].running)
        return original(text, seed)

    engines[0].continuation = watch
    trace = relay(exact(depth=2), *engines)
    assert peak == 3, "k = depth + 1"
    assert trace.text == TEXT.removesuffix(EOS)
    assert calls(log)[:5] == [
        ("write", "draft", "", "one.\n\n"),
        ("write", "target", "", "one.\n\n"),
        ("write", "draft", "one.\n\n", "two.\n\n"),
        ("write", "target", "one.\n\n", "two.\n\n"),
        ("write", "target", "one.\n\ntwo.\n\n", "three.\n\n"),
    ], "no third draft before the window slides"
    assert {s.role for s in trace.path()} == {"draft"}


def test_depth_zero_is_the_target_alone():
    trace = relay(exact(depth=0), target(), draft())
    assert {s.role for s in trace.segments} == {"target"}
    assert trace.observations == []


@pytest.mark.parametrize("asynchronous", [True, False])
def test_at_the_first_step_not_confirmed_the_targets_own_stands_and_the_draft_starts_anew(asynchronous):
    engines = target(), draft(follow("two", "bad"))
    trace = relay(exact(asynchronous=asynchronous), *engines)
    assert kept(trace)[:2] == [("draft", "one.\n\n"), ("target", "two.\n\n")]
    assert trace.text == TEXT.removesuffix(EOS)
    built_on_it = [s for s in trace.segments if s.parent == next(x.id for x in trace.segments if "bad" in x.text)]
    assert built_on_it
    assert not any(s.kept for s in built_on_it)
    if asynchronous:
        assert any(s.role == "target" and s.ended_by is CANCELLED for s in trace.segments)
    assert engines[0].running == engines[1].running == 0


def test_the_synchronous_version_drafts_first_then_writes_all_steps_of_the_target_side_by_side():
    engines = target(), draft()
    log = shared_log(*engines)
    trace = relay(exact(asynchronous=False, depth=2), *engines)
    assert [(c.role, c.text) for c in log][:6] == [
        ("draft", ""),
        ("draft", "one.\n\n"),
        ("target", ""),
        ("target", "one.\n\n"),
        ("target", "one.\n\ntwo.\n\n"),
        ("draft", "one.\n\ntwo.\n\nthree.\n\n"),
    ]
    assert kept(trace)[:3] == [("draft", "one.\n\n"), ("draft", "two.\n\n"), ("target", "three.\n\n")]
    assert trace.observations == [], "nothing is read from the clock"


def test_a_late_draft_counts_as_rejected_and_its_call_is_cancelled():
    engines = target(), draft(delay=1.5)
    trace = relay(exact(), *engines)
    assert trace.target_share == 1.0
    assert all(o.value == [] for o in trace.observations)
    assert trace.seconds == pytest.approx(sum(s.sampled for s in trace.path()))
    assert all(c.cancelled for c in engines[1].log)


def test_a_replay_takes_the_drafts_that_were_in_time_then_whatever_its_own_clock_says():
    first = relay(exact(), target(), draft())
    assert "draft" in {s.role for s in first.path()}
    slow = relay(exact(), target(delay=0.1), draft(delay=3.0), replay=first)
    assert kept(slow) == kept(first)
    late = relay(exact(), target(), draft(delay=3.0))
    quick = relay(exact(), target(delay=3.0), draft(delay=0.01), replay=late)
    assert kept(quick) == kept(late)
    assert quick.target_share == 1.0


def test_an_end_of_text_in_an_accepted_draft_ends_the_answer_without_a_step_of_the_target_behind_it():
    engines = target("answer<eos>"), draft("answer<eos>")
    trace = relay(exact(), *engines, thinking=False)
    assert kept(trace) == [("draft", "answer")]
    assert trace.finish == "end_of_text"
    assert [c.text for c in engines[0].log] == [""]
    assert trace.text == "answer"


def test_a_draft_that_ends_the_text_is_not_equal_to_a_step_that_goes_on():
    trace = relay(exact(), target("one.\n\ntwo<eos>"), draft({"": "one.<eos>", "\n\n": "two<eos>"}), thinking=False)
    assert kept(trace)[0] == ("target", "one.\n\n")


def test_an_end_of_thinking_in_an_accepted_draft_begins_the_answer():
    trace = relay(exact(), target("one.</think>answer<eos>"), draft("one.</think>answer<eos>"))
    assert kept(trace) == [("draft", "one.</think>"), ("draft", "answer")]
    assert [str(s.phase) for s in trace.path()] == ["thinking", "answer"]


def test_the_first_step_and_one_after_a_cap_are_the_targets_and_no_draft_is_wasted_on_them():
    engines = target(), draft()
    trace = relay(exact(whole_steps=True), *engines)
    assert kept(trace)[:2] == [("target", "one.\n\n"), ("draft", "two.\n\n")]
    assert engines[1].log[0].text == "one.\n\n"
    capped = target("one two.\n\none.\n\ntwo.\n\n</think>answer<eos>"), draft("one two.\n\none.\n\ntwo.\n\n</think>a")
    trace = relay(exact(whole_steps=True, step_tokens=3), *capped)
    assert [(str(s.role), s.ended_by.name) for s in trace.path()][:3] == [
        ("target", "cap"),
        ("target", "step"),
        ("draft", "step"),
    ]
    assert "one two" not in [c.text for c in capped[1].log]


def test_a_cap_on_both_sides_goes_on_with_drafts_where_whole_steps_are_not_asked_for():
    text = "one two three one two three</think>answer<eos>"
    trace = relay(exact(step_tokens=3), target(text), draft(text))
    assert {(str(s.role), s.ended_by.name) for s in list(trace.path())[:2]} == {("draft", "cap")}
    assert trace.text == text.removesuffix(EOS)


def test_the_budget_closes_thinking_inside_an_accepted_draft_and_what_was_built_on_it_goes():
    endless = lambda text, seed: "answer<eos>" if "</think>" in text else "one.\n\n" * 9  # noqa: E731
    engines = target(endless), draft(endless)
    trace = relay(exact(), *engines, budget=Budget(9, 3))
    assert [(str(s.role), s.text) for s in trace.path()] == [
        *[("draft", "one.\n\n")] * 3,
        ("inserted", "</think>"),
        ("draft", "answer"),
    ]
    cut = relay(exact(), target(endless), draft(endless), budget=Budget(8, 3))
    assert [s.ended_by.name for s in cut.path()][2:4] == ["budget", "end_of_thinking"]
    assert cut.finish == "end_of_text"


def test_an_empty_step_is_verified_like_another():
    text = "\n\none.\n\n</think>answer<eos>"
    trace = relay(exact(), target(text), draft(text))
    assert kept(trace)[0] == ("draft", "\n\n")
    assert trace.text == text.removesuffix(EOS)


def judge(same=lambda request: True, delay=0.0):
    return ScriptedScorer(lambda request: float(same(request)), delay=delay)


def test_equal_texts_need_no_judge_and_others_are_compared_with_the_targets_own():
    seen = []
    close = ScriptedScorer(lambda r: seen.append((r.step, r.against)) or 1.0)
    trace = relay(Lookahead(whole_steps=False), target(), draft(follow("two", "Wait two")), scorers={"judge": close})
    assert ("Wait two.\n\n", "two.\n\n") in seen
    assert all(a.strip() != b.strip() for a, b in seen)
    assert {s.role for s in trace.path()} == {"draft"}


def test_a_slow_judge_is_waited_for_while_the_steps_below_go_on():
    slow = judge(delay=6.0)
    engines = target(), draft(follow("one", "Wait one"))
    trace = relay(Lookahead(whole_steps=False), *engines, scorers={"judge": slow})
    assert kept(trace)[0] == ("draft", "Wait one.\n\n")
    below = [s for s in trace.segments if s.role == "target" and s.parent == 1]
    assert below[0].last < trace.decisions[0].seconds, "the target's step below was finished by then"
    assert trace.decisions[0].scorer == "judge"


def test_judges_and_targets_of_a_rejected_branch_are_cancelled():
    def value(request):
        return float("bad" not in request.step)

    class Judge(ScriptedScorer):
        async def score(self, requests):
            self.delay = 0.3 if "bad" in requests[0].step else 50.0
            return await super().score(requests)

    slow = Judge(value)
    script = lambda text, seed: ["bad.\n\n", "Wait.\n\n", "Wait,.\n\n"][min(2, text.count("\n\n"))]  # noqa: E731
    engines = target(delay=1.0), draft(script)
    trace = relay(Lookahead(whole_steps=False, depth=2), *engines, scorers={"judge": slow}, budget=Budget(7, 1))
    assert kept(trace)[0] == ("target", "one.\n\n")
    assert trace.decisions[0].seconds == pytest.approx(2.3)
    assert [(c.written, c.cancelled) for c in slow.log][:2] == [("bad.\n\n", False), ("Wait.\n\n", True)]
    assert (trace.helpers[1].outcome, trace.helpers[1].done) == ("cancelled", pytest.approx(2.3))
    assert next(c.text for c in engines[0].log if c.cancelled) == "bad.\n\nWait.\n\n"


def by_branch(texts):
    """A draft whose n-th call on an empty text writes the n-th text, and then follows."""
    left = list(texts)
    return lambda text, seed: left.pop(0) if not text else follow()(text, seed)


def test_branches_of_a_step_differ_by_their_seeds_and_the_first_accepted_stands():
    engines = target(), draft(by_branch(["bad.\n\n", "Wait one.\n\n", "one one.\n\n"]))
    verdict = judge(lambda r: "bad" not in r.step)
    trace = relay(Lookahead(width=3, depth=1, whole_steps=False), *engines, scorers={"judge": verdict})
    first = [s for s in trace.segments if s.role == "draft" and s.parent == 0]
    assert [s.branch for s in first] == [0, 1, 2]
    assert len({s.seed for s in first}) == 3
    assert kept(trace)[0] == ("draft", "Wait one.\n\n")
    assert [d.outcome for d in trace.decisions][:2] == [False, True]


def test_branches_can_be_copies_as_published():
    drawn = lambda text, seed: ("bad.\n\n", "Wait one.\n\n")[seed % 2] if not text else follow()(text, seed)  # noqa: E731
    router = Lookahead(width=4, depth=1, whole_steps=False, own_seeds=False)
    trace = relay(router, target(), draft(drawn), scorers={"judge": judge(lambda r: False)})
    first = [s for s in trace.segments if s.role == "draft" and s.parent == 0]
    assert len(first) == 4
    assert len({(s.seed, s.text) for s in first}) == 1


def test_a_branch_before_one_that_is_judged_sooner_is_still_the_first():
    class Uneven(ScriptedScorer):
        async def score(self, requests):
            self.delay = 9.0 if "Wait" in requests[0].step else 0.5
            return await super().score(requests)

    engines = target(), draft(by_branch(["Wait one.\n\n", "one one.\n\n"]))
    trace = relay(Lookahead(width=2, depth=1, whole_steps=False), *engines, scorers={"judge": Uneven(lambda r: 1.0)})
    assert kept(trace)[0] == ("draft", "Wait one.\n\n")


def test_the_closest_accepted_branch_stands_where_that_is_chosen():
    likeness = ScriptedScorer(lambda r: {"Wait one.\n\n": 0.96, "one one.\n\n": 0.99}.get(r.step, 0.0))
    script = by_branch(["Wait one.\n\n", "one one.\n\n", "bad.\n\n"])
    router = Lookahead(verifier="embedding", choose="closest", width=3, depth=1, whole_steps=False)
    trace = relay(router, target(), draft(script), scorers={"embedding": likeness})
    assert kept(trace)[0] == ("draft", "one one.\n\n")


def test_the_target_can_mark_the_drafts_step_instead():
    def script(text, seed):
        return ("4" if "bad" in text else "8") if text.endswith("score is: ") else follow()(text, seed)

    engines = target(script), draft(follow("two", "bad"))
    trace = relay(exact(verifier="target"), *engines)
    assert kept(trace)[:2] == [("draft", "one.\n\n"), ("target", "two.\n\n")]
    assert {s.kind for s in trace.segments if s.role == "target"} == {Kind.WRITE, Kind.PROBE}
    assert [d.score for d in trace.decisions][:2] == [8.0, 4.0]


def test_the_targets_mark_can_be_asked_for_in_other_words():
    asked = "[ask:Is one. right?]mark: "
    engines = target(lambda text, seed: "9" if text.endswith(asked) else follow()(text, seed)), draft()
    router = exact(verifier="target", prompt="Is {step} right?", prefill="mark: ")
    assert relay(router, *engines, budget=Budget(2, 0)).decisions[0].score == 9.0


def test_random_rejects_with_its_probability_whatever_was_written_and_repeats_with_the_seed():
    def accepts(seed, p):
        nothing = lambda text, seed: "bad.\n\n" if text.count("\n\n") < 12 else "answer<eos>"  # noqa: E731
        steps = lambda text, seed: "good.\n\n" if text.count("\n\n") < 12 else "answer<eos>"  # noqa: E731
        trace = relay(exact(verifier="random", threshold=p), target(steps), draft(nothing), seed=seed)
        return [d.outcome for d in trace.decisions]

    outcomes = [x for seed in range(20) for x in accepts(seed, 0.6)]
    assert 0.3 < sum(outcomes) / len(outcomes) < 0.5
    assert accepts(1, 0.4) == accepts(1, 0.4)
    assert all(accepts(1, 0.0))
    assert not any(accepts(1, 1.0))


def test_a_failing_judge_is_an_error_of_the_answer():
    class Broken(ScriptedScorer):
        async def score(self, requests):
            raise BrokenError("no judge")

    with pytest.raises(BrokenError, match="no judge"):
        relay(Lookahead(whole_steps=False), target(), draft(follow("two", "bad")), scorers={"judge": Broken(float)})


def test_nothing_polls(monkeypatch):
    """Loop iterations follow the number of events, not the time that passes between them."""
    turns = 0
    once = VirtualClockLoop._run_once

    def count(loop):
        nonlocal turns
        turns += 1
        once(loop)

    monkeypatch.setattr(VirtualClockLoop, "_run_once", count)
    relay(exact(), target(delay=1.0), draft(delay=0.1))
    few, turns = turns, 0
    relay(exact(), target(delay=1000.0), draft(delay=100.0))
    assert turns == few


def test_the_optimistic_option_adds_nothing_to_what_already_runs_ahead():
    plain = relay(Lookahead(), target(), draft(follow("two", "Wait two")), scorers={"judge": judge(delay=1.0)})
    optimistic = relay(
        Lookahead(), target(), draft(follow("two", "Wait two")), scorers={"judge": judge(delay=1.0)}, optimistic=True
    )
    assert [(s.role, s.text) for s in optimistic.segments] == [(s.role, s.text) for s in plain.segments]


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"depth": -1}, "lookahead.depth: -1 is too little; use 0 or more"),
        ({"width": 0}, "lookahead.width: 0 is too little"),
        ({"choose": "best"}, "lookahead.choose: 'best' is unknown"),
        ({"verifier": "mine"}, "lookahead.threshold: missing, and 'mine' has no published one"),
        ({"verifier": "random", "threshold": 7}, "lookahead.threshold: 7 is out of range"),
    ],
)
def test_a_wrong_knob_is_refused_by_name(knobs, message):
    with pytest.raises(ValueError, match=message):
        Lookahead(**knobs)


def test_only_verifiers_that_are_scorers_are_asked_of_the_pair():
    assert Lookahead().scorers == ("judge",)
    assert Lookahead(verifier="mine", threshold=0.5).scorers == ("mine",)
    assert [Lookahead(verifier=v).scorers for v in ("target", "random", "exact")] == [(), (), ()]


# Wall time against the theory: a step of the target takes 1, one of the draft c, verifiers nothing.


def synchronous_speedup(a: float, c: float, k: int) -> float:
    return (1 - a**k) / ((1 - a) * (1 - c + c * k))


def asynchronous_speedup(a: float, c: float, k: int) -> float:
    if k >= math.ceil(1 / c):
        return 1 / (c + (1 - c) * (1 - a))
    return (1 - a**k) / ((1 - a) + c * (a - a ** (k + 1) - k * (1 - a) * a**k))


def synchronous_seconds(accepts: list[bool], c: float, depth: int) -> float:
    """Event simulation of the rounds: all drafts, then all of the target's steps at once."""
    seconds, at = 0.0, 0
    while at < len(accepts):
        run = 0
        while run < depth and at + run < len(accepts) and accepts[at + run]:
            run += 1
        seconds += depth * c + 1
        at += run + 1
    return seconds


def asynchronous_seconds(accepts: list[bool], c: float, depth: int) -> float:
    """Event simulation of the sliding window, by the times at which drafts and the target's steps end."""
    clock, at, n = 0.0, 0, len(accepts)
    if not depth:
        return float(n)
    while at < n:
        # One chain of drafts from a fresh root: step i of it may be drafted once step i - depth is committed.
        drafted: list[float] = []
        committed = [clock]
        ended = clock
        for i in range(n - at):
            begin = max(drafted[i - 1] if i else clock, committed[i - depth + 1] if i >= depth else clock)
            drafted.append(begin + c)
            own = (drafted[i - 1] if i else clock) + 1
            ended = max(own, committed[i])
            in_time = drafted[i] <= ended
            committed.append(ended)
            if not (accepts[at + i] and in_time):
                break
        clock, at = ended, at + i + 1
    return clock


def acceptances(a: float, n: int, salt: str = "") -> list[bool]:
    draws = [hashlib.blake2b(f"{salt}{i}".encode(), digest_size=4).digest() for i in range(n)]
    return [int.from_bytes(d, "big") / 2**32 < a for d in draws]


def measured_seconds(accepts: list[bool], c: float, router: Lookahead) -> float:
    """Wall time of the router where the draft's i-th step is right if `accepts[i]`; steps of two tokens."""

    def text(wrong):
        def script(written, seed):
            at = written.count("\n\n")
            if at >= len(accepts):
                return "answer<eos>"
            return "bad.\n\n" if wrong and not accepts[at] else "good.\n\n"

        return script

    engines = ScriptedEngine("target", text(False), delay=0.5), ScriptedEngine("draft", text(True), delay=c / 2)
    trace = relay(router, *engines, thinking=False, budget=Budget(10 * len(accepts), 0))
    assert trace.text == "good.\n\n" * len(accepts) + "answer"
    return trace.seconds


GRID = [(a, c, k) for a in (0.43, 0.8) for c in (0.1, 0.2, 0.3) for k in (1, 2, 4, 6, 11)] + [(0.63, 0.2, 6)]


@pytest.mark.parametrize(("a", "c", "k"), GRID)
@pytest.mark.parametrize("asynchronous", [True, False])
def test_wall_time_is_that_of_the_event_simulation(a, c, k, asynchronous):
    accepts = acceptances(a, 60)
    simulate = asynchronous_seconds if asynchronous else synchronous_seconds
    # A hair below c, as a draft that ends with the target's step is in time in theory, and a race in floats.
    seconds = measured_seconds(accepts, c * 0.999, exact(depth=k - 1, asynchronous=asynchronous))
    assert seconds == pytest.approx(simulate(accepts, c * 0.999, k - 1), rel=0.1)


def test_the_event_simulation_agrees_with_the_closed_forms():
    worst = 0.0
    for a, c, k in GRID:
        accepts = acceptances(a, 10_000, salt="long")
        synchronous = 10_000 / synchronous_seconds(accepts, c, k - 1)
        assert synchronous == pytest.approx(synchronous_speedup(a, c, k), rel=0.05)
        asynchronous = 10_000 / asynchronous_seconds(accepts, c * 0.999, k - 1)
        expected = asynchronous_speedup(a, c, k)
        if k >= math.ceil(1 / c) or k == 1:
            assert asynchronous == pytest.approx(expected, rel=0.05)
        else:
            worst = max(worst, abs(asynchronous / expected - 1))
            print(f"a={a} c={c} k={k}: simulated {asynchronous:.3f}, closed form {expected:.3f}")
            assert asynchronous < 1.05 * expected
    assert worst < 0.2, "below 1/c the closed form is a model of stages, and hopeful"
