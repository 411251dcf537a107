"""A small site in a database, for the tests of the resource manager's flows."""

from __future__ import annotations

from collections import deque
from typing import Any

from sqlalchemy import Engine, func, insert, select

from cod.core.nodes import transitions
from cod.flows.scheduler import apply_plan as act_flows
from cod.flows.scheduler import plan as flow
from cod.model import Node, Site
from cod.states import Disk, NodeEvent, NodeState
from cod.store import claims
from cod.store import tables as t
from cod.store.engine import Tx, new_id
from cod.store.nodes import nodes, types
from cod.store.people import groups

REPORT = (
    '<node><disk local="yes" size="4000000000" /><firmware kind="bios" /><memory mib="{mib}"'
    " /></node>"
)
DOCUMENT = '<template{cache}><image target="disk" name="debian"/></template>'
OWNER = "user:ann"
MOVING = (NodeState.TRAMPOLINE, NodeState.WIPE, NodeState.PRIME, NodeState.BOOT)


def add_template(tx: Tx, name: str = "debian", cache: bool = False, revision: int = 1) -> int:
    """A template that fits every node; its id."""
    document = DOCUMENT.format(cache=' cache="yes"' if cache else "")
    return new_id(
        tx.execute(
            insert(t.config_templates).values(
                name=name, revision=revision, document=document, digest="0" * 64, created_at=0.0
            )
        )
    )


def add_node(tx: Tx, number: int, state: str = "inactive", mib: int = 4096, **columns: Any) -> Node:
    """A clean node with a power switch."""
    values = {
        "disk": Disk.CLEAN,
        "power_driver": "lab",
        "type_id": types.of(tx, REPORT.format(mib=mib), 0.0).id,
    }
    return nodes.add(
        tx,
        name=f"node{number}",
        boot_mac=f"52:54:00:00:{number >> 8:02x}:{number & 255:02x}",
        now=0.0,
        cause="test",
        actor="test",
        state=state,
        **values | columns,
    )


def furnish(tx: Tx, count: int) -> None:
    """A group, a template that keeps disks, one that does not, and `count` free nodes."""
    groups.ensure(tx, "site", 0.0)
    add_template(tx, "debian")
    add_template(tx, "kept", cache=True)
    for number in range(count):
        add_node(tx, number)


def run_pass(tx: Tx, site: Site, now: float, owner: str = "a") -> list[str]:
    """One whole pass in one transaction; the names of its acts, without ids."""
    claim = claims.hold(tx, "manager", owner, now, 10.0, over=claims.find(tx, "manager"))
    assert claim is not None
    acts = deque(planned(tx, site, now, bulk=True))
    names: list[str] = []
    while acts:
        act = acts.popleft()
        left = act.left(act.flow(tx, claim=claim, now=now))
        names += [each.name for each in act.parts or (act,) if each not in left]
        acts.extendleft(reversed(left))
    return [name.rstrip(" 0123456789") for name in names]


def rest(tx: Tx, site: Site, now: float, owner: str = "a", step: float = 400.0) -> float:
    """Passes and arrivals, `step` seconds apart, until nothing is left to do, twice over; when that
    was."""
    quiet = 0
    for turn in range(20):
        arrive(tx, now + turn * step)
        quiet = 0 if run_pass(tx, site, now + turn * step, owner) else quiet + 1
        check_world(tx)
        if quiet == 2:
            return now + turn * step
    raise AssertionError("the site does not come to rest")


def planned(tx: Tx, site: Site, now: float, *, bulk: bool = False) -> list[act_flows.Act]:
    """The acts of the pass that would be run now."""
    plan = flow.decide(flow.snapshot(tx, site, now), site, now)
    return list(act_flows.acts(plan, site, bulk=bulk))


def arrive(tx: Tx, now: float, name: str | None = None) -> None:
    """Every node (or the one) that is on its way gets there: primed and booted, or wiped and back
    in the reserve."""
    for node in nodes.every(tx):
        if name in (None, node.name):
            _arrive(tx, node, now)


def _arrive(tx: Tx, node: Node, now: float) -> None:
    ways: dict[str, tuple[NodeEvent, dict[str, object]]] = {
        NodeState.PRIME: (NodeEvent.PRIMED, {}),
        NodeState.BOOT: (NodeEvent.BOOTED, {}),
        NodeState.WIPE: (NodeEvent.WIPED, {"disk": Disk.CLEAN}),
    }
    while node.state in MOVING:
        event, columns = ways.get(node.state) or _crossroads(node)
        node = transitions.move(tx, node, event, now=now, cause="test", actor="test", **columns)


def _crossroads(node: Node) -> tuple[NodeEvent, dict[str, object]]:
    if node.vcluster_id is not None:
        return NodeEvent.PRIME_ORDERED, {}
    if node.disk == Disk.DIRTY:
        return NodeEvent.WIPE_ORDERED, {}
    return NodeEvent.IDLED, {"released": 0}


def states(tx: Tx) -> dict[str, str]:
    """Every node's state by name."""
    return {node.name: node.state for node in nodes.every(tx)}


def members(tx: Tx, vcluster_id: int) -> list[str]:
    """The names of a vcluster's nodes."""
    return [node.name for node in nodes.every(tx, vcluster_id=vcluster_id)]


def check_world(tx: Tx) -> None:
    """What must hold between any two transactions."""
    for node in nodes.every(tx):
        of = t.bindings.c
        own = (of.node_id == node.id, of.kind == "vcluster", of.state != "left")
        bindings = tx.scalar(select(func.count()).where(*own))
        rights = tx.scalar(select(func.count()).where(t.node_permissions.c.node_id == node.id))
        installs = tx.scalar(select(func.count()).where(t.install_images.c.node_id == node.id))
        held = int(node.vcluster_id is not None)
        assert (bindings, rights, installs) == (held, held, held), node
        assert (
            node.request_id is not None,
            node.template_id is not None,
            node.hostname is not None,
        ) == (held,) * 3
        if node.state in (NodeState.INACTIVE, NodeState.OFF):
            assert not held
            assert node.disk in (Disk.CLEAN, Disk.CACHED, Disk.FOREIGN), "a dirty node looks free"
        if node.state in (NodeState.PRIME, NodeState.BOOT, NodeState.ACTIVE):
            assert held
    for vcluster_id, hostname, count in tx.execute(
        select(t.nodes.c.vcluster_id, t.nodes.c.hostname, func.count())
        .where(t.nodes.c.vcluster_id.is_not(None))
        .group_by(t.nodes.c.vcluster_id, t.nodes.c.hostname)
    ):
        assert count == 1, f"{count} nodes of vcluster {vcluster_id} are called {hostname}"
    for row in tx.execute(select(t.vclusters).where(t.vclusters.c.state == "active")):
        _check_vcluster(tx, row)


def _check_vcluster(tx: Tx, row: Any) -> None:
    held = tx.scalar(select(func.count()).where(t.nodes.c.vcluster_id == row.id)) or 0
    missing = (
        tx.scalar(
            select(func.sum(t.request_tuples.c["count"]))
            .join_from(t.node_requests, t.request_tuples)
            .where(
                t.node_requests.c.vcluster_id == row.id,
                t.node_requests.c.state == "pending",
                t.node_requests.c.kind == "replace",
            )
        )
        or 0
    )
    assert held + missing == row.size, (
        f"vcluster {row.name}: {held} nodes, {missing} to come, size {row.size}"
    )


def in_tx(engine: Engine, step: Any, *args: Any, **kwargs: Any) -> Any:
    """Run a flow in a transaction of its own, as the pool does."""
    with engine.begin() as tx:
        return step(tx, *args, **kwargs)
