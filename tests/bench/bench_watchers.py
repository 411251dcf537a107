"""What browsers cost that watch: 500 of them, on the pages of ten virtual clusters of 800 nodes, on
the overview, and on a page with the navigation's numbers alone, while nodes change state. ``python
-m tests.bench.bench_watchers``

The server is the product's own, on SQLite over TLS, pinned to one core; who watches is on the
other. Of the fifty at each cluster five are administrators, who hear of all nodes, and the others
owners of its group, who hear of theirs; each is a person with a session, and the same look at the
other pages. A browser does what `live.js` and `events.js` do: it loads the page, keeps one stream
of events, and fetches the live parts that an event concerns, on one connection, as often as the
server says. What counts is the CPU time of the server's process.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import ssl
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from sqlalchemy import select, update

from cod.model import Role
from cod.store import tables as t
from cod.store.database import connect
from cod.store.engine import Tx
from cod.store.people import people
from cod.web.api.events import SELDOM
from tests.bench import large_site
from tests.bench.arena import Measure, Smoke, write
from tests.bench.bench_portal import cpu, sessions_of
from tests.bench.pass_world import GROUPS, Size
from tests.portal_site import Portal

SIZE = Size(nodes=10_000, requests=300, holders=10)  # four fifths of the nodes are held
HISTORY = 100_000
EACH, ADMINISTRATORS = 50, 5  # who watch one cluster; of them administrators
WATCHED = 120.0  # seconds, of each kind of page
ELSEWHERE = ("/", "/audit")  # pages that all look at; the second has the numbers alone
CHANGES = 20  # transitions a second, of nodes of all clusters
SOON = 0.4  # seconds, as in live.js
SMOKE = Smoke(
    rows=("Watchers: ",),
    sizes={
        "SIZE": Size(1_000, 30, 2),
        "HISTORY": 1_000,
        "EACH": 6,
        "ADMINISTRATORS": 2,
        "WATCHED": 6.0,
        "large_site.NOTICES": 100,
        "large_site.AUDITED": 100,
    },
)


@dataclass
class Seen:
    """What the watchers saw: events of theirs, answers by status, their bytes and seconds, and the
    seconds from an event to the answer that followed it."""

    open: int = 0
    events: int = 0
    stream_bytes: int = 0
    statuses: dict[int, int] = field(default_factory=dict)
    part_bytes: int = 0
    took: list[float] = field(default_factory=list)
    late: list[float] = field(default_factory=list)

    def clear(self) -> None:
        """Forget all but how many streams are open."""
        vars(self).update(vars(Seen(open=self.open)))


class Connection:
    """A browser's connection for pages, opened again where the server has closed it."""

    def __init__(self, port: int, cookie: str) -> None:
        self._port, self._cookie = port, cookie
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def get(self, path: str, **headers: str) -> tuple[int, Mapping[str, str], bytes]:
        """Return status, headers in small letters, and the body as it was sent."""
        for _ in range(2):
            reader, writer = self._streams or await opened(self._port)
            self._streams = reader, writer
            try:
                ask(writer, self._port, self._cookie, path, headers)
                head = (await reader.readuntil(b"\r\n\r\n")).decode().splitlines()
                told = dict(line.lower().split(": ", 1) for line in head[1:] if line)
                return (
                    int(head[0].split()[1]),
                    told,
                    await reader.readexactly(int(told.get("content-length", 0))),
                )
            except (asyncio.IncompleteReadError, ConnectionError):
                self.close()
        raise RuntimeError(f"no answer to {path}")

    def close(self) -> None:
        """Close it."""
        if self._streams:
            self._streams[1].close()
        self._streams = None


