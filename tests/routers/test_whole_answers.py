"""query-router, cascade, majority, best-of-n and beam: exact calls, what is kept and what is dropped."""

from __future__ import annotations

import pytest

from baton import routers
from baton.boundary import MARGIN, TOP_PROB
from baton.generation import Budget, Options, generate
from baton.routers.beam import Beam
from baton.routers.best_of_n import BestOfN
from baton.routers.cascade import Cascade
from baton.routers.majority import Majority
from baton.routers.query_router import QueryRouter
from baton.trace import Role
from relay import relay
from scripted import WORDS, BrokenError, ScriptedEngine, ScriptedScorer, ScriptedSession, pair, vocabulary
from virtual_clock import run

DRAFT = "one two.\n\n</think>bad<eos>"
TARGET = "one three.\n\n</think>good<eos>"


def margin(value: float):
    return lambda text, token: {MARGIN: value, TOP_PROB: value}


def drawn(*answers: str):
    """A model whose n-th alternative is the n-th answer; all segments of an alternative have one seed."""
    chosen: dict[int, str] = {}
    return lambda written, seed: chosen.setdefault(seed, answers[len(chosen) % len(answers)])[len(written) :]


# query-router


def test_query_router_gives_a_question_that_the_draft_is_sure_of_to_the_draft_which_goes_on():
    got = relay(QueryRouter(threshold=0.5, tokens=2), TARGET, DRAFT, draft_says=margin(0.9))
    assert got.calls == [
        ("draft", "", "one "),
        ("draft", "one ", "two.\n\n</think>"),
        ("draft", "one two.\n\n</think>", "bad<eos>"),
    ]
    assert got.dropped == []
    decision = got.trace.decisions[0]
    assert (decision.score, decision.threshold, decision.outcome) == (pytest.approx(0.9), 0.5, True)


def test_query_router_gives_any_other_to_the_target_and_counts_the_glimpse():
    got = relay(QueryRouter(threshold=0.5, tokens=2, signal="top_prob"), TARGET, DRAFT, draft_says=margin(0.4))
    assert [c[0] for c in got.calls] == ["draft", "target", "target"]
    assert got.calls[1][1] == ""
    assert got.dropped == [("draft", "one ")]
    assert got.trace.target_share == 1.0


@pytest.mark.parametrize(
    ("reply", "confidence", "role"),
    [
        ({"Yes": 0.6, "no": 0.2}, 0.75, "draft"),
        ({"Yes": 0.1, " yes": 0.1, "no": 0.6}, 0.25, "target"),
        ({"one": 1.0}, 0.0, "target"),
    ],
)
def test_query_router_can_ask_the_draft(reply, confidence, role):
    words = vocabulary("Yes", " yes", "no", "one", "two", "three", "good", "bad")
    script = lambda written, seed: "Yes" if "[ask:" in written else DRAFT[len(written) :]  # noqa: E731
    draft = ScriptedEngine("draft", script, vocabulary=words, top=lambda text: list(reply.items()))
    got = relay(QueryRouter(threshold=0.5, ask="Can you?"), TARGET, draft, vocabulary=words)
    assert got.calls[0] == ("draft", "[ask:Can you?]", "Yes")
    assert [c[:2] for c in got.calls[1:2]] == [(role, "")]
    assert got.trace.decisions[0].score == pytest.approx(confidence)
    assert got.trace.decisions[0].helper_tokens > 0


def test_query_router_can_use_a_scorer():
    got = relay(QueryRouter(tokens=2, signal="easy", threshold=3), TARGET, DRAFT, scorers={"easy": lambda r: 5.0})
    assert got.calls[1] == ("score scorer", "", "one ")
    assert got.trace.target_share == 0
    assert QueryRouter(signal="easy").scorers == ("easy",)
    assert QueryRouter().scorers == QueryRouter(signal="easy", ask="?").scorers == ()


