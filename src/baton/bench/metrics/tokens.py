"""What was computed for an answer: tokens and FLOPs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from baton.boundary import CANCELLED
from baton.flops import Architecture, attended
from baton.trace import Kind, Role, Trace, speculating


@dataclass(slots=True)
class Tally:
    """Tokens that were computed for an answer, of all segments of its trace."""

    target_sampled: int = 0
    draft_sampled: int = 0
    prefill: int = 0
    """Prefix tokens that were in no cache."""
    unaccepted: int = 0
    """Tokens of a speculation that the target verified in vain."""
    stepped: int = 0
    forwards: int = 0
    """Tokens that the target sampled in segments that ran to their end, and the forwards they took."""
    discarded: int = 0
    overshoot: int = 0
    helper: int = 0
    """Probes, scores and log-probabilities."""


def tally(trace: Trace) -> Tally:
    """Adds up the tokens of a trace."""
    t = Tally(helper=sum(call.tokens for call in trace.helpers))
    for s in trace.segments:
        if s.role is Role.INSERTED:
            continue
        t.prefill += s.prompt - s.cached
        if s.role is Role.TARGET:
            t.target_sampled += s.sampled
            t.unaccepted += s.proposed - s.accepted
            if s.ended_by is None or s.ended_by.name != CANCELLED.name:
                t.stepped, t.forwards = t.stepped + s.sampled, t.forwards + s.sampled - s.accepted
        else:
            t.draft_sampled += s.sampled
        if s.kind is Kind.PROBE:
            t.helper += s.sampled
        elif s.kind is Kind.WRITE:
            t.overshoot += s.overshoot
            t.discarded += s.sampled - s.overshoot - s.kept_tokens
    return t


def spent(trace: Trace, models: Mapping[str, Architecture]) -> float | None:
    """FLOPs of all that was computed for an answer; None if it took a model that is not among `models`.

    Decoding and prefill of both models, kept or not, speculation, and every scorer and log-probability. The tokens
    attended to are exact for segments. Those of speculation take its segment's middle, and those of a helper call its
    mean sequence.
    """
    parts: list[tuple[str, float, float, float]] = []
    for s in trace.segments:
        if s.role is Role.INSERTED:
            continue
        # The last sampled token is not computed before something follows it.
        computed = s.prompt - s.cached + max(s.sampled - 1, 0)
        parts.append((s.role, computed, s.sampled, attended(s.cached, computed)))
        middle = s.prompt + s.sampled / 2
        for model, more in ((s.role, s.proposed - s.accepted), (speculating(s.role), s.drafted)):
            parts.append((model, more, more, more * middle))
    lengths = {s.id: len(s.ids) for s in trace.segments}
    for call in trace.helpers:
        # "logprob:target" is work of the target's model.
        kind, _, role = call.by.rpartition(":")
        scored = sum(lengths.get(node, 0) for node in call.nodes)
        predicted = {"logprob": min(scored, call.tokens), "grounding": 0}.get(kind, min(len(call.nodes), call.tokens))
        sequences = max(1, len(call.nodes))
        seen = sequences * attended(call.cached / sequences, call.tokens / sequences)
        parts.append((role if kind in ("logprob", "grounding") else call.by, call.tokens, predicted, seen))
    total = 0.0
    for model, tokens, predictions, attending in parts:
        if tokens and model not in models:
            return None
        if tokens:
            total += models[model].flops(tokens, predictions, attending)
    return total
