"""Files of lines and of settings that survive a kill and a full disk, and what is said of damaged ones."""

from __future__ import annotations

import fcntl
import json
import logging
import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, TypeVar

from baton.trace import Trace

T = TypeVar("T")

log = logging.getLogger(__name__)


class _NotSet:
    def __str__(self) -> str:
        return "not set"


NOT_SET = _NotSet()
"""Stands for the value of a field that is missing."""

SHOWN = 120
"""Most characters of a value that an error shows."""


def shown(value: Any) -> str:
    """A JSON value, or `NOT_SET`, as an error shows it: a long one by its beginning."""
    text = str(value) if value is NOT_SET else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= SHOWN else text[:SHOWN] + " ..."


def differences(old: Any, new: Any, where: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Fields in which two JSON values differ, each with both values; a missing one is `NOT_SET`, which is not null."""
    if isinstance(old, dict) and isinstance(new, dict):
        for name in dict.fromkeys([*old, *new]):
            yield from differences(old.get(name, NOT_SET), new.get(name, NOT_SET), f"{where}.{name}" if where else name)
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for n, (a, b) in enumerate(zip(old, new, strict=True)):
            yield from differences(a, b, f"{where}[{n}]")
    elif old != new:
        yield where, old, new


def settle(file: Path, made_with: Mapping[str, Any]) -> None:
    """Keeps in `file` what its folder is made with, or checks that the folder was made with just that.

    A setting that only one side has is a difference like any other: what it was when it had no name is not known.

    Raises:
        ValueError: it was made with other settings (the first that differs is named), or the file is damaged.
    """
    mine = json.loads(json.dumps(made_with))
    if not file.exists():
        write_json(file, mine)
        return
    for field, old, new in differences(read_json(file, "remove that folder, or give another"), mine):
        raise ValueError(
            f"{file.parent} was made with {field} = {shown(old)}, now {shown(new)}; give another folder, or remove it"
        )


def locked(path: Path) -> IO[str]:
    """Opens a lock file of a folder, and holds it until it is closed or the process ends.

    Raises:
        ValueError: another process holds it.
    """
    lock = path.open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        raise ValueError(f"another process is writing to {path.parent}; wait for it, or give another folder") from None
    except OSError as error:
        log.warning("%s: no lock can be had there (%s); let no other process write to that folder", path, error)
    return lock


@contextmanager
def naming(file: Path) -> Iterator[None]:
    """Names the file in an error of the system, which says of writing only that there is no room."""
    try:
        yield
    except OSError as error:
        if error.filename is not None or error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, str(file)) from None


class Lines:
    """A file that lines are added to, each of them there whole or not at all: also after a kill, or on a full disk."""

    def __init__(self, path: Path, anew: bool = False):
        """Opens the file at its end, without the unfinished line that a kill may have left; `anew` empties it.

        Raises:
            OSError: it cannot be opened.
        """
        self.path = path
        # Unbuffered: a line that found no room must not be written later, behind others.
        self._file = path.open("wb+" if anew else "ab+", buffering=0)
        self._file.truncate(self._whole())

    def append(self, line: str) -> None:
        """Adds a line that a kill right afterwards does not lose.

        Raises:
            OSError: there is no room for it; the file is as it was.
        """
        end = self._file.seek(0, os.SEEK_END)
        left = memoryview(f"{line}\n".encode())
        with naming(self.path):
            try:
                while left:
                    left = left[self._file.write(left) :]
            except OSError:
                self._file.truncate(end)
                raise

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Lines:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _whole(self) -> int:
        """Bytes up to the end of the last whole line."""
        end = self._file.seek(0, os.SEEK_END)
        while end:
            start = max(0, end - (1 << 16))
            self._file.seek(start)
            newline = self._file.read(end - start).rfind(b"\n")
            if newline >= 0:
                return start + newline + 1
            end = start
        return 0


def numbers_or_null(data: Any) -> Any:
    """A JSON value with null in place of what is no number: NaN is no JSON."""
    if isinstance(data, Mapping):
        return {name: numbers_or_null(value) for name, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [numbers_or_null(value) for value in data]
    return None if isinstance(data, float) and math.isnan(data) else data


def write_json(path: Path, data: Any) -> None:
    """Writes a file that is there whole or not at all."""
    part = path.with_name(path.name + ".part")
    with naming(path):
        part.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        part.replace(path)


def read_json(file: Path, remedy: str) -> Any:
    """What a file that Baton wrote holds.

    Raises:
        OSError: it cannot be opened.
        ValueError: it is damaged; the error ends with the remedy.
    """
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{file} is damaged ({error}); {remedy}") from None


def read_traces(path: Path) -> Iterator[Trace]:
    """Traces of a file, one at a time.

    Raises:
        ValueError: the file is missing, or a line is damaged.
    """
    if not path.is_file():
        raise ValueError(f"traces: {path}: there is no such file; check the path")
    return read_records(path, Trace.from_json, "trace")


def read_records(path: Path, build: Callable[[Any], T], what: str) -> Iterator[T]:
    """What `build` makes of each line of a file, one at a time; none if there is no file.

    Raises:
        ValueError: a line is damaged, or nothing that `build` takes; `what` says what it should be.
    """
    for n, data in enumerate(read_lines(path, what), 1):
        try:
            yield build(data)
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path}: line {n} is no {what} ({error}); remove it") from None


def read_lines(path: Path, what: str = "JSON") -> Iterator[Any]:
    """Values of a file of JSON lines, one at a time; none if there is no file. A torn last line is passed over.

    Raises:
        ValueError: another line is no JSON.
    """
    if not path.is_file():
        return
    with path.open(encoding="utf-8", errors="replace") as lines:
        for n, line in enumerate(lines, 1):
            try:
                yield json.loads(line)
            except ValueError as error:
                if not line.endswith("\n"):
                    return
                raise ValueError(f"{path}: line {n} is no {what} ({error}); remove it") from None


def read_objects(path: Path) -> Iterator[dict[str, Any]]:
    """Objects of a JSONL file that somebody gives, one at a time; blank lines are passed over.

    Errors number what is no blank line, as ids of questions without an id do.

    Raises:
        OSError: the file cannot be opened.
        ValueError: a row is not UTF-8, no JSON or no object; it is named.
    """
    # Bytes: a text may hold what Python takes for other ends of lines than line feeds.
    with path.open("rb") as lines:
        for n, line in enumerate((x for x in lines if x.strip()), 1):
            try:
                # Windows begins files with a byte-order mark.
                row = json.loads(line.decode("utf-8-sig" if n == 1 else "utf-8"))
            except UnicodeDecodeError as error:
                raise ValueError(f"{path}: row {n}: not UTF-8 ({error.reason}); save the file as UTF-8") from None
            except json.JSONDecodeError as error:
                raise ValueError(f"{path}: row {n}: not valid JSON ({error.msg}); write one object a line") from None
            if not isinstance(row, dict):
                raise ValueError(f"{path}: row {n}: a {type(row).__name__}, not an object; write one object a line")
            yield row
