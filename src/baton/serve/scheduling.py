"""Who is answered when: a bounded queue before a bounded number of slots, and turns between clients."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from baton.serve.errors import RefusedError

FIRST_GUESS_S = 2.0
"""Time that an answer takes, before one was seen."""
LONGEST_WAIT_S = 60.0
"""Longest wait that a refused client is told."""


@dataclass(eq=False, slots=True)
class _Waiting:
    weight: int
    admitted: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Turnstile:
    """Lets requests in as slots become free.

    A client's requests are served in their order, and clients take turns, so that one who sends many makes others wait
    for one of them at most.

    Args:
        slots: answers at once; a request takes as many as it has answers.
        queue: answers that may wait.
    """

    def __init__(self, slots: int, queue: int):
        self.slots, self.queue = slots, queue
        self.taken = self.waiting = 0
        self.draining = False
        self._turns: dict[str, deque[_Waiting]] = {}
        """Whoever stands first comes next."""
        self._mean_s = FIRST_GUESS_S

    @asynccontextmanager
    async def slot(self, client: str, weight: int, deadline: float) -> AsyncIterator[None]:
        """Waits for its turn, and holds `weight` slots inside. `deadline` is a reading of the loop's clock.

        Raises:
            RefusedError: the queue is full, the server is about to end, or the deadline came first.
        """
        loop = asyncio.get_running_loop()
        await self._enter(client, weight, deadline)
        begun = loop.time()
        try:
            yield
        finally:
            self.taken -= weight
            self._mean_s += 0.1 * (loop.time() - begun - self._mean_s)
            self._admit()

    async def _enter(self, client: str, weight: int, deadline: float) -> None:
        if self.draining:
            raise RefusedError(503, "the server is about to end; ask another one", code="draining", retry_s=5)
        if asyncio.get_running_loop().time() >= deadline:
            raise self._late(weight)
        if not self._turns and self.taken + weight <= self.slots:
            self.taken += weight
            return
        if self.waiting + weight > self.queue:
            raise RefusedError(
                429, f"the queue is full ({self.waiting} answers wait); try again later", code="queue_full",
                retry_s=self.wait_s(weight),
            )  # fmt: skip
        ticket = _Waiting(weight)
        self._turns.setdefault(client, deque()).append(ticket)
        self.waiting += weight
        try:
            async with asyncio.timeout_at(deadline):
                await ticket.admitted
        except TimeoutError:
            self._leave(client, ticket)
            raise self._late(weight) from None
        except BaseException:
            self._leave(client, ticket)
            raise

    def _late(self, weight: int) -> RefusedError:
        return RefusedError(
            408, "the deadline came before the answer's turn; allow more time, or try again later", code="deadline",
            retry_s=self.wait_s(weight),
        )  # fmt: skip

    def wait_s(self, weight: int) -> float:
        """How long a request that comes now would wait, by the mean time of the last ones."""
        rounds = math.ceil((self.waiting + weight) / self.slots)
        return min(LONGEST_WAIT_S, rounds * self._mean_s)

    def _leave(self, client: str, ticket: _Waiting) -> None:
        if ticket.admitted.done() and not ticket.admitted.cancelled():
            # Let in at the moment in which it gave up.
            self.taken -= ticket.weight
        else:
            self._turns[client].remove(ticket)
            self.waiting -= ticket.weight
            if not self._turns[client]:
                del self._turns[client]
        self._admit()

    def _admit(self) -> None:
        """Lets in whoever is next, one client after the other, while there is room."""
        while self._turns:
            client, tickets = next(iter(self._turns.items()))
            if self.taken + tickets[0].weight > self.slots:
                return
            ticket = tickets.popleft()
            # The client goes to the end of the line.
            del self._turns[client]
            if tickets:
                self._turns[client] = tickets
            self.waiting -= ticket.weight
            self.taken += ticket.weight
            ticket.admitted.set_result(None)
