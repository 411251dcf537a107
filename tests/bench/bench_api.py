"""The REST API's lists and what it shows, on a large site (`large_site`): the server's time, and
how much goes over the wire. ``python -m tests.bench.bench_api [--quick]``

The server is the product's own, on SQLite over TLS, pinned to one core; who asks is on the other,
one question after the other on one connection, so what is measured is the server's time and a
little of the client's. Beside what the large site has: 50,000 requests that are decided, 20,000
deliveries, 20,000 conflicts, and 90 days of who held what.
"""

from __future__ import annotations

import http.client
import json
import os
import random
import shutil
import ssl
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sqlalchemy import Table, insert, update

from cod.flows.people import tokens
from cod.model import Role, Who
from cod.policy.usage_buckets import DAYS, HOURS, MINUTES
from cod.states import NodeState
from cod.store import tables as t
from cod.store.database import connect
from cod.store.engine import Tx
from cod.store.people import people
from tests.bench import large_site
from tests.bench.arena import RESULTS, Measure, Smoke, write
from tests.bench.bench_portal import cpu
from tests.bench.pass_world import NOW, TYPES, Size
from tests.portal_site import Portal

ROUNDS = 40
REQUESTS, SENDS, CONFLICTS = 50_000, 20_000, 20_000
KEPT = ((MINUTES, 86400 // MINUTES), (HOURS, 32 * 24), (DAYS, 90))  # (span, how many of them)
OWNERS_GROUP, OWNERS_VCLUSTER = 18, "v17"
ADMIN, OWNER = "cod_bench_admin", "cod_bench_owner"
BATCH = 20_000

LISTS = (
    "/nodes",
    "/nodes?limit=1000",
    "/nodes?state=active&sort=-since",
    "/nodes?q=99",
    "/nodes?vcluster=v17",
    "/nodes?group=group18&sort=type",
    "/vclusters",
    "/vclusters?limit=1000&sort=-size",
    "/vclusters?q=v1",
    "/requests",
    "/requests?state=pending",
    "/requests?vcluster=v17",
    "/requests?q=nothing-like-it",
    "/reclaims",
    "/notices",
    "/notices?group=group18",
    "/notices?q=nothing-like-it",
    "/groups",
    "/groups/group18/deliveries",
    "/groups/group18/deliveries?state=given+up",
    "/images",
    "/templates",
    "/types",
    "/blocks",
    "/vcms",
    "/conflicts",
    "/conflicts?q=nothing-like-it",
    "/nodes/node42/history",
    "/vclusters/v17/history",
)
SHOWN = (
    "/nodes/node42",
    "/vclusters/v17",
    "/types/type3",
    "/groups/group18",
    "/requests/301",
    "/requests/301/explain",
    "/plan",
    "/health",
    "/states",
    "/openapi.json",
    "/energy",
    f"/timeline?from={NOW - 3 * HOURS}&to={NOW}",
    f"/timeline?from={NOW - DAYS}&to={NOW}&by=group",
    f"/timeline?from={NOW - 2 * DAYS}&to={NOW}",
    f"/timeline?from={NOW - 90 * DAYS}&to={NOW}",
    f"/timeline?from={NOW - 90 * DAYS}&to={NOW}&by=type",
    f"/pool/history?from={NOW - DAYS}&to={NOW}",
    f"/pool/history?from={NOW - 90 * DAYS}&to={NOW}",
)
MATCH = {
    "count": 20,
    "group": "group18",
    "attributes": (
        '<requires><memory><mib min="64GiB"/></memory><cpu><count min="32"/></cpu></requires>'
    ),
}
SMOKE = Smoke(
    rows=("API: ",),
    sizes={
        "ROUNDS": 1,
        "REQUESTS": 100,
        "SENDS": 100,
        "CONFLICTS": 100,
        "KEPT": ((MINUTES, 2), (HOURS, 2), (DAYS, 2)),
        "large_site.SIZE": Size(1_000, 300, 300),
        "large_site.HISTORY": 1_000,
        "large_site.NOTICES": 100,
        "large_site.AUDITED": 100,
    },
)


def add_more(tx: Tx) -> None:
    """What the large site has not; a token for an administrator and one for an owner."""
    dice = random.Random(1)
    tx.execute(update(t.groups).values(webhook="https://hooks.example.org/x"))
    for table, rows in (
        (t.node_requests, _requests()),
        (t.notice_sends, _sends()),
        (t.conflicts, _conflicts()),
        (t.pool_held, _held(dice)),
        (t.pool_states, _states()),
    ):
        _put(tx, table, rows)
    tokens.create(tx, "bench", ADMIN, "admin", None, NOW)
    user = people.add(tx, "owner", NOW)
    people.set_role(tx, OWNERS_GROUP, user.id, Role.OWNER)
    tokens.make(tx, who=Who("user:owner", user_id=user.id), name="bench", token=OWNER, now=NOW)


def _put(tx: Tx, table: Table, rows: Iterator[dict[str, Any]]) -> None:
    batch: list[dict[str, Any]] = []
    for row in rows:
        batch.append(row)
        if len(batch) == BATCH:
            tx.execute(insert(table), batch)
            batch = []
    if batch:
        tx.execute(insert(table), batch)


def _requests() -> Iterator[dict[str, Any]]:
    for number in range(REQUESTS):
        yield {
            "vcluster_id": 1 + number % 300,
            "kind": "grow",
            "state": "granted",
            "priority": 1,
            "submitted_at": NOW - number,
            "decided_at": NOW - number,
        }


def _sends() -> Iterator[dict[str, Any]]:
    for number in range(SENDS):
        yield {
            "notice_id": 1 + number,
            "channel": "webhook",
            "target": "https://hooks.example.org/x",
            "attempts": 1,
            "next_at": NOW,
            "done_at": NOW,
            "delivered": number % 7 > 0,
            "error": "" if number % 7 else "answered 500",
        }


def _conflicts() -> Iterator[dict[str, Any]]:
    for number in range(CONFLICTS):
        yield {
            "at": NOW - number,
            "kind": "declined",
            "subnet": "lab",
            "address": number,
            "mac": None,
            "about": "somebody else has it",
        }


def _held(dice: random.Random) -> Iterator[dict[str, Any]]:
    for span, count in KEPT:
        for place in range(count):
            start = int(NOW // span) * span - place * span
            for vcluster in range(1, 301):
                for kind in dice.sample(range(1, TYPES + 1), 2):
                    yield {
                        "span": span,
                        "start": start,
                        "vcluster_id": vcluster,
                        "type_id": kind,
                        "seconds": dice.randrange(20) * float(span),
                    }


def _states() -> Iterator[dict[str, Any]]:
    for span, count in KEPT:
        for place in range(count):
            for kind in range(1, TYPES + 1):
                for state in (NodeState.ACTIVE, NodeState.OFF, NodeState.INACTIVE, NodeState.PRIME):
                    yield {
                        "span": span,
                        "start": int(NOW // span) * span - place * span,
                        "type_id": kind,
                        "state": state,
                        "seconds": 50.0 * span,
                    }


class Asker:
    """One connection with a token."""

    def __init__(self, port: int, token: str) -> None:
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        self._connection = http.client.HTTPSConnection(
            "localhost", port, timeout=60, context=context
        )
        self._headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}

    def ask(self, path: str, body: Any = None) -> tuple[int, float, int]:
        """(status, milliseconds, bytes of the body)."""
        start = time.perf_counter()
        self._connection.request(
            "GET" if body is None else "POST",
            "/api/v1" + path,
            None if body is None else json.dumps(body),
            self._headers,
        )
        reply = self._connection.getresponse()
        size = len(reply.read())
        return reply.status, 1000 * (time.perf_counter() - start), size


def measured(
    asker: Asker, pid: int, who: str, path: str, rounds: int, goal: float, body: Any = None
) -> tuple[float, float]:
    """(95th percentile, CPU of the server, both in milliseconds) of one question; (0, 0) where it
    is not for this one. On a machine with other work the first says little."""
    status, *_ = asker.ask(path, body)
    if status != 200:
        print(f"  {who} {path}: {status}")
        return 0.0, 0.0
    before = cpu(pid)
    looks = [asker.ask(path, body) for _ in range(rounds)]
    spent = 1000 * (cpu(pid) - before) / rounds
    times = sorted(look[1] for look in looks)
    p95, size = times[max(0, int(len(times) * 0.95) - 1)], max(look[2] for look in looks)
    late = "" if p95 < goal else "  TOO SLOW"
    print(
        f"  {who} {path}: median {statistics.median(times):.1f} ms, p95 {p95:.1f} ms, "
        f"{spent:.1f} ms of the server's CPU, {size / 1000:.1f} kB{late}",
        flush=True,
    )
    return p95, spent


def asked(site: Portal, who: str, token: str, rounds: int) -> list[Measure]:
    """The slowest of the lists, of what is shown, and of the question what would come of a
    request."""
    asker, measures, pid = Asker(site.port, token), [], site.pid
    for name, paths, goal in (("list", LISTS, 100), ("page of one thing", SHOWN, 150)):
        found = {path: measured(asker, pid, who, path, rounds, goal) for path in paths}
        slowest = max(found, key=lambda path: found[path][0])
        measures.append(
            Measure(
                f"API: slowest {name} for {who}, p95 ({slowest.partition('?')[0]})",
                round(found[slowest][0], 1),
                "ms",
                goal=f"< {goal} ms",
            )
        )
        dearest = max(found, key=lambda path: found[path][1])
        measures.append(
            Measure(
                f"API: dearest {name} for {who}, server CPU ({dearest.partition('?')[0]})",
                round(found[dearest][1], 1),
                "ms",
                goal=f"< {goal} ms",
            )
        )
    p95, spent = measured(asker, pid, who, "/match", rounds, 150, MATCH)
    return [
        *measures,
        *(
            Measure(
                f"API: what would come of a request, for {who}, {what}",
                round(value, 1),
                "ms",
                goal="< 150 ms",
            )
            for what, value in (("p95", p95), ("server CPU", spent))
        ),
    ]


def main() -> None:
    """Measure, print, write build/bench/api.json."""
    rounds = 8 if "--quick" in sys.argv else ROUNDS
    with tempfile.TemporaryDirectory(prefix="cod-api-") as folder:
        site = Portal(Path(folder))
        site.found(lambda tx, now: None)
        database = site.folder / "data" / "cod.db"
        shutil.copy(large_site.found(RESULTS / "site"), database)
        engine = connect(f"sqlite:///{database}")
        with engine.begin() as tx:
            add_more(tx)
        engine.dispose()
        with site:
            os.sched_setaffinity(site.pid, {0})
            os.sched_setaffinity(0, {1})
            measures = [
                one
                for who, token in (("an administrator", ADMIN), ("an owner", OWNER))
                for one in asked(site, who, token, rounds)
            ]
    write("api", measures)


if __name__ == "__main__":
    main()
