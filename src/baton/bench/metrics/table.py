"""The table of arms."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from baton.bench import statistics
from baton.bench.grading import Grade
from baton.bench.metrics.accuracies import accuracy, control
from baton.bench.metrics.figures import known_mean, mean, ratio
from baton.bench.metrics.records import LATENCY, QUALITY, Record
from baton.bench.metrics.run import Arm, Run, flops, sampled_share, share
from baton.bench.metrics.seconds import clocked, first_token, percentiles, speedup, throughput
from baton.records import read_json
from baton.trace import Role

SCHEMA = 1
FAILED_LIMIT = 0.01
"""Share of questions that may be missing before a comparison is invalid."""


def read_results(file: Path) -> dict[str, Any]:
    """A run's `results.json`.

    Raises:
        OSError: it cannot be opened.
        ValueError: it is damaged, or holds something else.
    """
    found = read_json(file, "run the comparison again")
    if not isinstance(found, dict) or not isinstance(found.get("arms"), list) or found.get("schema") != SCHEMA:
        raise ValueError(f"{file} holds no results; give a results.json that `baton compare` wrote")
    return found


def results(run: Run, header: Mapping[str, Any]) -> dict[str, Any]:
    """The content of `results.json`. `header` holds what is not read from traces (pair, task, split, load ...).

    Deltas, tests (McNemar's and that of equivalence, each adjusted by Holm over all arms) and speed-ups are against
    `baseline_label`'s arm; `speedup_vs_speculation` is against the first `target` that speculates. Without such an arm
    they are None.
    """
    chosen = baseline_label([asdict(a) for a in run.arms])
    baseline = next((a for a in run.arms if a.label == chosen), None)
    speculating = next((a for a in run.arms if a.router == "target" and Role.TARGET in (a.speculation or {})), None)
    arms = [_arm(run, arm, baseline, speculating) for arm in run.arms]
    for test in ("mcnemar_p", "equivalence_p"):
        tested = [a for a in arms if a[test] is not None]
        for arm, p in zip(tested, statistics.holm([a[test] for a in tested]), strict=True):
            arm[test] = p
    reason = _invalid(run)
    asked = {name: len(ids) for name, ids in run.questions.items()}
    return {
        "schema": SCHEMA, **header, "margin": run.margin, "questions": asked, "valid": reason is None,
        "reason": reason, "arms": arms,
    }  # fmt: skip


def baseline_label(arms: Iterable[Mapping[str, Any]]) -> str | None:
    """Which of the arms of `results.json` the others are compared with: the first whose router is `target`, one whose
    target does not speculate if there is one. None without such an arm."""
    targets = [a for a in arms if a["router"] == "target"]
    plain = (a for a in targets if Role.TARGET not in (a.get("speculation") or {}))
    found = next(plain, targets[0] if targets else None)
    return None if found is None else str(found["label"])


def _invalid(run: Run) -> str | None:
    """Why the comparison does not count; None if it does."""
    for name, ids in run.questions.items():
        gone = len(run.left(name))
        if gone > FAILED_LIMIT * len(ids):
            failed = any(run.failures(name, arm) for arm in run.arms)
            # An answer is graded once: a second start does not try that again.
            remedy = (
                "see failures.jsonl and run the same command again" if failed else
                "see grade_reason in traces.jsonl, and give the grader more time (grader_timeout_s) in another --out"
            )  # fmt: skip
            return (
                f"{gone} of {len(ids)} questions of the {name} pass failed or could not be graded in some arm "
                f"(limit {FAILED_LIMIT:.0%}); {remedy}"
            )
    return None


def _arm(run: Run, arm: Arm, baseline: Arm | None, speculating: Arm | None) -> dict[str, Any]:
    answers = run.scored(QUALITY, arm)
    timed = run.scored(LATENCY, arm)
    other = None if baseline is None or baseline is arm else baseline
    everything = [r for name in run.questions for r in run.answers(name, arm).values()]
    return {
        "label": arm.label,
        "router": arm.router,
        "knobs": arm.knobs,
        "engine": arm.engine,
        "speculation": arm.speculation,
        "n": len(answers) // (run.seeds * run.samples),
        "samples": run.samples,
        "failures": sum(run.failures(name, arm) for name in run.questions),
        "truncated": sum(r.finish == "length" for r in answers),
        "timeouts": sum(r.finish == "timeout" for r in everything),
        "grader_timeouts": sum(r.grade is Grade.TIMEOUT for r in run.answers(QUALITY, arm).values()),
        **accuracy(run, answers, run.scored(QUALITY, other) if other else None),
        "control": control(run, arm, answers),
        "target_share": share(answers),
        "target_sampled_share": sampled_share(answers),
        "switches": mean([r.switches for r in answers]),
        "accept_rate": ratio(sum(r.accepted for r in answers), sum(r.decided for r in answers)),
        "acceptance_length": _acceptance_length(answers) if Role.TARGET in (arm.speculation or {}) else None,
        "relayed_fraction": mean([r.draft > 0 for r in answers]),
        "latency_s": percentiles([clocked(r) for r in timed], with_intervals=True),
        "ttft_s": percentiles([c for r in timed if (c := first_token(r, r.first_token)) is not None]),
        "ttfat_s": percentiles([c for r in timed if (c := first_token(r, r.first_answer_token)) is not None]),
        "step_s": percentiles([(r.seconds / r.steps, False) for r in timed if r.steps]),
        "switch_s": ratio(sum(r.switch_seconds for r in timed), sum(r.switches for r in timed)),
        "tpot_s": percentiles([(t, False) for r in timed if (t := r.token_seconds) is not None]),
        "throughput_tps": throughput(timed),
        "goodput_rps": None,
        "speedup": speedup(timed, run.scored(LATENCY, baseline) if baseline else []),
        "speedup_vs_speculation": speedup(timed, run.scored(LATENCY, speculating)) if speculating else None,
        "tokens": _tokens(answers),
        "flops": flops(answers),
        "memory_bytes": run.memory.get(arm.label),
        "gpu_memory_bytes": max((r.gpu_memory for r in everything if r.gpu_memory is not None), default=None),
        "gpu_seconds": known_mean([r.gpu_seconds for r in timed or answers]),
        "energy_j": known_mean([r.energy for r in timed or answers]),
        "ece": None,
    }


def _acceptance_length(answers: list[Record]) -> float | None:
    """Tokens a forward of the target; 1 where speculation gains nothing, None where the engine tells of none."""
    tokens, forwards = (sum(r.stepped[n] for r in answers) for n in (0, 1))
    if tokens == forwards and not any(r.unaccepted for r in answers):
        return None
    return ratio(tokens, forwards)


def _tokens(answers: list[Record]) -> dict[str, float | None]:
    """Means an answer. `target` and `draft` are kept tokens; `prefill` is prompt tokens that no cache had."""
    return {
        **{name: mean([getattr(r, name) for r in answers]) for name in ("target", "draft", "discarded", "overshoot")},
        "helper": mean([r.helper for r in answers]),
        "prefill": mean([r.prefill for r in answers]),
    }
