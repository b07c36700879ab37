"""What ends a segment, and the matcher that decides it while tokens arrive.

A text boundary sees text only: for any split of a text into tokens it ends at the same character. A token is never
cut, so a segment ends at the first token edge at or after that character. Offsets are characters from the start of
the new segment; text before it (the context) can take part in a match, but a match must end inside the segment.
"""

from __future__ import annotations

import codecs
import math
import operator
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property, lru_cache
from typing import NamedTuple, Protocol

from baton.vocabulary import THINK_END, Vocabulary


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


class Scanner(Protocol):
    """Searches one text, fed in pieces of any size, for the first end of a text boundary."""

    found: int | None
    """End offset of the first match, once decided; greater than 0."""
    cue: str | None
    """Which cue matched; None for boundaries that have no cues."""

    @property
    def open(self) -> bool:
        """Whether a match has begun that later text will confirm or refute."""

    @property
    def settled(self) -> int:
        """No undecided match can end at an offset at or before this."""

    def feed(self, text: str) -> None:
        """The text goes on with `text`."""

    def close(self) -> None:
        """The text ended here: end of text or end of thinking follows."""


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
        return _begun([self.text])

    @cached_property
    def _literals(self) -> _Literals:
        guard = f"(?<!{re.escape(self.text[0])})" if len(set(self.text)) == 1 else ""
        return _Literals(
            whole=re.compile(guard + re.escape(self.text)),
            guard=re.compile(guard),
            unfinished=frozenset(_prefixes(self.text)),
            shortest=len(self.text),
            longest=len(self.text),
            cues=False,
        )


_INNER = "(?<!\\w)(?<!\\w['’])"  # an apostrophe inside a word belongs to the word
_WORD_BEGINS, _WORD_ENDS = f"(?:{_INNER}|(?=\\W))", "(?!\\w|['’]\\w)"


@dataclass(frozen=True)
class Cues(TextBoundary):
    """Ends after a discourse cue: a whole word or phrase, case-sensitive, the leftmost and then the longest.

    "Wait," beats "Wait", "double-check" beats "check", and "know" or "now's" never fire "now". A cue that ends in a
    letter is decided by the character after it. Blanks around a cue are dropped.

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
        return _begun(self.words, before=rb"(?:(?<!\w)(?<!\w')|(?=\W))", after=rb"(?!\w)")

    @cached_property
    def _literals(self) -> _Literals:
        words = sorted(self.words, key=len, reverse=True)
        wordlike = [word for word in words if re.match(r"\w", word[-1])]
        whole = "|".join(re.escape(word) + (_WORD_ENDS if word in wordlike else "") for word in words)
        undecided = {word + after for word in wordlike for after in ("", "'", "’")}
        return _Literals(
            whole=re.compile(f"{_WORD_BEGINS}(?:{whole})"),
            guard=re.compile(_WORD_BEGINS),
            unfinished=frozenset(undecided.union(*map(_prefixes, words))),
            shortest=len(words[-1]),
            longest=len(words[0]) + 1,
            cues=True,
        )


_TERMINATORS, _WIDE, _CLOSERS = ".!?…", "。！？", ")]}\"'”’*"
_SENTENCE_CANDIDATE = re.compile(f"[{_TERMINATORS}{_WIDE}][{_TERMINATORS}{_WIDE}{re.escape(_CLOSERS)}]*|\n")
_FACTORIAL = re.compile(r"(?:\d|\)|(?<!\w)[^\W\d_])\Z")
_LIST_NUMBER = re.compile(r"(?:^|\n)[ \t>#*_-]*\d{1,3}\Z")
_ABBREVIATION = re.compile(
    r"(?<![\w.])(?:[eE]\.g|[iI]\.e|[cC]f|vs|Mrs?|Ms|Dr|Prof|St|Fig|Eqs?|No|approx|resp|Sec|Thm)\Z"
)
_REACH = 64


@dataclass(frozen=True)
class SentenceEnd(TextBoundary):
    """Ends after a sentence: after its terminator and the quotes and brackets that close with it.

    - `.` `!` `?` `…`, runs of them ("?!", "...") and closers `) ] } " ' ” ’ *` end a sentence where white space or the
      text's end follows. So decimals, versions and file names do not ("3.14", "v1.2", "a.py").
    - `。` `！` `？` need no white space after them (one character is awaited, as a closer may follow).
    - A blank line ends one too, after the two newlines, if something other than white space came since the last end.

    Where a blank follows on the same line, these do not end a sentence:

    - a factorial: `!` after a digit, `)` or a word of one letter ("n! ways", "(n-1)! ways");
    - a list number: up to three digits and a dot at the start of a line, after any indent or Markdown mark ("3. Add");
    - an abbreviation: e.g. i.e. cf. vs. Mr. Mrs. Ms. Dr. Prof. St. Fig. Eq. Eqs. No. approx. resp. Sec. Thm.
    """

    name: str = "sentence"

    def scanner(self, context: str) -> Scanner:
        return SentenceScanner(context)

    def stop_pattern(self) -> re.Pattern[bytes]:
        # A terminator that a letter or digit follows in the same token is decided: it ends nothing.
        wide = _begun("…" + _WIDE).pattern
        return re.compile(rb"[.!?](?![0-9A-Za-z])|\n(?:\n|\Z)|" + wide)


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

    `after` tokens of the segment pass before it can fire. Entropy in nats, the others are probabilities. The name is
    the feature's unless given.

    Raises:
        ValueError: an unknown feature or operator, a threshold that is not a number, or a negative `after`.
    """

    feature: Feature
    op: str
    threshold: float
    keep: bool = True
    after: int = 0
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
        object.__setattr__(self, "feature", Feature(self.feature))
        object.__setattr__(self, "name", self.name or self.feature.value)

    def crossed(self, value: float) -> bool:
        """Whether `value` is on the firing side of the threshold."""
        return _COMPARE[self.op](value, self.threshold)


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

