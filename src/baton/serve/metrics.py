"""What a server tells Prometheus."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from baton.bench.metrics import tally
from baton.pair import Pair
from baton.serve.answering import Choice, Job
from baton.serve.keep_going import ALONE
from baton.serve.scheduling import Turnstile
from baton.serve.vitals import Vitals
from baton.trace import Role

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
SHORT = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.25, 0.5, 1)
SHARES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.99, 1.0)
CACHE_TOKENS = {"tokens_cached": "hit", "tokens_prefilled": "miss"}


class Metrics:
    """Counters and histograms of one server, in a registry of their own."""

    def __init__(self, pair: Pair, vitals: Vitals, turnstile: Turnstile):
        registry = self.registry = CollectorRegistry()
        self.requests = Counter(
            "baton_requests", "Requests answered or refused, by status (499: the reader went away)",
            ["path", "status"], registry=registry,
        )  # fmt: skip
        self.open = Gauge("baton_open_requests", "Requests that are not over", registry=registry)
        self.answers = Counter("baton_answers", "Answers, by how they ended", ["router", "finish"], registry=registry)
        self.latency = Histogram(
            "baton_request_seconds", "From a request's arrival to its last token", ["router"], buckets=SECONDS,
            registry=registry,
        )  # fmt: skip
        self.queued = Histogram("baton_queue_seconds", "Waiting for a slot", buckets=SECONDS, registry=registry)
        self.ttft = Histogram(
            "baton_first_token_seconds", "From a request's arrival to the first text that can be sent", ["router"],
            buckets=SECONDS, registry=registry,
        )  # fmt: skip
        self.tpot = Histogram(
            "baton_token_seconds", "Time a kept token after the first text, mean of an answer", ["router"],
            buckets=SHORT, registry=registry,
        )  # fmt: skip
        self.held = Histogram(
            "baton_held_seconds", "From a segment's first token to when its text could be sent: 0 unless a router may "
            "discard it", ["router"], buckets=(*SHORT, 2.5, 5, 10, 30), registry=registry,
        )  # fmt: skip
        self.share = Histogram(
            "baton_target_share", "Target share of an answer", ["router"], buckets=SHARES, registry=registry
        )
        self.tokens = Counter(
            "baton_tokens", "Kept tokens, by the model that wrote them", ["router", "role"], registry=registry
        )
        self.lost = Counter(
            "baton_unkept_tokens", "Tokens computed beside the answer", ["router", "kind"], registry=registry
        )
        self.switches = Counter("baton_switches", "Changes of the writing model", ["router"], registry=registry)
        self.decisions = Counter("baton_decisions", "Decisions on steps", ["router", "outcome"], registry=registry)
        self.fallbacks = Counter(
            "baton_fallbacks", "Answers that the target went on with alone, by the part that was dead", ["part"],
            registry=registry,
        )  # fmt: skip
        for part in vitals.parts:
            # There from the start, so that a rate sees the first one.
            self.fallbacks.labels(part)
        registry.register(_Now(pair, vitals, turnstile))

    def answered(self, job: Job, choice: Choice) -> None:
        """Counts one answer that is over."""
        trace, router = choice.trace, job.wanted.router.name
        self.answers.labels(router, trace.finish).inc()
        for role in (Role.TARGET, Role.DRAFT):
            self.tokens.labels(router, role.value).inc(trace.tokens(role))
        counted = tally(trace)
        for kind in ("discarded", "overshoot", "helper"):
            self.lost.labels(router, kind).inc(max(0, getattr(counted, kind)))
        self.switches.labels(router).inc(trace.switches)
        for decision in trace.decisions:
            self.decisions.labels(router, "accepted" if decision.outcome else "rejected").inc()
        for seconds in choice.held_s:
            self.held.labels(router).observe(seconds)
        if trace.target_share is not None:
            self.share.labels(router).observe(trace.target_share)
        if choice.first is not None and choice.last is not None:
            self.ttft.labels(router).observe(choice.first - job.arrived)
            self.latency.labels(router).observe(choice.last - job.arrived)
            if trace.tokens() > 1:
                self.tpot.labels(router).observe((choice.last - choice.first) / (trace.tokens() - 1))
        for seen in trace.observations:
            if seen.name == ALONE:
                self.fallbacks.labels(seen.value).inc()

    def text(self) -> bytes:
        """All of them, as Prometheus reads them."""
        return generate_latest(self.registry)


class _Now(Collector):
    """What is read at the moment it is asked for: queue, engines, and which parts live."""

    def __init__(self, pair: Pair, vitals: Vitals, turnstile: Turnstile):
        self._pair, self._vitals, self._turnstile = pair, vitals, turnstile

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        for name, about, value in (
            ("baton_slots", "Answers that can be written at once", self._turnstile.slots),
            ("baton_slots_taken", "Answers being written", self._turnstile.taken),
            ("baton_queue_length", "Answers that wait for a slot", self._turnstile.waiting),
            ("baton_queue_limit", "Answers that may wait for a slot", self._turnstile.queue),
        ):
            yield GaugeMetricFamily(name, about, value)
        up = GaugeMetricFamily("baton_part_up", "1 where a part of the pair lives", labels=["part"])
        deaths = CounterMetricFamily("baton_part_deaths", "How often a part was lost", labels=["part"])
        for name, part in self._vitals.parts.items():
            up.add_metric([name], 0.0 if part.dead else 1.0)
            deaths.add_metric([name], part.deaths)
        yield from (up, deaths)
        running = GaugeMetricFamily("baton_engine_requests", "Requests in an engine", labels=["role", "state"])
        cached = CounterMetricFamily("baton_prefix_tokens", "Prefix tokens, by cache", labels=["role", "cache"])
        for role, engine in self._pair.engines.items():
            measured = engine.metrics()
            for state in ("running", "waiting"):
                running.add_metric([role.value, state], measured.get(state, 0.0))
            for key, word in CACHE_TOKENS.items():
                cached.add_metric([role.value, word], measured.get(key, 0.0))
        yield from (running, cached)
