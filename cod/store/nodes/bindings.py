"""Bindings: which IPv4 address is bound to which client.

Two kinds live in one table, because its primary key on the address makes two holders of one address
impossible. A *boot* binding is lent for minutes to firmware and trampoline, from the subnet's boot
pool. A *vcluster* binding is reserved for a node when the node is assigned, and is its operating
system's address until it leaves. A row is offered, bound, reserved (kept for a node), declined, or
left (taken from a system that may still run); nobody may use the address of a declined or left row.

Rows that are about to be written are read for update: MariaDB then locks them until the commit
(SQLite has one writer anyway), so a row that was seen free stays free. A row that did not exist is
inserted plainly: if another server was quicker, the database raises IntegrityError and the flow is
run again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence, Set
from typing import NamedTuple

from sqlalchemy import bindparam, case, delete, func, or_, select, update

from cod.model import (
    UNTIL_LEFT,
    AddressBlock,
    Binding,
    Node,
    Refused,
    Vcluster,
    ipv4,
    joined,
)
from cod.states import UNREPORTED
from cod.store import dns_zones
from cod.store import tables as t
from cod.store.engine import Among, Prepared, Row, Tx, slices
from cod.store.nodes import nodes
from cod.store.rows import Rows, remove_all
from cod.store.scheduler import address_blocks

_BLOCKS = 16  # blocks of vclusters that are read by one statement

_b = t.bindings.c
ROWS = Rows(Binding, t.bindings)
add = ROWS.insert
_GIVE_UP = delete(t.bindings).where(Among(_b.node_id, "nodes"), _b.kind == "vcluster")
WITH_NODE = (
    ROWS.select.add_columns(*nodes.ROWS.columns)
    .join(t.nics, t.nics.c.mac == _b.mac)
    .join(t.nodes, t.nodes.c.id == t.nics.c.node_id)
    .where(
        _b.address == bindparam("number"),
        _b.mac == bindparam("nic"),
        _b.expires_at > bindparam("now"),
    )
)
"""The SELECT of the binding of the address `number` that the MAC `nic` has `now`, with the node."""
_WITH_NODE = Prepared(WITH_NODE)
# made once, and of one text: the blocks of large vclusters have many rows
_TAKEN = (
    select(func.group_concat(case((_b.expires_at > bindparam("now"), _b.address))))
    .where(
        or_(
            *(
                _b.address.between(bindparam(f"first{n}"), bindparam(f"last{n}"))
                for n in range(_BLOCKS)
            )
        )
    )
    .with_for_update()
)
_NOWHERE = {f"first{n}": 1 for n in range(_BLOCKS)} | {f"last{n}": 0 for n in range(_BLOCKS)}


def with_node(tx: Tx, mac: str, address: str, now: float) -> tuple[Binding, Node] | None:
    """Return the binding that lets a machine at `address` speak as `mac`, with the node of that
    MAC; None: the address is not bound to that MAC now, or no node has the MAC."""
    rows = with_others(tx, _WITH_NODE, mac, address, now)
    return rows[0][:2] if rows else None


def with_others(
    tx: Tx, query: Prepared, mac: str, address: str, now: float
) -> list[tuple[Binding, Node, Row]]:
    """Return (binding, node, further columns) for each row of `query`, a query made of `WITH_NODE`;
    see `with_node`."""
    try:
        number = ipv4(address)
    except OSError:
        return []
    at = ROWS.width + nodes.ROWS.width
    return [
        (ROWS.read(row), nodes.ROWS.read(row, ROWS.width), row[at:])
        for row in query.rows(tx, {"number": number, "nic": mac, "now": now})
    ]


def mac_at(tx: Tx, address: str) -> str | None:
    """Return the MAC of the client that got the address last; None if there is none."""
    try:
        number = ipv4(address)
    except OSError:
        return None
    return tx.scalar(select(_b.mac).where(_b.address == number))


def of_node(tx: Tx, node_id: int) -> list[Binding]:
    """Return the node's bindings by address, without addresses that it has left."""
    return ROWS.every(tx, _b.node_id == node_id, _b.state != "left", order=_b.address)


def of_systems(tx: Tx, node_ids: Collection[int]) -> list[Binding]:
    """Return the bindings of those nodes' operating systems. State *bound* means that the system
    has asked for the address since its last boot."""
    if not node_ids:
        return []
    return ROWS.every(
        tx, _b.node_id.in_(node_ids), _b.kind == "vcluster", _b.state.in_(["bound", "reserved"])
    )


def taken(tx: Tx, first: int, last: int, now: float) -> set[int]:
    """Return the addresses of a range that cannot be assigned now."""
    return set(
        tx.scalars(select(_b.address).where(_b.address.between(first, last), _b.expires_at > now))
    )


def giving_way(tx: Tx, first: int, last: int, before: float, limit: int) -> list[Binding]:
    """Return boot bindings in a range that may be reassigned: those of machines that never
    reported, valid until `before` at most, then declined ones. Those that end first come first."""
    new = (
        select(t.nodes.c.id)
        .where(t.nodes.c.id == _b.node_id, t.nodes.c.state.in_(UNREPORTED))
        .exists()
    )
    return ROWS.every(
        tx,
        _b.address.between(first, last),
        _b.kind == "boot",
        or_(_b.state == "declined", (_b.expires_at <= before) & new),
        order=(case((_b.state == "declined", 1), else_=0), _b.expires_at, _b.address),
        limit=limit,
    )


