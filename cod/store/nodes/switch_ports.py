"""Switch ports: the NIC on each port, the VLAN that is requested for it, and the outcome of
attempts.

A request for a VLAN has a sequence number. An outcome is written only while its request is the
newest, so that a late session with a switch cannot overwrite anything after the node has moved on.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from sqlalchemy import and_, case, delete, exists, func, or_, select, update
from sqlalchemy.sql.elements import ColumnElement

from cod.model import SwitchPort, SwitchPortView
from cod.store import tables as t
from cod.store.engine import Tx
from cod.store.rows import Rows, found_in

_p = t.switch_ports.c
ROWS = Rows(SwitchPort, t.switch_ports)
get, change, delete_port = ROWS.get, ROWS.change, ROWS.remove


def usable(mac: ColumnElement[str], *, away: bool = False) -> ColumnElement[bool]:
    """Return the condition that COD can put the switch port of the NIC `mac` into a VLAN: the port
    is known, its switch is in the site file and answered last, and the last change of the port was
    not given up. `away`: also where the switch does not answer now."""
    switches = select(t.switches.c.name)
    if not away:
        switches = switches.where(t.switches.c.failures == 0)
    return exists().where(_p.mac == mac, _p.given_up.is_(False), _p.switch.in_(switches))


def at(tx: Tx, switch: str, port: str, *, lock: bool = False) -> SwitchPort | None:
    """Return the row of a switch's port; None if there is none."""
    return ROWS.by(tx, switch=switch, port=port, lock=lock)


def of_mac(tx: Tx, mac: str, *, lock: bool = False) -> SwitchPort | None:
    """Return the port that the NIC is connected to; None if that is not known."""
    return ROWS.by(tx, mac=mac, lock=lock)


def known(tx: Tx, macs: Sequence[str]) -> set[str]:
    """Return those of the MACs whose ports are known."""
    return found_in(tx, _p.mac, macs)


def of_node(tx: Tx, node_id: int) -> list[SwitchPort]:
    """Return the ports of the node's NICs, by id."""
    return ROWS.every(tx, _p.node_id == node_id, order=_p.id)


def listed(tx: Tx, switch: str | None = None, node: str | None = None) -> list[SwitchPortView]:
    """Return ports with their nodes' names, by switch and port: all ports, those of a switch, or
    those of a node."""
    query = ROWS.select.add_columns(t.nodes.c.name).order_by(_p.switch, _p.port)
    query = query.outerjoin(t.nodes, t.nodes.c.id == _p.node_id)
    if switch is not None:
        query = query.where(_p.switch == switch)
    if node is not None:
        query = query.where(t.nodes.c.name == node)
    return [SwitchPortView(ROWS.read(row), row[-1]) for row in tx.execute(query)]


def add(
    tx: Tx, *, switch: str, port: str, node_id: int, mac: str, source: str, now: float
) -> SwitchPort:
    """Add a port with the NIC that is connected to it. Raises IntegrityError when the port or the
    NIC has a row already."""
    return ROWS.add(
        tx, switch=switch, port=port, node_id=node_id, mac=mac, source=source, seen_at=now
    )


def wish(tx: Tx, port: SwitchPort, vlan: int | None, now: float) -> SwitchPort:
    """Request that the port be put into the VLAN (None: its switch's provisioning VLAN), and return
    the changed port. The former request may have been carried out, or may be under way: until its
    outcome is read, the port counts as being in the VLAN of that request."""
    unread = port.applied_seq != port.seq and port.wanted_vlan is not None
    return change(
        tx,
        port,
        wanted_vlan=vlan,
        applied_vlan=port.wanted_vlan if unread else port.applied_vlan,
        seq=port.seq + 1,
        wished_at=now,
        next_at=now,
        attempts=0,
        reason="",
        given_up=False,
    )


def hand_over(tx: Tx, node_id: int, heir_id: int) -> None:
    """Move all ports of a node to another node, to which its NICs really belong."""
    ROWS.set_where(tx, _p.node_id == node_id, node_id=heir_id)


def detach(tx: Tx, node_ids: Sequence[int]) -> None:
    """Remove those nodes' NICs from their ports. A port that COD has changed goes back to the
    provisioning VLAN."""
    mine = _p.node_id.in_(node_ids)
    for port in ROWS.every(tx, mine, _p.wanted_vlan.is_not(None), order=_p.id, lock=True):
        wish(tx, port, None, port.wished_at)  # due at once
    ROWS.set_where(tx, mine, node_id=None, mac=None)


def due(tx: Tx, switch: str, now: float, limit: int) -> list[SwitchPort]:
    """Return the switch's ports that are due for a change or a verification: changes first, the
    longest due first."""
    order = case((_p.applied_seq == _p.seq, 1), else_=0), _p.next_at, _p.id
    return ROWS.every(tx, _p.switch == switch, _p.next_at <= now, order=order, limit=limit)


def switches_due(tx: Tx, now: float) -> set[str]:
    """Return the names of the site's switches that may be asked now and have ports that are due."""
    s = t.switches.c
    query = select(s.name).where(s.next_at <= now)
    return set(tx.scalars(query.where(exists().where(_p.switch == s.name, _p.next_at <= now))))


def outcome(tx: Tx, port: SwitchPort, **columns: Any) -> bool:
    """Write the outcome of an attempt for `port`; return False, and write nothing, when a newer
    request has been made."""
    return ROWS.set_where(tx, _p.id == port.id, _p.seq == port.seq, **columns) == 1


def verify_soon(tx: Tx, port_ids: Collection[int], now: float) -> None:
    """Make those ports due for reading, because their VLANs are unknown."""
    tx.execute(
        update(t.switch_ports)
        .where(
            _p.id.in_(list(port_ids)),
            _p.seq > 0,
            _p.given_up.is_(False),
            or_(_p.next_at.is_(None), _p.next_at > now),
        )
        .values(next_at=now)
    )


def counts(tx: Tx) -> dict[str, dict[str, int]]:
    """Return, by switch, the numbers of its known ports ('ports'), of ports that wait for their
    VLAN ('pending'), and of ports that were given up ('given_up')."""
    pending = case((and_(_p.applied_seq != _p.seq, _p.given_up.is_(False)), 1), else_=0)
    query = select(
        _p.switch,
        func.count(),
        func.sum(pending),
        func.sum(case((_p.given_up.is_(True), 1), else_=0)),
    )
    return {
        switch: {"ports": int(ports), "pending": int(waiting), "given_up": int(failed)}
        for switch, ports, waiting, failed in tx.execute(query.group_by(_p.switch))
    }


def vlans(tx: Tx) -> set[int]:
    """Return the VLANs that ports are in or are to be put into, including some provisioning
    VLANs."""
    in_use: set[int] = set()
    for column in (_p.wanted_vlan, _p.applied_vlan):
        in_use |= set(tx.scalars(select(column).where(column.is_not(None)).distinct()))
    return in_use


def forget_unused(tx: Tx, switches: Collection[str]) -> None:
    """Delete the ports without a NIC that belong to switches other than `switches`."""
    tx.execute(delete(t.switch_ports).where(_p.mac.is_(None), _p.switch.not_in(list(switches))))
