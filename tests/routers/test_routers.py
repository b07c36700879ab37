"""The shipped routers on scripted engines: exact calls and tokens."""

from __future__ import annotations

from pathlib import Path

import pytest

from baton import routers
from baton.generation import Budget, Options, generate
from baton.generation import knobs as knobs_of
from baton.routers.draft import Draft
from baton.routers.random import Random
from baton.routers.relaygen import RelayGen
from baton.routers.target import Target
from baton.trace import Role, Trace
from scripted import WORDS, ScriptedEngine, ScriptedScorer, pair, vocabulary
from virtual_clock import run

TEXT = "one two. Wait, one good. two step.\n\nWait, three 3.5 one.</think>answer one. two.<eos>"


def answer(router, target=TEXT, draft=TEXT, **options) -> tuple[Trace, ScriptedEngine, ScriptedEngine]:
    engines = [
        script if isinstance(script, ScriptedEngine) else ScriptedEngine(role, script)
        for role, script in (("target", target), ("draft", draft))
    ]
    trace = run(generate(pair(*engines), router, "q", options=Options(**options)))
    return trace, *engines


def test_target_and_draft_write_everything_in_one_call_a_phase():
    for router, role in ((Target(), "target"), (Draft(), "draft")):
        trace, target, draft = answer(router)
        assert [s.role for s in trace.segments] == [role, role]
        assert trace.text == TEXT.removesuffix("<eos>")
        assert len(target.log) + len(draft.log) == 2
        assert sum(s.overshoot for s in trace.segments) == 0


def test_relaygen_hands_over_at_a_cue_and_back_at_the_sentence_end():
    trace, target, _ = answer(RelayGen(cues=["Wait,"]))
    assert [(s.role, s.text) for s in trace.path()] == [
        ("target", "one two. Wait,"),
        ("draft", " one good."),
        ("target", " two step.\n\nWait,"),
        ("draft", " three 3.5 one."),
        ("target", "</think>"),
        ("draft", "answer one. two."),
    ]
    assert trace.text == TEXT.removesuffix("<eos>")
    assert [entry.sampled for entry in target.log] == [words_in("one two. Wait,"), words_in(" two step.\n\nWait,"), 1]


def words_in(text: str) -> int:
    return len(WORDS.encode(text))


def test_relaygen_keeps_a_paragraph_break_that_the_draft_writes():
    text = "Wait, one.\n\ntwo.</think>answer<eos>"
    trace, *_ = answer(RelayGen(cues=["Wait,"]), text, text)
    assert [s.text for s in trace.path()][1] == " one.\n\n"


def test_relaygen_never_hands_over_inside_a_word():
    text = "one Waiting two awaits. Wait one.</think>answer<eos>"
    trace, *_ = answer(RelayGen(cues=["Wait"]), text, text)
    assert next(trace.path()).text == "one Waiting two awaits. Wait"


def test_relaygen_can_leave_the_answer_to_the_target():
    trace, *_ = answer(RelayGen(cues=["Wait,"], answer="target"))
    assert list(trace.path())[-1].role is Role.TARGET


ENDS = {
    "end of thinking": (
        "one two. Wait, two</think>answer<eos>",
        [("target", "one two. Wait,"), ("draft", " two</think>"), ("draft", "answer")],
    ),
    "end of text": ("one two. Wait, two<eos>", [("target", "one two. Wait,"), ("draft", " two")]),
    "nothing but a sentence end": (
        "one Wait,.\n\n two.</think>answer<eos>",
        [("target", "one Wait,"), ("draft", ".\n\n"), ("target", " two.</think>"), ("draft", "answer")],
    ),
}


@pytest.mark.parametrize("what", ENDS)
def test_relaygen_whose_draft_writes_an_end(what):
    text, path = ENDS[what]
    trace, target, draft = answer(RelayGen(cues=["Wait,"]), text, text)
    assert [(s.role, s.text) for s in trace.path()] == path
    assert [c.written for c in (*target.log, *draft.log)] == [
        *(t for role, t in path if role == "target"),
        *(t.replace("answer", "answer<eos>") for role, t in path[:-1] if role == "draft"),
        path[-1][1] + "<eos>",
    ]
    assert all(s.kept for s in trace.segments)
    assert trace.finish == "end_of_text"


