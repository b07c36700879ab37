"""The simulated engine takes the time that its costs say, and writes the same answer however it is cut and batched."""

from __future__ import annotations

import asyncio
import re

import pytest
import yaml

from baton.bench.grading import last_boxed
from baton.boundary import SENTENCE, STEP
from baton.config import PairConfig, validate
from baton.engines.base import Sampling, Speculation
from baton.engines.simulated import SharedGpu, SimulatedEngine, beside_each_other
from baton.generation import Budget, Generation, Options, generate
from baton.pair import Pair
from baton.plan.costs import Costs, Sharing
from baton.replay.schedule import Part, Schedule
from baton.replay.turn import Arm, Replayer
from baton.routers.draft import Draft
from baton.routers.target import Target
from baton.trace import Role, Trace
from virtual_clock import run

COSTS = {
    "target": {"token_s": 0.02, "call_s": 0.01, "prefill_token_s": 0.001, "tokens": 10},
    "draft": {"token_s": 0.004, "tokens": 10},
    "acceptance": 0.5,
    "steps": 4,
}
OPTIONS = Options(sampling=Sampling(temperature=1.0), budget=Budget(2000, 100))


def costs(**changes) -> Costs:
    return Costs.model_validate({**COSTS, **changes})


def pair(given: Costs, **engine) -> Pair:
    return Pair("simulated", {role: SimulatedEngine(role, given, **engine) for role in (Role.TARGET, Role.DRAFT)})


def answer(made: Pair, router, question: str = "the answer is 42", options: Options = OPTIONS, sample: int = 0):
    return generate(made, router, question, options=options, question_id=question, sample=sample)


class InSteps:
    """The target alone, one call a step."""

    name = "in-steps"

    async def __call__(self, gen: Generation) -> None:
        while not gen.finished:
            await gen.write("target", [STEP])


class InSentences:
    """The target alone, one call a sentence."""

    name = "in-sentences"

    async def __call__(self, gen: Generation) -> None:
        while not gen.finished:
            await gen.write("target", [SENTENCE])


class InTurns:
    """Draft and target, sentence by sentence."""

    name = "in-turns"

    async def __call__(self, gen: Generation) -> None:
        roles = ["draft", "target"]
        while not gen.finished:
            await gen.write(roles[len(gen.text.split(".")) % 2], [SENTENCE])


def ids(trace: Trace) -> list[int]:
    return [i for s in trace.path() for i in s.ids]


def test_an_answer_takes_what_its_costs_say():
    trace = run(answer(pair(costs()), Target()))
    # Four steps of ten tokens, </think>, "The answer is \boxed{42}." and the end.
    assert trace.tokens() == 4 * 10 + 1 + 8 + 1
    assert trace.finish == "end_of_text"
    read = len(trace.prompts["target"]) - 1
    calls = 2  # thinking and answer
    assert trace.first_token == pytest.approx(0.01 + 0.02 + 0.001 * read)
    assert trace.seconds == pytest.approx(calls * 0.01 + 0.001 * read + 0.02 * trace.tokens())


def test_an_answer_cut_into_segments_is_the_same_and_pays_each_cut():
    whole, cut = run(answer(pair(costs()), Target())), run(answer(pair(costs()), InSteps()))
    assert ids(cut) == ids(whole)
    more = len(cut.segments) - len(whole.segments)
    assert more >= 4
    overshoot = sum(s.overshoot for s in cut.segments)
    assert cut.seconds == pytest.approx(whole.seconds + more * 0.01 + overshoot * 0.02)
    assert all(s.cached == s.prompt - 1 for s in cut.segments[1:])


def test_requests_share_forwards_and_wait_for_a_slot():
    def seconds(count: int, slots: int) -> list[float]:
        given = costs(target={"token_s": 0.02, "slowdown": {1: 1.0, 4: 2.5}, "tokens": 10})
        made = pair(given, max_batch=slots)

        async def all_of_them() -> list[Trace]:
            return await asyncio.gather(*(answer(made, Target(), sample=n) for n in range(count)))

        return [t.seconds for t in run(all_of_them())]

    alone = seconds(1, 8)[0]
    assert seconds(3, 8) == pytest.approx([2.0 * alone] * 3)
    # Thinking and answer are two requests: in the line of one slot the answers come after the thinking.
    line = seconds(2, 1)
    assert sum(line) / 2 > 1.5 * alone
    assert max(line) == pytest.approx(2 * alone)


