"""A scripted engine: its model is a function, its clock is set by delays, and it logs every call it gets."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from baton.boundary import Feature
from baton.engines.base import Call, Chunk, Engine, EngineError, Prefix, Session, TokenScore, Usage
from baton.pair import Pair
from baton.scorers.base import Score, Scorer, ScoreRequest
from baton.trace import Role
from baton.vocabulary import Vocabulary

EOS, THINK_END = "<eos>", "</think>"


def vocabulary(*pieces: str, shift: int = 0) -> Vocabulary:
    """All bytes, the given pieces, an end of text and an end of thinking; text is cut by longest match.

    `shift` moves every id, which makes a vocabulary that shares no ledger with the plain one.
    """
    control = [EOS]
    literals: list[bytes] = [b""] * shift + [bytes([b]) for b in range(256)]
    literals += [p.encode() for p in pieces] + [THINK_END.encode()]
    eos = len(literals)
    ids = {t: i for i, t in enumerate(literals) if t}
    longest = max(len(t) for t in literals)

    def encode(text: str) -> list[int]:
        out: list[int] = []
        for n, part in enumerate(text.split(EOS)):
            out += [eos] if n else []
            data = part.encode()
            at = 0
            while at < len(data):
                size = next(k for k in range(min(longest, len(data) - at), 0, -1) if data[at : at + k] in ids)
                out.append(ids[data[at : at + size]])
                at += size
        return out

    return Vocabulary(
        tokens=[*literals, b""],
        encode=encode,
        end_of_text=frozenset([eos]),
        end_of_thinking=eos - 1,
        control={eos: control[0]},
    )


WORDS = vocabulary(" ", ".", "\n\n", ".\n\n", "Wait", ",", " ", "one", "two", "three", "bad", "good", " step", "answer")

Script = Callable[[str, int], str] | Mapping[str, str] | str
"""What the model would write next: from the generated text so far and the call's seed; or a mapping from the text's
end to the continuation; or one whole answer, of which the part not yet written follows."""


@dataclass
class Log:
    """One engine call as tests compare it: what was asked, on which text, and what became of it."""

    op: str
    role: str
    text: str
    written: str = ""
    sampled: int = 0
    cancelled: bool = False
    temperature: float | None = None


@dataclass
class ScriptedEngine(Engine):
    """Writes what its script says, one token every `delay` seconds of the loop's clock."""

    role: str
    script: Script
    log: list[Log] = field(default_factory=list)
    vocabulary: Vocabulary = WORDS
    delay: float = 0.0
    first_delay: float = 0.0
    """Before the first token of a call."""
    features: Callable[[str, str], dict[Feature, float]] | None = None
    """Features of a token, from the text before it and its own."""
    top: Callable[[str], list[tuple[str, float]]] | None = None
    """Likeliest tokens and their probabilities after a text."""
    likes: Callable[[str, str], float] | None = None
    """Log-probability of a token, from the text before it and its own; the script's token if None."""
    grounded: Callable[[str, str], float] | None = None
    """Attention of a token on what came before its segment, from the text before it and its own."""
    fail: Callable[[str], Exception | None] = lambda text: None
    """An error for a call on that text."""
    prompt: str = "?"
    running: int = 0
    kind = "scripted"

    def open(self, prompt: Sequence[int]) -> Session:
        return ScriptedSession(self, len(prompt))

    def render(self, messages: Sequence[dict[str, str]], *, thinking: bool = True) -> list[int]:
        """The prompt, and what follows the first user's turn as `text[ask:text]text ...`."""
        turns = [m["content"] if m["role"] == "assistant" else f"[ask:{m['content']}]" for m in messages]
        first = next(n for n, m in enumerate(messages) if m["role"] == "user")
        return self.vocabulary.encode(self.prompt + "".join(turns[first + 1 :]))

    def metrics(self) -> dict[str, float]:
        return {"running": self.running}

    async def close(self) -> None:
        return None

    def continuation(self, text: str, seed: int) -> str:
        if isinstance(self.script, str):
            assert self.script.startswith(text), f"{text!r} has left the script"
            return self.script[len(text) :]
        if callable(self.script):
            return self.script(text, seed)
        ends = [end for end in self.script if text.endswith(end)]
        if not ends:
            raise AssertionError(f"{self.role} has no script for {text!r}")
        return self.script[max(ends, key=len)]

    def text(self, ids: Sequence[int]) -> str:
        out = self.vocabulary.bytes_of(ids).decode(errors="replace")
        return out + EOS if ids and ids[-1] in self.vocabulary.end_of_text else out


