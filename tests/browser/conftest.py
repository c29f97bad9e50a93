"""A real browser for the tests of the dashboard.

They fail, and say what to do, where there is no Chromium; MILLRACE_NO_BROWSER=1 leaves them out.
MILLRACE_SCREENSHOTS=FOLDER keeps a picture of what each test saw last.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest
from playwright.sync_api import Browser, Page, Request, sync_playwright

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
#: The browser's own patience, ms.
PATIENCE_MS = 15_000


class Look(Protocol):
    """Opens a page of its own."""

    def __call__(self, url: str, *, width: int = 1280, dark: bool = False, foreign: bool = False) -> Page:
        """Open an address in a window of this width; a foreign page may ask whom it likes."""


@pytest.fixture(scope="session")
def chromium() -> str:
    """Path of the browser."""
    if os.environ.get("MILLRACE_NO_BROWSER") == "1":
        pytest.skip("MILLRACE_NO_BROWSER=1")
    named = os.environ.get("MILLRACE_CHROMIUM")
    found = named or next(filter(None, map(shutil.which, _NAMES)), None)
    if not found:
        pytest.fail(
            "no Chromium here: run scripts/install-chromium, name one in MILLRACE_CHROMIUM, "
            "or leave these tests out with MILLRACE_NO_BROWSER=1",
            pytrace=False,
        )
    return found


@pytest.fixture(scope="session")
def browser(chromium: str) -> Iterator[Browser]:
    with sync_playwright() as playwright:
        # In a container there is no user namespace to build a sandbox with; the pages are our own.
        args = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
        started = playwright.chromium.launch(executable_path=chromium, headless=True, args=args)
        yield started
        started.close()


@pytest.fixture
def look(browser: Browser, request: pytest.FixtureRequest) -> Iterator[Look]:
    """Open pages; at the end none of them may have had an error, or asked anybody else than our server."""
    contexts: list[Any] = []
    pages: list[Page] = []
    troubles: list[str] = []

    def open_(url: str, *, width: int = 1280, dark: bool = False, foreign: bool = False) -> Page:
        context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme="dark" if dark else "light"
        )
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(PATIENCE_MS)
        own = "/".join(url.split("/")[:3])

        def asked(what: Request) -> None:
            if not (foreign or what.url.startswith(own)):
                troubles.append(f"asked {what.url}")

        page.on("pageerror", lambda error: troubles.append(f"error {error}"))
        page.on(
            "console", lambda line: troubles.append(line.text) if "Content Security" in line.text else None
        )
        page.on("request", asked)
        page.goto(url)
        pages.append(page)
        return page

    yield open_
    if folder := os.environ.get("MILLRACE_SCREENSHOTS"):
        Path(folder).mkdir(parents=True, exist_ok=True)
        for number, page in enumerate(pages):
            name = f"{request.node.name}-{number}.png".replace("/", "-")
            page.screenshot(path=str(Path(folder) / name), full_page=True)
    for context in contexts:
        context.close()
    assert troubles == []
