"""Which routers suit a pair, by what was read and measured of it. Every verdict has its reasons."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from baton import routers
from baton.check_pair.answers import Answers
from baton.check_pair.formats import Formats
from baton.config import PairConfig

LEAST_IN_STEPS = 0.5
"""Part of the thinking that must stand in steps for a router of steps."""
SHORT_STEP, LONG_STEP = 8, 512
"""Tokens of a step below which each costs more calls than it saves, and above which step routers cut it."""
WEAK_DRAFT = 0.2
"""Part of the questions that a draft must solve alone for a gate to accept much."""
LEAST_COST_RATIO = 2.0
"""A target token over a draft token: below it not even a relay that is never wrong gains much."""
SAME_STEPS = 0.3
"""Steps that must be equal word for word for lookahead without a verifier."""
SAME_TOKENS = 0.7
"""Target tokens that the draft must prefer too for routers that ask token by token."""

STEPWISE = frozenset(
    (
        "rsd",
        "specreason",
        "lookahead",
        "gsi",
        "specs",
        "specguard",
        "confspec",
        "glimp",
        "speculative-thinking",
        "beam",
        "policy",
    )
)
GATED = frozenset(("rsd", "specreason", "gsi", "specs", "specguard", "confspec"))
WHOLE = frozenset(("query-router", "cascade", "majority", "best-of-n"))
REWARDED = frozenset(("rsd", "gsi", "specs", "best-of-n", "beam"))
TOKENWISE = frozenset(("rstitch", "margin", "bild", "token-router", "segmenter"))
HEADS = {"token-router": "token", "segmenter": "token", "policy": "policy"}
"""Kind of scorer that has to be trained for a router."""
CUED = frozenset(("relaygen", "relaygen-compat", "hybrid"))
BRANCHED = frozenset(("gsi", "specs", "specguard", "majority", "best-of-n", "beam"))
TALKED_TO = frozenset(("specreason", "confspec"))
BASELINES = frozenset(("target", "draft", "random"))
WRAPPERS = frozenset(("bail-out", "budget", "steady", "fallback", "load-aware"))


class Verdict(StrEnum):
    """Whether a router suits a pair."""

    SUITS = "suits"
    DOUBTFUL = "doubtful"
    UNFIT = "unfit"


@dataclass(frozen=True, slots=True)
class Advice:
    """What speaks for and against one router."""

    router: str
    verdict: Verdict
    reasons: list[str]


@dataclass(frozen=True, slots=True)
class Facts:
    """All that a rule may look at; `answers` is None where no model was run."""

    pair: PairConfig
    formats: Formats
    answers: Answers | None
    temperature: float

    @property
    def thinks(self) -> bool:
        """Whether the target has a thinking phase here."""
        return self.pair.thinking and self.formats.target.thinking != "none"

    def has_scorer(self, *kinds: str) -> bool:
        return any(s.kind in kinds for s in self.pair.scorers.values())


Remark = tuple[Verdict, str]
Rule = Callable[[str, Facts], Iterator[Remark]]


def advise(facts: Facts) -> list[Advice]:
    """A verdict for every shipped router that is neither a baseline nor a wrapper."""
    out = []
    for name in routers.names():
        if name in BASELINES | WRAPPERS:
            continue
        remarks = [remark for rule in RULES for remark in rule(name, facts)]
        order = (Verdict.UNFIT, Verdict.DOUBTFUL, Verdict.SUITS)
        verdict = next((v for v in order if any(v is r[0] for r in remarks)), Verdict.SUITS)
        out.append(Advice(name, verdict, [text for v, text in sorted(remarks, key=lambda r: order.index(r[0]))]))
    return out


def remarks_on(facts: Facts) -> list[str]:
    """What concerns all routers at once."""
    answers = facts.answers
    if answers is None:
        return []
    out = []
    solved = answers.all
    if solved.target <= solved.draft:
        out.append(
            f"the target solves no more than the draft ({solved.target:.0%} against {solved.draft:.0%}): the draft "
            "alone is the router to beat"
        )
    elif solved.draft_ci[0] <= solved.target <= solved.draft_ci[1]:
        out.append(f"{solved.n} questions do not tell the two models apart; ask more, or harder ones")
    if solved.draft_only:
        out.append(
            f"the draft is right and the target wrong on {solved.draft_only} of {solved.n} questions: there a router "
            "can do better than the target"
        )
    if answers.cost_ratio < LEAST_COST_RATIO:
        out.append(
            f"a target token costs only {answers.cost_ratio:.1f} draft tokens here: no relay saves much time "
            "(measured one answer at a time; at large models and batches this differs)"
        )
    for role, steps in answers.steps.items():
        if steps.truncated > 0.1:
            out.append(f"{steps.truncated:.0%} of the {role}'s answers hit the budget: raise it before measuring")
        if facts.thinks and steps.thinking_closed < 0.9:
            out.append(f"the {role} ends its thinking in only {steps.thinking_closed:.0%} of its answers")
    return out


def _vocabularies(name: str, facts: Facts) -> Iterator[Remark]:
    if facts.formats.vocabulary.shared:
        return
    if getattr(routers.find(name), "needs_one_vocabulary", False):
        yield Verdict.UNFIT, "two vocabularies: it passes token ids from one model to the other"
    elif name in TOKENWISE:
        yield Verdict.DOUBTFUL, "two vocabularies: it switches often, and each switch encodes text anew"
    elif name in {"gsi", "specs"}:
        yield Verdict.DOUBTFUL, "two vocabularies: the ratio of probabilities is of two different tokenisations"


def _phases(name: str, facts: Facts) -> Iterator[Remark]:
    if name not in CUED:
        return
    if not facts.thinks:
        yield (
            Verdict.UNFIT,
            "no thinking phase: only its answer delegation is left, which gives all of the answer to the draft",
        )
    elif facts.pair.cues is None and name != "relaygen-compat":
        yield Verdict.DOUBTFUL, "the pair has no cue profile; make one with `baton calibrate cues`"
    elif facts.pair.cues is not None:
        yield Verdict.SUITS, "there is a thinking phase, and a cue profile"


def _steps(name: str, facts: Facts) -> Iterator[Remark]:
    if name not in STEPWISE or facts.answers is None:
        return
    steps = facts.answers.steps["target"]
    if steps.in_steps < LEAST_IN_STEPS:
        yield (
            Verdict.UNFIT,
            f"only {steps.in_steps:.0%} of the target's text stands in steps parted by blank lines",
        )
        return
    if steps.tokens < SHORT_STEP:
        yield Verdict.DOUBTFUL, f"steps of {steps.tokens:.0f} tokens: each costs more calls than it saves"
    elif steps.tokens_p90 > LONG_STEP:
        yield Verdict.DOUBTFUL, f"a tenth of the steps has more than {steps.tokens_p90:.0f} tokens, and would be cut"
    else:
        yield Verdict.SUITS, f"{steps.in_steps:.0%} in steps, of {steps.tokens:.0f} tokens"


def _strength(name: str, facts: Facts) -> Iterator[Remark]:
    if name not in GATED | WHOLE | {"speculative-thinking"} or facts.answers is None:
        return
    solved = facts.answers.all
    text = f"the draft alone solves {solved.draft:.0%} ({solved.draft_ci[0]:.0%} to {solved.draft_ci[1]:.0%})"
    if solved.draft < WEAK_DRAFT:
        why = "a gate will reject much" if name in GATED else "little can be left to it"
        yield Verdict.DOUBTFUL, f"{text}: {why}"
    elif name in {"query-router", "cascade"} and len(facts.answers.by_level) > 1:
        shares = [s.draft for s in facts.answers.by_level.values()]
        if max(shares) > min(shares):
            yield Verdict.SUITS, f"{text}, from {max(shares):.0%} to {min(shares):.0%} by level: questions differ"
        else:
            yield Verdict.DOUBTFUL, f"{text}, at every level alike: nothing says which questions to give it"


def _scorers(name: str, facts: Facts) -> Iterator[Remark]:
    kinds = ", ".join(sorted({s.kind for s in facts.pair.scorers.values()})) or "none"
    if name in REWARDED and not facts.has_scorer("prm", "callable"):
        yield Verdict.DOUBTFUL, f"the pair has no process reward model (scorers: {kinds}); add one, or name a scorer"
    if name in HEADS and not facts.has_scorer(HEADS[name]):
        yield (
            Verdict.UNFIT,
            f"nothing was trained for it (scorers: {kinds}); train it, and add a scorer of kind {HEADS[name]}",
        )
    if name == "specguard" and not facts.has_scorer("embedding", "judge", "callable"):
        yield Verdict.DOUBTFUL, f"nothing compares two steps (scorers: {kinds}); add an embedding"


def _branches(name: str, facts: Facts) -> Iterator[Remark]:
    if name not in BRANCHED or facts.temperature > 0:
        return
    if name in {"gsi", "specs", "specguard"}:
        yield Verdict.DOUBTFUL, "at temperature 0 all its versions of a step are the same; set n to 1"
    else:
        yield Verdict.UNFIT, "at temperature 0 all its alternatives are the same"


def _lookahead(name: str, facts: Facts) -> Iterator[Remark]:
    if name != "lookahead" or facts.answers is None:
        return
    agreement = facts.answers.agreement
    ratio = 1 / facts.answers.cost_ratio
    plan = f"`baton plan --draft-step {min(1.0, ratio):.2f} --acceptance {agreement.same_step:.2f}` tells the depth"
    said = f"{agreement.same_step:.0%} of the draft's steps equal the target's word for word"
    if agreement.same_step >= SAME_STEPS:
        yield Verdict.SUITS, f"{said}; {plan}"
    elif facts.has_scorer("judge", "embedding", "equivalence"):
        yield Verdict.DOUBTFUL, f"{said}: a judge or embedding has to find more; {plan} at least"
    else:
        yield Verdict.DOUBTFUL, f"{said}, and the pair has neither judge nor embedding"


def _tokens(name: str, facts: Facts) -> Iterator[Remark]:
    if name not in TOKENWISE | {"glimp"} or facts.answers is None:
        return
    agreement = facts.answers.agreement
    said = f"{agreement.same_token:.0%} of the target's tokens are the draft's choice too"
    if agreement.same_token < SAME_TOKENS:
        yield Verdict.DOUBTFUL, f"{said}: it would switch every few tokens"
    elif agreement.same_where_sure is not None:
        yield Verdict.SUITS, f"{said}, and {agreement.same_where_sure:.0%} where the draft is sure"


def _turns(name: str, facts: Facts) -> Iterator[Remark]:
    without = [r for r in ("target", "draft") if not getattr(facts.formats, r).chat_template]
    if name in TALKED_TO and without:
        yield Verdict.DOUBTFUL, f"the {' and the '.join(without)} has no chat template to be asked by"


RULES: tuple[Rule, ...] = (
    _vocabularies,
    _phases,
    _steps,
    _strength,
    _scorers,
    _branches,
    _lookahead,
    _tokens,
    _turns,
)
