"""Lookahead reasoning: speculation in steps (arXiv 2506.19830, NeurIPS 2025)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from baton.boundary import BUDGET, CANCELLED, END_OF_TEXT, STEP, Boundary, Cap
from baton.gate import Constant, Gate, Threshold
from baton.generation import Generation, Pending, PendingCall
from baton.routers.checks import KnobError, at_least, one_of, share
from baton.routers.specreason import PREFILL, PROMPT, quality
from baton.trace import Segment

THRESHOLDS = {"judge": 0.5, "embedding": 0.95, "target": 7.0, "random": 0.5, "exact": 0.5}
"""Published operating points."""


@dataclass(eq=False)
class Place:
    """A step of the tree and what is under way after it: the target's own next step, and the draft's versions of it."""

    step: Segment
    own: Pending | None = None
    drafts: dict[int, Pending] = field(default_factory=dict)
    verdicts: dict[int, PendingCall[float]] = field(default_factory=dict)
    accepted: dict[int, bool] = field(default_factory=dict)
    below: dict[int, Place] = field(default_factory=dict)
    drafted: list[int] | None = None
    """Branches that were there when the target's own step was."""

    def tree(self) -> Iterator[Place]:
        yield self
        for place in self.below.values():
            yield from place.tree()

    @property
    def drafting(self) -> bool:
        return any(not draft.done for place in self.tree() for draft in place.drafts.values())

    def under_way(self) -> list[Pending | PendingCall[Any]]:
        return [
            call
            for place in self.tree()
            for call in (*([place.own] if place.own else ()), *place.drafts.values(), *place.verdicts.values())
            if not call.done
        ]


