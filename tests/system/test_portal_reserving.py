"""A cluster reserved for a deadline in three weeks, in a real browser whose clock is Berlin's."""

# ruff: noqa: F401, F811 (fixtures)

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.portal_site import Portal
from tests.system.browser import BOTH, Complaints, browser, context, faults, picture
from tests.system.test_portal_pages import portal, signed_in

pytestmark = [
    pytest.mark.system,
    pytest.mark.slow,
    pytest.mark.in_turn(2, first=1, together=True),
    pytest.mark.xdist_group("portal"),
]

BERLIN = "Europe/Berlin"


@pytest.fixture
def page(portal: Portal, browser: Browser) -> Iterator[Page]:
    opened = context(browser, timezone_id=BERLIN)
    page = signed_in(portal, opened, "owner")
    complaints = Complaints(page, ("429 (Too Many Requests)", "409 (Conflict)", "422 ("))
    yield page
    found = list(complaints.found)
    opened.close()
    assert found == []


def in_utc(local: str) -> str:
    """What a field of the form says, in UTC."""
    at = datetime.fromisoformat(local).replace(tzinfo=ZoneInfo(BERLIN))
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M}"


@BOTH
def test_a_new_cluster_is_reserved_in_four_clicks(portal: Portal, page: Page) -> None:
    page.goto(f"{portal.url}/calendar?window=month")
    clicks = 0
    free = page.locator(".chart a").filter(has=page.locator("rect.free, path.free"))
    free.nth(4).click()
    clicks += 1
    page.wait_for_url("**/vclusters/new?**")
    expect(page.get_by_label(f"From ({BERLIN})")).not_to_be_empty()
    start = page.get_by_label(f"From ({BERLIN})").input_value()
    page.get_by_role("textbox", name="Name").fill("deadline")
    page.get_by_role("radio").first.click()
    clicks += 1
    expect(page.locator(".verdict")).to_contain_text("can be reserved from")
    expect(page.locator(".verdict time")).to_have_attribute("title", f"{in_utc(start)} UTC")
    assert faults(page) == []
    picture(page, "reserve-new", "desktop")
    page.get_by_role("button", name="Request cluster").click()
    clicks += 1
    expect(page.locator(".flash")).to_contain_text("deadline is reserved")
    assert clicks < 4, "the fourth is the calendar's entry in the navigation"
    (made,) = portal.client().get("/requests", vcluster="deadline")["items"]
    assert f"{datetime.fromtimestamp(made['starts_at'], UTC):%Y-%m-%d %H:%M}" == in_utc(start)


def test_a_time_is_drawn_over_free_nodes(portal: Portal, page: Page) -> None:
    page.goto(f"{portal.url}/calendar")
    bars = page.locator(".chart a").filter(has=page.locator("rect.free, path.free"))
    boxes = [box for each in bars.all() if (box := each.bounding_box()) is not None]
    widest = max(boxes, key=lambda box: box["width"])  # by the time of day some are a few pixels
    middle = widest["y"] + widest["height"] / 2
    page.mouse.move(widest["x"] + widest["width"] / 2, middle)
    page.mouse.down()
    page.mouse.move(widest["x"] + widest["width"] * 0.9, middle, steps=4)
    expect(page.locator(".drawing")).to_be_visible()
    page.mouse.up()
    page.wait_for_url("**/vclusters/new?**ends_at=**")
    fields = [page.get_by_label(f"{name} ({BERLIN})").input_value() for name in ("From", "Until")]
    start, end = (datetime.fromisoformat(each) for each in fields)
    assert start < end
    assert start.minute % 15 == 0


def test_a_proposal_is_taken_by_its_button(portal: Portal, page: Page) -> None:
    page.goto(f"{portal.url}/vclusters/new")
    page.get_by_role("radio").first.click()
    page.get_by_label(f"From ({BERLIN})").fill("2999-01-01T08:00")
    expect(page.locator(".verdict")).to_contain_text("too far ahead")
