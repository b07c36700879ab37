"""How an answer ends, and its trace in JSON."""

from __future__ import annotations

from one_answer import ANSWER, answer, router

from baton.boundary import STEP, Cues, Feature
from baton.engines.base import Read
from baton.generation import Options, generate
from baton.trace import Trace
from scripted import ScriptedEngine, pair
from virtual_clock import run


def test_a_timeout_keeps_what_was_written_and_is_censored_not_failed():
    target = ScriptedEngine("target", ANSWER, delay=1.0)

    async def policy(gen):
        await gen.write("target", [STEP])
        await gen.write("target")

    seen: list[str] = []
    engines = pair(target, ScriptedEngine("draft", ANSWER))
    trace = run(
        generate(engines, router(policy), "q", options=Options(timeout=12.5), on_text=lambda s, t, n: seen.append(t))
    )
    assert trace.finish == "timeout"
    assert trace.text == "".join(seen) == "one. Wait, two three.\n\nst", "what was shown is not taken back"
    assert trace.tokens() == 12
    assert trace.seconds == 12.5
    assert target.running == 0


def test_a_trace_reads_back_as_it_was_written():
    async def policy(gen):
        switch = Cues(["Wait,"])
        await gen.write("target", until=[switch], read=Read(features=frozenset([Feature.ENTROPY])))
        while not gen.finished:
            await gen.write("draft")

    import json

    target = ScriptedEngine("target", ANSWER, features=lambda text, token: {Feature.ENTROPY: 0.5})
    trace = answer(policy, target)
    line = trace.dumps()
    assert "\n" not in line
    again = Trace.from_json(json.loads(line))
    assert again.to_json() == trace.to_json()
    assert again.target_share == trace.target_share
    assert again.segments[0].features["entropy"] == [0.5] * 5
