"""The resource manager's pass: how long it takes to load the snapshot, to plan and to apply, and
how that grows.

Worlds of 1,000, 10,000 and 100,000 nodes with 100, 1,000 and 10,000 pending requests each
(tests/bench/pass_world.py), on SQLite and MariaDB. Each is measured in a process of its own: a
first pass over a world that has never been planned, further passes until one finds nothing to do,
with new requests in the place of those that were granted (as long as some are granted), and then
passes over that unchanged world, as the manager runs them: it need not plan again what it has
planned in vain. Acts are applied as the manager applies them, committed to disk.

The peer is Slurm's scheduler on the same nodes, requests and priorities (tests/bench/slurm_site.py
says what is left out): what its main and backfill loops need, by its own account, to look at the
whole queue once.

`--only NODESxREQUESTS` measures one size, `--no-peer` leaves Slurm out, `--peer` measures nothing
else. What is not measured now stays in the tables, and the picture is drawn when all sizes have
been measured in this checkout. The largest world is also measured with shares, guarantees, limits
by type and node-hours for all groups (`--shares` measures only that). `--fair` compares reading and
planning of the largest world, and passes over it unchanged, with shares, guarantees and limits and
without, and keeps nothing. `--apply NODESxREQUESTS` applies the first plan of that world one act
after the other, and in bulk, and keeps nothing.
"""

from __future__ import annotations

import gc
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, event, select

from cod.flows.scheduler import apply_plan as acting
from cod.flows.scheduler import plan as flow
from cod.model import Refused, Site
from cod.service.parts import GARBAGE
from cod.store import claims
from cod.store import tables as t
from cod.store.database import connect
from cod.store.engine import snapshot
from tests.bench import pass_results
from tests.bench.arena import ROOT, Smoke, write
from tests.bench.pass_results import (
    DATABASES,
    SHARED,
    Pass,
    Result,
    draw,
    keep,
    keep_peer,
    kept,
    kept_peers,
    measures,
    whole,
    write_table,
)
from tests.bench.pass_world import FAIR, HARDWARE, NOW, SITE, WANTS, Size, ask, entitle, fill
from tests.bench.slurm_site import Cycles, Slurm
from tests.mariadb import MariaDB

AGAIN = 7  # passes over the unchanged world
ADDED = 5  # times that requests are added
SETTLING = 20  # passes after which a world ought to have come to rest


# ---------------------------------------------------------------- one world, in a process of its
# own


CLOCK = itertools.count()
Rest = tuple[flow.Observed, flow.NoChange]
_SIZE = Size(1_000, 10)
SMOKE = Smoke(
    rows=("manager: ", "manager: plan, 1,000 nodes, 10 requests, SQLite, shares"),
    sizes={
        "pass_results.NODES": (1_000,),
        "pass_results.REQUESTS": (10,),
        "pass_results.SIZES": [_SIZE],
        "pass_results.LARGEST": _SIZE,
        "pass_results.PEERS": (_SIZE,),
        "DATABASES": ("SQLite",),  # both have the same code, and their own tests
        "SHARED": ("SQLite, shares",),
    },
    system=True,
    needs=("slurmctld", "mariadbd"),
)


