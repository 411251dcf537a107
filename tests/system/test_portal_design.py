"""The portal's tokens and components on one page, in both themes and at each size: readable, no
wider than the screen, and kept as a picture. The page is the test's (`design.html`), with the
portal's style and macros; a portal serves its style."""

# ruff: noqa: F401, F811 (fixtures)

from __future__ import annotations

import re
from pathlib import Path

import pytest
from markupsafe import Markup
from playwright.sync_api import Browser, Page

from cod import data, svg
from cod.states import WORDS
from cod.web.portal.assets import Assets
from cod.web.portal.forms import Form
from cod.web.portal.render import environment
from tests.system.browser import Complaints, browser, context, faults, picture, too_wide

pytestmark = [pytest.mark.system, pytest.mark.xdist_group("portal")]

STYLE = data.path("web") / "assets" / "style.css"
NO_COLOURS = {"shade", "space", "round"}
TONES = ("good", "busy", "wait", "bad", "rest")
PAIRS = [
    *((tone, f"{tone}-ground") for tone in TONES),
    *((ink, ground) for ink in ("ink", "quiet", "link") for ground in ("ground", "face", "raised")),
    ("on-accent", "accent"),
    ("on-accent", "danger"),
    ("ink", "accent-ground"),
]
ORIGIN = "https://portal.test"


def tokens() -> list[str]:
    """Return the names of the style's colours; each theme has to have all of them."""
    light, dark, *_ = re.findall(r":root \{(.*?)\}", STYLE.read_text(), re.DOTALL)
    names = [re.findall(r"--([a-z-]+):", part) for part in (light, dark)]
    assert {*names[0]} - NO_COLOURS == {*names[1]} - NO_COLOURS
    return [name for name in names[0] if name not in NO_COLOURS]


def design() -> str:
    web = data.path("web")
    templates = environment(web / "templates", Assets(web / "assets"))
    points = [(float(day), 3.0 + day % 4) for day in range(10)]
    axis = svg.Axis("day", label_of=lambda day: f"day {day:g}")
    chart = svg.areas("", [("chem", points), ("physics", points)], axis, svg.Axis("nodes"))
    page = templates.from_string(Path(__file__).with_name("design.html").read_text())
    return page.render(
        tokens=tokens(),
        pairs=PAIRS,
        node_states=[*WORDS],
        form=Form("/vclusters", "csrf", "key", errors={"size": "should be a number"}),
        chart=Markup(svg.inline(chart, "Nodes held")),
        now=0.0,
    )


def shown(page: Page) -> None:
    """Open the page, its style beside it, without a server."""
    page.route(f"{ORIGIN}/**", lambda route: route.fulfill(path=STYLE, content_type="text/css"))
    page.route(f"{ORIGIN}/", lambda route: route.fulfill(body=design(), content_type="text/html"))
    page.goto(f"{ORIGIN}/")


@pytest.mark.nightly
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("size", ["desktop", "narrow"])
def test_the_design_is_readable(browser: Browser, size: str, theme: str) -> None:
    profile = context(browser, size, color_scheme=theme)
    page = profile.new_page()
    complaints = Complaints(page)
    shown(page)
    picture(page, f"design-{theme}", size)
    found = [*faults(page), *complaints.found]
    wide = too_wide(page)
    profile.close()
    assert found == []
    assert not wide


def test_a_chart_says_its_numbers_where_the_pointer_is(browser: Browser) -> None:
    profile = context(browser, java_script_enabled=False)
    page = profile.new_page()
    shown(page)
    column = page.locator(".chart .numbers").nth(3)
    column.hover()  # fails where anything else has the pointer there
    assert "day 3\nchem: 6\nphysics: 6" in (column.text_content() or "")
    profile.close()
