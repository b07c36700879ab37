"""Every figure of results.json follows from the traces, and means what the contract says."""

from __future__ import annotations

import json

import pytest

from baton.bench import metrics
from baton.bench.metrics import LATENCY, QUALITY, Arm, Run
from baton.boundary import CANCELLED
from baton.flops import Architecture
from baton.trace import Decision, HelperCall, Kind, Phase, Role, Segment, Trace

CONTRACT = [
    "router", "knobs", "engine", "speculation", "n", "samples", "failures", "truncated", "timeouts", "accuracy",
    "accuracy_ci", "accuracy_delta", "accuracy_delta_ci", "mcnemar_p", "by_level", "target_share",
    "target_sampled_share", "switches", "accept_rate", "acceptance_length", "relayed_fraction", "latency_s", "ttft_s",
    "tpot_s", "throughput_tps", "goodput_rps", "speedup", "speedup_vs_speculation", "tokens", "flops",
    "gpu_memory_bytes", "energy_j", "ece",
]  # fmt: skip
TARGET, DRAFT = Arm("target", "target", {}, "transformers"), Arm("draft", "draft", {}, "transformers")


def segment(role, tokens, *, kept=True, kind=Kind.WRITE, overshoot=0, prompt=0, cached=0, phase=Phase.THINKING):
    return Segment(
        id=1, parent=0, branch=0, role=role, kind=kind, phase=phase, ids=list(range(tokens)), text="x", kept=kept,
        prompt=prompt, cached=cached, sampled=tokens + overshoot, overshoot=overshoot,
        kept_tokens=tokens if kept else 0,
    )  # fmt: skip


def answer(
    arm="target", question="q", *, grade="correct", name=QUALITY, segments=None, seconds=1.0, first=0.1, sample=0,
    finish="end_of_text", level="1", **more,
):  # fmt: skip
    return Trace(
        question=question, sample=sample, finish=finish, seconds=seconds, first_token=first,
        segments=[segment(Role.TARGET, 10)] if segments is None else segments,
        extra={"pass": name, "arm": arm, "level": level, "grade": grade, "gold": "1", **more},
    )  # fmt: skip


def sized(**sizes):
    """Models whose tokens cost their weights and nothing else."""
    return {name.replace("_", " "): Architecture(size, body=size) for name, size in sizes.items()}


def results(arms, traces, samples=1, models=None, questions=None):
    """Through JSON and back, as a run reads its traces."""
    asked = questions or {
        name: sorted({t.question for t in traces if t.extra["pass"] == name}) for name in (QUALITY, LATENCY)
    }
    run = Run(arms, {k: v for k, v in asked.items() if v}, samples)
    for trace in traces:
        run.add(metrics.record(Trace.from_json(json.loads(trace.dumps())), models))
    return metrics.results(run, {"pair": "p"})


def by_label(found):
    return {a["label"]: a for a in found["arms"]}


def test_an_arm_has_the_keys_of_the_contract_in_its_order_and_null_where_nothing_was_measured():
    arm = results([DRAFT], [answer("draft")])["arms"][0]
    assert [k for k in arm if k in CONTRACT] == CONTRACT
    assert set(arm) - set(CONTRACT) == {
        "label", "grader_timeouts", "control", "equivalence_p", "minimum_detectable_difference", "seeds",
        "win_rate_length_controlled",
        "ttfat_s", "step_s", "switch_s", "gpu_seconds", "memory_bytes",
    }  # fmt: skip
    assert list(arm["ttft_s"]) == ["p50", "p90", "p95", "p99"]
    assert set(arm["latency_s"]) == {*arm["ttft_s"], "p50_ci", "p90_ci", "p95_ci", "p99_ci"}
    assert [k for k in arm["speedup"] if k != "p50_ci"] == ["p50", "p99", "mean", "ci"]
    assert list(arm["tokens"]) == ["target", "draft", "discarded", "overshoot", "helper", "prefill"]
    nulls = ("accuracy_delta", "accuracy_delta_ci", "mcnemar_p", "accept_rate", "throughput_tps", "flops", "ece")
    assert all(arm[k] is None for k in nulls)
    assert set(arm["latency_s"].values()) == set(arm["speedup"].values()) == {None}


