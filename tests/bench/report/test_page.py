"""The report says what the run's files say, whatever their size and whatever a model wrote."""

from __future__ import annotations

import json
import re
import shutil
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import yaml

from baton.bench import report
from baton.bench.report.folders import read_run
from baton.bench.report.page import build
from baton.bench.report.timeline import BYTES, QUESTIONS, SEGMENTS, Chooser
from baton.config import ConfigError, RecipeConfig, validate

EVIL = '</script><script>window.pwned=1</script><img src=x onerror="window.pwned=1">\'"&{{ 7*7 }}\u2028'


class Text(HTMLParser):
    """What of a page is text, what is elements, and the JSON it carries."""

    def __init__(self, html: str):
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.data: Any = None
        self._where = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._where = "data" if ("id", "data") in attrs else tag

    def handle_endtag(self, tag: str) -> None:
        self._where = ""

    def handle_data(self, data: str) -> None:
        if self._where == "data":
            self.data = json.loads(data)
        elif self._where not in {"script", "style"}:
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def page(*runs: Path, out: Path | None = None) -> Text:
    return Text(report.write(runs, out).read_text(encoding="utf-8"))


@pytest.fixture
def run(small_run: Path, tmp_path: Path) -> Path:
    """A copy that a test may change."""
    return Path(shutil.copytree(small_run, tmp_path / "copy"))


def change(run: Path, **figures: Any) -> None:
    """Sets figures of every arm of a run's results."""
    file = run / "results.json"
    results = json.loads(file.read_text())
    for arm in results["arms"]:
        arm.update(figures)
    file.write_text(json.dumps(results))


