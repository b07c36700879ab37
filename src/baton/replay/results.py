"""The turns of a replay in a file: appended as they end, so that an interrupted matrix goes on where it stopped."""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from statistics import quantiles
from typing import Any

from baton.bench import environment
from baton.config import ConfigError
from baton.records import differences, shown, write_json
from baton.replay.turn import ARMS, FOLLOWING, SHARING, Arm, Load, Turn, key
from baton.trace import Role

FEWEST_TAIL = 3
"""Answers beyond a percentile, without which it is no figure."""

Together = dict[Arm, Turn]
"""Turns of several arms that belong together: a ratio is taken within them."""


def read_replay(file: Path) -> dict[str, Any]:
    """What `Results` keeps in a file.

    Raises:
        OSError: it cannot be opened.
        ValueError: it holds something else than a replay.
    """
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
        turns = [Turn(**turn) for turn in data["turns"]]
        return {**{name: data[name] for name in ("about", "environments", "probes")}, "turns": turns}
    except (ValueError, KeyError, TypeError):
        raise ValueError(f"{file} holds something else than a replay; give another file") from None


class Results:
    """The turns measured so far, in a file.

    Raises:
        ConfigError: the file was measured with other settings, or holds something else than a replay.
    """

    def __init__(self, file: Path, about: dict[str, Any], arms: Sequence[Arm] = ARMS):
        """`arms` take turns, and are kept only where all of them had one."""
        self.file, self.about, self.arms = file, about, arms
        self.turns: list[Turn] = []
        self.probes: list[dict[str, Any]] = []
        self.environments: list[dict[str, Any]] = []
        if file.is_file():
            try:
                stored = read_replay(file)
            except ValueError as error:
                raise ConfigError(f"--out: {error}") from None
            if other := next(differences(stored["about"], about), None):
                name, then, now = other
                raise ConfigError(
                    f"--out: {file} was measured with other settings ({name}: {shown(then)}, not {shown(now)}); "
                    "give another file"
                )
            self.environments, self.probes = stored["environments"], stored["probes"]
            self.turns = self._whole(stored["turns"])
        self.environments.append(environment.describe())

    def has(self, load: Load, arm: Arm, turn: int) -> bool:
        return any(t.key == key(load, arm, turn) for t in self.turns)

    def append(self, turn: Turn) -> None:
        self.turns.append(turn)
        self._write()

    @property
    def unprobed(self) -> list[Role]:
        """Whose single requests are not measured yet."""
        return [role for role in (Role.TARGET, Role.DRAFT) if all(probe["role"] != role for probe in self.probes)]

    def probed(self, probe: dict[str, Any]) -> None:
        """Keeps a measurement of single requests."""
        self.probes.append(probe)
        self._write()

    def _write(self) -> None:
        self.file.parent.mkdir(parents=True, exist_ok=True)
        write_json(
            self.file,
            {
                "about": self.about, "environments": self.environments, "summary": self.summary(),
                "probes": self.probes, "turns": [asdict(turn) for turn in self.turns],
            },
        )  # fmt: skip

    @property
    def loads(self) -> list[Load]:
        """Those that were measured: answers in flight, then arrivals a second, each from the lowest on."""
        return [load for _, load in sorted({turn.key[:2] for turn in self.turns})]

    def at(self, load: Load, *arms: Arm) -> list[Turn]:
        """The turns of some arms at one load."""
        return [turn for turn in self.turns if turn.arm in arms and turn.key == key(load, turn.arm, turn.turn)]

    def summary(self) -> list[dict[str, Any]]:
        """By load: medians over the turns that all arms have had."""
        rows = []
        for load in self.loads:
            row: dict[str, Any] = {"at_once": load} if isinstance(load, int) else {"rate": load}
            if whole := self._together(load, self.arms):
                row["turns"] = len(whole)
            for arms, figures in FIGURES:
                if together := self._together(load, arms):
                    row |= figures(together)
            if len(row) > 1:
                rows.append(row)
        return rows

    def _together(self, load: Load, arms: Sequence[Arm]) -> list[Together]:
        mine = self.at(load, *arms)
        by_turn = [{t.arm: t for t in mine if t.turn == n} for n in sorted({t.turn for t in mine})]
        return [turns for turns in by_turn if len(turns) == len(arms)]

    def _whole(self, turns: list[Turn]) -> list[Turn]:
        """Without the turns that some arm did not come to: a ratio is taken within a run."""
        had = Counter((*turn.key[:2], turn.turn) for turn in turns if turn.arm in self.arms)
        return [t for t in turns if t.arm in SHARING or had[*t.key[:2], t.turn] == len(self.arms)]


def p50(turn: Turn) -> float:
    """Seconds of an answer."""
    return statistics.median(turn.seconds)


def _quantile(turn: Turn, percent: int) -> float:
    return quantiles(turn.seconds, n=100, method="inclusive")[percent - 1]


def step_ms(turn: Turn, role: str) -> float:
    """Milliseconds a token after a segment's first."""
    return 1e3 * turn.decode_s[role] / max(1, turn.decoded[role])


def first_ms(turn: Turn, role: str) -> float:
    """Milliseconds to a segment's first token."""
    return 1e3 * statistics.median(turn.first_s[role] or [0.0])


