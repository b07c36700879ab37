"""The nano pair in texts without blank lines: the same models, and only what waits for a blank line waits longer."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))
import respell_nano
from baton import nano
from baton.config import PairConfig
from baton.engines.base import Sampling
from baton.generation import Budget, Options, generate
from baton.nano import problems
from baton.pair import Pair
from baton.routers.rsd import RSD
from baton.trace import Trace


def pair(folder_of: Callable[[str], str]) -> Pair:
    scorers = {
        "resident": {"kind": "resident", "model": folder_of("resident")},
        "hand-back": {"kind": "token", "model": folder_of("hand-back")},
        "semantic": {"kind": "embedding", "model": folder_of("draft")},
    }
    models = {role: folder_of(role) for role in ("target", "draft")}
    return Pair.load(PairConfig.model_validate({"name": "nano", "scorers": scorers, **models}), Path("/"))


async def answered(of: Pair, unit: str) -> Trace:
    router = RSD(scorer="resident", threshold=0.85, unit=unit, profile=nano.cue_profile())
    options = Options(budget=Budget(240, 32), sampling=Sampling(temperature=0.6))
    return await generate(of, router, problems.load("dev", 3)[2].question, options=options)


def ids(trace: Trace) -> list[int]:
    return [i for segment in trace.path() for i in segment.ids]


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory):
    out = tmp_path_factory.mktemp("flat")
    respell_nano.respell(out)
    plain, flat = pair(lambda name: f"nano:{name}"), pair(lambda name: str(out / name))
    yield plain, flat
    for loaded in (plain, flat):
        asyncio.run(loaded.close())


@pytest.mark.parametrize("unit", ["sentence", "20 tokens", "cues", "semantic", "hand-back"])
async def test_units_that_wait_for_no_blank_line_give_the_same_tokens(pairs, unit: str):
    plain, flat = [await answered(of, unit) for of in pairs]
    assert "\n\n" in plain.text
    assert "\n\n" not in flat.text
    assert ids(plain) == ids(flat)
    assert flat.text.replace(" ", "") == plain.text.replace(" ", "").replace("\n\n", "")
    assert {"draft", "target"} == {str(s.role) for s in flat.path()}


async def test_a_unit_that_waits_for_a_blank_line_is_all_of_the_thinking(pairs):
    plain, flat = [await answered(of, "step") for of in pairs]
    assert next(iter(flat.path())).ended_by.name == "end_of_thinking"
    assert [s.ended_by.name for s in plain.path()].count("step") > 2
