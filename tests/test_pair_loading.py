"""A pair that takes long to load says what it waits for."""

from __future__ import annotations

from pathlib import Path

from baton import pair as module
from baton.config import NANO_PAIR
from baton.pair import Pair
from baton.trace import Role

DRAFT = NANO_PAIR.model_copy(update={"scorers": {}})


async def test_a_model_that_loads_for_long_is_named_and_one_that_is_there_at_once_is_not(monkeypatch, caplog):
    monkeypatch.setattr(module, "SILENCE_S", 0.0)
    async with Pair.load(DRAFT, Path.cwd(), [Role.DRAFT]):
        assert [r.getMessage() for r in caplog.records if r.name == module.__name__] == [
            "loading the draft, nano:draft ..."
        ]
    caplog.clear()
    monkeypatch.setattr(module, "SILENCE_S", 600.0)
    async with Pair.load(DRAFT, Path.cwd(), [Role.DRAFT]):
        assert not [r for r in caplog.records if r.name == module.__name__]
