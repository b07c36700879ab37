"""Multi-step word problems in five levels, with splits that share no question.

A problem is a short story around one running quantity (a bill, a stock, a distance, ...): a start and a list of events,
each worth one or two operations. The level fixes how many operations there are and how large the numbers become.
Which split a problem belongs to is decided by a hash of its family and its operations, so the same chain of numbers
never turns up in two splits, whatever names and goods the story uses.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice

from baton.nano.families import DAYS, FAMILIES, HELD_OUT, MONTHS, NAMES, SOLIDS, TRAINED, Event, Family

SPLITS = ("train", "dev", "calibration", "test", "ood")
SIZES = {"train": 20_000, "dev": 1_000, "calibration": 1_000, "test": 2_000, "ood": 500}
LEVELS = (1, 2, 3, 4, 5)
OOD_LEVEL = 6


@dataclass(frozen=True)
class Operation:
    """One line of arithmetic: `left symbol right = result`, and what the result is called in the story."""

    left: str
    symbol: str
    right: str
    result: str
    what: str
    unit: str

    @property
    def expression(self) -> str:
        return f"{self.left} {self.symbol} {self.right}"


@dataclass(frozen=True)
class Problem:
    """A question with its answer and the operations that lead to it.

    `level` is 1 to 5, and 6 in the out-of-distribution split. `answer` is the exact decimal string ("119" or "24.5").
    """

    id: str
    family: str
    level: int
    split: str
    question: str
    answer: str
    operations: tuple[Operation, ...]


@dataclass(frozen=True)
class Scale:
    """The sizes of the numbers of a level; all ranges are inclusive.

    `wide` is how often a product has two factors of two digits (from the ranges in `factors`), `halves` how often one
    of the factors ends in `.5`.
    """

    operations: tuple[int, int]
    count: tuple[int, int]
    rate: tuple[int, int]
    term: tuple[int, int]
    cap: int
    multiply_below: int
    divide_below: int
    wide: float = 0.0
    factors: tuple[tuple[int, int], tuple[int, int]] = ((11, 19), (11, 19))
    halves: float = 0.1


SCALES = {
    1: Scale((1, 2), (2, 6), (11, 49), (11, 69), 400, 60, 200, halves=0.0),
    2: Scale((2, 2), (2, 9), (21, 199), (30, 299), 2_000, 200, 900, 0.35, ((11, 29), (12, 49))),
    3: Scale((3, 3), (3, 9), (101, 499), (100, 999), 4_000, 600, 2_000, 0.6, ((11, 59), (12, 79))),
    4: Scale((4, 4), (3, 9), (101, 699), (200, 3_999), 8_000, 1_500, 4_000, 0.75, ((12, 79), (21, 99))),
    5: Scale((5, 6), (3, 9), (101, 899), (1_000, 6_999), 9_900, 2_500, 9_999, 0.8, ((21, 99), (21, 99))),
    OOD_LEVEL: Scale((7, 7), (3, 9), (201, 999), (2_000, 9_999), 60_000, 5_000, 9_999, 0.8, ((21, 99), (21, 99))),
}


def number(value: float) -> str:
    """Exact text of a whole or half number."""
    return str(int(value)) if value == int(value) else f"{value:.1f}"


@dataclass
class Story:
    """A problem under construction: the sentences told, the operations they ask for, and the running quantity."""

    rng: random.Random
    family: Family
    scale: Scale
    total: float = 0
    sentences: list[str] = field(default_factory=list)
    operations: list[Operation] = field(default_factory=list)

    def __post_init__(self) -> None:
        rng = self.rng
        goods, more = rng.sample(self.family.goods, 2) if len(self.family.goods) > 1 else self.family.goods * 2
        self.words = {"name": rng.choice(NAMES), "goods": goods, "more": more}
        self.solids = rng.sample(SOLIDS, len(SOLIDS))
        self.calendar = iter(DAYS if rng.random() < 0.7 and self.scale.operations[1] < 7 else MONTHS)
        self.used: set[str] = set()

    def compute(self, left: float, symbol: str, right: float, what: str) -> float:
        result = {"+": left + right, "-": left - right, "*": left * right, "/": left / right if right else 0}[symbol]
        unit = self.family.unit.format(**self.words)
        self.operations.append(
            Operation(number(left), symbol, number(right), number(result), what.format(**self.words), unit)
        )
        return result

    def tell(self, event: Event, **values: float) -> None:
        self.used.add(event.sentence)
        self.sentences.append(event.sentence.format(**self.words, **{k: number(v) for k, v in values.items()}))

    def groups(self, event: Event) -> tuple[float, float]:
        """A count and a rate; a wide count has a two-digit rate and a half a small number, to stay learnable."""
        rng, scale = self.rng, self.scale
        if self.family.halves and rng.random() < scale.halves:
            if "hours" in event.sentence:
                return rng.randint(1, 6) + 0.5, 2 * rng.randint(15, 50)
            return rng.randint(*scale.count), rng.randint(3, 30) + 0.5
        if rng.random() < scale.wide:
            return rng.randint(*scale.factors[0]), rng.randint(*scale.factors[1])
        return rng.randint(*scale.count), rng.randint(*scale.rate)

    def start(self, kind: str) -> None:
        rng, scale = self.rng, self.scale
        event = rng.choice(self.family.starts[kind])
        self.words |= {"old": self.solids[0]}
        if kind == "given":
            self.total = rng.randint(scale.term[0], max(scale.term[0] + 40, scale.term[1] // 2))
            self.tell(event, n=self.total)
        elif kind == "product":
            k, m = self.groups(event)
            self.tell(event, k=k, m=m)
            self.total = self.compute(k, "*", m, event.what)
        elif kind == "ratio":
            k = rng.randint(2, 9)
            n = k * rng.randint(max(11, scale.rate[0] // 2), max(30, scale.divide_below // 10))
            self.tell(event, k=k, n=n)
            self.total = self.compute(n, "/", k, event.what)
        else:
            b, a = sorted((rng.randint(*scale.rate), rng.randint(*scale.rate)))
            self.tell(event, a=a, b=b)
            half = self.compute(a, "+", b, "the sum of length and width")
            self.total = self.compute(half, "*", 2, event.what)

    def happen(self, kind: str) -> None:
        rng, scale = self.rng, self.scale
        known = self.family.events[kind]
        event = rng.choice([e for e in known if e.sentence not in self.used] or known)
        self.words["day"] = next(self.calendar) if "{day}" in event.sentence else ""
        self.words["new"] = self.solids[len(self.sentences)]
        if kind in ("gain", "lose"):
            most = scale.term[1] if kind == "gain" else min(scale.term[1], int(self.total) - 5)
            n = rng.randint(min(scale.term[0], most), most)
            self.tell(event, n=n)
            self.total = self.compute(self.total, "+" if kind == "gain" else "-", n, event.what)
        elif kind in ("gain_groups", "lose_groups"):
            k, m = self.groups(event)
            while kind == "lose_groups" and k * m >= self.total:
                k, m = rng.randint(2, 4), rng.randint(2, max(2, int(self.total) // 5))
            self.tell(event, k=k, m=m)
            side = self.compute(k, "*", m, event.side)
            self.total = self.compute(self.total, "+" if kind == "gain_groups" else "-", side, event.what)
        elif kind == "scale":
            k = rng.randint(2, max(2, min(9, scale.cap // int(self.total))))
            self.tell(event, k=k)
            self.total = self.compute(self.total, "*", k, event.what)
        else:
            k = rng.choice(self.divisors())
            self.tell(event, k=k)
            self.total = self.compute(self.total, "/", k, event.what)
        self.words["old"] = self.words["new"]

    def divisors(self) -> list[int]:
        return [k for k in range(2, 10) if self.total % k == 0 and self.total / k >= 5]

    def possible(self, room: int) -> list[str]:
        """Kinds of events that fit the operations still wanted and the sizes of the level."""
        scale, total = self.scale, self.total
        told = {kind for kind, events in self.family.events.items() for e in events if e.sentence in self.used}
        kinds = []
        if total + scale.term[1] <= scale.cap * 1.2:
            kinds.append("gain")
        if total >= scale.term[0] + 10:
            kinds += ["lose"] * 2
        if room >= 2:
            kinds += ["gain_groups"] * 2 if total < scale.cap else []
            kinds += ["lose_groups"] if total > 40 else []
        if "scale" not in told and total < scale.multiply_below and total == int(total):
            kinds.append("scale")
        if "split" not in told and total < scale.divide_below and total == int(total) and self.divisors():
            kinds += ["split"] * 2
        return kinds or ["gain"]


def _tell(rng: random.Random, family: Family, level: int) -> tuple[str, tuple[Operation, ...]]:
    scale = SCALES[level]
    story = Story(rng, family, scale)
    wanted = rng.randint(*scale.operations)
    starts = [kind for kind in family.starts if wanted > 1 or kind != "perimeter"]
    story.start(rng.choice(starts))
    while len(story.operations) < wanted:
        story.happen(rng.choice(story.possible(wanted - len(story.operations))))
    asked = story.operations[-1].what
    closing = rng.choice(("What is {}?", "Find {}.", "Compute {}.")).format(asked)
    return " ".join([*story.sentences, closing]), tuple(story.operations)


def split_of(family: str, operations: tuple[Operation, ...]) -> str:
    """The split that a chain of operations belongs to: 75 % train, 5 % dev, 10 % calibration, 10 % test."""
    content = family + "|" + ";".join(f"{o.left}{o.symbol}{o.right}" for o in operations)
    bucket = int.from_bytes(hashlib.blake2b(content.encode(), digest_size=4).digest()) % 100
    return "test" if bucket < 10 else "calibration" if bucket < 20 else "dev" if bucket < 25 else "train"


def draw(rng: random.Random, split: str, family: str, level: int) -> tuple[str, tuple[Operation, ...]]:
    """A question and its operations, drawn again until they fall into `split`."""
    while True:
        question, operations = _tell(rng, FAMILIES[family], level)
        if split == "ood" or split_of(family, operations) == split:
            return question, operations


def stream(split: str, seed: int = 0) -> Iterator[Problem]:
    """Problems of a split without end, no question twice, levels and families interleaved, the same on every call."""
    seen: set[str] = set()
    index = 0
    while True:
        if split == "ood":
            level = OOD_LEVEL
            family = HELD_OUT if index % 2 == 0 else TRAINED[index // 2 % len(TRAINED)]
        else:
            level = LEVELS[index % len(LEVELS)]
            family = TRAINED[index // len(LEVELS) % len(TRAINED)]
        rng = random.Random(f"{split}/{seed}/{index}")
        question, operations = draw(rng, split, family, level)
        while question in seen:
            question, operations = draw(rng, split, family, level)
        seen.add(question)
        name = f"{split}-{index:05d}" if seed == 0 else f"{split}-s{seed}-{index:05d}"
        yield Problem(name, family, level, split, question, operations[-1].result, operations)
        index += 1


def load(split: str, limit: int | None = None, seed: int = 0) -> list[Problem]:
    """The first `limit` problems of a split, by default as many as `SIZES` names.

    Levels alternate 1, 2, 3, 4, 5, so that every prefix is balanced; the out-of-distribution split has one level, 6,
    and alternates between the held-out family and the others. Another `seed` gives other problems of the same split.
    Raises ValueError for an unknown split or a negative limit.
    """
    if split not in SPLITS:
        raise ValueError(f"split: {split!r} is unknown; use one of {', '.join(SPLITS)}")
    if limit is not None and limit < 0:
        raise ValueError(f"limit: {limit} is negative; give a number of problems or None for the whole split")
    problems = stream(split, seed)
    return list(islice(problems, SIZES[split] if limit is None else limit))
