"""One answer while it is written: the tree of segments, its ledgers, budget and phase.

A router sees nothing of engines. It starts segments after any node of the tree, scores, decides, commits and
discards them; the committed path is the answer. Everything it does lands in the `Trace`.
"""

from __future__ import annotations

import asyncio
import codecs
import hashlib
import itertools
import random
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Generator,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeVar, overload

from baton.boundary import (
    BUDGET,
    CANCELLED,
    END_OF_TEXT,
    END_OF_THINKING,
    FAILED,
    SPLIT,
    Boundary,
    End,
    Learned,
    SegmentMatcher,
    When,
)
from baton.engines.base import NOTHING, Call, Chunk, EngineError, Prefix, Read, Sampling, Session, TokenScore, Usage
from baton.gate import Gate
from baton.scorers.base import STATES, ScoreRequest, TokenReader, cost, last_state, next_token
from baton.trace import Decision, HelperCall, Kind, Observation, Phase, Role, Segment, Trace
from baton.vocabulary import THINK_END, Vocabulary, unfinished

if TYPE_CHECKING:
    from baton.pair import Pair

CUT = End("cut")
"""Ends a segment of which only the first tokens were committed."""

GIVEN = End("given")
"""Ends a segment whose tokens were given, not sampled."""

CONTEXT_CHARACTERS = 64
"""Text before a segment that its boundaries can look back on; longer than any cue or delimiter."""

RESERVE_REACHED = "the answer's reserve was reached"
"""Why Generation closes thinking."""

PATIENCE = 1000
"""Segments a router may start after one token of the answer before it is taken to be stuck."""

_SERIAL = itertools.count(1)
"""Numbers the generations of this process, for scorers that remember an answer's beginning."""

T = TypeVar("T")


class RouterError(Exception):
    """A router asked for something that cannot be: a defect of the router, not of the input."""


