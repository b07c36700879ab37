"""The table of arms: what the contract of results.json asks for, and which answers count."""

from __future__ import annotations

from made_answers import DRAFT, TARGET, answer, by_label, latency, results

from baton.bench.metrics import LATENCY, QUALITY

CONTRACT = [
    "router", "knobs", "engine", "speculation", "n", "samples", "failures", "truncated", "timeouts", "accuracy",
    "accuracy_ci", "accuracy_delta", "accuracy_delta_ci", "mcnemar_p", "by_level", "target_share",
    "target_sampled_share", "switches", "accept_rate", "acceptance_length", "relayed_fraction", "latency_s", "ttft_s",
    "tpot_s", "throughput_tps", "goodput_rps", "speedup", "speedup_vs_speculation", "tokens", "flops",
    "gpu_memory_bytes", "energy_j", "ece",
]  # fmt: skip


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


def test_energy_and_gpu_time_are_of_the_timed_answers():
    traces = [answer(energy_j=100.0, gpu_seconds=9.0)]
    traces += [answer(question=str(n), name=LATENCY, energy_j=n + 1.0, gpu_seconds=0.5) for n in range(3)]
    arm = results([TARGET], traces)["arms"][0]
    assert (arm["energy_j"], arm["gpu_seconds"]) == (2.0, 0.5)
    arm = results([TARGET], [*traces, answer(question="x", name=LATENCY)])["arms"][0]
    assert arm["energy_j"] is None, "an answer whose energy is not known leaves the mean open"


def test_a_question_that_failed_in_one_arm_leaves_all_arms_and_is_no_wrong_answer():
    traces = [answer(arm, str(n)) for n in range(200) for arm in ("target", "draft") if (arm, n) != ("draft", 7)]
    found = results([TARGET, DRAFT], traces)
    arms = by_label(found)
    assert (arms["target"]["n"], arms["draft"]["n"]) == (199, 199)
    assert (arms["target"]["failures"], arms["draft"]["failures"]) == (0, 1)
    assert arms["draft"]["accuracy"] == 1
    assert found["valid"]


def test_a_question_that_failed_in_the_latency_pass_leaves_its_pass_only():
    traces = [answer(arm, str(n)) for n in range(3) for arm in ("target", "draft")]
    traces += latency("target", [2.0, 4.0, 100.0]) + latency("draft", [1.0, 1.0])
    found = results([TARGET, DRAFT], traces)
    arms = by_label(found)
    assert arms["target"]["latency_s"]["p50"] == 3
    assert (arms["target"]["n"], arms["draft"]["failures"]) == (3, 1)
    assert "latency pass" in found["reason"]


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