def _relaying(turns: Sequence[Together]) -> dict[str, float]:
    median = _median(turns)

    def ideal(turn: Together) -> float:
        """If each token, kept or not, took what it takes its model alone: the target alone, the draft as it relayed."""
        tokens = turn["relay"].tokens
        mine = tokens["target"] * step_ms(turn["target"], "target") + tokens["draft"] * step_ms(turn["relay"], "draft")
        return sum(turn["target"].tokens.values()) * step_ms(turn["target"], "target") / mine

    answers = min(len(turn["relay"].seconds) for turn in turns)
    # What is written beside an answer takes no time of its own.
    ideals = {} if any(turn["relay"].beside for turn in turns) else {"ideal_over_target": median(ideal)}
    scored = [t["relay"].score_s for t in turns if t["relay"].score_s]
    return {
        **_tails(turns, "relay", answers),
        **({"relay_score_ms": round(1e3 * statistics.median(map(statistics.median, scored)), 4)} if scored else {}),
        "relay_over_target": median(lambda t: p50(t["target"]) / p50(t["relay"])),
        **ideals,
        "target_p50_s": median(lambda t: p50(t["target"])),
        "relay_p50_s": median(lambda t: p50(t["relay"])),
        "target_ms_a_token": median(lambda t: step_ms(t["target"], "target")),
        "relay_target_ms_a_token": median(lambda t: step_ms(t["relay"], "target")),
        "relay_draft_ms_a_token": median(lambda t: step_ms(t["relay"], "draft")),
        "relay_target_first_token_ms": median(lambda t: first_ms(t["relay"], "target")),
        "relay_draft_first_token_ms": median(lambda t: first_ms(t["relay"], "draft")),
        "relay_prefix_cached": median(lambda t: t["relay"].cached / t["relay"].prompt),
    }


def _tails(turns: Sequence[Together], arm: Arm, answers: int) -> dict[str, float]:
    """P90 and P99 of the target alone over an arm's, where `answers` are enough for them."""
    median = _median(turns)

    def tail(percent: int) -> float:
        return median(lambda t: _quantile(t["target"], percent) / _quantile(t[arm], percent))

    name = arm.replace("-", "_")
    return {f"{name}_over_target_p{p}": tail(p) for p in (90, 99) if answers * (100 - p) >= 100 * FEWEST_TAIL}


def _cutting(turns: Sequence[Together]) -> dict[str, float]:
    """What cutting alone costs."""
    median = _median(turns)
    return {
        "cut_over_target": median(lambda t: p50(t["target"]) / p50(t["cut"])),
        "relay_over_cut": median(lambda t: p50(t["cut"]) / p50(t["relay"])),
        "cut_p50_s": median(lambda t: p50(t["cut"])),
        "cut_ms_a_token": median(lambda t: step_ms(t["cut"], "target")),
        "cut_first_token_ms": median(lambda t: first_ms(t["cut"], "target")),
    }


def _following(turns: Sequence[Together]) -> dict[str, float]:
    """What `load-aware` makes of the schedule; `draft_share` is the draft's of its tokens.

    Its first answers are not timed, and the first of the target are left out too: those that begin together wait for
    each other's prompts, and near capacity what waits grows.
    """
    turns = [{**turn, "target": _last(turn["target"], len(turn["load-aware"].seconds))} for turn in turns]
    median = _median(turns)
    answers = min(len(turn["load-aware"].seconds) for turn in turns)
    return {
        **_tails(turns, "load-aware", answers),
        "load_aware_over_target": median(lambda t: p50(t["target"]) / p50(t["load-aware"])),
        "load_aware_draft_share": median(
            lambda t: t["load-aware"].tokens["draft"] / sum(t["load-aware"].tokens.values())
        ),
        "load_aware_p50_s": median(lambda t: p50(t["load-aware"])),
    }


def _last(turn: Turn, answers: int) -> Turn:
    return replace(turn, seconds=turn.seconds[-answers:])


def _sharing(turns: Sequence[Together]) -> dict[str, float]:
    """What the two engines leave each other. `overlap` is 0 where their steps take turns, 1 where neither is slowed."""
    turns = [turn for turn in turns if all(turn["beside"].decoded.values())]
    if not turns:
        return {}
    median = _median(turns)

    def kept(turn: Together, role: str, alone: Arm) -> float:
        return step_ms(turn[alone], role) / step_ms(turn["beside"], role)

    return {
        "draft_ms_a_token": median(lambda t: step_ms(t["draft"], "draft")),
        "beside_target_ms_a_token": median(lambda t: step_ms(t["beside"], "target")),
        "beside_draft_ms_a_token": median(lambda t: step_ms(t["beside"], "draft")),
        "overlap": median(lambda t: kept(t, "target", "target") + kept(t, "draft", "draft") - 1),
    }


FIGURES: tuple[tuple[tuple[Arm, ...], Callable[[Sequence[Together]], dict[str, float]]], ...] = (
    (("target", "relay"), _relaying),
    (ARMS, _cutting),
    (FOLLOWING, _following),
    (("target", *SHARING), _sharing),
)
"""What is said of arms that had a turn together."""


def _median(turns: Sequence[Together]) -> Callable[[Callable[[Together], float]], float]:
    return lambda value: round(statistics.median(value(turn) for turn in turns), 4)
