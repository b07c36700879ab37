"""The policy's score follows from the answer's earlier steps, and from nothing that was thought of and dropped."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from baton import nano
from baton.boundary import ENTROPY, MARGIN, STEP, Cap
from baton.config import NANO_PAIR, PolicyHeadConfig
from baton.engines.base import EngineError, LoadError, Read
from baton.generation import Budget, Generation, Options, generate
from baton.nano import problems
from baton.pair import Pair
from baton.scorers.policy import FEATURES, Policy, PolicyAbout, PolicyNet, step_features
from baton.scorers.resident import ResidentHead
from baton.trace import Role, Segment

OPTIONS = Options(budget=Budget(tokens=200, answer_reserve=40))
READ = Read(frozenset({MARGIN, ENTROPY}))
UNTIL = [STEP, Cap(40)]


def policy(folder: Path, pair: Pair) -> tuple[Policy, PolicyNet, ResidentHead]:
    """A policy with random weights on the shipped resident head."""
    torch.manual_seed(5)
    net = PolicyNet(8)
    torch.nn.init.normal_(net.last.weight, std=1.0)
    net.save(folder, PolicyAbout(8, 0.2, 0.05))
    head, about = ResidentHead.load(nano.models()["resident"])
    head.save(folder, about)
    loaded = Policy.load("policy", PolicyHeadConfig(kind="policy", model=str(folder)), pair.engines, Path())
    return loaded, net.eval(), head


async def run(folder: Path, steps):
    pair = Pair.load(NANO_PAIR.model_copy(update={"scorers": {}}), Path())
    scorer, net, head = policy(folder, pair)
    pair = replace(pair, scorers={"policy": scorer})
    seen: list[tuple[Segment, float]] = []

    class Writer:
        name, scorers = "writer", ("policy",)

        async def __call__(self, gen: Generation) -> None:
            await steps(gen, seen)

    try:
        await generate(pair, Writer(), problems.load("dev", 1)[0].question, options=OPTIONS)
    finally:
        await pair.close()
    return seen, net, head


async def test_scores_follow_from_the_steps_before_and_whether_they_were_kept(tmp_path: Path):
    states: list[torch.Tensor] = []

    async def steps(gen: Generation, seen) -> None:
        for kept in (True, False, True):
            step = await gen.propose("draft", UNTIL, read=READ)
            states.append(gen._tree.live(step).state)
            seen.append((step, await gen.score(step, by="policy")))
            if kept:
                gen.commit(step)
            else:
                gen.discard(step)
                await gen.write("target", UNTIL)
        gen.abandon()
        while not gen.finished:
            await gen.write("draft")

    seen, net, head = await run(tmp_path, steps)
    used, rows = 0, []
    for n, ((step, _), state) in enumerate(zip(seen, states, strict=True)):
        if n == 1:
            used = len(seen[0][0].ids)
        features = step.features
        rows.append(
            step_features(head(state).item(), features["margin"], features["entropy"], len(step.ids), n,
                          1 - (used if n < 2 else 0) / 200, n == 1)
        )  # fmt: skip
    with torch.inference_mode():
        wanted = net(torch.tensor([rows[:2]]))[0][0].sigmoid().tolist()
    assert [score for _, score in seen[:2]] == pytest.approx(wanted, abs=1e-5)
    # The third follows a step of the target: not the one that was scored.
    assert len(rows[0]) == len(FEATURES)
    assert 0 <= seen[2][1] <= 1


async def test_a_step_that_is_scored_again_from_the_same_place_gets_the_same_score(tmp_path: Path):
    async def steps(gen: Generation, seen) -> None:
        for _ in range(2):
            step = await gen.propose("draft", UNTIL, read=READ)
            seen += [(step, await gen.score(step, by="policy")), (step, await gen.score(step, by="policy"))]
            gen.commit(step)
        gen.abandon()
        while not gen.finished:
            await gen.write("draft")

    seen, _, _ = await run(tmp_path, steps)
    assert seen[0][1] == seen[1][1]
    assert seen[2][1] == seen[3][1] != seen[0][1]


async def test_what_a_policy_needs_is_named(tmp_path: Path):
    async def steps(gen: Generation, seen) -> None:
        step = await gen.propose("draft", UNTIL)
        with pytest.raises(EngineError, match="needs margins and entropies of the step's tokens"):
            await gen.score(step, by="policy")
        while not gen.finished:
            await gen.write("draft")

    await run(tmp_path, steps)
    pair = Pair("none", {Role.DRAFT: None})  # type: ignore[dict-item]
    with pytest.raises(LoadError, match=r"it holds no policy .* give what train_policy\.py wrote"):
        Policy.load("p", PolicyHeadConfig(kind="policy", model=str(tmp_path / "x")), pair.engines, Path())