@dataclass(frozen=True, slots=True)
class Budget:
    """Kept tokens an answer may have, and how many of them are kept back for the answer phase."""

    tokens: int = 2048
    answer_reserve: int = 256

    def __post_init__(self) -> None:
        if self.tokens < 1:
            raise ValueError(f"budget.tokens: {self.tokens} leaves no room for an answer; use 1 or more")
        if not 0 <= self.answer_reserve < self.tokens:
            raise ValueError(
                f"budget.answer_reserve: {self.answer_reserve} is not below budget.tokens ({self.tokens}); lower it"
            )

    def resized(self, tokens: int) -> Budget:
        """A budget of `tokens` that keeps the reserve, or half of it all where the reserve does not fit."""
        return Budget(tokens, min(self.answer_reserve, tokens // 2))


@dataclass(frozen=True, slots=True)
class Options:
    """How one answer is generated, whatever the router."""

    sampling: Sampling = field(default_factory=Sampling)
    budget: Budget = field(default_factory=Budget)
    seed: int = 0
    system: str | None = None
    suffix: str = ""
    """What stands after the question in the user's turn, a blank line between them; scorers do not see it."""
    thinking: bool = True
    timeout: float | None = None
    """Seconds; the answer is then closed with finish `timeout`, its tokens so far kept."""
    optimistic: bool = False
    """While a score is pending, start the segment that would follow if the step is accepted."""
    top: int = 0
    """Likeliest tokens that are read at each token of the answer, beside those that the router reads."""

    def messages(self, question: str) -> list[dict[str, str]]:
        """The conversation that a question stands in."""
        system = [{"role": "system", "content": self.system}] if self.system else []
        asked = f"{question}\n\n{self.suffix}" if self.suffix else question
        return [*system, {"role": "user", "content": asked}]


class Router(Protocol):
    """A policy: decides which model writes the next stretch. A dataclass whose fields are its knobs."""

    @property
    def name(self) -> str: ...

    async def __call__(self, gen: Generation) -> None: ...


OnText = Callable[[Segment, str, int], None]
"""Called with each piece of kept text as soon as it can no longer be taken back, and with the number of its segment's
tokens that have been shown by then."""


@dataclass(slots=True, eq=False)
class _Node:
    """A segment's place in the tree, and the state that its descendants start from."""

    segment: Segment
    parent: _Node | None
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
    children: list[_Node] = field(default_factory=list)
    task: asyncio.Task[None] | None = None
    dead: bool = False
    optimistic: bool = False
    scored: tuple[str, int] | None = None
    """The scorer that last scored it, and the tokens that took."""
    calls: list[tuple[asyncio.Task[Any], list[_Node]]] = field(default_factory=list)
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

    def path(self) -> list[_Node]:
        """From the root to this node."""
        out, node = [], self
        while node.parent is not None:
            out.append(node)
            node = node.parent
        out.append(node)
        return out[::-1]

    def last_written(self) -> _Node:
        """The last node of the path that has tokens, or the root."""
        node = self
        while node.parent is not None and not node.segment.ids:
            node = node.parent
        return node

    def descends_from(self, other: _Node) -> bool:
        node: _Node | None = self
        while node is not None and node is not other:
            node = node.parent
        return node is other


class Pending(Awaitable[Segment]):
    """A segment that is being written. Await it for the finished `Segment`; `tokens` shows what is there by now.

    Awaiting one that was cancelled or discarded gives its segment with `ended_by` CANCELLED.
    """

    def __init__(self, gen: Generation, node: _Node):
        self._gen, self._node = gen, node

    @property
    def segment(self) -> Segment:
        return self._node.segment

    @property
    def tokens(self) -> tuple[int, ...]:
        """Token ids so far, overshoot included."""
        return tuple(self._node.segment.ids)

    @property
    def task(self) -> asyncio.Task[None] | None:
        """What writes it; None where nothing has to be written."""
        return self._node.task

    @property
    def done(self) -> bool:
        return self.task is None or self.task.done()

    def cancel(self) -> None:
        """Stops the segment and everything below it; without effect on one that is committed."""
        if not self._node.segment.kept:
            self._gen._discard(self._node)

    def __await__(self) -> Generator[Any, None, Segment]:
        return self._wait().__await__()

    async def _wait(self) -> Segment:
        task = self._node.task
        if task is not None:
            await asyncio.wait([task])
            if not task.cancelled() and (error := task.exception()) is not None:
                raise error
        return self._node.segment


class PendingCall(Awaitable[T], Generic[T]):
    """A helper call (a score, a log-probability pass) that is under way; discarding what it is about cancels it."""

    def __init__(self, task: asyncio.Task[T]):
        self.task = task

    @property
    def done(self) -> bool:
        return self.task.done()

    def cancel(self) -> None:
        self.task.cancel()

    def __await__(self) -> Generator[Any, None, T]:
        return self._wait().__await__()

    async def _wait(self) -> T:
        try:
            return await self.task
        except asyncio.CancelledError:
            me = asyncio.current_task()
            if me is not None and me.cancelling():
                raise
            raise RouterError("a score was awaited after its step was discarded; await it before") from None


@dataclass(slots=True, eq=False)
class _Lease:
    """A session of one role, and the node whose path it last computed."""

    session: Session
    tip: _Node
    busy: bool = False


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
        self._states = states
        self._on_text = on_text
        self._replay = list(replay.observations) if replay is not None else None
        self._loop = asyncio.get_running_loop()
        self._start = self._loop.time()
        self._roles = tuple(pair.engines)
        self._vocabulary: dict[Role, Vocabulary] = {r: e.vocabulary for r, e in pair.engines.items()}
        # Text that no model wrote is held in its tokens: the target's, unless the pair is a draft alone.
        self._lead = self._roles[0]
        reference = self._vocabulary[self._lead]
        self._one_vocabulary = all(reference.shares_ids(v) for v in self._vocabulary.values())
        if prompts is None:
            messages = options.messages(question)
            prompts = {r: e.render(messages, thinking=options.thinking) for r, e in pair.engines.items()}
        trace.prompts = {str(r): list(ids) for r, ids in prompts.items()}
        thinks = options.thinking and reference.thinks
        root = Segment(id=0, parent=None, branch=0, role=Role.INSERTED, kind=Kind.INSERT, kept=True)
        self._head = self._root = _Node(
            segment=root,
            parent=None,
            phase=Phase.THINKING if thinks else Phase.ANSWER,
            used=0,
            prefixes={r: Prefix(ids) for r, ids in prompts.items()},
        )
        self._nodes: dict[int, _Node] = {0: self._root}
        self._next_id = 1
        self._leases: dict[Role, list[_Lease]] = {r: [] for r in self._roles}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._turns: dict[tuple[Role, str], list[int]] = {}
        self._finish = ""
        self._serial = next(_SERIAL)
        self.shown = 0
        """Tokens of both models that the reader has: they stay, whatever the router does."""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    # State ----------------------------------------------------------------------------------------------------------

    @property
    def head(self) -> Segment:
        """The last committed segment (an empty one with id 0 before anything is written)."""
        return self._head.segment

    @property
    def phase(self) -> Phase:
        """Phase after the committed path."""
        return self._head.phase

    @property
    def finished(self) -> bool:
        """Whether the answer is complete or its budget is spent."""
        return bool(self._finish)

    @property
    def budget(self) -> int:
        """Tokens that the committed path may still grow by in its present phase."""
        return self._room(self._head)

    @property
    def text(self) -> str:
        """Committed text."""
        return "".join(n.segment.text for n in self._head.path())

    def written(self, role: str | None = None) -> int:
        """Committed tokens written by a role, or by both models."""
        return self.trace.tokens(role)

    @property
    def one_vocabulary(self) -> bool:
        """Whether both models share one token-to-id map, so that ids of one can be appended as the other's."""
        return self._one_vocabulary

    def view(self, role: str, node: Segment | None = None) -> tuple[int, ...]:
        """Token ids of the answer up to `node` (the head if None) in `role`'s vocabulary, without the prompt."""
        at = self._node(node)
        role = self._role(role)
        return tuple(self._prefix(at, role).ids(self._root.prefixes[role].length))

    def path(self, node: Segment) -> list[Segment]:
        """The segments from behind the head to `node`, in order."""
        return [n.segment for n in self._node(node).path() if n.descends_from(self._head) and n is not self._head]

    def vocabulary(self, role: str) -> Vocabulary:
        """The token ids of `role`'s model: their number, their bytes, and how text becomes ids."""
        return self._vocabulary[self._role(role)]

    def text_of(self, role: str, ids: Sequence[int]) -> str:
        """Text of token ids in `role`'s vocabulary."""
        return self._vocabulary[self._role(role)].text_of(ids)

    def rng(self, key: str) -> random.Random:
        """Seeded randomness: the same for the same run seed, question, sample and `key`."""
        return random.Random(self._seed(key))

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
        self.trace.observations.append(Observation(name, value, self._now()))
        return value

    def load(self, role: str) -> int:
        """Requests of other answers that `role`'s engine runs or queues now: an observation, so it is replayed."""
        role = self._role(role)
        mine = sum(lease.busy for lease in self._leases[role])
        return self.observe(f"load of the {role}", max(0, self.requests(role) - mine))

    def requests(self, role: str) -> int:
        """Requests that `role`'s engine runs or queues now. What a router makes of it, it has to `observe`."""
        metrics = self.pair.engines[self._role(role)].metrics()
        return int(metrics.get("running", 0) + metrics.get("waiting", 0))

    def speculate(self, role: str, on: bool) -> bool:
        """Switches the token-level speculation of `role`'s engine, for all its answers; whether the engine can."""
        return self.pair.engines[self._role(role)].speculate(on)

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
        parent, read = self._node(after), self._wanted(until, read)
        pendings = [self._begin(self._role(role), tuple(until), parent, branch + k, read) for k in range(n)]
        return pendings[0] if n == 1 else pendings

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
        pending = self.start(role, until, read=read)
        pending._node.streamed = True
        self._stream(pending._node)
        try:
            segment = await pending
        except BaseException:
            self._break_off(pending._node)
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
        wanted, left = self._wanted(until, read), None if fork is None else self._node(fork)
        first = self._begin(self._role(role), tuple(until), self._node(after), branch, wanted, left)
        return self._call(self._complete(first, role, until, read), [first._node])

    def insert(self, text: str, why: str, after: Segment | None = None, budgeted: bool = False) -> Segment:
        """Text that neither model wrote; it stays outside the target share. `why` goes into the trace.

        Committed at the head, or uncommitted after `after`. What follows an end of thinking in it is a segment of the
        answer, and the one returned. `budgeted` text stands in for a model's: it counts towards the budget, and is cut
        where that is spent.
        """
        ids = self._encode(self._vocabulary[self._lead], text)
        at = self._node(after)
        while True:
            segment = self._attach(
                Role.INSERTED, Kind.INSERT, ids, at, keep=after is None, detail=why, counted=budgeted
            )
            at, ids = self._node(segment), ids[len(segment.ids) :]
            if not ids or self._finish or segment.ended_by in (END_OF_TEXT, BUDGET):
                return segment

    def append(self, role: str, ids: Sequence[int], after: Segment | None = None) -> Segment:
        """Tokens that `role` wrote elsewhere, such as in a scoring pass (its vocabulary): written by it.

        Committed at the head, or uncommitted after `after`.
        """
        return self._attach(self._role(role), Kind.APPEND, list(ids), self._node(after), keep=after is None)

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
        several = [self._node(s) for s in ([nodes] if isinstance(nodes, Segment) else nodes)]
        if self.options.optimistic and len(several) == 1:
            self._start_optimistically(several[0])
        if isinstance(nodes, Segment):
            return self._call(self._score_one(several[0], by, against), several)
        return self._call(self._score(several, by, against), several)

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
        speaker = self._role(role)
        if isinstance(nodes, Segment):
            node = self._node(nodes)
            return self._call(self._logprob(speaker, node, temperature), [node])
        several = [self._node(s) for s in nodes]
        return self._call(self._logprobs(speaker, several, temperature), several)

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

    def grounding(self, role: str, node: Segment) -> PendingCall[list[float]]:
        """How much of each token's attention under `role`'s model rests on the prompt and the steps before the segment.

        Raises:
            UnsupportedError: (when awaited) the engine gives no attention maps.
        """
        at = self._node(node)
        return self._call(self._grounding(self._role(role), at), [at])

    def background(self, work: Coroutine[Any, Any, T], about: Segment) -> PendingCall[T]:
        """Runs a coroutine of the router beside it; discarding `about` cancels it, as does the answer's end."""
        return self._call(work, [self._node(about)])

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
        parent, speaker = self._node(after), self._role(role)
        vocabulary = self._vocabulary[speaker]
        prefix = self._prefix(parent, speaker)
        if ask:
            if parent.parent is not None and parent.segment.ended_by is END_OF_TEXT:
                # The turn that is asked begins with the end of the one before it.
                prefix = self._prefix(parent.parent, speaker).extend(self._ids(parent, speaker)[:-1])
            prefix = prefix.extend(self._turn(speaker, ask))
        prefix = prefix.extend(vocabulary.encode(suffix) if suffix else ())
        context = (suffix if ask else parent.tail + suffix)[-CONTEXT_CHARACTERS:]
        matcher = SegmentMatcher(until, vocabulary, context=context, thinking=False, cap=cap)
        node = self._new(speaker, Kind.PROBE, parent, tuple(until), read, branch)
        node.segment.detail = suffix or None
        wanted = read | _read_by(until)
        call = Call(prefix, matcher, cap, sampling or self.options.sampling, node.segment.seed, wanted)
        if self.options.optimistic and parent is not self._head:
            self._start_optimistically(parent)
        node.task = self._spawn(self._drive(node, call))
        segment = await Pending(self, node)
        # Nothing can follow a probe: its session is free for the answer again.
        self._discard(node)
        parent.scored = (f"probe:{speaker}", segment.prompt - segment.cached + segment.sampled)
        return segment

    def decide(self, gate: Gate, node: Segment, score: float, reason: str = "") -> bool:
        """Applies `gate` to a score, drawing its randomness from the node's place in the tree, and records it."""
        at = self._node(node)
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
                seconds=self._now(),
                helper_tokens=tokens,
                reason=reason,
            )
        )
        return outcome

    # Choosing -------------------------------------------------------------------------------------------------------

    def commit(self, node: Segment, tokens: int | None = None) -> None:
        """Keeps the path to `node`, or only its first `tokens` tokens; whatever is not below it is dropped.

        Raises:
            RouterError: `node` is unfinished, discarded, or not below the head.
        """
        last = self._node(node)
        if not last.descends_from(self._head):
            raise RouterError(f"commit: segment {node.id} is not below the head (segment {self._head.segment.id})")
        if tokens is not None and tokens < len(node.ids):
            if last is self._head:
                raise RouterError(f"commit: segment {node.id} is committed whole already; it cannot be cut any more")
            self._cut(last, max(0, tokens))
        if last is self._head:
            return
        fresh = [n for n in last.path() if n.descends_from(self._head) and n is not self._head]
        for link in fresh:
            for child in list(link.parent.children) if link.parent else ():
                if child is not link:
                    self._discard(child)
        for link in fresh:
            self._keep(link)
        self._close_thinking()

    def discard(self, node: Segment) -> None:
        """Drops a segment and everything below it, and cancels what is in flight there.

        Raises:
            RouterError: `node` is committed.
        """
        at = self._nodes.get(node.id)
        if at is None:
            raise RouterError(f"discard: segment {node.id} is not of this generation")
        if at.segment.kept:
            raise RouterError(f"discard: segment {node.id} is committed; only uncommitted ones can be dropped")
        self._discard(at)

    def abandon(self) -> None:
        """Drops everything that is not committed, whoever started it."""
        for child in list(self._head.children):
            self._discard(child)

    # The end --------------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Cancels what is still running, frees the sessions and completes the trace."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for leases in self._leases.values():
            for lease in leases:
                lease.session.close()
        # Nothing completes this character any more.
        self._head.segment.text += self._head.held.decode("utf-8", errors="replace")
        self.trace.finish = self.trace.finish or self._finish or "stopped"
        self.trace.seconds = self._now()
        if (rest := self._decoder.decode(b"", final=True)) and self._on_text:
            self._on_text(self._head.segment, rest, len(self._head.segment.ids))

    # Internals: the tree --------------------------------------------------------------------------------------------

    def _now(self) -> float:
        return self._loop.time() - self._start

    def _role(self, role: str) -> Role:
        if role not in self._leases:
            raise RouterError(f"role: {role!r} is unknown; use one of {', '.join(self._roles)}")
        return Role(role)

    def _seed(self, key: str) -> int:
        t = self.trace
        label = f"{self.options.seed}\x1f{t.question or self.question}\x1f{t.sample}\x1f{key}"
        return int.from_bytes(hashlib.blake2b(label.encode(), digest_size=8).digest(), "big") >> 1

    def _node(self, segment: Segment | None) -> _Node:
        """The live, finished node of a segment (the head for None)."""
        if segment is None:
            return self._head
        node = self._nodes.get(segment.id)
        if node is None or node.segment is not segment:
            raise RouterError(f"segment {segment.id} is not of this generation")
        if node.task is not None and not node.task.done():
            raise RouterError(f"segment {segment.id} is still being written; await it first")
        if node.dead:
            raise RouterError(f"segment {segment.id} was discarded")
        return node

    def _room(self, node: _Node) -> int:
        """Tokens that may follow `node` before its phase's budget is spent."""
        budget = self.options.budget
        total = budget.tokens - (budget.answer_reserve if node.phase is Phase.THINKING else 0)
        return max(0, total - node.used)

    def _wanted(self, until: Sequence[Boundary], read: Read) -> Read:
        """What is to be read, with the features that boundaries look at and what the options ask of every token."""
        features = frozenset(w.feature for w in until if isinstance(w, When))
        return read | Read(features=features, top=self.options.top)

    def _new(
        self,
        role: Role,
        kind: Kind,
        parent: _Node,
        until: tuple[Boundary, ...],
        read: Read,
        branch: int,
        fork: _Node | None = None,
    ) -> _Node:
        branches = parent.branches + ((((fork or parent).used, branch),) if branch else ())
        segment = Segment(
            id=self._next_id,
            parent=parent.segment.id,
            branch=branch,
            role=role,
            kind=kind,
            phase=parent.phase,
            submitted=self._now(),
            seed=self._seed(f"{kind if kind is Kind.PROBE else ''} {role} {branches}"),
        )
        self._next_id += 1
        node = _Node(
            segment, parent, parent.phase, parent.used, branches=branches, until=until, read=read, tail=parent.tail
        )
        self._nodes[segment.id] = node
        parent.children.append(node)
        self.trace.segments.append(segment)
        return node

    def _begin(
        self,
        role: Role,
        until: tuple[Boundary, ...],
        parent: _Node,
        branch: int,
        read: Read,
        fork: _Node | None = None,
    ) -> Pending:
        if self._finish:
            raise RouterError("start: the answer is finished; check gen.finished")
        if parent.segment.ended_by is END_OF_TEXT:
            raise RouterError(f"start: segment {parent.segment.id} ends the text; nothing can follow it")
        for child in parent.children:
            same = (child.segment.role, child.until, child.read, child.segment.branch) == (role, until, read, branch)
            if child.optimistic and same and not child.dead:
                child.optimistic = False
                return Pending(self, child)
        place = parent.last_written()
        place.tries += 1
        if place.tries > PATIENCE:
            raise RouterError(f"no token followed in {PATIENCE} segments from one place; the router makes no progress")
        node = self._new(role, Kind.WRITE, parent, until, read, branch, fork)
        room = self._room(parent)
        if room == 0:
            node.segment.ended_by = BUDGET
            return Pending(self, node)
        matcher = SegmentMatcher(
            until,
            self._vocabulary[role],
            context=parent.tail,
            thinking=parent.phase is Phase.THINKING,
            cap=room,
            whole_characters=not self._one_vocabulary,
        )
        # The matcher caps by itself, and may wait for a character to be complete.
        cap = room if self._one_vocabulary else room + SPLIT
        read |= _read_by(until)
        if role in self._states and read.hidden != "end":
            read |= STATES
        call = Call(self._prefix(parent, role), matcher, cap, self.options.sampling, node.segment.seed, read)
        node.task = self._spawn(self._drive(node, call))
        return Pending(self, node)

    def _start_optimistically(self, node: _Node) -> None:
        """Guesses that the draft's step is accepted and the router then asks for the same kind of step again.

        A step of the target is scored to compare it with the draft's; who goes on after it is open.
        """
        segment = node.segment
        begun = any(c.segment.kind is Kind.WRITE and not c.dead for c in node.children)
        if (
            segment.role is Role.DRAFT
            and segment.kind is Kind.WRITE
            and segment.ended_by is not END_OF_TEXT
            and self._room(node)
            and not begun
        ):
            self._begin(segment.role, node.until, node, 0, node.read)._node.optimistic = True

    def _settle(self, node: _Node, ids: Sequence[int]) -> None:
        """Sets what follows from a node's final ids: text, phase, tail, tokens used."""
        segment, parent = node.segment, node.parent
        assert parent is not None
        vocabulary = self._vocabulary[self._lead if segment.role is Role.INSERTED else segment.role]
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

    async def _complete(self, first: Pending, role: str, until: Sequence[Boundary], read: Read) -> Segment:
        at = await first
        while at.ended_by not in (END_OF_TEXT, CANCELLED):
            if at.ended_by is BUDGET:
                if at.phase is Phase.ANSWER:
                    break
                at = self.insert(THINK_END, RESERVE_REACHED, after=at)
            at = await self.propose(role, until, at, read=read)
        return at

    def _attach(
        self,
        role: Role,
        kind: Kind,
        ids: list[int],
        parent: _Node,
        *,
        keep: bool = True,
        detail: str | None = None,
        counted: bool = True,
    ) -> Segment:
        """Adds given tokens below `parent`, up to whatever ends a segment, and commits them if asked to `keep`."""
        if self._finish:
            raise RouterError(f"{kind}: the answer is finished; check gen.finished")
        vocabulary = self._vocabulary[self._lead if role is Role.INSERTED else role]
        node = self._new(role, kind, parent, (), NOTHING, 0)
        node.counted = counted
        room = self._room(parent) if counted else None
        thinking = parent.phase is Phase.THINKING
        matcher = SegmentMatcher((), vocabulary, context=parent.tail, thinking=thinking, cap=room)
        ended = any(matcher.push(i) for i in ids)
        segment = node.segment
        segment.ended_by, segment.detail = matcher.ended_by or GIVEN, detail
        segment.first = segment.last = segment.submitted
        self._settle(node, ids[: matcher.kept] if ended else ids)
        if keep:
            self.commit(segment)
        return segment

    def _encode(self, vocabulary: Vocabulary, text: str) -> list[int]:
        """Ids of inserted text, with the end-of-thinking token where the text has one."""
        before, mark, after = text.partition(THINK_END)
        if mark and vocabulary.end_of_thinking is not None:
            head = vocabulary.encode(before) if before else []
            return [*head, vocabulary.end_of_thinking, *(vocabulary.encode(after) if after else ())]
        return vocabulary.encode(text)

    def _cut(self, node: _Node, tokens: int) -> None:
        for child in list(node.children):
            self._discard(child)
        segment = node.segment
        segment.ended_by = CUT
        segment.features = {k: v if k == "hidden_end" else v[:tokens] for k, v in segment.features.items()}
        # The state at the old end belongs to a token that is gone.
        segment.features.pop("hidden_end", None)
        node.state = None
        node.prefixes.clear()
        self._settle(node, segment.ids[:tokens])

    def _keep(self, node: _Node) -> None:
        """Makes a node the head: the one place where the answer grows."""
        segment = node.segment
        segment.kept = True
        segment.kept_tokens = 0 if segment.role is Role.INSERTED else len(segment.ids)
        self._show(node, len(segment.ids))
        self._head = node
        if segment.ended_by is END_OF_TEXT:
            self._finish = "end_of_text"
        elif self._room(node) == 0 and node.phase is Phase.ANSWER:
            self._finish = "length"

    def _close_thinking(self) -> None:
        """Ends thinking where only the answer's reserve is left, and the text where nothing is kept back for one."""
        if not self._finish and self._head.phase is Phase.THINKING and self._room(self._head) == 0:
            if self.options.budget.answer_reserve:
                self.insert(THINK_END, RESERVE_REACHED)
            else:
                self._finish = "length"

    def _break_off(self, node: _Node) -> None:
        """Ends a segment that is streamed: keeps what the reader has seen of it."""
        if node.dead or not node.shown:
            self._discard(node)
            return
        if node.task is not None and not node.task.done():
            node.segment.ended_by = CANCELLED
            node.task.cancel()
        for sibling in list(self._head.children):
            if sibling is not node:
                self._discard(sibling)
        self._settle(node, node.segment.ids[: node.shown])
        node.segment.features = {name: values[: node.shown] for name, values in node.segment.features.items()}
        self._keep(node)

    def _discard(self, node: _Node) -> None:
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
            self._discard(child)

    # Internals: ledgers ---------------------------------------------------------------------------------------------

    def _prefix(self, node: _Node, role: Role) -> Prefix:
        """The prefix up to `node` in `role`'s ledger: its own prompt, then the generated ids in its vocabulary."""
        missing: list[_Node] = []
        at = node
        while role not in at.prefixes:
            missing.append(at)
            assert at.parent is not None
            at = at.parent
        prefix = at.prefixes[role]
        for link in reversed(missing):
            prefix = prefix.extend(self._ids(link, role))
            link.prefixes[role] = prefix
        return prefix

    def _ids(self, node: _Node, role: Role) -> list[int]:
        segment = node.segment
        own = self._vocabulary[self._lead if segment.role is Role.INSERTED else segment.role]
        other = self._vocabulary[role]
        if own.shares_ids(other):
            return segment.ids
        ids = own.translate(segment.ids, other)
        before = node.parent.tail if node.parent else ""
        self.trace.seams += 1
        if before and other.encode(before + segment.text) != [*other.encode(before), *other.encode(segment.text)]:
            self.trace.seams_differ += 1
        return ids

    # Internals: engines ---------------------------------------------------------------------------------------------

    def _spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        # A call that nobody awaits any more may fail; whoever awaits it sees the error.
        task.add_done_callback(lambda t: t.cancelled() or t.exception())
        return task

    @asynccontextmanager
    async def _lease(self, role: Role, node: _Node, tip: _Node) -> AsyncIterator[Session]:
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
                session = self.pair.engines[role].open(self._root.prefixes[role].ids())
            else:
                session = source.session.fork()
            lease = _Lease(session, node)
            leases.append(lease)
        lease.busy, lease.tip = True, tip
        try:
            yield lease.session
        finally:
            lease.busy = False

    async def _drive(self, node: _Node, call: Call) -> None:
        """Runs one segment on its engine, from the call to its final tokens."""
        segment, parent, matcher = node.segment, node.parent, call.matcher
        assert parent is not None
        node.matcher = matcher
        segment.prompt = call.prefix.length
        got: list[Chunk] = []
        try:
            async with self._lease(segment.role, parent, node) as session:
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
            self._settle(node, segment.ids)
            raise
        except Exception:
            segment.ended_by = FAILED
            self._charge(segment, call)
            self._settle(node, segment.ids)
            raise
        segment.ended_by, segment.detail = matcher.ended_by, matcher.detail or segment.detail
        # What only scorers and learned boundaries asked for stays out of the trace.
        segment.features = _features(got, matcher.kept, node.read)
        if segment.role in self._states and call.read.hidden == "tokens" and matcher.kept:
            node.state = [h for c in got for h in c.hidden][matcher.kept - 1]
        segment.overshoot = segment.sampled - matcher.kept
        self._settle(node, matcher.ids[: matcher.kept])

    def _receive(self, node: _Node, chunk: Chunk, got: list[Chunk]) -> None:
        segment = node.segment
        if chunk.ids:
            got.append(chunk)
            segment.ids.extend(chunk.ids)
            if self.options.top:
                # Whoever reads the text while it grows reads this beside it.
                segment.features.setdefault("top", []).extend(chunk.top)
            segment.sampled += len(chunk.ids)
            if segment.first is None:
                segment.first = chunk.first - self._start
            segment.last = chunk.last - self._start
        if chunk.usage is not None:
            segment.cached = chunk.usage.cached
            self._count(segment, chunk.usage)
        if node.streamed:
            self._stream(node)

    @staticmethod
    def _count(segment: Segment, usage: Usage) -> None:
        segment.sampled = max(segment.sampled, usage.sampled)
        segment.proposed, segment.accepted, segment.drafted = usage.proposed, usage.accepted, usage.drafted

    def _charge(self, segment: Segment, call: Call) -> None:
        """Counts what a call cost that gave no last chunk: also tokens that were not delivered any more."""
        # What was never computed cost no more than what was cached.
        segment.cached = segment.prompt - (call.usage.prompt - call.usage.cached)
        self._count(segment, call.usage)
        segment.sampled = max(segment.sampled, len(call.matcher.ids))

    def _stream(self, node: _Node) -> None:
        """Shows the tokens of a segment being written that its boundaries can no longer take back."""
        if node.matcher is not None:
            self._show(node, min(node.matcher.settled_tokens, len(node.segment.ids)))

    def _show(self, node: _Node, upto: int) -> None:
        """Hands the tokens of `node` up to `upto` to the reader, whole characters only."""
        segment, ids = node.segment, node.segment.ids[node.shown : upto]
        if not ids:
            return
        node.shown = upto
        if segment.role is not Role.INSERTED:
            self.shown += len(ids)
            now = self._now()
            if self.trace.first_token is None:
                self.trace.first_token = now
            if segment.phase is Phase.ANSWER and self.trace.first_answer_token is None:
                self.trace.first_answer_token = now
        if self._on_text is not None:
            vocabulary = self._vocabulary[self._lead if segment.role is Role.INSERTED else segment.role]
            if text := self._decoder.decode(vocabulary.bytes_of(ids)):
                self._on_text(segment, text, upto)

    # Internals: helpers ---------------------------------------------------------------------------------------------

    async def _score_one(self, node: _Node, by: str, against: Segment | None) -> float:
        return (await self._score([node], by, against))[0]

    async def _score(self, nodes: list[_Node], by: str, against: Segment | None) -> list[float]:
        helper = HelperCall(by=by, nodes=[n.segment.id for n in nodes], submitted=self._now())
        requests = [self._request(n, against) for n in nodes]
        with self._record(helper):
            scores = await self.pair.scorers[by].score(requests)
            if len(scores) != len(nodes):
                raise EngineError(f"scorer {by!r} gave {len(scores)} scores for {len(nodes)} steps")
            helper.scores = [s.value for s in scores]
            helper.tokens, helper.cached = sum(s.tokens for s in scores), sum(s.cached for s in scores)
        for node, score in zip(nodes, scores, strict=True):
            node.scored = (by, score.tokens)
        return helper.scores

    def _request(self, node: _Node, against: Segment | None) -> ScoreRequest:
        segment = node.segment
        writer = self._lead if segment.role is Role.INSERTED else segment.role
        other = self._nodes.get(against.id) if against is not None else None
        used = node.parent.used if node.parent is not None else 0
        return ScoreRequest(
            question=self.question,
            before=tuple(n.segment.text for n in node.path()[1:-1]),
            step=segment.text,
            role=writer,
            ids=tuple(self._prefix(node, writer).ids()),
            step_ids=len(segment.ids),
            against=against.text if against is not None else None,
            prompt=self._root.prefixes[writer].length,
            features=segment.features,
            generation=self._serial,
            place=_Place(self, node),
            other=_Place(self, other) if other is not None and other.segment is against else None,
            budget=1 - used / self.options.budget.tokens,
        )

    def _call(self, work: Coroutine[Any, Any, T], about: list[_Node]) -> PendingCall[T]:
        """Starts a helper call that lives as long as one of the nodes it is about."""
        task = self._spawn(work)
        for node in about:
            node.calls.append((task, about))
        return PendingCall(task)

    def _turn(self, role: Role, text: str) -> list[int]:
        """Ids that end the assistant's turn, ask `text` as the user and open the next reply, by the chat template.

        Found as what two conversations have in common behind an assistant's turn in which they differ: what the
        template makes of the turn itself (it may drop the thinking) does not matter.
        """
        if (role, text) not in self._turns:
            opening = self.options.messages(self.question)
            asked = {"role": "user", "content": text}
            one, other = (
                self.pair.engines[role].render(
                    [*opening, {"role": "assistant", "content": content}, asked], thinking=False
                )
                for content in ("1", "2")
            )
            same = 0
            while same < min(len(one), len(other)) and one[-1 - same] == other[-1 - same]:
                same += 1
            self._turns[role, text] = one[len(one) - same :]
        return self._turns[role, text]

    async def _grounding(self, role: Role, node: _Node) -> list[float]:
        assert node.parent is not None
        helper = HelperCall(by=f"grounding:{role}", nodes=[node.segment.id], submitted=self._now())
        with self._record(helper):
            async with self._lease(role, node.parent, node) as session:
                shares, usage = await session.grounding(self._prefix(node.parent, role), self._ids(node, role))
            helper.tokens, helper.cached = cost(usage), usage.cached
        return shares

    async def _logprob(self, role: Role, node: _Node, temperature: float) -> list[TokenScore]:
        parent = node.parent
        if parent is None:
            return []
        helper = HelperCall(by=f"logprob:{role}", nodes=[node.segment.id], submitted=self._now())
        with self._record(helper):
            scores, usage = await self._scored(role, node, temperature)
            helper.tokens, helper.cached = cost(usage), usage.cached
        return scores

    async def _scored(self, role: Role, node: _Node, temperature: float = 1.0) -> tuple[list[TokenScore], Usage]:
        assert node.parent is not None
        async with self._lease(role, node.parent, node) as session:
            return await session.logprob(self._prefix(node.parent, role), self._ids(node, role), temperature)

    async def _logprobs(self, role: Role, nodes: list[_Node], temperature: float) -> list[list[TokenScore]]:
        return list(await asyncio.gather(*(self._logprob(role, n, temperature) for n in nodes)))

    @contextmanager
    def _record(self, helper: HelperCall) -> Iterator[None]:
        """Keeps a helper call in the trace, however it ends."""
        self.trace.helpers.append(helper)
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
            helper.done = self._now()


