"""A segment's place in the tree of an answer."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from baton.boundary import Boundary, SegmentMatcher
from baton.engines.base import NOTHING, Prefix, Read
from baton.trace import Phase, Role, Segment


@dataclass(slots=True, eq=False)
class Node:
    """A segment's place in the tree, and the state that its descendants start from."""

    segment: Segment
    parent: Node | None
    phase: Phase
    """Phase after this node."""
    used: int
    """Tokens on the path up to and with this node that count towards the budget: both models', and budgeted text."""
    branches: tuple[tuple[int, int], ...] = ()
    """(position, branch) of every node on the path that is not branch 0."""
    until: tuple[Boundary, ...] = ()
    read: Read = NOTHING
    tail: str = ""
    """Last characters of the path's text."""
    held: bytes = b""
    """The beginning of a character that the path ends in: it is text of the segment that completes it."""
    prefixes: dict[Role, Prefix] = field(default_factory=dict)
    children: list[Node] = field(default_factory=list)
    task: asyncio.Task[None] | None = None
    dead: bool = False
    optimistic: bool = False
    scored: tuple[str, int] | None = None
    """The scorer that last scored it, and the tokens that took."""
    calls: list[tuple[asyncio.Task[Any], list[Node]]] = field(default_factory=list)
    """Helper calls about it, each with all the nodes it is about."""
    tries: int = 0
    """Segments begun after it, or after empty ones behind it."""
    matcher: SegmentMatcher | None = None
    counted: bool = True
    """Whether its tokens count towards the budget."""
    streamed: bool = False
    shown: int = 0
    """Tokens handed to the reader."""
    state: Any = None
    """Hidden state `[width]` that predicted the segment's last token, where a scorer reads it."""

    def path(self) -> list[Node]:
        """From the root to this node."""
        out, node = [], self
        while node.parent is not None:
            out.append(node)
            node = node.parent
        out.append(node)
        return out[::-1]

    def last_written(self) -> Node:
        """The last node of the path that has tokens, or the root."""
        node = self
        while node.parent is not None and not node.segment.ids:
            node = node.parent
        return node

    def descends_from(self, other: Node) -> bool:
        node: Node | None = self
        while node is not None and node is not other:
            node = node.parent
        return node is other
