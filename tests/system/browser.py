"""The distribution's Chromium and Firefox, driven by Playwright: pages looked at, checked for
accessibility, and kept as pictures.

Pictures go to `build/screenshots/`, one for each page and size; those of Firefox have its name.
Tests with the fixture `browser` run in Firefox by night, those marked `BOTH` in `make test`, too.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

CHROMIUM = "/usr/bin/chromium"
FIREFOX = "/usr/bin/firefox-esr"
# Root in a test's container has no sandbox to start; the rest keeps Chromium from calling its
# makers.
ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
SCREENSHOTS = Path(__file__).resolve().parents[2] / "build" / "screenshots"
SIZES = {"desktop": (1280, 900), "phone": (390, 844), "narrow": (320, 640)}
PATIENCE = 120_000.0  # milliseconds for what comes by itself, on a busy machine
expect.set_options(timeout=PATIENCE)
SERIOUS = ("serious", "critical")
# Of the style `body {}`, which Playwright puts into a page of Firefox before it takes a picture.
PICTURES = "sha256-YjaKGiklmzC6wjXA513HAMmzus8VE61XCOT+SmwNZWA="


@contextmanager
def chromium(program: str = CHROMIUM) -> Iterator[Browser]:
    """A running browser. `program` may be a script that starts it somewhere else, in a
    namespace."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=[*ARGUMENTS])
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def firefox() -> Iterator[Browser]:
    """A running Firefox as it is packaged. Its channel makes Playwright speak WebDriver BiDi, which
    is all that it understands: Playwright's own build has another protocol."""
    with sync_playwright() as playwright:
        browser = playwright.firefox.launch(executable_path=FIREFOX, channel="moz-firefox")
        try:
            yield browser
        finally:
            browser.close()


BROWSERS = {"chromium": chromium, "firefox": firefox}
BOTH = pytest.mark.parametrize("browser", [*BROWSERS], indirect=True)
# Of tests that need what Firefox's BiDi does not tell, such as the body of a request.
CHROMIUM_ALONE = pytest.mark.parametrize("browser", ["chromium"], indirect=True)


@pytest.fixture(
    scope="module", params=["chromium", pytest.param("firefox", marks=pytest.mark.nightly)]
)
def browser(request: pytest.FixtureRequest) -> Iterator[Browser]:
    with BROWSERS[request.param]() as running:
        yield running


def context(browser: Browser, size: str = "desktop", **options: Any) -> BrowserContext:
    """A profile of its own, that believes the site's self-signed certificate. Skips a test that
    asks Firefox for what its BiDi has no command for."""
    width, height = SIZES[size]
    if browser.browser_type.name == "firefox":
        if (scheme := options.get("color_scheme", "light")) != "light":
            pytest.skip(f"Firefox cannot be told that its reader's theme is {scheme}")
        if not options.get("java_script_enabled", True):
            pytest.skip("Firefox cannot be told to run no scripts")
    made = browser.new_context(
        ignore_https_errors=True,
        viewport={"width": width, "height": height},
        is_mobile=size != "desktop",
        has_touch=size != "desktop",
        **options,
    )
    made.set_default_timeout(PATIENCE)
    made.set_default_navigation_timeout(PATIENCE)
    return made


class Complaints:
    """What a page's console and its requests complain of: a broken Content-Security-Policy, scripts
    that fail, files that are not there. `found` has the sentences; `expected` texts are let
    pass."""

    def __init__(self, page: Page, expected: tuple[str, ...] = ()) -> None:
        self.found: list[str] = []
        self._expected = (PICTURES, *expected)
        page.on(
            "console", lambda message: self._note(message.text) if message.type == "error" else None
        )
        page.on("pageerror", lambda error: self._note(str(error)))
        page.on("requestfailed", lambda request: self._failed(request))

    def _failed(self, request: Any) -> None:
        # leaving a page ends what it follows
        if request.failure not in ("net::ERR_ABORTED", "NS_BINDING_ABORTED"):
            self._note(f"{request.url}: {request.failure}")

    def _note(self, sentence: str) -> None:
        if not any(text in sentence for text in self._expected):
            self.found.append(sentence)


def faults(page: Page) -> list[str]:
    """What axe finds serious or critical on the page: the rule, and the elements."""
    found = Axe().run(page).response["violations"]
    return [
        f"{each['id']} ({each['impact']}): {json.dumps([node['target'] for node in each['nodes']])}"
        for each in found
        if each["impact"] in SERIOUS
    ]


def too_wide(page: Page) -> bool:
    """Must the page be scrolled sideways?"""
    wide: bool = page.evaluate(
        "document.documentElement.scrollWidth > document.documentElement.clientWidth + 1"
    )
    return wide


def picture(page: Page, name: str, size: str = "desktop", *, whole: bool = True) -> Path:
    """Keep what the page looks like."""
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    browser = page.context.browser
    assert browser is not None
    suffix = "" if browser.browser_type.name == "chromium" else f"-{browser.browser_type.name}"
    path = SCREENSHOTS / f"{name}-{size}{suffix}.png"
    page.screenshot(path=path, full_page=whole)
    return path
