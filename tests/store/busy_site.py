"""A site on which a pass has something of every kind to do, for the tests of the manager's acts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sqlalchemy import Engine, event, select, update

from cod.flows.scheduler import reclaims as reclaim_flows
from cod.flows.scheduler import vclusters as owner_flows
from cod.model import AskedVcluster, Energy, Reclaim, Site
from cod.store import tables
from cod.store import tables as t
from cod.store.engine import Tx
from cod.store.people import groups
from cod.store.scheduler import reclaims, vclusters
from tests.contexts import flow_context
from tests.repeats import rows_of
from tests.store.manager_world import OWNER, add_node, add_template, arrive, check_world, run_pass

GIB = '<requires><memory><mib equal="{}"/></memory></requires>'
NOW = 130.0  # when everything is due
EVERY_KIND = [
    "warn vcluster",
    "drain vcluster",
    "expire vcluster",
    "end vcluster",
    "grant request",
    "ease reclaim",
    "seize by reclaim",
    "take for request",
    "tell requests why not",
    "wake nodes",
    "put nodes to sleep",
]


def ruled(site: Site) -> Site:
    """The site with rules that let much happen in little time."""
    policy = replace(
        site.policy,
        inertia=10.0,
        reclaim_grace=20.0,
        drain_grace=30.0,
        lease_warnings=(1000.0,),
        default_lease=1e6,
    )
    return replace(
        site,
        policy=policy,
        energy=Energy(
            manage=True, warm_low=1, warm_high=2, idle_time=50.0, wake_time=100.0, wake_step=10.0
        ),
    )


def calm(site: Site) -> Site:
    """Return the same site, whose reserve nobody manages."""
    return replace(site, energy=Energy())


def want(
    tx: Tx, site: Site, name: str, size: int, mib: int, now: float, group: str = "low", **rest: Any
) -> int:
    """A vcluster that waits for nodes with so much memory; its id."""
    made = owner_flows.create(
        tx,
        flow_context(site, now),
        AskedVcluster(
            name=name, size=size, template="debian", group=group, attributes=GIB.format(mib), **rest
        ),
    )
    return int(made.value[0].vcluster.id)


def grow(tx: Tx, site: Site, name: str, size: int, now: float) -> None:
    """A vcluster of so many active nodes, beyond its creation size."""
    owner_flows.resize(tx, flow_context(site, now, OWNER), name=name, size=size)
    run_pass(tx, calm(site), now)
    arrive(tx, now)


def people(tx: Tx) -> None:
    """A group that goes first, one that goes last, and their template."""
    groups.add(tx, "low", 0.0, priority=0)
    groups.add(tx, "high", 0.0, priority=9)
    add_template(tx, "debian")


def build(tx: Tx, site: Site) -> None:
    """Types are told apart by their memory, and each part of the site uses its own."""
    people(tx)
    for number, mib in enumerate([4096] * 5 + [8192] * 4 + [16384] * 3 + [65536] * 3):
        add_node(tx, number, mib=mib)
    for number in range(30, 34):
        add_node(tx, number, mib=24576)
    for number in (20, 21):
        add_node(tx, number, "off", mib=32768)
    for name in ("warned", "drains", "expires", "ends"):
        want(tx, site, name, 1, 4096, 1.0)
    want(tx, site, "loser8", 1, 8192, 1.0)
    want(tx, site, "loser16", 1, 16384, 1.0)
    want(tx, site, "loser24", 1, 24576, 1.0)
    run_pass(tx, calm(site), 2.0)
    arrive(tx, 3.0)
    grow(tx, site, "loser8", 4, 4.0)
    grow(tx, site, "loser16", 3, 5.0)
    grow(tx, site, "loser24", 4, 6.0)
    want(tx, site, "winner8", 2, 8192, 100.0, "high")
    want(tx, site, "winner24", 2, 24576, 100.0, "high")
    run_pass(tx, calm(site), 100.0)  # takes two nodes of each, which nobody gives back until 120
    tx.execute(
        update(t.reclaims)
        .where(t.reclaims.c.vcluster_id == vcluster_id(tx, "loser24"))
        .values(deadline=160.0)
    )
    add_node(tx, 34, mib=24576)  # one of the two need not be given back
    _come_to(tx, "warned", expires_at=NOW + 500.0, warned=None)
    _come_to(tx, "drains", expires_at=NOW - 5.0, warned=0.0)
    _come_to(tx, "expires", expires_at=NOW - 40.0, warned=0.0, drain_until=NOW - 10.0)
    owner_flows.delete(tx, flow_context(site, 110.0, OWNER), name="ends")
    arrive(tx, 111.0)
    want(tx, site, "granted", 1, 4096, 112.0)
    want(tx, site, "winner16", 1, 16384, 113.0, "high")
    want(tx, site, "huge", 60, 4096, 114.0)


def contended(tx: Tx, site: Site, wanted: int = 2, **rest_: Any) -> Reclaim:
    """loser has created with 1 and has 4 nodes of the same type, winner wants some of them: the
    reclaim at 100."""
    people(tx)
    for number in range(4):
        add_node(tx, number)
    want(tx, site, "loser", 1, 4096, 1.0)
    run_pass(tx, site, 2.0)
    arrive(tx, 3.0)
    grow(tx, site, "loser", 4, 4.0)
    want(tx, site, "winner", wanted, 4096, 99.0, "high", **rest_)
    assert run_pass(tx, site, 100.0) == ["take for request", "tell requests why not"]
    check_world(tx)
    return reclaims.open_(tx)[0]


def answer(tx: Tx, site: Site, one: int, *names: str, now: float = 105.0) -> Any:
    """Answer a reclaim by naming nodes."""
    return reclaim_flows.answer(tx, flow_context(site, now, OWNER), reclaim_id=one, nodes_=names)


def vcluster_id(tx: Tx, name: str) -> int:
    """The id of the vcluster of that name."""
    return int(tx.scalar(select(t.vclusters.c.id).where(t.vclusters.c.live_name == name)) or 0)


def _come_to(tx: Tx, name: str, **columns: Any) -> None:
    tx.execute(update(t.vclusters).where(t.vclusters.c.name == name).values(**columns))


def everything(engine: Engine, *, but: tuple[str, ...] = ("claims",)) -> dict[str, list[Any]]:
    """All rows of all tables that stand for something."""
    with engine.begin() as tx:
        return {
            table.name: sorted(map(tuple, rows_of(tx, table)), key=repr)
            for table in tables.metadata.sorted_tables
            if table.name not in but
        }


def summary(tx: Tx) -> dict[str, tuple[str, int, int]]:
    """Each vcluster's state, its size, and how many nodes it holds, by name."""
    rows = tx.execute(
        select(t.vclusters.c.name, t.vclusters.c.state, t.vclusters.c.size, t.vclusters.c.id)
    )
    return {name: (state, size, vclusters.held(tx, one)) for name, state, size, one in rows}


class Killed(Exception):
    """The manager dies here."""


def killed_at(engine: Engine, step: Any, statement: int, **arguments: Any) -> bool:
    """Run a flow that dies before its statement of that number; False when it has fewer and went
    through."""
    seen = 0

    def count(*_: Any) -> None:
        nonlocal seen
        seen += 1
        if seen > statement:
            raise Killed

    try:
        with engine.begin() as tx:
            event.listen(tx, "before_cursor_execute", count)
            step(tx, **arguments)
            event.remove(tx, "before_cursor_execute", count)
    except Killed:
        return True
    return False