def forget(tx: Tx, addresses: Iterable[int]) -> None:
    """Delete the bindings at those addresses."""
    remove_all(tx, _b.address, list(addresses))


class Reserve(NamedTuple):
    """An address reservation to make: the node, its NIC, its vcluster, and its host name in it."""

    node_id: int
    mac: str
    vcluster: Vcluster
    hostname: str


def reserve(tx: Tx, node: Node, mac: str, vcluster: Vcluster, hostname: str, now: float) -> int:
    """Reserve an address for one node's operating system, as `reserve_all` does; return the
    address."""
    return reserve_all(tx, [Reserve(node.id, mac, vcluster, hostname)], now)[0]


def reserve_all(tx: Tx, wanted: Sequence[Reserve], now: float) -> list[int]:
    """Reserve an address for each node's operating system: the first free one of its vcluster's
    blocks, in order. Return the addresses.

    Addresses ending in .0 and .255 are left out, because many systems take them for a network's
    own. A node's earlier address as a vcluster's member is given up. Raises `Refused` ('conflict')
    when the blocks are full.
    """
    for part in slices([one.node_id for one in wanted]):
        tx.execute(_GIVE_UP, {"nodes": part})
    holders = {one.vcluster.id: one.vcluster for one in wanted}
    blocks = {of: sorted(each) for of, each in address_blocks.of_each(tx, holders).items()}
    every = [block for each in blocks.values() for block in each]
    subnets = {("subnet", block.subnet) for block in every}
    dns_zones.touch(tx, [*(("vcluster", one.name) for one in holders.values()), *subnets], now)
    taken: set[int] = set()
    for start in range(0, len(every), _BLOCKS):
        taken |= _taken(tx, every[start : start + _BLOCKS], now)
    free = {of: _free(tx, each, taken) for of, each in blocks.items()}
    made: list[Binding] = []
    for node_id, mac, vcluster, hostname in wanted:
        address, subnet = next(free.get(vcluster.id, iter(())), (None, ""))
        if address is None:
            own = ", ".join(map(str, joined(blocks.get(vcluster.id, []))))
            raise Refused(
                "conflict",
                f"vcluster {vcluster.name} has no free address in {own or 'any block'}",
            )
        made.append(
            Binding(address, mac, "vcluster", node_id, subnet, hostname, "reserved", UNTIL_LEFT)
        )
    addresses = [one.address for one in made]
    forget(tx, addresses)
    add(tx, made)
    return addresses


def _taken(tx: Tx, blocks: Sequence[AddressBlock], now: float) -> set[int]:
    """Return the addresses in those blocks that are assigned now, with their rows locked."""
    ends = {f"first{n}": block.first for n, block in enumerate(blocks)}
    ends |= {f"last{n}": block.last for n, block in enumerate(blocks)}
    found = tx.scalar(_TAKEN, {**_NOWHERE, **ends, "now": now})
    return set(map(int, found.split(","))) if found else set()


def _free(tx: Tx, blocks: Iterable[AddressBlock], taken: Set[int]) -> Iterator[tuple[int, str]]:
    """Yield the free addresses of the blocks, in order, with their subnets; then the addresses that
    systems have left, beginning with the one left longest ago. `taken`: the assigned addresses."""
    for block in blocks:
        for address in block.addresses:
            if address not in taken and address & 0xFF not in (0, 0xFF):
                yield address, block.subnet
    left = [
        (one.expires_at, one.address, block.subnet)
        for block in blocks
        for one in ROWS.every(
            tx, _b.address.between(block.first, block.last), _b.state == "left", lock=True
        )
        if one.address in taken and one.address & 0xFF not in (0, 0xFF)
    ]
    yield from ((address, subnet) for _, address, subnet in sorted(left))


def release(tx: Tx, node_id: int, until: float | None) -> None:
    """Take the address from a node that leaves its vcluster. If the node has no power driver, its
    system may use the address `until` the address's lease ends. If the system has asked for the
    address, COD assigns it only when nothing else is free, until the node has reported
    (`returned`)."""
    if until is not None:
        tx.execute(
            update(t.bindings)
            .where(_b.node_id == node_id, _b.kind == "vcluster", _b.state == "bound")
            .values(mac=None, hostname=None, client_id=None, state="left", expires_at=until)
        )
    tx.execute(
        delete(t.bindings).where(_b.node_id == node_id, _b.kind == "vcluster", _b.state != "left")
    )


def returned(tx: Tx, node_id: int) -> None:
    """Free the addresses that the node's former systems left. These systems no longer run, because
    the node's agent does."""
    tx.execute(delete(t.bindings).where(_b.node_id == node_id, _b.state == "left"))


def left(tx: Tx, node_id: int) -> int:
    """Return how many addresses the node's former systems may still use, including systems that the
    database has forgotten."""
    return ROWS.count(tx, _b.node_id == node_id, _b.state == "left")


def unbind(tx: Tx, node_id: int) -> None:
    """Record that the system of a node that is about to boot into its vcluster has not asked for
    its reserved address yet."""
    ROWS.set_where(
        tx, _b.node_id == node_id, _b.kind == "vcluster", _b.state == "bound", state="reserved"
    )