@dataclass(frozen=True, slots=True)
class _Place:
    """What a scorer sees of the models where a step stands."""

    gen: Generation
    node: _Node

    async def logprob(self, role: str) -> tuple[list[TokenScore], Usage]:
        return await self.gen._scored(self.gen._role(role), self.node)

    async def state(self, role: str) -> tuple[Any, Usage]:
        gen, node, speaker = self.gen, self.node, self.gen._role(role)
        if node.state is not None and node.segment.role is speaker:
            return node.state, Usage()
        assert node.parent is not None
        before, ids = gen._prefix(node.parent, speaker), gen._ids(node, speaker)
        async with gen._lease(speaker, node.parent, node) as session:
            return await last_state(session, gen._vocabulary[speaker], before.extend(ids[:-1]))

    async def reply(self, role: str, ask: str, begin: str, top: int) -> tuple[list[tuple[int, float]], Usage]:
        gen, node, speaker = self.gen, self.node, self.gen._role(role)
        vocabulary = gen._vocabulary[speaker]
        known = gen._prefix(node, speaker)
        asked = known.extend([*gen._turn(speaker, ask), *(vocabulary.encode(begin) if begin else ())])
        async with gen._lease(speaker, node, node) as session:
            try:
                return await next_token(session, vocabulary, asked, top)
            finally:
                # The question never enters the answer, which goes on from the step.
                session.rewind(known.length)


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


