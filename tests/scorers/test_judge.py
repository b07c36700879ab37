"""The judge: what it asks, what it reads, what it costs."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tiny_pair import ALL, expected_digit, ids_of, logprobs, make_engine, make_pair

from baton.boundary import Cap
from baton.config import JudgeConfig
from baton.engines.base import EngineError, Sampling
from baton.generation import Generation, Options, generate
from baton.nano import same_prompt, score_prompt
from baton.scorers.base import ScoreRequest
from baton.scorers.judge import ANSWERS, Judge, digit, verdict
from baton.scorers.prompts import LOOKAHEAD, NANO, SPECREASON, Template, filled
from baton.trace import Role

STEPS = ("First, 2 + 3 = 5.\n\n", "Then, 5 * 4 = 20.\n\n")
OPEN, CLOSE = "<|im_start|>", "<|im_end|>\n"


def request(
    step: str, before: tuple[str, ...] = STEPS, against: str | None = None, generation: int = 1
) -> ScoreRequest:
    return ScoreRequest("Q?", before, step, "draft", (), 0, against=against, generation=generation)


def chat(user: str, begin: str = "", system: str | None = None) -> str:
    first = f"{OPEN}system\n{system}{CLOSE}" if system else ""
    return f"{first}{OPEN}user\n{user}{CLOSE}{OPEN}assistant\n{begin}"


@pytest.fixture
async def engine():
    engine = make_engine(1)
    yield engine
    await engine.close()


# What is read


@pytest.mark.parametrize(
    ("words", "read", "expected"),
    [
        ([("7", 0.6), ("3", 0.4)], "greedy", 7.0),
        ([("the", 0.6), ("3", 0.4)], "greedy", 0.0),
        ([("7", 0.3), ("3", 0.1), ("the", 0.6)], "expected", 6.0),
        ([("the", 0.6), ("ten", 0.4)], "expected", 0.0),
        ([("12", 0.6), ("", 0.4)], "greedy", 0.0),
        ([("²", 0.6), ("4", 0.4)], "expected", 4.0),
    ],
)
def test_a_score_is_a_digit_or_nothing(words, read, expected):
    assert digit(words, read)[0] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("words", "template", "read", "expected"),
    [
        ([("ali", 0.6), ("un", 0.4)], LOOKAHEAD, "greedy", 1.0),
        ([("aligned", 0.6)], LOOKAHEAD, "greedy", 1.0),
        ([("aligned]", 0.6)], LOOKAHEAD, "greedy", 1.0),
        ([("una", 0.6), ("ali", 0.4)], LOOKAHEAD, "greedy", 0.0),
        ([("maybe", 0.6), ("ali", 0.4)], LOOKAHEAD, "greedy", 0.0),
        ([("", 1.0)], LOOKAHEAD, "greedy", 0.0),
        ([("same", 0.3), ("different", 0.1), ("x", 0.6)], NANO, "expected", 0.75),
        ([("x", 0.6)], NANO, "expected", 0.0),
        ([("s", 0.9)], Template("t", same=("same",), different=("separate",)), "greedy", 0.0),
    ],
)
def test_a_verdict_is_the_beginning_of_a_word_of_one_side(words, template, read, expected):
    assert verdict(words, template, read)[0] == pytest.approx(expected)


# What is asked


async def test_the_nano_prompts_are_asked_in_a_conversation_of_their_own(engine):
    judge = Judge("judge", engine, NANO, role="target", read="expected", top=ALL)
    (score,) = await judge.score([request("So 21.\n</think>\n\n")])
    prompt = chat(score_prompt("Q?", [s.strip() for s in STEPS], "So 21."))
    assert score.value == pytest.approx(expected_digit(logprobs(1, ids_of(prompt))[-1]), abs=1e-4)
    assert score.tokens == len(ids_of(prompt)) + 1
    (same,) = await judge.score([request("So 21.\n\n", against="It is 20.\n\n")])
    prompt = chat(same_prompt("Q?", [s.strip() for s in STEPS], "So 21.", "It is 20."))
    row = logprobs(1, ids_of(prompt))[-1].exp()
    yes, no = (sum(float(row[ids_of(c)[0]]) for c in letters) for letters in ("sS", "dD"))
    assert same.value == pytest.approx(yes / (yes + no), abs=1e-4)


async def test_the_lookahead_judge_sees_two_steps_and_no_context(engine):
    judge = Judge("judge", engine, LOOKAHEAD, role="target")
    seen = []
    render = engine.render
    engine.render = lambda messages, thinking=True: seen.append(messages) or render(messages, thinking=thinking)
    await judge.score([request("So 21.\n\n", against="It is 20.\n\n")])
    system, user = seen[0]
    assert system["role"] == "system"
    assert "So 21." in user["content"]
    assert "It is 20." in user["content"]
    assert "Q?" not in user["content"]
    assert "2 + 3" not in user["content"]


async def test_steps_equal_but_for_case_and_space_are_not_asked_about(engine):
    judge = Judge("judge", engine, LOOKAHEAD, role="target")
    (score,) = await judge.score([request("So  X.\n\n", against=" so  x.")])
    assert (score.value, score.tokens) == (1.0, 0)
    assert engine.metrics()["steps"] == 0


def test_braces_of_a_prompt_and_of_a_step_stay():
    prompt = filled("Is \\boxed{} in {step}? Steps: {steps}")
    assert (
        prompt("Q", ["a {step}", "b"], "\\boxed{question}") == "Is \\boxed{} in \\boxed{question}? Steps: a {step}\n\nb"
    )


@pytest.mark.parametrize(
    ("template", "against", "message"),
    [
        (LOOKAHEAD, None, "'judge': template 'lookahead' compares two steps and was given one"),
        (SPECREASON, "other", "'judge': template 'specreason' scores one step and was given two"),
    ],
)
async def test_a_template_that_does_not_fit_says_so(engine, template, against, message):
    with pytest.raises(EngineError, match=message):
        await Judge("judge", engine, template, role="target").score([request("x", against=against)])


async def test_only_a_model_of_its_own_takes_memory(engine):
    shared, own = (Judge("judge", engine, SPECREASON, own=own) for own in (False, True))
    await own.score([request("So 21.")])
    assert shared.held_bytes() == 0
    assert own.held_bytes() > engine.metrics()["weight_bytes"] > 0


async def test_a_judge_on_a_model_of_its_own_gets_the_conversation_written_out(engine):
    judge = Judge("judge", engine, SPECREASON, read="expected", top=ALL)
    (score,) = await judge.score([request("So 21.")])
    said = "First, 2 + 3 = 5.\n\nThen, 5 * 4 = 20.\n\nSo 21."
    asked = SPECREASON.score("", [], "")
    text = f"{OPEN}user\nQ?{CLOSE}{OPEN}assistant\n{said}{CLOSE}" + chat(asked, SPECREASON.begin)
    assert score.value == pytest.approx(expected_digit(logprobs(1, ids_of(text))[-1]), abs=1e-4)


# What it costs


async def test_the_next_step_of_an_answer_finds_the_steps_before_computed(engine):
    judge = Judge("judge", engine, NANO, role="target")
    (first,) = await judge.score([request("Now, 20 + 1 = 21.\n\n")])
    assert first.cached == 0
    (second,) = await judge.score([request("So 22.\n\n", before=(*STEPS, "Now, 20 + 1 = 21.\n\n"))])
    common = len(ids_of(chat("Question: Q?\n\nSteps:\n\nFirst, 2 + 3 = 5.\n\nThen, 5 * 4 = 20.\n\n")))
    assert second.cached >= common - 20


async def test_candidates_asked_about_at_once_share_the_prompt_afterwards(engine):
    judge = Judge("judge", engine, NANO, role="target")
    await judge.score([request("So 1.\n\n")])
    scores = await judge.score([request(f"So {n}.\n\n") for n in range(2, 6)])
    assert all(s.tokens < 60 < s.cached for s in scores)
    assert engine.metrics()["running"] == 0


async def test_answers_share_what_every_prompt_begins_with(engine):
    judge = Judge("judge", engine, LOOKAHEAD, role="target")
    pairs = [request(f"a {n}", against=f"b {n}", generation=n) for n in range(3)]
    costs = [(await judge.score([p]))[0].cached for p in pairs]
    assert costs[0] == 0
    assert min(costs[1:]) > len(ids_of(LOOKAHEAD.system or ""))


async def test_sessions_of_old_answers_are_closed(engine):
    judge = Judge("judge", engine, NANO, role="target")
    for n in range(ANSWERS + 5):
        await judge.score([request("x", (), generation=n)])
    assert len(judge._sessions._leases) == ANSWERS


async def test_cancelling_a_score_frees_the_engine(engine):
    judge = Judge("judge", engine, NANO, role="target")
    long = request("x", tuple(f"Step {n}.\n\n" for n in range(200)))
    task = asyncio.create_task(judge.score([long, long]))
    while not engine.metrics()["running"]:
        await asyncio.sleep(0.001)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    (score,) = await judge.score([request("x")])
    assert score.tokens
    assert engine.metrics()["running"] == 0


async def test_a_role_judges_in_the_conversation_of_the_answer_and_nothing_is_computed_twice():
    pair = make_pair()
    judge = Judge("judge", pair.engines[Role.TARGET], SPECREASON, role="target", read="expected", top=ALL)
    pair.scorers["judge"] = judge
    steps, values = [], []

    class Policy:
        name = "policy"

        async def __call__(self, gen: Generation) -> None:
            for _ in range(2):
                step = await gen.propose("draft", [Cap(30)])
                values.append(await gen.score(step, by="judge"))
                gen.commit(step)
                steps.append(step)
            steps.append(await gen.write("target", [Cap(5)]))

    trace = await generate(
        pair, Policy(), "Q?", options=Options(sampling=Sampling(temperature=1.0), thinking=False, seed=1)
    )
    prompt = ids_of(chat("Q?"))
    turn = ids_of(CLOSE + chat(SPECREASON.score("", [], ""), SPECREASON.begin))
    path = [*prompt, *steps[0].ids]
    assert values[0] == pytest.approx(expected_digit(logprobs(1, [*path, *turn])[-1]), abs=1e-4)
    path += steps[1].ids
    assert values[1] == pytest.approx(expected_digit(logprobs(1, [*path, *turn])[-1]), abs=1e-4)
    first, second = trace.helpers
    assert (first.tokens, first.cached) == (len(prompt) + 30 + len(turn) + 1, 0)
    assert (second.tokens, second.cached) == (30 + len(turn) + 1, len(prompt) + 30)
    # What the target read to judge is what it goes on from.
    assert steps[2].cached == len(path) - 1
    await pair.close()


async def test_a_judge_is_made_from_its_configuration(engine):
    engines = {Role.TARGET: engine, Role.DRAFT: engine}
    config = JudgeConfig(
        kind="judge", role="target", top=ALL, read="expected", template={"score": "{question} / {step}", "begin": "Is "}
    )
    judge = Judge.load("judge", config, engines, Path())
    (score,) = await judge.score([request("So 21.")])
    row = logprobs(1, ids_of(chat("Q? / So 21.", "Is ")))[-1]
    assert score.value == pytest.approx(expected_digit(row), abs=1e-4)
    await judge.close()
    assert engine.metrics()["running"] == 0
    (again,) = await judge.score([request("So 21.")])
    assert again.value == score.value, "a role's engine outlives its judge"
