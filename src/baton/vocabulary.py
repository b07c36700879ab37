"""What the engine must know of a tokenizer: the bytes of every token, and the ids that mean something.

Two models share a ledger of token ids when their token-to-id maps are equal, whatever their padded
`vocab_size`; `Vocabulary.fingerprint` is that comparison.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

THINK_START, THINK_END = "<think>", "</think>"


def unfinished(data: bytes) -> int:
    """How many bytes at the end of `data` begin a UTF-8 character that is not complete."""
    for size in range(1, min(3, len(data)) + 1):
        lead = data[-size]
        if lead & 0xC0 != 0x80:
            needed = 4 if 0xF0 <= lead <= 0xF4 else 3 if lead >= 0xE0 else 2 if lead >= 0xC2 else 1
            return size if size < needed and lead <= 0xF4 else 0
    return 0


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """Token ids and their bytes, with the ids that end things.

    Compared by identity; use `shares_ids` to ask whether two vocabularies may share a ledger.
    """

    tokens: Sequence[bytes]
    """Bytes that each id adds to the text; control tokens (end of text, chat markers) add none."""
    encode: Callable[[str], list[int]]
    """Text to ids, without adding any special token."""
    end_of_text: frozenset[int]
    end_of_thinking: int | None = None
    """Id of the end-of-thinking token; None where the model writes it as several tokens or does not think."""
    thinks: bool = True
    """Whether the model's chat template or vocabulary has a thinking phase."""
    control: Mapping[int, str] = field(default_factory=dict)
    """Ids that are control tokens, with their literal form."""
    begin: Sequence[int] = ()
    """Ids that the model wants before a text that is no conversation."""

    @cached_property
    def fingerprint(self) -> str:
        """Hash of the token-to-id map (hexadecimal)."""
        digest = hashlib.blake2b(digest_size=16)
        for index, token in enumerate(self.tokens):
            literal = self.control.get(index, "").encode() or token
            digest.update(len(literal).to_bytes(4, "big") + literal)
        return digest.hexdigest()

    def __len__(self) -> int:
        return len(self.tokens)

    def shares_ids(self, other: Vocabulary) -> bool:
        """Whether both map the same tokens to the same ids, so that one ledger serves both models."""
        return self is other or self.fingerprint == other.fingerprint

    def bytes_of(self, ids: Sequence[int]) -> bytes:
        """Bytes that `ids` add to the text."""
        tokens = self.tokens
        return b"".join([tokens[i] for i in ids])

    def text_of(self, ids: Sequence[int]) -> str:
        """Text of `ids`; bytes that do not form a character become U+FFFD."""
        return self.bytes_of(ids).decode("utf-8", errors="replace")

    def pieces_of(self, ids: Sequence[int]) -> list[str]:
        """Text of each of `ids`; the bytes of a split character wait for the token that completes it."""
        pieces, held = [], b""
        for i in ids:
            held += self.tokens[i]
            try:
                text, held = held.decode(), b""
            except UnicodeDecodeError:
                text = ""
            pieces.append(text)
        return pieces

    def translate(self, ids: Sequence[int], other: Vocabulary) -> list[int]:
        """The same text in `other`'s ids; end of text and end of thinking map by meaning."""
        if self.shares_ids(other):
            return list(ids)
        out: list[int] = []
        run: list[int] = []

        def flush() -> None:
            out.extend(other.encode(self.bytes_of(run).decode("utf-8", errors="ignore")))
            run.clear()

        for i in ids:
            if i == self.end_of_thinking and other.end_of_thinking is not None:
                flush()
                out.append(other.end_of_thinking)
            elif i in self.end_of_text:
                flush()
                out.append(min(other.end_of_text))
            else:
                run.append(i)
        flush()
        return out

    @classmethod
    def from_tokenizer(cls, tokenizer: Any, end_of_text: Sequence[int] = ()) -> Vocabulary:
        """From a `transformers` fast tokenizer.

        `end_of_text` adds the ids of the model's generation config to the tokenizer's own.

        Raises:
            ValueError: the tokenizer has no end-of-text token at all.
        """
        size = len(tokenizer)
        added = {i: t for i, t in tokenizer.added_tokens_decoder.items() if i < size}
        control = {i: t.content for i, t in added.items() if t.special}
        tokens = []
        byte_level = _is_byte_level(tokenizer)
        for i, literal in enumerate(tokenizer.convert_ids_to_tokens(list(range(size)))):
            if i in control or literal is None:
                tokens.append(b"")
            elif i in added:
                tokens.append(added[i].content.encode())
            else:
                tokens.append(_byte_level(literal) if byte_level else _metaspace(literal))
        ends = {i for i in (*end_of_text, tokenizer.eos_token_id) if i is not None}
        if not ends:
            raise ValueError("tokenizer.eos_token: none is set; set it in tokenizer_config.json")
        think_end = tokenizer.convert_tokens_to_ids(THINK_END)
        if think_end == tokenizer.unk_token_id or think_end is None or think_end >= size:
            think_end = None
        template = tokenizer.chat_template or ""
        return cls(
            tokens=tokens,
            encode=lambda text: tokenizer.encode(text, add_special_tokens=False),
            end_of_text=frozenset(ends),
            end_of_thinking=think_end,
            thinks=think_end is not None or THINK_END in str(template),
            control=control,
            begin=[i for i in tokenizer.encode("") if i not in ends],
        )


def _is_byte_level(tokenizer: Any) -> bool:
    """Whether vocabulary entries are written in GPT-2's byte alphabet (else SentencePiece's)."""
    import json

    decoder = json.loads(tokenizer.backend_tokenizer.to_str()).get("decoder") or {}
    kinds = {decoder.get("type")} | {d.get("type") for d in decoder.get("decoders", [])}
    return "ByteLevel" in kinds


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's printable stand-ins for the 256 bytes: printable bytes stand for themselves, the rest follow from 256."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAC + 1), *range(0xAE, 0xFF + 1)]
    alphabet = {chr(b): b for b in printable}
    rest = [b for b in range(256) if b not in set(printable)]
    alphabet.update({chr(256 + n): b for n, b in enumerate(rest)})
    return alphabet


_ALPHABET = _byte_alphabet()


def _byte_level(literal: str) -> bytes:
    return bytes(_ALPHABET[c] for c in literal)


def _metaspace(literal: str) -> bytes:
    """SentencePiece form: `▁` for a space, `<0x0A>` for a raw byte."""
    if len(literal) == 6 and literal.startswith("<0x") and literal.endswith(">"):
        return bytes([int(literal[3:5], 16)])
    return literal.replace("▁", " ").encode()
