"""Speculative Thinking: the target steps in where the draft begins to reflect (arXiv 2504.12329)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from baton.boundary import STEP, Cap, Cues
from baton.generation import Generation
from baton.routers.checks import ANSWERS, at_least, one_of
from baton.trace import Phase, Segment

RECAP = "Let me check whether there are some wrong steps:"


@dataclass(frozen=True)
class SpeculativeThinking:
    """The draft writes; after a paragraph that goes on by affirming or doubting, the target writes a short burst.

    At each paragraph's end the draft goes on for `probe` tokens. Where these hold positive or negative keywords the
    target writes `burst` tokens in their place, and `long_burst` more if it sets out to verify. After `patience`
    negative probes a recap is asked for, which the target writes.

    Faithful: keywords, bursts and counters of the published code, in which positive probes call the target as well,
    ties are negative, and the draft goes on in mid-sentence after a burst; a neutral probe is thrown away and the draft
    writes anew from the same place (Speculative Thinking, arXiv 2504.12329).

    Fixed: thrown-away probes are counted; a paragraph break is never added where none was written; the end of thinking
    is an end (published: ignored), so that `answer` can give the answer to one model. `keep_probe` lets the draft go on
    from a neutral probe, `whole_words` keeps "await" from counting as "wait". Chinese keywords stand beside the
    published English ones.

    Use it when: the draft reasons on its own and needs help at turns of thought; there is no score and no training.
    """

    probe: int = 20
    """Tokens of the draft that are read at a paragraph's end."""
    burst: int = field(default=20, metadata={"vary": (1, 200), "rises": True})
    """Tokens that the target writes in place of a probe with a sentiment."""
    long_burst: int = 125
    """Tokens that it writes more when it verifies, and after the first recap."""
    begin: int = 0
    """Tokens that the target writes first; published with 100 for drafts that do not reason."""
    always: bool = False
    """Let the target write a burst at every paragraph's end; published for drafts that do not reason."""
    patience: int = 15
    """Negative probes before a recap; 5 more after each recap, up to twice as many."""
    recap: str = RECAP
    """Text that opens a recap."""
    keep_probe: bool = False
    """Go on from a neutral probe in place of writing it anew."""
    whole_words: bool = False
    """Keywords match whole words only."""
    positive: Sequence[str] = ("yeah", "yes", "final answer", "confident", "是的", "最终答案", "确信")
    """Keywords of affirmation (lower case)."""
    negative: Sequence[str] = ("wait", "alternatively", "hold on", "another", "等等", "等一下", "或者", "另一种")
    """Keywords of doubt (lower case)."""
    verify: Sequence[str] = ("verify", "think again", "recap", "check", "验证", "再想", "回顾", "检查")
    """Keywords after which the target goes on for `long_burst` tokens (lower case)."""
    answer: str = "relay"
    """Who writes the answer phase: `relay` (both, as published), `draft` or `target`."""

    name: ClassVar[str] = "speculative-thinking"

    def __post_init__(self) -> None:
        for knob in ("probe", "burst", "long_burst", "patience"):
            at_least(f"speculative-thinking.{knob}", getattr(self, knob), 1)
        at_least("speculative-thinking.begin", self.begin, 0)
        one_of("speculative-thinking.answer", self.answer, ANSWERS)

    async def __call__(self, gen: Generation) -> None:
        doubts, patience, recap = 0, self.patience, self.long_burst
        if self.begin:
            await gen.write("target", [Cap(self.begin)])
        while not gen.finished:
            if gen.phase is Phase.ANSWER and self.answer != "relay":
                await gen.write(self.answer)
                continue
            paragraph = await gen.write("draft", [STEP])
            if gen.finished or paragraph.ended_by is not STEP:
                continue
            if doubts >= patience:
                gen.insert(self.recap, why=f"{doubts} negative probes")
                await gen.write("target", [Cap(recap)])
                doubts, patience, recap = 0, min(patience + 5, 2 * self.patience), min(recap + 25, self.long_burst + 75)
                continue
            probe = await self._probe(gen)
            sentiment = self._sentiment(probe.text)
            doubts += sentiment < 0
            if sentiment or self.always:
                await self._burst(gen, probe)
            elif self.keep_probe:
                gen.commit(probe)

    async def _probe(self, gen: Generation) -> Segment:
        if self.keep_probe:
            return await gen.propose("draft", [STEP, Cap(self.probe)])
        return await gen.probe("draft", cap=self.probe)

    async def _burst(self, gen: Generation, probe: Segment) -> None:
        """The target writes from where the probe began, and goes on if it verifies."""
        if self.keep_probe:
            gen.discard(probe)
        burst = await gen.write("target", [Cap(self.burst)])
        if not gen.finished and self._count(burst.text, self.verify):
            await gen.write("target", [Cap(self.long_burst)])

    def _sentiment(self, text: str) -> int:
        """1 positive, -1 negative (or both alike), 0 neither."""
        positive, negative = self._count(text, self.positive), self._count(text, self.negative)
        if not positive and not negative:
            return 0
        return 1 if positive > negative else -1

    def _count(self, text: str, keywords: Sequence[str]) -> int:
        """Keywords that stand in the text."""
        lower = text.lower()
        if not self.whole_words:
            return sum(word in lower for word in keywords)
        return sum(Cues([word]).stands_in(lower) for word in keywords)
