"""Calls beside an answer that judge it: scores, log-probabilities, attention."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from baton.engines.base import EngineError, TokenScore, Usage
from baton.generation.ledgers import Ledgers
from baton.generation.node import Node
from baton.generation.sessions import Sessions
from baton.generation.tree import Tree
from baton.generation.work import Work
from baton.scorers.base import ScoreRequest, cost, last_state, next_token
from baton.trace import HelperCall, Role, Segment

_SERIAL = itertools.count(1)
"""Numbers the generations of this process, for scorers that remember an answer's beginning."""


class Helpers:
    """Scores nodes of a tree, and records what each call cost."""

    def __init__(self, work: Work, ledgers: Ledgers, tree: Tree, sessions: Sessions):
        self._work, self._ledgers, self._tree, self._sessions = work, ledgers, tree, sessions
        self._serial = next(_SERIAL)

    async def score(self, nodes: list[Node], by: str, against: Segment | None) -> list[float]:
        """Scores by the pair's scorer `by`, one a node."""
        helper = HelperCall(by=by, nodes=[n.segment.id for n in nodes], submitted=self._work.now())
        requests = [self._request(n, against) for n in nodes]
        with self._record(helper):
            scores = await self._work.pair.scorers[by].score(requests)
            if len(scores) != len(nodes):
                raise EngineError(f"scorer {by!r} gave {len(scores)} scores for {len(nodes)} steps")
            helper.scores = [s.value for s in scores]
            helper.tokens, helper.cached = sum(s.tokens for s in scores), sum(s.cached for s in scores)
        for node, score in zip(nodes, scores, strict=True):
            node.scored = (by, score.tokens)
        return helper.scores

    async def score_one(self, node: Node, by: str, against: Segment | None) -> float:
        """The score of one node."""
        return (await self.score([node], by, against))[0]

    async def logprob(self, role: Role, node: Node, temperature: float) -> list[TokenScore]:
        """The log-probability of each token of a node under `role`'s model."""
        if node.parent is None:
            return []
        helper = HelperCall(by=f"logprob:{role}", nodes=[node.segment.id], submitted=self._work.now())
        with self._record(helper):
            scores, usage = await self.scored(role, node, temperature)
            helper.tokens, helper.cached = cost(usage), usage.cached
        return scores

    async def logprobs(self, role: Role, nodes: list[Node], temperature: float) -> list[list[TokenScore]]:
        """Those of several nodes, asked at once."""
        return list(await asyncio.gather(*(self.logprob(role, n, temperature) for n in nodes)))

    async def grounding(self, role: Role, node: Node) -> list[float]:
        """How much of each token's attention rests on what stands before the node."""
        assert node.parent is not None
        helper = HelperCall(by=f"grounding:{role}", nodes=[node.segment.id], submitted=self._work.now())
        with self._record(helper):
            async with self._sessions.lease(role, node.parent, node) as session:
                before, ids = self._ledgers.prefix(node.parent, role), self._ledgers.ids(node, role)
                shares, usage = await session.grounding(before, ids)
            helper.tokens, helper.cached = cost(usage), usage.cached
        return shares

    async def scored(self, role: Role, node: Node, temperature: float = 1.0) -> tuple[list[TokenScore], Usage]:
        """Log-probabilities of a node's tokens that the trace keeps no record of, and what they cost."""
        assert node.parent is not None
        async with self._sessions.lease(role, node.parent, node) as session:
            before, ids = self._ledgers.prefix(node.parent, role), self._ledgers.ids(node, role)
            return await session.logprob(before, ids, temperature)

    def _request(self, node: Node, against: Segment | None) -> ScoreRequest:
        segment = node.segment
        speaker = self._ledgers.speaker(segment)
        other = self._tree.known(against) if against is not None else None
        used = node.parent.used if node.parent is not None else 0
        return ScoreRequest(
            question=self._work.question,
            before=tuple(n.segment.text for n in node.path()[1:-1]),
            step=segment.text,
            role=speaker,
            ids=tuple(self._ledgers.prefix(node, speaker).ids()),
            step_ids=len(segment.ids),
            against=against.text if against is not None else None,
            prompt=self._ledgers.prompts[speaker].length,
            features=segment.features,
            generation=self._serial,
            place=_Place(self, self._ledgers, self._sessions, node),
            other=_Place(self, self._ledgers, self._sessions, other) if other is not None else None,
            budget=1 - used / self._work.options.budget.tokens,
        )

    @contextmanager
    def _record(self, helper: HelperCall) -> Iterator[None]:
        """Keeps a helper call in the trace, however it ends."""
        self._work.trace.helpers.append(helper)
        try:
            yield
            helper.outcome = "done"
        except asyncio.CancelledError:
            helper.outcome = "cancelled"
            raise
        except Exception:
            helper.outcome = "failed"
            raise
        finally:
            helper.done = self._work.now()


@dataclass(frozen=True, slots=True)
class _Place:
    """What a scorer sees of the models where a step stands."""

    helpers: Helpers
    ledgers: Ledgers
    sessions: Sessions
    node: Node

    def ids(self, role: str) -> tuple[tuple[int, ...], int]:
        speaker = self.ledgers.role(role)
        return tuple(self.ledgers.prefix(self.node, speaker).ids()), self.ledgers.prompts[speaker].length

    async def logprob(self, role: str) -> tuple[list[TokenScore], Usage]:
        return await self.helpers.scored(self.ledgers.role(role), self.node)

    async def state(self, role: str) -> tuple[Any, Usage]:
        node, speaker = self.node, self.ledgers.role(role)
        if node.state is not None and node.segment.role is speaker:
            return node.state, Usage()
        assert node.parent is not None
        before, ids = self.ledgers.prefix(node.parent, speaker), self.ledgers.ids(node, speaker)
        async with self.sessions.lease(speaker, node.parent, node) as session:
            return await last_state(session, self.ledgers.vocabulary[speaker], before.extend(ids[:-1]))

    async def reply(self, role: str, ask: str, begin: str, top: int) -> tuple[list[tuple[int, float]], Usage]:
        node, speaker = self.node, self.ledgers.role(role)
        vocabulary = self.ledgers.vocabulary[speaker]
        known = self.ledgers.prefix(node, speaker)
        asked = known.extend([*self.ledgers.turn(speaker, ask), *(vocabulary.encode(begin) if begin else ())])
        async with self.sessions.lease(speaker, node, node) as session:
            try:
                return await next_token(session, vocabulary, asked, top)
            finally:
                # The question never enters the answer, which goes on from the step.
                session.rewind(known.length)