def test_query_router_whose_glimpse_is_the_whole_answer_needs_no_more():
    got = relay(QueryRouter(threshold=0.5), TARGET, "</think>bad<eos>", draft_says=margin(0.9))
    assert [c[2] for c in got.calls] == ["</think>", "bad<eos>"]


@pytest.mark.parametrize(("threshold", "role"), [(0.5, "draft"), (0.95, "target")])
def test_query_router_whose_glimpse_spends_the_thinkings_budget(threshold, role):
    endless = lambda text, seed: "good<eos>" if "</think>" in text else "one " * 40  # noqa: E731
    got = relay(QueryRouter(threshold=threshold), endless, draft_says=margin(0.9), budget=Budget(8, 3))
    assert got.path == [(role, "one one one"), ("inserted", "</think>"), (role, "good")]
    assert got.calls == [
        ("draft", "", "one one one"),
        *([("target", "", "one one one")] if role == "target" else []),
        (role, "one one one</think>", "good<eos>"),
    ]
    assert got.dropped == ([("draft", "one one one")] if role == "target" else [])


@pytest.mark.parametrize("router", [QueryRouter(tokens=2, signal="prm"), Cascade(signal="prm")])
def test_a_deadline_cancels_a_score_that_a_whole_answer_waits_for(router):
    late = ScriptedScorer(lambda r: 1.0, delay=9.0)
    engines = pair(ScriptedEngine("target", TARGET), ScriptedEngine("draft", DRAFT), prm=late)
    trace = run(generate(engines, router, "q", options=Options(timeout=2.0)))
    assert [c.cancelled for c in late.log] == [True]
    assert [h.outcome for h in trace.helpers] == ["cancelled"]
    assert (trace.text, trace.finish) == ("", "timeout"), "nothing was decided, so nothing was shown"


# cascade


def test_cascade_keeps_an_answer_that_the_draft_is_sure_of():
    got = relay(Cascade(threshold=0.8), TARGET, DRAFT, draft_says=margin(0.9))
    assert got.calls == [("draft", "", "one two.\n\n</think>"), ("draft", "one two.\n\n</think>", "bad<eos>")]
    assert got.trace.text == DRAFT.removesuffix("<eos>")


def test_cascade_lets_the_target_answer_anew_and_counts_the_drafts_answer():
    got = relay(Cascade(threshold=0.8), TARGET, DRAFT, draft_says=margin(0.7))
    assert [c[:2] for c in got.calls[2:]] == [("target", ""), ("target", "one three.\n\n</think>")]
    assert got.trace.text == TARGET.removesuffix("<eos>")
    assert got.dropped == [("draft", "one two.\n\n</think>"), ("draft", "bad")]
    assert sum(s.sampled for s in got.trace.segments if not s.kept) == 7


def test_cascade_judges_an_answer_that_ran_out_of_budget_too():
    endless = lambda written, seed: "one " * 99  # noqa: E731
    got = relay(Cascade(), TARGET, endless, draft_says=margin(0.9), budget=Budget(20, 5))
    assert got.trace.finish == "length"
    assert got.trace.text.count("</think>") == 1
    assert (got.trace.tokens("draft"), got.trace.tokens()) == (20, 20)


def test_cascade_can_use_a_scorer_of_the_answers_end():
    got = relay(Cascade(signal="prm"), TARGET, DRAFT, scorers={"prm": lambda r: 0.1})
    assert got.calls[2] == ("score scorer", "one two.\n\n</think>", "bad")
    assert got.trace.target_share == 1.0


# majority


ANSWERS = [f"one.</think>\\boxed{{{n}}}<eos>" for n in ("1", "2", "2", "3")]


def test_majority_keeps_the_first_answer_with_the_commonest_result():
    got = relay(Majority(n=4), TARGET, drawn(*ANSWERS))
    assert got.trace.text == "one.</think>\\boxed{2}"
    assert [s.branch for s in got.trace.path()] == [1, 0]
    assert len({s.seed for s in got.trace.segments if s.parent == 0}) == 4
    assert len(got.dropped) == 6
    assert {c[0] for c in got.calls} == {"draft"}