_THINK_END = Delimiter(THINK_END, name=END_OF_THINKING.name)


def _check_cap(name: str, tokens: int) -> None:
    if tokens < 1:
        raise ValueError(f"{name}: {tokens} leaves nothing to write; use 1 or more tokens")


def _prefixes(word: str) -> list[str]:
    return [word[:n] for n in range(1, len(word))]


def _begun(words: Iterable[str], before: bytes = b"", after: bytes = b"") -> re.Pattern[bytes]:
    """Finds a word, or the beginning of one at the end of the bytes (which may end inside a character).

    `after` applies to words that end in an ASCII word character.
    """
    encoded = sorted({word.encode() for word in words})
    whole = [re.escape(word) + (after if re.match(rb"\w", word[-1:]) else b"") for word in encoded]
    begun = sorted({re.escape(word[:n]) for word in encoded for n in range(1, len(word))})
    unfinished = [b"(?:" + b"|".join(begun) + rb")\Z"] if begun else []
    first = b"".join(sorted({re.escape(word[:1]) for word in encoded}))
    return re.compile(b"(?=[" + first + b"])" + before + b"(?:" + b"|".join(whole + unfinished) + b")")


class _Candidate(NamedTuple):
    start: int
    end: int | None
    """None while undecided."""
    cue: str | None = None


class _Search(ABC):
    """A scanner that holds the text from its undecided match on, and `reach` characters before it."""

    def __init__(self, context: str, reach: int, shortest: int) -> None:
        self.found: int | None = None
        self.cue: str | None = None
        self.undecided: int | None = None
        """Offset at which the undecided match begins; negative where it begins in the context."""
        self._reach, self._shortest = reach, shortest
        self._window = context[-reach:]
        self._origin = -len(self._window)
        self._at = 0
        self._scan(final=False)

    @property
    def open(self) -> bool:
        return self.undecided is not None

    @property
    def settled(self) -> int:
        if self.undecided is None:
            return self._origin + len(self._window)
        return max(0, self.undecided + self._shortest - 1)

    def feed(self, text: str) -> None:
        if self.found is None and text:
            self._window += text
            self._scan(final=False)

    def close(self) -> None:
        if self.found is None:
            self._scan(final=True)

    @abstractmethod
    def _next(self, final: bool) -> _Candidate | None:
        """The first match in the window, or undecided match, that begins at or after `_at`."""

    def _scan(self, final: bool) -> None:
        self.undecided = None
        while candidate := self._next(final):
            self._at = candidate.start
            if candidate.end is None:
                self.undecided = self._origin + candidate.start
                break
            if candidate.end + self._origin > 0:
                self.found, self.cue = candidate.end + self._origin, candidate.cue
                return
            self._pass(candidate.end)
        else:
            self._at = len(self._window)
        passed = max(0, self._at - self._reach)
        self._window = self._window[passed:]
        self._origin += passed
        self._at -= passed

    def _pass(self, end: int) -> None:
        """A match ended inside the context."""
        self._at += 1


