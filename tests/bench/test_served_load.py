"""A load on a served model finds the delays that the server was set to."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

import compare_load_generators as tools

REQUESTS = 30


def test_a_served_model_is_measured_as_slow_as_it_was_made():
    delays = (3, 0.5, 0.3, 0.05)
    with tools.served(*delays) as url:
        found, cell = tools.by_baton(url, REQUESTS, concurrency=6)
    wanted = tools.set_delays(*delays, REQUESTS)
    assert cell["n"] == REQUESTS
    assert cell["failures"] == 0
    # A round of answers warms up, which makes these nearly the same ones.
    assert found["ttft p50"] == pytest.approx(wanted["ttft p50"], rel=0.25)
    assert found["latency p50"] == pytest.approx(wanted["latency p50"], rel=0.2)
    assert cell["throughput_tps"] == pytest.approx(tools.TOKENS * cell["answered_rps"])
    assert cell["in_flight"] == pytest.approx(6, rel=0.1)
