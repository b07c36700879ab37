"""Chromium for tests, where there is one."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
REQUIRED = "BATON_BROWSER_REQUIRED"
"""Set by `make test-browser`: a missing browser is a failure there."""


def missing(reason: str) -> None:
    (pytest.fail if os.environ.get(REQUIRED) else pytest.skip)(f"{reason}; `make test-browser` installs it")


@contextmanager
def chromium() -> Iterator[Any]:
    """A browser of Playwright's; the test is skipped if none starts."""
    try:
        from playwright.sync_api import Error, sync_playwright
    except ImportError:
        missing("playwright is not installed")
    path = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    with sync_playwright() as playwright:
        try:
            opened = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        except Error as error:
            missing(f"there is no Chromium that starts ({str(error).splitlines()[0]})")
        yield opened
        opened.close()
