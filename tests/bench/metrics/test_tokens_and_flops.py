"""What was computed for an answer: every token once, and the FLOPs that follow from the contexts."""

from __future__ import annotations

import pytest
from made_answers import DRAFT, TARGET, answer, results, segment, sized

from baton.bench.metrics import Arm
from baton.boundary import CANCELLED
from baton.flops import Architecture
from baton.trace import Decision, HelperCall, Kind, Role, Segment


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


def test_a_committed_part_of_a_segment_leaves_the_rest_discarded():
    cut = segment(Role.DRAFT, 20, overshoot=1)
    cut.ids, cut.kept_tokens = cut.ids[:5], 5
    assert results([DRAFT], [answer("draft", segments=[cut])])["arms"][0]["tokens"]["discarded"] == 15


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
