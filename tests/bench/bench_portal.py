"""The portal on sites of 600 and 5,000 nodes (`large_site`): how long the server takes for each
page, and how much goes over the wire. ``python -m tests.bench.bench_portal [--quick]``

The server is the product's own, on SQLite over TLS, pinned to one core; who asks is on the other,
one page after the other on one connection, so what is measured is the server's time and a little of
the client's. An administrator's pages and an owner's; every page of the table, with example names.
A virtual cluster of the larger site has 800 nodes.
"""

from __future__ import annotations

import gzip
import http.client
import os
import secrets
import shutil
import ssl
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cod.flows.people.access import digest
from cod.model import Role
from cod.store.database import connect
from cod.store.engine import Tx
from cod.store.people import people, signins
from cod.web.portal.registry import PAGES
from tests.bench import large_site
from tests.bench.arena import RESULTS, Measure, Smoke, page, put_between_marks, write
from tests.bench.pass_world import Size
from tests.portal_site import Portal

SITES = (Size(600, 60, 6), Size(5_000, 300, 5))
HISTORY = 100  # transitions of each node
ROUNDS = 40
_CLUSTER = "/vclusters/{name}"
NAMES = {
    _CLUSTER: "v3",
    "/nodes/{name}": "node42",
    "/types/{name}": "type3",
    "/blocks/{name}": "rack9",
    "/groups/{name}": "group4",
    "/templates/{name}": "system4",
}
OWNERS_GROUP = 4  # of virtual cluster v3
PAGE = page("benchmarks")
SMOKE = Smoke(
    rows=("Portal, ",),
    sizes={
        "SITES": (Size(1_000, 300, 5),),
        "HISTORY": 1,
        "ROUNDS": 1,
        "large_site.NOTICES": 100,
        "large_site.AUDITED": 100,
    },
)


def sessions(tx: Tx, now: float) -> dict[str, str]:
    """An administrator and an owner who are signed in: their cookies."""
    cookies = {}
    for name, admin in (("administrator", True), ("owner", False)):
        user = people.add(tx, name, now, admin=admin)
        if not admin:
            people.set_role(tx, OWNERS_GROUP, user.id, Role.OWNER)
        cookies[name] = secrets.token_urlsafe(32)
        signins.add(
            tx,
            digest(cookies[name]),
            user.id,
            now,
            expires_at=now + 1e6,
            address="127.0.0.1",
            browser="bench",
        )
    return cookies


def sessions_of(tx: Tx, name: str, now: float, *, admin: bool = True) -> str:
    """The cookie of one more person, usually an administrator, who sees everything."""
    user, cookie = people.add(tx, name, now, admin=admin), secrets.token_urlsafe(32)
    signins.add(
        tx, digest(cookie), user.id, now, expires_at=now + 1e6, address="127.0.0.1", browser="bench"
    )
    return cookie


def addresses(waiting: int) -> dict[str, str]:
    """Every page that can be named without more than the examples, by its pattern. `waiting`: the
    id of a request that waits."""
    found = {"/": "/"}
    for each in PAGES:
        name = next((NAMES[known] for known in NAMES if each.path.startswith(known)), "")
        path = each.path.replace("{name}", name)
        if each.path.startswith("/requests/"):
            path = path.replace("{id}", str(waiting))
        if not each.public and "{" not in path and "//" not in path and not path.endswith("/"):
            found[each.path] = path
    return found


class Reader:
    """One browser's connection."""

    def __init__(self, port: int, cookie: str) -> None:
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        self._connection = http.client.HTTPSConnection(
            "localhost", port, timeout=60, context=context
        )
        self._headers = {"Cookie": f"__Host-cod={cookie}", "Accept-Encoding": "gzip"}

    def get(self, path: str) -> tuple[int, float, int, bytes]:
        """(status, seconds, bytes of the body, the body)."""
        start = time.perf_counter()
        self._connection.request("GET", path, headers=self._headers)
        reply = self._connection.getresponse()
        body = reply.read()
        seconds = time.perf_counter() - start
        if reply.getheader("Content-Encoding") == "gzip":
            return reply.status, seconds, len(body), gzip.decompress(body)
        return reply.status, seconds, len(body), body


