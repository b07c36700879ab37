"""What ends a segment, and the matcher that decides it while tokens arrive.

A text boundary sees text only: for any split of a text into tokens it ends at the same character. A token is never
cut, so a segment ends at the first token edge at or after that character. Offsets are characters from the start of
the new segment; text before it (the context) can take part in a match, but a match must end inside the segment.
"""

from __future__ import annotations

import math
import operator
import re
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property, lru_cache
from typing import Any, NamedTuple, Protocol

from baton.scanner import SENTENCE_BEGUN, Literals, LiteralScanner, Scanner, SentenceScanner, ShiftScanner, TokenText
from baton.vocabulary import THINK_END, Vocabulary, unfinished


class Feature(StrEnum):
    """A number an engine can report for each token, under the model that writes it."""

    ENTROPY = "entropy"
    """Entropy of the next-token distribution, nats."""
    MARGIN = "margin"
    """Probability of the most likely token minus that of the second."""
    TOP_PROB = "top_prob"
    """Probability of the most likely token."""


ENTROPY, MARGIN, TOP_PROB = Feature.ENTROPY, Feature.MARGIN, Feature.TOP_PROB

_COMPARE: dict[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}


class Boundary(ABC):
    """What ends a segment. Immutable and hashable; `name` is stable and is what a trace records."""

    name: str

    def stop_ids(self, vocabulary: Vocabulary) -> frozenset[int]:
        """Ids at which an engine must stop and ask: no match begins outside a token of this set.

        A superset of the ids at which the boundary ends; empty for boundaries that do not depend on the text.
        """
        return frozenset()


class TextBoundary(Boundary):
    """A boundary that is decided by the text alone."""

    @abstractmethod
    def scanner(self, context: str) -> Scanner:
        """A scanner for a segment that follows `context` (its last 64 characters suffice for short patterns)."""

    def scan(self, text: str, begin: int) -> Scanner:
        """A scanner that has read a whole text from `begin` on, as a segment that begins there."""
        scanner = self.scanner(text[max(0, begin - 64) : begin])
        scanner.feed(text[begin:])
        scanner.close()
        return scanner

    @abstractmethod
    def stop_pattern(self) -> re.Pattern[bytes]:
        """Found in the bytes of each token that holds a match, or ends with the beginning of one."""

    def stop_ids(self, vocabulary: Vocabulary) -> frozenset[int]:
        return _stop_ids(self, vocabulary)


@lru_cache(maxsize=256)
def _stop_ids(boundary: TextBoundary, vocabulary: Vocabulary) -> frozenset[int]:
    search = boundary.stop_pattern().search
    return frozenset(i for i, token in enumerate(vocabulary.tokens) if search(token))


@dataclass(frozen=True)
class Delimiter(TextBoundary):
    """Ends after `text`. Where `text` repeats one character, a longer run of it is one boundary.

    Raises:
        ValueError: `text` is empty.
    """

    text: str
    name: str = "delimiter"

    def __post_init__(self) -> None:
        if not self.text:
            raise ValueError("delimiter.text: '' is empty; give the text that ends a segment, such as '\\n\\n'")

    def scanner(self, context: str) -> LiteralScanner:
        return LiteralScanner(self._literals, context)

    def stop_pattern(self) -> re.Pattern[bytes]:
        return self._literals.begun

    @cached_property
    def _literals(self) -> Literals:
        return Literals.of_delimiter(self.text)


@dataclass(frozen=True)
class Cues(TextBoundary):
    """Ends after a discourse cue: a whole word or phrase, case-sensitive, the leftmost and then the longest.

    "Wait," beats "Wait", "double-check" beats "check", and "know" or "now's" never fire "now". A cue that ends in a
    letter is decided by the character after it. Chinese and Japanese put no space between words, so next to their
    characters a cue needs no word edge: "因此" fires in "我们因此得到". Blanks around a cue are dropped.

    Raises:
        ValueError: no cues, or an empty one.
    """

    words: Sequence[str]
    name: str = "cues"

    def __post_init__(self) -> None:
        if isinstance(self.words, str):
            raise ValueError(f"cues.words: {self.words!r} is one string; give a list of cues")
        words = tuple(dict.fromkeys(word.strip() for word in self.words))
        if not words:
            raise ValueError("cues.words: [] has no cue; give at least one, or use no Cues boundary")
        if not all(words):
            raise ValueError(f"cues.words: {list(self.words)!r} has an empty cue; remove it")
        object.__setattr__(self, "words", words)

    def scanner(self, context: str) -> LiteralScanner:
        return LiteralScanner(self._literals, context)

    def stop_pattern(self) -> re.Pattern[bytes]:
        return self._literals.begun

    def stands_in(self, text: str) -> bool:
        """Whether one of the cues stands in a whole text."""
        return self._literals.whole.search(text) is not None

    @cached_property
    def _literals(self) -> Literals:
        return Literals.of_cues(self.words)