@dataclass(frozen=True)
class Lookahead:
    """The draft runs several steps ahead; the target writes its own version of each beside it, and equal ones are kept.

    Where a verifier finds that a step of the draft says what the target's own says, the draft's is kept and the target
    need not be waited for again; at the first that does not, the target's own stands and the draft starts anew after
    it. `depth` drafts ahead means up to k = depth + 1 steps of the target at once. Paper: arXiv 2506.19830.

    Faithful: steps of at most 100 tokens; a tree of `width` branches a step; targets start as soon as the step before
    them is drafted, and verifiers as soon as both versions are there; a draft that is not there when the target's own
    step is counts as rejected, as the target never waits; the first step, and each one after a step that did not end at
    a blank line, is the target's; texts that are equal but for case and outer blanks need no verifier. The published
    program is the asynchronous one; the synchronous one is the paper's first algorithm.

    Fixed: branches have seeds of their own (published: the second on the clock, so that branches were copies;
    `own_seeds: false` restores that); an end of text in an accepted draft ends the answer (published: it waited for a
    step past the end, and appended it); judges are cancelled with the steps they judge; nothing polls; a failing
    verifier is an error, not a crash on no text; what the clock said (which drafts were late) is recorded, so that an
    answer can be replayed; drafts whose rejection is certain are not written.

    Use it when: slots are idle and latency counts: it samples many tokens of the target that it does not keep. `baton
    plan` tells which depth and width pay.
    """

    verifier: str = "judge"
    """A scorer of the pair that compares two steps (`judge`, `embedding`, ...), or `target` (its mark from 0 to 9 for
    the draft's step), `random` (rejects with probability `threshold`) or `exact` (equal texts only)."""
    threshold: float | None = field(default=None, metadata={"vary": (0.0, 1.0), "rises": True})
    """Least score that is accepted; the published one of the verifier if left out."""
    depth: int = field(default=4, metadata={"vary": (0, 16), "rises": False})
    """Steps that the draft runs ahead; 0 is the target alone."""
    width: int = 1
    """Versions of each step that the draft writes."""
    own_seeds: bool = field(default=True, metadata={"later": True})
    """Draw each version of a step with randomness of its own; false: all with the same, as published."""
    choose: str = "first"
    """Among accepted branches, the `first`, as published, or the `closest` (highest score)."""
    asynchronous: bool = True
    """Draft, write and verify at once, in a sliding window; false: rounds of drafting, then writing and verifying."""
    whole_steps: bool = True
    """Leave to the target the first step, and each one after a step that did not end at a blank line, as published."""
    step_tokens: int = 100
    """Most tokens of a step."""
    prompt: str = PROMPT
    """What the verifier `target` is asked; `{step}` stands for the step."""
    prefill: str = PREFILL
    """How its reply begins."""

    name: ClassVar[str] = "lookahead"

    def __post_init__(self) -> None:
        at_least("lookahead.depth", self.depth, 0)
        at_least("lookahead.width", self.width, 1)
        at_least("lookahead.step_tokens", self.step_tokens, 1)
        one_of("lookahead.choose", self.choose, ("first", "closest"))
        if self.threshold is None:
            if self.verifier not in THRESHOLDS:
                raise KnobError(
                    "lookahead.threshold",
                    f"missing, and {self.verifier!r} has no published one; give the least score that is accepted",
                )
            object.__setattr__(self, "threshold", THRESHOLDS[self.verifier])
        if self.verifier == "random":
            share("lookahead.threshold", self.threshold or 0.0)
        try:
            self.gate  # noqa: B018
        except ValueError as error:
            raise KnobError("lookahead.threshold", str(error)) from None

    @property
    def scorers(self) -> tuple[str, ...]:
        return () if self.verifier in {"target", "random", "exact"} else (self.verifier,)

    @staticmethod
    def idle(knobs: Mapping[str, Any]) -> set[str]:
        """Knobs that do nothing beside `knobs`."""
        return {"threshold"} if knobs.get("verifier") == "exact" else set()

    @property
    def gate(self) -> Gate:
        least = math.nan if self.threshold is None else self.threshold
        return Constant(1 - least) if self.verifier == "random" else Threshold(least)

    @property
    def until(self) -> tuple[Boundary, ...]:
        return (STEP, Cap(self.step_tokens))

    async def __call__(self, gen: Generation) -> None:
        root: Place | None = None
        while not gen.finished:
            root = await self.advance(gen, root or Place(gen.head), self.until)

    async def advance(self, gen: Generation, root: Place, own: Sequence[Boundary]) -> Place | None:
        """Commits the step after `root`, and gives what is already under way behind it.

        `own` ends the target's versions of a step.
        """
        while True:
            if self.asynchronous or root.own is None:
                self._draft(gen, root, self.depth)
            if self.asynchronous or not root.drafting:
                self._verify(gen, root, own)
            step = self._decided(gen, root)
            if step is not None:
                break
            await gen.first(root.under_way())
        gen.commit(step)
        # Where the commit closed the thinking, what was built on the step is gone.
        return next((p for p in root.below.values() if p.step is step and gen.head is step), None)

    def _draft(self, gen: Generation, place: Place, ahead: int) -> None:
        """Lets the draft go on wherever the tree may grow by `ahead` more steps."""
        if ahead == 0 or (self.whole_steps and place.step.ended_by is not STEP):
            return
        if place.drafted is None and not place.drafts:
            for branch in range(self.width):
                seeded = branch if self.own_seeds else 0
                place.drafts[branch] = gen.start("draft", self.until, place.step, 1, seeded)
        for branch, draft in place.drafts.items():
            if draft.done and draft.segment.ended_by not in (END_OF_TEXT, BUDGET, CANCELLED):
                below = place.below.setdefault(branch, Place(draft.segment))
                self._draft(gen, below, ahead - 1)

    def _verify(self, gen: Generation, place: Place, own: Sequence[Boundary]) -> None:
        """Starts the target's own step after each place, and the verdicts on drafts where both versions are there."""
        if place.own is None:
            place.own = gen.start("target", own, place.step)
        for branch, draft in place.drafts.items():
            if draft.done and place.own.done and branch not in place.verdicts:
                verdict = self._verdict(gen, draft.segment, place.own.segment)
                place.verdicts[branch] = gen.background(verdict, draft.segment)
        for below in place.below.values():
            self._verify(gen, below, own)

    def _decided(self, gen: Generation, place: Place) -> Segment | None:
        """The step that stands after `place`, or None as long as that is open."""
        if place.own is None or not place.own.done:
            return None
        if place.drafted is None:
            place.drafted = self._in_time(gen, place)
        best: tuple[float, Segment] | None = None
        for branch in place.drafted:
            verdict, step = place.verdicts.get(branch), place.drafts[branch].segment
            if verdict is None or not verdict.done:
                return None
            score = verdict.task.result()
            if branch not in place.accepted:
                place.accepted[branch] = gen.decide(self.gate, step, score)
            if place.accepted[branch] and self.choose == "first":
                return step
            if place.accepted[branch] and (best is None or score > best[0]):
                best = score, step
        return best[1] if best else place.own.segment

    def _in_time(self, gen: Generation, place: Place) -> list[int]:
        """Branches whose draft was there when the target's own step was; the others are given up."""
        drafted = [branch for branch, draft in place.drafts.items() if draft.done]
        if self.asynchronous and place.drafts:
            drafted = gen.observe("drafted", drafted)
        for late in place.drafts.keys() - set(drafted):
            place.drafts.pop(late).cancel()
            place.below.pop(late, None)
        return drafted

    async def _verdict(self, gen: Generation, draft: Segment, own: Segment) -> float:
        assert self.threshold is not None
        if self.verifier == "random":
            return self.threshold
        if self.verifier == "target":
            return await quality(gen, draft, prompt=self.prompt, prefill=self.prefill)
        ends = draft.ended_by is END_OF_TEXT, own.ended_by is END_OF_TEXT
        equal = draft.text.strip().lower() == own.text.strip().lower() and ends[0] == ends[1]
        if self.verifier == "exact":
            return float(equal)
        # The verifier is spared where there is nothing to ask.
        return max(1.0, self.threshold) if equal else await gen.score(draft, by=self.verifier, against=own)