def test_tokens_are_counted_once_and_by_what_became_of_them():
    trace = answer(
        segments=[
            Segment(id=9, parent=0, branch=0, role=Role.INSERTED, kind=Kind.INSERT, ids=[1, 2], text="y", kept=True),
            segment(Role.TARGET, 30, prompt=100, cached=0),
            segment(Role.DRAFT, 8, kept=False, overshoot=1, prompt=130, cached=20),
            segment(Role.DRAFT, 12, overshoot=2, prompt=130, cached=128),
            segment(Role.TARGET, 1, kept=False, kind=Kind.PROBE, prompt=142, cached=140),
        ]
    )
    trace.helpers = [HelperCall("prm", [1], 0.0, tokens=50), HelperCall("logprob:target", [1], 0.0, tokens=7)]
    trace.decisions = [
        Decision(1, "prm", 0.2, "binary", 0.5, False, 0.1, helper_tokens=25),
        Decision(2, "prm", 0.9, "binary", 0.5, True, 0.2, helper_tokens=25),
    ]
    arm = results([TARGET], [trace], models=sized(target=100, draft=10, prm=1))["arms"][0]
    assert arm["tokens"] == {
        "target": 30, "draft": 12, "discarded": 8, "overshoot": 3, "helper": 58, "prefill": 100 + 110 + 2 + 2,
    }  # fmt: skip
    assert arm["target_share"] == pytest.approx(30 / 42)
    assert arm["target_sampled_share"] == pytest.approx(31 / (31 + 23))
    # The last token of a segment is computed with what follows it.
    assert arm["flops"] == 2 * (100 * (30 + 101 + 7) + 10 * (21 + 112) + 1 * 50)
    assert (arm["switches"], arm["accept_rate"], arm["relayed_fraction"]) == (1, 0.5, 1)
    unknown = results([TARGET], [trace], models=sized(target=100, draft=10))["arms"][0]
    assert unknown["flops"] is None


def test_speculation_is_told_with_its_acceptance_length_and_counted_in_flops():
    speculation = {"target": {"method": "draft_model"}}
    first, second = segment(Role.TARGET, 12), segment(Role.TARGET, 8, kept=False, overshoot=2)
    first.proposed, first.accepted, first.drafted = 16, 8, 100
    second.proposed, second.accepted, second.drafted = 10, 6, 5
    given_up = segment(Role.TARGET, 50, kept=False)
    given_up.ended_by = CANCELLED
    traces = [answer(segments=[first, second, given_up, segment(Role.DRAFT, 3)])]
    models = sized(target=100, draft=10, target_speculation=10)
    fast = Arm("target", "target", {}, "transformers", speculation)
    arm = results([fast], traces, models=models)["arms"][0]
    assert arm["speculation"] == speculation
    assert arm["acceptance_length"] == (12 + 10) / (4 + 4)
    assert arm["flops"] == 2 * (100 * (69 + 8 + 4) + 10 * 2 + 10 * 105)
    plain = results([TARGET], traces, models=models)["arms"][0]
    assert plain["speculation"] is plain["acceptance_length"] is None


def test_a_committed_part_of_a_segment_leaves_the_rest_discarded():
    cut = segment(Role.DRAFT, 20, overshoot=1)
    cut.ids, cut.kept_tokens = cut.ids[:5], 5
    assert results([DRAFT], [answer("draft", segments=[cut])])["arms"][0]["tokens"]["discarded"] == 15


def test_flops_follow_the_context_and_the_output_layer():
    models = {
        "target": Architecture(1000, body=100, head=50, attention=3),
        "judge": Architecture(1000, body=100, head=50, attention=3),
    }
    trace = answer(segments=[segment(Role.TARGET, 4, prompt=10, cached=7)])
    # Positions 7 to 12 are computed, and 4 tokens predicted.
    written = 2 * (100 * 6 + 50 * 4 + 3 * (8 + 9 + 10 + 11 + 12 + 13))
    assert results([TARGET], [trace], models=models)["arms"][0]["flops"] == written
    trace.helpers = [HelperCall("logprob:target", [1], 0.0, tokens=5, cached=10)]
    scored = 2 * (100 * 5 + 50 * 4 + 3 * (11 + 12 + 13 + 14 + 15))
    assert results([TARGET], [trace], models=models)["arms"][0]["flops"] == written + scored
    # Two sequences of 3 new tokens after 6 known ones, and a token of each predicted.
    trace.helpers = [HelperCall("judge", [1, 1], 0.0, tokens=6, cached=12)]
    judged = 2 * (100 * 6 + 50 * 2 + 3 * 2 * (7 + 8 + 9))
    assert results([TARGET], [trace], models=models)["arms"][0]["flops"] == written + judged


