"""`baton plan` from the command line, and what it advises."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from baton.cli import app
from baton.plan.advice import best_lookahead, causes, gate_choices, lookahead_row, plan
from baton.plan.costs import Acceptance, Costs, Lengths, ModelCosts, Scorer, Speculation

FAST = ["--answers", "10", "--parallel", "3"]


def pair(**fields) -> Costs:
    given = {"target": ModelCosts.of(1.0), "draft": ModelCosts.of(0.2), "acceptance": 0.63}
    return Costs(**(given | fields))


def baton(*args: str):
    return CliRunner().invoke(app, ["plan", *args])


def test_options_alone_give_tables_and_advice():
    shown = baton("--draft-step", "0.2", "--acceptance", "0.63", *FAST)
    assert shown.exit_code == 0
    assert "c = 0.200" in shown.stdout
    assert "lookahead: depth k = " in shown.stdout
    assert "gate: threshold" in shown.stdout
    assert "reality check: published lookahead runs (k = 6) reached 0.70 to 0.85" in shown.stdout


def test_json_holds_every_method_and_the_plot_is_written(tmp_path):
    image = tmp_path / "plots" / "out.png"
    costs = tmp_path / "costs.yaml"
    costs.write_text(
        "target: {token_s: 0.02, tokens: {mean: 40, sigma: 0.5}, parameters: 32e+9}\n"
        "draft: {token_s: 0.004, tokens: 40, parameters: 2e+9}\n"
        "acceptance: [0.7, 0.6]\n"
        "cue: {target_tokens: 46, draft_tokens: 20}\n"
        "gate: {scores: [0.1, 0.4, 0.8, 0.9], call_rate: 0.5}\n"
        "speculation: {acceptance: 0.6, cost: 0.1}\n"
    )
    shown = baton(str(costs), "--json", "--plot", str(image), *FAST)
    found = json.loads(shown.stdout)
    assert found["costs"]["parallel"] == 3
    assert {r["k"] for r in found["lookahead"] if r["mode"] == "async"} == {2, 3}
    assert found["gating"][0]["simulated"]["flops"]["target_prefill"] > 0
    assert found["cue_switching"]["ideal"] > 1
    assert found["best"]["slots"] <= 3
    assert image.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([], "costs: no pair is given"),
        (["--draft-step", "0.2", "--acceptance", "0.6", "--gpu-gb", "-80"], "--gpu-gb: -80 is no memory"),
        (["--draft-step", "-1", "--acceptance", "0.5"], "draft.step_s: -1.0"),
        (["--draft-step", "0.2", "--acceptance", "1.5"], "acceptance.by_position[0]: 1.5"),
        (["missing.yaml"], "missing.yaml: there is no such file"),
        (["--draft-step", "0.2", "--acceptance", "0.5", "--plot", "x.nope"], "plot: x.nope: .nope is no image format"),
    ],
)
def test_wrong_input_is_answered_in_one_line(args, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shown = baton(*args)
    assert shown.exit_code == 2
    assert message in shown.stderr
    assert "Traceback" not in shown.stderr


def test_the_best_setting_fits_the_budget_and_grows_with_it():
    tight, wide = (best_lookahead(pair(parallel=m, widest=1), answers=60) for m in (2, 8))
    assert tight.slots <= 2
    assert tight.k == 2
    assert 3 <= wide.k <= 5
    assert wide.speedup > tight.speedup * 1.1


def test_where_lookahead_cannot_gain_the_target_stays_alone():
    assert best_lookahead(pair(acceptance=0.0), answers=40).k == 1
    slow = pair(target=ModelCosts(step_s=1.0, slowdown=1.0), parallel=8)
    assert best_lookahead(slow, answers=40).k == 1


def test_token_level_speculation_shares_the_budget_with_depth():
    costs = pair(speculation=Speculation(acceptance=0.7, cost=0.05), parallel=16)
    best = best_lookahead(costs, answers=60)
    assert best.slots <= 16
    assert best.tokens > 1
    assert best.k > 1


def test_columns_agree_where_nothing_but_chance_is_between_them():
    row = lookahead_row(pair(judge_s=0.1), "async", 6, answers=200)
    assert row.monte_carlo.value == pytest.approx(row.closed, rel=0.02)
    assert row.equal_steps == pytest.approx(row.closed, rel=0.03)
    assert row.to_json()["deviation"] == pytest.approx(row.speedup / row.closed - 1)


def test_causes_lead_from_the_closed_form_to_the_simulation_as_given():
    uneven = {"tokens": Lengths(sigma=0.6)}
    costs = pair(
        target=ModelCosts(step_s=1.0, slowdown=0.05, **uneven), draft=ModelCosts(step_s=0.2, **uneven), judge_s=0.05
    )
    row = lookahead_row(costs, "async", 5, answers=100)
    found = {c.assumption: c.speedup for c in causes(costs, row, answers=100)}
    assert found["closed form"] == row.closed
    assert found["slow-down of steps side by side"] == row.speedup
    assert found["unequal steps, late drafts"] < 0.95 * found["answers of 60 steps"]
    assert row.speedup < found["unequal steps, late drafts"]


def test_thresholds_are_quantiles_of_the_given_scores():
    scores = tuple(i / 100 for i in range(100))
    costs = pair(scorer=Scorer(step_s=0.1), gate={"scores": scores, "call_rate": 0.25})
    chosen = {c.why: c for c in gate_choices(costs)}
    assert chosen["call rate asked for"].accepts == pytest.approx(0.75)
    assert chosen["call rate asked for"].knobs["threshold"] == pytest.approx(0.25)
    assert chosen["break-even"].speedup == pytest.approx(1.0, rel=0.02)
    assert chosen["published constant"].accepts == pytest.approx(0.3)
    assert not gate_choices(pair())


def test_a_score_that_costs_more_than_the_target_is_advised_against():
    found = plan(pair(scorer=Scorer(step_s=2.0), parallel=2), answers=10)
    assert any(line.startswith("gate: none") for line in found.advice)
    assert found.contest["gating"] < 1


def test_runs_by_position_from_the_command_line(tmp_path):
    runs = tmp_path / "runs.txt"
    runs.write_text("110\n" * 50)
    given = json.loads(baton("--draft-step", "0.2", "--acceptance", str(runs), "--json", *FAST).stdout)
    assert given["acceptance"] == pytest.approx(2 / 3, abs=0.01)
    rates = json.loads(baton("--draft-step", "0.2", "--acceptance", ".9,.5", "--json", *FAST).stdout)
    assert rates["costs"]["acceptance"]["by_position"] == [0.9, 0.5]
    assert Acceptance.of([0.9, 0.5]).rate == pytest.approx(rates["acceptance"])
