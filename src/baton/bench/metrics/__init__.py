"""From traces to `results.json`: the one place that knows what its figures mean.

`record` reduces a trace to the few numbers that metrics need, so that a run of any size is read in one pass;
`results` makes the table of arms from those. A figure that was not measured is None.

Units and scopes: seconds; tokens and FLOPs are means an answer; accuracy, shares, tokens and FLOPs come from the
quality pass, latencies, energy and GPU time from the latency pass. A question that failed in any arm, or that the
grader could not decide in any arm, leaves all arms of that pass. `docs/results.md` has every field.
"""

from baton.bench.metrics.accuracies import correctness, worths
from baton.bench.metrics.records import CALIBRATION, LATENCY, LOAD, QUALITY, Key, Record, answer_row, key, record
from baton.bench.metrics.run import Arm, Run, clients, flops, sampled_share, share
from baton.bench.metrics.seconds import P99_ANSWERS, latency
from baton.bench.metrics.table import FAILED_LIMIT, baseline_label, read_results, results
from baton.bench.metrics.tokens import tally

__all__ = [
    "CALIBRATION",
    "FAILED_LIMIT",
    "LATENCY",
    "LOAD",
    "P99_ANSWERS",
    "QUALITY",
    "Arm",
    "Key",
    "Record",
    "Run",
    "answer_row",
    "baseline_label",
    "clients",
    "correctness",
    "flops",
    "key",
    "latency",
    "read_results",
    "record",
    "results",
    "sampled_share",
    "share",
    "tally",
    "worths",
]
