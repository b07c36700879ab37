"""The table and its sentence say what results.json holds; progress is readable in a log file."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from baton.bench import terminal
from baton.bench.grading import Grade
from baton.bench.terminal import Progress


def arm(label: str, router: str, **more: Any) -> dict[str, Any]:
    return {
        "label": label, "router": router, "n": 200, "accuracy": 0.96, "accuracy_ci": [0.93, 0.985],
        "accuracy_delta": None, "accuracy_delta_ci": None, "control": None, "target_share": 1.0,
        "latency_s": {"p50": 0.9, "p99": None}, "flops": None, "equivalence_p": None,
        "speedup": {"p50": 1.0, "mean": 1.0, "ci": None}, "switches": 0.0,
        "tokens": {"discarded": 0.0}, **more,
    }  # fmt: skip


@pytest.fixture
def results() -> dict[str, Any]:
    relay = arm(
        "relaygen", "relaygen", accuracy=0.95, accuracy_delta=-0.01, accuracy_delta_ci=[-0.025, 0.005],
        target_share=0.684, latency_s={"p50": 0.6, "p99": None}, flops=None, equivalence_p=0.2,
        speedup={"p50": 1.5, "mean": 1.4, "ci": [1.3, 1.52]},
        switches=7.25, control={"label": "random", "accuracy_delta": 0.2, "accuracy_delta_ci": [0.15, 0.25]},
    )  # fmt: skip
    header = {"pair": "nano", "task": "nano", "split": "test", "load": {"points": None}, "margin": 0.02}
    return {**header, "arms": [arm("target", "target"), relay]}


def printed(results: dict[str, Any], width: int | None = None) -> str:
    out = io.StringIO()
    terminal.report(results, Console(file=out, width=width, force_terminal=width is not None, color_system=None))
    return out.getvalue()


def rows(text: str, arm: str) -> list[str]:
    """Of each table the row of an arm; sentences begin with a name too, but not after a blank."""
    return [line for line in text.splitlines() if line.startswith(f" {arm} ")]


@pytest.mark.parametrize("width", [None, 80])
def test_the_rows_of_an_arm_have_its_figures_whole_in_a_log_and_in_a_narrow_terminal(results, width):
    worth, cost = rows(printed(results, width), "relaygen")
    for figure in ("200", "95.0 (93.0, 98.5)", "-1.0 (-2.5, +0.5)", "68.4 %", "7.2"):
        assert figure in worth
    for figure in ("0.600", "1.50 x", "1.40 x (1.30, 1.52)"):
        assert figure in cost
    assert len(worth) <= (width or terminal.PLAIN_WIDTH)


def test_a_long_label_breaks_and_its_figures_do_not(results):
    results["arms"][1]["label"] = "token-router logits threshold 0.31"
    said = printed(results, 80)
    assert "1.40 x (1.30, 1.52)" in said
    assert max(map(len, said.splitlines())) <= 80


def test_the_answer_comes_first_and_then_what_it_saves_costs_and_how_sure_it_is(results):
    lines = printed(results).splitlines()
    assert lines[0].startswith("No router is shown to stay within 2 points")
    starts = [n for n, line in enumerate(lines) if line.startswith(("It saves.", "It costs.", "How sure."))]
    table = next(n for n, s in enumerate(lines) if "nano on nano (test)" in s)
    assert len(starts) == 3
    assert starts[0] > 0
    assert starts[2] < table
    said = " ".join(" ".join(lines[:table]).split())
    assert "95.0 % of its answers are right, 96.0 % of the target's" in said
    assert "equivalent within 2 points" in said
    results["arms"][1] |= {"accuracy_delta_ci": [-0.015, 0.005], "equivalence_p": 0.01}
    assert printed(results).startswith("relaygen keeps the target's accuracy to within 2 points")


def test_what_was_not_measured_is_a_dash(results):
    for a in results["arms"]:
        a["latency_s"], a["speedup"] = {"p50": None, "p99": None}, {"p50": None, "mean": None, "ci": None}
    assert sum(row.count("–") for row in rows(printed(results), "relaygen")) == 5
    assert "Time: not measured." in printed(results)
    results["arms"] = results["arms"][1:]
    assert printed(results).startswith("Nothing can be said against the target alone")


def test_a_log_gets_whole_lines_with_arm_accuracy_and_what_is_left(monkeypatch):
    monkeypatch.setattr(terminal, "SECONDS_BETWEEN_LINES", 0.0)
    out = io.StringIO()
    with Progress(Console(file=out)) as progress:
        progress.begin(10, 6)
        progress.advance("quality", "draft", Grade.CORRECT)
        progress.advance("quality", "draft", Grade.TIMEOUT)
        progress.advance("quality", "draft", None)
        progress.advance("quality", "draft", Grade.WRONG)
    lines = out.getvalue().splitlines()
    assert progress.answered == (10, 10)
    assert lines[0].startswith("quality: draft  7/10 answers  100.0% correct")
    assert lines[-1].startswith("quality: draft  10/10 answers  50.0% correct, 1 failed")
    assert lines[-1].endswith("left 0:00")
