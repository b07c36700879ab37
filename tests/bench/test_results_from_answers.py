"""Published answers give the figures that a run had from its traces."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from made_answers import answer, results, segment

from baton.bench import metrics
from baton.bench.metrics import LATENCY, QUALITY, Arm
from baton.records import write_json
from baton.trace import Role

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))
import results_from_answers


def test_answers_give_the_figures_and_the_rest_is_kept(tmp_path):
    arms = [Arm("target", "target", {}, "e"), Arm("relay", "relaygen", {}, "e"),
            Arm("chance", "random", {"share": 0.5}, "e", control_of="relay")]  # fmt: skip
    traces = []
    for n in range(12):
        for k, arm in enumerate(arms):
            share = {"target": 10, "relay": 5, "chance": 5}[arm.label]
            written = [segment(Role.TARGET, share), segment(Role.DRAFT, 10 - share)]
            for sample in range(2):
                grade = "wrong" if (n + sample) % (7 - 2 * k) == 0 else "correct"
                traces.append(answer(arm.label, f"q{n}", grade=grade, sample=sample, segments=written))
            cut = "timeout" if arm.label == "chance" and n == 11 else "end_of_text"
            timed = answer(arm.label, f"q{n}", name=LATENCY, seconds=1 + n / (1 + k), segments=written, finish=cut)
            traces.append(timed)
    found = results(
        arms, traces, samples=2, questions={name: [f"q{n}" for n in range(12)] for name in (QUALITY, LATENCY)}
    )
    write_json(tmp_path / "results.json", found)
    rows = [json.dumps(metrics.answer_row(t)) + "\n" for t in traces]
    (tmp_path / "answers.jsonl").write_text("".join(rows))
    again = results_from_answers.results_of(tmp_path)
    assert json.loads(json.dumps({**again, "pareto": None})) == json.loads(json.dumps({**found, "pareto": None}))
    assert again["pareto"]["latency_p50"]
    # Of an earlier version: what it did not have is made, what answers do not tell stays.
    for arm in found["arms"]:
        arm |= {"equivalence_p": None, "accuracy_ci": [0, 1], "tokens": {"prefill": 7}}
    write_json(tmp_path / "results.json", found)
    renewed = results_from_answers.results_of(tmp_path)["arms"][1]
    assert renewed["equivalence_p"] == again["arms"][1]["equivalence_p"] is not None
    assert renewed["accuracy_ci"] == again["arms"][1]["accuracy_ci"]
    assert renewed["tokens"] == {"prefill": 7}
