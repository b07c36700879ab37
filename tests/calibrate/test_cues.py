"""Cue calibration: regions, statistics against known truth, both rules, and resuming."""

from __future__ import annotations

import errno
import fcntl
import subprocess
import sys

import numpy as np
import pytest
from typer.testing import CliRunner

from baton.bench.folder import RunFolder
from baton.calibrate import cues
from baton.calibrate.cues import (
    CANDIDATES,
    CHINESE_CANDIDATES,
    Margins,
    Settings,
    candidates_from,
    choose,
    cue_regions,
)
from baton.calibrate.profile import CueProfile
from baton.calibrate.work import claim
from baton.cli import app
from baton.engines.base import TokenScore
from baton.generation import Options
from baton.records import read_traces
from running import running
from scripted import ScriptedEngine, pair
from virtual_clock import run


def pieces(text: str) -> list[str]:
    """One token a word, its blank in front."""
    out: list[str] = []
    for n, word in enumerate(text.split(" ")):
        out.append(word if n == 0 else f" {word}")
    return out


def regions(text: str, words: list[str]) -> list[tuple[str, str]]:
    tokens = pieces(text)
    return [(r.cue, "".join(tokens[r.start : r.end])) for r in cue_regions(tokens, words)]


def test_there_are_ninety_one_candidates_as_published():
    assert len(CANDIDATES) == len(set(CANDIDATES)) == 91


def test_a_region_is_the_rest_of_the_sentence_after_a_whole_word():
    found = regions("I know it. So we add 3.5 more. Now what? Also fine.", ["So", "now", "Now", "Also"])
    assert found == [("So", " we add 3.5 more."), ("Now", " what?"), ("Also", " fine.")]


def test_the_longest_candidate_owns_an_occurrence():
    assert regions("Wait, no. Wait here.", ["Wait", "Wait,"]) == [("Wait,", " no."), ("Wait", " here.")]


def test_a_cue_inside_another_cues_region_has_a_region_of_its_own():
    assert regions("So we now add.", ["So", "now"]) == [("So", " we now add."), ("now", " add.")]


def test_a_cue_at_the_very_end_has_no_region():
    assert regions("This is so. So", ["So", "so"]) == []


def test_chinese_cues_are_found_without_word_edges_and_their_region_ends_at_a_full_width_stop():
    found = [
        (r.cue, "".join("我们因此得到3.5。等等，再检查一下。"[r.start : r.end]))
        for r in cue_regions("我们因此得到3.5。等等，再检查一下。", CHINESE_CANDIDATES)
    ]
    assert found == [("因此", "得到3.5。"), ("等等，", "再检查一下。"), ("检查一下", "。")]


def test_candidates_come_from_a_shipped_list_or_a_file(tmp_path):
    (tmp_path / "mine.txt").write_text("Wait,\n\n因此\n", encoding="utf-8")
    assert candidates_from(str(tmp_path / "mine.txt")) == ("Wait,", "因此")
    assert candidates_from("chinese") == CHINESE_CANDIDATES
    assert len(set(candidates_from("both"))) == 91 + len(CHINESE_CANDIDATES)
    with pytest.raises(ValueError, match="candidates: 'klingon' is no file; give one, or one of english, chinese"):
        candidates_from("klingon")


def known_truth(seed: int, easy=0.9, hard=0.5, questions=30) -> list[Margins]:
    """Traces in which "So," leads into sure text, "But," into unsure text, and "Now," into text like any other."""
    rng = np.random.default_rng(seed)
    out = []
    for q in range(questions):
        text, values = [], []
        for _ in range(6):
            for cue, mean in (("So,", easy), ("But,", hard), ("Now,", 0.7), ("It", 0.7)):
                words = pieces(f"{cue} a b c d.")
                text += words if not text else [f" {words[0]}", *words[1:]]
                values += [0.7, *np.clip(rng.normal(mean, 0.1, 4), 0, 1)]
        out.append(Margins(f"q{q}\x1f0", f"q{q}", text, [float(v) for v in values]))
    return out


@pytest.mark.parametrize("rule", ["paper", "corrected"])
def test_both_rules_find_the_cue_that_leads_into_sure_text(rule):
    profile = choose(known_truth(0), Settings(rule=rule, candidates=("So,", "But,", "Now,", "Hmm,")))
    assert "So," in profile.cues
    assert "But," not in profile.cues
    by_cue = {s.cue: s for s in profile.statistics}
    assert "Hmm," not in by_cue, "a candidate that never occurs is dead"
    assert by_cue["So,"].segments == 180
    assert by_cue["So,"].mean == pytest.approx(0.9, abs=0.02)
    assert by_cue["So,"].interval[0] < by_cue["So,"].mean < by_cue["So,"].interval[1]
    assert profile.global_mean == pytest.approx(0.7, abs=0.02)