def one_pass(
    engine: Engine,
    site: Site,
    before: Rest | None = None,
    *,
    bulk: bool = True,
    spent: defaultdict[str, float] | None = None,
) -> tuple[Pass, Rest | None]:
    """Load, plan and apply, as the manager does; what has become stale meanwhile is skipped.
    Between passes the clock moves on by so little that nothing falls due. With the pass comes, if
    there was nothing to do, what makes the next one short. `spent`: seconds of CPU are added by the
    first word of the act's name."""
    now = NOW + next(CLOCK) / 1000
    with engine.begin() as tx:
        claim = claims.hold(tx, "manager", "bench", now, 3600.0)
    assert claim is not None
    began = time.perf_counter()
    with snapshot(engine) as tx:
        looked = flow.look(tx, site, now, before[0] if before else None, again=True)
    seen = looked.site
    loaded = time.perf_counter()
    if before is not None and before[1].lasts(seen, site, now):
        return Pass(
            loaded - began, time.perf_counter() - loaded, 0.0, requests=len(seen.requests)
        ), (
            looked,
            before[1],
        )
    planned = flow.decide(seen, site, now)
    decided = time.perf_counter()
    acts = deque(acting.acts(planned, site, bulk=bulk))
    count = 0
    while acts:
        act, result = acts.popleft(), None
        count += 1
        cpu = time.process_time()
        with suppress(acting.Stale, Refused), engine.begin() as tx:
            result = act.flow(tx, claim=claim, now=now)
        if spent is not None:
            spent[act.name.split()[0]] += time.process_time() - cpu
        acts.extendleft(reversed(act.left(result)))
    ended = time.perf_counter()
    done = Pass(
        loaded - began,
        decided - loaded,
        ended - decided,
        count,
        len(planned.grants),
        sum(share.count for grant in planned.grants for share in grant.shares),
        len(seen.requests),
    )
    return done, None if planned else (looked, flow.still(seen, site, now))


def resident(name: str) -> float:
    """MB of memory that this process has (VmRSS), or had at most (VmHWM)."""
    status = Path("/proc/self/status").read_text()
    return int(status.split(f"{name}:")[1].split()[0]) / 1024


def settle(engine: Engine, size: Size, site: Site) -> None:
    """Pass until there is nothing to do; then make up for requests that were granted, unless none
    was; and so on."""
    for round_ in range(ADDED):
        granted, waiting = pass_until_rest(engine, site)
        if waiting == size.requests or (round_ and not granted) or round_ == ADDED - 1:
            return
        ask(engine, size, size.requests - waiting, seed=2 + round_)


def pass_until_rest(engine: Engine, site: Site) -> tuple[int, int]:
    """How many requests were granted meanwhile, and how many wait now."""
    granted = 0
    for _ in range(SETTLING):
        done, rest = one_pass(engine, site)
        granted += done.granted
        if rest:
            return granted, done.requests
    raise RuntimeError(f"the world does not come to rest: {done}")


