"""An engine's own group of a model's configuration: `vllm:` and `server:`. No library is needed to read it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import urlsplit

CLAIMED = {
    "model": "model", "tokenizer": "model", "revision": "revision", "trust_remote_code": "trust_remote_code",
    "dtype": "dtype", "max_num_seqs": "max_batch", "tensor_parallel_size": "vllm.tensor_parallel",
    "data_parallel_size": "vllm.replicas", "device_ids": "vllm.devices", "gpu_memory_utilization": "vllm.memory",
    "kv_cache_memory_bytes": "cache_mb", "max_model_len": "vllm.context", "block_size": "vllm.block",
    "enforce_eager": "vllm.eager", "compilation_config": "vllm.graphs",
}  # fmt: skip
"""vLLM's arguments that a field of the configuration sets."""


@dataclass(frozen=True, slots=True)
class VllmSettings:
    """How vLLM runs one model: in this process's engine (`engine: vllm`) and on the server that `baton up` starts."""

    devices: tuple[int, ...] | None = None
    """GPUs by number, those of the first replica first; the machine's first ones if null."""
    tensor_parallel: int = 1
    """GPUs that one copy of the model is split over."""
    replicas: int = 1
    """Copies of the model. An answer stays with one of them, which has its prefix cached."""
    memory: float | None = None
    """Share of each GPU's memory for weights and cache together. Null: what `cache_mb` says, for the cache alone."""
    context: int | None = None
    """Most tokens of a sequence; the model's own if null."""
    block: int | None = None
    """Tokens in a block of the prefix cache, the unit in which a prefix is found again; vLLM's choice if null."""
    graphs: Literal["full", "piecewise"] | None = None
    """CUDA graphs of steps that read, for up to 256 tokens: what a segment has to catch up with. `full` needs an
    attention that can (FlashAttention 3; vLLM takes less where it cannot). vLLM's own if null: piecewise, for steps of
    up to twice `max_batch`."""
    eager: bool = False
    """Leaves out compilation and CUDA graphs: a faster start, slower tokens. Always so on a CPU."""
    logprobs: int = 20
    """Likeliest tokens from which the entropy is read; the rest counts as one token, so that it is a lower bound.
    -1 takes the whole vocabulary: exact, and slow where that is large."""
    args: dict[str, Any] = field(default_factory=dict)
    """Further arguments of vLLM's `AsyncEngineArgs`, by name."""

    def __post_init__(self) -> None:
        for name, least in (("tensor_parallel", 1), ("replicas", 1), ("context", 1), ("block", 1), ("logprobs", -1)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ValueError(f"vllm.{name}: {value} is out of range; use {least} or more")
        if self.graphs not in (None, "full", "piecewise"):
            raise ValueError(f"vllm.graphs: {self.graphs!r} is unknown; use full or piecewise")
        if self.graphs is not None and self.eager:
            raise ValueError("vllm.graphs: there are none where vllm.eager is true; drop one of the two")
        if self.logprobs == 0:
            raise ValueError("vllm.logprobs: 0 leaves nothing to read; use 2 or more, or -1 for the whole vocabulary")
        if self.memory is not None and not 0 < self.memory <= 1:
            raise ValueError(f"vllm.memory: {self.memory} is no share; use a number in (0, 1]")
        needed = self.tensor_parallel * self.replicas
        if self.devices is not None:
            if len(set(self.devices)) != len(self.devices) or any(d < 0 for d in self.devices):
                raise ValueError(
                    f"vllm.devices: {list(self.devices)} repeats a GPU or has no such number; name each once"
                )
            if len(self.devices) != needed:
                raise ValueError(
                    f"vllm.devices: {list(self.devices)} are {len(self.devices)} GPUs, and {self.replicas} replicas of "
                    f"{self.tensor_parallel} need {needed}; set tensor_parallel or replicas to match"
                )
        for name in self.args:
            if name in CLAIMED:
                raise ValueError(f"vllm.args.{name}: it is set by {CLAIMED[name]}; use that field")

    def devices_of(self, replica: int) -> tuple[int, ...]:
        """GPUs of one copy of the model."""
        first = replica * self.tensor_parallel
        every = self.devices or tuple(range(self.tensor_parallel * self.replicas))
        return every[first : first + self.tensor_parallel]


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        # Of a port.
        return False


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Where a model is served, and how patiently it is asked (`engine: openai`)."""

    url: tuple[str, ...]
    """The server's address, such as http://localhost:8000, or several that serve the same model: an answer stays with
    one of them, which has its prefix cached."""
    name: str | None = None
    """The model's name there; the only one it serves if null."""
    key_env: str | None = None
    """Environment variable that holds the API key; none is sent if null."""
    timeout_s: float = 600.0
    """Longest wait for the next bytes of an answer."""
    connect_s: float = 10.0
    """Longest wait for a connection."""
    retries: int = 3
    """Further attempts at a request of which no token has come yet, after a failure that may pass."""
    connections: int = 256
    """Most connections at a time."""
    logprobs: int = 20
    """Likeliest tokens from which the entropy is read; the rest counts as one token, so that it is a lower bound."""
    text: bool = False
    """Speak to it in text even if it takes and returns token ids, to measure what that costs."""

    def __post_init__(self) -> None:
        if not self.url:
            raise ValueError("server.url: it is empty; give the server's address, such as http://localhost:8000")
        for url in self.url:
            if not _is_address(url):
                raise ValueError(f"server.url: {url!r} is no address; write it as http://localhost:8000")
        for name in ("timeout_s", "connect_s", "connections", "logprobs"):
            if getattr(self, name) <= 0:
                raise ValueError(f"server.{name}: {getattr(self, name)} is out of range; use a positive number")
        if self.retries < 0:
            raise ValueError(f"server.retries: {self.retries} is negative; use 0 or more")
