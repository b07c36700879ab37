"""Scorers in vLLM's pooling runner: the scores of the transformers ones, and the cache that a served PRM wants."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from baton import nano
from baton.config import EmbeddingConfig, PrmConfig
from baton.engines.base import Engine, EngineError
from baton.engines.settings import VllmSettings
from baton.scorers.base import ScoreRequest
from baton.scorers.embedding import Embedding
from baton.scorers.prm import Prm
from baton.trace import Role

pytestmark = [pytest.mark.vllm, pytest.mark.asyncio(loop_scope="module")]

VLLM = VllmSettings(context=1024, block=32)
STEPS = [
    "First, 3 + 4 = 7 apples.\n\n",
    "Then 7 * 2 = 14 apples are left in the basket.\n\n",
    "So the answer is 14.\n\n",
]


def classifier(folder: Path, auto: Any, labels: int) -> Path:
    """The nano draft with a random head."""
    source = nano.pair_paths()["draft"]
    torch.manual_seed(0)
    model = auto.from_pretrained(source, num_labels=labels, dtype=torch.float32)
    model.score.weight.data.normal_(0, 0.5)
    model.save_pretrained(folder)
    transformers.AutoTokenizer.from_pretrained(source).save_pretrained(folder)
    return folder


def requests(engine: Engine) -> list[ScoreRequest]:
    """The steps of an answer, one after the other."""
    prompt = engine.render([{"role": "user", "content": "Tom has 3 apples and gets 4. He doubles them. How many?"}])
    made, ids = [], list(prompt)
    for n, step in enumerate(STEPS):
        own = engine.vocabulary.encode(step)
        ids += own
        made.append(
            ScoreRequest(
                "q", tuple(STEPS[:n]), step, Role.TARGET, tuple(ids), len(own), prompt=len(prompt), generation=1
            )
        )
    return made


@pytest.mark.parametrize(
    ("auto", "labels", "finds"),
    [
        (transformers.AutoModelForSequenceClassification, 1, True),
        (transformers.AutoModelForTokenClassification, 2, False),
    ],
)
async def test_a_prm_scores_as_on_transformers(
    auto: Any, labels: int, finds: bool, reference: Engine, tmp_path: Path
) -> None:
    folder = str(classifier(tmp_path, auto, labels))
    engines = {Role.TARGET: reference}
    scorers = [
        Prm.load("prm", PrmConfig(kind="prm", model=folder, **more), engines, Path())
        for more in ({}, {"engine": "vllm", "vllm": VLLM, "cache_mb": 64})
    ]
    steps = requests(reference)
    one_by_one = [[(await scorer.score([step]))[0] for step in steps] for scorer in scorers]
    true, ours = one_by_one
    assert [s.value for s in ours] == pytest.approx([s.value for s in true], abs=1e-4)
    assert len({round(s.value, 3) for s in ours}) == len(steps)
    for score, step in zip(ours, steps, strict=True):
        assert score.tokens + score.cached == len(step.ids)
    # A sequence classifier reads vLLM's cache, so a served PRM should be one.
    assert (ours[-1].cached >= 64) == finds
    together = await scorers[1].score(steps)
    assert [s.value for s in together] == pytest.approx([s.value for s in true], abs=1e-4)
    assert scorers[1].held_bytes() > 64 << 20
    for scorer in scorers:
        await scorer.close()
    with pytest.raises(EngineError, match="closed"):
        await scorers[1].score(steps)


async def test_an_embedder_compares_as_on_transformers(reference: Engine) -> None:
    folder = str(nano.pair_paths()["draft"])
    first, second, *_ = requests(reference)
    asked = [
        ScoreRequest("q", (), one.step, Role.TARGET, one.ids, one.step_ids, against=other)
        for one, other in ((first, STEPS[1]), (second, STEPS[2]), (second, STEPS[1]))
    ]
    values = []
    for more in ({}, {"library": "vllm", "vllm": VLLM}):
        scorer = Embedding.load("embed", EmbeddingConfig(kind="embedding", model=folder, **more), {}, Path())
        values.append([score.value for score in await scorer.score(asked)])
        await scorer.close()
    assert values[1] == pytest.approx(values[0], abs=1e-4)
    assert values[1][-1] == 1.0
    assert values[1][0] < 0.999
