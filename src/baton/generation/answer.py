"""The words of a router: what it can ask of the answer that it writes."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from baton.boundary import Boundary, Learned
from baton.engines.base import NOTHING, Read, Sampling, TokenScore
from baton.gate import Gate
from baton.generation.helpers import Helpers
from baton.generation.ledgers import Ledgers
from baton.generation.node import Node
from baton.generation.options import Options, RouterError
from baton.generation.pending import Pending, PendingCall
from baton.generation.reader import OnText, Reader
from baton.generation.sessions import Sessions
from baton.generation.tree import Tree
from baton.generation.work import Work
from baton.generation.writer import Writer
from baton.scorers.base import TokenReader
from baton.trace import Decision, Kind, Observation, Phase, Role, Segment, Trace
from baton.vocabulary import Vocabulary

if TYPE_CHECKING:
    from baton.pair import Pair

T = TypeVar("T")


class Generation:
    """The words a router has. Made by `generate`; a router is called with it."""

    def __init__(
        self,
        pair: Pair,
        question: str,
        options: Options,
        *,
        trace: Trace,
        prompts: Mapping[Role, Sequence[int]] | None = None,
        on_text: OnText | None = None,
        replay: Trace | None = None,
        states: frozenset[Role] = frozenset(),
    ):
        """`states` are the roles whose hidden states scorers read: they are kept as segments are written."""
        self.pair, self.question, self.options, self.trace = pair, question, options, trace
        self._replay = list(replay.observations) if replay is not None else None
        self._work = Work(pair, question, options, trace)
        self._ledgers = Ledgers(self._work, prompts)
        self._reader = Reader(self._work, self._ledgers, on_text)
        self._tree = Tree(self._work, self._ledgers, self._reader)
        self._sessions = Sessions(pair.engines, self._tree.root)
        self._helpers = Helpers(self._work, self._ledgers, self._tree, self._sessions)
        self._writer = Writer(self._work, self._ledgers, self._tree, self._sessions, self._reader, states)

    # State ----------------------------------------------------------------------------------------------------------

    @property
    def head(self) -> Segment:
        """The last committed segment (an empty one with id 0 before anything is written)."""
        return self._tree.head.segment

    @property
    def phase(self) -> Phase:
        """Phase after the committed path."""
        return self._tree.head.phase

    @property
    def finished(self) -> bool:
        """Whether the answer is complete or its budget is spent."""
        return bool(self._tree.finish)

    @property
    def budget(self) -> int:
        """Tokens that the committed path may still grow by in its present phase."""
        return self._tree.room(self._tree.head)

    @property
    def text(self) -> str:
        """Committed text."""
        return "".join(n.segment.text for n in self._tree.head.path())

    @property
    def shown(self) -> int:
        """Tokens of both models that the reader has: they stay, whatever the router does."""
        return self._reader.shown

    def written(self, role: str | None = None) -> int:
        """Committed tokens written by a role, or by both models."""
        return self.trace.tokens(role)

    @property
    def one_vocabulary(self) -> bool:
        """Whether both models share one token-to-id map, so that ids of one can be appended as the other's."""
        return self._ledgers.one_vocabulary

    def view(self, role: str, node: Segment | None = None) -> tuple[int, ...]:
        """Token ids of the answer up to `node` (the head if None) in `role`'s vocabulary, without the prompt."""
        at = self._tree.live(node)
        role = self._ledgers.role(role)
        return tuple(self._ledgers.prefix(at, role).ids(self._ledgers.prompts[role].length))

    def path(self, node: Segment) -> list[Segment]:
        """The segments from behind the head to `node`, in order."""
        return [n.segment for n in self._tree.fresh(self._tree.live(node))]

    def vocabulary(self, role: str) -> Vocabulary:
        """The token ids of `role`'s model: their number, their bytes, and how text becomes ids."""
        return self._ledgers.vocabulary[self._ledgers.role(role)]

    def text_of(self, role: str, ids: Sequence[int]) -> str:
        """Text of token ids in `role`'s vocabulary."""
        return self._ledgers.vocabulary[self._ledgers.role(role)].text_of(ids)

    def rng(self, key: str) -> random.Random:
        """Seeded randomness: the same for the same run seed, question, sample and `key`."""
        return random.Random(self._work.seed(key))

    @property
    def replaying(self) -> bool:
        """Whether an answer that was written before is written again."""
        return self._replay is not None

    def observe(self, name: str, value: T) -> T:
        """Records what the router read from the clock or from load; in a replay, gives what was recorded then."""
        if self._replay is not None:
            for n, seen in enumerate(self._replay):
                if seen.name == name:
                    value = self._replay.pop(n).value
                    break
            else:
                raise RouterError(f"replay: the trace holds no further observation {name!r}; the router differs")
        self.trace.observations.append(Observation(name, value, self._work.now()))
        return value

    def load(self, role: str) -> int:
        """Requests of other answers that `role`'s engine runs or queues now: an observation, so it is replayed."""
        role = self._ledgers.role(role)
        mine = self._sessions.busy(role)
        return self.observe(f"load of the {role}", max(0, self.requests(role) - mine))

    def requests(self, role: str) -> int:
        """Requests that `role`'s engine runs or queues now. What a router makes of it, it has to `observe`."""
        metrics = self.pair.engines[self._ledgers.role(role)].metrics()
        return int(metrics.get("running", 0) + metrics.get("waiting", 0))

    def speculate(self, role: str, on: bool) -> bool:
        """Switches the token-level speculation of `role`'s engine, for all its answers; whether the engine can."""
        return self.pair.engines[self._ledgers.role(role)].speculate(on)

    # Writing --------------------------------------------------------------------------------------------------------

    @overload
    def start(  # type: ignore[overload-overlap]
        self,
        role: str,
        until: Sequence[Boundary] = ...,
        after: Segment | None = ...,
        n: Literal[1] = ...,
        branch: int = ...,
        read: Read = ...,
    ) -> Pending: ...

    @overload
    def start(
        self, role: str, until: Sequence[Boundary], after: Segment | None, n: int, branch: int = ..., read: Read = ...
    ) -> list[Pending]: ...

    def start(
        self,
        role: str,
        until: Sequence[Boundary] = (),
        after: Segment | None = None,
        n: int = 1,
        branch: int = 0,
        read: Read = NOTHING,
    ) -> Pending | list[Pending]:
        """Begins a segment of `role` after `after` (the head if None), to the first boundary of `until`.

        With `n` > 1, that many siblings on branches `branch`, `branch + 1`, ...: a list. Siblings on one branch draw
        the same randomness, so alternatives need branches of their own.

        Raises:
            RouterError: `after` is unfinished, discarded or ends the text, or the answer is finished.
        """
        parent, speaker, tree = self._tree.live(after), self._ledgers.role(role), self._tree
        nodes = [self._writer.begin(speaker, tuple(until), parent, branch + k, read) for k in range(n)]
        return Pending(tree, nodes[0]) if n == 1 else [Pending(tree, node) for node in nodes]

    async def propose(
        self,
        role: str,
        until: Sequence[Boundary] = (),
        after: Segment | None = None,
        branch: int = 0,
        read: Read = NOTHING,
    ) -> Segment:
        """`await start(...)`: a finished segment that is not committed yet."""
        return await self.start(role, until, after, 1, branch, read)

    async def candidates(
        self, role: str, until: Sequence[Boundary], n: int, after: Segment | None = None, read: Read = NOTHING
    ) -> list[Segment]:
        """`n` finished alternatives, written side by side on branches 0 to `n - 1`."""
        return [await p for p in [self.start(role, until, after, 1, branch, read) for branch in range(n)]]

    async def write(self, role: str, until: Sequence[Boundary] = (), read: Read = NOTHING) -> Segment:
        """Writes the next segment of the answer: proposed at the head and committed, streamed while it grows.

        Where it fails or is cancelled, what the reader has seen of it stays in the answer, and the rest is dropped.
        """
        node = self._writer.begin(self._ledgers.role(role), tuple(until), self._tree.head, 0, read)
        node.streamed = True
        self._reader.stream(node)
        try:
            segment = await Pending(self._tree, node)
        except BaseException:
            self._tree.break_off(node)
            raise
        self.commit(segment)
        return segment

    def complete(
        self,
        role: str,
        until: Sequence[Boundary] = (),
        after: Segment | None = None,
        branch: int = 0,
        read: Read = NOTHING,
        fork: Segment | None = None,
    ) -> PendingCall[Segment]:
        """Writes an answer to its end below `after`, uncommitted, one segment for each boundary of `until`.

        Gives its last segment: `path` has all of them, committing it keeps the answer. Alternatives need branches of
        their own; each has the whole budget, and thinking is closed where its part of the budget is spent. Discarding
        the first segment of the path cancels the rest. `fork` is where the branch counts as having left the path
        (`after` if None): the same branch of the same fork draws the same randomness below several nodes.
        """
        left = None if fork is None else self._tree.live(fork)
        boundaries, parent = tuple(until), self._tree.live(after)
        first = self._writer.begin(self._ledgers.role(role), boundaries, parent, branch, read, left)
        return self._beside(self._writer.complete(first, boundaries, read), [first])

    def insert(self, text: str, why: str, after: Segment | None = None, budgeted: bool = False) -> Segment:
        """Text that neither model wrote; it stays outside the target share. `why` goes into the trace.

        Committed at the head, or uncommitted after `after`. What follows an end of thinking in it is a segment of the
        answer, and the one returned. `budgeted` text stands in for a model's: it counts towards the budget, and is cut
        where that is spent.
        """
        return self._tree.insert(text, why, after, budgeted)

    def append(self, role: str, ids: Sequence[int], after: Segment | None = None) -> Segment:
        """Tokens that `role` wrote elsewhere, such as in a scoring pass (its vocabulary): written by it.

        Committed at the head, or uncommitted after `after`.
        """
        return self._tree.attach(
            self._ledgers.role(role), Kind.APPEND, list(ids), self._tree.live(after), keep=after is None
        )

    # Judging --------------------------------------------------------------------------------------------------------

    @overload
    def score(self, nodes: Segment, by: str, against: Segment | None = ...) -> PendingCall[float]: ...

    @overload
    def score(self, nodes: Sequence[Segment], by: str, against: Segment | None = ...) -> PendingCall[list[float]]: ...

    def score(
        self, nodes: Segment | Sequence[Segment], by: str, against: Segment | None = None
    ) -> PendingCall[float] | PendingCall[list[float]]:
        """Scores finished segments by the pair's scorer `by`; await it, or leave it pending and cancel it.

        Raises:
            RouterError: the pair has no such scorer.
        """
        if by not in self.pair.scorers:
            have = ", ".join(sorted(self.pair.scorers)) or "none"
            raise RouterError(f"scorer: {by!r} is not one of the pair's scorers ({have}); add it to the pair")
        several = [self._tree.live(s) for s in ([nodes] if isinstance(nodes, Segment) else nodes)]
        if len(several) == 1:
            self._writer.begin_optimistically(several[0])
        if isinstance(nodes, Segment):
            return self._beside(self._helpers.score_one(several[0], by, against), several)
        return self._beside(self._helpers.score(several, by, against), several)

    @overload
    def logprob(self, role: str, nodes: Segment, temperature: float = ...) -> PendingCall[list[TokenScore]]: ...

    @overload
    def logprob(
        self, role: str, nodes: Sequence[Segment], temperature: float = ...
    ) -> PendingCall[list[list[TokenScore]]]: ...

    def logprob(
        self, role: str, nodes: Segment | Sequence[Segment], temperature: float = 1.0
    ) -> PendingCall[list[TokenScore]] | PendingCall[list[list[TokenScore]]]:
        """Log-probability of each token of a segment, and the token preferred there, under `role`'s model.

        Of the distribution at `temperature` (above 0), before any sampling filter.
        """
        speaker = self._ledgers.role(role)
        if isinstance(nodes, Segment):
            node = self._tree.live(nodes)
            return self._beside(self._helpers.logprob(speaker, node, temperature), [node])
        several = [self._tree.live(s) for s in nodes]
        return self._beside(self._helpers.logprobs(speaker, several, temperature), several)

    def learned(
        self, by: str, threshold: float | None = None, above: bool = True, keep: bool = True, after: int = 0
    ) -> Learned:
        """A boundary that the pair's scorer `by` draws while tokens arrive; fields as of `Learned`.

        `threshold` is that of the scorer's training if None.

        Raises:
            RouterError: the pair has no such scorer, or it scores steps.
        """
        reader = self.pair.scorers.get(by)
        if not isinstance(reader, TokenReader):
            raise RouterError(f"learned: {by!r} is no scorer of this pair that reads tokens; add one of kind token")
        return Learned(reader, reader.threshold if threshold is None else threshold, above, keep, after)

    def drawn(self, by: str) -> Boundary:
        """The boundary that the pair's scorer `by` draws while tokens arrive, as its training or the pair says.

        Raises:
            RouterError: the pair has no such scorer, or it only scores steps.
        """
        scorer = self.pair.scorers.get(by)
        found = scorer.draws if scorer is not None else None
        if found is None:
            raise RouterError(
                f"drawn: {by!r} is no scorer of this pair that draws boundaries; add one of kind token or embedding"
            )
        return found

    def grounding(self, role: str, node: Segment) -> PendingCall[list[float]]:
        """How much of each token's attention under `role`'s model rests on the prompt and the steps before the segment.

        Raises:
            UnsupportedError: (when awaited) the engine gives no attention maps.
        """
        at = self._tree.live(node)
        return self._beside(self._helpers.grounding(self._ledgers.role(role), at), [at])

    def background(self, work: Coroutine[Any, Any, T], about: Segment) -> PendingCall[T]:
        """Runs a coroutine of the router beside it; discarding `about` cancels it, as does the answer's end."""
        return self._beside(work, [self._tree.live(about)])

    async def first(self, calls: Iterable[Pending | PendingCall[Any]]) -> None:
        """Returns as soon as one of `calls` is done.

        Raises:
            RouterError: there is nothing to wait for.
            EngineError: one of them failed.
        """
        tasks = [c.task for c in calls if c.task is not None]
        if not tasks:
            raise RouterError("first: there is nothing to wait for; the router is stuck")
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            if not task.cancelled() and (error := task.exception()) is not None:
                raise error

    async def probe(
        self,
        role: str,
        suffix: str = "",
        until: Sequence[Boundary] = (),
        cap: int = 1,
        after: Segment | None = None,
        branch: int = 0,
        read: Read = NOTHING,
        ask: str = "",
        sampling: Sampling | None = None,
    ) -> Segment:
        """Up to `cap` tokens after `suffix` (which may hold control tokens) that never enter the answer.

        With `ask`, that text is first asked as a user's turn by the model's chat template, and `suffix` begins the
        reply. `sampling` is the answer's unless given.
        """
        parent, speaker = self._tree.live(after), self._ledgers.role(role)
        return await self._writer.probe(speaker, suffix, tuple(until), cap, parent, branch, read, ask, sampling)

    def decide(self, gate: Gate, node: Segment, score: float, reason: str = "") -> bool:
        """Applies `gate` to a score, drawing its randomness from the node's place in the tree, and records it."""
        at = self._tree.live(node)
        draw = self.rng(f"gate {at.used} {at.branches}").random()
        outcome = gate.accepts(score, draw)
        scorer, tokens = at.scored or (None, 0)
        self.trace.decisions.append(
            Decision(
                node=node.id,
                scorer=scorer,
                score=score,
                gate=gate.name,
                threshold=getattr(gate, "threshold", None),
                outcome=outcome,
                seconds=self._work.now(),
                helper_tokens=tokens,
                reason=reason,
            )
        )
        return outcome

    def overrule(self, node: Segment, reason: str) -> None:
        """Turns the last decision on a segment around in the trace, where more is known of it by now.

        Raises:
            RouterError: nothing was decided on it.
        """
        for decision in reversed(self.trace.decisions):
            if decision.node == node.id:
                decision.outcome, decision.reason = not decision.outcome, reason
                return
        raise RouterError(f"overrule: nothing was decided on segment {node.id}; decide on it first")

    # Choosing -------------------------------------------------------------------------------------------------------

    def commit(self, node: Segment, tokens: int | None = None) -> None:
        """Keeps the path to `node`, or only its first `tokens` tokens; whatever is not below it is dropped.

        Raises:
            RouterError: `node` is unfinished, discarded, or not below the head.
        """
        self._tree.commit(node, tokens)

    def discard(self, node: Segment) -> None:
        """Drops a segment and everything below it, and cancels what is in flight there.

        Raises:
            RouterError: `node` is committed.
        """
        at = self._tree.known(node)
        if at is None:
            raise RouterError(f"discard: segment {node.id} is not of this generation")
        if at.segment.kept:
            raise RouterError(f"discard: segment {node.id} is committed; only uncommitted ones can be dropped")
        self._tree.drop(at)

    def abandon(self) -> None:
        """Drops everything that is not committed, whoever started it."""
        self._tree.abandon()

    # The end --------------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Cancels what is still running, frees the sessions and completes the trace."""
        await self._work.cancel()
        self._sessions.close()
        self._tree.close()
        self.trace.finish = self.trace.finish or self._tree.finish or "stopped"
        self.trace.seconds = self._work.now()
        self._reader.close(self._tree.head.segment)

    def _beside(self, work: Coroutine[Any, Any, T], about: list[Node]) -> PendingCall[T]:
        """Starts a call that lives as long as one of the nodes it is about."""
        task = self._work.spawn(work)
        for node in about:
            node.calls.append((task, about))
        return PendingCall(task)
