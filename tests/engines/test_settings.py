"""The groups `vllm:` and `server:` of a model's configuration: what is refused, and in which words."""

from __future__ import annotations

from typing import Any

import pytest

from baton.config import ConfigError, ModelConfig, validate
from baton.engines.settings import VllmSettings


def model(**fields: Any) -> ModelConfig:
    return validate(ModelConfig, {"model": "m", **fields}, "pair.yaml")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"vllm": {}}, "vllm: it goes with engine vllm, not 'transformers'"),
        ({"server": "http://a"}, "server: it goes with engine openai, not 'transformers'"),
        ({"engine": "openai"}, "server: missing; engine openai needs the server's address"),
        ({"engine": "openai", "server": "localhost:8000"}, "server.url: 'localhost:8000' is no address; write it as"),
        ({"engine": "openai", "server": "http://a:port"}, "server.url: 'http://a:port' is no address"),
        ({"engine": "openai", "server": "http://:8000"}, "server.url: 'http://:8000' is no address"),
        ({"engine": "openai", "server": {"url": []}}, "server.url: it is empty"),
        ({"engine": "openai", "server": {"url": "http://a", "retries": -1}}, "server.retries: -1 is negative"),
        ({"engine": "openai", "server": {"url": "http://a", "timeout_s": 0}}, "server.timeout_s: 0.0 is out of range"),
        ({"engine": "openai", "server": {"url": "http://a", "patience": 1}}, "server.patience: unknown field"),
        ({"engine": "vllm", "vllm": {"memory": 1.5}}, "vllm.memory: 1.5 is no share; use a number in"),
        ({"engine": "vllm", "vllm": {"replicas": 0}}, "vllm.replicas: 0 is out of range; use 1 or more"),
        ({"engine": "vllm", "vllm": {"logprobs": 0}}, "vllm.logprobs: 0 leaves nothing to read"),
        ({"engine": "vllm", "vllm": {"devices": [0, 0]}}, r"vllm.devices: \[0, 0\] repeats a GPU"),
        (
            {"engine": "vllm", "vllm": {"devices": [0, 1]}},
            r"vllm.devices: \[0, 1\] are 2 GPUs, and 1 replicas of 1 need 1; set tensor_parallel or replicas",
        ),
        ({"engine": "vllm", "vllm": {"args": {"dtype": "half"}}}, "vllm.args.dtype: it is set by dtype; use"),
        ({"engine": "vllm", "vllm": {"graphs": "full", "eager": True}}, "vllm.graphs: there are none where vllm.eager"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line_with_field_value_and_remedy(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=f"^pair.yaml: {message}") as caught:
        model(**fields)
    assert "\n" not in str(caught.value)


def test_an_address_stands_for_a_server_and_one_for_several() -> None:
    short = model(engine="openai", server="http://a:1")
    long = model(engine="openai", server={"url": ["http://a:1"]})
    assert short == long == model(engine="openai", server={"url": "http://a:1"})


def test_each_copy_has_its_own_gpus() -> None:
    settings = VllmSettings(devices=(4, 5, 6, 7), tensor_parallel=2, replicas=2)
    assert [settings.devices_of(n) for n in range(2)] == [(4, 5), (6, 7)]
    assert [VllmSettings(replicas=2).devices_of(n) for n in range(2)] == [(0,), (1,)]
    assert VllmSettings(tensor_parallel=2).devices_of(0) == (0, 1)
