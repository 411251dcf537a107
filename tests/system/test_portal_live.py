"""The portal's live parts in a real browser: states, progress, parts that are fetched again, links'
codes."""

# ruff: noqa: F401, F811 (fixtures)

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, expect
from sqlalchemy import Engine, update

from cod import consolefiles
from cod.core.nodes import transitions
from cod.flows.people.access import digest
from cod.policy.nodes.console import tenure
from cod.pool import in_transaction
from cod.states import NodeEvent, NodeState
from cod.store import tables
from cod.store.database import connect
from cod.store.engine import Tx
from cod.store.nodes import nodes
from cod.store.people import people, signins
from tests.portal_site import Portal
from tests.system.browser import BOTH, CHROMIUM_ALONE, Complaints, browser, context
from tests.waiting import until

pytestmark = [pytest.mark.system, pytest.mark.in_turn(2, together=True)]


@pytest.fixture(scope="module")
def portal(tmp_path_factory: pytest.TempPathFactory, browser: Browser) -> Iterator[Portal]:
    """A site for each browser, whose tests change it."""
    with_site = Portal(tmp_path_factory.mktemp("portal"))
    with_site.found()
    with with_site:
        yield with_site


@pytest.fixture
def engine(portal: Portal) -> Iterator[Engine]:
    engine = connect(f"sqlite:///{portal.folder}/data/cod.db")
    yield engine
    engine.dispose()


@pytest.fixture
def page(portal: Portal, engine: Engine, browser: Browser) -> Iterator[Any]:
    """A page of an administrator's, whose console is quiet to the end, in a profile of its own."""
    in_transaction(engine, _signed_in)
    opened = context(browser)
    opened.add_cookies(
        [{"name": "__Host-cod", "value": "the-cookie", "url": portal.url, "secure": True}]
    )
    page = opened.new_page()
    # a wrong code; a check refused
    complaints = Complaints(page, ("404 (Not Found)", "429 (Too Many Requests)"))
    yield page
    found = list(complaints.found)
    opened.close()
    assert found == []


def _signed_in(tx: Tx) -> None:
    user = people.by_name(tx, "ann") or people.add(tx, "ann", time.time(), admin=True)
    signins.end(tx, user.id)
    signins.add(
        tx,
        digest("the-cookie"),
        user.id,
        time.time(),
        expires_at=time.time() + 1e5,
        address="127.0.0.1",
        browser="",
    )


def follows(page: Any, url: str) -> None:
    """Go there, and wait until the page hears events."""
    page.goto(url)
    page.locator("body[data-following]").wait_for(state="attached")


def _boots(tx: Tx, name: str) -> None:
    node = nodes.by_name(tx, name)
    transitions.move(tx, node, NodeEvent.PRIMED, now=time.time(), cause="primed", actor="agent")


def _fails(tx: Tx) -> None:
    node = next(each for each in nodes.every(tx) if each.state == NodeState.INACTIVE)
    event = NodeEvent.QUARANTINED
    transitions.move(tx, node, event, now=time.time(), cause="a fan stands", actor="root")


def _notifies(tx: Tx, subject: str) -> None:
    tx.execute(
        tables.notices.insert().values(
            at=time.time(), kind="test", group_id=1, subject=subject, about=""
        )
    )


def _signs_out(tx: Tx) -> None:
    """End the session elsewhere, and let something happen that the page hears of."""
    signins.end(tx, people.by_name(tx, "ann").id)
    _notifies(tx, "more")


def _is_at(tx: Tx, name: str, done: int) -> None:
    nodes.change(tx, nodes.by_name(tx, name), progress_done=done, progress_total=100)


@BOTH
def test_states_and_progress_follow_what_happens(portal: Portal, engine: Engine, page: Any) -> None:
    follows(page, f"{portal.url}/vclusters/farm")
    name = page.locator("[data-progress]").first.get_attribute("data-progress")
    in_transaction(engine, _is_at, name, 77)
    page.locator(f"[data-progress='{name}'] .percent", has_text="77 %").wait_for()
    in_transaction(engine, _boots, name)
    page.locator(f"[data-node='{name}']", has_text="starting").first.wait_for()
    # its part was fetched again
    page.locator(f"[data-progress='{name}']").first.wait_for(state="detached")