def test_a_cancelled_answer_frees_its_slot_within_a_forward():
    made = pair(costs(), max_batch=1)

    async def scene() -> tuple[float, dict[str, float]]:
        first = asyncio.create_task(answer(made, Target()))
        await asyncio.sleep(0.3)
        second = asyncio.create_task(answer(made, Target(), sample=1))
        await asyncio.sleep(0.1)
        first.cancel()
        trace = await second
        return trace.first_token or 0.0, made.engines[Role.TARGET].metrics()

    first_token, metrics = run(scene())
    read = 0.001 * 40
    assert 0.1 < first_token < 0.1 + 2 * 0.02 + read
    assert metrics["running"] == metrics["waiting"] == 0


def test_context_and_noise_cost_time_and_change_no_token():
    plain = run(answer(pair(costs()), Target()))
    slow = costs(target={**COSTS["target"], "context_s": 1e-5})
    trace = run(answer(pair(slow), Target()))
    prompt, n = len(trace.prompts["target"]), trace.tokens()
    context = sum(prompt + k for k in range(n))
    assert trace.seconds - plain.seconds == pytest.approx(1e-5 * context)
    noisy = run(answer(pair(costs(target={**COSTS["target"], "noise": 0.5})), Target()))
    assert ids(noisy) == ids(trace) == ids(plain)
    assert noisy.seconds != plain.seconds
    assert noisy.seconds == pytest.approx(plain.seconds, rel=0.5)


def test_speculation_takes_fewer_forwards_for_the_same_tokens():
    given = costs(speculation={"acceptance": 0.7, "cost": 0.05}, steps=200)
    options = Options(sampling=Sampling(temperature=1.0), budget=Budget(5000, 100))
    plain = run(answer(pair(given), Target(), options=options))
    fast = run(answer(pair(given, speculative=Speculation("ngram", tokens=3)), Target(), options=options))
    assert ids(fast) == ids(plain)
    sampled, accepted = (sum(getattr(s, f) for s in fast.segments) for f in ("sampled", "accepted"))
    # 1 + .7 + .7^2 + .7^3 tokens a forward
    assert sampled / (sampled - accepted) == pytest.approx(2.533, rel=0.05)
    assert plain.seconds / fast.seconds == pytest.approx(2.533 / 1.15, rel=0.05)


def right(trace: Trace) -> bool:
    return last_boxed(trace.answer) == "42"


async def accuracy(made: Pair, router, count: int = 300) -> list[bool]:
    questions = (f"{n}: the answer is 42" for n in range(count))
    return [right(await answer(made, router, q)) for q in questions]


def test_each_role_is_right_as_often_as_it_should_be_and_a_relay_by_its_share():
    tokens = {"token_s": 0.01, "tokens": 4}
    given = costs(
        target=tokens,
        draft=tokens,
        steps=2,
        simulation={"target_accuracy": 0.9, "draft_accuracy": 0.5, "agreement": 0.5},
    )
    target, draft, relay = (run(accuracy(pair(given), r)) for r in (Target(), Draft(), InTurns()))
    # Three standard errors of 300 answers.
    assert sum(target) / 300 == pytest.approx(0.9, abs=0.052)
    assert sum(draft) / 300 == pytest.approx(0.5, abs=0.087)
    assert 0.55 < sum(relay) / 300 < 0.85
    both = sum(t and d for t, d in zip(target, draft, strict=True)) / 300
    assert both > 0.9 * 0.5, "they are right together more often than by chance"


def test_answers_have_steps_sentences_and_cues():
    given = costs(target={"token_s": 0.02, "tokens": {"mean": 30, "sigma": 0.5}}, simulation={"steps": 6})
    trace = run(answer(pair(given), Target()))
    thinking, _, said = trace.text.partition("</think>")
    steps = thinking.split("\n\n")
    assert len(steps) == 6 + 1
    assert len({len(s) for s in steps}) > 3
    assert re.search(r"\. (Then|Next|First|However|Wait|Also),", thinking)
    assert said.startswith(" The answer is \\boxed{4")


@pytest.mark.parametrize("tokens", [8, 20])
def test_a_sentence_has_as_many_tokens_as_is_asked(tokens: int):
    given = costs(target={"token_s": 0.02, "tokens": 100}, simulation={"steps": 1, "sentence_tokens": tokens})
    made = pair(given)
    (sentence, *_) = run(answer(made, InSentences())).path()
    assert len(sentence.ids) == tokens


