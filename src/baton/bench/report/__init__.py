"""`report.html`: a run, or several beside each other, as one file that needs no network.

The tables are plain HTML, so that they can be read without scripts; the plots are drawn from the figures in the page by
a script of its own. Everything that came from a model, a recipe or an error message is escaped, and the page's policy
lets no other script run.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2

from baton import __version__
from baton.bench.report.folders import read_run
from baton.bench.report.page import build
from baton.config import ConfigError

NAME = "report.html"


def write(runs: Sequence[Path], out: Path | None = None) -> Path:
    """Writes the report of one run, or of several compared with each other; returns its path.

    Args:
        out: the file; `report.html` in the folder of the first run if None.

    Raises:
        ConfigError: a folder holds no run, or `out` is a folder.
        ValueError: a file of a run is damaged.
    """
    file = out or runs[0] / NAME
    if file.is_dir():
        raise ConfigError(f"out: {file} is a folder; name a file in it, such as {file / NAME}")
    html = render(build([read_run(path) for path in runs]))
    part = file.with_name(file.name + ".part")
    part.write_text(html, encoding="utf-8", errors="replace")
    part.replace(file)
    return file


def render(page: dict[str, Any]) -> str:
    """The HTML of a page."""
    files = resources.files(__name__)
    script, style = (files.joinpath(name).read_text(encoding="utf-8") for name in ("page.js", "page.css"))
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(lambda name: files.joinpath(name).read_text(encoding="utf-8")),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html.j2").render(
        **page,
        data=_embedded(page["plots"]),
        script=script,
        style=style,
        # The browser runs what has this digest and nothing else.
        digest=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        version=__version__,
    )


def _embedded(data: Any) -> str:
    """JSON that cannot end the script element it stands in."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for sign in "<>&\u2028\u2029":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text
