"""Resident heads on the nano pair: the score is that of the states which a plain forward gives, and costs none."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModel

from baton import nano
from baton.boundary import STEP, Cap
from baton.config import NANO_PAIR, ResidentConfig
from baton.engines.base import LoadError
from baton.generation import Budget, Generation, Options, generate
from baton.nano import problems
from baton.pair import Pair
from baton.routers.rsd import RSD
from baton.scorers.resident import About, Resident, ResidentHead
from baton.trace import Role, Trace
from scripted import ScriptedEngine

OPTIONS = Options(budget=Budget(tokens=160, answer_reserve=32))
WIDTH = {"draft": 128, "target": 256}


def make(folder: Path, role: str, vocabulary: str, weights: str | None = None) -> ResidentHead:
    torch.manual_seed(1)
    head = ResidentHead(WIDTH[role], 8)
    torch.nn.init.normal_(head.last.weight, std=2.0)
    head.standardise(torch.randn(50, WIDTH[role]) * 3)
    head.save(folder, About(role, f"nano:{role}", vocabulary, WIDTH[role], 8, "keep", weights))
    return head


def engines() -> Pair:
    return Pair.load(NANO_PAIR.model_copy(update={"scorers": {}}), Path())


def with_head(pair: Pair, folder: Path, role: str) -> tuple[Pair, ResidentHead]:
    head = make(folder, role, pair.engines[Role.DRAFT].vocabulary.fingerprint)
    config = ResidentConfig(kind="resident", model=str(folder))
    return replace(pair, scorers={"head": Resident.load("head", config, pair.engines, Path())}), head


def expected(trace: Trace, head: ResidentHead, role: str) -> dict[int, float]:
    """Scores of the decided steps, by node: the head on a forward over prompt and path, one step at a time."""
    model = AutoModel.from_pretrained(nano.pair_paths()[role], dtype=torch.float32).eval()
    segments = {s.id: s for s in trace.segments}
    out = {}
    for decision in trace.decisions:
        ids: list[int] = []
        at: int | None = decision.node
        while at:
            ids = segments[at].ids + ids
            at = segments[at].parent
        with torch.inference_mode():
            states = model(torch.tensor([trace.prompts[role] + ids])).last_hidden_state[0]
            out[decision.node] = head(states[-2]).sigmoid().item()
    return out


@pytest.mark.parametrize("role", ["draft", "target"])
async def test_scores_are_the_heads_on_the_states_of_a_plain_forward(tmp_path: Path, role: str):
    pair, head = with_head(engines(), tmp_path, role)
    try:
        trace = await generate(pair, RSD(scorer="head", gate="constant"), problems.load("dev", 1)[0].question,
                               options=OPTIONS)  # fmt: skip
    finally:
        await pair.close()
    assert len(trace.decisions) >= 4
    assert {d.outcome for d in trace.decisions} == {True, False}
    wanted = expected(trace, head, role)
    assert {d.node: d.score for d in trace.decisions} == pytest.approx(wanted, abs=1e-4)
    computed = sum(helper.tokens for helper in trace.helpers)
    drafted = sum(len(s.ids) for s in trace.segments if s.role == "draft")
    # The draft computed its own states already; the target has to read what the draft wrote.
    assert computed == 0 if role == "draft" else 0 < computed <= 2 * drafted
    assert not any("hidden" in s.features for s in trace.segments)


async def test_nothing_is_kept_for_routers_that_do_not_ask_for_the_head(tmp_path: Path):
    pair, _ = with_head(engines(), tmp_path, "draft")
    seen: list[object] = []

    class Writer:
        name = "writer"

        async def __call__(self, gen: Generation) -> None:
            segment = await gen.propose("draft", [STEP, Cap(40)])
            seen.append(gen._tree.live(segment).state)
            gen.commit(segment)
            gen.abandon()

    try:
        await generate(pair, Writer(), problems.load("dev", 1)[0].question, options=OPTIONS)
    finally:
        await pair.close()
    assert seen == [None]


def test_a_head_of_another_pair_or_engine_is_refused_by_name(tmp_path: Path):
    config = ResidentConfig(kind="resident", model=str(tmp_path))
    draft = ScriptedEngine("draft", "")
    with pytest.raises(LoadError, match="no resident head"):
        Resident.load("head", config, {Role.DRAFT: draft}, Path())
    make(tmp_path, "draft", draft.vocabulary.fingerprint)
    with pytest.raises(LoadError, match="hidden states, which engine 'scripted' does not give"):
        Resident.load("head", config, {Role.DRAFT: draft}, Path())
    make(tmp_path, "draft", "of another model")
    draft.kind = "transformers"
    with pytest.raises(LoadError, match="the draft has another vocabulary"):
        Resident.load("head", config, {Role.DRAFT: draft}, Path())
    make(tmp_path, "draft", draft.vocabulary.fingerprint, weights="of the model before it was trained on")
    draft.weights = "of the model now"
    with pytest.raises(LoadError, match="reads nano:draft, and the draft has other weights"):
        Resident.load("head", config, {Role.DRAFT: draft}, Path())
    draft.weights = None
    Resident.load("head", config, {Role.DRAFT: draft}, Path())


async def test_the_shipped_heads_know_the_shipped_models_and_no_model_trained_on(tmp_path: Path):
    heads = {n: s for n, s in NANO_PAIR.scorers.items() if s.kind in ("resident", "equivalence", "policy", "token")}
    await Pair.load(NANO_PAIR.model_copy(update={"scorers": heads}), Path()).close()
    trained = shutil.copytree(nano.pair_paths()["draft"], tmp_path / "trained")
    tensors = load_file(trained / "model.safetensors")
    save_file(
        {name: tensor + 1e-3 for name, tensor in tensors.items()}, trained / "model.safetensors", {"format": "pt"}
    )
    draft = NANO_PAIR.draft.model_copy(update={"model": str(trained)})
    for name, head in heads.items():
        pair = NANO_PAIR.model_copy(update={"draft": draft, "scorers": {name: head}})
        if name in ("resident-target", "take-over"):  # the target's
            await Pair.load(pair, Path()).close()
        else:
            with pytest.raises(ValueError, match=f"pair.scorers.{name}: nano:.*the draft has other weights"):
                Pair.load(pair, Path())