def test_the_corrected_rule_gives_fewer_false_alarms_than_the_published_one():
    """Ten cues that lead into text like any other, margins correlated within a trace."""
    words = tuple(f"Cue{c}," for c in "abcdefghij")
    alarms = {"paper": 0, "corrected": 0}
    for seed in range(20):
        rng = np.random.default_rng(seed)
        margins = []
        for q in range(20):
            level = rng.normal(0.7, 0.1)
            text, values = [], []
            for cue in words:
                tokens = pieces(f"{cue} a b c d.")
                text += tokens if not text else [f" {tokens[0]}", *tokens[1:]]
                values += [float(v) for v in np.clip(level + rng.normal(0, 0.1) + rng.normal(0, 0.05, 5), 0, 1)]
            margins.append(Margins(f"q{q}\x1f0", f"q{q}", text, values))
        for rule in alarms:
            alarms[rule] += len(choose(margins, Settings(rule=rule, candidates=words)).cues)
    assert alarms["corrected"] <= 0.1 * 20 * len(words)
    assert alarms["corrected"] < alarms["paper"]


def test_the_corrected_rule_asks_for_a_minimum_count():
    profile = choose(known_truth(0, questions=1), Settings(rule="corrected", min_segments=8, candidates=("So,",)))
    assert profile.cues == []


def test_a_bare_cue_is_dropped_where_it_would_fire_on_a_rejected_longer_one():
    margins = []
    for q in range(20):
        words = pieces("So a b c d. So, a b c d. It a b c d.")
        margins.append(Margins(f"q{q}\x1f0", f"q{q}", words, [0.7, *[0.95] * 4, 0.7, *[0.3] * 4, 0.7, *[0.7] * 4]))
    profile = choose(margins, Settings(candidates=("So", "So,")))
    assert profile.cues == []
    assert {s.cue: s.dropped for s in profile.statistics}["So"] == "would fire on 'So,', which was rejected"


def test_a_chinese_cue_is_dropped_where_a_rejected_one_holds_it():
    sure, unsure = "但abcd。", "不但abcd。"
    margins = [Margins(f"q{q}\x1f0", f"q{q}", [*sure, *unsure], [0.9] * 7 + [0.3] * 8) for q in range(20)]
    profile = choose(margins, Settings(candidates=("但", "不但")))
    assert {s.cue: s.dropped for s in profile.statistics}["但"] == "would fire on '不但', which was rejected"


def test_a_profile_reads_back_as_it_was_written(tmp_path):
    profile = choose(known_truth(1), Settings(candidates=("So,", "But,")), pair="p", split="calibration")
    profile.save(tmp_path / "cues.json")
    assert CueProfile.load(tmp_path / "cues.json") == profile


@pytest.mark.parametrize(
    ("content", "message"),
    [("{", "not valid JSON"), ("[]", "no profile of schema 1"), ('{"schema": 1, "cues": []}', "no cue passed")],
)
def test_a_broken_profile_is_named(tmp_path, content, message):
    path = tmp_path / "cues.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=message):
        CueProfile.load(path)


class Asked:
    def __init__(self, n: int):
        self.id = f"q{n}"
        self.question = "?"


TEXT = "one. So, two three.</think>answer<eos>"


def collect(tmp_path, engines, settings, weights="w"):
    async def work():
        options = Options()
        cues.claim(tmp_path, settings, options, {"target": weights}, "here")
        traces = await cues.collect_traces(
            engines, [Asked(0), Asked(1)], settings, options, tmp_path / "traces.jsonl", lambda *a: None
        )
        return await cues.score_margins(engines, traces, settings, options, tmp_path / "margins.jsonl", lambda *a: None)

    return run(work())


