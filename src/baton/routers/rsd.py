"""RSD: reward-guided speculative decoding (arXiv 2501.19324, ICML 2025)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from baton.boundary import Cap
from baton.gate import GATES, Constant, Gate, Logistic, Threshold, make_gate
from baton.generation import Generation
from baton.routers.checks import at_least, one_of
from baton.routers.units import UNITS, tokens_of, unit_boundary


@dataclass(frozen=True)
class RSD:
    """The draft writes a step and a process reward model scores it; the gate keeps it, or the target rewrites it.

    Paper: arXiv 2501.19324.

    Faithful: steps end at a blank line, the last step's score alone decides, the target's rewrite is not scored, both
    models sample alike, and the five gates are the paper's (the published code has only the binary one, at 0.7). With
    `n` above 1 the best of several drafts is gated, as in the baseline that later papers compare with.

    Fixed: no patience that cuts all unfinished answers when none has finished for five rounds; an answer does not wait
    for others; tokens are passed as ids, never encoded again; a scorer that returns too few scores is an error, not a
    shorter list; the scorer's tokens are counted; several samples of a question work. An answer ends at its end of
    text or budget, not at a hundredth step.

    Use it when: a process reward model fits the domain, and the target's steps score higher than the draft's. Set the
    threshold on a calibration split: 0.7 means something else under another scorer.
    """

    scorer: str = "prm"
    """The pair's scorer that judges a step."""
    gate: str = "binary"
    """`binary`, `constant`, `clipping`, `sigmoidal` or `logistic`."""
    threshold: float = field(default=0.7, metadata={"vary": (0.0, 1.0), "rises": True})
    """Least score that `binary` accepts; the score that `logistic` accepts half of the time."""
    p: float = field(default=0.5, metadata={"vary": (0.0, 1.0), "rises": False})
    """Probability with which `constant` accepts."""
    alpha: float = 10.0
    """Steepness of `logistic`."""
    n: int = 1
    """Drafts of each step, of which the best is gated."""
    rescore: bool = False
    """Score the target's rewrite too, and keep the draft's step where that scored higher: it counts as accepted."""
    step_tokens: int = 2048
    """Most tokens of a step."""
    unit: str = field(default="step", metadata={"later": True})
    """What is written before it is judged: a `step`, as published, a `sentence`, `20 tokens`, up to a discourse cue
    (`cues`), or to where one of the pair's scorers draws a boundary (its name): one of kind `token` after the token
    that it gives away (the target then rewrites to the end of the sentence), one of kind `embedding` after a sentence
    that turns to something else."""
    profile: Path | None = field(default=None, metadata={"path": True, "pair": "cues"})
    """Cue profile for the unit `cues`; the pair's own if left out."""

    name: ClassVar[str] = "rsd"

    def __post_init__(self) -> None:
        one_of("rsd.gate", self.gate, tuple(GATES))
        at_least("rsd.n", self.n, 1)
        at_least("rsd.step_tokens", self.step_tokens, 1)
        if self.unit == "cues" and self.profile is None:
            raise ValueError("rsd.profile: missing for unit cues; make one with `baton calibrate cues`")
        try:
            self.acceptance  # noqa: B018
        except ValueError as error:
            raise ValueError(f"rsd.gate: {error}") from None

    @property
    def scorers(self) -> tuple[str, ...]:
        own = self.unit in UNITS or self.unit == "cues" or tokens_of(self.unit) is not None
        return (self.scorer,) if own else (self.scorer, self.unit)

    @property
    def acceptance(self) -> Gate:
        """The gate with its knobs."""
        knobs = {
            Constant.name: {"p": self.p},
            Threshold.name: {"threshold": self.threshold},
            Logistic.name: {"alpha": self.alpha, "delta": self.threshold},
        }
        return make_gate(self.gate, **knobs.get(self.gate, {}))

    @staticmethod
    def idle(knobs: Mapping[str, Any]) -> set[str]:
        """Knobs that the gate among `knobs` does not have."""
        has = {"constant": {"p"}, "binary": {"threshold"}, "logistic": {"threshold"}}
        return {"p", "threshold"} - has.get(knobs.get("gate", "binary"), set())

    async def __call__(self, gen: Generation) -> None:
        gate, cap = self.acceptance, Cap(self.step_tokens)
        drafted, rewritten = (
            [unit_boundary(gen, role, self.unit, self.profile), cap] for role in ("draft", "target")
        )  # fmt: skip
        while not gen.finished:
            steps = await gen.candidates("draft", drafted, self.n)
            scores = await gen.score(steps, by=self.scorer)
            best = max(range(self.n), key=scores.__getitem__)
            if gen.decide(gate, steps[best], scores[best]):
                gen.commit(steps[best])
            elif self.rescore:
                rewrite = await gen.propose("target", rewritten)
                score = await gen.score(rewrite, by=self.scorer)
                if score >= scores[best]:
                    gen.commit(rewrite)
                else:
                    gen.overrule(steps[best], f"the target's rewrite scored {score:.4g}")
                    gen.commit(steps[best])
            else:
                for step in steps:
                    gen.discard(step)
                await gen.write("target", rewritten)
