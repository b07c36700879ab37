"""Rollouts behind labels: states that a policy visits, both models' next step from each, and continuations of these.

Three stages, each stored as it finishes so that a killed run goes on where it stopped with the same result: the policy
answers the questions (`visits.jsonl`); its answers are cut into steps; each state is labelled (`states.jsonl`). The
continuations of a state fork the session that holds its prefix, and many states are in flight at once, so that the
engine's steps are full.
"""

from __future__ import annotations

import hashlib
import json
import time
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import accumulate
from pathlib import Path
from typing import Any

from baton.bench.grading import Grade, Grader
from baton.bench.tasks import Question, spread
from baton.boundary import END_OF_TEXT, STEP, Cap
from baton.calibrate.work import Progress, claim, collect, each
from baton.engines.base import EngineError
from baton.failures import attempted
from baton.generation import Generation, Options, Router, RouterError, generate
from baton.pair import Pair
from baton.records import Lines, read_json, read_records, write_json
from baton.scorers.base import together
from baton.trace import Kind, Phase, Role, Segment, Trace
from baton.training.labels import Label, from_rows, standard_error, success_rate
from baton.vocabulary import Vocabulary

Piece = tuple[Role, tuple[int, ...]]
"""Consecutive tokens of one writer, in the writer's vocabulary (inserted text: the target's)."""
Step = tuple[Piece, ...]
VISITS, STATES, FAILURES, SETTINGS, DONE = (
    "visits.jsonl", "states.jsonl", "failures.jsonl", "settings.json", "done.json"
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Settings:
    """How states are labelled; fields as in `LabelConfig`."""

    n: int = 8
    look: int = 4
    states: int | None = None
    samples: int = 1
    step_tokens: int = 512
    concurrency: int = 32
    grader_timeout_s: float = 5.0


@dataclass(frozen=True, slots=True)
class State:
    """A place in a visited answer: after its first `number` steps."""

    question: Question
    sample: int
    number: int
    steps: tuple[Step, ...]
    """Those before it."""
    taken: Role
    """Who wrote the first token of the next one."""

    @property
    def key(self) -> tuple[str, int, int]:
        return self.question.id, self.sample, self.number


def steps_of(trace: Trace, vocabularies: Mapping[Role, Vocabulary]) -> list[Step]:
    """The steps of an answer's thinking (of the answer where its model does not think), by who wrote which tokens.

    A step ends at the token in which a blank line ends, whoever wrote it; what follows the last one is a step too.
    """
    kept = [s for s in trace.path() if s.ids]
    first = kept[0].phase if kept else Phase.THINKING
    tokens: list[tuple[Role, int]] = []
    texts: list[str] = []
    for segment in kept:
        if segment.phase is first:
            owner = Role.TARGET if segment.role is Role.INSERTED else segment.role
            tokens += [(segment.role, i) for i in segment.ids]
            texts += vocabularies[owner].pieces_of(segment.ids)
    text, edges = "".join(texts), list(accumulate(map(len, texts)))
    steps, begin, at = [], 0, 0
    while at < len(text):
        scanner = STEP.scan(text, at)
        if scanner.found is None:
            break
        end = bisect_left(edges, at + scanner.found) + 1
        steps.append(_pieces(tokens[begin:end]))
        begin, at = end, edges[end - 1]
    if begin < len(tokens):
        steps.append(_pieces(tokens[begin:]))
    return steps


def _pieces(tokens: Sequence[tuple[Role, int]]) -> Step:
    pieces: list[tuple[Role, list[int]]] = []
    for role, i in tokens:
        if pieces and pieces[-1][0] is role:
            pieces[-1][1].append(i)
        else:
            pieces.append((role, [i]))
    return tuple((role, tuple(ids)) for role, ids in pieces)


def states_of(question: Question, trace: Trace, vocabularies: Mapping[Role, Vocabulary]) -> list[State]:
    """The states of a visited answer: before each of its steps that a model wrote."""
    steps = steps_of(trace, vocabularies)
    return [
        State(question, trace.sample, n, tuple(steps[:n]), next(r for r, _ in step if r is not Role.INSERTED))
        for n, step in enumerate(steps)
        if any(role is not Role.INSERTED for role, _ in step)
    ]


@dataclass(slots=True)
class Arm:
    """What became of the answer after one step."""

    outcomes: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    cut: int = 0
    ungraded: int = 0
    exact: bool = False
    """The step ended the answer, so that there is one outcome and no chance."""

    def add(self, grade: Grade | None, tokens: int) -> None:
        """One continuation; `grade` is None where it was cut off."""
        self.tokens.append(tokens)
        self.cut += grade is None
        self.ungraded += grade is Grade.TIMEOUT
        if grade is not None and grade is not Grade.TIMEOUT:
            self.outcomes.append(int(grade is Grade.CORRECT))

    def wanted(self, settings: Settings) -> int:
        """How many continuations to run next; 0 when it is decided, or all have run."""
        left = settings.n - len(self.tokens)
        if self.exact or not left or not settings.look:
            return 0 if self.exact else left
        if len(self.outcomes) < settings.look:
            # What was cut off is made up for, so that the look is always at as many outcomes.
            return min(left, settings.look - len(self.outcomes))
        return 0 if len(set(self.outcomes)) == 1 else left


class Labeller:
    """A router that writes no answer: it goes to a state, has both models write a step, and continues each.

    `router` continues where it is not None, else the target alone. No dataclass: what it holds are no knobs.
    """

    name = "labeller"

    def __init__(
        self, state: State, settings: Settings, grader: Grader, pair: Pair, options: Options, router: Router | None
    ):
        self.state, self.settings, self.grader = state, settings, grader
        self.pair, self.options, self.router = pair, options, router
        self.path: list[int] = []
        """Ids before the state, in the target's vocabulary, as those of `ids`."""
        self.ends: list[int] = []
        self.ids: dict[str, list[int]] = {}
        """By role, its next step."""
        self.texts: dict[str, str] = {}
        self.arms: dict[str, Arm] = {}
        self.others: list[Trace] = []
        """Traces of continuations that were generations of their own."""

    async def __call__(self, gen: Generation) -> None:
        for visited in self.state.steps:
            write(gen, visited)
            self.ends.append(len(gen.view("target")))
        self.path = list(gen.view("target"))
        until = [STEP, Cap(self.settings.step_tokens)]
        pending = {role: gen.start(role, until) for role in ("draft", "target")}
        steps = {role: await p for role, p in pending.items()}
        for role, step in steps.items():
            self.ids[role] = list(gen.view("target", step))[len(self.path) :]
            self.texts[role] = step.text
        if self.ids["draft"] == self.ids["target"]:
            arm = await self._roll_out(gen, steps["target"])
            self.arms = {"draft": arm, "target": arm}
        else:
            found = await together([self._roll_out(gen, step) for step in steps.values()])
            self.arms = dict(zip(steps, found, strict=True))

    async def _roll_out(self, gen: Generation, step: Segment) -> Arm:
        arm = Arm(exact=step.ended_by is END_OF_TEXT)
        if arm.exact:
            arm.add(await self._grade(gen.trace.answer + (step.text if step.phase is Phase.ANSWER else "")), 0)
        while count := arm.wanted(self.settings):
            # Branch 0 is the randomness of the visited path itself.
            branches = range(len(arm.tokens) + 1, len(arm.tokens) + count + 1)
            one = self._by_target if self.router is None else self._by_router
            for grade, tokens in await together([one(gen, step, branch) for branch in branches]):
                arm.add(grade, tokens)
        return arm

    async def _by_target(self, gen: Generation, step: Segment, branch: int) -> tuple[Grade | None, int]:
        last = await gen.complete("target", after=step, branch=branch, fork=gen.head)
        path = gen.path(last)
        tokens = sum(len(s.ids) for s in path[1:])
        text = gen.trace.answer + "".join(s.text for s in path if s.phase is Phase.ANSWER)
        # Its session is free for the next continuation.
        gen.discard(path[1])
        return (await self._grade(text) if last.ended_by is END_OF_TEXT else None), tokens

    async def _by_router(self, gen: Generation, step: Segment, branch: int) -> tuple[Grade | None, int]:
        assert self.router is not None
        steps = (*self.state.steps, ((step.role, tuple(step.ids)),))
        label = f"{self.options.seed}\x1fcontinuation\x1f{branch}".encode()
        seed = int.from_bytes(hashlib.blake2b(label, digest_size=7).digest(), "big")
        trace = await generate(
            self.pair, Resumed(self.router, steps), self.state.question.question,
            options=replace(self.options, seed=seed), question_id=self.state.question.id, sample=self.state.sample,
        )  # fmt: skip
        self.others.append(trace)
        given = sum(len(s.ids) for s in trace.path() if s.kind is Kind.APPEND)
        finished = trace.finish not in ("length", "timeout")
        return (await self._grade(trace.answer) if finished else None), trace.tokens() - given

    async def _grade(self, text: str) -> Grade:
        return (await self.grader.grade(self.state.question, text)).grade


class Resumed:
    """A router that goes on after steps that were written elsewhere."""

    def __init__(self, router: Router, steps: Sequence[Step]):
        self.name, self.router, self.steps = router.name, router, steps

    async def __call__(self, gen: Generation) -> None:
        for step in self.steps:
            write(gen, step)
        if not gen.finished:
            await self.router(gen)


def write(gen: Generation, step: Step) -> None:
    """Commits the tokens of a visited step.

    Raises:
        RouterError: they do not fit the budget.
    """
    for role, ids in step:
        written = gen.append("target" if role is Role.INSERTED else role, ids)
        if len(written.ids) < len(ids):
            raise RouterError("the visited path does not fit the budget; raise budget.tokens")


async def label_state(
    pair: Pair, state: State, options: Options, settings: Settings, grader: Grader, visited_by: str,
    router: Router | None = None,
) -> Label | None:  # fmt: skip
    """Labels one state; None where a step has no continuation that could be graded.

    Raises:
        EngineError, RouterError: a model failed.
    """
    labeller = Labeller(state, settings, grader, pair, options, router)
    question = state.question
    trace = await generate(
        pair, labeller, question.question, options=options, question_id=question.id, sample=state.sample
    )
    if trace.finish == "timeout":
        raise EngineError("the time for an answer is up; raise timeout_s, or lower n")
    draft, target = labeller.arms["draft"], labeller.arms["target"]
    if not (draft.outcomes and target.outcomes):
        return None
    traces = [trace, *labeller.others]
    rates = {r: success_rate(a.outcomes, 0 if a.exact else settings.look) for r, a in labeller.arms.items()}
    errors = {r: standard_error(a.outcomes, a.exact) for r, a in labeller.arms.items()}
    return Label(
        question=question.id, question_text=question.question, gold=question.answer, level=question.level,
        sample=state.sample, state=state.number, router=visited_by,
        prompt_ids=trace.prompts["target"], path_ids=labeller.path, step_ends=labeller.ends,
        draft_ids=labeller.ids["draft"], target_ids=labeller.ids["target"],
        draft_text=labeller.texts["draft"], target_text=labeller.texts["target"], taken=state.taken.value,
        draft_outcomes=draft.outcomes, target_outcomes=target.outcomes,
        q_draft=rates["draft"], q_target=rates["target"], q_draft_se=errors["draft"], q_target_se=errors["target"],
        draft_tokens=_mean(draft.tokens), target_tokens=_mean(target.tokens),
        draft_cut=draft.cut, target_cut=target.cut,
        ungraded=draft.ungraded + (0 if target is draft else target.ungraded),
        sampled_tokens=sum(s.sampled for t in traces for s in t.segments),
        continued_by="target" if router is None else router.name,
    )  # fmt: skip


def _mean(values: Sequence[int]) -> float:
    return sum(values) / len(values)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run gave: labels in the order of questions, and what could not be labelled."""

    labels: list[Label]
    empty: int
    """States of which no continuation could be graded."""
    failed: int
    """States at which a model failed; another call tries them again."""


async def roll_out(
    pair: Pair, questions: Sequence[Question], policy: Router, visited_by: str, options: Options, settings: Settings,
    folder: Path, made_with: Mapping[str, Any], progress: Progress, continue_by: Router | None = None,
) -> Outcome:  # fmt: skip
    """Visits and labels; what `folder` holds already is not done again.

    Raises:
        ValueError: the folder holds labels made with other settings or of other questions.
        EngineError, RouterError: an answer of the policy failed.
    """
    claim(folder, made_with)
    (folder / DONE).unlink(missing_ok=True)
    visits = await collect(
        pair, policy, questions, options, folder / VISITS, progress,
        stage="visits", samples=settings.samples, concurrency=settings.concurrency,
    )  # fmt: skip
    by_id = {q.id: q for q in questions}
    vocabularies = {role: engine.vocabulary for role, engine in pair.engines.items()}
    states: list[State] = []
    for trace in visits:
        found = states_of(by_id[trace.question], trace, vocabularies)
        states += spread(found, settings.states) if settings.states else found
    failed = await _label_all(pair, states, options, settings, folder, progress, visited_by, continue_by)
    labels, empty = read_states(folder, [s.key for s in states])
    write_json(folder / DONE, {"states": len(states), "failed": failed})
    return Outcome(labels, empty, failed)


async def _label_all(
    pair: Pair, states: Sequence[State], options: Options, settings: Settings, folder: Path, progress: Progress,
    visited_by: str, continue_by: Router | None,
) -> int:  # fmt: skip
    """Labels the states that are not stored yet; returns at how many a model failed."""
    file, failures = Lines(folder / STATES), Lines(folder / FAILURES)
    have = set(_rows(folder))
    missing = [s for s in states if s.key not in have]
    done, failed = len(states) - len(missing), 0
    progress("states", done, len(states))
    grader = Grader(settings.grader_timeout_s, pair.scorers)

    async def one(state: State) -> None:
        nonlocal done, failed
        try:
            label = await attempted(
                lambda: label_state(pair, state, options, settings, grader, visited_by, continue_by)
            )
        except (EngineError, RouterError) as error:
            failed += 1
            line = {"state": state.key, "error": f"{type(error).__name__}: {error}", "time": time.time()}
            failures.append(json.dumps(line))
            return
        row = {"question": state.question.id, "sample": state.sample, "state": state.number, "empty": True}
        file.append(json.dumps(row if label is None else asdict(label), ensure_ascii=False))
        done += 1
        progress("states", done, len(states))

    try:
        with file, failures:
            await each(missing, one, settings.concurrency)
    finally:
        await grader.close()
    return failed


def _rows(folder: Path) -> dict[tuple[str, int, int], dict[str, Any]]:
    """The lines of the labelled states, by question, sample and state."""
    return dict(
        read_records(folder / STATES, lambda row: ((row["question"], row["sample"], row["state"]), row), "label")
    )


def read_states(folder: Path, order: Sequence[tuple[str, int, int]] | None = None) -> tuple[list[Label], int]:
    """The labels stored in a work folder, in `order` (by their keys if None), and how many states gave none.

    Raises:
        ValueError: a line is no label.
    """
    rows = _rows(folder)
    found = [rows[key] for key in (sorted(rows) if order is None else order) if key in rows]
    full = [row for row in found if not row.get("empty")]
    return list(from_rows(full, str(folder / STATES))), len(found) - len(full)


def join(work: Path, shards: Sequence[Path]) -> tuple[dict[str, Any], int]:
    """Joins the work folders of all shards of one labelling in the new folder `work`; returns what it was made with,
    and at how many states a model failed.

    Raises:
        ValueError: a folder holds no finished shard, they were made with different settings, or some are missing.
    """
    if (work / SETTINGS).exists():
        raise ValueError(f"out: {work.parent} holds labels already; give a new folder")
    settings = [_finished(shard) for shard in shards]
    parts: dict[str, Path] = {}
    for shard, mine in zip(shards, settings, strict=True):
        part = mine.pop("shard")
        if part in parts:
            raise ValueError(f"{shard.parent}: it is shard {part}, as {parts[part].parent}; give each shard once")
        parts[part] = shard
        if other := next((name for name in mine if mine[name] != settings[0].get(name)), None):
            raise ValueError(f"{shard.parent}: {other} differs from {shards[0].parent}; join shards of one labelling")
    count = int(next(iter(parts)).partition("/")[2])
    if absent := [f"{n}/{count}" for n in range(1, count + 1) if f"{n}/{count}" not in parts]:
        raise ValueError(f"shards: {', '.join(absent)} missing; give the folders of all {count}")
    work.mkdir(parents=True, exist_ok=True)
    for name in (VISITS, STATES, FAILURES):
        with (work / name).open("w", encoding="utf-8") as out:
            for shard in shards:
                out.write((shard / name).read_text(encoding="utf-8"))
    done = [read_json(shard / DONE, "label again in another folder") for shard in shards]
    total = {name: sum(one[name] for one in done) for name in ("states", "failed")}
    write_json(work / DONE, total)
    # Last, so that a join that was cut off holds no labels that would be in the way of the next one.
    whole = {**settings[0], "shard": "1/1"}
    write_json(work / SETTINGS, whole)
    return whole, total["failed"]


def _finished(work: Path) -> dict[str, Any]:
    if not (work / DONE).is_file():
        raise ValueError(f"{work.parent}: it holds no finished labelling; run `baton label` to its end there")
    found: dict[str, Any] = read_json(work / SETTINGS, "label again in another folder")
    return found
