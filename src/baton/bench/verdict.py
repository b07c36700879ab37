"""What a comparison says, in sentences: which router, what it saves, what it costs, and how sure that is.

Everything is derived from `results.json`; a figure that is null or absent is left out, or said not to be measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from baton.bench.metrics import baseline_label

MARGIN = 0.02
"""Accuracy that may be lost for a router to count as keeping the target's, where results name no margin."""
BASELINES = ("target", "draft", "random")

Arm = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer first; each list holds whole sentences, the weightiest first."""

    headline: str
    label: str | None = None
    """Label of the arm that the sentences are about."""
    saves: list[str] = field(default_factory=list)
    costs: list[str] = field(default_factory=list)
    sure: list[str] = field(default_factory=list)
    mind: list[str] = field(default_factory=list)


def verdict(results: Mapping[str, Any]) -> Verdict:
    """The sentences of a comparison.

    The arm they are about is, of those whose accuracy is shown to stay within the margin of the target's, the one
    that saves most time (or, where time was not measured, most FLOPs or target tokens); if there is none, the one that
    comes nearest to the target's accuracy.
    """
    arms = results["arms"]
    baseline = baseline_label(a for a in arms if get(a, "accuracy") is not None)
    target = next((a for a in arms if a["label"] == baseline), None)
    mind = _mind(results)
    if target is None:
        return Verdict(f"Nothing can be said against the target alone: {_no_target(arms)}", mind=mind)
    others = [a for a in arms if a is not target and a["router"] != "random" and get(a, "accuracy_delta") is not None]
    if not others:
        return Verdict("There is no router to compare with the target: no other arm has been answered.", mind=mind)
    margin = results.get("margin") or MARGIN
    kept = [a for a in others if _is_kept(a)]
    arm = max(kept, key=_saving(kept, target)) if kept else max(others, key=lambda a: a["accuracy_delta"])
    headline = _kept(arm, target, margin) if kept else _lost(arm, others, margin)
    return Verdict(headline, arm["label"], _saves(arm, target), _costs(arm, target), _sure(results, arm, kept), mind)


def _is_kept(arm: Arm) -> bool:
    """Whether an arm is shown to be no worse than the target by more than the margin: by the test of equivalence or,
    where it is better, of difference, both corrected for the number of arms. The interval is not, and says nothing."""
    p = get(arm, "equivalence_p")
    if p is None:
        return False
    better, differs = get(arm, "accuracy_delta"), get(arm, "mcnemar_p")
    return bool(p < 0.05 or (better > 0 and differs is not None and differs < 0.05))


def get(arm: Arm, *path: str) -> Any:
    """A figure of an arm by its path of keys; None where any of them is absent or null."""
    here: Any = arm
    for name in path:
        here = here.get(name) if isinstance(here, Mapping) else None
    return here


def _no_target(arms: Sequence[Arm]) -> str:
    if any(a["router"] == "target" for a in arms):
        return "it has no answers that count."
    return "no arm has the router `target`."


def _saving(kept: Sequence[Arm], target: Arm) -> Any:
    """Orders arms by the first of time, FLOPs and target share that all of them have."""
    measures = (
        lambda a: get(a, "speedup", "mean"),
        lambda a: _inverse(a, target, "flops"),
        lambda a: -a["target_share"] if get(a, "target_share") is not None else None,
    )
    return next((m for m in measures if all(m(a) is not None for a in kept)), lambda a: a["accuracy"])


def _inverse(arm: Arm, target: Arm, name: str) -> float | None:
    ours, theirs = get(arm, name), get(target, name)
    return theirs / ours if ours and theirs is not None else None


def _kept(arm: Arm, target: Arm, margin: float) -> str:
    start = f"{arm['label']} keeps the target's accuracy to within {_points(margin)} points"
    mean, interval = get(arm, "speedup", "mean"), get(arm, "speedup", "ci")
    if mean is None:
        flops = _inverse(arm, target, "flops")
        share = get(arm, "target_share")
        if flops is not None and flops > 1:
            return f"{start} for {_percent(1 / flops)} of its FLOPs; time was not measured."
        written = f" and lets the target write {_percent(share)} of the tokens" if share is not None else ""
        return f"{start}{written}; time was not measured."
    if interval and interval[0] > 1:
        return f"{start} and answers {mean:.2f} times as fast{times_interval(interval)}."
    if interval and interval[1] < 1:
        return f"{start}, but it saves no time: it answers {mean:.2f} times as fast{times_interval(interval)}."
    return f"{start}, but no saving of time is shown: {mean:.2f} times as fast{times_interval(interval)}."


def _lost(arm: Arm, others: Sequence[Arm], margin: float) -> str:
    intervals = [get(a, "accuracy_delta_ci") for a in others]
    out = f"No router is shown to stay within {_points(margin)} points of the target's accuracy. "
    nearest = f"The nearest, {arm['label']}, is {_signed(arm['accuracy_delta'])} points off"
    nearest += f"{points_interval(get(arm, 'accuracy_delta_ci'))}."
    if any(i is None or i[1] >= -margin for i in intervals):
        nearest += " More questions may tell: an interval reaches into the margin."
    return out + nearest


def _saves(arm: Arm, target: Arm) -> list[str]:
    out = []
    mean, ours, theirs = get(arm, "speedup", "mean"), get(arm, "latency_s", "p50"), get(target, "latency_s", "p50")
    if ours is not None and theirs is not None:
        said = f"Time: half of its answers took at most {seconds(ours)}, of the target's {seconds(theirs)}"
        if mean is not None:
            said += f"; question by question it was {mean:.2f} times as fast{times_interval(get(arm, 'speedup', 'ci'))}"
        out.append(said + ".")
    else:
        out.append("Time: not measured.")
    against = get(arm, "speedup_vs_speculation", "mean")
    # A target that speculates would be set against itself.
    if against is not None and arm["router"] != "target":
        interval = times_interval(get(arm, "speedup_vs_speculation", "ci"))
        out.append(f"Against the target with speculation it was {against:.2f} times as fast{interval}.")
    share, sampled = get(arm, "target_share"), get(arm, "target_sampled_share")
    if share is not None:
        said = f"Target tokens: the target wrote {_percent(share)} of what was kept"
        if sampled is not None and sampled - share > 0.01:
            said += f", and {_percent(sampled)} of all that was sampled"
        out.append(said + ".")
    flops = _inverse(arm, target, "flops")
    if flops is None:
        out.append("FLOPs: not measured.")
    elif flops > 1:
        out.append(f"FLOPs: an answer took {_percent(1 / flops)} of the target's.")
    for name, key in (("Energy", "energy_j"), ("GPU memory", "gpu_memory_bytes")):
        ratio = _inverse(arm, target, key)
        if ratio is not None and ratio > 1:
            out.append(f"{name}: {_percent(1 / ratio)} of the target's.")
    return out


def _costs(arm: Arm, target: Arm) -> list[str]:
    delta = f"{_signed(arm['accuracy_delta'])} points{points_interval(get(arm, 'accuracy_delta_ci'))}"
    out = [
        f"Accuracy: {percent1(arm['accuracy'])} of its answers are right, {percent1(target['accuracy'])} of the "
        f"target's; the difference is {delta}."
    ]
    discarded, helper = get(arm, "tokens", "discarded"), get(arm, "tokens", "helper")
    if discarded:
        out.append(f"Thrown away: {discarded:.1f} sampled tokens an answer.")
    if helper:
        out.append(f"Helpers: {helper:.0f} tokens an answer were computed to judge or to probe.")
    for name, key in (("FLOPs", "flops"), ("Energy", "energy_j"), ("GPU memory", "gpu_memory_bytes")):
        ratio = _inverse(arm, target, key)
        if ratio is not None and ratio < 1:
            out.append(f"{name}: {1 / ratio:.2f} times the target's.")
    return out


def _sure(results: Mapping[str, Any], arm: Arm, kept: Sequence[Arm]) -> list[str]:
    timed = get(results, "questions", "latency") or 0
    samples = f", {arm['samples']} answers each" if (get(arm, "samples") or 1) > 1 else ""
    out = [f"{arm['n']:,} questions{samples} for accuracy, {timed:,} for time. Intervals are at 95 %."]
    if (p := get(arm, "mcnemar_p")) is not None:
        tests = sum(get(a, "mcnemar_p") is not None for a in results["arms"])
        over = f", corrected for {tests} arms," if tests > 1 else ""
        told = "tells it apart from the target" if p < 0.05 else "does not tell it apart from the target"
        out.append(f"McNemar's test{over} {told} (p = {p_value(p)}).")
    if (p := get(arm, "equivalence_p")) is not None:
        told = "are shown to be" if p < 0.05 else "are not shown to be"
        out.append(
            f"The two {told} equivalent within {_points(results.get('margin') or MARGIN)} points (p = {p_value(p)})."
        )
    if (least := get(arm, "minimum_detectable_difference")) is not None:
        out.append(f"A run of this size finds differences from {_points(least)} points on.")
    control, interval = get(arm, "control"), get(arm, "control", "accuracy_delta_ci")
    if control and interval:
        gain = f"{_signed(control['accuracy_delta'])} points{points_interval(interval)}"
        if interval[0] > 0:
            out.append(f"Where it switches matters: against {control['label']} at the same target share it is {gain}.")
        else:
            out.append(
                f"That it switches in the right places is not shown: against {control['label']} at the same target "
                f"share it is {gain}."
            )
    if len(kept) > 1:
        out.append(
            f"It saves most of {len(kept)} arms that kept the accuracy, and was picked on these questions: the best of "
            "several looks better than it is."
        )
    return out


def _mind(results: Mapping[str, Any]) -> list[str]:
    out = []
    if results.get("reason"):
        out.append(f"This comparison does not count: {results['reason']}.")
    arms = results["arms"]
    for name, said in (
        ("failures", "failed"),
        ("timeouts", "were cut off at their deadline"),
        ("truncated", "ran out of tokens and count as wrong"),
        ("grader_timeouts", "could not be graded and leave all arms"),
    ):
        counts = [f"{a[name]} of {a['label']}" for a in arms if a.get(name)]
        if counts:
            more = f" and of {len(counts) - 4} more arms" if len(counts) > 4 else ""
            out.append(f"Answers that {said}: {', '.join(counts[:4])}{more}.")
    missed = [
        f"{row['label']} ({minus(_percent_off(row['off']))})"
        for section in (results.get("head_to_head") or {}).values()
        for row in section["arms"]
        if row.get("knob") and row["met"] is False
    ]
    if missed:
        out.append(f"Arms that missed the budget at which they are compared: {', '.join(missed)}.")
    if arms and all(get(a, "latency_s", "p99") is None for a in arms):
        out.append("P99 is not measured: it takes 300 timed answers an arm.")
    return out


def percent1(value: float) -> str:
    """A share as percent, with one digit behind the point."""
    return f"{value * 100:.1f} %"


def _percent_off(value: float) -> str:
    return f"{value * 100:+.0f} %"


def _percent(value: float) -> str:
    return f"{value * 100:.0f} %"


def _points(value: float) -> str:
    return f"{value * 100:g}" if round(value * 100, 1) == round(value * 100) else f"{value * 100:.1f}"


def _signed(value: float) -> str:
    return minus(f"{value * 100:+.1f}")


def points_interval(interval: Sequence[float] | None) -> str:
    """A difference of shares as points, behind its figure; nothing where it was not measured."""
    return "" if interval is None else minus(f" ({interval[0] * 100:+.1f} to {interval[1] * 100:+.1f})")


def times_interval(interval: Sequence[float] | None) -> str:
    """A ratio's interval, behind its figure; nothing where it was not measured."""
    return "" if interval is None else f" ({interval[0]:.2f} to {interval[1]:.2f})"


def seconds(value: float) -> str:
    """Two digits behind the point; below a tenth of a second in milliseconds."""
    return f"{value * 1e3:.3g} ms" if value < 0.1 else f"{value:.2f} s"


def p_value(p: float) -> str:
    """Two digits; a small one by its bound."""
    return "below 0.001" if p < 0.001 else f"{p:.2g}"


def minus(text: str) -> str:
    """With the sign that is as wide as the plus."""
    return text.replace("-", "−")