def test_switches_cost_what_passes_between_the_writers_beyond_a_token():
    first, second, third = segment(Role.TARGET, 10), segment(Role.DRAFT, 11), segment(Role.TARGET, 1)
    first.first, first.last = 0.1, 1.0
    second.first, second.last = 1.5, 2.5
    third.first = third.last = 2.7
    timed = answer(segments=[first, second, third], name=LATENCY, seconds=3.0)
    timed.first_answer_token = 2.7
    first.text = "One.\n\nTwo.\n\n"
    arm = results([TARGET], [timed, answer()])["arms"][0]
    assert arm["switch_s"] == pytest.approx(((1.5 - 1.0 - 0.1) + (2.7 - 2.5)) / 2)
    assert arm["ttfat_s"]["p50"] == 2.7
    assert arm["step_s"]["p50"] == 1.0, "two steps, and what follows them is a third"


def test_energy_and_gpu_time_are_of_the_timed_answers():
    traces = [answer(energy_j=100.0, gpu_seconds=9.0)]
    traces += [answer(question=str(n), name=LATENCY, energy_j=n + 1.0, gpu_seconds=0.5) for n in range(3)]
    arm = results([TARGET], traces)["arms"][0]
    assert (arm["energy_j"], arm["gpu_seconds"]) == (2.0, 0.5)
    arm = results([TARGET], [*traces, answer(question="x", name=LATENCY)])["arms"][0]
    assert arm["energy_j"] is None, "an answer whose energy is not known leaves the mean open"


def test_shares_are_of_all_tokens_together():
    traces = [
        answer(question="a", segments=[segment(Role.TARGET, 90)]),
        answer(question="b", segments=[segment(Role.DRAFT, 10)]),
    ]
    arm = results([TARGET], traces)["arms"][0]
    assert arm["target_share"] == 0.9
    assert arm["relayed_fraction"] == 0.5


def test_a_truncated_answer_is_wrong_and_reported_apart():
    traces = [answer(question="a", finish="length"), answer(question="b"), answer(question="c", finish="timeout")]
    arm = results([TARGET], traces)["arms"][0]
    assert arm["accuracy"] == pytest.approx(1 / 3)
    assert (arm["truncated"], arm["timeouts"], arm["failures"]) == (1, 1, 0)


def test_a_question_that_failed_in_one_arm_leaves_all_arms_and_is_no_wrong_answer():
    traces = [answer(arm, str(n)) for n in range(200) for arm in ("target", "draft") if (arm, n) != ("draft", 7)]
    found = results([TARGET, DRAFT], traces)
    arms = by_label(found)
    assert (arms["target"]["n"], arms["draft"]["n"]) == (199, 199)
    assert (arms["target"]["failures"], arms["draft"]["failures"]) == (0, 1)
    assert arms["draft"]["accuracy"] == 1
    assert found["valid"]


def test_more_than_one_percent_of_failures_make_the_comparison_invalid():
    traces = [answer("target", str(n)) for n in range(197)]
    found = results([TARGET], traces, questions={QUALITY: [str(n) for n in range(200)]})
    assert not found["valid"]
    assert "3 of 200 questions" in found["reason"]


def test_a_grader_timeout_leaves_all_arms_and_is_reported():
    traces = [answer(arm, str(n)) for n in range(150) for arm in ("target", "draft")]
    traces[1].extra["grade"] = "timeout"
    arms = by_label(results([TARGET, DRAFT], traces))
    assert (arms["target"]["n"], arms["draft"]["grader_timeouts"], arms["draft"]["failures"]) == (149, 1, 0)
    assert arms["draft"]["accuracy"] == 1


def test_the_reason_names_what_helps_against_a_grader_that_gives_up():
    found = results([TARGET], [answer("target", f"q{n}", grade="timeout" if n < 2 else "correct") for n in range(20)])
    assert not found["valid"]
    assert "grader_timeout_s" in found["reason"]
    assert "run the same command again" not in found["reason"]
    lost = results(
        [TARGET], [answer("target", f"q{n}") for n in range(9)], questions={QUALITY: [f"q{n}" for n in range(10)]}
    )
    assert "see failures.jsonl and run the same command again" in lost["reason"]


