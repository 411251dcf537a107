"""Every page of the portal in a real browser, at desktop and phone size: accessible, no wider than
the screen, nothing to complain of, and kept as a picture. A page without an example here fails.
"""

# ruff: noqa: F401, F811 (fixtures)

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from cod.web.portal.links import fill
from cod.web.portal.registry import PAGES
from tests.portal_site import PASSWORD, Portal
from tests.system.browser import Complaints, browser, context, faults, picture, too_wide

pytestmark = [pytest.mark.system, pytest.mark.xdist_group("portal")]

PUBLIC = ("/sign-in", "/invitation")  # looked at by somebody who is not signed in

EXAMPLES = {  # by pattern: the names in it, and a query if the page shows more with one
    "/": {},
    "/account": {},
    "/audit": {},
    "/blocks": {},
    "/blocks/{name}": {"name": "rack1"},
    "/calendar": {},
    "/captures": {},
    "/energy": {},
    "/faults": {},
    "/groups": {},
    "/groups/{name}": {"name": "physics"},
    "/groups/{name}/deliveries": {"name": "physics"},
    "/hold": {},
    "/images": {},
    "/images/new": {},
    "/images/{name}": {"name": "physics/execd"},
    "/invitation": {},
    "/machine-list": {},
    "/maintenance": {},
    "/maintenance/{id}": {"id": "1"},
    "/map": {},
    "/new-machines": {},
    "/node-actions": {},
    "/nodes": {},
    "/nodes/{name}": {"name": "node13"},
    "/nodes/{name}/capture": {"name": "node01"},
    "/nodes/{name}/burnin": {"name": "node13"},
    "/notices": {},
    "/notices/{id}": {"id": "1"},
    "/people": {},
    "/people/{name}": {"name": "owner"},
    "/policy": {},
    "/requests": {},
    "/requests/{id}": {"id": "4"},
    "/search": {"?": "q=node"},
    "/series": {},
    "/series/new": {},
    "/series/{name}": {"name": "course"},
    "/settings": {},
    "/settings/{name}": {"name": "policy.inertia"},
    "/shares": {},
    "/shares/{name}": {"name": "physics"},
    "/sign-in": {},
    "/templates": {},
    "/templates/new": {"?": "like=physics/execution-host&view=xml"},
    "/templates/{name}": {"name": "physics/execution-host"},
    "/timeline": {},
    "/types": {},
    "/types/{name}": {"name": "small"},
    "/vclusters": {},
    "/vclusters/new": {"?": "template=debian"},
    "/vclusters/{name}": {"name": "farm"},
    "/vclusters/{name}/ask": {"name": "batch"},
    "/vclusters/{name}/history": {"name": "batch"},
    "/vclusters/{name}/reinstall": {"name": "batch"},
    "/volumes": {},
    "/volumes/new": {},
    "/volumes/{name}": {"name": "physics/data"},
}


def test_every_page_has_an_example() -> None:
    assert sorted(EXAMPLES) == sorted(page.path for page in PAGES)


@pytest.fixture(scope="module")
def portal(tmp_path_factory: pytest.TempPathFactory, browser: Browser) -> Iterator[Portal]:
    """A site for each browser, whose tests change it."""
    served = Portal(tmp_path_factory.mktemp("portal"))
    served.found()
    with served:
        yield served


def signed_in(portal: Portal, profile: BrowserContext, name: str) -> Page:
    page = profile.new_page()
    page.goto(f"{portal.url}/sign-in")
    page.get_by_label("Name").fill(name)
    page.get_by_label("Password", exact=True).fill(PASSWORD)
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url(f"{portal.url}/")
    return page


def walked(
    portal: Portal,
    page: Page,
    paths: list[str],
    size: str,
    suffix: str = "",
    **other: dict[str, str],
) -> list[str]:
    """Return what is wrong with those pages, each with its path. `other`: examples for some of
    them, by their last word."""
    complaints = Complaints(page)
    wrong = []
    for path in paths:
        names = other.get(name_of(path).rpartition("-")[2], EXAMPLES[path])
        answer = page.goto(
            portal.url + fill(path, names) + (f"?{names['?']}" if "?" in names else "")
        )
        assert answer is not None
        found = [] if answer.status == 200 else [f"status {answer.status}"]
        for part in page.eval_on_selector_all(
            "[data-part]", "all => all.map(each => each.dataset.part)"
        ):
            found += fetched_again(page, part)
        found += faults(page) + (["too wide"] if too_wide(page) else []) + complaints.found
        if size == "desktop" and too_wide_enlarged(page):
            found.append("too wide at 320 pixels")
        complaints.found.clear()
        wrong += [f"{path} ({size}): {each}" for each in found]
        picture(page, name_of(path) + suffix, size)
    return wrong


