"""Turns at the slots, on a clock that only the test moves."""

from __future__ import annotations

import asyncio

import pytest

from baton.serve.errors import RefusedError
from baton.serve.scheduling import Turnstile
from virtual_clock import run

FAR = 1e9


async def use(turnstile: Turnstile, client: str, seconds: float, done: list[str], weight: int = 1) -> None:
    async with turnstile.slot(client, weight, FAR):
        await asyncio.sleep(seconds)
    done.append(client)


def test_clients_take_turns_whoever_sends_most() -> None:
    async def scene() -> list[str]:
        turnstile, done = Turnstile(slots=1, queue=100), list[str]()
        async with asyncio.TaskGroup() as group:
            for _ in range(6):
                group.create_task(use(turnstile, "many", 1, done))
            await asyncio.sleep(0.5)
            group.create_task(use(turnstile, "one", 1, done))
            group.create_task(use(turnstile, "other", 1, done))
        assert (turnstile.taken, turnstile.waiting) == (0, 0)
        return done

    done = run(scene())
    assert done[:4] == ["many", "many", "one", "other"]
    assert done.count("many") == 6


def test_a_full_queue_refuses_and_says_when_to_come_again() -> None:
    async def scene() -> None:
        turnstile, done = Turnstile(slots=2, queue=3), list[str]()
        tasks = [asyncio.create_task(use(turnstile, "a", 10, done)) for _ in range(5)]
        await asyncio.sleep(1)
        with pytest.raises(RefusedError) as refused:
            await use(turnstile, "b", 1, done)
        assert refused.value.status == 429
        assert int(refused.value.headers["Retry-After"]) >= 1
        await asyncio.gather(*tasks)
        assert turnstile.wait_s(1) > 2

    run(scene())


def test_a_deadline_ends_the_wait_and_leaves_no_trace() -> None:
    async def scene() -> None:
        turnstile, done = Turnstile(slots=1, queue=9), list[str]()
        task = asyncio.create_task(use(turnstile, "a", 10, done))
        await asyncio.sleep(0)
        with pytest.raises(RefusedError) as refused:
            async with turnstile.slot("b", 1, asyncio.get_running_loop().time() + 3):
                pass
        assert refused.value.status == 408
        assert (turnstile.taken, turnstile.waiting) == (1, 0)
        await task
        # One that is past when the request comes ends it too, though there is room.
        with pytest.raises(RefusedError) as refused:
            async with turnstile.slot("b", 1, asyncio.get_running_loop().time()):
                pass
        assert refused.value.status == 408
        assert turnstile.taken == 0

    run(scene())


def test_who_gives_up_while_waiting_is_forgotten() -> None:
    async def scene() -> None:
        turnstile, done = Turnstile(slots=1, queue=9), list[str]()
        first = asyncio.create_task(use(turnstile, "a", 5, done))
        waiting = [asyncio.create_task(use(turnstile, name, 1, done)) for name in "bcd"]
        await asyncio.sleep(1)
        waiting[0].cancel()
        waiting[2].cancel()
        await asyncio.gather(first, *waiting, return_exceptions=True)
        assert done == ["a", "c"]
        assert (turnstile.taken, turnstile.waiting) == (0, 0)

    run(scene())


def test_a_request_of_several_answers_is_not_passed_for_ever() -> None:
    async def scene() -> list[str]:
        turnstile, done = Turnstile(slots=2, queue=99), list[str]()
        async with asyncio.TaskGroup() as group:
            for _ in range(3):
                group.create_task(use(turnstile, "small", 1, done))
            group.create_task(use(turnstile, "large", 1, done, weight=2))
            for _ in range(6):
                group.create_task(use(turnstile, "small", 1, done))
        return done

    assert run(scene()).index("large") <= 4
