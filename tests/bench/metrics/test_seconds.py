"""Latencies, speed-ups and throughput of the timed answers."""

from __future__ import annotations

import pytest
from made_answers import DRAFT, TARGET, answer, by_label, latency, results


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


@pytest.mark.parametrize(("n", "there"), [(299, False), (300, True)])
def test_a_p99_needs_300_answers(n, there):
    seconds = [1.0 + k / n for k in range(n)]
    arms = by_label(results([TARGET, DRAFT], latency("target", seconds) + latency("draft", seconds)))
    assert (arms["draft"]["latency_s"]["p99"] is not None) == there
    assert (arms["draft"]["latency_s"]["p99_ci"] is not None) == there
    assert (arms["draft"]["speedup"]["p99"] is not None) == there
