"""Where a match first ends in a text that grows piece by piece, and which token that is.

A scanner's answer depends on the text alone, never on the pieces it was fed in: what later text could still change
stays undecided.
"""

from __future__ import annotations

import codecs
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from baton.vocabulary import Vocabulary


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
            if self._ends(candidate.end + self._origin):
                self.found, self.cue = candidate.end + self._origin, candidate.cue
                return
            self._pass(candidate.end)
        else:
            self._at = len(self._window)
        passed = max(0, self._at - self._reach)
        self._window = self._window[passed:]
        self._origin += passed
        self._at -= passed

    def _ends(self, offset: int) -> bool:
        """Whether a match that ends at this offset is the boundary."""
        return offset > 0

    def _pass(self, end: int) -> None:
        """A match ended that is not the boundary, inside the context."""
        self._at += 1


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


_CJK = (
    "\u3005-\u3007\u3040-\u30ff\u3100-\u312f\u31a0-\u31bf\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff"
    "\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff"
)
"""Characters of scripts that put no space between words: Han, kana, bopomofo."""
_LETTER = rf"[^\W{_CJK}]"
"""A letter, digit or underscore of a script that does."""
_WORDLIKE = re.compile(_LETTER)
# An apostrophe inside a word belongs to the word.
_WORD_BEGINS = rf"(?:(?<!{_LETTER})(?<!{_LETTER}['’])|(?!{_LETTER}))"
_WORD_ENDS = rf"(?!{_LETTER}|['’]{_LETTER})"


@dataclass(frozen=True)
class Literals:
    """Texts to find, compiled."""

    whole: re.Pattern[str]
    guard: re.Pattern[str]
    """What must hold where a match begins."""
    unfinished: frozenset[str]
    """Texts that a match may begin with but that do not decide it."""
    shortest: int
    longest: int
    """Characters of the longest unfinished text, or more."""
    begun: re.Pattern[bytes]
    """Found in the bytes of each token that holds a match, or ends with the beginning of one."""
    cues: bool
    """Whether a scanner tells which text matched."""

    @classmethod
    def of_delimiter(cls, text: str) -> Literals:
        """Finds `text`; a longer run of a repeated character is found once."""
        guard = f"(?<!{re.escape(text[0])})" if len(set(text)) == 1 else ""
        return cls(
            whole=re.compile(guard + re.escape(text)),
            guard=re.compile(guard),
            unfinished=frozenset(_prefixes(text)),
            shortest=len(text),
            longest=len(text),
            begun=_begun([text]),
            cues=False,
        )

    @classmethod
    def of_cues(cls, words: Sequence[str]) -> Literals:
        """Finds whole words (between CJK characters: the words wherever they stand), the leftmost, then the longest."""
        ordered = sorted(words, key=len, reverse=True)
        wordlike = [word for word in ordered if _WORDLIKE.match(word[-1])]
        whole = "|".join(re.escape(word) + (_WORD_ENDS if word in wordlike else "") for word in ordered)
        undecided = {word + after for word in wordlike for after in ("", "'", "’")}
        return cls(
            whole=re.compile(f"{_WORD_BEGINS}(?:{whole})"),
            guard=re.compile(_WORD_BEGINS),
            unfinished=frozenset(undecided.union(*map(_prefixes, ordered))),
            shortest=len(ordered[-1]),
            longest=len(ordered[0]) + 1,
            begun=_begun(words, before=rb"(?:(?<!\w)(?<!\w')|(?=\W))", after=rb"(?!\w)"),
            cues=True,
        )


class LiteralScanner(_Search):
    """Finds delimiters and cues."""

    def __init__(self, literals: Literals, context: str) -> None:
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


_TERMINATORS, _WIDE, _CLOSERS = ".!?…．", "。！？｡", ")]}\"'”’*）］｝」』】》〉〕｣＂＇"
_SENTENCE_CANDIDATE = re.compile(f"[{_TERMINATORS}{_WIDE}][{_TERMINATORS}{_WIDE}{re.escape(_CLOSERS)}]*|\n")
_STOPS = (".", "．")
_FACTORIAL = re.compile(rf"(?:\d|\)|(?<!{_LETTER})[^\W\d_{_CJK}])\Z")
_LIST_NUMBER = re.compile(r"(?:^|\n)[ \t>#*_-]*\d{1,3}\Z")
_ABBREVIATION = re.compile(
    rf"(?<!{_LETTER})(?<!\.)(?:[eE]\.g|[iI]\.e|[cC]f|vs|Mrs?|Ms|Dr|Prof|St|Fig|Eqs?|approx|resp|Sec|Thm)\Z"
)
_REACH = 64
_FOLLOWS = re.compile(rf"[\s{_CJK}]")
# A terminator that a letter or digit follows in the same token is decided: it ends nothing.
SENTENCE_BEGUN = re.compile(rb"[.!?](?![0-9A-Za-z])|\n(?:\n|\Z)|" + _begun("…．" + _WIDE).pattern)


class SentenceScanner(_Search):
    """Finds sentence ends."""

    def __init__(self, context: str, reach: int = _REACH) -> None:
        self._last = -len(context)
        """Offset of the last sentence end that was passed."""
        super().__init__(context, reach=reach, shortest=1)

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


class ShiftScanner(SentenceScanner):
    """Finds the first end of a sentence that turns away from the sentence before it.

    Args:
        context: the text before; a sentence that begins in it is read as far as it is there.
        turns: whether a sentence turns away from the one before, and how many tokens it took to tell; both are given
            without the white space around them.
    """

    def __init__(self, context: str, turns: Callable[[str, str], tuple[bool, int]]) -> None:
        self._turns = turns
        self.tokens = 0
        """That `turns` took."""
        self._before = ""
        self._rest, self._begin = context, -len(context)
        """Text since the last sentence end, and its offset."""
        super().__init__(context, reach=max(_REACH, len(context)))

    def feed(self, text: str) -> None:
        self._rest += text
        super().feed(text)

    def _ends(self, offset: int) -> bool:
        if offset <= 0 or not self._before or not (sentence := self._sentence(offset)):
            return False
        turned, tokens = self._turns(self._before, sentence)
        self.tokens += tokens
        return turned

    def _pass(self, end: int) -> None:
        super()._pass(end)
        self._before = self._sentence(self._last) or self._before
        self._rest, self._begin = self._rest[self._last - self._begin :], self._last

    def _sentence(self, end: int) -> str:
        """The sentence that ends there; empty where marks stand alone."""
        found = self._rest[: end - self._begin].strip()
        return found if any(map(str.isalnum, found)) else ""


def _ends_sentence(text: str, start: int, end: int) -> bool:
    """Whether the terminators and closers `text[start:end]` end a sentence; nothing after them means the text's end."""
    run, following = text[start:end], text[end : end + 1]
    if any(c in _WIDE for c in run) or not following or following in "\r\n":
        return True
    if not _FOLLOWS.match(following):
        return False
    before = text[max(0, start - _REACH) : start]
    terminators = "".join(c for c in run if c not in _CLOSERS)
    if not terminators.strip("!"):
        return not _FACTORIAL.search(before)
    if terminators in _STOPS:
        return not (_ABBREVIATION.search(before) or _LIST_NUMBER.search(before))
    # Dots between CJK characters are a pause.
    return following.isspace() or bool(terminators.strip(".…．"))


class TokenText:
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
