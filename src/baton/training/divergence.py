"""Where the draft leaves the target's answer, and whether that matters: what a token router is trained on (R2R).

The target answers a question. The draft reads the answer; wherever its likeliest token is another one, the target goes
on from the draft's token to the end of the sentence (or step), and a judge says whether the two versions say the same.
Rows are appended to a file of lines as they finish, so that a killed run goes on; a folder may hold several files.
"""

from __future__ import annotations

import asyncio
import json
import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from itertools import accumulate
from pathlib import Path
from typing import Any

from baton.bench import tasks
from baton.bench.shards import shard_of
from baton.bench.tasks import Question
from baton.boundary import END_OF_TEXT, END_OF_THINKING, Boundary, Cap, TextBoundary
from baton.calibrate.work import Progress, claim, each
from baton.config import load_divergence_recipe, pair_options
from baton.generation import Generation, Options, RouterError, generate
from baton.pair import Pair
from baton.records import Lines, read_lines
from baton.routers.units import UNITS
from baton.scorers.base import together
from baton.trace import Role, Segment
from baton.vocabulary import Vocabulary

EXACT = "exact"
"""The judge that compares texts but for case and outer blanks."""
SHARD = re.compile(r"(\d+)-of-(\d+)\.jsonl")
"""What the files of a folder are called."""


@dataclass(frozen=True, slots=True)
class Divergence:
    """One answer of the target. All token ids are of the pair's one vocabulary."""

    question: str
    """Id of the question."""
    vocabulary: str
    """Fingerprint of that vocabulary."""
    prompt_ids: list[int]
    """The draft's prompt."""
    answer_ids: list[int]
    """The target's answer, thinking included."""
    at: list[int] = field(default_factory=list)
    """Indices of the answer's tokens at which the draft's likeliest token is another one, ascending."""
    draft_ids: list[int] = field(default_factory=list)
    """Those tokens of the draft."""
    same: list[float] = field(default_factory=list)
    """What the judge says of each: its score that both versions say the same."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How divergences are judged."""

    judge: str = "judge"
    """A scorer of the pair that compares two texts, or `exact`."""
    unit: str = "sentence"
    """What is written to its end and compared: the `sentence` (as published) or the `step`."""
    unit_tokens: int = 128
    """Most tokens that the target writes after the draft's token."""
    concurrency: int = 32


def edges(ids: Sequence[int], vocabulary: Vocabulary, unit: TextBoundary) -> list[int]:
    """Ends, in tokens, of the units that an answer is cut into, the end of its thinking among them; the last is its
    length."""
    texts = vocabulary.pieces_of(ids)
    text, ends = "".join(texts), list(accumulate(map(len, texts)))
    found = {len(ids), *(n + 1 for n, i in enumerate(ids) if i == vocabulary.end_of_thinking)}
    at = 0
    while at < len(text):
        scanner = unit.scan(text, at)
        if scanner.found is None:
            break
        token = bisect_left(ends, at + scanner.found)
        found.add(token + 1)
        at = ends[token]
    return sorted(found)


class Follower:
    """A router that writes an answer of the target again, unit by unit, and tries out the draft's other tokens.

    No dataclass: what it holds are no knobs.
    """

    name = "follower"

    def __init__(self, ids: Sequence[int], settings: Settings):
        self.ids, self.settings = list(ids), settings
        self.found: list[tuple[int, int, float]] = []
        """(index in the answer, the draft's token, the judge's score)."""

    async def __call__(self, gen: Generation) -> None:
        unit = UNITS[self.settings.unit]
        ends = set(gen.vocabulary("draft").end_of_text) | {gen.vocabulary("draft").end_of_thinking}
        begin = 0
        for end in edges(self.ids, gen.vocabulary("target"), unit):
            own = gen.append("target", self.ids[begin:end], after=gen.head)
            likeliest = [score.argmax for score in await gen.logprob("draft", own)]
            others = [
                n for n, i in enumerate(likeliest) if i != self.ids[begin + n] and self.ids[begin + n] not in ends
            ]
            # A token that ends the answer or its thinking is no other way to say something: it diverges.
            ask = [n for n in others if likeliest[n] not in ends]
            tries = [self._try(gen, begin, n, likeliest[n], own, unit) for n in ask]
            scores = dict(zip(ask, await together(tries), strict=True))
            self.found += [(begin + n, likeliest[n], scores.get(n, 0.0)) for n in others]
            gen.commit(own)
            if len(own.ids) < end - begin:
                raise RouterError("the answer does not fit the budget; raise budget.tokens")
            begin = end

    async def _try(
        self, gen: Generation, begin: int, n: int, token: int, own: Segment, unit: Boundary
    ) -> float:  # fmt: skip
        """The judge's score of the unit that follows from the draft's token at its index `n`."""
        ids = [*self.ids[begin : begin + n], token]
        branch = gen.append("draft", ids, after=gen.head)
        if branch.ended_by not in (END_OF_TEXT, END_OF_THINKING):
            rest = await gen.propose("target", [unit, Cap(self.settings.unit_tokens)], after=branch)
            ids += rest.ids
        other = gen.append("draft", ids, after=gen.head)
        if self.settings.judge == EXACT or other.text.strip().lower() == own.text.strip().lower():
            return float(other.text.strip().lower() == own.text.strip().lower())
        return await gen.score(other, by=self.settings.judge, against=own)


