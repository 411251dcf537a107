"""A node's console as a terminal, and charts that zoom, in a real browser under the portal's
policy; and what is left without scripts."""

# ruff: noqa: F401, F811 (fixtures)

from __future__ import annotations

import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect
from twisted.internet.defer import Deferred

from cod import data
from cod.model import ConsoleRules, Site, SiteRef
from cod.net.wake import Wake
from cod.pool import Pool
from cod.power.console import Heard, Opened
from cod.power.driver import Target
from cod.power.recorder import Recorder
from cod.store.database import connect
from tests.portal_site import PASSWORD, Portal
from tests.system.browser import Complaints, browser, context, faults, picture, too_wide
from tests.waiting import until

pytestmark = [pytest.mark.system, pytest.mark.xdist_group("portal-widgets")]

ROOT = Path(__file__).resolve().parents[2]
NODE = "node13"


@pytest.fixture(scope="module", autouse=True)
def built() -> None:
    """Have what is fetched; `make test` does it before."""
    subprocess.run([sys.executable, str(ROOT / ".ci/widgets.py")], check=True)
    if data.built("widgets") is None:
        pytest.skip("npm's registry is away: there are no widgets to look at")


# What a machine could write to have something typed, to lead somebody elsewhere, or to be obeyed.
HOSTILE = (
    b"\x1b[c\x1b[>c\x1b[6n\x1b[5n\x1b[?1$p\x1bP$qm\x1b\\\x1b]10;?\x07\x1b]4;1;?\x07\x1b[18t"
    b"\x1b[?1004h\x1b[?1003h\x1b]8;;https://evil.example/\x07a link\x1b]8;;\x07"
    b"\x1b[?25;1004;1003h\x1b[?1003:1h"
    b"\x1b[2147483647Ix\x1b[2000000000b\x1b[2147483647L\x1b[2147483647S"
    b" \x1b[38;2;1;2;3mdark\x1b[0m <b id=made>bold</b>"
)
ANSWERS = {b"!": b"\r\n" + HOSTILE + b"\r\nasked\r\n"}


class EchoLine:
    """The console of a machine that writes what is typed."""

    def __init__(self, reactor: Any, heard: Heard, opened: Opened) -> None:
        self.ended: Deferred[None] = Deferred()
        self.typed, self._heard = b"", heard
        reactor.callLater(0, opened)

    def type(self, data: bytes) -> None:
        self.typed += data
        # keys that move the cursor are not written as they are by a shell's line editor either
        shown = re.sub(rb"\x1b\[A|[\x00-\x08\x0b\x0c\x0e-\x1f]", b"", data).replace(
            b"\r", b"\r\n# "
        )
        self._heard(ANSWERS.get(data, shown))

    def close(self) -> None:
        if not self.ended.called:
            self.ended.callback(None)


class Machines:
    """Their consoles, by the addresses of their BMCs."""

    def __init__(self, reactor: Any) -> None:
        self._reactor = reactor
        self.lines: list[EchoLine] = []

    def follow(self, target: Target, heard: Heard, opened: Opened) -> EchoLine:
        self.lines.append(EchoLine(self._reactor, heard, opened))
        return self.lines[-1]

    def typed(self) -> bytes:
        return b"".join(line.typed for line in self.lines)


@pytest.fixture(scope="module")
def portal(tmp_path_factory: pytest.TempPathFactory, browser: Browser) -> Iterator[Portal]:
    """A site for each browser, whose tests change it."""
    with_site = Portal(tmp_path_factory.mktemp("portal"))
    with_site.found()
    with with_site:
        yield with_site


@pytest.fixture
def machines(
    portal: Portal, reactor: Any, in_reactor: Callable[..., Any], site: Site
) -> Iterator[Machines]:
    """A recorder beside the portal's server, as a manager part has it."""
    engine = connect(f"sqlite:///{portal.folder}/data/cod.db")
    pool, found = Pool(engine, reactor), Machines(reactor)
    wake = in_reactor(Wake, reactor, portal.folder / "data/run", "manager")
    recorder = Recorder(
        reactor,
        pool,
        {"ipmi": found},
        "head",
        time.time,
        SiteRef(replace(site, consoles=ConsoleRules(record=True))),
        portal.folder / "data/consoles",
    )
    wake.on("consoles", recorder.wake)
    in_reactor(recorder.startService)
    until(lambda: found.lines, "consoles are followed", 30)
    yield found
    in_reactor(recorder.stopService)
    in_reactor(wake.close)
    pool.close()


