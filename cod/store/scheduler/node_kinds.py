"""Attributes by which nodes are interchangeable for the resource manager, as keys and as conditions
of SQL.

In all functions `many` says whether the site has more than one subnet. If not, the subnet of every
node is '', whatever its row says. A block of 0 is no block. `apart` says whether nodes with and
without a usable switch port (`store.nodes.switch_ports.usable`), and nodes in different maintenance
windows, are counted apart; for ports their wide rows are read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from sqlalchemy import and_, case, func, or_, select
from sqlalchemy.sql.elements import ColumnElement

from cod.states import POWER_CONTROL, Disk, NodeState
from cod.store import tables as t
from cod.store.nodes import switch_ports

_n = t.nodes.c
_READY = (NodeState.INACTIVE, NodeState.OFF)
UNHELD = and_(_n.vcluster_id.is_(None), _n.type_id.is_not(None))
# A sleeping node without a power driver stays asleep until somebody presses its button.
AT_HAND = or_(_n.state == NodeState.INACTIVE, _n.power_driver != "none")
# Nodes that wait for their power control are passed over: nobody knows when they will be there.
_silent = t.nodes.alias("silent").c
ANSWERS = _n.id.not_in(select(_silent.id).where(_silent.waits_for == POWER_CONTROL))
# The rule for free nodes. It is in the store because it is a condition of SQL. Plans count by it,
# and grants pick by it.
ABLE = and_(UNHELD, _n.released == 0, AT_HAND, ANSWERS)
FREE = and_(ABLE, _n.state.in_(_READY))
PORT_USABLE = switch_ports.usable(_n.boot_mac)
_m = t.maintenance_nodes.c
window_bits = (
    select(func.coalesce(func.sum(_m.bit), 0)).where(_m.node_id == _n.id).scalar_subquery()
)
IN_NO_WINDOW = ~select(_m.node_id).where(_m.node_id == _n.id).exists()
ALIKE = (
    _n.state,
    _n.type_id,
    _n.block_id,
    _n.subnet,
    _n.disk,
    _n.cached_template_id,
    _n.cached_group_id,
)
KIND = (_n.type_id, _n.block_id, _n.subnet)


class NodeKindRow(NamedTuple):
    """A kind of nodes: a request can take any node of a kind in place of another. The planner's
    record `NodeKind` has the same fields in the same order.

    type     id of the node type
    block    id of the block; 0: in no block
    subnet   name of the subnet; '' if the site has only one, or the node's is not known
    port     'usable' if COD can put the node's switch port into a VLAN, else 'unusable'; '' while
             nodes are not told apart by this
    windows  the coming maintenance windows that include the node: each has a bit of its own, and
             this is their sum; 0: none, or nodes are not told apart by this
    """

    type: int
    block: int
    subnet: str
    port: str = ""
    windows: int = 0


class Apart(NamedTuple):
    """Further facts by which nodes are counted apart, beside those in their index."""

    ports: bool = False
    windows: bool = False

    @property
    def columns(self) -> tuple[ColumnElement[Any], ...]:
        """Return the columns of these facts."""
        port = case((PORT_USABLE, "usable"), else_="unusable")
        return (*((port,) if self.ports else ()), *((window_bits,) if self.windows else ()))

    def read(self, row: Sequence[Any]) -> tuple[str, int]:
        """Return (port, windows) from a row that ends in the values of `columns`."""
        port = row[-2 if self.windows else -1] if self.ports else ""
        return port, int(row[-1]) if self.windows else 0


TOGETHER = Apart()


class FreeKey(NamedTuple):
    """Attributes by which free nodes are alike.

    template, group  the content of a cached disk and the group it is for; None for other disks
    reserved         the request that the nodes are kept for; 0: none
    """

    state: str
    kind: NodeKindRow
    template: int | None
    group: int | None
    reserved: int


def kind_of(row: Sequence[Any], many: bool, port: str = "", windows: int = 0) -> NodeKindRow:
    """Return the kind of a row that begins with the columns `KIND`."""
    return NodeKindRow(row[0], row[1] or 0, (row[2] or "") if many else "", port, windows)


def free_key(row: Sequence[Any], many: bool, port: str = "", windows: int = 0) -> FreeKey:
    """Return the key of a row that begins with the columns `ALIKE`, as if it had no reservation."""
    state, type_id, block_id, subnet, disk, template, group = row[:7]
    cached = disk == Disk.CACHED
    return FreeKey(
        state,
        kind_of((type_id, block_id, subnet), many, port, windows),
        template if cached else None,
        group if cached else None,
        0,
    )


def is_idle(since: float) -> ColumnElement[bool]:
    """Return the condition that a node has been warm since `since` or longer, and has a power
    driver that can wake it."""
    return and_(_n.state == NodeState.INACTIVE, _n.since <= since, _n.power_driver != "none")


Operand = Callable[[str, Any], Any]
"""Gives what a column is compared with: the value of a key's field, or a parameter of its name."""


def literal(_name: str, value: Any) -> Any:
    """Return the value. As an `Operand`, this is for statements that are made for one key."""
    return value


def kept_for(request_id: int) -> ColumnElement[bool]:
    """Return the condition that the request has reserved a node; for 0, that no request has."""
    r = t.reservations.c
    one = select(r.node_id).where(r.node_id == _n.id)
    return one.where(r.request_id == request_id).exists() if request_id else ~one.exists()
