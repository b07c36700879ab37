"""What `baton up` starts and what it leaves to use the servers by. Real servers are started where vLLM is tested."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from baton.config import ConfigError, PairConfig, load_pair, validate
from baton.up import Service, options, served, services


def pair(**changes: Any) -> PairConfig:
    target = {"model": "big", "engine": "vllm", "vllm": {"replicas": 2, "logprobs": 5}, "speculative": "ngram"}
    return validate(PairConfig, {"name": "p", "target": target, "draft": "nano:draft", **changes}, "pair.yaml")


def test_arguments_become_a_servers_options() -> None:
    arguments = {"max_num_seqs": 4, "enforce_eager": True, "use_tqdm_on_load": False, "device_ids": [0, 1],
                 "speculative_config": {"method": "ngram"}}  # fmt: skip
    assert options(arguments) == [
        "--max-num-seqs", "4", "--enforce-eager", "--no-use-tqdm-on-load", "--device-ids", "0,1",
        "--speculative-config", '{"method": "ngram"}',
    ]  # fmt: skip


def test_a_pair_is_written_with_its_servers(tmp_path: Path) -> None:
    config = pair(sampling={"temperature": 0.6}, cues="cues.json")
    found = [Service("target", f"target {n}", f"http://h:{n}", [], {}) for n in (1, 2)]
    file = tmp_path / "p.served.yaml"
    file.write_text(served(config, found))
    again = load_pair(file)
    assert again.target.engine == "openai"
    assert again.target.server is not None
    assert (again.target.server.url, again.target.server.name) == (("http://h:1", "http://h:2"), "target")
    assert again.target.server.logprobs == 5
    # What the servers do is told by the results.
    assert again.target.speculative == config.target.speculative
    assert (again.draft, again.sampling, again.cues) == (config.draft, config.sampling, config.cues)
    assert yaml.safe_load(file.read_text())["draft"] == {"model": "nano:draft"}


def test_a_pair_without_a_model_for_vllm_has_nothing_to_serve(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="engine: no model of the pair has engine vllm; set it"):
        services(pair(target="nano:target"), tmp_path, "127.0.0.1", 8000)
