"""Takes the pictures of a report in docs/: `python scripts/screenshot_report.py report.html docs/report.png`.

Needs Playwright (`pip install playwright`) and Chromium. With `--at '#generations'` the picture begins there.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from playwright.sync_api import sync_playwright

from baton.user_errors import checked

NAMES = ("chromium", "chromium-browser", "google-chrome")


@checked()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("report", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--at", help="CSS selector of what stands at the top.")
    parser.add_argument("--size", default="1120x1400", help="WIDTHxHEIGHT of the window.")
    parser.add_argument("--dark", action="store_true")
    given = parser.parse_args()
    if not given.report.is_file():
        raise ValueError(f"{given.report}: there is no such file; give the report.html of a run")
    width, height = (int(n) for n in given.size.split("x"))
    path = next((found for name in NAMES if (found := shutil.which(name))), None)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        scheme = "dark" if given.dark else "light"
        page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
        page.goto(given.report.resolve().as_uri())
        if page.locator(".lane button").count():
            page.locator(".lane button").last.click()
        page.evaluate("at => at ? document.querySelector(at).scrollIntoView() : scrollTo(0, 0)", given.at)
        page.screenshot(path=given.out)
        browser.close()


if __name__ == "__main__":
    main()
