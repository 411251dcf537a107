"""What people do most, in a real browser on sites of 600 and 5,000 nodes: an administrator
approves, names and racks 200 new machines, five racks of forty, and finds one of all by its labels
with the search in the header; an owner reserves a new cluster for a time in three weeks. Each
begins at the overview. ``python -m tests.bench.bench_rollout``

The server is the product's own, on SQLite over TLS; the browser is Debian's Chromium. Clicks are
those of the mouse; typed is what is sought, the new cluster's name, and its start. The table of
docs/benchmarks.md has what `bench_portal` measured on sites of the same sizes, too.
"""

from __future__ import annotations

import json
import re
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median
from typing import Any
from urllib.parse import quote

from playwright.sync_api import Browser, Page, expect
from sqlalchemy import func, insert, select

from cod.model import Role
from cod.policy.hardware import identity
from cod.states import NodeState
from cod.store import tables as t
from cod.store.database import connect
from cod.store.engine import Tx
from cod.store.nodes import nodes
from cod.store.people import people
from tests.bench.arena import RESULTS, Measure, Smoke, put_between_marks, write
from tests.bench.arena import page as manual_page
from tests.bench.bench_portal import OWNERS_GROUP, Reader, cpu, sessions_of
from tests.bench.pass_world import Size, fill
from tests.portal_site import Portal
from tests.system.browser import CHROMIUM, chromium, context

SITES = (600, 5_000)
MACHINES, RACKS = 200, 5
LOOKS = 10  # at each label
WEEKS = 3  # until the reservation
PAGE = manual_page("benchmarks")
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
    rows=("Portal, 60 nodes: ",),
    sizes={"SITES": (60,), "MACHINES": 4, "RACKS": 2, "LOOKS": 1},
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


def reserved(page: Page) -> int:
    """Reserve a new cluster; return the clicks. Raises where it is not reserved."""
    page.get_by_role("link", name="New virtual cluster").first.click()
    start = datetime.now(UTC) + timedelta(weeks=WEEKS)
    page.get_by_label(re.compile("^From")).fill(f"{start:%Y-%m-%dT%H:%M}")
    page.get_by_role("textbox", name="Name").fill("deadline")
    page.get_by_role("radio").first.click()
    page.get_by_role("button", name="Request cluster").click()
    expect(page.locator(".flash")).to_contain_text("deadline is reserved")
    return 3


def slowest(reader: Reader) -> float:
    """Return the milliseconds of the server's answer to the search, a median, of the label that
    takes longest."""
    words = [words.format(n=MACHINES // RACKS // 2) for words in SOUGHT.values()]
    looks = [[reader.get(f"/search?q={quote(each)}")[1] for _ in range(LOOKS)] for each in words]
    return 1000 * max(map(median, looks))


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
            owners = sessions_of(tx, "owner", time.time(), admin=False)
            people.set_role(tx, OWNERS_GROUP, people.named(tx, "owner").id, Role.OWNER)
        with portal, chromium() as browser:
            searched = slowest(Reader(portal.port, cookie))
            page = opened(browser, portal, owners)
            booked = reserved(page)
            page = opened(browser, portal, cookie)
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
    of = f"Portal, {size:,} nodes: {MACHINES} machines approved, named and racked"
    print(f"  {of}: {clicks} clicks, {seconds:.1f} s, of them {spent:.1f} s of CPU of the server")
    return [
        Measure(of, float(clicks), "clicks", goal="< 10"),
        Measure(f"{of}, in the browser", round(seconds, 1), "s", goal="< 180 s"),
        Measure(
            f"Portal, {size:,} nodes: one found by any label, the slowest",
            round(searched, 1),
            "ms",
            goal="< 100 ms",
        ),
        Measure(
            f"Portal, {size:,} nodes: a new cluster reserved in {WEEKS} weeks",
            float(booked),
            "clicks",
            goal="<= 4",
        ),
    ]


def opened(browser: Browser, portal: Portal, cookie: str) -> Page:
    """Return the overview as that person sees it."""
    profile = context(browser)
    profile.add_cookies(
        [{"name": "__Host-cod", "value": cookie, "url": portal.url, "secure": True}]
    )
    page = profile.new_page()
    page.goto(f"{portal.url}/")
    return page


def table(rows: list[dict[str, Any]]) -> list[str]:
    """Return the page's table: a line for each thing that is measured, a column for each size of
    site. `rows`: measures whose names begin with the site; what they have in brackets goes with the
    value."""
    sizes = [f"{size:,} nodes" for size in SITES]
    cells: dict[str, dict[str, str]] = {}
    for row in rows:
        said = re.fullmatch(r"Portal, ([\d,]+ nodes): (.*?)( \(.*\))?", row["name"])
        if said is not None:
            of, what, about = said.groups(default="")
            line = cells.setdefault(what, {"goal": row["goal"]})
            line[of] = f"{row['value']:g} {row['unit']}{about}"
    lines = [["What", *sizes, "Goal"], ["---"] * (len(sizes) + 2)]
    lines += [
        [what, *(line.get(size, "") for size in sizes), line["goal"]]
        for what, line in cells.items()
    ]
    return [f"| {' | '.join(line)} |" for line in lines]


def main() -> None:
    """Measure, print, write build/bench/rollout.json and the page's table."""
    write("rollout", [one for size in SITES for one in measured(size)])
    files = [RESULTS / f"{name}.json" for name in ("rollout", "portal")]
    rows = [row for file in files if file.exists() for row in json.loads(file.read_text())]
    put_between_marks(PAGE, "work", table(rows))


if __name__ == "__main__":
    main()
