"""One arm is the baseline of everything that a comparison says, wherever it stands in the recipe."""

from __future__ import annotations

from made_answers import answer, by_label, results, segment

from baton.bench.metrics import LATENCY, QUALITY, Arm, Run, baseline_label, record
from baton.bench.verdict import verdict
from baton.trace import Role

FAST = Arm("target, speculating", "target", {}, "transformers", {"target": {"method": "ngram"}})
PLAIN = Arm("target", "target", {}, "transformers")
DRAFT = Arm("draft", "draft", {}, "transformers")


def test_the_target_that_does_not_speculate_is_the_baseline_even_if_it_comes_second():
    arms = [FAST, PLAIN, DRAFT]
    traces = [
        answer(arm.label, f"q{n}", name=name, seconds=took, segments=[segment(Role.TARGET, 10)])
        for arm, took in ((FAST, 1.0), (PLAIN, 2.0), (DRAFT, 0.5))
        for n in range(40)
        for name in (QUALITY, LATENCY)
    ]
    found = results(arms, traces)
    assert baseline_label(found["arms"]) == "target"
    assert by_label(found)["draft"]["speedup"]["mean"] == 4.0
    said = verdict(found)
    # The target's median is that of the arm which speed-ups are told against.
    assert any("half of its answers took at most 1.00 s, of the target's 2.00 s" in line for line in said.saves)
    assert said.label == FAST.label
    assert not any("with speculation" in line for line in said.saves), "it is not set against itself"


def test_the_only_target_is_the_baseline_though_it_speculates():
    assert baseline_label([{"label": "a", "router": "target", "speculation": {"target": {}}}]) == "a"
    assert baseline_label([{"label": "d", "router": "draft"}]) is None


def test_the_size_of_difference_that_a_run_can_find_is_said():
    traces = [answer(arm, f"q{n}", grade=grade) for arm, grade in (("target", "correct"), ("draft", "correct"))
              for n in range(200)]  # fmt: skip
    found = results([PLAIN, DRAFT], traces)
    least = by_label(found)["draft"]["minimum_detectable_difference"]
    assert any(f"finds differences from {100 * least:.1f} points on" in line for line in verdict(found).sure)


def test_arms_that_missed_their_budget_are_named_first_of_all():
    found = results([PLAIN, DRAFT], [answer(arm, "q") for arm in ("target", "draft")])
    rows = [{"label": "rsd@p90", "knob": "threshold", "off": -0.158, "met": False}, {"label": "target", "knob": None,
            "off": 1.0, "met": False}, {"label": "margin@p90", "knob": "low", "off": 0.02, "met": True}]  # fmt: skip
    memory = {"arms": [{"label": "draft", "off": -0.6, "met": True}]}
    said = verdict({**found, "head_to_head": {"p90": {"arms": rows}, "memory": memory}})
    assert "Arms that missed the budget at which they are compared: rsd@p90 (−16 %)." in said.mind


def test_speedups_under_load_are_against_the_same_arm(tmp_path):
    from baton.bench.load_pass import Cells, add_results
    from baton.config import LoadConfig

    cells = Cells(tmp_path)
    for arm, took in ((FAST, 1.0), (PLAIN, 2.0), (DRAFT, 0.5)):
        traces = [answer(arm.label, f"q{n}", name="load", seconds=took) for n in range(20)]
        for n, trace in enumerate(traces):
            trace.extra["load"] = {
                "load": "2 at once", "number": n, "due": n * took, "begun": n * took, "lag": 0.0, "counts": True,
                "window": [0.0, 20 * took], "requests": 20, "failures": 0,
            }  # fmt: skip
        config = LoadConfig.model_validate({"points": [{"concurrency": 2}], "requests": 20})
        cells.write(config.points[0].name, arm.label, traces)
    found = results([FAST, PLAIN, DRAFT], [answer(a.label) for a in (FAST, PLAIN, DRAFT)])
    found["load"] = {}
    add_results(found, config, cells)
    assert by_label(found)["draft"]["load"][0]["speedup"]["p50"] == 4.0


def test_accuracies_of_scored_answers_are_the_same_numbers_in_every_table():
    run = Run([PLAIN, DRAFT], {QUALITY: ["q0", "q1", "q2"]}, samples=2)
    from baton.bench.head_to_head_figures import pairs

    for arm, grades in ((PLAIN, "cccccw"), (DRAFT, "cwcwww")):
        for k, grade in enumerate(grades):
            whole = {"c": "correct", "w": "wrong"}[grade]
            run.add(record(answer(arm.label, f"q{k // 2}", grade=whole, sample=k % 2)))
    from baton.bench import metrics

    told = by_label(metrics.results(run, {}))["draft"]
    (pair,) = pairs(run, [PLAIN, DRAFT], {"target", "draft"})
    assert pair["accuracy_delta"] == -told["accuracy_delta"]
    assert pair["mcnemar_p"] == told["mcnemar_p"]
    assert sorted(pair["accuracy_delta_ci"]) == sorted(-end for end in told["accuracy_delta_ci"])
