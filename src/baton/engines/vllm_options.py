"""A model's configuration in vLLM's words: arguments, which are a server's options too, and environment."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from pydantic import ValidationError

from baton.engines.base import Speculation
from baton.engines.settings import VllmSettings
from baton.leash import Leash

T = TypeVar("T")

GRAPH_TOKENS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256)
"""Tokens of a step for which graphs are captured; one takes a fraction of a second at the start."""


def on_cpu() -> bool:
    """Whether the vLLM that is installed here runs on CPUs.

    Raises:
        ImportError: none is installed.
    """
    from vllm.platforms import current_platform

    return bool(current_platform.is_cpu())


def engine_arguments(
    path: str, *, dtype: str, cache_bytes: int, max_batch: int, trust_remote_code: bool,
    revision: str | None, speculative: Speculation | None, settings: VllmSettings, replica: int = 0,
) -> dict[str, Any]:  # fmt: skip
    """The arguments of vLLM's `AsyncEngineArgs` for one copy of a model; a server's options have the same names."""
    cpu = on_cpu()
    wanted: dict[str, Any] = {
        "model": path,
        "tokenizer": path,
        "dtype": "float32" if cpu and dtype == "auto" else dtype,
        "max_num_seqs": max_batch,
        "tensor_parallel_size": settings.tensor_parallel,
        "enforce_eager": cpu or settings.eager,
        "enable_prefix_caching": True,
        "use_tqdm_on_load": False,
        # No bound but the vocabulary: what is read is the router's choice.
        "max_logprobs": -1,
        "trust_remote_code": trust_remote_code,
        "seed": 0,
    }
    if settings.memory is not None:
        wanted["gpu_memory_utilization"] = settings.memory
    else:
        wanted["kv_cache_memory_bytes"] = cache_bytes
        if not cpu:
            # The cache has its size; the share would only be asked for at the start, when another model has it.
            wanted["gpu_memory_utilization"] = 0.01
    if not cpu:
        wanted["device_ids"] = [*settings.devices_of(replica)]
        if settings.graphs is not None:
            wanted["compilation_config"] = {
                "cudagraph_mode": "FULL" if settings.graphs == "full" else "FULL_AND_PIECEWISE",
                "cudagraph_capture_sizes": [*GRAPH_TOKENS],
            }
    optional = {
        "revision": revision,
        "max_model_len": settings.context,
        "block_size": settings.block,
        "speculative_config": speculative_config(speculative),
    }
    wanted |= {name: value for name, value in optional.items() if value is not None}
    further = dict(settings.args)
    if "speculative_config" in wanted and "speculative_config" in further:
        further["speculative_config"] = wanted["speculative_config"] | further["speculative_config"]
    return wanted | further


def speculative_config(asked: Speculation | None) -> dict[str, Any] | None:
    """vLLM's own form of a speculation."""
    if asked is None:
        return None
    config: dict[str, Any] = {"method": asked.method, "num_speculative_tokens": asked.tokens}
    if asked.method == "ngram":
        config |= {"prompt_lookup_min": asked.ngram_min, "prompt_lookup_max": asked.ngram_max}
    if asked.model is not None:
        config["model"] = asked.model
    return config


def variables(threads: int | None) -> dict[str, str]:
    """What the processes that vLLM starts must find in their environment."""
    wanted = {
        # The process that starts them may hold threads and a GPU: neither survives a fork.
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
        "VLLM_NO_USAGE_STATS": "1",
    }
    if on_cpu():
        wanted |= {
            "OMP_NUM_THREADS": str(threads or 1),
            # The n-gram lookup's.
            "NUMBA_NUM_THREADS": str(threads or 1),
            # The core runs the model itself, without a further process for it.
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            # Two engines would be bound to the same cores.
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "TORCH_COMPILE_DISABLE": "1",
        }
    return wanted


def said(error: Exception) -> str:
    """What vLLM says is wrong with a model or an argument, in one line."""
    text = str(error.errors()[0]["msg"]) if isinstance(error, ValidationError) else f"{type(error).__name__}: {error}"
    return " ".join(text.split())


def start(make: Callable[[], T], threads: int | None) -> tuple[T, Leash]:
    """What `make` makes of vLLM with `variables` set, and what ends its processes with this one, however it ends: they
    would go on, and hold the GPU."""
    others = set(multiprocessing.active_children())
    with _environment(threads):
        made = make()
    mine = set(multiprocessing.active_children()) - others
    return made, Leash([process.pid for process in mine if process.pid is not None])


@contextmanager
def _environment(threads: int | None) -> Iterator[None]:
    """`variables` in this process's environment, which is put back afterwards."""
    wanted = variables(threads)
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
