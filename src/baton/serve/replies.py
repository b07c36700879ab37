"""What is sent back: OpenAI's objects, and beside them what the relay did."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any

from baton.bench.metrics import tally
from baton.serve.answering import Choice, Job
from baton.serve.text import Part, Piece, Token
from baton.trace import Phase, Role, Trace


class Replies:
    """The objects of one request."""

    def __init__(self, job: Job):
        self._job, self._wanted = job, job.wanted
        self._created = int(time.time())
        chat = job.wanted.chat
        self._id = f"{'chatcmpl' if chat else 'cmpl'}-{job.number:x}-{self._created:x}"
        self._begun: set[int] = set()
        self._at: dict[int, int] = {}

    def whole(self) -> dict[str, Any]:
        """The reply to a request that is not streamed, of the pieces that nobody has taken."""
        wanted = self._wanted
        choices = []
        for choice in self._job.choices:
            pieces = choice.pieces
            text = "".join(piece.text for piece in pieces if piece.part is Part.CONTENT)
            thought = "".join(piece.text for piece in pieces if piece.part is Part.REASONING)
            entry: dict[str, Any] = {"index": choice.index, "finish_reason": choice.finish}
            entry["stop_reason"] = choice.text.stopped
            entry["logprobs"] = self._logprobs(choice, [t for piece in pieces for t in piece.tokens])
            if wanted.chat:
                message = {"role": "assistant", "content": text, "reasoning_content": thought or None}
                entry["message"] = {**message, "refusal": None}
            else:
                entry["text"] = text
            choices.append(entry)
        kind = "chat.completion" if wanted.chat else "text_completion"
        return {**self._head(kind), "choices": choices, "usage": self.usage(), **self._relay()}

    def chunk(self, choice: Choice, piece: Piece | None) -> dict[str, Any]:
        """An event of a stream: a piece of an answer, or (None) its end."""
        wanted = self._wanted
        entry: dict[str, Any] = {"index": choice.index, "finish_reason": None}
        if piece is None:
            entry["finish_reason"], entry["stop_reason"] = choice.finish, choice.text.stopped
        if wanted.chat:
            delta: dict[str, Any] = {} if choice.index in self._begun else {"role": "assistant", "content": ""}
            self._begun.add(choice.index)
            if piece is not None:
                delta[piece.part.value] = piece.text
            entry["delta"] = delta
        else:
            entry["text"] = piece.text if piece is not None else ""
        if wanted.logprobs is not None:
            entry["logprobs"] = self._logprobs(choice, piece.tokens if piece is not None else [])
        if wanted.writers and piece is not None:
            entry["writer"] = piece.writer.value
        kind = "chat.completion.chunk" if wanted.chat else "text_completion"
        so_far = {"usage": self._so_far(choice)} if wanted.running_usage else {}
        return {**self._head(kind), "choices": [entry], **so_far}

    def last(self) -> dict[str, Any] | None:
        """The event after the answers: what they cost, and their traces, if asked for."""
        if not self._wanted.usage and not self._wanted.trace:
            return None
        kind = "chat.completion.chunk" if self._wanted.chat else "text_completion"
        usage = {"usage": self.usage()} if self._wanted.usage else {}
        return {**self._head(kind), "choices": [], **usage, **self._relay()}

    def usage(self) -> dict[str, Any]:
        """Tokens of all answers, in OpenAI's words and in the relay's."""
        return usage([choice.trace for choice in self._job.choices])

    @staticmethod
    def _so_far(choice: Choice) -> dict[str, int]:
        prompt = len(choice.trace.prompts.get(Role.TARGET, ()))
        written = choice.tokens
        return {"prompt_tokens": prompt, "completion_tokens": written, "total_tokens": prompt + written}

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self._id, "object": kind, "created": self._created, "model": self._wanted.model}

    def _relay(self) -> dict[str, Any]:
        if not self._wanted.trace:
            return {}
        return {"traces": [choice.trace.to_json() for choice in self._job.choices]}

    def _logprobs(self, choice: Choice, tokens: Sequence[Token]) -> dict[str, Any] | None:
        top = self._wanted.logprobs
        if top is None:
            return None
        if self._wanted.chat:
            return {"content": [_entry(token, top) for token in tokens], "refusal": None}
        offsets = []
        for token in tokens:
            offsets.append(self._at.get(choice.index, 0))
            self._at[choice.index] = offsets[-1] + len(token.text)
        return {
            "tokens": [token.text for token in tokens],
            "token_logprobs": [token.logprob for token in tokens],
            "top_logprobs": [{text: p for text, _, p in token.top[:top]} for token in tokens],
            "text_offset": offsets,
        }


def _entry(token: Token, top: int) -> dict[str, Any]:
    likely = [{"token": text, "bytes": list(data), "logprob": p} for text, data, p in token.top[:top]]
    return {"token": token.text, "bytes": list(token.data), "logprob": token.logprob, "top_logprobs": likely}


def usage(traces: Iterable[Trace]) -> dict[str, Any]:
    """What answers cost. `relay` has each model's kept tokens, and the tokens that are in no answer."""
    found = list(traces)
    # Answers to one prompt share it.
    prompt = sum(map(len, {tuple(t.prompts.get(Role.TARGET, ())) for t in found}))
    written = sum(t.tokens() for t in found)
    thought = sum(s.kept_tokens for t in found for s in t.path() if s.phase is Phase.THINKING)
    first = [next((s for s in t.segments if s.role is not Role.INSERTED), None) for t in found]
    return {
        "prompt_tokens": prompt,
        "completion_tokens": written,
        "total_tokens": prompt + written,
        "prompt_tokens_details": {"cached_tokens": sum(s.cached for s in first if s is not None)},
        "completion_tokens_details": {"reasoning_tokens": thought},
        "relay": _relay(found),
    }


def _relay(found: Sequence[Trace]) -> dict[str, Any]:
    tallies = [tally(t) for t in found]
    target, draft = (sum(t.tokens(role) for t in found) for role in (Role.TARGET, Role.DRAFT))
    outcomes = [decision.outcome for t in found for decision in t.decisions]
    return {
        "target_tokens": target,
        "draft_tokens": draft,
        "target_share": target / (target + draft) if target + draft else None,
        "switches": sum(t.switches for t in found),
        "discarded_tokens": sum(t.discarded for t in tallies),
        "overshoot_tokens": sum(t.overshoot for t in tallies),
        "helper_tokens": sum(t.helper for t in tallies),
        "prefill_tokens": sum(t.prefill for t in tallies),
        "accept_rate": sum(outcomes) / len(outcomes) if outcomes else None,
    }