def test_deltas_and_tests_are_paired_with_the_target_and_adjusted_over_arms():
    third = Arm("third", "draft", {}, "transformers")
    traces = []
    for n in range(20):
        traces.append(answer("target", str(n)))
        traces.append(answer("draft", str(n), grade="wrong" if n < 8 else "correct"))
        traces.append(answer("third", str(n), grade="wrong" if n < 2 else "correct"))
    arms = by_label(results([TARGET, DRAFT, third], traces))
    assert arms["target"]["accuracy_delta"] is None
    assert arms["draft"]["accuracy_delta"] == pytest.approx(-0.4)
    low, high = arms["draft"]["accuracy_delta_ci"]
    assert low < -0.4 < high < 0
    # Mid-p values: half of the exact ones, since nothing is more extreme.
    assert arms["draft"]["mcnemar_p"] == pytest.approx(2 * (1 / 2**8))
    assert arms["third"]["mcnemar_p"] == pytest.approx(1 / 2**2)


def test_an_arm_is_compared_with_the_control_that_was_given_its_share():
    control = Arm("random", "random", {}, "transformers", control_of="draft")
    traces = []
    for n in range(20):
        traces += [answer("target", str(n)), answer("draft", str(n))]
        traces.append(answer("random", str(n), grade="wrong" if n < 5 else "correct"))
    arms = by_label(results([TARGET, DRAFT, control], traces))
    assert arms["draft"]["control"]["label"] == "random"
    assert arms["draft"]["control"]["accuracy_delta"] == pytest.approx(0.25)
    assert (
        0 < arms["draft"]["control"]["accuracy_delta_ci"][0] < 0.25 < arms["draft"]["control"]["accuracy_delta_ci"][1]
    )
    assert arms["target"]["control"] is None
    assert arms["random"]["control"] is None


def split(arm, question, target, draft, grade):
    return answer(arm, question, grade=grade, segments=[segment(Role.TARGET, target), segment(Role.DRAFT, draft)])


def test_without_a_control_of_its_own_an_arm_is_compared_with_chance_mixed_to_its_share():
    half, most = (Arm(f"random {s}", "random", {"share": s}, "transformers") for s in (0.5, 0.8))
    arm = Arm("rsd", "rsd", {}, "transformers")
    traces = []
    for n in range(40):
        q = str(n)
        traces += [answer("target", q), split("draft", q, 0, 10, "wrong")]
        traces.append(split(half.label, q, 5, 5, "correct" if n % 2 else "wrong"))
        # Twice as long: the same weight of it brings twice the tokens.
        traces.append(split(most.label, q, 16, 4, "correct" if n % 4 else "wrong"))
        traces.append(split("rsd", q, 7, 3, "correct"))
    arms = by_label(results([TARGET, DRAFT, half, most, arm], traces))
    control = arms["rsd"]["control"]
    assert control["label"] == "random 0.5 / random 0.8"
    low, high = control["weights"]["random 0.5"], control["weights"]["random 0.8"]
    assert low + high == pytest.approx(1)
    assert (5 * low + 16 * high) / (10 * low + 20 * high) == pytest.approx(0.7)
    assert control["accuracy_delta"] == pytest.approx(1 - (0.5 * low + 0.75 * high))
    assert 0 < control["accuracy_delta_ci"][0] < control["accuracy_delta"] < control["accuracy_delta_ci"][1]
    assert all(arms[a]["control"] is None for a in ("target", "draft", half.label, most.label))
    assert by_label(results([TARGET, DRAFT, arm], traces))["rsd"]["control"] is None


def test_samples_of_a_question_are_averaged():
    traces = [
        answer("target", q, sample=s, grade="correct" if s == 0 else "wrong") for q in ("a", "b") for s in range(4)
    ]
    arm = results([TARGET], traces, samples=4)["arms"][0]
    assert (arm["n"], arm["samples"], arm["accuracy"]) == (2, 4, 0.25)
    assert arm["seeds"] is None


