"""What vLLM is asked for, on machines of both kinds; whether it gives it is tested where there is a vLLM."""

from __future__ import annotations

from typing import Any

import pytest

from baton.engines import vllm_options
from baton.engines.base import Speculation
from baton.engines.settings import VllmSettings
from baton.engines.vllm_options import engine_arguments, speculative_config, variables


def arguments(
    monkeypatch: pytest.MonkeyPatch, *, cpu: bool, speculative: Speculation | None = None, **settings: Any
) -> dict[str, Any]:
    monkeypatch.setattr(vllm_options, "on_cpu", lambda: cpu)
    replica = settings.pop("replica", 0)
    return engine_arguments(
        "m", dtype="auto", cache_bytes=1 << 26, max_batch=4, trust_remote_code=False, revision=None,
        speculative=speculative, settings=VllmSettings(**settings), replica=replica,
    )  # fmt: skip


def test_two_models_on_one_gpu_are_each_given_what_they_were_told(monkeypatch: pytest.MonkeyPatch) -> None:
    by_share = arguments(monkeypatch, cpu=False, memory=0.2)
    assert by_share["gpu_memory_utilization"] == 0.2
    assert "kv_cache_memory_bytes" not in by_share
    by_bytes = arguments(monkeypatch, cpu=False)
    assert by_bytes["kv_cache_memory_bytes"] == 1 << 26
    # vLLM refuses to start where less than its share is free, whatever the cache takes.
    assert by_bytes["gpu_memory_utilization"] <= 0.01


def test_copies_and_splits_of_a_model_have_their_own_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    settings: dict[str, Any] = {"devices": (2, 3, 0, 1), "tensor_parallel": 2, "replicas": 2}
    second = arguments(monkeypatch, cpu=False, replica=1, **settings)
    assert (second["device_ids"], second["tensor_parallel_size"]) == ([0, 1], 2)


def test_a_cpu_computes_in_float32_without_compilation(monkeypatch: pytest.MonkeyPatch) -> None:
    on_cpu, on_gpu = arguments(monkeypatch, cpu=True), arguments(monkeypatch, cpu=False)
    assert (on_cpu["dtype"], on_cpu["enforce_eager"]) == ("float32", True)
    assert (on_gpu["dtype"], on_gpu["enforce_eager"]) == ("auto", False)
    assert "device_ids" not in on_cpu
    monkeypatch.setattr(vllm_options, "on_cpu", lambda: True)
    assert variables(None)["OMP_NUM_THREADS"] == "1"
    assert variables(3)["OMP_NUM_THREADS"] == "3"


def test_graphs_are_captured_for_what_a_segment_catches_up_with(monkeypatch: pytest.MonkeyPatch) -> None:
    full = arguments(monkeypatch, cpu=False, graphs="full")["compilation_config"]
    assert full["cudagraph_mode"] == "FULL"
    assert {1, 64, 256} <= set(full["cudagraph_capture_sizes"])
    piecewise = arguments(monkeypatch, cpu=False, graphs="piecewise")["compilation_config"]
    assert piecewise["cudagraph_mode"] == "FULL_AND_PIECEWISE"
    assert "compilation_config" not in arguments(monkeypatch, cpu=False)
    assert "compilation_config" not in arguments(monkeypatch, cpu=True, graphs="full")


def test_further_arguments_add_to_the_speculation(monkeypatch: pytest.MonkeyPatch) -> None:
    extra = {"speculative_config": {"draft_tensor_parallel_size": 1}, "enable_chunked_prefill": True}
    wanted = arguments(monkeypatch, cpu=False, speculative=Speculation("ngram", 5, 2, 3), args=extra)
    assert wanted["enable_chunked_prefill"] is True
    assert wanted["speculative_config"] == {
        "method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_min": 2, "prompt_lookup_max": 3,
        "draft_tensor_parallel_size": 1,
    }  # fmt: skip


def test_speculation_is_told_in_vllms_words() -> None:
    assert speculative_config(None) is None
    assert speculative_config(Speculation("mtp", 2)) == {"method": "mtp", "num_speculative_tokens": 2}
    assert speculative_config(Speculation("eagle3", 3, model="head")) == {
        "method": "eagle3", "num_speculative_tokens": 3, "model": "head",
    }  # fmt: skip
