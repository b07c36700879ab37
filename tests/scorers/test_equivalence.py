"""The verifier's score is its head on the states that a plain forward has at the ends of both versions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModel

from baton import nano
from baton.boundary import STEP, Cap
from baton.config import NANO_PAIR, EquivalenceConfig
from baton.engines.base import EngineError
from baton.generation import Budget, Generation, Options, generate
from baton.nano import problems
from baton.pair import Pair
from baton.scorers.equivalence import Equivalence, EquivalenceHead
from baton.scorers.resident import About
from baton.trace import Role, Segment

WIDTH = {"draft": 128, "target": 256}


@pytest.mark.parametrize("role", ["draft", "target"])
async def test_both_versions_are_read_where_they_stand(tmp_path: Path, role: str):
    pair = Pair.load(NANO_PAIR.model_copy(update={"scorers": {}}), Path())
    torch.manual_seed(2)
    head = EquivalenceHead(WIDTH[role], 8)
    torch.nn.init.normal_(head.last.weight, std=1.0)
    fingerprint = pair.engines[Role.DRAFT].vocabulary.fingerprint
    head.save(tmp_path, About(role, f"nano:{role}", fingerprint, WIDTH[role], 8, "same"))
    config = EquivalenceConfig(kind="equivalence", model=str(tmp_path))
    pair = replace(pair, scorers={"same": Equivalence.load("same", config, pair.engines, Path())})
    found: dict[str, object] = {}

    class Compare:
        name, scorers = "compare", ("same",)

        async def __call__(self, gen: Generation) -> None:
            await gen.write("target", [STEP])
            found["before"] = [*gen.trace.prompts[role], *gen.view(role)]
            versions = [await gen.propose(writer, [STEP, Cap(30)]) for writer in ("draft", "target")]
            found["ids"] = [v.ids for v in versions]
            found["score"] = await gen.score(versions[0], by="same", against=versions[1])
            away = Segment(id=0, parent=None, branch=0, role=Role.TARGET, text="elsewhere")
            with pytest.raises(EngineError, match="compares two steps of an answer by their states"):
                await gen.score(versions[0], by="same", against=away)
            gen.abandon()

    try:
        options = Options(budget=Budget(tokens=120, answer_reserve=24))
        trace = await generate(pair, Compare(), problems.load("dev", 1)[0].question, options=options)
    finally:
        await pair.close()
    model = AutoModel.from_pretrained(nano.pair_paths()[role], dtype=torch.float32).eval()
    with torch.inference_mode():
        states = [
            model(torch.tensor([[*found["before"], *ids]])).last_hidden_state[0, -2]  # type: ignore[misc]
            for ids in found["ids"]  # type: ignore[attr-defined]
        ]
        wanted = head(torch.cat(states)).sigmoid().item()
    assert found["score"] == pytest.approx(wanted, abs=1e-4)
    # The version that the role wrote costs nothing; the other one is read once.
    (helper,) = [h for h in trace.helpers if h.outcome == "done"]
    other = found["ids"][1 if role == "draft" else 0]  # type: ignore[index]
    assert 0 < helper.tokens <= len(other) + 1