def test_levels_are_reported_apart():
    traces = [answer(question="a", level="1"), answer(question="b", level="2", grade="no_answer")]
    levels = results([TARGET], traces)["arms"][0]["by_level"]
    assert levels == {
        "1": {"n": 1, "accuracy": 1.0, "target_share": 1.0, "draft_only": 0.0},
        "2": {"n": 1, "accuracy": 0.0, "target_share": 1.0, "draft_only": 0.0},
    }


def latency(arm, seconds, started=0.0):
    return [
        answer(arm, str(n), name=LATENCY, seconds=s, started=started + 10.0 * n, grade="wrong")
        for n, s in enumerate(seconds)
    ]


def test_speedups_are_of_the_same_questions_in_the_latency_pass():
    traces = [answer(arm, "0") for arm in ("target", "draft")]
    traces += latency("target", [2.0, 4.0, 9.0]) + latency("draft", [1.0, 1.0, 1.0])
    arms = by_label(results([TARGET, DRAFT], traces))
    assert arms["draft"]["speedup"]["p50"] == 4
    assert arms["draft"]["speedup"]["mean"] == 5
    assert arms["target"]["speedup"]["p50"] == arms["target"]["speedup"]["mean"] == 1
    assert arms["draft"]["latency_s"]["p50"] == 1
    assert arms["draft"]["latency_s"]["p99"] is None
    assert arms["target"]["tpot_s"]["p50"] == pytest.approx((4.0 - 0.1) / 9)
    assert arms["target"]["ttft_s"]["p50"] == 0.1
    assert arms["target"]["throughput_tps"] == pytest.approx(30 / 15)
    assert arms["target"]["accuracy"] == 1, "the latency pass has no say in accuracy"


def test_clients_at_once_are_those_of_one_machine_while_something_is_timed():
    def timed(question, client, started, name=LATENCY, seconds=10.0):
        return answer("target", question, name=name, seconds=seconds, started=started, client=client)

    def clients(*traces):
        run = Run([TARGET], {name: [str(n) for n in range(9)] for name in (QUALITY, LATENCY)})
        for trace in traces:
            run.add(metrics.record(trace))
        return metrics.clients(run)

    alone = [timed("0", "m 1/2", 0.0), timed("1", "m 1/2", 10.0)]
    assert clients(*alone) == {"most": 1, "mean": 1.0}
    assert clients(*alone, timed("2", "m 2/2", 5.0)) == {"most": 2, "mean": 1.5}
    assert clients(*alone, timed("2", "other 2/2", 5.0)) == {"most": 1, "mean": 1.0}
    assert clients(*alone, timed("2", "m 2/2", -100.0, QUALITY, 105.0)) == {"most": 2, "mean": 1.25}
    assert clients(timed("0", "m 1/2", 0.0, QUALITY)) is None


def test_overlapping_answers_share_the_clock_in_the_throughput():
    traces = [answer("target", "0"), *latency("target", [15.0, 10.0])]
    assert results([TARGET], traces)["arms"][0]["throughput_tps"] == pytest.approx(20 / 20)


def test_an_answer_that_was_cut_off_took_at_least_its_deadline():
    seconds = [float(n) for n in range(1, 31)]
    slow = latency("draft", [*seconds[:-2], 60.0, 60.0])
    for trace in slow[-2:]:
        trace.finish, trace.first_token = "timeout", None
    arms = by_label(results([TARGET, DRAFT], latency("target", seconds) + slow))
    assert arms["draft"]["timeouts"] == 2
    assert arms["draft"]["latency_s"]["p50"] == 15.5
    assert arms["draft"]["latency_s"]["p90"] == pytest.approx(27.1)
    assert arms["draft"]["latency_s"]["p95"] is arms["draft"]["ttft_s"]["p95"] is None
    assert arms["draft"]["latency_s"]["p95_ci"] is None
    assert arms["draft"]["latency_s"]["p90_ci"][1] is None
    assert arms["draft"]["speedup"]["p50"] == 1
    assert arms["draft"]["speedup"]["mean"] is None, "two of the ratios are not known"


def test_equal_arms_are_equivalent_within_the_margin_where_there_are_questions_enough():
    def traces(n):
        return [answer(arm, str(k), grade="wrong" if k % 5 == 0 else "correct") for k in range(n) for arm in
                ("target", "draft")]  # fmt: skip

    few, many = (by_label(results([TARGET, DRAFT], traces(n)))["draft"] for n in (40, 400))
    assert few["equivalence_p"] > 0.05 > many["equivalence_p"]
    assert many["mcnemar_p"] == 1
    assert 0 < many["minimum_detectable_difference"] < few["minimum_detectable_difference"]


