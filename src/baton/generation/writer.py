"""Segments on their engines: begun, received token by token, and settled."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from typing import Any

from baton.boundary import (
    BUDGET,
    CANCELLED,
    END_OF_TEXT,
    FAILED,
    SPLIT,
    Boundary,
    Learned,
    SegmentMatcher,
    When,
)
from baton.engines.base import Call, Chunk, EngineError, Prefix, Read, Sampling, Usage
from baton.generation.ledgers import Ledgers
from baton.generation.node import Node
from baton.generation.options import RouterError
from baton.generation.pending import Pending
from baton.generation.reader import Reader
from baton.generation.sessions import Sessions
from baton.generation.tree import CONTEXT_CHARACTERS, RESERVE_REACHED, Tree
from baton.generation.work import Work
from baton.scorers.base import STATES
from baton.trace import HelperCall, Kind, Phase, Role, Segment
from baton.vocabulary import THINK_END

PATIENCE = 1000
"""Segments a router may start after one token of the answer before it is taken to be stuck."""


class Writer:
    """Has models write segments of a tree."""

    def __init__(
        self, work: Work, ledgers: Ledgers, tree: Tree, sessions: Sessions, reader: Reader, states: frozenset[Role]
    ):
        """`states` are the roles whose hidden states scorers read: they are kept as segments are written."""
        self._work, self._ledgers, self._tree = work, ledgers, tree
        self._sessions, self._reader, self._states = sessions, reader, states

    # Beginning ------------------------------------------------------------------------------------------------------

    def begin(
        self,
        role: Role,
        until: tuple[Boundary, ...],
        parent: Node,
        branch: int,
        read: Read,
        fork: Node | None = None,
    ) -> Node:
        """Starts a segment below `parent`, or takes over the one that was started there optimistically.

        Raises:
            RouterError: the text is ended there, or the router makes no progress.
        """
        tree, read = self._tree, self._wanted(until, read)
        if tree.finish:
            raise RouterError("start: the answer is finished; check gen.finished")
        if parent.segment.ended_by is END_OF_TEXT:
            raise RouterError(f"start: segment {parent.segment.id} ends the text; nothing can follow it")
        for child in parent.children:
            same = (child.segment.role, child.until, child.read, child.segment.branch) == (role, until, read, branch)
            if child.optimistic and same and not child.dead:
                child.optimistic = False
                return child
        place = parent.last_written()
        place.tries += 1
        if place.tries > PATIENCE:
            raise RouterError(f"no token followed in {PATIENCE} segments from one place; the router makes no progress")
        node = tree.add(role, Kind.WRITE, parent, until, read, branch, fork)
        if tree.room(parent) == 0:
            node.segment.ended_by = BUDGET
            return node
        node.task = self._work.spawn(self._drive(node, self._call(node, parent)))
        return node

    def begin_optimistically(self, node: Node) -> None:
        """Guesses that the draft's step is accepted and the router then asks for the same kind of step again.

        A step of the target is scored to compare it with the draft's; who goes on after it is open.
        """
        if not self._work.options.optimistic:
            return
        segment = node.segment
        begun = any(c.segment.kind is Kind.WRITE and not c.dead for c in node.children)
        if (
            segment.role is Role.DRAFT
            and segment.kind is Kind.WRITE
            and segment.ended_by is not END_OF_TEXT
            and self._tree.room(node)
            and not begun
        ):
            self.begin(segment.role, node.until, node, 0, node.read).optimistic = True

    async def complete(self, first: Node, until: tuple[Boundary, ...], read: Read) -> Segment:
        """Goes on below `first` to the end of the text or of the budget; the last segment of that."""
        role = first.segment.role
        at = await Pending(self._tree, first)
        while at.ended_by not in (END_OF_TEXT, CANCELLED):
            if at.ended_by is BUDGET:
                if at.phase is Phase.ANSWER:
                    break
                at = self._tree.insert(THINK_END, RESERVE_REACHED, after=at)
            at = await Pending(self._tree, self.begin(role, until, self._tree.live(at), 0, read))
        return at

    async def probe(
        self,
        role: Role,
        suffix: str,
        until: tuple[Boundary, ...],
        cap: int,
        parent: Node,
        branch: int,
        read: Read,
        ask: str,
        sampling: Sampling | None,
    ) -> Segment:
        """A segment below `parent` that is dropped as soon as it is there; see `Generation.probe`."""
        prefix = self._probed(role, parent, ask, suffix)
        context = (suffix if ask else parent.tail + suffix)[-CONTEXT_CHARACTERS:]
        matcher = SegmentMatcher(until, self._ledgers.vocabulary[role], context=context, thinking=False, cap=cap)
        node = self._tree.add(role, Kind.PROBE, parent, until, read, branch)
        node.segment.detail = suffix or None
        wanted = read | _read_by(until)
        call = Call(prefix, matcher, cap, sampling or self._work.options.sampling, node.segment.seed, wanted)
        if parent is not self._tree.head:
            self.begin_optimistically(parent)
        node.task = self._work.spawn(self._drive(node, call))
        segment = await Pending(self._tree, node)
        # Nothing can follow a probe: its session is free for the answer again.
        self._tree.drop(node)
        parent.scored = (f"probe:{role}", segment.prompt - segment.cached + segment.sampled)
        return segment

    def _probed(self, role: Role, parent: Node, ask: str, suffix: str) -> Prefix:
        """What a probe goes on from: the path, the turn that is asked, the beginning of the reply."""
        prefix = self._ledgers.prefix(parent, role)
        if ask:
            if parent.parent is not None and parent.segment.ended_by is END_OF_TEXT:
                # The turn that is asked begins with the end of the one before it.
                prefix = self._ledgers.prefix(parent.parent, role).extend(self._ledgers.ids(parent, role)[:-1])
            prefix = prefix.extend(self._ledgers.turn(role, ask))
        return prefix.extend(self._ledgers.vocabulary[role].encode(suffix) if suffix else ())

    def _wanted(self, until: Sequence[Boundary], read: Read) -> Read:
        """What is to be read, with the features that boundaries look at and what the options ask of every token."""
        features = frozenset(w.feature for w in until if isinstance(w, When))
        return read | Read(features=features, top=self._work.options.top)

    def _call(self, node: Node, parent: Node) -> Call:
        """What the engine is asked for a segment of the answer."""
        role, room, whole = node.segment.role, self._tree.room(parent), not self._ledgers.one_vocabulary
        matcher = SegmentMatcher(
            node.until,
            self._ledgers.vocabulary[role],
            context=parent.tail,
            thinking=parent.phase is Phase.THINKING,
            cap=room,
            whole_characters=whole,
        )
        # The matcher caps by itself, and may wait for a character to be complete.
        cap = room + SPLIT if whole else room
        read = node.read | _read_by(node.until)
        if role in self._states and read.hidden != "end":
            read |= STATES
        prefix = self._ledgers.prefix(parent, role)
        return Call(prefix, matcher, cap, self._work.options.sampling, node.segment.seed, read)

    # Receiving ------------------------------------------------------------------------------------------------------

    async def _drive(self, node: Node, call: Call) -> None:
        """Runs one segment on its engine, from the call to its final tokens."""
        segment, parent, matcher = node.segment, node.parent, call.matcher
        assert parent is not None
        node.matcher = matcher
        segment.prompt = call.prefix.length
        got: list[Chunk] = []
        try:
            async with self._sessions.lease(segment.role, parent, node) as session:
                async with aclosing(session.generate(call)) as chunks:
                    async for chunk in chunks:
                        self._receive(node, chunk, got)
                if matcher.ended_by is None:
                    raise EngineError(f"the {segment.role}'s engine stopped before its segment was decided")
                session.rewind(call.prefix.length + matcher.kept)
        except asyncio.CancelledError:
            matcher.close()
            segment.ended_by = CANCELLED
            self._charge(segment, call)
            self._tree.settle(node, segment.ids)
            raise
        except Exception:
            segment.ended_by = FAILED
            self._charge(segment, call)
            self._tree.settle(node, segment.ids)
            raise
        finally:
            self._count_helpers(segment, matcher)
        segment.ended_by, segment.detail = matcher.ended_by, matcher.detail or segment.detail
        # What only scorers and learned boundaries asked for stays out of the trace.
        segment.features = _features(got, matcher.kept, node.read)
        if segment.role in self._states and call.read.hidden == "tokens" and matcher.kept:
            node.state = [h for c in got for h in c.hidden][matcher.kept - 1]
        segment.overshoot = segment.sampled - matcher.kept
        self._tree.settle(node, matcher.ids[: matcher.kept])

    def _receive(self, node: Node, chunk: Chunk, got: list[Chunk]) -> None:
        segment = node.segment
        if chunk.ids:
            got.append(chunk)
            segment.ids.extend(chunk.ids)
            if self._work.options.top:
                # Whoever reads the text while it grows reads this beside it.
                segment.features.setdefault("top", []).extend(chunk.top)
            segment.sampled += len(chunk.ids)
            if segment.first is None:
                segment.first = self._work.seconds(chunk.first)
            segment.last = self._work.seconds(chunk.last)
        if chunk.usage is not None:
            segment.cached = chunk.usage.cached
            self._count(segment, chunk.usage)
        if node.streamed:
            self._reader.stream(node)

    @staticmethod
    def _count(segment: Segment, usage: Usage) -> None:
        segment.sampled = max(segment.sampled, usage.sampled)
        segment.proposed, segment.accepted, segment.drafted = usage.proposed, usage.accepted, usage.drafted

    def _count_helpers(self, segment: Segment, matcher: SegmentMatcher) -> None:
        """Records what encoders read to decide where a segment ends."""
        for name, tokens in matcher.helper_tokens.items():
            if tokens:
                now = self._work.now()
                self._work.trace.helpers.append(
                    HelperCall(name, [segment.id], submitted=now, done=now, tokens=tokens, outcome="done")
                )

    def _charge(self, segment: Segment, call: Call) -> None:
        """Counts what a call cost that gave no last chunk: also tokens that were not delivered any more."""
        # What was never computed cost no more than what was cached.
        segment.cached = segment.prompt - (call.usage.prompt - call.usage.cached)
        self._count(segment, call.usage)
        segment.sampled = max(segment.sampled, len(call.matcher.ids))


def _read_by(until: Sequence[Boundary]) -> Read:
    """What learned boundaries read of each token."""
    readers = [boundary.reader for boundary in until if isinstance(boundary, Learned)]
    top = max((reader.top for reader in readers), default=0)
    return Read(top=top, hidden="tokens" if any(reader.reads_hidden for reader in readers) else "")


def _features(chunks: Sequence[Chunk], kept: int, read: Read) -> dict[str, Any]:
    """What `read` asked for, by name, cut to the kept tokens."""
    out: dict[str, Any] = {}
    by_token = [f for c in chunks for f in c.features][:kept]
    for feature in sorted(read.features):
        out[feature.value] = [f[feature] for f in by_token]
    if read.top:
        out["top"] = [t[: read.top] for c in chunks for t in c.top][:kept]
    hidden = [h for c in chunks for h in c.hidden]
    if read.hidden == "tokens":
        out["hidden"] = hidden[:kept]
    elif read.hidden == "end" and hidden:
        out["hidden_end"] = hidden[-1]
    return out
