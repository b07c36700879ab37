"""What the GPUs take is divided among the answers under way, and nothing of it is lost or told twice."""

from __future__ import annotations

import pytest

from baton.bench import gpu
from baton.bench.gpu import Meter, NvmlGpu


class Scripted:
    """A GPU that is told what it reads."""

    def __init__(self, power: float = 100.0, used: int = 0):
        self.power, self.used = power, used

    def watts(self) -> float:
        return self.power

    def used_bytes(self) -> int:
        return self.used


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_an_answer_alone_has_all_of_the_energy_and_of_the_gpus(clock):
    meter = Meter([Scripted(100), Scripted(200)], clock)
    clock.now = 5
    begun = meter.begin()
    clock.now = 7
    spent = meter.end(begun)
    assert spent.joules == pytest.approx(2 * 300)
    assert spent.gpu_seconds == pytest.approx(2 * 2)


def test_answers_that_overlap_share_and_their_sum_is_what_was_taken(clock):
    meter = Meter([Scripted(100)], clock)
    first = meter.begin()
    clock.now = 1
    second = meter.begin()
    clock.now = 3
    a = meter.end(first)
    clock.now = 4
    b = meter.end(second)
    assert (a.joules, b.joules) == pytest.approx((100 + 100, 100 + 100))
    assert a.gpu_seconds + b.gpu_seconds == pytest.approx(4)


def test_power_that_rises_is_integrated_over_the_clock(clock):
    device = Scripted(100)
    meter = Meter([device], clock)
    begun = meter.begin()
    for second in range(1, 11):
        clock.now, device.power = second, 100 + 10 * second
        meter.read()
    # 100 W rising to 200 W over ten seconds.
    assert meter.end(begun).joules == pytest.approx(1500)


def test_the_largest_memory_since_it_was_forgotten(clock):
    device = Scripted(used=5)
    meter = Meter([device], clock)
    device.used = 9
    meter.read()
    device.used = 2
    assert meter.peak_bytes == 9
    meter.forget_peak()
    assert meter.peak_bytes == 2


def test_the_thread_reads_by_itself_and_ends(monkeypatch):
    monkeypatch.setattr(gpu, "PERIOD_SECONDS", 0.001)
    device = Scripted(used=1)
    meter = Meter([device])
    meter.start()
    device.used = 7
    for _ in range(2000):
        if meter._peak == 7:
            break
        gpu.time.sleep(0.001)
    meter.close()
    assert meter.peak_bytes == 7
    assert not meter._thread.is_alive()


def test_without_nvml_there_are_no_gpus(monkeypatch):
    def missing(name: str):
        raise ImportError(name)

    monkeypatch.setattr(gpu, "import_module", missing)
    assert gpu.visible_gpus() == []


@pytest.mark.skipif(not gpu.visible_gpus(), reason="needs an NVIDIA GPU and nvidia-ml-py")
def test_a_real_gpu_draws_power_and_holds_memory():
    for device in gpu.visible_gpus():
        assert isinstance(device, NvmlGpu)
        assert 5 < device.watts() < 2000
        assert device.used_bytes() > 0