class ScriptedSession(Session):
    """Remembers the ids it has computed, so that tests see what a call found cached."""

    def __init__(self, engine: ScriptedEngine, prompt: int, cached: Sequence[int] = ()):
        self.engine, self.prompt, self.cached = engine, prompt, list(cached)
        self.busy = False

    def _reuse(self, prefix: Prefix) -> int:
        common = 0
        for a, b in zip(self.cached, prefix.ids(), strict=False):
            if a != b:
                break
            common += 1
        self.cached = prefix.ids()
        return common

    async def generate(self, call: Call) -> AsyncGenerator[Chunk, None]:
        engine, loop = self.engine, asyncio.get_running_loop()
        assert not self.busy, "two calls at once on one session"
        text = engine.text(call.prefix.ids(self.prompt))
        log = Log("write", engine.role, text, temperature=call.sampling.temperature)
        engine.log.append(log)
        usage = call.usage = Usage(prompt=call.prefix.length, cached=self._reuse(call.prefix))
        self.busy = True
        engine.running += 1
        try:
            if error := engine.fail(text):
                raise error
            await asyncio.sleep(engine.first_delay)
            for i in engine.vocabulary.encode(engine.continuation(text, call.seed))[: call.cap]:
                await asyncio.sleep(engine.delay)
                features = engine.features(text, engine.vocabulary.text_of([i])) if engine.features else {}
                likeliest = engine.top(text)[: call.read.top] if engine.top else []
                top = [[(engine.vocabulary.encode(piece)[0], math.log(p)) for piece, p in likeliest]]
                done = call.matcher.push(i, features)
                text += engine.text([i])
                log.written += engine.text([i])
                log.sampled += 1
                usage.sampled += 1
                self.cached.append(i)
                now = loop.time()
                yield Chunk([i], now, now, [features] if call.read.features else [], top if call.read.top else [])
                if done:
                    break
            yield Chunk([], loop.time(), loop.time(), usage=usage)
        except (asyncio.CancelledError, GeneratorExit):
            log.cancelled = True
            raise
        finally:
            self.busy = False
            engine.running -= 1

    async def logprob(
        self, prefix: Prefix, ids: Sequence[int], temperature: float = 1.0
    ) -> tuple[list[TokenScore], Usage]:
        engine = self.engine
        text = engine.text(prefix.ids(self.prompt))
        engine.log.append(Log("logprob", engine.role, text, engine.text(ids), temperature=temperature))
        cached = self._reuse(prefix.extend(ids))
        await asyncio.sleep(engine.first_delay)
        scores = []
        for i in ids:
            if engine.likes:
                likes, logprob = i, engine.likes(text, engine.text([i]))
            else:
                written = engine.vocabulary.encode(engine.continuation(text, 0))
                likes = (written or [min(engine.vocabulary.end_of_text)])[0]
                logprob = 0.0 if likes == i else -8.0
            scores.append(TokenScore(logprob / temperature, likes, 0.0, margin=1.0, entropy=0.0))
            text += engine.text([i])
        return scores, Usage(prompt=prefix.length + len(ids), cached=cached)

    async def grounding(self, prefix: Prefix, ids: Sequence[int]) -> tuple[list[float], Usage]:
        engine = self.engine
        if engine.grounded is None:
            return await super().grounding(prefix, ids)
        text = engine.text(prefix.ids(self.prompt))
        engine.log.append(Log("grounding", engine.role, text, engine.text(ids)))
        usage = Usage(prompt=prefix.length + len(ids), cached=self._reuse(prefix.extend(ids)))
        return [engine.grounded(text, engine.text([i])) for i in ids], usage

    def fork(self) -> Session:
        return ScriptedSession(self.engine, self.prompt, self.cached)

    def close(self) -> None:
        self.cached = []


@dataclass
class ScriptedScorer(Scorer):
    """Scores a step by a function of its text."""

    value: Callable[[ScoreRequest], float]
    delay: float = 0.0
    log: list[Log] = field(default_factory=list)

    async def score(self, requests: Sequence[ScoreRequest]) -> list[Score]:
        logs = [Log("score", "scorer", "".join(r.before), r.step) for r in requests]
        self.log.extend(logs)
        try:
            await asyncio.sleep(self.delay)
        except asyncio.CancelledError:
            for entry in logs:
                entry.cancelled = True
            raise
        return [Score(self.value(r), tokens=r.step_ids) for r in requests]


def pair(target: ScriptedEngine, draft: ScriptedEngine, **scorers: Scorer) -> Pair:
    return Pair("scripted", {Role.TARGET: target, Role.DRAFT: draft}, dict(scorers))


class BrokenError(EngineError):
    """Raised by engines that a test breaks."""