class _Literals(NamedTuple):
    whole: re.Pattern[str]
    guard: re.Pattern[str]
    """What must hold where a match begins."""
    unfinished: frozenset[str]
    """Texts that a match may begin with but that do not decide it."""
    shortest: int
    longest: int
    """Characters of the longest unfinished text, or more."""
    cues: bool
    """Whether a match is a cue to be told."""


class LiteralScanner(_Search):
    """Finds delimiters and cues."""

    def __init__(self, literals: _Literals, context: str) -> None:
        self._literals = literals
        super().__init__(context, reach=literals.longest + 2, shortest=literals.shortest)

    def _next(self, final: bool) -> _Candidate | None:
        window, literals = self._window, self._literals
        match = literals.whole.search(window, self._at)
        if not final:
            end = len(window) if match is None else match.start() + 1
            for start in range(max(self._at, len(window) - literals.longest), end):
                if window[start:] in literals.unfinished and literals.guard.match(window, start):
                    return _Candidate(start, None)
        return match and _Candidate(match.start(), match.end(), match.group() if literals.cues else None)


class SentenceScanner(_Search):
    """Finds sentence ends."""

    def __init__(self, context: str) -> None:
        self._last = -len(context)
        """Offset of the last sentence end in the context."""
        super().__init__(context, reach=_REACH, shortest=1)

    def _next(self, final: bool) -> _Candidate | None:
        window = self._window
        for match in _SENTENCE_CANDIDATE.finditer(window, self._at):
            start, end = match.span()
            blank_line = window[start] == "\n"
            if blank_line and not window[max(0, start - _REACH, self._last - self._origin) : start].strip():
                continue
            if end == len(window) and not final:
                return _Candidate(start, None)
            if blank_line and window[end : end + 1] == "\n":
                return _Candidate(start, end + 1)
            if not blank_line and _ends_sentence(window, start, end):
                return _Candidate(start, end)
        return None

    def _pass(self, end: int) -> None:
        self._at, self._last = end, end + self._origin


def _ends_sentence(text: str, start: int, end: int) -> bool:
    """Whether the terminators and closers `text[start:end]` end a sentence; nothing after them means the text's end."""
    run, following = text[start:end], text[end : end + 1]
    if following and not following.isspace():
        return any(c in _WIDE for c in run)
    if not following or following in "\r\n":
        return True
    before = text[max(0, start - _REACH) : start]
    terminators = "".join(c for c in run if c not in _CLOSERS)
    if not terminators.strip("!"):
        return not _FACTORIAL.search(before)
    return terminators != "." or not (_ABBREVIATION.search(before) or _LIST_NUMBER.search(before))


