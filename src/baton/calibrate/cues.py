"""Which discourse cues lead into easy text, measured once a pair: the calibration behind `relaygen`.

The target writes traces of calibration questions. Each of their tokens gets a probability margin (top-1 minus top-2
probability at temperature 1) under the draft, the target, or both. For every candidate cue the margins of the tokens
from the cue to the sentence's end are pooled (RelayGen, arXiv 2602.06454, section 3) and compared with the mean over
all thinking tokens.

Two rules choose. `paper`: the mean exceeds the global mean by at least one standard error over tokens. `corrected`:
tokens of one question's traces are not independent, a cue seen twice says little, and ninety candidates give false
alarms; so the standard error is bootstrapped over questions, a minimum of segments is asked for, and Holm's correction
holds the family-wise error at 5 %.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from baton.boundary import SENTENCE, Cues
from baton.calibrate import work
from baton.calibrate.profile import CueProfile, CueStatistics
from baton.calibrate.work import Progress, Question, token_scores
from baton.generation import Options
from baton.pair import Pair
from baton.records import Lines, read_records
from baton.routers.target import Target
from baton.trace import Phase, Role, Segment, Trace

_STEMS = (
    *("therefore", "thus", "so", "similarly", "also", "alternatively", "wait", "hmm", "but", "however", "hence"),
    *("another", "oh", "maybe", "other", "again", "now", "ah", "any", "specifically", "then", "next"),
)
CANDIDATES: tuple[str, ...] = (
    *(form for stem in _STEMS for word in (stem.capitalize(), stem) for form in (word, f"{word},")),
    "check",
    "double-check",
    "verify",
)
"""RelayGen's 91 candidate cues: 22 stems, capitalised and not, bare and with a comma, and three verbs of checking."""

_CHINESE_STEMS = (
    *(
        "因此",
        "所以",
        "于是",
        "从而",
        "同样",
        "类似地",
        "另外",
        "此外",
        "或者",
        "等等",
        "等一下",
        "不对",
        "嗯",
        "但是",
        "但",
    ),
    *(
        "然而",
        "不过",
        "可是",
        "也许",
        "可能",
        "哦",
        "啊",
        "再次",
        "现在",
        "具体来说",
        "也就是说",
        "换句话说",
        "接下来",
        "然后",
    ),
    *("那么", "首先", "其次", "最后", "总之", "综上", "综上所述", "由此可得", "注意到"),
)
CHINESE_CANDIDATES: tuple[str, ...] = (
    *(form for stem in _CHINESE_STEMS for form in (stem, f"{stem}，")),
    "检查",
    "检查一下",
    "验证",
    "验证一下",
)
"""Candidate cues of Chinese text: connectives and turns of thought, bare and with a full-width comma, and checking."""

LANGUAGES = {"english": CANDIDATES, "chinese": CHINESE_CANDIDATES, "both": CANDIDATES + CHINESE_CANDIDATES}


def candidates_from(source: str) -> tuple[str, ...]:
    """The shipped list of that name (`english`, `chinese`, `both`), or a file with a candidate cue a line.

    Raises:
        ValueError: there is neither such a list nor such a file.
    """
    if source in LANGUAGES:
        return LANGUAGES[source]
    try:
        lines = Path(source).read_text(encoding="utf-8").splitlines()
    except OSError:
        raise ValueError(f"candidates: {source!r} is no file; give one, or one of {', '.join(LANGUAGES)}") from None
    return tuple(line for line in lines if line.strip())


RESAMPLES = 2000
LEVEL = 0.05


@dataclass(frozen=True, slots=True)
class Settings:
    """What a calibration is asked for."""

    questions: int = 40
    samples: int = 4
    """Traces a question."""
    scored_by: str = "draft"
    """Whose margins: `draft` (as published), `target`, or `both` (their mean)."""
    rule: str = "paper"
    """`paper` or `corrected`."""
    min_segments: int = 8
    """Sentence remainders a cue needs (rule `corrected`)."""
    min_traces: int = 4
    candidates: tuple[str, ...] = CANDIDATES
    seed: int = 0
    concurrency: int = 8

    def __post_init__(self) -> None:
        if self.scored_by not in {"draft", "target", "both"}:
            raise ValueError(f"scored-by: {self.scored_by!r} is unknown; use one of draft, target, both")
        if self.rule not in {"paper", "corrected"}:
            raise ValueError(f"rule: {self.rule!r} is unknown; use one of paper, corrected")
        for name in ("questions", "samples", "min_segments", "min_traces", "concurrency"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name.replace('_', '-')}: {getattr(self, name)} is too few; use 1 or more")
        if not self.candidates:
            raise ValueError("candidates: the list is empty; give at least one cue a line")

    @property
    def roles(self) -> tuple[Role, ...]:
        return (Role.TARGET, Role.DRAFT) if self.scored_by == "both" else (Role(self.scored_by),)


