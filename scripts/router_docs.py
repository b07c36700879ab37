"""Writes a page in docs/routers/ for each shipped router, from its docstrings.

python scripts/router_docs.py            # write them
python scripts/router_docs.py --check    # exit code 1 if a page is out of date
"""

from __future__ import annotations

import argparse
import ast
import inspect
import sys
import textwrap
from dataclasses import MISSING, Field, fields
from itertools import pairwise
from pathlib import Path
from typing import Any

from baton import routers
from baton.user_errors import checked

FOLDER = Path(__file__).parents[1] / "docs" / "routers"


def knob_docs(cls: type[Any]) -> dict[str, str]:
    """The string that stands under each field of a class."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(cls)))
    body = tree.body[0].body  # type: ignore[attr-defined]
    found = {}
    for field, after in pairwise(body):
        is_text = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and is_text:
            found[field.target.id] = " ".join(str(after.value.value).split())  # type: ignore[attr-defined]
    return found


def default(field: Field[Any]) -> str:
    """A field's default as one would write it in a recipe; `required` if it has none."""
    if field.default is not MISSING:
        value = field.default
        return f"`{value.name}`" if hasattr(value, "name") else f"`{value!r}`"
    return "required" if field.default_factory is MISSING else f"`{field.default_factory()!r}`"


def page(cls: type[Any]) -> str:
    """One router's page."""
    module = inspect.getdoc(sys.modules[cls.__module__]) or ""
    about = inspect.getdoc(cls) or ""
    file = Path(inspect.getfile(cls))
    lines = [f"# {cls.name}", "", module, "", about, ""]
    known = knob_docs(cls)
    if knobs := [f for f in fields(cls) if f.init]:
        lines += ["| knob | default | meaning |", "|---|---|---|"]
        lines += [f"| `{f.name}` | {default(f)} | {known.get(f.name, '').replace('|', chr(92) + '|')} |" for f in knobs]
        lines.append("")
    lines += [f"Code: [`src/baton/routers/{file.name}`](../../src/baton/routers/{file.name}).", ""]
    return "\n".join(lines)


def index() -> str:
    lines = ["# Routers", "", "Made by `python scripts/router_docs.py` from the code's docstrings.", ""]
    for name, cls in routers.shipped().items():
        about = (inspect.getdoc(cls) or "").split("\n\n")[0].replace("\n", " ")
        lines.append(f"- [{name}]({name}.md): {about}")
    return "\n".join([*lines, ""])


@checked()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a page is out of date")
    check = parser.parse_args().check
    pages = {f"{name}.md": page(cls) for name, cls in routers.shipped().items()} | {"README.md": index()}
    stale = [n for n, text in pages.items() if not (FOLDER / n).exists() or (FOLDER / n).read_text() != text]
    stale += [f.name for f in FOLDER.glob("*.md") if f.name not in pages]
    if check:
        if stale:
            print(f"out of date: {', '.join(stale)}; run python scripts/router_docs.py", file=sys.stderr)
        raise SystemExit(bool(stale))
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name in stale:
        if name in pages:
            (FOLDER / name).write_text(pages[name])
        else:
            (FOLDER / name).unlink()
    print(f"{len(pages)} pages in {FOLDER}, {len(stale)} of them new or changed")


if __name__ == "__main__":
    main()