def test_greedy_answers_repeat_and_sampled_ones_differ():
    def texts(temperature: float) -> set[str]:
        options = Options(sampling=Sampling(temperature=temperature), budget=OPTIONS.budget)
        return {run(answer(pair(costs()), Target(), options=options, sample=n)).text for n in range(3)}

    assert len(texts(0.0)) == 1
    assert len(texts(1.0)) == 3


def test_a_pair_is_loaded_from_a_file_of_costs(tmp_path):
    (tmp_path / "costs.yaml").write_text(yaml.safe_dump(COSTS))

    def load(target: dict) -> Pair:
        data = {"name": "s", "target": target, "draft": {"engine": "simulated", "model": "costs.yaml#draft"}}
        return Pair.load(validate(PairConfig, data, "pair.yaml"), tmp_path)

    made = load({"engine": "simulated", "model": "costs.yaml#target", "max_batch": 3})
    assert made.one_vocabulary
    assert made.engines[Role.TARGET].max_batch == 3
    for target, said in (
        ({"model": "costs.yaml"}, r"pair.target.model: .*names no role; write FILE#target or FILE#draft"),
        ({"model": "cost.yaml#target"}, r"pair.target.model: cost.yaml: there is no such file"),
        ({"model": "costs.yaml#target", "speculative": "ngram"}, r"pair.target.speculative.method: 'ngram' needs"),
    ):
        with pytest.raises(ValueError, match=said):
            load({"engine": "simulated", **target})


@pytest.mark.parametrize(("keeps", "together"), [(0.5, 1.0), (1.0, 0.5), (0.75, 2 / 3)])
def test_two_models_on_one_gpu_slow_each_other_while_both_compute(keeps: float, together: float):
    given = costs(
        target={"token_s": 0.02, "tokens": 10}, draft={"token_s": 0.02, "tokens": 10},
        sharing={"target": keeps, "draft": keeps},
    )  # fmt: skip
    assert given.sharing is not None
    gpu = SharedGpu(given.sharing)
    made = Pair("simulated", {role: SimulatedEngine(role, given, gpu=gpu) for role in (Role.TARGET, Role.DRAFT)})

    async def scene() -> tuple[float, float]:
        alone = (await answer(made, Target())).seconds
        both = await asyncio.gather(answer(made, Target()), answer(made, Draft()))
        return alone, max(trace.seconds for trace in both)

    alone, both = run(scene())
    assert both == pytest.approx(2 * together * alone, rel=0.03)


def test_a_prompt_takes_its_time_for_all_that_are_written_beside_it_but_leaves_the_gpu_to_the_other_model():
    schedule = Schedule(30, ((Part(Role.TARGET, 20),), (Part(Role.TARGET, 20),)))
    prompt = {"tokens": 30, "seconds": 0.1}

    def seconds(arm: Arm, at_once: int, **target) -> list[float]:
        model = {"token_s": 0.02, "tokens": 10, **target}
        given = costs(target=model, draft={"token_s": 0.02, "tokens": 10}, sharing={"target": 0.5, "draft": 0.5})
        return run(Replayer(beside_each_other(given, 2), schedule).turn(at_once, arm, 0, 2)).seconds

    # 20 forwards, the first of which takes 0.1 s in place of 0.02.
    assert seconds("target", 1) == pytest.approx([0.4, 0.4])
    assert seconds("target", 1, prompt=prompt) == pytest.approx([0.48, 0.48])
    # What no prompt is in takes what it took, however many write: 30 tokens are not a prompt of 30.
    assert seconds("target", 1, prompt={"tokens": 31, "seconds": 0.1}) == pytest.approx([0.4, 0.4])
    # Beside the draft each forward takes twice as long, but of the first one only what is the GPU's.
    assert seconds("beside", 1, prompt=prompt)[0] == pytest.approx(0.1 + 19 * 0.04, rel=0.03)


def test_a_shared_gpu_gives_the_rest_of_a_forward_its_own_speed():
    gpu = SharedGpu(Sharing(target=0.5, draft=0.25))

    async def draft() -> float:
        await asyncio.sleep(0.4)
        return await gpu.compute(Role.DRAFT, 0.4, 0.1)

    async def scene() -> list[float]:
        return await asyncio.gather(gpu.compute(Role.TARGET, 0.0, 1.0), draft())

    # The draft's 0.1 s take 0.4 s, in which the target does 0.2 s of its own.
    assert run(scene()) == pytest.approx([1.2, 0.8])