def opened(
    portal: Portal, browser: Browser, name: str, path: str, size: str = "desktop", **more: Any
) -> Page:
    page = context(browser, size, **more).new_page()
    page.goto(f"{portal.url}/sign-in")
    page.get_by_label("Name").fill(name)
    page.get_by_label("Password", exact=True).fill(PASSWORD)
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url(f"{portal.url}/")
    page.goto(portal.url + path)
    return page


# Firefox takes what is pasted from `data`.
PASTE = """text => {
  const clipboardData = new DataTransfer();
  clipboardData.setData("text/plain", text);
  document.querySelector("#terminal textarea").dispatchEvent(new ClipboardEvent("paste", {
    clipboardData, data: text, dataType: "text/plain", bubbles: true, cancelable: true }));
}"""
LATENCY = """() => {
  const rows = document.querySelector("#terminal .xterm-rows");
  window.keys = "";
  window.taken = [];
  let begun = 0;
  document.addEventListener("keydown", (event) => {
    keys += event.key;
    begun = performance.now();
  }, true);
  new MutationObserver(() => {
    if (!begun || !rows.textContent.includes(keys)) return;
    taken.push(performance.now() - begun);
    begun = 0;
  }).observe(rows, { subtree: true, childList: true, characterData: true });
}"""


def test_what_is_typed_reaches_the_console_and_its_output_is_drawn(
    portal: Portal, browser: Browser, machines: Machines
) -> None:
    page = opened(portal, browser, "administrator", f"/nodes/{NODE}")
    complaints = Complaints(page)
    page.reload()
    rows = page.locator("#terminal .xterm-rows")
    expect(rows).to_contain_text("n1 login:")
    green = rows.locator("span[style*=color], .xterm-fg-2", has_text="OK").first
    assert green.evaluate("it => getComputedStyle(it).color") != rows.evaluate(
        "it => getComputedStyle(it).color"
    ), "it is coloured, under the page's policy"
    expect(page.locator("#console .console")).to_be_hidden()
    expect(page.get_by_label("Type on the console")).to_be_hidden()
    page.locator("#terminal .screen").click()
    page.keyboard.type("root")
    page.keyboard.press("Enter")
    expect(rows).to_contain_text("n1 login: root")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("Control+c")
    page.keyboard.press("Tab")
    page.keyboard.press("Control+k")  # which leads to the search elsewhere
    page.evaluate(PASTE, "pas\nted")
    until(
        lambda: machines.typed() == b"root\r\x1b[A\x03\t\x0bpas\rted", lambda: machines.typed(), 60
    )
    page.evaluate(LATENCY)
    for number, key in enumerate("abcdefghijklmnopqrst", 1):
        page.wait_for_timeout(200)  # as people type
        page.keyboard.press(key)
        page.wait_for_function("count => taken.length === count", arg=number, timeout=20_000)
    taken = page.evaluate("taken")
    print(f"a key is drawn after {statistics.median(taken):.0f} ms, at most {max(taken):.0f} ms")
    assert statistics.median(taken) < 1000
    assert faults(page) == []
    picture(page, "portal-console", whole=False)
    page.set_viewport_size({"width": 320, "height": 640})
    assert not too_wide(page)
    page.keyboard.press("F6")
    assert not page.evaluate("!!document.activeElement.closest('#terminal')"), "no keyboard trap"
    assert complaints.found == []
    page.context.close()


def test_a_machine_neither_types_nor_leads_nor_writes_into_the_page(
    portal: Portal, browser: Browser, machines: Machines
) -> None:
    """A terminal answers questions; here the machine would be answered by everybody who looks."""
    page = opened(portal, browser, "administrator", f"/nodes/{NODE}", color_scheme="dark")
    complaints = Complaints(page)
    rows = page.locator("#terminal .xterm-rows")
    page.locator("#terminal .screen").click()
    page.keyboard.type("!")
    expect(rows).to_contain_text("asked")
    expect(rows).to_contain_text("<b id=made>bold</b>")
    assert page.locator("#made").count() == 0
    link = rows.get_by_text("a link").last.bounding_box()
    assert link is not None
    page.mouse.click(link["x"] + 9, link["y"] + 9)  # what hears pages lies over it
    page.mouse.move(300, 300)
    page.keyboard.type("x")
    until(lambda: machines.typed().endswith(b"x"), lambda: machines.typed(), 60)
    assert machines.typed() == b"!x"
    assert len(page.context.pages) == 1
    assert complaints.found == []
    page.context.close()


