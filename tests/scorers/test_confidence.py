"""Confidence in a step, read or computed."""

from __future__ import annotations

import pytest
from tiny_pair import ALL, ids_of, logprobs, make_pair

from baton.boundary import ENTROPY, MARGIN, Cap
from baton.engines.base import NOTHING, EngineError, Read, Sampling
from baton.generation import Generation, Options, generate
from baton.scorers.base import ScoreRequest
from baton.scorers.confidence import Confidence

STATISTICS = ("mean", "min", "entropy", "margin")
ROLES = {"target": 1, "draft": 2}
EVERYTHING = Read(features=frozenset({ENTROPY, MARGIN}), top=ALL)


async def score_steps(role: str, read: Read):
    """Two steps of the draft scored by every statistic under `role`, then a stretch of the target."""
    pair = make_pair(**{s: Confidence(s, role, s) for s in STATISTICS})
    values: list[dict[str, float]] = []

    class Policy:
        name = "policy"

        async def __call__(self, gen: Generation) -> None:
            for _ in range(2):
                step = await gen.propose("draft", [Cap(12)], read=read)
                values.append({s: await gen.score(step, by=s) for s in STATISTICS})
                gen.commit(step)
            await gen.write("target", [Cap(4)])

    trace = await generate(pair, Policy(), "Q?", options=Options(sampling=Sampling(temperature=1.2), thinking=False))
    await pair.close()
    return trace, values


def statistics(role: str, ids: list[int], count: int) -> dict[str, float]:
    """Of the last `count` of `ids`, by a plain forward."""
    rows = logprobs(ROLES[role], ids)[-count - 1 : -1]
    chosen = rows[range(count), ids[-count:]]
    top = rows.exp().topk(2).values
    return {
        "mean": chosen.mean().item(),
        "min": chosen.min().item(),
        "entropy": (rows.exp() * rows).sum(-1).mean().item(),
        "margin": (top[:, 0] - top[:, 1]).mean().item(),
    }


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("read", [NOTHING, EVERYTHING], ids=["nothing read", "all read"])
async def test_statistics_are_those_of_a_plain_forward(role, read):
    trace, values = await score_steps(role, read)
    path = ids_of("<|im_start|>user\nQ?<|im_end|>\n<|im_start|>assistant\n")
    for step, value in zip(trace.segments, values, strict=False):
        path = [*path, *step.ids]
        assert value == pytest.approx(statistics(role, path, len(step.ids)), abs=1e-4)


async def test_what_was_read_while_the_step_was_written_costs_nothing():
    trace, _ = await score_steps("draft", EVERYTHING)
    assert {h.tokens for h in trace.helpers} == {0}
    trace, _ = await score_steps("target", EVERYTHING)
    assert trace.helpers[0].tokens > 12, "the draft's features say nothing about the target"


async def test_a_likeliest_few_without_the_token_written_are_not_enough():
    trace, _ = await score_steps("draft", Read(top=1))
    assert [h.tokens > 0 for h in trace.helpers if h.by == "mean"] == [True, True]


async def test_a_scoring_pass_is_what_the_target_goes_on_from():
    trace, _ = await score_steps("target", NOTHING)
    last = trace.segments[-1]
    assert last.role == "target"
    assert last.cached >= last.prompt - 2


async def test_a_step_without_tokens_is_worth_nothing():
    empty = ScoreRequest("Q", (), "", "draft", (1,), 0)
    assert [(await Confidence(s, "draft", s).score([empty]))[0].value for s in STATISTICS] == [-100, -100, -100, 0]


async def test_a_step_outside_an_answer_cannot_be_run_through_a_model():
    with pytest.raises(EngineError, match="'sure': the step stands in no answer"):
        await Confidence("sure").score([ScoreRequest("Q", (), "x", "draft", (1, 2), 1)])