@dataclass(frozen=True, slots=True)
class Margins:
    """The thinking phase of one trace: its text cut into tokens, and a margin for each."""

    trace: str
    """Question and sample; the cluster of the bootstrap is the question."""
    question: str
    pieces: list[str]
    """Text of each token; a character split over tokens stands with the last of them."""
    margins: list[float]


def claim(folder: Path, settings: Settings, options: Options, pair: Mapping[str, Any], source: str) -> None:
    """Makes `folder` the one of this calibration, or checks that it is. `pair` is the identity of its models.

    What only chooses among finished margins (rule, candidates, minimum counts) may change between two calls, and
    questions and samples may be added.

    Raises:
        ValueError: the folder holds traces or margins made with other settings.
    """
    work.claim(
        folder,
        {
            "pair": pair,
            "questions from": source,
            "scored-by": settings.scored_by,
            "seed": settings.seed,
            "sampling": asdict(options.sampling),
            "budget": asdict(options.budget),
            "system": options.system,
            "suffix": options.suffix,
        },
    )


async def collect_traces(
    pair: Pair, questions: Sequence[Question], settings: Settings, options: Options, store: Path, progress: Progress
) -> list[Trace]:
    """The target's traces of `questions`, appended to `store` as they finish; what is there already is not repeated."""
    return await work.collect(
        pair, Target(), questions, options, store, progress,
        samples=settings.samples, concurrency=settings.concurrency,
    )  # fmt: skip


async def score_margins(
    pair: Pair, traces: Sequence[Trace], settings: Settings, options: Options, store: Path, progress: Progress
) -> list[Margins]:
    """Margins of every thinking token of `traces`, appended to `store` as they finish."""
    file = Lines(store)
    have = {m.trace: m for m in read_records(store, lambda row: Margins(**row), "margins")}
    missing = [t for t in traces if _key(t) not in have]
    progress("margins", len(traces) - len(missing), len(traces))

    async def one(trace: Trace) -> None:
        margins = await _score(pair, trace, settings.roles, options)
        have[margins.trace] = margins
        file.append(json.dumps(asdict(margins), ensure_ascii=False))
        progress("margins", len(have), len(traces))

    with file:
        await work.each(missing, one, settings.concurrency)
    return [have[_key(t)] for t in traces]


def _key(trace: Trace) -> str:
    return f"{trace.question}\x1f{trace.sample}"


async def _score(pair: Pair, trace: Trace, roles: Sequence[Role], options: Options) -> Margins:
    """Margins of the thinking tokens of one trace, each model after its own prompt."""
    by_role: list[tuple[list[str], list[float]]] = []
    for role in roles:
        engine = pair.engines[role]
        vocabulary = engine.vocabulary
        thinking = [s for s in trace.path() if s.phase is Phase.THINKING]
        ids = [i for s in thinking for i in _ids(pair, s, role)]
        if ids and ids[-1] == vocabulary.end_of_thinking:
            ids.pop()
        scores = await token_scores(engine, options, trace.question_text, ids)
        by_role.append((vocabulary.pieces_of(ids), [s.margin for s in scores]))
    pieces, margins = by_role[0]
    if len(by_role) == 2:
        if by_role[1][0] != pieces:
            raise ValueError("scored-by: both needs one vocabulary; use draft or target")
        margins = [(a + b) / 2 for a, b in zip(margins, by_role[1][1], strict=True)]
    return Margins(_key(trace), trace.question, pieces, [round(m, 5) for m in margins])


def _ids(pair: Pair, segment: Segment, role: Role) -> list[int]:
    writer = Role.TARGET if segment.role is Role.INSERTED else segment.role
    return pair.engines[writer].vocabulary.translate(segment.ids, pair.engines[role].vocabulary)


@dataclass(frozen=True, slots=True)
class _Region:
    """The rest of the sentence after one occurrence of a cue: indices of its tokens."""

    cue: str
    start: int
    end: int


def cue_regions(pieces: Sequence[str], candidates: Sequence[str]) -> Iterator[_Region]:
    """Tokens from each occurrence of a candidate cue to the end of its sentence, found by the run-time boundaries.

    An occurrence belongs to the longest candidate that matches there. A cue inside the rest of a sentence that another
    cue opened is an occurrence of its own, as at run time it would be if only it were chosen.
    """
    text = "".join(pieces)
    edges: NDArray[np.int64] = np.cumsum([0, *map(len, pieces)])
    boundary, at = Cues(candidates), 0
    while at < len(text):
        scanner = boundary.scan(text, at)
        if scanner.found is None:
            return
        end = at + scanner.found
        sentence = SENTENCE.scan(text, end)
        stop = end + sentence.found if sentence.found is not None else len(text)
        first = int(np.searchsorted(edges, end, side="left"))
        last = int(np.searchsorted(edges, stop, side="left"))
        if last > first:
            yield _Region(scanner.cue or "", first, last)
        at = end


_Span = tuple[int, int, int]
"""A trace's number, and its tokens from the first to before the last."""