@CHROMIUM_ALONE
def test_nothing_is_fetched_between_a_form_and_its_answer(
    portal: Portal, engine: Engine, page: Any
) -> None:
    """A part that is fetched by the old name after a rename is not found, and the page would be
    asked for by that name."""
    page.clock.install()
    follows(page, f"{portal.url}/nodes/node28")

    def sent(route: Any) -> None:
        route.fetch(max_redirects=0)
        route.fulfill(status=204)  # the browser stays, as it does until an answer comes

    page.route("**/nodes/node28/change", sent)
    page.evaluate(
        """() => {
          window.asked = [];
          window.fetch = where => { asked.push(String(where)); return new Promise(() => {}) };
          // what an event of before the form was sent has asked for is of no account
          document.addEventListener("submit", () => { asked.length = 0 }, true);
          document.addEventListener(
            "cod:transition", () => { document.body.dataset.heard = "" });
        }"""
    )
    page.get_by_text("Name, place, tags and power").click()
    page.get_by_label("Name", exact=True).fill("renamed")
    page.clock.pause_at(
        page.evaluate("Date.now() / 1000 + 1")
    )  # else it goes on with the machine's
    with page.expect_response("**/change"):
        page.get_by_role("button", name="Change", exact=True).click(no_wait_after=True)
    in_transaction(engine, _wakes, "renamed")
    # a locator would wait for the end of the form's navigation, which has none
    until(lambda: page.evaluate("'heard' in document.body.dataset"))
    page.clock.run_for(4000)
    assert page.evaluate("asked") == []
    page.goto(f"{portal.url}/nodes/node28")
    assert page.url == f"{portal.url}/nodes/renamed"


def _wakes(tx: Tx, name: str) -> None:
    node = nodes.by_name(tx, name)
    transitions.move(tx, node, NodeEvent.WOKEN, now=time.time(), cause="wakes", actor="agent")


def _granted(tx: Tx) -> None:
    tx.execute(
        update(tables.vclusters)
        .where(tables.vclusters.c.name == "staging")
        .values(state="active", expires_at=time.time() + 3600)
    )
    _told(tx, "granted")


def _told(tx: Tx, subject: str) -> None:
    tx.execute(
        tables.notices.insert().values(
            at=time.time(), kind="test", group_id=1, subject=subject, about=""
        )
    )


def test_forms_and_the_alarm_of_a_reclaim_come_without_a_reload(
    portal: Portal, engine: Engine, page: Any
) -> None:
    follows(page, f"{portal.url}/vclusters/staging")
    expect(page.get_by_text("Extend the lease")).to_have_count(0)
    in_transaction(engine, _granted)
    page.get_by_text("Extend the lease").click()
    page.get_by_label("Length from now").fill("5 days")
    page.locator("h1").click()
    columns = {
        "type_id": 1,
        "subnet": "",
        "attributes": "",
        "given": 0,
        "state": "open",
        "created_at": time.time(),
    }
    in_transaction(
        engine,
        lambda tx: tx.execute(
            tables.reclaims.insert().values(
                vcluster_id=4, request_id=4, count=2, deadline=time.time() + 600, **columns
            )
        ),
    )
    in_transaction(engine, _told, "reclaimed")
    page.get_by_text("2 nodes will be reclaimed").wait_for()
    assert page.get_by_label("Length from now").input_value() == "5 days", "what was typed stays"


def test_seven_pages_of_one_browser_share_a_stream(
    portal: Portal, engine: Engine, page: Any
) -> None:
    """A browser has six connections to a site: one stream for each page would leave the seventh
    none."""
    pages = [page, *(page.context.new_page() for _ in range(6))]
    for each in pages:
        follows(each, f"{portal.url}/")
    in_transaction(engine, _told, "told to all of them")
    for each in pages:
        each.get_by_role("link", name="told to all of them").wait_for()