@dataclass
class Looks:
    """What one page cost. `p95` and `cpu` (the server's, a mean) in ms, `size` in kB packed."""

    p95: float
    cpu: float
    size: float

    def __str__(self) -> str:
        return f"{self.p95:.0f} ms, {self.cpu:.0f} ms, {self.size:.1f} kB"


def looked_at(port: int, pid: int, cookie: str, size: Size, rounds: int) -> dict[str, Looks]:
    """What each page costs that a person may see, by its pattern."""
    reader, found = Reader(port, cookie), {}
    for pattern, path in addresses(size.holders + 1).items():
        status, *_ = reader.get(path)  # templates are read, plans are made for the first time
        if status in (403, 404):
            continue  # not for this one
        before = cpu(pid)
        looks = [reader.get(path) for _ in range(rounds)]
        spent = cpu(pid) - before
        if {look[0] for look in looks} != {200}:
            raise RuntimeError(f"{path} was answered by {sorted({look[0] for look in looks})}")
        times = sorted(look[1] * 1000 for look in looks)
        found[pattern] = Looks(
            p95=times[int(len(times) * 0.95) - 1],
            cpu=1000 * spent / rounds,
            size=max(look[2] for look in looks) / 1000,
        )
    return found


def measured(who: str, size: Size, pages: dict[str, Looks]) -> list[Measure]:
    """The slowest page's 95th percentile and the largest page's size; those of a cluster's page."""
    held = size.nodes * 4 // 5 // size.holders
    slow = max(pages, key=lambda each: pages[each].p95)
    large = max(pages, key=lambda each: pages[each].size)
    site = f"Portal, {size.nodes:,} nodes:"
    return [
        Measure(
            f"{site} slowest page for {who}, p95 ({slow})",
            round(pages[slow].p95, 1),
            "ms",
            goal="< 150 ms",
        ),
        Measure(
            f"{site} largest page for {who} ({large})",
            round(pages[large].size, 1),
            "kB",
            goal="< 200 kB",
        ),
        Measure(
            f"{site} a cluster's page for {who}, p95 ({held} nodes)",
            round(pages[_CLUSTER].p95, 1),
            "ms",
            goal="< 150 ms",
        ),
        Measure(
            f"{site} a cluster's page for {who} ({held} nodes)",
            round(pages[_CLUSTER].size, 1),
            "kB",
            goal="< 60 kB",
        ),
    ]


def write_table(columns: dict[str, dict[str, Looks]]) -> None:
    """Put each page's costs into the manual's page; `columns`: by who looked at which site."""
    patterns = sorted({each for pages in columns.values() for each in pages})
    rows = [
        [f"`{each}`", *(str(pages[each]) if each in pages else "" for pages in columns.values())]
        for each in patterns
    ]
    lines = (["Page", *columns], ["---"] * (1 + len(columns)), *rows)
    put_between_marks(PAGE, "pages", [f"| {' | '.join(line)} |" for line in lines])


def cpu(pid: int) -> float:
    """CPU seconds of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Measure, print, write build/bench/portal.json and the page's table."""
    rounds = 8 if "--quick" in sys.argv else ROUNDS
    measures, columns = list[Measure](), dict[str, dict[str, Looks]]()
    os.sched_setaffinity(0, {1})
    for size in SITES:
        with serving(size) as (portal, cookies):
            for who, cookie in cookies.items():
                pages = looked_at(portal.port, portal.pid, cookie, size, rounds)
                columns[f"{who}, {size.nodes:,} nodes"] = pages
                measures += measured(who, size, pages)
    write_table(columns)
    write("portal", measures)


def url(portal: Portal) -> str:
    """Return the URL of its database."""
    return f"sqlite:///{portal.folder}/data/cod.db"


@contextmanager
def serving(size: Size) -> Iterator[tuple[Portal, dict[str, str]]]:
    """Serve a site of that size on the first core: the server, and its two people's cookies."""
    with tempfile.TemporaryDirectory(prefix="cod-portal-") as folder:
        portal = Portal(Path(folder))
        portal.found(lambda tx, now: None)
        site = large_site.found(RESULTS / "site", size, HISTORY * size.nodes)
        shutil.copy(site, portal.folder / "data" / "cod.db")
        engine = connect(url(portal))
        with engine.begin() as tx:
            cookies = sessions(tx, time.time())
        engine.dispose()
        with portal:
            os.sched_setaffinity(portal.pid, {0})
            yield portal, cookies


if __name__ == "__main__":
    main()