@pytest.mark.parametrize(
    ("answers", "kept"),
    [
        (["</think>\\boxed{1}<eos>", "</think>\\boxed{2}<eos>"], "1"),
        (["</think>no<eos>", "</think>nor<eos>", "</think>\\boxed{2}<eos>"], "2"),
        (["</think>\\boxed{ 2 }<eos>", "</think>\\boxed{1}<eos>", "</think>\\boxed{2}<eos>"], "2"),
    ],
)
def test_ties_go_to_the_first_and_answers_without_a_result_do_not_vote(answers, kept):
    text = relay(Majority(n=len(answers)), TARGET, drawn(*answers)).trace.text
    assert text.replace(" ", "").endswith(f"\\boxed{{{kept}}}")


def test_majority_without_any_result_keeps_the_first_answer():
    assert relay(Majority(n=2), TARGET, drawn("</think>no<eos>", "</think>nor<eos>")).trace.text == "</think>no"


def test_majority_counts_what_the_user_extracts():
    router = Majority(n=3, extract=lambda text: text.split()[0])
    got = relay(router, TARGET, drawn("</think>one bad<eos>", "</think>two bad<eos>", "</think>two good<eos>"))
    assert got.trace.text == "</think>two bad"


def test_results_in_the_thinking_do_not_vote():
    got = relay(Majority(n=2), TARGET, drawn("\\boxed{9}</think>no<eos>", "one</think>\\boxed{2}<eos>"))
    assert got.trace.text == "one</think>\\boxed{2}"


def test_majority_of_the_target_takes_as_long_as_its_longest_answer():
    answers = ["one</think>\\boxed{1}<eos>", "one two three</think>\\boxed{2}<eos>"]
    target = ScriptedEngine("target", drawn(*answers), delay=1.0)
    got = relay(Majority(n=2, role="target"), target, DRAFT)
    assert got.trace.target_share == 1.0
    assert got.trace.seconds == max(len(WORDS.encode(a)) for a in answers)


def test_a_timeout_cancels_every_alternative():
    draft = ScriptedEngine("draft", drawn(*ANSWERS), delay=1.0)
    got = relay(Majority(n=4), TARGET, draft, timeout=2.5)
    assert got.trace.finish == "timeout"
    assert got.trace.text == ""
    assert [c.cancelled for c in got.log] == [True] * 4


def test_an_engine_that_fails_in_one_alternative_fails_the_answer_and_stops_the_others():
    draft = ScriptedEngine("draft", drawn(*ANSWERS), delay=1.0)
    draft.fail = lambda text: BrokenError("gone") if text else None
    for router in (Majority(n=4), BestOfN(n=4), Beam()):
        scorer = ScriptedScorer(lambda r: 0.0)
        with pytest.raises(BrokenError, match="gone"):
            run(generate(pair(ScriptedEngine("target", TARGET), draft, prm=scorer), router, "q", options=Options()))
        assert draft.running == 0


# best-of-n


STEPS = ["one.\n\ntwo.\n\n</think>good<eos>", "bad.\n\nthree.\n\n</think>answer<eos>"]
VALUES = {
    "one.\n\n": 0.9,
    "two.\n\n": 0.2,
    "</think>": 0.8,
    "good": 0.5,
    "bad.\n\n": 0.3,
    "three.\n\n": 0.3,
    "answer": 0.7,
}


def value(request) -> float:
    return VALUES[request.step]


@pytest.mark.parametrize(
    ("score", "kept"), [("min", STEPS[1]), ("mean", STEPS[0]), ("last", STEPS[1]), ("outcome", STEPS[1])]
)
def test_best_of_n_keeps_the_answer_with_the_best_score(score, kept):
    got = relay(BestOfN(n=2, score=score), TARGET, drawn(*STEPS), scorers={"prm": value})
    assert got.trace.text == kept.removesuffix("<eos>")
    assert got.trace.finish == "end_of_text"
    assert len(got.trace.helpers) == 2, "one call scores all steps of an answer"