class _Resampled:
    """Mean margins under resampling of whole questions: tokens of one trace are not independent."""

    def __init__(self, margins: Sequence[Margins], seed: int):
        self.margins = margins
        self.questions = sorted({m.question for m in margins})
        self._index = {question: k for k, question in enumerate(self.questions)}
        count = len(self.questions)
        self._weights = np.random.default_rng(seed).multinomial(count, np.full(count, 1 / count), size=RESAMPLES)
        sums, counts = self._by_question([(n, 0, len(m.margins)) for n, m in enumerate(margins)])
        self.mean = float(sums.sum() / max(1.0, counts.sum()))
        """Over all tokens."""
        self.means = (self._weights @ sums) / np.maximum(1.0, self._weights @ counts)
        """`[resamples]`: over all tokens."""

    def of(self, spans: Sequence[_Span]) -> NDArray[np.float64]:
        """`[resamples]`: over the tokens of spans; NaN where a resample has none."""
        sums, counts = self._by_question(spans)
        drawn = self._weights @ counts
        means = np.full(RESAMPLES, np.nan)
        np.divide(self._weights @ sums, drawn, out=means, where=drawn > 0)
        return means

    def _by_question(self, spans: Sequence[_Span]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """`[questions]` each: sums of margins, and numbers of tokens."""
        sums, counts = np.zeros(len(self.questions)), np.zeros(len(self.questions))
        for n, start, end in spans:
            k = self._index[self.margins[n].question]
            sums[k] += sum(self.margins[n].margins[start:end])
            counts[k] += end - start
        return sums, counts


def choose(margins: Sequence[Margins], settings: Settings, pair: str = "", split: str = "") -> CueProfile:
    """Statistics of every candidate, and the switch cues by `settings.rule`."""
    spans: dict[str, list[_Span]] = {}
    for n, m in enumerate(margins):
        for region in cue_regions(m.pieces, settings.candidates):
            spans.setdefault(region.cue, []).append((n, region.start, region.end))
    resampled = _Resampled(margins, settings.seed)
    statistics = [_statistics(cue, spans[cue], resampled) for cue in settings.candidates if cue in spans]
    statistics = _correct(statistics, settings)
    chosen = [s for s in statistics if (s.selected_paper if settings.rule == "paper" else s.selected_corrected)]
    dropped = _overlaps([s.cue for s in chosen], [s.cue for s in statistics if s not in chosen])
    statistics = [replace(s, dropped=dropped.get(s.cue, "")) for s in statistics]
    statistics.sort(key=lambda s: s.mean, reverse=True)
    return CueProfile(
        cues=[s.cue for s in statistics if s.cue in {c.cue for c in chosen} and not s.dropped],
        pair=pair,
        rule=settings.rule,
        scored_by=settings.scored_by,
        split=split,
        questions=len(resampled.questions),
        traces=len(margins),
        global_mean=resampled.mean,
        statistics=statistics,
        settings={
            "min_segments": settings.min_segments,
            "min_traces": settings.min_traces,
            "seed": settings.seed,
            "candidates": len(settings.candidates),
            "resamples": RESAMPLES,
            "level": LEVEL,
        },
    )


def _statistics(cue: str, spans: Sequence[_Span], resampled: _Resampled) -> CueStatistics:
    """Of the tokens that follow a cue, before the correction for several cues."""
    values = np.concatenate([resampled.margins[n].margins[start:end] for n, start, end in spans])
    mean, error = float(values.mean()), float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else 1.0
    means = resampled.of(spans)
    difference = means - resampled.means
    seen = ~np.isnan(difference)
    low, high = np.nanpercentile(means, [2.5, 97.5])
    return CueStatistics(
        cue=cue,
        segments=len(spans),
        traces=len({n for n, _, _ in spans}),
        tokens=len(values),
        mean=mean,
        standard_error=error,
        interval=(float(low), float(high)),
        p=float((1 + np.sum(difference[seen] <= 0)) / (1 + seen.sum())),
        selected_paper=mean - resampled.mean >= error,
        selected_corrected=False,
    )


def _correct(statistics: list[CueStatistics], settings: Settings) -> list[CueStatistics]:
    """Holm's step-down over the candidates that were seen often enough."""
    enough = [s for s in statistics if s.segments >= settings.min_segments and s.traces >= settings.min_traces]
    passed: set[str] = set()
    for rank, s in enumerate(sorted(enough, key=lambda s: s.p)):
        if s.p > LEVEL / (len(enough) - rank):
            break
        passed.add(s.cue)
    return [replace(s, selected_corrected=s.cue in passed) for s in statistics]


def _overlaps(chosen: Iterable[str], rejected: Sequence[str]) -> dict[str, str]:
    """Chosen cues that would also fire where a longer, rejected one stands: "But" where "But," was rejected."""
    return {
        cue: f"would fire on {longer!r}, which was rejected"
        for cue in chosen
        for longer in rejected
        if longer != cue and Cues([cue]).stands_in(longer)
    }
