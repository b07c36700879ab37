"""A vLLM server that dies under a comparison: what is answered stays, and the run goes on with a new server."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from comparisons import ROUTERS, recipe
from nano_models import PAIR, write
from servers import Up, serving

from baton.bench import passes
from baton.bench.command import run_compare
from baton.config import load_pair
from baton.engines.base import EngineLostError
from baton.pair import load_engine

pytestmark = [pytest.mark.vllm, pytest.mark.asyncio(loop_scope="module")]

QUESTIONS = 5


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Up]:
    """A server of the target; the draft runs in this process."""
    pair = yaml.safe_load(PAIR.read_text())
    pair["draft"] = {"model": "nano:draft"}
    file = tmp_path / "nano.yaml"
    file.write_text(yaml.safe_dump(pair))
    folder = tmp_path / "up"
    folder.mkdir()
    with serving(folder, file) as up:
        yield up


async def test_a_server_killed_in_mid_answer_is_a_typed_error_and_the_run_resumes(
    up: Up, tmp_path: Path, prompts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(passes, "FIRST_PAUSE_SECONDS", 0.1)
    engine = load_engine(load_pair(up.served).target, up.folder)
    task = asyncio.create_task(write(engine, prompts[0], 1800))
    file, out = recipe(tmp_path, "resumed", str(up.served), QUESTIONS), tmp_path / "resumed"
    codes: list[int] = []
    run = threading.Thread(target=lambda: codes.append(run_compare(file, out)))
    run.start()
    traces = out / "traces.jsonl"
    while not (traces.is_file() and traces.read_text().count("\n") >= 2 and engine.metrics()["running"]):
        await asyncio.sleep(0.05)
    up.kill_servers()
    with pytest.raises(EngineLostError) as caught:
        await task
    assert caught.value.retryable
    await engine.close()
    await asyncio.to_thread(run.join)
    assert await asyncio.to_thread(up.ended) == 1
    assert "its server ended with code" in up.log
    assert codes == [1], "failed answers make a comparison invalid"
    answered = traces.read_text().splitlines()
    assert len(answered) < QUESTIONS * len(ROUTERS)
    assert "EngineLostError" in (out / "failures.jsonl").read_text()
    await asyncio.to_thread(up.start)
    assert await asyncio.to_thread(run_compare, file, out) == 0
    lines = traces.read_text().splitlines()
    assert (lines[: len(answered)], len(lines)) == (answered, QUESTIONS * len(ROUTERS))
    results = json.loads((out / "results.json").read_text())
    assert [arm["failures"] for arm in results["arms"]] == [0, 0, 0]
