"""Committed text on its way to a reader: reasoning apart from the answer, and nothing after a stop text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from baton.trace import Phase, Role, Segment
from baton.vocabulary import THINK_END, THINK_START, Vocabulary


class Part(StrEnum):
    """What a text belongs to."""

    REASONING = "reasoning_content"
    CONTENT = "content"


@dataclass(slots=True)
class Token:
    """A token of the answer and how likely it was: its text, bytes, log-probability (nats), and the likeliest ones."""

    text: str
    data: bytes
    logprob: float
    top: list[tuple[str, bytes, float]]
    at: int
    """Bytes of its part before it."""


@dataclass(slots=True)
class Piece:
    """Text that a reader gets, with its tokens where they are asked for."""

    part: Part
    writer: Role
    text: str
    tokens: list[Token] = field(default_factory=list)


def overlap(text: str, mark: str) -> int:
    """How many characters at the end of `text` may be the beginning of `mark`."""
    return next((n for n in range(min(len(mark) - 1, len(text)), 0, -1) if text.endswith(mark[:n])), 0)


class Marks:
    """Divides a chat's text at the marks of the thinking phase, which belong to neither part."""

    def __init__(self) -> None:
        self._held = ""
        self._begun = self._over = False

    def divide(self, segment: Segment, text: str) -> Iterator[tuple[Part, str]]:
        """What is certain of `text`, which is the next of the answer."""
        if segment.phase is Phase.ANSWER or self._over:
            self._over = True
            held, self._held = self._held, ""
            if held:
                yield Part.REASONING, held
            yield Part.CONTENT, text
            return
        text = self._held + text
        if not self._begun:
            # The model may open its thinking itself.
            if THINK_START.startswith(text):
                self._held = text
                return
            text = text.removeprefix(THINK_START)
            self._begun = True
        before, mark, after = text.partition(THINK_END)
        self._over = bool(mark)
        keep = 0 if mark else overlap(before, THINK_END)
        self._held = before[len(before) - keep :]
        yield Part.REASONING, before[: len(before) - keep]
        if after:
            yield Part.CONTENT, after

    def rest(self) -> str:
        """What looked like a mark and was none."""
        held, self._held = self._held, ""
        return held


class Stop:
    """Lets text through up to the first of the stop texts, holding back what may be the beginning of one."""

    def __init__(self, stops: Sequence[str]):
        self._stops, self._held = tuple(stops), ""
        self.hit: str | None = None
        """The stop text that was found."""

    def __call__(self, text: str) -> str:
        """What of the text so far may be sent now."""
        if self.hit is not None:
            return ""
        if not self._stops:
            return text
        text = self._held + text
        found = [(text.find(stop), stop) for stop in self._stops if stop in text]
        if found:
            at, self.hit = min(found)
            self._held = ""
            return text[:at]
        keep = max(overlap(text, stop) for stop in self._stops)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def rest(self) -> str:
        held, self._held = self._held, ""
        return held


class Text:
    """One answer's text as its reader gets it, in pieces.

    Args:
        chat: whether reasoning stands apart.
        stops: texts before which the answer ends; those of a chat are looked for in its content.
        words: vocabulary by role, for the tokens; None where nobody asked for them.
    """

    def __init__(self, chat: bool, stops: Sequence[str], words: dict[Role, Vocabulary] | None = None):
        self._marks = Marks() if chat else None
        self._stop = Stop(stops)
        self._words = words
        self._told: dict[int, int] = {}
        self._tokens: list[Token] = []
        self._read = 0
        """Bytes that the tokens known make up."""
        self._sent = 0
        self._writer = Role.TARGET

    @property
    def stopped(self) -> str | None:
        """The stop text that ended the answer."""
        return self._stop.hit

    def push(self, segment: Segment, text: str, shown: int) -> list[Piece]:
        """The pieces that `text` gives, of which `shown` tokens of its segment are known."""
        self._writer = segment.role
        if self._words is not None and segment.role is not Role.INSERTED:
            self._note(segment, shown, self._words[segment.role])
        parts = [(Part.CONTENT, text)] if self._marks is None else self._marks.divide(segment, text)
        pieces = (self._piece(part, some) for part, some in parts)
        return [piece for piece in pieces if piece.text or piece.tokens]

    def end(self) -> list[Piece]:
        """What was held back, now that nothing follows."""
        pieces = [Piece(Part.REASONING, self._writer, rest)] if self._marks and (rest := self._marks.rest()) else []
        rest = self._stop.rest()
        if rest or (self._tokens and self.stopped is None):
            self._sent += len(rest.encode())
            pieces.append(Piece(Part.CONTENT, self._writer, rest, self._due(all_of_them=self.stopped is None)))
        return pieces

    def _piece(self, part: Part, text: str) -> Piece:
        if part is Part.REASONING:
            return Piece(part, self._writer, text)
        sent = self._stop(text)
        self._sent += len(sent.encode())
        return Piece(part, self._writer, sent, self._due(all_of_them=False))

    def _note(self, segment: Segment, shown: int, words: Vocabulary) -> None:
        """Notes the tokens that `shown` adds, those of the thinking phase of a chat left out."""
        before = self._told.get(segment.id, 0)
        self._told[segment.id] = max(before, shown)
        if self._marks is not None and segment.phase is Phase.THINKING:
            return
        likely = segment.features.get("top", [])
        for i, row in zip(segment.ids[before:shown], likely[before:shown], strict=False):
            if i in words.end_of_text:
                continue
            top = [(words.text_of([t]), words.bytes_of([t]), p) for t, p in row]
            text, data = words.text_of([i]), words.bytes_of([i])
            own = next((p for t, p in row if t == i), -9999.0)
            self._tokens.append(Token(text, data, own, top, self._read))
            self._read += len(data)

    def _due(self, *, all_of_them: bool) -> list[Token]:
        """Tokens whose text begins within what has been sent."""
        count = len(self._tokens) if all_of_them else sum(token.at < self._sent for token in self._tokens)
        due, self._tokens = self._tokens[:count], self._tokens[count:]
        return due