@dataclass(frozen=True)
class SentenceEnd(TextBoundary):
    """Ends after a sentence: after its terminator and the quotes and brackets that close with it.

    - `.` `!` `?` `…`, runs of them ("?!", "...") and closers `) ] } " ' ” ’ *` end a sentence where white space or the
      text's end follows. So decimals, versions and file names do not ("3.14", "v1.2", "a.py").
    - `。` `！` `？` `｡` need no white space after them (one character is awaited, as a closer may follow). After the
      others a Chinese or Japanese character does as well as white space ("x = 5.所以"), except after dots that are a
      pause ("嗯……我想"). Full-width closers (`」` `）` `》` ...) close too, and `．` is a dot ("３．１４").
    - A blank line ends one too, after the two newlines, if something other than white space came since the last end.

    Where a blank or such a character follows on the same line, these do not end a sentence:

    - a factorial: `!` after a digit, `)` or a word of one letter ("n! ways", "(n-1)! ways");
    - a list number: up to three digits and a dot at the start of a line, after any indent or Markdown mark ("3. Add");
    - an abbreviation: e.g. i.e. cf. vs. Mr. Mrs. Ms. Dr. Prof. St. Fig. Eq. Eqs. approx. resp. Sec. Thm.
    """

    name: str = "sentence"

    def scanner(self, context: str) -> Scanner:
        return SentenceScanner(context)

    def stop_pattern(self) -> re.Pattern[bytes]:
        return SENTENCE_BEGUN


class Encoder(Protocol):
    """Says how alike two texts are. Pure: the same texts, the same number."""

    name: str

    def likeness(self, one: str, other: str) -> tuple[float, int]:
        """From -1 to 1, which equal texts have, and the tokens that were read for it. Called while tokens arrive, in
        the thread that writes them."""
        ...


@dataclass(frozen=True)
class Shift(TextBoundary):
    """Ends after a sentence (`SentenceEnd`) that is less like the one before it than `threshold`.

    That a sentence turns to something else is known when it stands: it is kept, and what follows is another segment.
    The sentence before may stand before the segment, of which 256 characters are seen; an answer's first sentence ends
    nothing.
    """

    encoder: Encoder
    threshold: float

    @property
    def name(self) -> str:  # type: ignore[override]
        return self.encoder.name

    def scanner(self, context: str) -> ShiftScanner:
        return ShiftScanner(context, self._turns)

    def stop_pattern(self) -> re.Pattern[bytes]:
        return SENTENCE_BEGUN

    def _turns(self, before: str, sentence: str) -> tuple[bool, int]:
        likeness, tokens = self.encoder.likeness(before, sentence)
        return likeness < self.threshold, tokens


@dataclass(frozen=True)
class Cap(Boundary):
    """Ends after `tokens` kept tokens.

    Raises:
        ValueError: fewer than one token.
    """

    tokens: int
    name: str = "cap"

    def __post_init__(self) -> None:
        _check_cap("cap.tokens", self.tokens)


@dataclass(frozen=True)
class When(Boundary):
    """Ends at the first token whose feature crosses a threshold; `keep=False` leaves that token out, as overshoot.

    `after` tokens of the segment pass before it can fire, and only its first `within` tokens can fire (all if None).
    Entropy in nats, the others are probabilities. The name is the feature's unless given.

    Raises:
        ValueError: an unknown feature or operator, a threshold that is not a number, a negative `after`, or a `within`
            that leaves no token to fire at.
    """

    feature: Feature
    op: str
    threshold: float
    keep: bool = True
    after: int = 0
    within: int | None = None
    name: str = field(default="", kw_only=True)

    def __post_init__(self) -> None:
        if self.feature not in list(Feature):
            raise ValueError(f"when.feature: {self.feature!r} is unknown; use one of {', '.join(Feature)}")
        if self.op not in _COMPARE:
            raise ValueError(f"when.op: {self.op!r} is unknown; use one of {' '.join(_COMPARE)}")
        if self.threshold != self.threshold:
            raise ValueError("when.threshold: nan never fires; give a number")
        if self.after < 0:
            raise ValueError(f"when.after: {self.after} is negative; use 0 or more tokens")
        if self.within is not None and self.within <= self.after:
            raise ValueError(f"when.within: {self.within} tokens all pass by when.after ({self.after}); use more")
        object.__setattr__(self, "feature", Feature(self.feature))
        object.__setattr__(self, "name", self.name or self.feature.value)

    def fires(self, token: int, seen: Seen) -> bool:
        """Whether it fires at the segment's token number `token` (from 1), of which `seen` was read.

        Raises:
            ValueError: the feature was not read.
        """
        if self.feature not in seen.features:
            raise ValueError(f"features: no {self.feature.value} for this token; let the engine read it for {self}")
        in_reach = self.after < token and (self.within is None or token <= self.within)
        return in_reach and _COMPARE[self.op](seen.features[self.feature], self.threshold)