def test_relaygen_whose_budget_ends_inside_the_drafts_sentence_has_the_draft_answer():
    rest = "one Wait, two one two one two."
    text = lambda written, seed: "answer<eos>" if "</think>" in written else rest[len(written) :]  # noqa: E731
    trace, *_ = answer(RelayGen(cues=["Wait,"]), text, text, budget=Budget(10, 4))
    assert [(s.role, s.text, s.ended_by.name) for s in trace.path()] == [
        ("target", "one Wait,", "cues"),
        ("draft", " two", "budget"),
        ("inserted", "</think>", "end_of_thinking"),
        ("draft", "answer", "end_of_text"),
    ]


def test_relaygen_lets_the_draft_answer_after_thinking_was_closed_by_the_budget():
    endless = lambda text, seed: "answer.<eos>" if "</think>" in text else "one " * 50  # noqa: E731
    trace, *_ = answer(RelayGen(cues=["Wait,"]), endless, endless, budget=Budget(20, 5))
    assert [s.role for s in trace.path()] == ["target", "inserted", "draft"]
    assert trace.finish == "end_of_text"


def test_random_switches_only_at_sentence_ends_and_holds_its_share_over_many_answers():
    sentences = "one two three. " * 40 + "</think>answer<eos>"
    shares = []
    for seed in range(30):
        trace, *_ = answer(Random(share=0.3), sentences, sentences, seed=seed)
        assert all(s.text.endswith(".") for s in list(trace.path())[:-2])
        shares.append(trace.target_share)
    assert 0.25 < sum(shares) / len(shares) < 0.35
    assert len(set(shares)) > 10


def test_random_at_the_ends_of_its_range_is_one_model():
    assert answer(Random(share=0))[0].target_share == 0
    assert answer(Random(share=1))[0].target_share == 1


def test_random_repeats_with_its_seed():
    first, again, other = (answer(Random(share=0.5), seed=s)[0] for s in (1, 1, 2))
    assert [s.role for s in first.path()] == [s.role for s in again.path()]
    assert [s.role for s in first.path()] != [s.role for s in other.path()]


def test_the_router_of_the_documentation_is_one_file_and_an_import_away(tmp_path, monkeypatch):
    page = (Path(__file__).parents[2] / "docs" / "add-a-router.md").read_text().split("\n## ")[0]
    assert len(page.splitlines()) < 40
    (tmp_path / "my_routers.py").write_text(page.split("```python\n")[1].split("```")[0])
    monkeypatch.syspath_prepend(tmp_path)
    trace, *_ = answer(routers.create("my_routers:Turns", {"steps": 1}))
    assert trace.text == TEXT.removesuffix("<eos>")
    assert trace.knobs == {"steps": 1}
    assert [s.role for s in trace.path()][:2] == ["target", "draft"]


def test_the_router_of_the_documentation_that_judges_keeps_the_better_step_or_has_the_target_write(
    tmp_path, monkeypatch
):
    page = (Path(__file__).parents[2] / "docs" / "add-a-router.md").read_text().split("\n## ")[1]
    (tmp_path / "judging_routers.py").write_text(page.split("```python\n")[1].split("```")[0])
    monkeypatch.syspath_prepend(tmp_path)
    judged = routers.create("judging_routers:Judged", {"threshold": 0.5, "scorer": "scripted"})
    with pytest.raises(ValueError, match="needs the scorer 'scripted', which pair 'p' does not have"):
        routers.check_scorers(judged, (), "p")
    text = "one two.\n\nthree one.\n\ntwo</think>answer<eos>"
    engines = [ScriptedEngine(role, text) for role in ("target", "draft")]
    # Of each two versions the second is the better one; those of the second step are both too bad.
    values = iter([0.3, 0.9, 0.1, 0.2])
    scorer = ScriptedScorer(lambda request: next(values, 0.8))
    trace = run(generate(pair(*engines, scripted=scorer), judged, "q", options=Options()))
    assert trace.text == text.removesuffix("<eos>")
    assert [s.role for s in trace.path()][:2] == ["draft", "target"]
    assert [d.outcome for d in trace.decisions][:2] == [True, False]
    assert [d.score for d in trace.decisions][:2] == [0.9, 0.2]