def too_wide_enlarged(page: Page) -> bool:
    """Return whether the page must be scrolled sideways at 320 pixels, which a desktop has when it
    enlarges to 400 % (WCAG 2.2, 1.4.10)."""
    before = page.viewport_size
    assert before is not None
    page.set_viewport_size({"width": 320, "height": 640})
    wide = too_wide(page)
    page.set_viewport_size(before)
    return wide


TITLES = """part => [...part.querySelectorAll("h1, h2, h3, h4, label, summary, th, [aria-label]")]
  .filter(each => !each.querySelector("time"))
  .map(each => each.getAttribute("aria-label") || each.textContent.trim())"""


def fetched_again(page: Page, name: str) -> list[str]:
    """Put a part in its place anew, as `live.js` does, and return what is wrong: its headings and
    labels are no longer the same ones."""
    alone = page.request.get(
        page.url, params=dict(parse_qsl(urlsplit(page.url).query)) | {"part": name}
    )
    if not alone.ok:
        return [f"part {name}: status {alone.status}"]
    part = page.locator(f"[data-part={name}]").first
    if part.get_attribute("data-on") is None:
        return []  # shows what was typed, which an address does not say
    before = part.evaluate(TITLES)
    part.evaluate("(part, text) => { part.innerHTML = text }", alone.text())
    after = part.evaluate(TITLES)
    return [] if after == before else [f"part {name}: {before} became {after}"]


def name_of(path: str) -> str:
    """Return the name of a page's picture: 'vcluster-history' of /vclusters/{name}/history."""
    words = re.sub(r"s/\{\w+\}", "", path).strip("/").replace("/", "-")
    return "portal-" + (words or "overview")


# The pages that differ most on a phone; `too_wide_enlarged` shows that all are narrow.
SMALL = ("/", "/nodes", "/nodes/{name}", "/timeline", "/vclusters/new", "/vclusters/{name}")


@pytest.mark.parametrize(
    ("size", "paths"),
    [
        *(
            pytest.param("desktop", tuple(EXAMPLES)[n::4], marks=pytest.mark.in_turn(4))
            for n in range(4)
        ),
        ("phone", SMALL),
        pytest.param("phone", tuple(EXAMPLES), marks=pytest.mark.nightly),
    ],
    ids=[*(f"desktop-{n + 1}" for n in range(4)), "phone", "phone-all"],
)
def test_all_pages(portal: Portal, browser: Browser, size: str, paths: tuple[str, ...]) -> None:
    profile = context(browser, size)
    stranger = walked(portal, profile.new_page(), list(PUBLIC), size)
    page = signed_in(portal, profile, "administrator")
    wrong = walked(portal, page, [path for path in paths if path not in PUBLIC], size)
    profile.close()
    assert stranger + wrong == []


OWNERS = (
    "/",
    "/vclusters",
    "/vclusters/new",
    "/images",
    "/templates",
    "/groups/{name}",
    "/requests/{id}",
)


def test_what_an_owner_sees_in_the_dark(portal: Portal, browser: Browser) -> None:
    """Colours are other ones there, and their contrast has to do as well."""
    profile = context(browser, "desktop", color_scheme="dark")
    page = signed_in(portal, profile, "owner")
    wrong = walked(portal, page, list(OWNERS), "desktop", "-dark", request={"id": "10"})
    profile.close()
    assert wrong == []


def test_the_navigation_is_a_menu_on_a_phone_without_scripts(
    portal: Portal, browser: Browser
) -> None:
    profile = context(browser, "narrow", java_script_enabled=False)
    page = signed_in(portal, profile, "owner")
    menu, button = page.locator("#side"), page.get_by_role("button", name="Menu")
    expect(menu).to_be_hidden()
    button.click()
    expect(menu.get_by_role("link", name="Calendar")).to_be_visible()
    page.keyboard.press("Escape")
    expect(menu).to_be_hidden()
    button.click()
    menu.get_by_role("link", name="Calendar").click()
    page.wait_for_url(f"{portal.url}/calendar")
    expect(menu).to_be_hidden()
    profile.close()