class Seen(NamedTuple):
    """What an engine read of one token, as far as it was asked to (`engines.base.Read`)."""

    token: int
    features: Mapping[Feature, float] = {}
    top: Sequence[tuple[int, float]] = ()
    """Likeliest (id, log-probability in nats) of the distribution it was drawn from, likeliest first."""
    hidden: Any = None
    """State `[width]` that predicted it."""


class Reader(Protocol):
    """A trained head that gives each token a number as it is written. Pure: the same token, the same number."""

    name: str
    top: int
    """Likeliest tokens that it looks at."""
    reads_hidden: bool
    """Whether it looks at hidden states, which few engines give."""

    @property
    def role(self) -> str | None:
        """Whose tokens it reads; None where it reads anybody's."""

    def read(self, seen: Seen) -> float:
        """The number of a token.

        Raises:
            ValueError: the engine gave other things than it reads.
        """
        ...


@dataclass(frozen=True)
class Learned(Boundary):
    """Ends at the first token whose number by `reader` is `threshold` or more (below it, if not `above`).

    `keep=False` leaves that token out, as overshoot; `after` tokens of the segment pass before it can fire.
    """

    reader: Reader
    threshold: float
    above: bool = True
    keep: bool = True
    after: int = 0

    @property
    def name(self) -> str:  # type: ignore[override]
        return self.reader.name

    def fires(self, token: int, seen: Seen) -> bool:
        """As `When.fires`."""
        return token > self.after and (self.reader.read(seen) >= self.threshold) is self.above


@dataclass(frozen=True)
class End(Boundary):
    """What ends every segment without being asked for."""

    name: str


STEP = Delimiter("\n\n", name="step")
SENTENCE = SentenceEnd()
END_OF_TEXT = End("end_of_text")
END_OF_THINKING = End("end_of_thinking")
BUDGET = End("budget")
CANCELLED = End("cancelled")
FAILED = End("failed")

SPLIT = 3
"""Tokens that a cap waits at most for a character to be complete, where it must be."""

_THINK_END = Delimiter(THINK_END, name=END_OF_THINKING.name)


def _check_cap(name: str, tokens: int) -> None:
    if tokens < 1:
        raise ValueError(f"{name}: {tokens} leaves nothing to write; use 1 or more tokens")


class _Ending(NamedTuple):
    """A decided end; the smallest wins."""

    byte: int
    kept: int
    order: int
    boundary: Boundary
    cue: str | None = None


