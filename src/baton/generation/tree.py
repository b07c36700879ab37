"""The tree of an answer's segments: which live, which stand in the answer, and what follows from a segment's tokens."""

from __future__ import annotations

from collections.abc import Sequence

from baton.boundary import BUDGET, CANCELLED, END_OF_TEXT, END_OF_THINKING, Boundary, End, SegmentMatcher
from baton.engines.base import NOTHING, Read
from baton.generation.ledgers import Ledgers
from baton.generation.node import Node
from baton.generation.options import RouterError
from baton.generation.reader import Reader
from baton.generation.work import Work
from baton.trace import Kind, Phase, Role, Segment
from baton.vocabulary import THINK_END, unfinished

CUT = End("cut")
"""Ends a segment of which only the first tokens were committed."""

GIVEN = End("given")
"""Ends a segment whose tokens were given, not sampled."""

CONTEXT_CHARACTERS = 256
"""Text before a segment that its boundaries can look back on; longer than any cue or delimiter."""

RESERVE_REACHED = "the answer's reserve was reached"
"""Why Generation closes thinking."""


class Tree:
    """The segments of one answer below an empty root. The path to `head` is what is committed of it."""

    def __init__(self, work: Work, ledgers: Ledgers, reader: Reader):
        self._work, self._ledgers, self._reader = work, ledgers, reader
        thinks = work.options.thinking and ledgers.lead.thinks
        root = Segment(id=0, parent=None, branch=0, role=Role.INSERTED, kind=Kind.INSERT, kept=True)
        phase = Phase.THINKING if thinks else Phase.ANSWER
        self.head = self.root = Node(segment=root, parent=None, phase=phase, used=0, prefixes=dict(ledgers.prompts))
        self._nodes: dict[int, Node] = {0: self.root}
        self._next_id = 1
        self.finish = ""
        """Why the answer is complete; empty while it is not."""

    # Nodes ----------------------------------------------------------------------------------------------------------

    def live(self, segment: Segment | None) -> Node:
        """The live, finished node of a segment (the head for None).

        Raises:
            RouterError: it is of another generation, still being written, or discarded.
        """
        if segment is None:
            return self.head
        node = self._nodes.get(segment.id)
        if node is None or node.segment is not segment:
            raise RouterError(f"segment {segment.id} is not of this generation")
        if node.task is not None and not node.task.done():
            raise RouterError(f"segment {segment.id} is still being written; await it first")
        if node.dead:
            raise RouterError(f"segment {segment.id} was discarded")
        return node

    def known(self, segment: Segment) -> Node | None:
        """The node of a segment, dead or alive; None where it is of another generation."""
        node = self._nodes.get(segment.id)
        return node if node is not None and node.segment is segment else None

    def room(self, node: Node) -> int:
        """Tokens that may follow `node` before its phase's budget is spent."""
        budget = self._work.options.budget
        total = budget.tokens - (budget.answer_reserve if node.phase is Phase.THINKING else 0)
        return max(0, total - node.used)

    def fresh(self, node: Node) -> list[Node]:
        """The nodes from behind the head to `node`, in order."""
        return [n for n in node.path() if n.descends_from(self.head) and n is not self.head]

    def add(
        self,
        role: Role,
        kind: Kind,
        parent: Node,
        until: tuple[Boundary, ...],
        read: Read,
        branch: int,
        fork: Node | None = None,
    ) -> Node:
        """A new, empty segment below `parent`. `fork` is where its branch left the path (`parent` if None)."""
        branches = parent.branches + ((((fork or parent).used, branch),) if branch else ())
        segment = Segment(
            id=self._next_id,
            parent=parent.segment.id,
            branch=branch,
            role=role,
            kind=kind,
            phase=parent.phase,
            submitted=self._work.now(),
            seed=self._work.seed(f"{kind if kind is Kind.PROBE else ''} {role} {branches}"),
        )
        self._next_id += 1
        node = Node(
            segment, parent, parent.phase, parent.used, branches=branches, until=until, read=read, tail=parent.tail
        )
        self._nodes[segment.id] = node
        parent.children.append(node)
        self._work.trace.segments.append(segment)
        return node

    def settle(self, node: Node, ids: Sequence[int]) -> None:
        """Sets what follows from a node's final ids: text, phase, tail, tokens used."""
        segment, parent = node.segment, node.parent
        assert parent is not None
        vocabulary = self._ledgers.own(segment)
        segment.ids = list(ids)
        if segment.kind is Kind.PROBE:
            segment.text = vocabulary.text_of(segment.ids)
        else:
            data = parent.held + vocabulary.bytes_of(segment.ids)
            whole = len(data) - (0 if segment.ended_by is END_OF_TEXT else unfinished(data))
            segment.text, node.held = data[:whole].decode("utf-8", errors="replace"), data[whole:]
        node.used = parent.used + (len(segment.ids) if node.counted else 0)
        node.tail = (parent.tail + segment.text)[-CONTEXT_CHARACTERS:]
        node.phase = Phase.ANSWER if segment.ended_by is END_OF_THINKING else parent.phase

    # Text that is given ---------------------------------------------------------------------------------------------

    def insert(self, text: str, why: str, after: Segment | None = None, budgeted: bool = False) -> Segment:
        """Adds text that neither model wrote; see `Generation.insert`."""
        ids = self._ledgers.encode(text)
        at = self.live(after)
        while True:
            segment = self.attach(Role.INSERTED, Kind.INSERT, ids, at, keep=after is None, detail=why, counted=budgeted)
            at, ids = self.live(segment), ids[len(segment.ids) :]
            if not ids or self.finish or segment.ended_by in (END_OF_TEXT, BUDGET):
                return segment

    def attach(
        self,
        role: Role,
        kind: Kind,
        ids: list[int],
        parent: Node,
        *,
        keep: bool = True,
        detail: str | None = None,
        counted: bool = True,
    ) -> Segment:
        """Adds given tokens below `parent`, up to whatever ends a segment, and commits them if asked to `keep`.

        Raises:
            RouterError: the answer is finished.
        """
        if self.finish:
            raise RouterError(f"{kind}: the answer is finished; check gen.finished")
        vocabulary = self._ledgers.lead if role is Role.INSERTED else self._ledgers.vocabulary[role]
        node = self.add(role, kind, parent, (), NOTHING, 0)
        node.counted = counted
        room = self.room(parent) if counted else None
        thinking = parent.phase is Phase.THINKING
        matcher = SegmentMatcher((), vocabulary, context=parent.tail, thinking=thinking, cap=room)
        ended = any(matcher.push(i) for i in ids)
        segment = node.segment
        segment.ended_by, segment.detail = matcher.ended_by or GIVEN, detail
        segment.first = segment.last = segment.submitted
        self.settle(node, ids[: matcher.kept] if ended else ids)
        if keep:
            self.commit(segment)
        return segment

    # Choosing -------------------------------------------------------------------------------------------------------

    def commit(self, segment: Segment, tokens: int | None = None) -> None:
        """Keeps the path to a segment, or only its first `tokens` tokens; whatever is not below it is dropped.

        Raises:
            RouterError: it is unfinished, discarded, or not below the head.
        """
        last = self.live(segment)
        if not last.descends_from(self.head):
            raise RouterError(f"commit: segment {segment.id} is not below the head (segment {self.head.segment.id})")
        if tokens is not None and tokens < len(segment.ids):
            if last is self.head:
                raise RouterError(f"commit: segment {segment.id} is committed whole already; it cannot be cut any more")
            self._cut(last, max(0, tokens))
        if last is self.head:
            return
        fresh = self.fresh(last)
        for link in fresh:
            for child in list(link.parent.children) if link.parent else ():
                if child is not link:
                    self.drop(child)
        for link in fresh:
            self._keep(link)
        self._close_thinking()

    def drop(self, node: Node) -> None:
        """Drops a node and everything below it, and cancels what is in flight there."""
        node.dead = True
        if node.parent is not None and node in node.parent.children:
            node.parent.children.remove(node)
        if node.task is not None and not node.task.done():
            # A task that has not begun never sees its cancellation.
            node.segment.ended_by = CANCELLED
            node.task.cancel()
        for call, about in node.calls:
            if all(n.dead for n in about):
                call.cancel()
        for child in list(node.children):
            self.drop(child)

    def abandon(self) -> None:
        """Drops everything that is not committed."""
        for child in list(self.head.children):
            self.drop(child)

    def break_off(self, node: Node) -> None:
        """Ends a segment that is streamed: keeps what the reader has seen of it."""
        if node.dead or not node.shown:
            self.drop(node)
            return
        if node.task is not None and not node.task.done():
            node.segment.ended_by = CANCELLED
            node.task.cancel()
        for sibling in list(self.head.children):
            if sibling is not node:
                self.drop(sibling)
        self.settle(node, node.segment.ids[: node.shown])
        node.segment.features = {name: values[: node.shown] for name, values in node.segment.features.items()}
        self._keep(node)

    def _cut(self, node: Node, tokens: int) -> None:
        for child in list(node.children):
            self.drop(child)
        segment = node.segment
        segment.ended_by = CUT
        segment.features = {k: v if k == "hidden_end" else v[:tokens] for k, v in segment.features.items()}
        # The state at the old end belongs to a token that is gone.
        segment.features.pop("hidden_end", None)
        node.state = None
        node.prefixes.clear()
        self.settle(node, segment.ids[:tokens])

    def _keep(self, node: Node) -> None:
        """Makes a node the head: the one place where the answer grows."""
        segment = node.segment
        segment.kept = True
        segment.kept_tokens = 0 if segment.role is Role.INSERTED else len(segment.ids)
        self._reader.show(node, len(segment.ids))
        self.head = node
        if segment.ended_by is END_OF_TEXT:
            self.finish = "end_of_text"
        elif self.room(node) == 0 and node.phase is Phase.ANSWER:
            self.finish = "length"

    def _close_thinking(self) -> None:
        """Ends thinking where only the answer's reserve is left, and the text where nothing is kept back for one."""
        if not self.finish and self.head.phase is Phase.THINKING and self.room(self.head) == 0:
            if self._work.options.budget.answer_reserve:
                self.insert(THINK_END, RESERVE_REACHED)
            else:
                self.finish = "length"

    def close(self) -> None:
        """Completes the last segment's text: nothing completes its last character any more."""
        self.head.segment.text += self.head.held.decode("utf-8", errors="replace")