@pytest.mark.parametrize(
    ("name", "knobs", "message"),
    [
        ("relygen", {}, "'relygen' is unknown \\(did you mean 'relaygen'\\?\\); use one of "),
        ("random", {}, "random.share: missing"),
        ("random", {"shar": 0.5}, "random.shar: unknown knob \\(did you mean 'share'\\?\\)"),
        ("random", {"share": 1.5}, "random.share: 1.5 is out of range; use a number from 0 to 1"),
        ("random", {"share": "half"}, "random.share: 'half' is of the wrong kind; give a number"),
        ("random", {"share": True}, "random.share: True is of the wrong kind; give a number"),
        ("lookahead", {"depth": 2.5}, "lookahead.depth: 2.5 is of the wrong kind; give a whole number"),
        ("lookahead", {"threshold": "a"}, "lookahead.threshold: 'a' is of the wrong kind; give a number or null"),
        ("relaygen", {"cues": "Wait"}, "relaygen.cues: 'Wait' is of the wrong kind; give a list, each a text"),
        ("relaygen", {"profile": 3}, "relaygen.profile: 3 is of the wrong kind; give a path or null"),
        ("relaygen-compat", {"cues": 3}, "relaygen-compat.cues: 3 is of the wrong kind; give a list, .* or a text"),
        ("confspec", {"yes": [True]}, r"confspec.yes: \[True\] is of the wrong kind; give a list, each a text"),
        (
            "bail-out",
            {"router": {"router": "rsd", "knobs": {"n": 2.0}}},
            "rsd.n: 2.0 is of the wrong kind; give a whole",
        ),
        ("relaygen", {}, "relaygen.profile: missing; make one with `baton calibrate cues --pair PAIR`"),
        (
            "relaygen",
            {"cues": ["So"], "answer": "judge"},
            "relaygen.answer: 'judge' is unknown; use one of draft, target",
        ),
        ("relaygen", {"profile": "nowhere.json"}, "nowhere.json: there is no such file"),
        ("nowhere:Router", {}, "'nowhere:Router' cannot be imported"),
        ("os.path:join", {}, "'os.path:join' is no router"),
    ],
)
def test_a_wrong_router_or_knob_is_one_readable_line(name, knobs, message):
    with pytest.raises(ValueError, match=message) as error:
        routers.create(name, knobs)
    assert "\n" not in str(error.value)


def test_a_knob_that_came_later_leaves_earlier_runs_as_they_are():
    plain, copies = (routers.create("lookahead", {"own_seeds": own}) for own in (True, False))
    assert "own_seeds" not in knobs_of(plain)
    assert knobs_of(copies) == {**knobs_of(plain), "own_seeds": False}


def test_a_router_that_passes_ids_is_refused_on_a_pair_of_two_vocabularies():
    class Copies(Target):
        name = "copies"
        needs_one_vocabulary = True

    other = ScriptedEngine("draft", TEXT, vocabulary=vocabulary("one", shift=5))
    with pytest.raises(ValueError, match="'copies' needs one vocabulary, and the models of pair 'scripted'"):
        routers.check(Copies(), pair(ScriptedEngine("target", TEXT), other))
    routers.check(Copies(), pair(ScriptedEngine("target", TEXT), ScriptedEngine("draft", TEXT)))


def test_a_profile_knob_starts_from_the_recipes_folder_and_falls_back_on_the_pairs(tmp_path):
    from baton.calibrate.profile import CueProfile

    CueProfile(cues=["So,"]).save(tmp_path / "a" / "cues.json")
    CueProfile(cues=["Now,"]).save(tmp_path / "b.json")
    assert routers.create("relaygen", {"profile": "cues.json"}, tmp_path / "a").cues == ["So,"]
    assert routers.create("relaygen", {}, tmp_path, {"cues": tmp_path / "b.json"}).cues == ["Now,"]
    assert routers.create("relaygen", {"cues": ["Hmm,"]}, tmp_path, {"cues": tmp_path / "b.json"}).cues == ["Hmm,"]