def test_seeds_are_told_apart_from_samples():
    traces = []
    for n in range(30):
        for s in range(6):
            # Three seeds of two samples; the second seed is bad.
            traces.append(answer("target", str(n), sample=s, grade="wrong" if s in (2, 3) and n % 2 else "correct"))
            traces.append(answer("draft", str(n), sample=s, grade="wrong" if n % 3 == 0 else "correct"))
    run = Run([TARGET, DRAFT], {QUALITY: [str(n) for n in range(30)]}, samples=2, seeds=3)
    for trace in traces:
        run.add(metrics.record(trace))
    arms = by_label(metrics.results(run, {}))
    assert (arms["target"]["n"], arms["target"]["samples"]) == (30, 2)
    assert arms["target"]["seeds"]["accuracy"] == [1.0, 0.5, 1.0]
    assert arms["target"]["seeds"]["sd_seeds"] > 0.2
    assert arms["draft"]["seeds"]["sd_seeds"] == 0
    seeds = arms["draft"]["seeds"]["accuracy_delta_ci"]
    plain = arms["draft"]["accuracy_delta_ci"]
    assert seeds[1] - seeds[0] > 2 * (plain[1] - plain[0])


@pytest.mark.parametrize(("n", "there"), [(299, False), (300, True)])
def test_a_p99_needs_300_answers(n, there):
    seconds = [1.0 + k / n for k in range(n)]
    arms = by_label(results([TARGET, DRAFT], latency("target", seconds) + latency("draft", seconds)))
    assert (arms["draft"]["latency_s"]["p99"] is not None) == there
    assert (arms["draft"]["latency_s"]["p99_ci"] is not None) == there
    assert (arms["draft"]["speedup"]["p99"] is not None) == there


def test_a_question_that_failed_in_the_latency_pass_leaves_its_pass_only():
    traces = [answer(arm, str(n)) for n in range(3) for arm in ("target", "draft")]
    traces += latency("target", [2.0, 4.0, 100.0]) + latency("draft", [1.0, 1.0])
    found = results([TARGET, DRAFT], traces)
    arms = by_label(found)
    assert arms["target"]["latency_s"]["p50"] == 3
    assert (arms["target"]["n"], arms["draft"]["failures"]) == (3, 1)
    assert "latency pass" in found["reason"]


def test_an_answer_row_shows_what_was_graded():
    trace = (
        answer(segments=[segment(Role.TARGET, 3), Segment(id=2, parent=1, branch=0, role=Role.DRAFT, kept=True,
               kept_tokens=2, phase=Phase.ANSWER, text="It is \\boxed{7}.")])
    )  # fmt: skip
    row = metrics.answer_row(trace, metrics.record(trace))
    assert (row["answer"], row["grade"], row["correct"], row["tokens"], row["target_tokens"]) == (
        "7",
        "correct",
        True,
        5,
        3,
    )
    undecided = answer(grade="timeout")
    assert metrics.answer_row(undecided, metrics.record(undecided))["correct"] is None


def test_scores_of_a_grader_take_the_place_of_right_and_wrong():
    traces = [
        answer(question=str(n), grade="correct" if score > 0.5 else "wrong", score=score, gold="x" * length,
               segments=[segment(Role.TARGET, 10, phase=Phase.ANSWER)])
        for n, (score, length) in enumerate([(1.0, 1), (0.5, 6), (0.5, 6), (0.0, 11)])
    ]  # fmt: skip
    for trace in traces:
        trace.segments[0].text = "y" * 6
    assert [metrics.record(trace).longer for trace in traces] == [5, 0, 0, -5]
    arm = results([TARGET], traces)["arms"][0]
    assert arm["accuracy"] == pytest.approx(0.5)
    assert arm["by_level"]["1"]["accuracy"] == pytest.approx(0.5)
    assert arm["win_rate_length_controlled"] == pytest.approx(0.5, abs=0.01)
    assert metrics.answer_row(traces[1])["score"] == 0.5
    cut = answer(score=1.0, finish="length")
    assert metrics.record(cut).worth == 0.0, "a truncated answer counts as wrong"