async def generate(
    pair: Pair,
    router: Router,
    question: str,
    *,
    options: Options,
    question_id: str = "",
    sample: int = 0,
    prompts: Mapping[Role, Sequence[int]] | None = None,
    trace: Trace | None = None,
    on_text: OnText | None = None,
    replay: Trace | None = None,
) -> Trace:
    """Writes one answer under `router` and returns its trace.

    `prompts` are token ids by role, in place of the question as each model's template has it: of a conversation, or of
    plain text. `trace` is an empty one to write in, for who wants to see it grow, or to have it whatever happens.

    A generation that runs into `options.timeout` returns with finish `timeout`. One that fails raises: a failure is
    never an answer.

    Raises:
        EngineError: an engine or scorer failed; `retryable` says whether trying again makes sense.
        RouterError: the router asked for something that cannot be.
    """
    trace = trace if trace is not None else Trace()
    trace.question, trace.question_text, trace.sample = question_id or question, question, sample
    trace.router, trace.knobs, trace.pair, trace.seed = router.name, knobs(router), pair.name, options.seed
    asked = (pair.scorers.get(name) for name in getattr(router, "scorers", ()))
    states = frozenset(role for scorer in asked for role in getattr(scorer, "states", ()))
    gen = Generation(
        pair, question, options, trace=trace, prompts=prompts, on_text=on_text, replay=replay, states=states
    )
    try:
        async with asyncio.timeout(options.timeout) as deadline:
            await router(gen)
    except TimeoutError:
        if not deadline.expired():
            raise
        trace.finish = "timeout"
    finally:
        await _to_the_end(gen.close())
    return trace


async def _to_the_end(work: Coroutine[Any, Any, None]) -> None:
    """Awaits `work` even if cancelled meanwhile, and is cancelled then: what is freed half way stays occupied."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            cancelled = error
    task.result()
    if cancelled is not None:
        raise cancelled


def knobs(router: Router) -> dict[str, Any]:
    """A router's knobs in a form that JSON can hold.

    One that a router got later (`"later": True` in its field's metadata) is told only where it is not its default, so
    that runs which were begun without it go on.
    """
    told: dict[str, Any] = {f.name: f for f in fields(router)} if is_dataclass(router) else {}
    values = {name: getattr(router, name) for name in told}
    quiet = {name for name, f in told.items() if f.metadata.get("later") and values[name] == f.default}
    return {name: _plain(value) for name, value in values.items() if name not in quiet}


def _plain(value: Any) -> Any:
    if isinstance(value, Boundary):
        return value.name
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    return value if isinstance(value, (str, int, float, bool, list, dict, type(None))) else str(value)
