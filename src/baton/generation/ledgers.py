"""The token ids of one answer: a ledger for each role's model, in its own vocabulary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from baton.engines.base import Prefix
from baton.generation.node import Node
from baton.generation.options import RouterError
from baton.generation.work import Work
from baton.trace import Role, Segment
from baton.vocabulary import THINK_END, Vocabulary


class Ledgers:
    """Each role's prompt and vocabulary, and the path to any node in them."""

    def __init__(self, work: Work, prompts: Mapping[Role, Sequence[int]] | None):
        """`prompts` are token ids by role, in place of the question as each model's template has it."""
        self._work, engines = work, work.pair.engines
        self.roles = tuple(engines)
        self.vocabulary: dict[Role, Vocabulary] = {r: e.vocabulary for r, e in engines.items()}
        # Text that no model wrote is held in its tokens: the target's, unless the pair is a draft alone.
        self._lead = self.roles[0]
        self.lead = self.vocabulary[self._lead]
        self.one_vocabulary = all(self.lead.shares_ids(v) for v in self.vocabulary.values())
        if prompts is None:
            options = work.options
            messages = options.messages(work.question)
            prompts = {r: e.render(messages, thinking=options.thinking) for r, e in engines.items()}
        work.trace.prompts = {str(r): list(ids) for r, ids in prompts.items()}
        self.prompts = {r: Prefix(ids) for r, ids in prompts.items()}
        self._turns: dict[tuple[Role, str], list[int]] = {}

    def role(self, name: str) -> Role:
        """The role of that name.

        Raises:
            RouterError: the pair has no such role.
        """
        if name not in self.roles:
            raise RouterError(f"role: {name!r} is unknown; use one of {', '.join(self.roles)}")
        return Role(name)

    def speaker(self, segment: Segment) -> Role:
        """The role in whose vocabulary a segment's ids are."""
        return self._lead if segment.role is Role.INSERTED else segment.role

    def own(self, segment: Segment) -> Vocabulary:
        """The vocabulary of a segment's ids."""
        return self.vocabulary[self.speaker(segment)]

    def prefix(self, node: Node, role: Role) -> Prefix:
        """The prefix up to `node` in `role`'s ledger: its own prompt, then the generated ids in its vocabulary."""
        missing: list[Node] = []
        at = node
        while role not in at.prefixes:
            missing.append(at)
            assert at.parent is not None
            at = at.parent
        prefix = at.prefixes[role]
        for link in reversed(missing):
            prefix = prefix.extend(self.ids(link, role))
            link.prefixes[role] = prefix
        return prefix

    def ids(self, node: Node, role: Role) -> list[int]:
        """The ids of one segment in `role`'s vocabulary; re-encoding them counts as a seam."""
        segment = node.segment
        own, other = self.own(segment), self.vocabulary[role]
        if own.shares_ids(other):
            return segment.ids
        ids = own.translate(segment.ids, other)
        before = node.parent.tail if node.parent else ""
        trace = self._work.trace
        trace.seams += 1
        if before and other.encode(before + segment.text) != [*other.encode(before), *other.encode(segment.text)]:
            trace.seams_differ += 1
        return ids

    def encode(self, text: str) -> list[int]:
        """Ids of inserted text, with the end-of-thinking token where the text has one."""
        before, mark, after = text.partition(THINK_END)
        if mark and self.lead.end_of_thinking is not None:
            head = self.lead.encode(before) if before else []
            return [*head, self.lead.end_of_thinking, *(self.lead.encode(after) if after else ())]
        return self.lead.encode(text)

    def turn(self, role: Role, text: str) -> list[int]:
        """Ids that end the assistant's turn, ask `text` as the user and open the next reply, by the chat template.

        Found as what two conversations have in common behind an assistant's turn in which they differ: what the
        template makes of the turn itself (it may drop the thinking) does not matter.
        """
        if (role, text) not in self._turns:
            opening = self._work.options.messages(self._work.question)
            asked = {"role": "user", "content": text}
            one, other = (
                self._work.pair.engines[role].render(
                    [*opening, {"role": "assistant", "content": content}, asked], thinking=False
                )
                for content in ("1", "2")
            )
            same = 0
            while same < min(len(one), len(other)) and one[-1 - same] == other[-1 - same]:
                same += 1
            self._turns[role, text] = one[len(one) - same :]
        return self._turns[role, text]
