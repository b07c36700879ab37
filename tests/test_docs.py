"""The pages in docs/ are what the code says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from baton import routers

ROOT = Path(__file__).parents[1]
NO_PAPER = {"target", "draft", "random", "hybrid", "bail-out", "budget", "fallback", "steady", "load-aware", "policy"}
"""Routers that fix nothing published."""


def test_every_router_has_an_up_to_date_page():
    script = ROOT / "scripts" / "router_docs.py"
    done = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", routers.names())
def test_a_routers_page_says_what_is_faithful_what_is_fixed_when_to_use_it_and_what_each_knob_means(name):
    page = (ROOT / "docs" / "routers" / f"{name}.md").read_text()
    missing = [part for part in ("Faithful:", "Fixed:", "Use it when:") if part not in page]
    assert missing in ([], ["Fixed:"] if name in NO_PAPER else [])
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    assert not [row for row in rows if row.endswith("|  |")], "a knob without a meaning"