def measure(url: str, size: Size, site: Site) -> dict[str, Any]:
    """The first pass over the world at `url`, passes until it rests, and passes over it at rest."""
    engine = connect(url)
    gc.set_threshold(*GARBAGE)
    with engine.begin() as tx:
        tx.execute(select(t.claims)).all()
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # the peak is counted from here
    before = resident("VmRSS")
    first, _ = one_pass(engine, site)
    memory = resident("VmHWM") - before
    settle(engine, size, site)
    anew, rest = one_pass(engine, site)
    assert rest is not None
    again = []
    for _ in range(2 + AGAIN):  # in the first two it finds out that all is as it was
        done, rest = one_pass(engine, site, rest)
        again.append(done)
    still = sorted(again[2:], key=lambda each: each.load + each.plan)
    looks = []
    for _ in range(AGAIN):
        began = time.perf_counter()
        with engine.execution_options(reading=True).begin() as tx:
            flow.pulse(tx)
        looks.append(time.perf_counter() - began)
    return {
        "first": asdict(first),
        "anew": asdict(anew),
        "still": asdict(still[AGAIN // 2]),
        "look": statistics.median(looks),
        "memory": memory,
    }


def measured(database: str, url: str, size: Size) -> Result:
    """Fill an empty database and measure it in a process of its own."""
    engine = connect(url)
    t.metadata.create_all(engine)
    fill(engine, size)
    if database in SHARED:
        entitle(engine, size)
    engine.dispose()
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "tests.bench.bench_pass",
            "--measure",
            url,
            str(size.nodes),
            str(size.requests),
            database,
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    said = json.loads(done.stdout)
    passes = {name: Pass(**said[name]) for name in ("first", "anew", "still")}
    result = Result(database, size, **passes, look=said["look"], memory=said["memory"])
    print(
        f"  {database:15} {size!s:32} load {result.first.load:6.3f}  plan {result.first.plan:6.3f} "
        f" apply {result.first.apply:7.2f} s ({result.first.acts:,} acts, {result.first.nodes:,}"
        f" nodes)  {result.memory:5.0f} MB  unchanged, {result.anew.requests:,} waiting:"
        f" {whole(result.anew):6.3f} s, then {whole(result.still):6.3f} s, look"
        f" {result.look:6.4f} s",
        flush=True,
    )
    return result


# ---------------------------------------------------------------- the peer


def slurm(url: str, folder: Path) -> Cycles:
    """The world at `url` for Slurm: one look at all its requests. A request of two tuples is two
    jobs."""
    wants = {want.xml(): want for want in WANTS}
    n, r, rt = t.nodes.c, t.node_requests.c, t.request_tuples.c
    with connect(url).begin() as tx:
        nodes = tx.execute(select(n.id, n.type_id, n.state)).all()
        jobs = tx.execute(
            select(r.priority, rt["count"], rt.attributes)
            .join_from(t.request_tuples, t.node_requests)
            .where(r.state == "pending")
            .order_by(r.submitted_at)
        ).all()
    with Slurm(folder, HARDWARE, [(row.id, row.type_id - 1) for row in nodes]) as peer:
        peer.drain([row.id for row in nodes if row.state not in ("inactive", "off")])
        peer.submit((priority, count, wants[attributes]) for priority, count, attributes in jobs)
        return peer.schedule()


def beside(size: Size, rounds: int) -> tuple[list[Pass], list[Cycles]]:
    """The first pass over a world, on SQLite, and Slurm's cycles over the same, in turn."""
    ours, theirs = [], []
    for number in range(rounds):
        with tempfile.TemporaryDirectory(prefix="cod-bench-pass-") as folder:
            url = f"sqlite:///{folder}/cod.db"
            result = measured("SQLite", url, size)
            peer = f"sqlite:///{folder}/peer.db"
            engine = connect(peer)
            t.metadata.create_all(engine)
            fill(engine, size)
            cycles = slurm(peer, Path(folder) / "slurm")
        print(
            f"  round {number + 1}: plan {result.first.plan:.3f} s, {result.first.granted} granted;"
            f" Slurm {cycles.main:.3f} + {cycles.backfill:.3f} s, {cycles.placed} placed",
            flush=True,
        )
        ours.append(result.first)
        theirs.append(cycles)
    return ours, theirs


# ---------------------------------------------------------------- all of them


@contextmanager
def databases() -> Iterator[dict[str, Callable[[str], str]]]:
    """By the database's sort, what makes an empty one of a name and says its URL. MariaDB commits
    to disk, and keeps all in memory."""
    with tempfile.TemporaryDirectory(prefix="cod-bench-pass-") as folder:
        server = MariaDB(Path(folder) / "mariadb")
        server.install()
        server.start("--innodb-buffer-pool-size=1G", "--innodb-flush-log-at-trx-commit=1")
        numbers = itertools.count()
        socket = f"?unix_socket={server.folder}/s.sock"
        try:
            yield {
                "SQLite": lambda name: f"sqlite:///{folder}/{name}{next(numbers)}.db",
                "MariaDB": lambda name: (
                    server.url(name).replace(f"127.0.0.1:{server.port}", "localhost") + socket
                ),
            }
        finally:
            server.stop()


def compare() -> None:
    """Read and plan the largest world with all groups' entitlements and with none, in turn, and
    pass over it again, unchanged; nothing is kept."""
    gc.set_threshold(*GARBAGE)
    with databases() as made:
        for name in DATABASES:
            sites = []
            for site in (SITE, FAIR):
                engine = connect(made[name]("fair" if site is FAIR else "plain"))
                t.metadata.create_all(engine)
                fill(engine, pass_results.LARGEST)
                if site is FAIR:
                    entitle(engine, pass_results.LARGEST)
                sites.append((site, engine))
            for site, engine in sites * int(os.environ.get("ROUNDS", "3")):
                load, plan, unchanged, took = _compared(engine, site)
                print(
                    f"  {name:8} {'with' if site is FAIR else 'without'} shares, guarantees and"
                    f" limits: load {load:.3f} s, plan {plan:.3f} s, unchanged {unchanged:.3f} s of"
                    f" CPU ({took:.3f} s in all)",
                    flush=True,
                )


def compare_apply(size: Size) -> None:
    """Apply the first plan of a world in bulk and one by one, in turn; nothing is kept."""
    gc.set_threshold(*GARBAGE)
    with databases() as made:
        for name, bulk in itertools.product(DATABASES, (False, True)):
            engine = connect(made[name]("bulk" if bulk else "single"))
            t.metadata.create_all(engine)
            fill(engine, size)
            counts: Counter[str] = Counter()
            for what in ("before_cursor_execute", "commit"):
                event.listen(engine, what, partial(_count, counts, what))
            spent: defaultdict[str, float] = defaultdict(float)
            done, _ = one_pass(engine, SITE, bulk=bulk, spent=spent)
            print(
                f"  {name:8} {'in bulk' if bulk else 'one by one':10} {done.apply:6.1f} s,"
                f" {sum(spent.values()):5.1f} s of CPU (grants {spent['grant']:.1f}, preemptions"
                f" {spent['take']:.2f}), {counts['before_cursor_execute']:,} statements,"
                f" {counts['commit']:,} commits, {done.granted:,} requests, {done.nodes:,} nodes",
                flush=True,
            )
            engine.dispose()


def _count(counts: Counter[str], what: str, *_: object) -> None:
    counts[what] += 1


def _compared(engine: Engine, site: Site) -> tuple[float, float, float, float]:
    """Return seconds of this process's CPU for reading, planning and a pass over the same again,
    and what the quickest of these took, the database's part with it."""
    times = [time.process_time()]
    looked = _look(engine, site, None)
    times.append(time.process_time())
    flow.decide(looked.site, site, NOW)
    times.append(time.process_time())
    rest = flow.still(looked.site, site, NOW)
    cpu, took = [], []
    for _ in range(2 + AGAIN):  # in the first two it finds out that all is as it was
        spent, began = time.process_time(), time.perf_counter()
        looked = _look(engine, site, looked)
        assert rest.lasts(looked.site, site, NOW)
        cpu.append(time.process_time() - spent)
        took.append(time.perf_counter() - began)
    return times[1] - times[0], times[2] - times[1], statistics.median(cpu[2:]), min(took[2:])


def _look(engine: Engine, site: Site, before: flow.Observed | None) -> flow.Observed:
    with snapshot(engine) as tx:
        return flow.look(tx, site, NOW, before, again=True)


def main() -> None:
    if "--fair" in sys.argv:
        compare()
        return
    shared = "--shares" in sys.argv
    if "--apply" in sys.argv:
        compare_apply(Size(*map(int, sys.argv[sys.argv.index("--apply") + 1].split("x"))))
        return
    sizes = (
        [Size(*map(int, sys.argv[sys.argv.index("--only") + 1].split("x")))]
        if "--only" in sys.argv
        else pass_results.SIZES
    )
    if "--peer" not in sys.argv:
        with databases() as made:
            for size, name in itertools.product(sizes, DATABASES) if not shared else ():
                keep(measured(name, made[name]("cod"), size))
            for name, plain in zip(SHARED, DATABASES, strict=True):
                if pass_results.LARGEST in sizes:
                    keep(measured(name, made[plain]("shares"), pass_results.LARGEST))
    if "--no-peer" not in sys.argv and not shared:
        for size in pass_results.PEERS:
            keep_peer(size, *beside(size, int(os.environ.get("ROUNDS", "3"))))
    results, pairs = kept(), kept_peers()
    cycles = {size: theirs for size, (_, theirs) in pairs.items()}
    write("pass", measures(results, {size: ours for size, (ours, _) in pairs.items()}, cycles))
    write_table(results)
    draw(results, cycles)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        url, nodes, requests, name = sys.argv[2:]
        size = Size(int(nodes), int(requests))
        print(json.dumps(measure(url, size, FAIR if name in SHARED else SITE)))
    else:
        main()
