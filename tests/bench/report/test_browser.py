"""The report in a real browser: it opens quietly, sorts, plots, shows generations, fits a phone, and runs no stranger's
script.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_page import EVIL

from baton.bench import report
from baton.calibrate import reliability
from browsers import chromium

RNG = np.random.default_rng(0)


def scored(n: int, shift: float) -> reliability.Scored:
    """States whose score is the probability that a step is harmless, moved by `shift`."""
    keep = RNG.random(n)
    names = [f"q{k // 4}" for k in range(n)]
    return reliability.Scored(np.clip(keep + shift, 0, 1), (RNG.random(n) < keep) * 1.0, 1 - 2 * keep, names,
                              ["1"] * n, np.zeros(n, bool), np.full(n, np.nan))  # fmt: skip


CALIBRATION = scored(400, 0.0)
RELIABILITY = reliability.report(
    {"prm": CALIBRATION},
    {"calibration": {"prm": CALIBRATION}, "test": {"prm": scored(400, 0.0)}, "far": {"prm": scored(400, 0.2)}},
    [0.1],
)


@pytest.fixture(scope="module")
def browser(small_run: Path, other_run: Path) -> Iterator[Any]:
    # The runs come first: no event loop can run beside Playwright's.
    with chromium() as opened:
        yield opened


class Visit:
    """A page, and everything it complained of or asked the network for."""

    def __init__(self, browser: Any, file: Path, width: int = 1200, **options: Any):
        self.page = browser.new_page(viewport={"width": width, "height": 800}, **options)
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda m: self.complaints.append(f"{m.type}: {m.text}"))
        self.page.on("pageerror", lambda e: self.complaints.append(str(e)))
        self.page.on("request", lambda r: self.requests.append(r.url))
        self.page.goto(file.as_uri())
        if options.get("java_script_enabled") is False:
            return
        # Plots are drawn when their boxes have been measured.
        self.page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")

    @property
    def overflow(self) -> int:
        """Pixels by which the page is wider than the window."""
        return int(self.page.evaluate("document.documentElement.scrollWidth - innerWidth"))


@pytest.fixture
def visit(browser: Any) -> Iterator[Any]:
    opened: list[Visit] = []

    def go(file: Path, **options: Any) -> Visit:
        opened.append(Visit(browser, file, **options))
        return opened[-1]

    yield go
    for one in opened:
        one.page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_opens_without_a_complaint_and_without_the_network(visit, small_run, scheme):
    seen = visit(small_run / "report.html", color_scheme=scheme)
    assert seen.complaints == []
    assert [r for r in seen.requests if not r.startswith(("file:", "data:"))] == []
    assert seen.page.locator("#plot-tradeoff .mark").count() == 4
    assert seen.page.locator("#plot-tradeoff .control").count() == 1
    assert seen.page.locator("#plot-latency .curve").count() == 4
    ground = seen.page.evaluate("getComputedStyle(document.body).backgroundColor")
    seen.page.click("#theme")
    assert seen.page.evaluate("getComputedStyle(document.body).backgroundColor") != ground
    assert seen.complaints == []


def test_tables_sort_by_what_their_cells_mean_with_mouse_and_keyboard(visit, small_run):
    page = visit(small_run / "report.html").page
    head = page.locator("#t-time th", has_text="P50").nth(1)
    column = head.evaluate("h => h.cellIndex")

    def values() -> list[float]:
        return page.evaluate(
            f"[...document.querySelectorAll('#t-time tbody tr')].map(r => Number(r.cells[{column}].dataset.sort))"
        )

    before = values()
    head.locator("button").click()
    assert head.get_attribute("aria-sort") == "descending"
    assert values() == sorted(before, reverse=True)
    head.locator("button").focus()
    page.keyboard.press("Enter")
    assert head.get_attribute("aria-sort") == "ascending"
    assert values() == sorted(before)
    page.keyboard.press("Enter")
    assert head.get_attribute("aria-sort") is None
    assert values() == before


def test_what_was_not_measured_stays_at_the_end(visit, small_run, tmp_path):
    run = Path(shutil.copytree(small_run, tmp_path / "run"))
    results = json.loads((run / "results.json").read_text())
    for arm, value in zip(results["arms"], (0.5, None, 0.9, 0.7), strict=True):
        arm["ece"] = value
    (run / "results.json").write_text(json.dumps(results))
    page = visit(report.write([run])).page
    button = page.locator("#t-accuracy th", has_text="ECE").locator("button")
    for _ in range(2):
        button.click()
        assert page.locator("#t-accuracy tbody tr").last.locator("td").last.inner_text() == "not measured"


def test_the_plot_follows_its_measure_and_its_legend(visit, small_run):
    seen = visit(small_run / "report.html")
    page = seen.page
    page.select_option("#measure", "p50")
    assert "latency, P50" in page.locator("#plot-tradeoff svg").text_content()
    page.locator("#legend input").first.uncheck()
    assert page.locator("#plot-tradeoff .mark").count() == 3
    page.locator("#plot-tradeoff .mark").first.focus()
    assert "accuracy" in page.locator(".tip").inner_text()
    assert seen.complaints == []


def test_a_generation_opens_with_mouse_and_keyboard(visit, small_run):
    seen = visit(small_run / "report.html")
    page = seen.page
    lane = page.locator(".lane", has_text="rsd")
    assert lane.locator(".seg").count() > 1
    assert lane.locator(".gate").count() > 0
    lane.locator(".seg").first.click()
    first = page.locator("#detail").inner_text()
    assert "rsd, segment 1 of" in first
    lane.locator("svg").focus()
    page.keyboard.press("ArrowRight")
    assert "rsd, segment 2 of" in page.locator("#detail").inner_text()
    lane.locator("button").click()
    assert "What rsd wrote" in page.locator("#transcript").inner_text()
    assert page.locator("#transcript .written span").count() > 1
    question = page.locator("#shown-question").inner_text()
    page.click("#next")
    assert page.locator("#shown-question").inner_text() != question
    assert page.locator("#transcript").inner_text() == ""
    assert seen.complaints == []


@pytest.mark.parametrize("width", [320, 390])
def test_it_fits_a_phone(visit, small_run, width):
    seen = visit(small_run / "report.html", width=width)
    assert seen.overflow <= 0
    seen.page.locator(".lane button").first.click()
    assert seen.overflow <= 0
    assert seen.page.locator("#plot-tradeoff svg").bounding_box()["width"] <= width


def test_it_can_be_read_without_scripts(visit, small_run):
    page = visit(small_run / "report.html", java_script_enabled=False).page
    assert page.locator("#t-accuracy tbody tr").count() == 4
    assert page.locator("#t-accuracy").is_visible()
    assert page.locator(".headline").is_visible()
    assert not page.locator("#tradeoff").is_visible()


def test_no_text_of_a_model_becomes_script(visit, small_run, tmp_path):
    run = Path(shutil.copytree(small_run, tmp_path / "run"))
    lines = [json.loads(line) for line in (run / "traces.jsonl").read_text().splitlines()]
    for line in lines:
        line["question_text"] = line["extra"]["gold"] = EVIL
        for segment in line["segments"]:
            segment["text"] = segment["detail"] = EVIL
    (run / "traces.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    seen = visit(report.write([run]))
    seen.page.locator(".lane .seg").first.click()
    seen.page.locator(".lane button").first.click()
    assert EVIL in seen.page.locator("#transcript .written span").first.text_content()
    assert seen.page.evaluate("window.pwned") is None
    assert seen.complaints == []
    # Even a script that got in would not run.
    seen.page.evaluate(
        "document.body.append(Object.assign(document.createElement('script'), {textContent: 'pwned=1'}))"
    )
    assert seen.page.evaluate("window.pwned") is None
    assert any("Content Security Policy" in c for c in seen.complaints)


def test_two_runs_share_a_page(visit, small_run, other_run, tmp_path):
    seen = visit(report.write([small_run, other_run], tmp_path / "both.html"), width=390)
    assert seen.complaints == []
    assert seen.overflow <= 0
    assert seen.page.locator("#plot-tradeoff .mark").count() == 6


def test_loads_and_fronts_are_drawn_where_results_have_them(visit, small_run, tmp_path):
    run = Path(shutil.copytree(small_run, tmp_path / "run"))
    results = json.loads((run / "results.json").read_text())
    for n, arm in enumerate(results["arms"], 1):
        arm["load"] = [
            {"point": f"poisson {rate}", "answered_rps": rate * 0.9, "latency_s": {"p50": n * rate, "p99": None},
             "ttft_s": {"p50": 0.1}, "speedup": {"p50": None}, "goodput_rps": None, "timeouts": 0, "keeps_up": True,
             "valid": rate < 3, "reason": None if rate < 3 else "the client was late"}
            for rate in (1, 2, 3)
        ]  # fmt: skip
    (run / "results.json").write_text(json.dumps(results))
    (run / "reliability.json").write_text(json.dumps({"scores": RELIABILITY}))
    seen = visit(report.write([run]))
    assert seen.page.locator("#plot-loads .mark").count() == 12
    assert seen.page.locator("#plot-loads .mark.hollow").count() == 4
    options = seen.page.locator("#load-measure option").all_inner_texts()
    assert options == ["latency, P50", "first token, P50"]
    bars = sum(bool(bar["n"]) for found in RELIABILITY["prm"]["sets"].values() for bar in found["diagram"])
    assert bars > 3
    assert seen.page.locator("#plot-reliability .mark").count() == bars
    assert seen.page.locator("#t-gates tbody tr").count() == 3
    assert "the client was late" in seen.page.locator("#t-load").inner_text()
    on_front = sum(a["on_front"] for a in results["pareto"]["target_share"]["arms"])
    assert seen.page.locator("#t-pareto td", has_text="on the front").count() >= on_front
    assert seen.complaints == []