def test_best_of_n_scores_each_step_with_what_stands_before_it():
    got = relay(BestOfN(n=1), TARGET, STEPS[0], scorers={"prm": value})
    assert [c for c in got.calls if c[0] == "score scorer"] == [
        ("score scorer", "", "one.\n\n"),
        ("score scorer", "one.\n\n", "two.\n\n"),
        ("score scorer", "one.\n\ntwo.\n\n", "</think>"),
        ("score scorer", "one.\n\ntwo.\n\n</think>", "good"),
    ]


def test_best_of_n_scores_an_answer_while_others_are_being_written():
    draft = ScriptedEngine("draft", drawn("one.</think>good<eos>", "one.\n\n" * 3 + "</think>good<eos>"), delay=1.0)
    got = relay(BestOfN(n=2), TARGET, draft, scorers={"prm": lambda r: 0.5})
    first = got.trace.helpers[0]
    assert first.submitted < got.trace.seconds
    assert got.trace.text == "one.</think>good", "the first of two alike"


def test_inserted_text_and_empty_steps_are_not_scored():
    endless = lambda written, seed: "one.\n\n" * 50  # noqa: E731
    got = relay(BestOfN(n=1), TARGET, endless, scorers={"prm": lambda r: 0.5}, budget=Budget(20, 6))
    assert {c[2] for c in got.calls if c[0] == "score scorer"} == {"one.\n\n"}
    assert got.trace.finish == "length"


# beam


def steps(table: dict[str, list[str]]):
    """Continuations of a text: the n-th seed met there draws the n-th."""
    met: dict[str, dict[int, str]] = {}

    def script(written: str, seed: int) -> str:
        seen = met.setdefault(written, {})
        return seen.setdefault(seed, table[written][len(seen) % len(table[written])])

    return script


TREE = {
    "": ["one.\n\n", "two.\n\n", "bad.\n\n", "three.\n\n"],
    "one.\n\n": ["</think>", "bad.\n\n"],
    "two.\n\n": ["good.\n\n", "bad.\n\n"],
    "two.\n\ngood.\n\n": ["</think>", "bad.\n\n"],
    "one.\n\n</think>": ["answer<eos>", "bad<eos>"],
    "two.\n\ngood.\n\n</think>": ["good<eos>", "bad<eos>"],
}
WORTH = {"one": 0.6, "two": 0.5, "three": 0.3, "bad": 0.1, "good": 0.9, "</think>": 0.7, "answer": 0.8}


def worth(request) -> float:
    return WORTH[request.step.strip(".\n")]


def test_beam_keeps_the_best_steps_and_expands_each():
    got = relay(Beam(width=2, expansions=2), TARGET, steps(TREE), scorers={"prm": worth})
    assert [c[1:] for c in got.calls if c[0] == "draft"] == [
        *(("", s) for s in TREE[""]),
        *(("one.\n\n", s) for s in TREE["one.\n\n"]),
        *(("two.\n\n", s) for s in TREE["two.\n\n"]),
        *(("two.\n\ngood.\n\n", s) for s in TREE["two.\n\ngood.\n\n"]),
        *(("one.\n\n</think>", s) for s in TREE["one.\n\n</think>"]),
        *(("two.\n\ngood.\n\n</think>", s) for s in TREE["two.\n\ngood.\n\n</think>"]),
    ]
    assert got.trace.text == "two.\n\ngood.\n\n</think>good"
    assert [len(h.nodes) for h in got.trace.helpers] == [4, 4, 4, 2]


def test_a_finished_beam_keeps_its_place_against_better_ones_that_are_not():
    tree = {"": ["</think>", "two.\n\n"], "</think>": ["answer<eos>"], "two.\n\n": ["bad.\n\n"]}
    tree |= {"two.\n\nbad.\n\n": ["</think>"], "two.\n\nbad.\n\n</think>": ["bad<eos>"]}
    got = relay(Beam(width=2, expansions=1), TARGET, steps(tree), scorers={"prm": worth})
    assert got.trace.text == "</think>answer"
    assert got.trace.finish == "end_of_text"


