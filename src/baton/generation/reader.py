"""What the reader of an answer has seen of it while it grows."""

from __future__ import annotations

import codecs
from collections.abc import Callable

from baton.generation.ledgers import Ledgers
from baton.generation.node import Node
from baton.generation.work import Work
from baton.trace import Phase, Role, Segment

OnText = Callable[[Segment, str, int], None]
"""Called with each piece of kept text as soon as it can no longer be taken back, and with the number of its segment's
tokens that have been shown by then."""


class Reader:
    """Hands text on as soon as it is settled, whole characters only."""

    def __init__(self, work: Work, ledgers: Ledgers, on_text: OnText | None):
        self._work, self._ledgers, self._on_text = work, ledgers, on_text
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.shown = 0
        """Tokens of both models that the reader has: they stay, whatever the router does."""

    def stream(self, node: Node) -> None:
        """Shows the tokens of a segment being written that its boundaries can no longer take back."""
        if node.matcher is not None:
            self.show(node, min(node.matcher.settled_tokens, len(node.segment.ids)))

    def show(self, node: Node, upto: int) -> None:
        """Hands the tokens of `node` up to `upto` to the reader."""
        segment, ids = node.segment, node.segment.ids[node.shown : upto]
        if not ids:
            return
        node.shown = upto
        if segment.role is not Role.INSERTED:
            self._count(segment, len(ids))
        if self._on_text is not None and (text := self._decoder.decode(self._ledgers.own(segment).bytes_of(ids))):
            self._on_text(segment, text, upto)

    def _count(self, segment: Segment, tokens: int) -> None:
        self.shown += tokens
        trace, now = self._work.trace, self._work.now()
        if trace.first_token is None:
            trace.first_token = now
        if segment.phase is Phase.ANSWER and trace.first_answer_token is None:
            trace.first_answer_token = now

    def close(self, last: Segment) -> None:
        """Shows what is left of a character that nothing completes any more, as text of the `last` segment."""
        if (rest := self._decoder.decode(b"", final=True)) and self._on_text:
            self._on_text(last, rest, len(last.ids))
