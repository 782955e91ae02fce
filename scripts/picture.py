"""Takes the picture of a report for the README: scripts/picture.py runs/demo/report.html docs/figures/report.png"""

import shutil
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

OFFLINE = ("--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-sync")


def main(page: str, picture: str) -> None:
    """The upper part of a page in a window of 1280 × 860, as a PNG."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=OFFLINE)
        tab = browser.new_page(viewport={"width": 1280, "height": 860}, color_scheme="light")
        tab.goto(Path(page).resolve().as_uri())
        tab.wait_for_load_state("networkidle")
        tab.screenshot(path=picture)
        browser.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