def test_what_is_typed_is_looked_at(portal: Portal, browser: Browser) -> None:
    """The wizard's forecast and the editor's faults come by themselves, from the server."""
    profile = context(browser)
    page = signed_in(portal, profile, "owner")
    page.goto(f"{portal.url}/vclusters/new")
    forecast = page.locator("[data-part=match]")
    page.get_by_label("Memory").select_option(label="1024 GiB or more")
    forecast.get_by_text("3 of 33 nodes match").wait_for()
    page.get_by_label("Nodes", exact=True).fill("6")  # more than match with those expected
    forecast.get_by_text("Not possible").wait_for()
    assert faults(page) == []
    page.goto(f"{portal.url}/templates/new?view=xml")
    page.get_by_label("Document").fill('<template name="x">\n<nonsense/>\n</template>')
    page.locator("[data-part=faults]").get_by_text("Line 2").wait_for()
    assert faults(page) == []
    profile.close()


MIB = 2**20


def test_an_upload_breaks_is_paused_and_goes_on_after_the_page_was_loaded_again(
    portal: Portal, browser: Browser, tmp_path: Path
) -> None:
    disk = tmp_path / "Disk One (1).img"
    disk.write_bytes(bytes(range(256)) * (40 * MIB // 256))
    profile = context(browser)
    page = signed_in(portal, profile, "owner")
    page.goto(f"{portal.url}/images/new")
    page.get_by_label("File", exact=True).set_input_files(disk)
    expect(page.get_by_label("Name of the image")).to_have_value("disk-one-1")
    sent: list[str] = []
    still = threading.Event()
    page.route("**/api/v1/uploads/*", lambda route: _broken(route, sent, still))
    page.get_by_role("button", name="Upload").click()
    status = page.locator("[data-sending] [role=status]")
    # the second piece: the connection is gone
    expect(status).to_contain_text("it goes on in a moment")
    page.get_by_role("button", name="Pause").click()
    expect(status).to_contain_text("Paused")
    still.set()
    page.get_by_role("button", name="Go on").click()
    expect(status).to_contain_text("16.0 MiB of 40.0 MiB")
    page.get_by_role("button", name="Pause").click()
    expect(status).to_contain_text("Paused")
    page.reload()
    # only now: a request that is held goes out when its route ends, unless its page is gone
    page.unroute("**/api/v1/uploads/*")
    expect(page.locator("[data-upload]")).to_contain_text("16.0 MiB of 40.0 MiB")
    page.get_by_label("File", exact=True).set_input_files(disk)
    with page.expect_request(lambda request: request.method == "PATCH") as first:
        page.get_by_role("button", name="Upload").click()
    assert int(first.value.headers["upload-offset"]) >= 16 * MIB, "what is there is not sent again"
    page.wait_for_url(f"{portal.url}/images/physics/disk-one-1")
    assert "processing" in page.inner_text("h1")
    assert sent[:2] == ["0", str(16 * MIB)]
    profile.close()


def _broken(route: Any, sent: list[str], still: threading.Event) -> object:
    """Lets the first piece through, breaks the second one, and leaves the next without an answer;
    so, until it is `still`, also looks at how far it has come: the page goes on saying what has
    happened."""
    request = route.request
    if request.method != "PATCH":
        return route.continue_() if still.is_set() else None
    sent.append(request.headers["upload-offset"])
    if len(sent) == 1:
        return route.continue_()
    return route.abort("connectionreset") if len(sent) == 2 else None


def test_without_scripts(portal: Portal, browser: Browser, tmp_path: Path) -> None:
    """An image by a form with a file, a template with it, and what would come of asking for nodes
    with that."""
    disk = tmp_path / "disk"
    disk.write_bytes(bytes(range(256)) * (3 * MIB // 256))
    profile = context(browser, java_script_enabled=False)
    page = signed_in(portal, profile, "owner")
    page.goto(f"{portal.url}/images/new")
    page.get_by_label("Name of the image").fill("plain-form")
    page.get_by_label("File", exact=True).set_input_files(disk)
    page.get_by_role("button", name="Upload").click()
    page.wait_for_url(f"{portal.url}/images/physics/plain-form")
    assert "physics/plain-form is there, and is taken in." in page.inner_text("main")
    page.goto(f"{portal.url}/templates/new")
    page.get_by_label("Name", exact=True).fill("by-hand")
    page.get_by_label("Image of the whole disk").select_option("physics/execd")
    page.get_by_role("button", name="Check").click()
    assert "The template is valid." in page.inner_text("[data-part=faults]")
    page.get_by_role("button", name="Save").click()
    page.wait_for_url(f"{portal.url}/templates/physics/by-hand")
    page.goto(f"{portal.url}/vclusters/new?template=physics/by-hand")
    page.get_by_label("Memory").select_option(label="1024 GiB or more")
    page.get_by_role("button", name="Check").click()
    assert "3 of 33 nodes match" in page.inner_text("[data-part=match]")
    assert page.get_by_label("by-hand").is_checked()
    profile.close()
