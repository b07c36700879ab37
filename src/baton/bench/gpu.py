"""What answers take of the GPUs: energy, time and memory, read through NVML while they are under way.

A thread reads power and memory every tenth of a second and integrates power over the clock. Of what passes while
several answers are under way each is given an equal part, so that the answers' sum is what the GPUs took while any
was. It is all that the GPUs do: a second process on them is measured too.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol

PERIOD_SECONDS = 0.1
"""Between two readings; NVML renews power about as often."""


class Gpu(Protocol):
    """One GPU."""

    def watts(self) -> float: ...

    def used_bytes(self) -> int:
        """Memory in use, by whatever process."""
        ...


class NvmlGpu:
    """A GPU read through NVML (`nvidia-ml-py`)."""

    def __init__(self, nvml: Any, handle: Any):
        self._nvml, self._handle = nvml, handle

    def watts(self) -> float:
        return float(self._nvml.nvmlDeviceGetPowerUsage(self._handle)) / 1000

    def used_bytes(self) -> int:
        return int(self._nvml.nvmlDeviceGetMemoryInfo(self._handle).used)


def visible_gpus() -> list[NvmlGpu]:
    """The GPUs that this process may use; empty without any, or without NVML."""
    try:
        nvml = import_module("pynvml")
        nvml.nvmlInit()
    except Exception:
        # Not installed, no driver, or one that it cannot speak to: then there is nothing to read.
        return []
    asked = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = [str(n) for n in range(nvml.nvmlDeviceGetCount())] if asked is None else asked.split(",")
    try:
        handles = [
            nvml.nvmlDeviceGetHandleByIndex(int(name)) if name.isdigit() else nvml.nvmlDeviceGetHandleByUUID(name)
            for name in map(str.strip, names)
            if name
        ]
        found = [NvmlGpu(nvml, handle) for handle in handles]
        for gpu in found:
            gpu.watts()
            gpu.used_bytes()
    except nvml.NVMLError:
        return []
    return found


@dataclass(frozen=True, slots=True)
class Spent:
    """An answer's part of what the GPUs took while it was under way."""

    joules: float
    gpu_seconds: float


class Meter:
    """Divides what GPUs take among the answers under way.

    Args:
        gpus: those that run the models.
        clock: seconds, monotonic.
    """

    def __init__(self, gpus: Sequence[Gpu], clock: Callable[[], float] = time.monotonic):
        self._gpus, self._clock = gpus, clock
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._active = 0
        self._joules = self._seconds = 0.0
        """Integrals of what one of the answers under way is given."""
        self._watts, self._at = self._power(), clock()
        self._peak = 0
        self._thread = threading.Thread(target=self._sample, name="gpu meter", daemon=True)

    def start(self) -> None:
        """Begins to read in the background."""
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def begin(self) -> Spent:
        """An answer begins; what `end` wants to know of it."""
        with self._lock:
            self._advance()
            self._active += 1
            return Spent(self._joules, self._seconds)

    def end(self, begun: Spent) -> Spent:
        """An answer is there."""
        with self._lock:
            self._advance()
            self._active -= 1
            return Spent(self._joules - begun.joules, self._seconds - begun.gpu_seconds)

    @property
    def peak_bytes(self) -> int:
        """Most memory in use at a reading since `forget_peak`, over all GPUs."""
        return max(self._peak, self._used())

    def forget_peak(self) -> None:
        self._peak = 0

    def read(self) -> None:
        """Reads power and memory. Between two readings the power was half way between them."""
        watts, used = self._power(), self._used()
        with self._lock:
            self._watts = (self._watts + watts) / 2
            self._advance()
            self._watts, self._peak = watts, max(self._peak, used)

    def _sample(self) -> None:
        while not self._stop.wait(PERIOD_SECONDS):
            self.read()

    def _advance(self) -> None:
        now = self._clock()
        if self._active:
            part = (now - self._at) / self._active
            self._joules += self._watts * part
            self._seconds += len(self._gpus) * part
        self._at = now

    def _power(self) -> float:
        return sum(gpu.watts() for gpu in self._gpus)

    def _used(self) -> int:
        return sum(gpu.used_bytes() for gpu in self._gpus)
