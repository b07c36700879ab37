"""The folder of a run: what it was asked, every trace as it finished, and what failed.

Lines are appended and flushed one answer at a time, so that a killed process loses at most the answers in flight.
"""

from __future__ import annotations

import json
import os
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from baton.bench import metrics
from baton.bench.grading import Grade
from baton.bench.metrics import Key
from baton.config import ConfigError
from baton.engines.base import EngineError
from baton.generation import RouterError
from baton.records import Lines, differences, locked, naming, read_json, read_traces, settle, write_json
from baton.trace import Trace

RESERVE_BYTES = 4 << 20
SHARES = "shares.json"


class RunFolder:
    """Opens `path` for one run, new or resumed, and holds it until `close`.

    `asked` is what the run answers (configuration, questions): a folder serves one such thing only.

    Raises:
        ConfigError: the folder holds a run that was asked something else, or another process is writing to it.
    """

    def __init__(self, path: Path, asked: Mapping[str, Any], environment: Mapping[str, Any]):
        self.path = path
        path.mkdir(parents=True, exist_ok=True)
        self._reserve = path / ".reserve"
        try:
            self._lock = locked(path / ".lock")
        except ValueError as error:
            raise ConfigError(f"out: {error}") from None
        try:
            self._hold_room()
            self._settle(asked)
            self._traces = Lines(path / "traces.jsonl")
            self._failures = Lines(path / "failures.jsonl")
        except BaseException:
            self._reserve.unlink(missing_ok=True)
            self._lock.close()
            raise
        with Lines(path / "environment.jsonl") as starts:
            starts.append(json.dumps(environment))

    def _settle(self, asked: Mapping[str, Any]) -> None:
        file = self.path / "config.json"
        try:
            if file.exists():
                self._take_code(file, asked)
            settle(file, asked)
        except ValueError as error:
            raise ConfigError(f"out: {error}") from None

    def _take_code(self, file: Path, asked: Mapping[str, Any]) -> None:
        """Has the run go on with the code of a router that was mended before it answered anything."""
        before = read_json(file, "remove that folder, or give another")
        old, new = (found.get("code", {}) for found in (before, asked))
        if not (changed := {arm for arm in new if new[arm] != old.get(arm)}):
            return
        traces = self.traces() if (self.path / "traces.jsonl").exists() else ()
        answered = Counter(metrics.key(t)[1] for t in traces)
        for arm in sorted(changed & answered.keys()):
            raise ValueError(
                f"{self.path} holds {answered[arm]} answers of {arm!r}, whose code has changed since; give another "
                "folder, or remove it"
            )
        write_json(file, {**before, "code": {**old, **{arm: new[arm] for arm in changed}}})

    def _hold_room(self) -> None:
        """Takes disk space that closing gives back, so that a run which fills the disk can still write its report."""
        with naming(self._reserve), self._reserve.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, RESERVE_BYTES)

    def done(self) -> dict[Key, Grade]:
        """Grades of the answers that are there."""
        return {metrics.key(t): Grade(t.extra["grade"]) for t in self.traces()}

    def traces(self) -> Iterator[Trace]:
        """Reads the traces one at a time.

        Raises:
            ValueError: a line is damaged.
        """
        return read_traces(self.path / "traces.jsonl")

    def shares(self) -> dict[str, float]:
        """Target shares by label that arms were measured to have, and others take: one for the whole run."""
        return _shares(self.path)

    def keep_share(self, label: str, share: float) -> None:
        write_json(self.path / SHARES, {**self.shares(), label: share})

    def append(self, trace: Trace) -> None:
        self._traces.append(trace.dumps())

    def fail(self, key: Key, attempt: int, error: Exception) -> None:
        """Records a failed attempt."""
        self._failures.append(failure(key, attempt, error))

    def close(self) -> None:
        self._reserve.unlink(missing_ok=True)
        self._traces.close()
        self._failures.close()
        self._lock.close()


def told(error: Exception) -> str:
    """A failure in one line; of one that no engine or router meant to raise, also the place in the code."""
    said = f"{type(error).__name__}: {error}".partition("\n")[0]
    if isinstance(error, (EngineError, RouterError)):
        return said
    place = traceback.extract_tb(error.__traceback__)[-1]
    return f"{said} ({Path(place.filename).name}, line {place.lineno})"


def failure(key: Key, attempt: int, error: Exception) -> str:
    """A line of `failures.jsonl`; an error that no engine or router meant to raise, with its traceback."""
    name, arm, question, sample = key
    line = {
        "pass": name, "arm": arm, "question": question, "sample": sample, "attempt": attempt,
        "error": f"{type(error).__name__}: {error}", "retryable": bool(getattr(error, "retryable", False)),
        "time": time.time(),
    }  # fmt: skip
    if not isinstance(error, (EngineError, RouterError)):
        line["traceback"] = "".join(traceback.format_exception(error))
    return json.dumps(line, ensure_ascii=False)


def merge(out: Path, shards: Sequence[Path]) -> tuple[int, dict[str, int]]:
    """Joins the answers of several folders of one comparison in a new folder.

    Returns how many there are and, by label, how many were left out: of an arm that takes the share of another one,
    where a shard had measured another share than the first that did. Such an arm has one share, or is several.

    Raises:
        ConfigError: a folder holds no run, the folders were asked different things, or `out` holds a run already.
    """
    if (out / "config.json").exists():
        raise ConfigError(f"out: {out} holds a run already; give a new folder")
    asked = [_asked(shard) for shard in shards]
    for shard, other in zip(shards, asked, strict=True):
        if difference := next(differences(asked[0], other), None):
            raise ConfigError(f"{shard}: {difference[0]} differs from {shards[0]}; merge shards of one comparison")
    out.mkdir(parents=True, exist_ok=True)
    shares = {label: share for shard in reversed(shards) for label, share in _shares(shard).items()}
    takes = {r["label"] or r["router"]: r["share_of"] for r in asked[0]["recipe"]["routers"] if r["share_of"]}
    seen: set[Key] = set()
    left_out: Counter[str] = Counter()
    # Anew: an earlier merge may have been cut off.
    with Lines(out / "traces.jsonl", anew=True) as file:
        for shard in shards:
            mine = _shares(shard)
            others = {arm for arm, of in takes.items() if mine.get(of) != shares.get(of)}
            for trace in read_traces(shard / "traces.jsonl"):
                key = metrics.key(trace)
                if key[1] in others:
                    left_out[key[1]] += 1
                elif key not in seen:
                    seen.add(key)
                    file.append(trace.dumps())
    for name in ("environment.jsonl", "failures.jsonl"):
        lines = "".join((shard / name).read_text(encoding="utf-8") for shard in shards if (shard / name).exists())
        (out / name).write_text(lines, encoding="utf-8")
    if shares:
        write_json(out / SHARES, shares)
    # Last, so that a merge that was cut off is no run that could be resumed.
    write_json(out / "config.json", asked[0])
    return len(seen), dict(left_out)


def _shares(folder: Path) -> dict[str, float]:
    file = folder / SHARES
    found: dict[str, float] = read_json(file, "remove that folder") if file.exists() else {}
    return found


def _asked(folder: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise ConfigError(f"{folder}: it holds no run; give the folders that `baton compare --shard` wrote") from None
    return found
