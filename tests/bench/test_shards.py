"""Parts of a comparison in several processes, and the run that they are merged to."""

from __future__ import annotations

import json

import pytest
from small_runs import QUESTIONS, results, started, tokens, traces, untimed

from baton.bench.command import run_compare
from baton.bench.folder import merge
from baton.config import ConfigError


def test_shards_of_several_processes_make_the_comparison_of_one(recipe, tmp_path, capsys):
    path = recipe(routers=["target", {"router": "random", "share_of": "draft"}, "draft"])
    assert run_compare(path, tmp_path / "whole") == 0
    shards = [tmp_path / "a", tmp_path / "b"]
    for n, shard in enumerate(shards, 1):
        assert run_compare(path, shard, shard=f"{n}/2") == 0
        assert "baton merge" in capsys.readouterr().out
        assert not (shard / "results.json").exists()
    merge(tmp_path / "merged", shards)
    assert run_compare(path, tmp_path / "merged") == 0
    assert tokens(tmp_path / "merged") == tokens(tmp_path / "whole")
    assert untimed(results(tmp_path / "merged")) == untimed(results(tmp_path / "whole"))
    (tmp_path / "merged" / "config.json").unlink()
    assert merge(tmp_path / "merged", shards)[0] == len(traces(tmp_path / "merged")), (
        "a merge that was cut off is redone"
    )
    with pytest.raises(ConfigError, match="holds a run already"):
        merge(tmp_path / "merged", shards)
    assert run_compare(path, tmp_path / "other", seed=5, shard="1/2") == 0
    with pytest.raises(ConfigError, match="seed differs from"):
        merge(tmp_path / "new", [*shards, tmp_path / "other"])
    with pytest.raises(ConfigError, match="it holds no run"):
        merge(tmp_path / "new", [tmp_path / "nowhere"])
    assert run_compare(path, tmp_path / "x", shard="3/2") == 2
    assert "'3/2' is no part of a whole" in capsys.readouterr().err


def test_an_arm_of_a_measured_share_has_one_share_in_the_whole_run(recipe, tmp_path, capsys):
    """As an engine that draws other tokens on another machine would have it: the second shard measures otherwise."""
    half = {"router": "random", "label": "half", "knobs": {"share": 0.5}}
    path = recipe(routers=["target", {"router": "random", "share_of": "half"}, half], latency=None)
    shards = [tmp_path / "a", tmp_path / "b"]
    for n, shard in enumerate(shards, 1):
        assert run_compare(path, shard, shard=f"{n}/2") == 0
    first, second = (json.loads((shard / "shares.json").read_text()) for shard in shards)
    assert first == second
    (shards[1] / "shares.json").write_text(json.dumps({"half": first["half"] + 0.01}))
    count, left_out = merge(tmp_path / "merged", shards)
    assert left_out == {"random": QUESTIONS // 2}
    assert count == 4 + 3 * QUESTIONS - QUESTIONS // 2
    assert run_compare(path, tmp_path / "merged") == 0
    assert run_compare(path, tmp_path / "whole") == 0
    assert untimed(results(tmp_path / "merged")) == untimed(results(tmp_path / "whole"))
    # A run that resumes keeps to the share that its answers have.
    resumed = shards[1]
    assert run_compare(path, resumed) == 0
    assert results(resumed)["arms"][1]["knobs"]["share"] == first["half"] + 0.01


def test_shards_that_time_their_part_at_once_say_so(recipe, tmp_path):
    path = recipe(latency={"limit": 7, "warmup": 1, "sharded": True})
    assert run_compare(path, tmp_path / "whole") == 0
    assert results(tmp_path / "whole")["load"]["latency"]["clients"] == {"most": 1, "mean": 1.0}
    shards = [tmp_path / "a", tmp_path / "b"]
    with started(path, shards[0], "1/2") as first, started(path, shards[1], "2/2") as second:
        assert [process.wait(timeout=120) for process in (first, second)] == [0, 0]
    timed = [[t for t in traces(shard) if t.extra["pass"] == "latency"] for shard in shards]
    assert [len(part) for part in timed] == [4 * 2, 3 * 2]
    assert [t.extra["arm"] for t in timed[0][:4]] == ["target", "draft", "target", "draft"]
    assert [t.extra["arm"] for t in timed[1][:4]] == ["draft", "target", "draft", "target"]
    merge(tmp_path / "merged", shards)
    stored = (tmp_path / "merged" / "traces.jsonl").read_bytes()
    assert run_compare(path, tmp_path / "merged") == 0
    assert (tmp_path / "merged" / "traces.jsonl").read_bytes() == stored, "nothing is left to answer"
    assert tokens(tmp_path / "merged") == tokens(tmp_path / "whole")
    found = results(tmp_path / "merged")
    assert found["valid"]
    assert 1 <= found["load"]["latency"]["clients"]["mean"] <= found["load"]["latency"]["clients"]["most"] <= 2