def test_traces_and_margins_are_made_once_and_a_second_call_resumes(tmp_path):
    engines = pair(ScriptedEngine("target", TEXT), ScriptedEngine("draft", TEXT))
    target, draft = engines.engines.values()
    first = collect(tmp_path, engines, Settings(samples=2, questions=2))
    assert len(first) == 4
    assert "".join(first[0].pieces) == "one. So, two three."
    assert set(first[0].margins) == {1.0}
    calls = len(target.log), len(draft.log)
    with (tmp_path / "traces.jsonl").open("a") as file:
        file.write('{"schema": 1, "torn')
    again = collect(tmp_path, engines, Settings(samples=2, questions=2))
    assert again == first
    assert (len(target.log), len(draft.log)) == calls
    more = collect(tmp_path, engines, Settings(samples=3, questions=2))
    assert len(more) == 6
    assert len(list(read_traces(tmp_path / "traces.jsonl"))) == 6


def test_a_folder_made_with_other_settings_is_refused(tmp_path):
    engines = pair(ScriptedEngine("target", TEXT), ScriptedEngine("draft", TEXT))
    collect(tmp_path, engines, Settings(samples=1))
    with pytest.raises(ValueError, match='was made with scored-by = "draft", now "target"; give another folder'):
        collect(tmp_path, engines, Settings(samples=1, scored_by="target"))


def test_a_folder_that_another_process_writes_to_is_refused(tmp_path):
    hold = (
        "import sys; from pathlib import Path; from baton.calibrate.work import claim; claim(Path(sys.argv[1]), {}); "
    )
    held = running(
        [sys.executable, "-c", hold + "print('held', flush=True); sys.stdin.read()", tmp_path],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    with held as other:
        assert other.stdout.readline() == "held\n"
        with pytest.raises(ValueError, match=r"another process is writing to .*; wait for it"):
            claim(tmp_path, {})
        claim(tmp_path, {}, lock=".2.lock")
    claim(tmp_path, {})
    claim(tmp_path, {})


def test_a_folder_on_a_file_system_without_locks_is_used_with_a_warning(tmp_path, monkeypatch, caplog):
    def no_lock(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_lock)
    claim(tmp_path, {})
    assert "no lock can be had there" in caplog.text
    RunFolder(tmp_path / "run", {}, {}).close()


def test_a_folder_made_with_other_weights_or_questions_is_refused(tmp_path):
    engines = pair(ScriptedEngine("target", TEXT), ScriptedEngine("draft", TEXT))
    collect(tmp_path, engines, Settings(samples=1))
    with pytest.raises(ValueError, match="was made with pair"):
        collect(tmp_path, engines, Settings(samples=1), weights="trained on")
    file = tmp_path / "traces.jsonl"
    file.write_text(file.read_text().replace('"question_text":"?"', '"question_text":"another"'))
    with pytest.raises(ValueError, match="answers another question 'q0'; give another --work folder"):
        collect(tmp_path, engines, Settings(samples=1))


def test_margins_of_both_models_are_averaged(tmp_path):
    class Half(ScriptedEngine):
        """Half as sure as others."""

        def open(self, prompt):
            session = super().open(prompt)
            score = session.logprob

            async def halved(prefix, ids):
                scores, usage = await score(prefix, ids)
                return [TokenScore(s.logprob, s.argmax, s.argmax_logprob, 0.5, 0.7) for s in scores], usage

            session.logprob = halved
            return session

    engines = pair(ScriptedEngine("target", TEXT), Half("draft", TEXT))
    margins = collect(tmp_path, engines, Settings(samples=1, scored_by="both"))
    assert set(margins[0].margins) == {0.75}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"scored_by": "judge"}, "scored-by: 'judge' is unknown"),
        ({"rule": "best"}, "rule: 'best' is unknown"),
        ({"questions": 0}, "questions: 0 is too few"),
        ({"candidates": ()}, "candidates: the list is empty"),
    ],
)
def test_wrong_settings_are_named(wrong, message):
    with pytest.raises(ValueError, match=message):
        Settings(**wrong)


def test_a_line_that_is_no_trace_is_named(tmp_path):
    path = tmp_path / "traces.jsonl"
    path.write_text('{"schema": 9}\n{}\n')
    with pytest.raises(ValueError, match="line 1 is no trace"):
        list(read_traces(path))


def test_where_no_cue_passes_the_profile_that_there_was_stays(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cues.json").write_text("a good one")
    (tmp_path / "words.txt").write_text("zebra\n")
    words = ["calibrate", "cues", "--questions", "1", "--samples", "1", "--candidates", "words.txt"]
    done = CliRunner().invoke(app, [*words, "--out", "cues.json"])
    assert done.exit_code == 2
    assert "no cue passed the rule" in done.stderr
    assert (tmp_path / "cues.json").read_text() == "a good one"