def test_a_long_paste_is_typed_whole_and_what_is_refused_is_said(
    portal: Portal, browser: Browser, machines: Machines
) -> None:
    page = opened(portal, browser, "administrator", f"/nodes/{NODE}")
    complaints = Complaints(page)
    status = page.locator("#terminal [role=status]")
    expect(page.locator("#terminal .xterm-rows")).to_contain_text("n1 login:")
    page.locator("#terminal .screen").click()
    text = 999 * "a" + "\U0001f600" + "\u00fc"  # of two halves, which a thousand would part
    page.evaluate(PASTE, text)
    until(lambda: machines.typed() == text.encode(), lambda: machines.typed(), 60)
    assert complaints.found == []

    def refuse(route: Any) -> None:
        if route.request.method == "POST":
            route.fulfill(status=429, json={"detail": "not so fast"})
        else:
            route.continue_()

    page.route("**/console*", refuse)
    page.keyboard.type("b")
    expect(status).to_have_text("Not typed: not so fast.")
    for _ in range(3):
        with page.expect_response("**/console?raw=*"):
            pass
    expect(status).to_have_text("Not typed: not so fast.", timeout=1)
    page.unroute("**/console*")
    page.keyboard.type("c")
    expect(status).to_be_empty()
    until(lambda: machines.typed() == text.encode() + b"c", lambda: machines.typed(), 60)
    page.context.close()


def test_who_may_only_read_does_not_type(
    portal: Portal, browser: Browser, machines: Machines
) -> None:
    page = opened(portal, browser, "owner", f"/nodes/{NODE}")
    expect(page.locator("#terminal .xterm-rows")).to_contain_text("n1 login:")
    expect(page.locator("#terminal [role=status]")).to_contain_text("administrators alone")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.method))
    page.locator("#terminal .screen").click()
    page.keyboard.type("root")
    page.keyboard.press("Tab")  # goes on through the page, there is nothing to type it to
    assert not page.evaluate("!!document.activeElement.closest('#terminal')")
    assert "POST" not in asked
    assert machines.typed() == b""
    page.context.close()


def test_without_scripts_the_console_is_text_and_charts_are_drawn(
    portal: Portal, browser: Browser
) -> None:
    page = opened(portal, browser, "administrator", f"/nodes/{NODE}", java_script_enabled=False)
    expect(page.locator("#console .console")).to_contain_text("n1 login:")
    expect(page.get_by_label("Type on the console")).to_be_visible()
    expect(page.locator("#terminal")).to_be_hidden()
    page.goto(f"{portal.url}/timeline")
    expect(page.locator("svg.chart").first).to_be_visible()
    page.context.close()


@pytest.mark.parametrize(
    ("size", "scheme"), [("desktop", "light"), ("desktop", "dark"), ("narrow", "light")]
)
def test_a_chart_says_its_numbers_and_zooms(
    portal: Portal, browser: Browser, size: str, scheme: str
) -> None:
    page = opened(
        portal,
        browser,
        "administrator",
        "/shares/physics",
        size,
        color_scheme=scheme,
        timezone_id="Europe/Berlin",
    )
    complaints = Complaints(page)
    page.reload()
    figure = page.locator("figure.drawn").first
    shown, plot = figure.locator(".range"), figure.locator(".u-over")
    expect(plot).to_be_visible()
    expect(figure.locator("svg.chart")).to_be_hidden()
    assert not too_wide(page)
    wide = figure.evaluate("it => it.querySelector('.uplot').offsetWidth / it.clientWidth")
    assert 0.85 < wide <= 1, "as wide as its card"
    expect(shown).to_be_empty()
    at = plot.bounding_box()
    assert at is not None
    middle = at["y"] + at["height"] / 2
    if size == "desktop":
        page.mouse.move(at["x"] + 0.3 * at["width"], middle)
        page.mouse.down()
        page.mouse.move(at["x"] + 0.6 * at["width"], middle, steps=5)
        page.mouse.up()
    else:
        figure.get_by_role("button", name="Zoom in").click()
    expect(shown).to_contain_text(" to ")
    first = shown.text_content()
    figure.get_by_role("button", name="Later").click()
    expect(shown).not_to_have_text(first or "")
    figure.get_by_role("button", name="All").click()
    expect(shown).to_be_empty()
    expect(figure.get_by_role("button", name="Zoom out")).to_be_disabled()
    figure.focus()
    page.keyboard.press("ArrowRight")
    expect(shown).to_contain_text("physics:")
    expect(figure.locator(".u-legend")).to_contain_text("higher priority")
    page.keyboard.press("+")
    expect(shown).to_contain_text(" to ")
    assert faults(page) == []
    picture(page, f"portal-chart-{scheme}", size)
    page.keyboard.press("Escape")
    expect(shown).to_be_empty()
    assert complaints.found == []
    page.context.close()
