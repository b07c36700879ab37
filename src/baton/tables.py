"""Tables in a terminal: one look, and no figure is cut in half where the window is narrow."""

from __future__ import annotations

from collections.abc import Collection

from rich import box
from rich.table import Table


def table(title: str, *columns: str, words: Collection[str] | None = None, breaking: Collection[str] = ()) -> Table:
    """A table without rows.

    Args:
        columns: headings. All empty: there is no heading.
        words: headings of columns that hold words, which stand to the left and break where there is too little room;
            the first column if None. Other columns hold figures, which stand to the right and do not break: a part of
            a figure reads as another.
        breaking: headings of columns to the right that may break too: a figure before its interval, a path.
    """
    named = columns[:1] if words is None else words
    out = Table(
        title=title or None, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False,
        show_header=any(columns),
    )  # fmt: skip
    for column in columns:
        is_word = column in named
        out.add_column(
            column, justify="left" if is_word else "right", no_wrap=not (is_word or column in breaking), overflow="fold"
        )
    return out


def counted(count: int, noun: str, plural: str | None = None) -> str:
    """A count with its noun: `1 point`, `2 points`; `plural` where that is more than an s."""
    return f"{count} {noun if count == 1 else plural or noun + 's'}"
