"""Changes of a storm's site between two storms: the machines' disks have to be erased, or the
machines hold clusters. The rows are those that the server would have written one by one."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from sqlalchemy import Connection, bindparam, select, update

from cod.model import UNTIL_LEFT, Binding, Refused, Subnet
from cod.states import Disk, NodeState, VclusterState
from cod.store import tables as t
from cod.store.database import connect
from cod.store.images import templates
from cod.store.nodes import bindings
from cod.store.people import groups
from cod.store.scheduler import address_blocks, vclusters

CLUSTER = 200  # nodes of a cluster at most
LEASE = 30 * 86400.0  # seconds
SIGNATURE = 0xC0D00001  # of the disks; they are protocols, so one does for all
TEMPLATE = (
    '<template name="storm"><image target="disk" name="storm"/><personalise seed="nocloud"/>'
    "</template>"
)


def make_dirty(url: str) -> None:
    """Mark all disks as possibly holding somebody's data, as after an outage during work: the
    machines are erased at their next boot."""
    engine = connect(url)
    with engine.begin() as tx:
        tx.execute(update(t.nodes).values(disk=Disk.DIRTY))
    engine.dispose()


def assign(url: str, subnets: Sequence[Subnet]) -> None:
    """Assign all machines to clusters of `CLUSTER` nodes each, in the subnets where they boot, with
    the clusters' system on their disks: at their next boot they are active nodes that were
    power-cycled."""
    now, engine = time.time(), connect(url)
    n, b = t.nodes.c, t.bindings.c
    found = select(n.id, n.boot_mac).join(t.bindings, (b.node_id == n.id) & (b.kind == "boot"))
    with engine.begin() as tx:
        group = groups.ensure(tx, "storm", now)
        template = templates.append(tx, "storm", TEMPLATE, None, now)
        for subnet in subnets:
            machines = tx.execute(found.where(b.subnet == subnet.name).order_by(n.id)).all()
            for start in range(0, len(machines), CLUSTER):
                share = machines[start : start + CLUSTER]
                made = vclusters.add(
                    tx,
                    name=f"{subnet.name}-{start // CLUSTER}",
                    group_id=group.id,
                    template_id=template.id,
                    size=len(share),
                    attributes="",
                    lease_time=LEASE,
                    subnet=subnet,
                    now=now,
                )
                if made is None:
                    raise Refused("conflict", f"subnet {subnet.name} has too few addresses")
                active = {"state": VclusterState.ACTIVE, "expires_at": now + LEASE}
                vclusters.change(tx, made, now, **active)
                _fill(tx, made.id, template.id, subnet, share, now)
    engine.dispose()


def _fill(
    tx: Connection,
    vcluster_id: int,
    template_id: int,
    subnet: Subnet,
    machines: Iterable[tuple[int, str]],
    now: float,
) -> None:
    """Make machines, each an id and a MAC, active nodes of a cluster."""
    free = (
        address
        for block in address_blocks.of(tx, vcluster_id)
        for address in block.addresses
        if address & 0xFF not in (0, 0xFF)
    )
    bound, values = [], []
    for place, (node, mac) in enumerate(machines):
        host, until = f"n{place}", UNTIL_LEFT
        bound.append(Binding(next(free), mac, "vcluster", node, subnet.name, host, "bound", until))
        values.append({"node": node, "host": host})
    bindings.add(tx, bound)
    n = t.nodes.c
    change = update(t.nodes).where(n.id == bindparam("node"))
    change = change.values(
        state=NodeState.ACTIVE,
        since=now,
        generation=n.generation + 1,
        deadline=None,
        disk=Disk.DIRTY,
        disk_signature=SIGNATURE,
        vcluster_id=vcluster_id,
        template_id=template_id,
        hostname=bindparam("host"),
        assigned_at=now,
    )
    tx.execute(change, values)