class _Text:
    """The text of a growing list of tokens, and where its characters and tokens end in bytes."""

    def __init__(self, ids: list[int], vocabulary: Vocabulary) -> None:
        self._ids, self._vocabulary = ids, vocabulary
        self._decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")  # lossless: bytes can be counted back
        self.tokens, self.bytes = 0, 0
        """Tokens read, and their bytes."""
        self.end, self._end_byte = 0, 0
        self._tail = ""

    @property
    def inside_character(self) -> bool:
        return bool(self._decoder.getstate()[0])

    def read(self, final: bool, control: bool) -> str:
        """Text of the tokens not read yet; with `control` the last one is not text."""
        ids = self._ids[self.tokens :]
        data = self._vocabulary.bytes_of(ids[:-1] if control else ids)
        text = self._decoder.decode(data, final)
        self._tail += text
        self.end += len(text)
        self._end_byte = self.bytes + len(data) - len(self._decoder.getstate()[0])
        self.tokens = len(self._ids)
        self.bytes += len(data) + (len(self._vocabulary.tokens[ids[-1]]) if control else 0)
        return text

    def between(self, start: int, stop: int) -> str:
        """Characters from offset `start` to `stop`."""
        first = self.end - len(self._tail)
        return self._tail[start - first : stop - first]

    def forget(self) -> None:
        """No offset up to here will be asked for again."""
        self._tail = ""

    def byte(self, offset: int) -> int:
        """Bytes before a character offset that has been read and not forgotten."""
        return self._end_byte - len(self.between(offset, self.end).encode("utf-8", "surrogateescape"))

    def tokens_through(self, byte: int) -> int:
        """Tokens up to the first token edge at or after `byte`, which has been read."""
        count, edge = self.tokens, self.bytes
        while count and (start := edge - len(self._vocabulary.tokens[self._ids[count - 1]])) >= byte:
            count, edge = count - 1, start
        return count

    def byte_after(self, count: int) -> int:
        """Bytes of the first `count` tokens, which may go beyond those read."""
        return self.bytes + len(self._vocabulary.bytes_of(self._ids[self.tokens : count]))


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
    overshoot. Not thread-safe; one caller at a time.

    `cap` is in tokens, and `cap_reason` is what a segment that reaches it was ended by; a smaller `Cap` of `until`
    takes its place. Matches still undecided at the cap do not count. With `whole_characters` (for a pair with two
    vocabularies) a cap waits up to three tokens for a character to be complete.

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
        self._whens = [(n, boundary) for n, boundary in enumerate(until) if isinstance(boundary, When)]
        self._scanners = [(n, boundary, boundary.scanner(context)) for n, boundary in texts]
        self._think_end = _THINK_END.scanner(context) if thinking else None
        self._ends = _ends(vocabulary, thinking)
        watched = tuple(boundary for _, boundary in texts) + ((_THINK_END,) if thinking else ())
        self.stop_ids = _watched_ids(watched, vocabulary, frozenset(self._ends))
        """Ids at which an engine that cannot be asked for each token must stop. After one it goes on one token at a
        time while `open`, else to the next such id."""
        self._text = _Text(self.ids, vocabulary)
        self._read = 0  # offset to which the scanners have read: behind the text where "</think>" may have begun
        self._over = False  # the text ended
        self._endings: list[_Ending] = []  # decided, but an undecided match may end earlier
        self._kept = 0
        self._open = bool(self._undecided())

    def push(self, token_id: int, features: Mapping[Feature, float] | None = None) -> bool:
        """One more token; True once the segment has ended, when the engine must stop.

        Raises:
            ValueError: `features` lacks one that a `When` of `until` reads.
        """
        self.ids.append(token_id)
        if self.ended_by is not None:
            return True
        if self._whens and not self._endings:
            self._compare(features or {})
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
    def overshoot(self) -> int:
        """Tokens pushed that are not of the segment."""
        return len(self.ids) - self.kept

    @property
    def settled_tokens(self) -> int:
        """First tokens of the segment that can no longer be taken back; never decreases."""
        if self.ended_by is not None or not self._open:
            return self.kept
        first_end = min([scanner.settled for scanner in self._undecided()], default=self._text.end) + 1
        kept = len(self.ids) if first_end > self._text.end else self._text.tokens_through(self._text.byte(first_end))
        return min([kept, *(ending.kept for ending in self._endings)])

    @property
    def text(self) -> str:
        """Text of the kept tokens."""
        return self.vocabulary.text_of(self.ids[: self.kept])

    def _compare(self, features: Mapping[Feature, float]) -> None:
        for order, when in self._whens:
            if when.feature not in features:
                raise ValueError(f"features: no {when.feature.value} for this token; let the engine read it for {when}")
            if len(self.ids) > when.after and when.crossed(features[when.feature]):
                kept = len(self.ids) - (not when.keep)
                self._endings.append(_Ending(self._text.byte_after(kept), kept, order, when))

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
        if self._whole_characters and len(self.ids) < self._cap + 3:
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