async def opened(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Return a connection by TLS."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return await asyncio.open_connection("localhost", port, ssl=context)


def ask(
    writer: asyncio.StreamWriter, port: int, cookie: str, path: str, headers: Mapping[str, str]
) -> None:
    """Send a browser's GET."""
    lines: dict[str, str] = {
        "Host": f"localhost:{port}",
        "Cookie": f"__Host-cod={cookie}",
        "Accept-Encoding": "gzip" if "?" in path else "identity",
        **headers,
    }
    text = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    writer.write(f"GET {path} HTTP/1.1\r\n{text}\r\n".encode())


class Browser:
    """Somebody who looks at a page. `parts`: its live ones, empty before anybody has loaded it:
    name, kinds of events, cluster or ''."""

    def __init__(
        self,
        port: int,
        cookie: str,
        path: str,
        seen: Seen,
        parts: list[tuple[str, list[str], str]],
    ) -> None:
        self._port, self._cookie, self._path, self._seen = port, cookie, path, seen
        self._parts = parts
        self._pages = Connection(port, cookie)
        self._waiting: dict[str, float] = {}  # names of parts, and since when
        self._apart, self._fetched = SELDOM, 0.0
        self._tags: dict[str, str] = {}
        self._fetching: asyncio.Task[None] | None = None

    async def watch(self) -> None:
        """Load the page, if nobody has, and follow the events until cancelled."""
        if not self._parts:
            status, _, body = await self._pages.get(self._path)
            if status != 200:
                raise RuntimeError(f"{self._path}: {status}")
            tags = re.findall(r"<[^>]*\sdata-part=[^>]*>", body.decode())
            parts = [dict(re.findall(r'data-([a-z]+)="([^"]*)"', tag)) for tag in tags]
            self._parts += [
                (said["part"], said["on"].split(), said.get("vcluster", "")) for said in parts
            ]
        self._fetched = time.monotonic()
        reader, writer = await opened(self._port)
        try:
            ask(writer, self._port, self._cookie, "/api/v1/events", {})
            head = await reader.readuntil(b"\r\n\r\n")
            if not head.startswith(b"HTTP/1.1 200"):
                raise RuntimeError(head.decode())
            self._seen.open += 1
            await self._follow(reader)
        finally:
            if self._fetching:
                self._fetching.cancel()
            writer.close()
            self._pages.close()

    async def _follow(self, reader: asyncio.StreamReader) -> None:
        *_, vcluster = self._path.split("/vclusters/")
        kind, own = "", f'"vcluster": "{vcluster}"'.encode() if vcluster != self._path else b""
        while line := await reader.readline():
            self._seen.stream_bytes += len(line)
            if line.startswith(b"event: "):
                kind = line[7:].decode().strip()
            elif line.startswith(b"data: "):
                concerns = own in line or b'"vcluster": ' not in line
                self._seen.events += concerns
                for name, kinds, vcluster in self._parts:
                    if kind in kinds and (concerns or not vcluster):
                        self._soon(name)

    def _soon(self, name: str) -> None:
        self._waiting.setdefault(name, time.monotonic())
        if self._fetching is None or self._fetching.done():
            self._fetching = asyncio.create_task(self._fetch())

    async def _fetch(self) -> None:
        since = time.monotonic() - self._fetched
        if since > self._apart:
            await asyncio.sleep(SOON * random.uniform(1, 2))
        else:
            await asyncio.sleep(self._apart - since + random.uniform(0, self._apart / 2))
        names, began, self._fetched = dict(self._waiting), time.monotonic(), time.monotonic()
        self._waiting.clear()
        wanted = ",".join(names)
        tag = self._tags.get(wanted)
        status, told, body = await self._pages.get(
            f"{self._path}?part={wanted}", **({"If-None-Match": tag} if tag else {})
        )
        over = time.monotonic()
        self._seen.took.append(over - began)
        self._seen.late += [over - asked for asked in names.values()]
        self._seen.part_bytes += len(body)
        self._seen.statuses[status] = self._seen.statuses.get(status, 0) + 1
        self._apart = float(told["x-live-apart"])
        if "etag" in told:
            self._tags = {wanted: told["etag"]}


class Watcher(NamedTuple):
    """A person who watches, with the cookie of the session."""

    vcluster: str
    cookie: str
    is_admin: bool


async def crowd(portal: Portal, people: list[Watcher], page: str = "") -> tuple[float, Seen]:
    """Return the share of a core that the server takes while all watch, and what they saw. `page`:
    what they all look at; '': each at their cluster."""
    seen = Seen()
    browsers: list[asyncio.Task[None]] = []
    # administrators have other parts
    found: defaultdict[tuple[str, bool], list[tuple[str, list[str], str]]] = defaultdict(list)
    for who in people:
        path = page or f"/vclusters/{who.vcluster}"
        browser = Browser(portal.port, who.cookie, path, seen, found[path, who.is_admin])
        browsers.append(asyncio.create_task(browser.watch()))
        while seen.open < len(browsers) - 4:  # a few load their pages at once
            for each in browsers:
                if each.done():
                    each.result()
            await asyncio.sleep(0.01)
    while seen.open < len(browsers):
        await asyncio.sleep(0.01)
    await asyncio.sleep(SOON * 2)
    before, began = cpu(portal.pid), time.monotonic()
    seen.clear()
    await asyncio.sleep(WATCHED)
    share = (cpu(portal.pid) - before) / (time.monotonic() - began)
    for each in browsers:
        each.cancel()
    for ended in await asyncio.gather(*browsers, return_exceptions=True):
        if not isinstance(ended, asyncio.CancelledError):
            raise RuntimeError(f"a browser stopped watching: {ended!r}")
    return share, seen


def watchers(tx: Tx, now: float) -> list[Watcher]:
    """Add those who watch; return them in the order in which they come."""
    found = []
    for number in range(EACH):
        for vcluster in range(1, SIZE.holders + 1):
            name = f"watcher{vcluster}-{number}"
            cookie = sessions_of(tx, name, now, admin=number < ADMINISTRATORS)
            if number >= ADMINISTRATORS:
                user = people.named(tx, name)
                people.set_role(tx, 1 + vcluster % GROUPS, user.id, Role.OWNER)
            found.append(Watcher(f"v{vcluster}", cookie, number < ADMINISTRATORS))
    return found


def turns(url: str) -> Callable[[Tx], tuple[int, int, str, str]]:
    """Return what has a node of any cluster fail its health check, or be back: by turns."""
    engine, dice = connect(url), random.Random(1)
    n = t.nodes.c
    with engine.begin() as tx:
        query = select(n.id, n.vcluster_id).where(n.vcluster_id.is_not(None))
        held = [tuple(row) for row in tx.execute(query)]
    engine.dispose()
    states = {node: "active" for node, _ in held}

    def draw(tx: Tx) -> tuple[int, int, str, str]:
        node, vcluster = dice.choice(held)
        was, states[node] = states[node], "boot" if states[node] == "active" else "active"
        tx.execute(update(t.nodes).where(n.id == node).values(state=states[node]))
        return node, vcluster, was, states[node]

    return draw


def main() -> None:
    """Measure, print, write build/bench/watchers.json."""
    with tempfile.TemporaryDirectory(prefix="cod-watchers-") as folder:
        portal = Portal(Path(folder))
        portal.found(lambda tx, now: None)
        url = f"sqlite:///{portal.folder / 'data' / 'cod.db'}"
        engine = connect(url)
        large_site.furnish(engine, history=HISTORY, size=SIZE)
        with engine.begin() as tx:
            crowded = watchers(tx, time.time())
        engine.dispose()
        with portal:
            os.sched_setaffinity(portal.pid, {0})
            os.sched_setaffinity(0, {1})
            with large_site.changing(url, CHANGES, turns(url)):
                share, seen = asyncio.run(crowd(portal, crowded))
                elsewhere = {page: asyncio.run(crowd(portal, crowded, page)) for page in ELSEWHERE}
    count, nodes = len(crowded), SIZE.nodes * 4 // 5 // SIZE.holders
    for page, (_, saw) in {"clusters": (share, seen), **elsewhere}.items():
        heard = f"each heard of {saw.events / count:.1f} events"
        print(f"  {page}: answers {json.dumps(saw.statuses)}; {heard}")
    write(
        "watchers",
        [
            Measure(
                f"Watchers: {count} on clusters of {nodes} nodes, share of one core",
                round(100 * share, 1),
                "%",
                goal="< 15 %",
            ),
            *(
                Measure(
                    f"Watchers: {count} on {page}, share of one core",
                    round(100 * of_page, 1),
                    "%",
                    goal="< 15 %",
                )
                for page, (of_page, _) in elsewhere.items()
            ),
            Measure(
                "Watchers: from an event to its parts, median",
                round(statistics.median(seen.late), 1),
                "s",
            ),
            Measure(
                "Watchers: an answer with parts, p95",
                round(1000 * statistics.quantiles(seen.took, n=20)[-1], 1),
                "ms",
            ),
            Measure(
                "Watchers: bytes to each browser",
                round((seen.stream_bytes + seen.part_bytes) / count / WATCHED),
                "B/s",
            ),
        ],
    )


if __name__ == "__main__":
    main()
