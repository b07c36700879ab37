"""Figures of a whole run: shares of all its tokens, and the clients that timed it."""

from __future__ import annotations

from made_answers import TARGET, answer, results, segment

from baton.bench import metrics
from baton.bench.metrics import LATENCY, QUALITY, Run
from baton.trace import Role


def test_shares_are_of_all_tokens_together():
    traces = [
        answer(question="a", segments=[segment(Role.TARGET, 90)]),
        answer(question="b", segments=[segment(Role.DRAFT, 10)]),
    ]
    arm = results([TARGET], traces)["arms"][0]
    assert arm["target_share"] == 0.9
    assert arm["relayed_fraction"] == 0.5


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