class SegmentMatcher:
    """Decides, token by token, where a segment ends. The earliest end wins, then the order of `until`.

    End of text, end of thinking (while `thinking`; as its token or written out) and the cap end every segment. An
    engine calls `push` for each token until it returns True; it may run ahead, and what it wrote beyond the end is
    overshoot. One thread pushes and closes; another may read `settled_tokens` meanwhile.

    `cap` is in tokens, and `cap_reason` is what a segment that reaches it was ended by; a smaller `Cap` of `until`
    takes its place. Matches still undecided at the cap do not count. With `whole_characters` (for a pair with two
    vocabularies) a cap waits up to three tokens for a character to be complete, and so does a `When`.

    Raises:
        ValueError: `cap` is less than one token.
    """

    def __init__(
        self,
        until: Sequence[Boundary],
        vocabulary: Vocabulary,
        context: str = "",
        thinking: bool = True,
        cap: int | None = None,
        cap_reason: Boundary = BUDGET,
        whole_characters: bool = False,
    ) -> None:
        if cap is not None:
            _check_cap("cap", cap)
        self.vocabulary = vocabulary
        self.ids: list[int] = []
        """Every token pushed."""
        self.ended_by: Boundary | None = None
        self.detail: str | None = None
        """The cue that fired, where a cue did."""
        caps: list[tuple[float, Boundary]] = [(math.inf if cap is None else cap, cap_reason)]
        caps += [(boundary.tokens, boundary) for boundary in until if isinstance(boundary, Cap)]
        self._cap, self._cap_reason = min(caps, key=lambda c: c[0])
        self._whole_characters = whole_characters
        texts = [(n, boundary) for n, boundary in enumerate(until) if isinstance(boundary, TextBoundary)]
        self._whens = [(n, boundary) for n, boundary in enumerate(until) if isinstance(boundary, (When, Learned))]
        self._scanners = [(n, boundary, boundary.scanner(context)) for n, boundary in texts]
        self._think_end = _THINK_END.scanner(context) if thinking else None
        self._ends = _ends(vocabulary, thinking)
        watched = tuple(boundary for _, boundary in texts) + ((_THINK_END,) if thinking else ())
        self.stop_ids = _watched_ids(watched, vocabulary, frozenset(self._ends))
        """Ids at which an engine that cannot be asked for each token must stop. After one it goes on one token at a
        time while `open`, else to the next such id."""
        self._text = TokenText(self.ids, vocabulary)
        self._read = 0  # offset to which the scanners have read: behind the text where "</think>" may have begun
        self._over = False  # the text ended
        self._late: list[tuple[int, When | Learned]] = []  # fired inside a character
        self._endings: list[_Ending] = []  # decided, but an undecided match may end earlier
        self._kept = 0
        self._open = bool(self._undecided())
        self._guard = threading.Lock()

    def push(
        self,
        token_id: int,
        features: Mapping[Feature, float] | None = None,
        top: Sequence[tuple[int, float]] = (),
        hidden: Any = None,
    ) -> bool:
        """One more token, and what was read of it; True once the segment has ended, when the engine must stop.

        Raises:
            ValueError: what a `When` or `Learned` of `until` reads is not there.
        """
        with self._guard:
            return self._push(Seen(token_id, features or {}, top, hidden))

    def _push(self, seen: Seen) -> bool:
        token_id = seen.token
        self.ids.append(token_id)
        if self.ended_by is not None:
            return True
        if self._late and not self._splits(len(self.ids)):
            kept, byte = len(self.ids), self._text.byte_after(len(self.ids))
            self._endings += [_Ending(byte, kept, order, when) for order, when in self._late]
            self._late.clear()
        if self._whens:
            self._compare(seen)
        if self._open or token_id in self.stop_ids:
            self._scan(self._ends.get(token_id))
        if self._endings:
            self._settle()
        if self.ended_by is None and len(self.ids) >= self._cap:
            self._reach_cap()
        return self.ended_by is not None

    def close(self, reason: Boundary = CANCELLED) -> None:
        """The engine stopped by itself: the segment ends here by `reason`, unless an end was decided before.

        With END_OF_TEXT or END_OF_THINKING (a server that does not return the token) the text is over, which decides
        what was undecided.
        """
        if self.ended_by is None:
            self._scan(over=reason in (END_OF_TEXT, END_OF_THINKING))
            self._finish(reason)

    @property
    def open(self) -> bool:
        """Whether the next token may decide a match that has begun (also one that began in the context)."""
        return self._open and self.ended_by is None

    @property
    def kept(self) -> int:
        """Tokens of the segment; while it goes on, all of them."""
        return len(self.ids) if self.ended_by is None else self._kept

    @property
    def cap(self) -> float:
        """Tokens at which the segment ends if nothing else ends it; infinite where nothing caps it."""
        return self._cap

    @property
    def overshoot(self) -> int:
        """Tokens pushed that are not of the segment."""
        return len(self.ids) - self.kept

    @property
    def settled_tokens(self) -> int:
        """First tokens of the segment that can no longer be taken back; never decreases."""
        with self._guard:
            return self._settled_tokens()

    def _settled_tokens(self) -> int:
        if self.ended_by is not None or not self._open:
            return self.kept
        first_end = min([scanner.settled for scanner in self._undecided()], default=self._text.end) + 1
        kept = len(self.ids) if first_end > self._text.end else self._text.tokens_through(self._text.byte(first_end))
        return min([kept, *(ending.kept for ending in self._endings)])

    @property
    def helper_tokens(self) -> dict[str, int]:
        """Tokens that encoders have read to decide, by the boundary's name."""
        return {b.name: s.tokens for _, b, s in self._scanners if isinstance(s, ShiftScanner)}

    @property
    def text(self) -> str:
        """Text of the kept tokens."""
        return self.vocabulary.text_of(self.ids[: self.kept])

    def _compare(self, seen: Seen) -> None:
        for order, when in self._whens:
            if when.fires(len(self.ids), seen):
                kept = len(self.ids) - (not when.keep)
                if self._splits(kept):
                    self._late.append((order, when))
                else:
                    self._endings.append(_Ending(self._text.byte_after(kept), kept, order, when))

    def _splits(self, kept: int) -> bool:
        """Whether an end after `kept` tokens would split a character that must stay whole."""
        first = max(0, kept - 1 - SPLIT)
        return self._whole_characters and unfinished(self.vocabulary.bytes_of(self.ids[first:kept])) > 0

    def _scan(self, end: Boundary | None = None, over: bool = False) -> None:
        """The scanners read what was pushed since the last time; the last token is an `end`, or text."""
        self._over = over or end is not None
        readable = self._scan_for_end_of_thinking(self._text.read(final=self._over, control=end is not None))
        piece = self._text.between(self._read, readable)
        self._read = readable
        for order, boundary, scanner in self._scanners:
            self._advance(scanner, piece, order, boundary)
        if end is not None:
            self._endings.append(_Ending(self._text.bytes, self._text.tokens, -1, end))
        self._open = bool(self._undecided()) or self._text.inside_character
        if not self._open:
            self._text.forget()

    def _scan_for_end_of_thinking(self, text: str) -> int:
        """Offset to which the other scanners may read: "</think>", even if only begun, is no text to them."""
        scanner = self._think_end
        if scanner is None:
            return self._text.end
        self._advance(scanner, text, -1, END_OF_THINKING)
        if scanner.found is not None:
            self._over = True
            return max(0, scanner.found - len(THINK_END))
        return self._text.end if scanner.undecided is None else max(0, scanner.undecided)

    def _advance(self, scanner: Scanner, text: str, order: int, boundary: Boundary) -> None:
        if scanner.found is not None:
            return
        scanner.feed(text)
        if self._over:
            scanner.close()
        self._add(scanner, order, boundary)

    def _add(self, scanner: Scanner, order: int, boundary: Boundary) -> None:
        if scanner.found is not None:
            byte = self._text.byte(scanner.found)
            self._endings.append(_Ending(byte, self._text.tokens_through(byte), order, boundary, scanner.cue))

    def _undecided(self) -> list[Scanner]:
        """Scanners that later text may make end at what has been pushed."""
        behind = self._read < self._text.end
        scanners = [s for _, _, s in self._scanners if s.found is None and (s.open or behind)]
        return [*scanners, self._think_end] if self._think_end and self._think_end.open else scanners

    def _settle(self) -> None:
        first = min(ending.byte for ending in self._endings)
        if self._over or all(self._text.byte(scanner.settled) >= first for scanner in self._undecided()):
            self._finish()

    def _reach_cap(self) -> None:
        if self._whole_characters and len(self.ids) < self._cap + SPLIT:
            self._scan()
            if self._text.inside_character:
                return
        self._finish(self._cap_reason)

    def _finish(self, reason: Boundary = CANCELLED) -> None:
        """The segment ends: by the earliest end that is decided, else here by `reason`."""
        here = _Ending(0, len(self.ids), 0, reason)
        ending = min(self._endings, key=lambda e: (e.byte, e.kept, e.order), default=here)
        self._kept, self.ended_by, self.detail = ending.kept, ending.boundary, ending.cue


def _ends(vocabulary: Vocabulary, thinking: bool) -> dict[int, Boundary]:
    """The ids that end a segment by their meaning."""
    ends: dict[int, Boundary] = dict.fromkeys(vocabulary.end_of_text, END_OF_TEXT)
    if thinking and vocabulary.end_of_thinking is not None:
        ends[vocabulary.end_of_thinking] = END_OF_THINKING
    return ends


@lru_cache(maxsize=256)
def _watched_ids(boundaries: tuple[TextBoundary, ...], vocabulary: Vocabulary, ends: frozenset[int]) -> frozenset[int]:
    return ends.union(*(boundary.stop_ids(vocabulary) for boundary in boundaries))