async def label(
    pair: Pair, questions: Sequence[Question], options: Options, settings: Settings, file: Path, progress: Progress
) -> int:
    """Appends a row for each question to `file`; those it has already are not repeated. Returns how many it holds.

    Answers that the budget cut off are no rows. `options.sampling` is that of the target's answers (published: greedy).

    Raises:
        EngineError, RouterError: a model failed; the rows before it are stored.
        ValueError: the pair cannot be used.
    """
    if not pair.one_vocabulary:
        raise ValueError(f"pair: the models of {pair.name!r} have two vocabularies; a token router needs one")
    if settings.judge != EXACT and settings.judge not in pair.scorers:
        known = ", ".join([*pair.scorers, EXACT])
        raise ValueError(f"judge: {settings.judge!r} is no scorer of the pair; use one of {known}")
    fingerprint = pair.engines[Role.DRAFT].vocabulary.fingerprint
    file.parent.mkdir(parents=True, exist_ok=True)
    out = Lines(file)
    have = {row["question"] for row in read_lines(file)}
    missing = [q for q in questions if q.id not in have]
    done = len(questions) - len(missing)
    progress("answers", done, len(questions))

    async def one(question: Question) -> None:
        nonlocal done
        answer = Answer()
        await generate(pair, answer, question.question, options=options, question_id=question.id)
        row: dict[str, Any] = {"question": question.id, "cut": True}
        if answer.whole:
            follower = Follower(answer.ids, settings)
            trace = await generate(pair, follower, question.question, options=options, question_id=question.id)
            columns = [list(column) for column in zip(*follower.found, strict=True)] or [[], [], []]
            row = asdict(Divergence(question.id, fingerprint, trace.prompts["draft"], answer.ids, *columns))
        out.append(json.dumps(row))
        done += 1
        progress("answers", done, len(questions))

    with out:
        await each(missing, one, settings.concurrency)
    return done


def label_recipe(path: Path, folder: Path, shard: str, limit: int | None, progress: Progress) -> int:
    """Labels what a recipe asks for; a shard (as 2/8) writes a file of its own in `folder`. Returns how many answers.

    Raises:
        ValueError: something in the recipe, the models, the questions or the folder cannot be used.
    """
    recipe = load_divergence_recipe(path)
    config, (part, parts) = recipe.config, shard_of(shard)
    settings = Settings(config.judge, config.unit, config.unit_tokens, config.concurrency)
    options = pair_options(config.pair, config.seed, config.task, sampling=config.sampling, budget=config.budget)
    questions = tasks.load(config.task, config.split, recipe.base, limit or config.limit)[part::parts]
    made_with = {**config.model_dump(mode="json", exclude={"limit", "concurrency"}), "parts": parts}
    claim(folder, made_with, lock=f".{part + 1}.lock")
    scorers = {name: s for name, s in config.pair.scorers.items() if name == config.judge}

    async def run() -> int:
        pair = Pair.load(config.pair.model_copy(update={"scorers": scorers}), recipe.pair_base)
        try:
            return await label(pair, questions, options, settings, folder / f"{part + 1}-of-{parts}.jsonl", progress)
        finally:
            await pair.close()

    return asyncio.run(run())


class Answer:
    """A router by which the target answers; keeps its ids."""

    name = "answer"

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.whole = False

    async def __call__(self, gen: Generation) -> None:
        while not gen.finished:
            last = await gen.write("target")
            self.whole = last.ended_by is END_OF_TEXT
        self.ids = list(gen.view("target"))


def read(folder: str | Path) -> Iterator[tuple[str, Divergence]]:
    """The rows of a file, or of all files of a folder, each with where it stands.

    Raises:
        ValueError: there are none, a shard is missing, or a line is no row.
    """
    path = Path(folder)
    files = sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
    if not any(file.is_file() for file in files):
        raise ValueError(f"data: {path} holds no divergences; make them with scripts/label_divergences.py")
    _check_whole(path, [file.name for file in files])
    names = {f.name for f in fields(Divergence)}
    for file in files:
        for n, row in enumerate(read_lines(file, "row"), 1):
            where = f"{file}: line {n}"
            if isinstance(row, Mapping) and row.get("cut"):
                continue
            try:
                found = Divergence(**{k: v for k, v in row.items() if k in names})
                check(found)
            except (TypeError, AttributeError, ValueError) as error:
                raise ValueError(f"{where}: it is no divergence ({error}); label again") from None
            yield where, found


def _check_whole(folder: Path, names: Sequence[str]) -> None:
    """Refuses a folder in which shards are missing."""
    shards = [tuple(map(int, found.groups())) for name in names if (found := SHARD.fullmatch(name))]
    parts = max((of for _, of in shards), default=0)
    if missing := sorted(set(range(1, parts + 1)) - {n for n, _ in shards}):
        raise ValueError(
            f"data: {folder} holds no {missing[0]}-of-{parts}.jsonl; label that shard too (--shard "
            f"{missing[0]}/{parts}), or give a single file"
        )


def check(row: Divergence) -> None:
    """Refuses a row that cannot be one.

    Raises:
        ValueError: the field that is wrong and its value.
    """
    if not row.prompt_ids or not row.answer_ids:
        raise ValueError("prompt_ids: it is empty, or answer_ids is")
    if not len(row.at) == len(row.draft_ids) == len(row.same):
        raise ValueError(f"at: {len(row.at)} indices for {len(row.draft_ids)} tokens and {len(row.same)} scores")
    if (least := min(*row.prompt_ids, *row.answer_ids, *row.draft_ids)) < 0:
        raise ValueError(f"ids: {least} is no token id")
    if row.at != sorted(set(row.at)) or (row.at and not 0 <= row.at[0] <= row.at[-1] < len(row.answer_ids)):
        raise ValueError(f"at: {row.at} are no ascending indices of {len(row.answer_ids)} tokens")
