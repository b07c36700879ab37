"""The engines' sessions that one answer holds."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

from baton.engines.base import Engine, Session
from baton.generation.node import Node
from baton.trace import Role


@dataclass(slots=True, eq=False)
class _Lease:
    """A session of one role, and the node whose path it last computed."""

    session: Session
    tip: Node
    busy: bool = False


class Sessions:
    """Sessions by role, each lent to one call at a time."""

    def __init__(self, engines: Mapping[Role, Engine], root: Node):
        self._engines, self._root = engines, root
        self._leases: dict[Role, list[_Lease]] = {r: [] for r in engines}

    def busy(self, role: Role) -> int:
        """Sessions of `role` that a call of this answer runs on now."""
        return sum(lease.busy for lease in self._leases[role])

    @asynccontextmanager
    async def lease(self, role: Role, node: Node, tip: Node) -> AsyncIterator[Session]:
        """A session of `role` whose cache fits the path to `node` best; afterwards it fits `tip`'s."""
        path = {id(n): depth for depth, n in enumerate(node.path())}

        def common(lease: _Lease) -> int:
            return max((path.get(id(n), -1) for n in lease.tip.path()), default=-1)

        leases = self._leases[role]
        # A session whose tip is neither on this path nor dropped holds the cache of a live alternative: fork it.
        free = [x for x in leases if not x.busy and (id(x.tip) in path or x.tip.dead)]
        if free:
            lease = max(free, key=common)
        else:
            source = max(leases, key=common, default=None)
            if source is None:
                session = self._engines[role].open(self._root.prefixes[role].ids())
            else:
                session = source.session.fork()
            lease = _Lease(session, node)
            leases.append(lease)
        lease.busy, lease.tip = True, tip
        try:
            yield lease.session
        finally:
            lease.busy = False

    def close(self) -> None:
        """Frees all of them."""
        for leases in self._leases.values():
            for lease in leases:
                lease.session.close()