@pytest.mark.parametrize(("score", "first"), [("last", "two.\n\n"), ("min", "one.\n\n")])
def test_a_beams_score_reduces_those_of_its_steps(score, first):
    tree = {"": ["one.\n\n", "two.\n\n"], "one.\n\n": ["</think>"], "two.\n\n": ["good</think>"]}
    tree |= {"one.\n\n</think>": ["answer<eos>"], "two.\n\ngood</think>": ["good<eos>"]}
    value = lambda r: 0.95 if r.step == "good</think>" else worth(r)  # noqa: E731
    got = relay(Beam(width=2, expansions=1, score=score), TARGET, steps(tree), scorers={"prm": value})
    assert next(got.trace.path()).text == first


def test_a_beam_whose_thinking_uses_up_its_budget_answers_all_the_same():
    endless = lambda written, seed: "good<eos>" if "</think>" in written else "one.\n\n"  # noqa: E731
    got = relay(Beam(width=1, expansions=2), TARGET, endless, scorers={"prm": worth}, budget=Budget(11, 5))
    assert [(s.role, s.text) for s in got.trace.path() if s.text] == [
        *[(Role.DRAFT, "one.\n\n")] * 3,
        (Role.INSERTED, "</think>"),
        (Role.DRAFT, "good"),
    ]
    assert got.trace.finish == "end_of_text"


class CountedSession(ScriptedSession):
    forks = 0

    def fork(self):
        CountedSession.forks += 1
        return CountedSession(self.engine, self.prompt, self.cached)


class CountedEngine(ScriptedEngine):
    def open(self, prompt):
        CountedSession.forks = 0
        return CountedSession(self, len(prompt))


def test_pruned_beams_leave_their_caches_to_those_that_stay():
    text = "one.\n\n" * 20 + "</think>good<eos>"
    relay(Beam(width=2, expansions=2), TARGET, CountedEngine("draft", text), scorers={"prm": worth})
    assert CountedSession.forks <= 6


@pytest.mark.parametrize(
    ("name", "knobs", "message"),
    [
        ("query-router", {"threshold": 2}, r"query-router\.threshold: 2 is out of range; use a number from 0 to 1"),
        ("query-router", {"tokens": 0}, r"query-router\.tokens: 0 is too little; use 1 or more"),
        ("majority", {"n": 0}, r"majority\.n: 0 is too little"),
        ("majority", {"role": "judge"}, r"majority\.role: 'judge' is unknown; use one of draft, target"),
        ("majority", {"extract": "nowhere:f"}, r"majority\.extract: 'nowhere:f' cannot be imported"),
        ("majority", {"extract": "last_boxed"}, r"majority\.extract: 'last_boxed' cannot be imported"),
        ("majority", {"extract": "math:pi"}, r"majority\.extract: 'math:pi' is no function"),
        ("best-of-n", {"score": "max"}, r"best-of-n\.score: 'max' is unknown; use one of outcome, min, mean, last"),
        ("beam", {"width": 0}, r"beam\.width: 0 is too little"),
        ("beam", {"score": "outcome"}, r"beam\.score: 'outcome' is unknown; use one of min, mean, last"),
    ],
)
def test_a_wrong_knob_is_named_with_its_value_and_a_remedy(name, knobs, message):
    with pytest.raises(ValueError, match=message):
        routers.create(name, knobs)


def test_a_pair_without_the_scorer_is_refused_before_anything_runs():
    bare = pair(ScriptedEngine("target", TARGET), ScriptedEngine("draft", DRAFT))
    for router in (BestOfN(), Beam(), Cascade(signal="prm"), QueryRouter(signal="prm")):
        with pytest.raises(ValueError, match="needs the scorer 'prm'"):
            routers.check(router, bare)
