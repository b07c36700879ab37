"""The turns of a replay in a file: appended as they end, so that an interrupted matrix goes on where it stopped."""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from baton.bench import environment
from baton.config import ConfigError
from baton.records import write_json
from baton.replay.turn import ARMS, SHARING, Arm, Turn

Together = dict[Arm, Turn]
"""Turns of several arms that belong together: a ratio is taken within them."""


class Results:
    """The turns measured so far, in a file.

    Raises:
        ConfigError: the file was measured with other settings.
    """

    def __init__(self, file: Path, about: dict[str, Any]):
        self.file, self.about = file, about
        self.turns: list[Turn] = []
        self.probes: list[dict[str, Any]] = []
        self.environments: list[dict[str, Any]] = []
        if file.is_file():
            data = json.loads(file.read_text())
            if data["about"] != about:
                raise ConfigError(f"--out: {file} was measured with other settings; give another file")
            self.environments, self.probes = data["environments"], data["probes"]
            self.turns = _whole([Turn(**turn) for turn in data["turns"]])
        self.environments.append(environment.describe())

    def has(self, at_once: int, arm: Arm, turn: int) -> bool:
        return any(t.key == (at_once, arm, turn) for t in self.turns)

    def append(self, turn: Turn) -> None:
        self.turns.append(turn)
        self._write()

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

    def summary(self) -> list[dict[str, Any]]:
        """By number of answers at once: medians over the turns that all arms have had."""
        rows = []
        for at_once in sorted({turn.at_once for turn in self.turns}):
            row: dict[str, Any] = {"at_once": at_once}
            for arms, figures in ((ARMS, _relaying), (("target", *SHARING), _sharing)):
                together = self._together(at_once, arms)
                if together:
                    row |= {"turns": len(together), **figures(together)} if arms is ARMS else figures(together)
            if len(row) > 1:
                rows.append(row)
        return rows

    def _together(self, at_once: int, arms: Sequence[Arm]) -> list[Together]:
        mine = [turn for turn in self.turns if turn.at_once == at_once and turn.arm in arms]
        by_turn = [{t.arm: t for t in mine if t.turn == n} for n in sorted({t.turn for t in mine})]
        return [turns for turns in by_turn if len(turns) == len(arms)]


def _whole(turns: list[Turn]) -> list[Turn]:
    """Without the turns that some arm did not come to: a ratio is taken within a run."""
    arms = Counter((turn.at_once, turn.turn) for turn in turns if turn.arm in ARMS)
    return [t for t in turns if t.arm in SHARING or arms[t.at_once, t.turn] == len(ARMS)]


def p50(turn: Turn) -> float:
    """Seconds of an answer."""
    return statistics.median(turn.seconds)


def step_ms(turn: Turn, role: str) -> float:
    """Milliseconds a token after a segment's first."""
    return 1e3 * turn.decode_s[role] / max(1, turn.decoded[role])


def first_ms(turn: Turn, role: str) -> float:
    """Milliseconds to a segment's first token."""
    return 1e3 * statistics.median(turn.first_s[role] or [0.0])


def _relaying(turns: Sequence[Together]) -> dict[str, float]:
    median = _median(turns)

    def ideal(turn: Together) -> float:
        """If each token took what it takes its model alone: the target alone, the draft as it relayed."""
        tokens = turn["relay"].tokens
        mine = tokens["target"] * step_ms(turn["target"], "target") + tokens["draft"] * step_ms(turn["relay"], "draft")
        return (tokens["target"] + tokens["draft"]) * step_ms(turn["target"], "target") / mine

    return {
        "relay_over_target": median(lambda t: p50(t["target"]) / p50(t["relay"])),
        "cut_over_target": median(lambda t: p50(t["target"]) / p50(t["cut"])),
        "relay_over_cut": median(lambda t: p50(t["cut"]) / p50(t["relay"])),
        "ideal_over_target": median(ideal),
        "target_p50_s": median(lambda t: p50(t["target"])),
        "target_ms_a_token": median(lambda t: step_ms(t["target"], "target")),
        "cut_ms_a_token": median(lambda t: step_ms(t["cut"], "target")),
        "relay_target_ms_a_token": median(lambda t: step_ms(t["relay"], "target")),
        "relay_draft_ms_a_token": median(lambda t: step_ms(t["relay"], "draft")),
        "cut_first_token_ms": median(lambda t: first_ms(t["cut"], "target")),
        "relay_target_first_token_ms": median(lambda t: first_ms(t["relay"], "target")),
        "relay_draft_first_token_ms": median(lambda t: first_ms(t["relay"], "draft")),
        "relay_prefix_cached": median(lambda t: t["relay"].cached / t["relay"].prompt),
    }


def _sharing(turns: Sequence[Together]) -> dict[str, float]:
    """What the two engines leave each other. `overlap` is 0 where their steps take turns, 1 where neither is slowed."""
    median = _median(turns)

    def kept(turn: Together, role: str, alone: Arm) -> float:
        return step_ms(turn[alone], role) / step_ms(turn["beside"], role)

    return {
        "draft_ms_a_token": median(lambda t: step_ms(t["draft"], "draft")),
        "beside_target_ms_a_token": median(lambda t: step_ms(t["beside"], "target")),
        "beside_draft_ms_a_token": median(lambda t: step_ms(t["beside"], "draft")),
        "overlap": median(lambda t: kept(t, "target", "target") + kept(t, "draft", "draft") - 1),
    }


def _median(turns: Sequence[Together]) -> Callable[[Callable[[Together], float]], float]:
    return lambda value: round(statistics.median(value(turn) for turn in turns), 4)