def test_a_comparison_leaves_a_report_that_needs_nothing_else(small_run):
    html = (small_run / "report.html").read_text()
    found = Text(html)
    assert not re.search(r'(?:src|href)\s*=\s*"(?!data:|#)', html)
    assert "@import" not in html
    assert "url(" not in html
    policy = next(a["content"] for t, a in found.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    for arm in json.loads((small_run / "results.json").read_text())["arms"]:
        assert arm["label"] in found.text
        assert f"{arm['accuracy'] * 100:.1f} %" in found.text


def test_the_command_and_the_recipe_of_the_page_repeat_the_run(small_run):
    found = page(small_run)
    assert f"baton compare {small_run.parent / 'small.yaml'} --out={small_run}" in found.text
    html = (small_run / "report.html").read_text()
    shown = re.search(r"recipe.yaml</summary><pre[^>]*>(.*?)</pre>", html, re.DOTALL)
    assert shown
    again = validate(RecipeConfig, yaml.safe_load(unescape(shown[1])), "report")
    asked = json.loads((small_run / "config.json").read_text())["recipe"]
    assert again.model_dump(mode="json", include=set(asked)) == asked


def test_what_was_not_measured_says_so_and_is_no_zero(run):
    change(run, energy_j=None, latency_s={"p50": None}, speedup={"p50": None, "mean": None, "ci": None})
    text = page(run).text
    assert "Time: not measured." in text
    assert re.search(r"Not measured in this run: [^.]*P50[^.]*\.", text)
    assert re.search(r"Not measured in this run: [^.]*energy, J", text)
    results = json.loads((run / "results.json").read_text())
    for name in ("energy_j", "ece", "control", "by_level", "tokens", "speedup", "latency_s", "mcnemar_p"):
        for arm in results["arms"]:
            arm.pop(name, None)
    (run / "results.json").write_text(json.dumps(results))
    assert "Time: not measured." in page(run).text


def test_a_model_cannot_put_anything_but_text_on_the_page(run):
    lines = [json.loads(line) for line in (run / "traces.jsonl").read_text().splitlines()]
    for line in lines:
        line["question_text"] = EVIL
        line["extra"]["gold"] = EVIL
        for segment in line["segments"]:
            segment["text"] = segment["detail"] = EVIL
        for decision in line["decisions"]:
            decision["reason"] = EVIL
    (run / "traces.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (run / "failures.jsonl").write_text(
        json.dumps({"arm": EVIL, "error": f"{EVIL}: {EVIL}", "pass": "quality", "question": "q", "sample": 0}) + "\n"
    )
    results = json.loads((run / "results.json").read_text())
    results["pair"] = EVIL
    results["arms"][3]["label"] = EVIL
    (run / "results.json").write_text(json.dumps(results))
    found = page(run)
    assert [t for t, _ in found.tags].count("script") == 2
    assert not [t for t, _ in found.tags if t == "img"]
    assert not [name for _, attributes in found.tags for name in attributes if name.startswith("on")]
    shown = found.data["questions"][0]
    assert shown["text"] == EVIL
    assert shown["generations"][0]["segments"][0]["text"] == EVIL
    assert EVIL.split("\u2028")[0] in " ".join(found.words), "shown as what it is"


def test_disagreements_come_first_and_the_timed_answer_is_taken():
    chooser = Chooser()
    for n in range(40):
        for arm in ("target", "rsd"):
            for name in ("quality", "latency") if n == 7 else ("quality",):
                wrong = (arm, n) in {("rsd", 7), ("rsd", 9), ("target", 12)}
                chooser.add({"pass": name, "question": f"q{n}", "arm": arm, "sample": 0, "correct": not wrong,
                             "finish": "end_of_text"})  # fmt: skip
    chosen = chooser.chosen("target", "rsd")
    assert len(chosen) == QUESTIONS
    reasons = list(chosen.values())
    assert next(iter(chosen)) == ("latency", "q7")
    assert ("quality", "q7") not in chosen
    assert reasons[:3].count("target is right, rsd is wrong") == 2
    assert reasons[:3].count("rsd is right, target is wrong") == 1
    assert set(reasons[3:]) == {"All arms are right"}


def test_decisions_and_discarded_steps_are_in_the_timeline(small_run):
    found = page(small_run)
    names = [a["name"] for a in found.data["arms"]]
    rsd = [g for q in found.data["questions"] for g in q["generations"] if names[g["arm"]] == "rsd"]
    assert any(not s["kept"] for g in rsd for s in g["segments"])
    decisions = [d for g in rsd for d in g["decisions"]]
    assert {d["threshold"] for d in decisions} == {-0.15}
    assert {d["outcome"] for d in decisions} == {True, False}
    for g in rsd:
        assert all(0 <= s["from"] <= s["to"] <= g["seconds"] + 0.01 for s in g["segments"])


def test_the_page_stays_small_however_long_the_generations_and_their_texts(run):
    lines = [json.loads(line) for line in (run / "traces.jsonl").read_text().splitlines()]
    for line in lines:
        segment = line["segments"][0] | {"text": "<&" * 400}
        line["segments"] = [
            segment | {"id": n, "role": ("target", "draft")[n // 3 % 2], "kept": True} for n in range(900)
        ]
        line["question_text"] = "why? " * 10_000
    (run / "traces.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    file = report.write([run])
    assert file.stat().st_size < 4 * BYTES
    found = Text(file.read_text())
    shown = [g for q in found.data["questions"] for g in q["generations"]]
    assert shown
    assert all(len(g["segments"]) <= SEGMENTS for g in shown)
    assert sum(s["joined"] for s in shown[0]["segments"]) + 3 * shown[0]["segments_left"] == 900
    assert sum(q["left_out"] for q in found.data["questions"]) > 0


def test_failed_attempts_are_told_by_arm_and_kind(run):
    lines = [
        {"arm": "rsd", "error": f"EngineLostError: port {n % 5}", "pass": "quality", "question": f"q{n % 3}",
         "sample": 0}
        for n in range(9)
    ]  # fmt: skip
    (run / "failures.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (group,) = read_run(run).failures
    assert (group.attempts, len(group.answers), len(group.messages)) == (9, 3, 3)
    assert "EngineLostError 9 3 port 0 port 1 port 2" in page(run).text


def test_two_runs_are_compared_question_by_question(small_run, other_run, tmp_path):
    found = page(small_run, other_run, out=tmp_path / "both.html")
    assert "The runs against each other" in found.text
    assert "recipe.seed 0 1" in found.text
    assert {a["run"] for a in found.data["arms"]} == {0, 1}
    shown = [g["arm"] for g in found.data["questions"][-1]["generations"]]
    assert {found.data["arms"][arm]["run"] for arm in shown} == {0, 1}
    built = build([read_run(small_run), read_run(other_run)])
    (pair,) = built["between"]
    row = next(r for r in pair["table"].rows if r[0].text == "draft")
    ours, theirs = (
        next(a for a in json.loads((f / "results.json").read_text())["arms"] if a["label"] == "draft")
        for f in (small_run, other_run)
    )
    assert row[3].sort == pytest.approx(theirs["accuracy"] - ours["accuracy"])
    assert not (small_run.parent / "both.html").exists()


def test_a_folder_without_a_run_is_named(tmp_path):
    with pytest.raises(ConfigError, match="it holds no run; give the folder"):
        report.write([tmp_path])


def test_published_results_without_traces_still_make_a_report(small_run, tmp_path):
    for name in ("results.json", "answers.jsonl"):
        shutil.copy(small_run / name, tmp_path / name)
    found = page(tmp_path)
    assert "The traces of this run are not in its folder." in found.text
    assert found.data["arms"][0]["latency"]["n"] == 3


def test_equal_budgets_are_told_with_what_was_missed(run):
    figures = {"accuracy": 0.5, "accuracy_ci": [0.3, 0.7]}
    arm = {"knob": None, "value": None, "test": 2e9, "off": 0.0, "off_ci": [0, 0], "met": True, "note": "", **figures}
    moved = {**arm, "label": "rsd@flops", "knob": "threshold", "value": 0.75, "off": 0.4, "off_ci": None, "met": False}
    memory = {
        "weight_bytes": {"target": 4e7}, "answer_bytes": 3e6, "least_bytes": 9e7, "lowered": False, "latency_s": None,
        **dict.fromkeys(("concurrency", "answers_per_s", "throughput_ratio", "throughput_ratio_ci", *figures)),
    }  # fmt: skip
    results = json.loads((run / "results.json").read_text())
    results["head_to_head"] = {
        "flops": {
            "budget": {"of": "target", "times": 0.7, "calibration": 2e9, "test": 2e9}, "tolerance": 0.05,
            "arms": [{**arm, "label": "target"}, {**moved, "note": "out of reach"}],
            "pairs": [{"a": "target", "b": "x", "equal": True, "accuracy_delta": 0.1, "accuracy_delta_ci": [0, 0.2]}],
        },
        "memory": {"bytes": 8e7, "of": "target", "arms": [{**memory, "label": "rsd", "fits": False}]},
    }  # fmt: skip
    (run / "results.json").write_text(json.dumps(results))
    said = page(run).text
    assert "At equal FLOPs" in said
    assert "threshold 0.75" in said
    assert "+40.0 % (missed)" in said
    assert "out of reach" in said
    assert "target against x: +10.0 points" in said
    assert "At equal memory" in said
    assert "does not fit" in said
    assert "needs 90.00 M" in said
