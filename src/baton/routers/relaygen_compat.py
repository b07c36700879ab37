"""RelayGen as its published code runs it: stop strings, bug for bug (arXiv 2602.06454)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from baton.boundary import END_OF_TEXT, END_OF_THINKING, SENTENCE, Boundary, Cap, Cues, Delimiter
from baton.calibrate.profile import CueProfile
from baton.generation import Generation
from baton.routers.checks import at_least
from baton.trace import Phase, Segment

QWEN3_CUES = (
    *("Oh,", "another,", "Thus", "Now", "Alternatively", "alternatively,", "Thus,", "Therefore", "similarly"),
    *("similarly,", "now", "Again", "specifically,", "Again,", "Similarly,", "Now,", "Specifically,", "Hence"),
    *("Similarly", "Other", "now,", "hence", "Specifically", "So ", "Therefore,", "Wait,", "Also", "So,"),
)
"""Published for Qwen3-32B with Qwen3-1.7B."""

R1_CUES = (
    *("Wait", "Thus", "thus", "similarly", "Again,", "Now", "Therefore", "hence", "Hence,", "Now,", "Thus,", "Oh,"),
    *("Similarly,", "Any", "Therefore,", "Alternatively,", "now,", "So,", "now", "verify", "Specifically,"),
    *("Alternatively", "Ah,", "wait", "So "),
)
"""Published for DeepSeek-R1-Distill-Qwen-32B with the 1.5B."""

PUBLISHED = {"qwen3": QWEN3_CUES, "r1": R1_CUES}
SENTENCE_STOPS = (".", "!", "?", "\n\n")
"""In this order: `.` is looked for before `\\n\\n`, so a token `.\\n\\n` loses its paragraph break."""


@dataclass(frozen=True)
class RelayGenCompat:
    """RelayGen with the stop strings of its published code, to measure what they cost against `relaygen`.

    Faithful: cues and sentence ends are substrings, found inside words and numbers too; the text is cut behind them, in
    mid-token where need be, and the rest of the token is lost; the target is not stopped within its first five tokens;
    an end of text while thinking leaves the same model in control, an empty call closes the thinking; the draft writes
    the answer (RelayGen, arXiv 2602.06454). Every defect has a knob that switches it off.

    Fixed: what belongs to its server and prompts: the whole text is not tokenised anew at each switch, no empty
    assistant turn precedes the first call, the answer keeps its reserve of the budget, text that neither model wrote
    is not billed, and shares count kept tokens (sampled ones are in the trace beside them). An end of text among the
    guarded tokens ends the call: vLLM's `min_tokens`, which the published code sets, keeps the model from sampling one.

    Use it when: published RelayGen figures are to be compared with. For anything else use `relaygen`.
    """

    profile: Path | None = field(default=None, metadata={"path": True, "pair": "cues"})
    """Cue profile that `baton calibrate cues` wrote; the pair's own if left out."""
    cues: list[str] | str = field(default_factory=list, metadata={"some": True})
    """Switch cues in place of the profile's: a list, or a published one (`qwen3`, `r1`)."""
    inside_words: bool = True
    """Cues fire inside words ("know" ends in "now")."""
    any_full_stop: bool = True
    """Every `.` `!` `?` ends the draft's sentence, also in 3.14 or "e.g."."""
    cut_tokens: bool = True
    """Cut the text behind a stop string in mid-token, which drops the break of `.\\n\\n`."""
    guard: int = 5
    """Tokens of the target that no cue stops; 0 for none."""
    end_keeps_writer: bool = True
    """An end of text while thinking is dropped and the same model goes on."""
    empty_closes_thinking: bool = True
    """A call that gives nothing closes the thinking."""

    name: ClassVar[str] = "relaygen-compat"
    takes_tokens: ClassVar[bool] = True

    def __post_init__(self) -> None:
        at_least("relaygen-compat.guard", self.guard, 0)
        if isinstance(self.cues, str):
            if self.cues not in PUBLISHED:
                raise ValueError(
                    f"relaygen-compat.cues: {self.cues!r} is no published list; give a list, or one of qwen3, r1"
                )
            object.__setattr__(self, "cues", list(PUBLISHED[self.cues]))
        if not self.cues:
            if self.profile is None:
                raise ValueError(
                    "relaygen-compat.profile: missing; make one with `baton calibrate cues` and name it here or in "
                    "pair.cues, or set relaygen-compat.cues"
                )
            object.__setattr__(self, "cues", CueProfile.load(self.profile).cues)

    async def __call__(self, gen: Generation) -> None:
        await self._think(gen)
        if gen.phase is Phase.THINKING and not gen.finished:
            gen.insert("\n</think>", why="the thinking ended without an end")
        while not gen.finished:
            await gen.write("draft")

    async def _think(self, gen: Generation) -> None:
        stops: dict[str, Sequence[str]] = {"target": list(self.cues), "draft": SENTENCE_STOPS}
        until: dict[str, list[Boundary]] = {
            "target": _substrings(stops["target"]) if self.inside_words else [Cues(stops["target"])],
            "draft": _substrings(SENTENCE_STOPS) if self.any_full_stop else [SENTENCE],
        }
        role, ends = "target", 0
        while gen.phase is Phase.THINKING and not gen.finished:
            chunk = await self._propose(gen, role, until[role], branch=ends)
            if chunk.ended_by is END_OF_TEXT and self.end_keeps_writer:
                empty = not "".join(s.text for s in gen.path(chunk))
                if empty and self.empty_closes_thinking:
                    gen.discard(chunk)
                    return
                gen.commit(chunk, None if empty else len(chunk.ids) - 1)
                # The next call starts where this one ended the text; on the same branch it would end it again.
                ends += 1
            elif chunk.ended_by in until[role]:
                self._commit_to_stop(gen, role, chunk, stops[role])
                role = "draft" if role == "target" else "target"
            else:
                gen.commit(chunk)

    async def _propose(self, gen: Generation, role: str, until: Sequence[Boundary], branch: int) -> Segment:
        """One call of the published loop; the first tokens of the target pass before stop strings are looked for."""
        if role == "draft" or not self.guard:
            return await gen.propose(role, until, branch=branch)
        guard = Cap(self.guard)
        opening = await gen.propose(role, [guard], branch=branch)
        # An end of thinking among the guarded tokens is overlooked: the target goes on into the answer.
        if opening.ended_by is guard or opening.ended_by is END_OF_THINKING:
            return await gen.propose(role, until, after=opening)
        return opening

    def _commit_to_stop(self, gen: Generation, role: str, chunk: Segment, stops: Sequence[str]) -> None:
        """Commits a call's tokens up to the stop string, and what is left of a token that it ends in."""
        vocabulary = gen.vocabulary(role)
        written = b"".join(vocabulary.bytes_of(s.ids) for s in gen.path(chunk))
        begin = len(written) - len(vocabulary.bytes_of(chunk.ids[-1:]))
        end = _stop_end(written, begin, stops)
        if not self.cut_tokens or not isinstance(chunk.ended_by, Delimiter) or end == len(written):
            gen.commit(chunk)
            return
        try:
            left = written[begin:end].decode()
        except UnicodeDecodeError:  # the token begins inside a character, which only the whole token completes
            gen.commit(chunk)
            return
        gen.commit(chunk, len(chunk.ids) - 1)
        gen.append(role, vocabulary.encode(left))


def _substrings(stops: Sequence[str]) -> list[Boundary]:
    return [Delimiter(stop, name="stop") for stop in stops]


def _stop_end(written: bytes, begin: int, stops: Sequence[str]) -> int:
    """Where the first stop string of the list ends that ends behind `begin`; all of it if none does."""
    for stop in map(str.encode, stops):
        at = written.find(stop, max(0, begin - len(stop) + 1))
        if at >= 0:
            return at + len(stop)
    return len(written)