def test_a_console_goes_on_by_itself(portal: Portal, engine: Engine, page: Any) -> None:
    """Shown as text, as on a server without xterm.js."""
    page.route("**/assets/xterm*", lambda route: route.fulfill(body=""))
    page.goto(f"{portal.url}/nodes/node13")
    page.locator(".console", has_text="login:").wait_for()
    node = in_transaction(engine, nodes.named, "node13")
    own = tenure(node.vcluster_id, node.assigned_at)
    consolefiles.append(
        portal.folder / "data/consoles", node.id, own, b"root\r\n# uname\r\nLinux\r\n", 2**20
    )
    page.locator(".console", has_text="# uname").wait_for()


def test_nothing_is_missed_between_a_page_and_its_stream(
    portal: Portal, engine: Engine, page: Any
) -> None:
    # what a worker asks for passes no route of the page's
    page.add_init_script("delete window.SharedWorker")
    page.goto(f"{portal.url}/vclusters/farm")
    name = page.locator("[data-node]", has_text="installing").last.get_attribute("data-node")
    late = []

    def happens_first(route: Any) -> None:
        if not late:
            in_transaction(engine, _boots, name)
        late.append(route.request.url)
        route.continue_()

    page.route("**/api/v1/events*", happens_first)
    page.reload()
    page.locator(f"[data-node='{name}']", has_text="starting").first.wait_for()
    assert "?after=" in late[0]


def test_a_part_is_fetched_again_and_what_is_open_stays_open(
    portal: Portal, engine: Engine, page: Any
) -> None:
    follows(page, f"{portal.url}/")
    in_transaction(engine, _notifies, "news <b>of today</b>")
    page.get_by_role("link", name="news <b>of today</b>").wait_for()


def test_the_navigation_s_numbers_follow_on_a_page_without_live_parts(
    portal: Portal, engine: Engine, page: Any
) -> None:
    follows(page, f"{portal.url}/audit")
    badge = page.locator("nav [data-counted='/faults']").first
    before = int(badge.inner_text().split()[0]) if badge.is_visible() else 0
    in_transaction(engine, _fails)
    expect(badge).to_have_text(re.compile(rf"^{before + 1}\b"))
    assert badge.is_visible()


def test_a_links_code_is_put_in_and_taken_out_of_the_address(portal: Portal, page: Any) -> None:
    page.goto(f"{portal.url}/invitation#no-such-code")
    page.get_by_text("This link does not work", exact=False).or_(
        page.get_by_text("this link does not work")
    ).wait_for()
    assert "no-such-code" not in page.url


def test_when_the_session_is_over_the_page_asks_to_sign_in(
    portal: Portal, engine: Engine, page: Any
) -> None:
    follows(page, f"{portal.url}/")
    in_transaction(engine, _signs_out)
    page.wait_for_url("**/sign-in**")


def test_what_somebody_types_stays_when_the_session_is_over(
    portal: Portal, engine: Engine, page: Any
) -> None:
    follows(page, f"{portal.url}/account")
    page.locator("main input[name=name] >> nth=0").fill("half a name")
    with page.expect_response("**part=counts**"):
        in_transaction(engine, _signs_out)
    # a page that the script had gone on to would be here with this answer
    page.evaluate("fetch('/sign-in').then(reply => reply.text())")
    assert page.url.endswith("/account")
    assert page.locator("main input[name=name] >> nth=0").input_value() == "half a name"


@CHROMIUM_ALONE
def test_a_check_that_was_refused_as_too_many_is_asked_again(portal: Portal, page: Any) -> None:
    asked: list[str] = []

    def answer(route: Any) -> None:
        asked.append(route.request.post_data or "")
        if len(asked) == 1:
            route.fulfill(
                status=429, content_type="text/html", body="<html>at most 30 at once</html>"
            )
        else:
            route.continue_()

    page.route("**/templates/form/check?*", answer)
    page.goto(f"{portal.url}/templates/new")
    place = page.locator("[data-part='faults']").last
    page.locator("form[data-check$='/templates/form/check'] input[name='name']").fill("No Name")
    expect(place).not_to_have_attribute("aria-busy", "true")
    assert len(asked) == 2, "the last one typed is answered, without another key"
    assert "No+Name" in asked[1]


def test_a_server_that_has_died_serves_the_next_test(portal: Portal) -> None:
    os.kill(portal.pid, signal.SIGKILL)
    portal.tend()
    with portal.client() as client:
        assert client.get("/health")["ok"]
