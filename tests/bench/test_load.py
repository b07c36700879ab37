"""Loads begin requests when they are due, count the right ones, and tell how late the client was."""

from __future__ import annotations

import asyncio
import time

import numpy as np
import pytest

from baton.bench.load import (
    FAILED_PAUSE_SECONDS,
    Sent,
    closed_loop,
    constant,
    open_loop,
    poisson,
    ramp,
    read_arrivals,
)
from baton.config import ConfigError
from virtual_clock import run


class Server:
    """Serves one request after another in the order of their arrival, each in `seconds`."""

    def __init__(self, seconds: float, slots: int = 1):
        self.seconds, self.free = seconds, asyncio.Semaphore(slots)
        self.sent: list[Sent] = []
        self.took: dict[int, float] = {}
        self.cancelled = 0

    async def __call__(self, sent: Sent) -> bool:
        self.sent.append(sent)
        loop = asyncio.get_running_loop()
        begun = loop.time()
        try:
            async with self.free:
                await asyncio.sleep(self.seconds)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        self.took[sent.number] = sent.waited + loop.time() - begun
        return True


def waits(rate: float, service: float, requests: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Waiting times in line: those of a run, and Lindley's recursion on the same arrivals."""
    times = poisson(rate, requests + 1000, seed)

    async def scene() -> np.ndarray:
        server = Server(service)
        window = await open_loop(times, 0, requests, server)
        return np.asarray([server.took[n] for n in range(window.first, window.end)]) - service

    exact, wait = np.zeros(requests), 0.0
    for n in range(1, requests):
        wait = exact[n] = max(0.0, wait + service - (times[n] - times[n - 1]))
    return run(scene()), exact


@pytest.mark.parametrize("load", [0.3, 0.8])
def test_open_loop_waiting_times_are_those_of_a_queue(load):
    seen, exact = waits(load, 1.0, 20_000, seed=1)
    assert seen == pytest.approx(exact, abs=1e-6)
    if load == 0.3:
        # Half of load / (1 - load) service times (M/D/1); here 20,000 requests give its mean to about 2 %.
        assert seen.mean() == pytest.approx(load / (2 * (1 - load)), rel=0.05)


def test_arrivals_do_not_wait_for_a_server_that_is_stuck():
    async def scene() -> Server:
        server = Server(seconds=1000.0)
        await open_loop(constant(2.0, 30), 5, 10, server)
        return server

    server = run(scene())
    assert [s.begun for s in server.sent] == pytest.approx(np.arange(1, 31) / 2)
    assert all(s.lag == pytest.approx(0) for s in server.sent)
    assert server.cancelled == 30 - 15, "what does not count is cancelled once the rest is done"


def test_a_busy_client_is_late_says_so_and_latencies_count_from_when_requests_were_due():
    async def scene() -> Server:
        server = Server(seconds=0.001, slots=100)

        async def ask(sent: Sent) -> bool:
            if sent.number == 5:
                time.sleep(0.2)
            return await server(sent)

        await open_loop(constant(100, 31), 0, 20, ask)
        return server

    server = asyncio.run(scene())
    late = {s.number: s.lag for s in server.sent}
    assert late[4] < 0.02
    assert late[6] == pytest.approx(0.19, abs=0.03)
    assert server.took[6] > 0.15


def test_a_closed_loop_keeps_its_concurrency_and_its_window_is_full():
    async def scene():
        server = Server(seconds=2.0, slots=100)
        window = await closed_loop(4, warmup=8, counted=40, ask=server)
        return server, window

    server, window = run(scene())
    assert (window.first, window.end) == (8, 48)
    assert (window.end - window.first) / (window.end_s - window.start_s) == pytest.approx(4 / 2.0)
    assert set(range(48)) <= server.took.keys()
    assert max(np.diff([s.begun for s in server.sent])) <= 2.0


def test_one_at_a_time_asks_nothing_in_vain():
    async def scene():
        server = Server(seconds=1.0)
        window = await closed_loop(1, warmup=0, counted=3, ask=server)
        return server, window

    server, window = run(scene())
    assert len(server.sent) == 1 + 3
    assert window.end_s - window.start_s == pytest.approx(3.0)


def test_a_closed_loop_notes_how_late_the_client_wakes_up():
    async def scene() -> list[Sent]:
        sent: list[Sent] = []

        async def ask(request: Sent) -> bool:
            sent.append(request)
            await asyncio.sleep(0.02)
            time.sleep(0.1)
            return True

        await closed_loop(1, 0, 2, ask)
        return sent

    assert max(s.lag for s in asyncio.run(scene())) > 0.03


def test_the_ramp_finds_what_a_server_can_do():
    async def scene():
        async def rate(concurrency: int) -> float:
            window = await closed_loop(concurrency, 0, 40, Server(1.0, slots=5))
            return (window.end - window.first) / (window.end_s - window.start_s)

        return await ramp(rate)

    found = run(scene())
    assert [c for c, _ in found] == [1, 2, 4, 8, 16, 32]
    assert max(rate for _, rate in found) == pytest.approx(5.0, rel=0.1)


def test_requests_that_fail_at_once_leave_time_for_the_others():
    """Without a rest between them, the second place would begin requests for ever and the first never be served."""

    async def scene() -> int:
        begun = 0

        async def ask(sent: Sent) -> bool:
            nonlocal begun
            begun += 1
            assert begun < 1000
            if sent.number:
                return False
            await asyncio.sleep(5.0)
            return True

        await closed_loop(2, 0, 5, ask)
        return begun

    assert run(scene()) == pytest.approx(5.0 / FAILED_PAUSE_SECONDS, abs=3)


def test_an_error_of_a_request_ends_the_load():
    async def ask(sent: Sent) -> bool:
        raise ZeroDivisionError

    for load in (open_loop(constant(1, 10), 0, 5, ask), closed_loop(2, 0, 5, ask)):
        with pytest.raises(ExceptionGroup) as caught:
            run(load)
        assert caught.group_contains(ZeroDivisionError)


def test_arrival_times_are_read_from_a_file(tmp_path):
    file = tmp_path / "arrivals.txt"
    file.write_text("0.5\n1\n1\n4.25\n")
    assert read_arrivals(file).tolist() == [0.5, 1, 1, 4.25]
    for text, said in (("1\nx\n", "could not convert"), ("2\n1\n", "go back"), ("-1\n", "negative")):
        file.write_text(text)
        with pytest.raises(ConfigError, match=said):
            read_arrivals(file)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_arrivals(tmp_path / "none.txt")
    with pytest.raises(ValueError, match="3 arrivals leave none to count after a warm-up of 2"):
        run(open_loop(np.asarray([1.0, 2.0, 3.0]), 2, 5, Server(1.0)))
