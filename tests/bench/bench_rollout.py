"""New machines in a real browser: what it takes an administrator to approve, name and rack 200 of
them, five racks of forty, on a site of 600 and on one of 5,000 nodes, from the overview on; and to
find one of all by its labels with the search in the header. ``python -m tests.bench.bench_rollout``

The server is the product's own, on SQLite over TLS; the browser is Debian's Chromium. Clicks are
those of the mouse; nothing is typed but what is sought, for names and racks are proposed.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from playwright.sync_api import Page
from sqlalchemy import func, insert, select

from cod.policy.hardware import identity
from cod.states import NodeState
from cod.store import tables as t
from cod.store.engine import Tx, connect
from cod.store.nodes import nodes
from tests.bench.arena import Measure, Smoke, write
from tests.bench.bench_portal import cpu, sessions_of
from tests.bench.pass_world import Size, fill
from tests.portal_site import Portal
from tests.system.browser import CHROMIUM, chromium, context

SITES = (600, 5_000)
MACHINES, RACKS = 200, 5
REPORT = """<node version="1"><system product="R640"/><firmware kind="uefi"/><memory mib="192000"/>
<cpu count="64" sockets="2" arch="x86_64"/><disk name="sda" size="960000000000" serial="ROD{n:07}"/>
<nic name="eth0" mac="{mac}" link="up" boot="yes" speed="25000"><neighbour switch="leaf-{rack}"
 port="Eth{port}"/></nic></node>"""
SOUGHT = {
    "name": "node-5254000077{n:02x}",
    "MAC": "5254.0000.77{n:02X}",
    "serial number": "RO{n:07}",
    "serial of a disk": "ROD{n:07}",
    "switch and port": "leaf-1 Eth{n}",
}
SMOKE = Smoke(
    rows=("Roll-out: ",),
    sizes={"SITES": (60,), "MACHINES": 4, "RACKS": 2},
    needs=(CHROMIUM,),
)


def newcomers(tx: Tx, now: float) -> None:
    """Add machines that wait for approval, of racks that no node is in yet."""
    for n in range(MACHINES):
        rack, port = divmod(n, MACHINES // RACKS)
        mac = f"52:54:00:00:77:{n:02x}"
        report = REPORT.format(n=n, mac=mac, rack=rack + 1, port=port)
        node = nodes.add(
            tx,
            name=f"node-{mac.replace(':', '')}",
            boot_mac=mac,
            now=now,
            cause="seen",
            actor="bench",
            state=NodeState.REGISTERING,
            attributes=report,
            serial=f"RO{n:07}",
            reported_at=now,
        )
        nodes.set_labels(tx, node.id, identity.read(report).labels)
        tx.execute(
            insert(t.switch_ports).values(
                switch=f"leaf-{rack + 1}",
                port=f"Eth{port}",
                node_id=node.id,
                source="lldp",
                seen_at=now,
            )
        )


def approved(page: Page) -> int:
    """Approve all machines that wait, rack by rack, as they are proposed; return the clicks."""
    clicks = 0

    def click(locator: str) -> None:
        nonlocal clicks
        page.locator(locator).first.click()
        page.wait_for_load_state()
        clicks += 1

    click("nav a[href='/nodes']")
    click("a[href='/new-machines']")
    while page.locator("form[action='/new-machines'] button").count():
        click("form[action='/new-machines'] button")
    return clicks


def found(page: Page, url: str, words: str) -> float:
    """Look for words from the header of the page; return the milliseconds until the result stands.
    Raises `AssertionError` where not one node is found."""
    page.goto(f"{url}/")
    field = page.locator("header input[name='q']")
    field.fill(words)
    start = time.perf_counter()
    field.press("Enter")
    page.wait_for_url("**/search?**")
    spent = 1000 * (time.perf_counter() - start)
    assert page.locator("main a[href^='/nodes/']").count() == 1, words
    return spent


def measured(size: int) -> list[Measure]:
    """Measure and print a site of so many nodes."""
    with tempfile.TemporaryDirectory(prefix="cod-rollout-") as folder:
        portal = Portal(Path(folder))
        portal.found(lambda tx, now: None)
        engine = connect(f"sqlite:///{portal.folder}/data/cod.db")
        known = size - MACHINES
        fill(engine, Size(known, max(1, known // 50), max(1, known // 15)), 1)
        with engine.begin() as tx:
            newcomers(tx, time.time())
            cookie = sessions_of(tx, "bench", time.time())
        with portal, chromium() as browser:
            profile = context(browser)
            profile.add_cookies(
                [{"name": "__Host-cod", "value": cookie, "url": portal.url, "secure": True}]
            )
            page = profile.new_page()
            sought = {
                label: found(page, portal.url, words.format(n=MACHINES // RACKS // 2))
                for label, words in SOUGHT.items()
            }
            page.goto(f"{portal.url}/")
            start, before = time.perf_counter(), cpu(portal.pid)
            clicks = approved(page)
            seconds, spent = time.perf_counter() - start, cpu(portal.pid) - before
        with engine.connect() as tx:
            named = select(func.count()).where(
                t.nodes.c.name.like("leaf-%"), t.nodes.c.block_id.is_not(None)
            )
            assert tx.scalar(named) == MACHINES, "not all are named and racked"
        engine.dispose()
    for label, spent_ms in sought.items():
        print(f"  {size} nodes, one found by {label}: {spent_ms:.0f} ms in the browser")
    of = f"{MACHINES} machines approved, named and racked among {size}"
    print(f"  {of}: {clicks} clicks, {seconds:.1f} s, of them {spent:.1f} s of CPU of the server")
    return [
        Measure(f"Roll-out: {of}", float(clicks), "clicks", goal="< 10"),
        Measure(f"Roll-out: {of}, in the browser", round(seconds, 1), "s", goal="< 180 s"),
    ]


def main() -> None:
    """Measure, print, write build/bench/rollout.json."""
    write("rollout", [one for size in SITES for one in measured(size)])


if __name__ == "__main__":
    main()
