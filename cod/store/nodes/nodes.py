"""Nodes and their NICs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from typing import Any, NamedTuple

from sqlalchemy import (
    Integer,
    and_,
    bindparam,
    delete,
    exists,
    func,
    literal,
    or_,
    select,
    tuple_,
    union_all,
    update,
)

from cod import states
from cod.choices import NodeLabel
from cod.model import Node, NodePlace, PowerAction
from cod.states import Disk, NodeEvent, NodeState, StoryVerdict
from cod.store import tables as t
from cod.store import watermarks
from cod.store.engine import Among, Prepared, Tx, grouped, inserting, rows_among, slices
from cod.store.nodes import switch_ports
from cod.store.rows import RowChange, Rows, insert_all, update_all

ROWS = Rows(Node, t.nodes, noun="node")
POWER_ACTIONS = Rows(PowerAction, t.power_actions)
_PLACES = Rows(NodePlace, t.node_places)
_n = t.nodes.c
get, known, by_name, named = ROWS.get, ROWS.known, ROWS.by_name, ROWS.named
lock, changed = ROWS.lock, ROWS.changed
change_place, remove_place = _PLACES.set, _PLACES.remove
HELD = exists().where(
    t.node_stories.c.node_id == _n.id, t.node_stories.c.verdict != StoryVerdict.AGREES
)
"""The condition that a node is held by itself: its machine was silent, or differs."""
_LABELS_OF = Prepared(
    select(t.node_labels.c.kind, t.node_labels.c.label).where(
        t.node_labels.c.node_id == bindparam("node")
    )
)
_LABEL_KINDS = frozenset(NodeLabel)
_IDS = Prepared(select(_n.id, _n.name).where(Among(_n.name, "names")))
OWNER = select(t.nics.c.node_id).where(t.nics.c.mac == bindparam("nic")).scalar_subquery()
"""The id of the node that owns the MAC in the parameter `nic`."""
_BY_MAC = Prepared(ROWS.select.where(_n.id == OWNER))
_MOVING = [state for state, rule in states.NODE_RULES.items() if rule.kind == "motion"]
# Statements are made once, as in `Rows`; only their parameters change.
_OVERDUE = (
    ROWS.select.where(_n.state.in_([*_MOVING, NodeState.QUARANTINED]))  # lets the index serve
    .where(_n.deadline <= bindparam("now"), ~and_(_n.state == NodeState.TRAMPOLINE, HELD))
    .order_by(_n.deadline, _n.id)
    .limit(bindparam("limit", type_=Integer))
)
_KEPT_FOR_NOBODY = ROWS.select.where(
    _n.vcluster_id.is_(None),
    _n.released == 0,
    _n.state == NodeState.INACTIVE,
    _n.disk == Disk.TABLES,
    _n.cached_group_id.is_(None),
).order_by(_n.id)
_WAITING_FOR = ROWS.select.where(_n.waits_for == bindparam("part")).order_by(_n.waits_since, _n.id)
_MOVE = Prepared(
    update(t.nodes).where(_n.id == bindparam("of_node"), _n.generation == bindparam("left"))
)
_LAST_MOVE = (
    select(func.max(t.node_history.c.id))
    .where(t.node_history.c.node_id == bindparam("node"))
    .scalar_subquery()
)
_NEAR = Prepared(
    union_all(
        select(literal("nic"), t.nics.c.mac, t.nics.c.node_id).where(
            Among(t.nics.c.mac, "macs") | (t.nics.c.node_id == bindparam("node"))
        ),
        select(literal("twin"), literal(""), _n.id).where(
            or_(
                _n.uuid == bindparam("value"),
                (_n.serial == bindparam("serial")) & (_n.state == NodeState.EXPECTED),
            ),
            _n.id != bindparam("node"),
        ),
        select(literal("place"), literal(""), t.node_places.c.id).where(
            t.node_places.c.node_id == bindparam("node")
        ),
        select(literal("hold"), literal(""), literal(0)).where(
            or_(
                t.marks.c.name == watermarks.HOLD,
                # the node has moved since, unless it was out of service or not approved then
                (t.marks.c.name == watermarks.LAST_HOLD) & (t.marks.c.at >= _LAST_MOVE),
            )
        ),
        select(t.node_labels.c.kind, t.node_labels.c.label, literal(0)).where(
            t.node_labels.c.node_id == bindparam("node")
        ),
    )
)
_PLACES_OF = _PLACES.select.where(t.node_places.c.node_id == bindparam("node")).order_by(
    t.node_places.c.id
)


class Stale(Exception):
    """The node has moved on since it was read: the caller's message or plan is out of date. Nothing
    was changed."""

    def __init__(self, node_id: int, generation: int) -> None:
        super().__init__(f"node {node_id} is not in generation {generation} any more")
        self.node_id = node_id
        self.generation = generation


class Outdated(Stale):
    """The generation came with the message or plan, not from a row just read: running the flow
    again cannot help."""


class Changed(Outdated):
    """Too few nodes of a kind, or of a holder that may lose them, are left since the plan was
    made."""

    def __init__(self, sentence: str) -> None:
        super(Stale, self).__init__(sentence)


def by_macs(tx: Tx, macs: Iterable[str]) -> dict[str, Node]:
    """Return the nodes that own these MACs, by MAC."""
    query = select(t.nics.c.mac, *ROWS.columns).join_from(t.nics, t.nodes)
    rows = tx.execute(query.where(t.nics.c.mac.in_(list(macs))))
    return {row[0]: ROWS.read(row, 1) for row in rows}


def by_mac(tx: Tx, mac: str) -> Node | None:
    """Return the node that owns `mac`; None if there is none."""
    row = _BY_MAC.row(tx, {"nic": mac})
    return None if row is None else ROWS.read(row)


class Neighbours(NamedTuple):
    """A node's MACs as the site knows them, and other nodes with the same MACs, UUID or serial
    number.

    macs         all MACs of the node itself
    owners       the other nodes that own any of the reported MACs, by MAC
    twins        other nodes with the same DMI UUID, and expected ones with the same serial number
    placed       the node has been heard at places other than the remembered one
    is_doubtful  the site is held, or was since the node came into its state: the database may have
                 forgotten what became of the node
    labels       the labels of the node itself, (kind, label)
    """

    macs: set[str]
    owners: dict[str, Node]
    twins: list[Node]
    placed: bool
    is_doubtful: bool
    labels: set[tuple[str, str]]


def neighbours(
    tx: Tx, node_id: int, macs: Collection[str], uuid: str | None, serial: str | None
) -> Neighbours:
    """Return the MACs of a node, and other nodes that have some of the MACs, the UUID or the serial
    number that the node reports."""
    of = {"macs": list(macs), "node": node_id, "value": uuid, "serial": serial}
    rows = _NEAR.rows(tx, of)
    others = [mac for kind, mac, owner in rows if kind == "nic" and owner != node_id]
    twins = [owner for kind, _, owner in rows if kind == "twin"]
    return Neighbours(
        {mac for kind, mac, owner in rows if kind == "nic" and owner == node_id},
        by_macs(tx, others) if others else {},
        ROWS.every(tx, _n.id.in_(twins)) if twins else [],
        any(row[0] == "place" for row in rows),
        any(row[0] == "hold" for row in rows),
        {(kind, label) for kind, label, _ in rows if kind in _LABEL_KINDS},
    )


def by_uuid(tx: Tx, uuid: str) -> Node | None:
    """Return the node with that DMI UUID."""
    return ROWS.find(tx, _n.uuid == uuid)


def known_as(
    tx: Tx, names: Sequence[str], uuids: Sequence[str], serials: Sequence[str]
) -> list[Node]:
    """Return the nodes that have one of these names, DMI UUIDs or serial numbers."""
    found: dict[int, Node] = {}
    for column, values in ((_n.name, names), (_n.uuid, uuids), (_n.serial, serials)):
        found |= {node.id: node for node in ROWS.among(tx, column, values)}
    return list(found.values())


def known_uuids(tx: Tx, uuids: Sequence[str]) -> set[str]:
    """Return those of the DMI UUIDs that belong to nodes."""
    return {row[0] for row in rows_among(tx, select(_n.uuid), _n.uuid, uuids)}


def expected_by_uuid(tx: Tx, uuids: Sequence[str]) -> dict[str, Node]:
    """Return the expected machines with those DMI UUIDs."""
    found = ROWS.every(tx, _n.uuid.in_(uuids), _n.state == NodeState.EXPECTED)
    return {node.uuid: node for node in found if node.uuid is not None}


def switched_by(tx: Tx, address: str) -> list[tuple[str, str | None]]:
    """Return (name, power address) of the nodes whose power address contains `address`, by name."""
    query = select(_n.name, _n.power_address).where(
        _n.power_address.contains(address, autoescape=True)
    )
    return [(row[0], row[1]) for row in tx.execute(query.order_by(_n.name))]


def every(
    tx: Tx, states_: Sequence[str] = (), vcluster_id: int | None = None, *, lock: bool = False
) -> list[Node]:
    """Return nodes in any of `states_` (empty: in any state) that `vcluster_id` holds (None: with
    any holder or none), by name.

    lock  keep others from changing them until this transaction ends
    """
    where = (
        *([_n.state.in_(list(states_))] if states_ else []),
        *([] if vcluster_id is None else [_n.vcluster_id == vcluster_id]),
    )
    return ROWS.every(tx, *where, order=_n.name, lock=lock)


def lock_all(tx: Tx) -> None:
    """Wait for the transactions that are changing a node, and keep others from changing any until
    this one ends."""
    # of a column in no index: an entry that moves in one that is read may be passed over
    tx.execute(select(_n.generation).with_for_update()).all()


def overdue(tx: Tx, now: float, limit: int = 500) -> list[Node]:
    """Return nodes whose deadline, or end of a time out of service, has passed, the oldest deadline
    first, without nodes that are held in the trampoline."""
    return ROWS.all(tx, _OVERDUE, {"now": now, "limit": limit})


def kept_for_nobody(tx: Tx) -> list[Node]:
    """Return free nodes in the warm reserve of which only the tables were erased, for a group that
    no longer exists."""
    return ROWS.all(tx, _KEPT_FOR_NOBODY)


def waiting_for(tx: Tx, part: str) -> list[Node]:
    """Return nodes that wait for that part of the site (`waits_for`), the longest waiting first."""
    return ROWS.all(tx, _WAITING_FOR, {"part": part})


def add(
    tx: Tx, *, name: str, boot_mac: str, now: float, cause: str, actor: str, **columns: Any
) -> Node:
    """Add a machine with its boot NIC in state *new*, and return its node."""
    found = {"name": name, "boot_mac": boot_mac, **columns}
    add_all(tx, [(found, cause)], now=now, actor=actor)
    return ROWS.named(tx, name)


def add_all(
    tx: Tx, found: Sequence[tuple[dict[str, Any], str]], *, now: float, actor: str
) -> list[dict[str, Any]]:
    """Add machines in state *new*, each with its boot NIC; return the columns of their rows, with
    the ids. `found`: (columns of the node, cause), the columns being name, boot_mac and others, the
    same for all."""
    plain = {"state": NodeState.NEW, "since": now, "disk": Disk.FOREIGN}
    rows: list[dict[str, Any]] = [plain | columns for columns, _ in found]
    ids = _insert(tx, rows)
    added = [{"id": ids[row["name"]], **row} for row in rows]
    insert_all(tx, t.nics, [{"mac": row["boot_mac"], "node_id": row["id"]} for row in added])
    history = [
        {
            "node_id": row["id"],
            "at": now,
            "event": NodeEvent.SEEN,
            "from_state": None,
            "to_state": row["state"],
            "generation": 0,
            "cause": cause,
            "actor": actor,
        }
        for row, (_, cause) in zip(added, found, strict=True)
    ]
    insert_all(tx, t.node_history, history)
    return added


def add_expected(
    tx: Tx,
    machines: Sequence[tuple[dict[str, Any], Sequence[str]]],
    *,
    now: float,
    cause: str,
    actor: str,
) -> None:
    """Add machines that COD has not seen, in state *expected*. `machines`: (columns of the node,
    the same for all, such as its name; its MACs, the one that boots first at the front)."""
    plain = {"state": NodeState.EXPECTED, "since": now, "disk": Disk.FOREIGN}
    ids = _insert(
        tx, [plain | columns | {"boot_mac": next(iter(macs), "")} for columns, macs in machines]
    )
    nics = [
        {"mac": mac, "node_id": ids[columns["name"]]} for columns, macs in machines for mac in macs
    ]
    insert_all(tx, t.nics, nics)
    entered = {
        "at": now,
        "event": NodeEvent.ENTERED,
        "from_state": None,
        "to_state": NodeState.EXPECTED,
        "generation": 0,
        "cause": cause,
        "actor": actor,
    }
    insert_all(tx, t.node_history, [{"node_id": node_id} | entered for node_id in ids.values()])


def _insert(tx: Tx, rows: Sequence[dict[str, Any]]) -> dict[str, int]:
    """Insert rows of nodes; return their ids by name."""
    if len(rows) == 1:  # the driver knows the id of one
        return {rows[0]["name"]: inserting(t.nodes).add(tx, rows[0])}
    insert_all(tx, t.nodes, rows)
    ids: dict[str, int] = {}
    for part in slices([row["name"] for row in rows]):
        ids.update((row[1], row[0]) for row in _IDS.rows(tx, {"names": part}))
    return ids


def add_mac(tx: Tx, node_id: int, mac: str) -> None:
    """Add a NIC to a node. IntegrityError when a node owns that MAC already."""
    insert_all(tx, t.nics, [{"mac": mac, "node_id": node_id}])


def count_macs(tx: Tx, node_id: int) -> int:
    """Return how many NICs of the node are known."""
    return tx.scalar(select(func.count()).where(t.nics.c.node_id == node_id)) or 0


def remove_macs(tx: Tx, macs: Sequence[str]) -> None:
    """Remove NICs from their nodes."""
    if macs:
        tx.execute(delete(t.nics).where(t.nics.c.mac.in_(macs)))


def unasked_macs(tx: Tx, node_ids: Sequence[int]) -> dict[int, list[str]]:
    """Return, for each of the nodes, the MACs that have never asked for an address."""
    asked = exists().where(t.bindings.c.mac == t.nics.c.mac)
    query = select(t.nics.c.node_id, t.nics.c.mac).where(~asked).order_by(t.nics.c.mac)
    return grouped(rows_among(tx, query, t.nics.c.node_id, node_ids))


def set_macs(tx: Tx, node_id: int, macs: Sequence[str]) -> None:
    """Replace the node's NICs. A MAC that another node owns violates the primary key; the caller
    checks first."""
    tx.execute(delete(t.nics).where(t.nics.c.node_id == node_id))
    insert_all(tx, t.nics, [{"mac": mac, "node_id": node_id} for mac in macs])


def set_labels(
    tx: Tx,
    node_id: int,
    labels: Collection[tuple[str, str]],
    known: Set[tuple[str, str]] | None = None,
) -> None:
    """Replace the labels, (kind, label), that the node's report contains. Labels that have not
    changed are not written. `known`: those that the node has; None: they are read."""
    of = t.node_labels.c
    if known is None:
        known = {(row[0], row[1]) for row in _LABELS_OF.rows(tx, {"node": node_id})}
    if gone := known - set(labels):
        pairs = tuple_(of.kind, of.label).in_(sorted(gone))
        tx.execute(delete(t.node_labels).where(of.node_id == node_id, pairs))
    if new := sorted(set(labels) - known):
        rows = [{"node_id": node_id, "kind": kind, "label": label} for kind, label in new]
        insert_all(tx, t.node_labels, rows)


def labels_of(tx: Tx, kind: NodeLabel) -> dict[str, str]:
    """Return the labels of that kind, by the names of their nodes."""
    of = t.node_labels.c
    query = select(_n.name, of.label).join_from(t.node_labels, t.nodes).where(of.kind == kind)
    return {row[0]: row[1] for row in tx.execute(query)}


def absorb(tx: Tx, shadow_id: int, node_id: int) -> None:
    """Move the NICs, bindings and switch ports of a node that never reported to the node that they
    really belong to, and delete the first node."""
    for table in (t.nics, t.bindings):
        tx.execute(update(table).where(table.c.node_id == shadow_id).values(node_id=node_id))
    switch_ports.hand_over(tx, shadow_id, node_id)
    forget(tx, [shadow_id])


def unapproved(tx: Tx) -> int:
    """Return how many machines have never reported or wait for approval."""
    return count_in(tx, NodeState.NEW, NodeState.REGISTERING)


# made once: each page asks
_COUNT_IN = (
    select(func.count())
    .select_from(t.nodes)
    .where(_n.state.in_(bindparam("states", expanding=True)))
)


def count_in(tx: Tx, *states_: NodeState) -> int:
    """Return how many nodes are in one of these states."""
    return tx.scalar(_COUNT_IN, {"states": states_}) or 0


def never_reported(tx: Tx, before: float, limit: int, *, quiet: bool = False) -> list[int]:
    """Return the ids of machines that were first seen before a time and have never reported, the
    oldest first, with their rows locked. Machines that people have named, put into a block or whose
    disks they have marked are left out.

    quiet  without machines that have had an address since
    """
    n, b = _n, t.bindings.c
    untouched = and_(
        n.state == NodeState.NEW,
        n.keep == "",
        n.block_id.is_(None),
        n.name == literal("node-") + func.replace(n.boot_mac, ":", ""),
    )
    query = select(n.id).where(untouched, n.since < before)
    if quiet:
        query = query.where(~exists().where(b.node_id == n.id, b.expires_at > before))
    found = list(tx.scalars(query.order_by(n.since, n.id).limit(limit)))
    still: set[int] = set()  # one may be reporting just now
    for part in slices(sorted(found)):
        still.update(
            tx.scalars(
                select(n.id).where(n.id.in_(part), untouched).order_by(n.id).with_for_update()
            )
        )
    return [node_id for node_id in found if node_id in still]


def forget(tx: Tx, node_ids: Sequence[int]) -> None:
    """Delete machines that have never reported, with everything about them."""
    switch_ports.detach(tx, node_ids)
    for table in (
        t.nics,
        t.node_labels,
        t.bindings,
        t.sessions,
        t.power_actions,
        t.node_failures,
        t.node_places,
        t.node_history,
        t.node_stories,
        t.console_input,
    ):
        tx.execute(delete(table).where(table.c.node_id.in_(node_ids)))
    tx.execute(delete(t.nodes).where(t.nodes.c.id.in_(node_ids)))


def reported_after(tx: Tx, node_id: int, limit: int, holding: str = "") -> list[Node]:
    """Return the first nodes with larger ids whose reports contain `holding`, with their rows
    locked."""
    hold = _n.attributes.contains(holding, autoescape=True)
    return ROWS.every(tx, _n.id > node_id, hold, order=_n.id, limit=limit, lock=True)


def change(tx: Tx, node: Node, **columns: Any) -> Node:
    """Set columns other than state, generation and deadline. Return the new node."""
    assert not columns.keys() & {"state", "generation", "deadline", "since"}
    return ROWS.change(tx, node, **columns)


def set_deadline(tx: Tx, node: Node, deadline: float | None) -> None:
    """Set the state's deadline, such as after progress. Not a transition."""
    ROWS.set_where(
        tx, t.nodes.c.id == node.id, t.nodes.c.generation == node.generation, deadline=deadline
    )


def put_off(tx: Tx, seconds: float) -> None:
    """Add `seconds` to the deadlines of all nodes, except the times at which nodes return to
    service."""
    moves = update(t.nodes).where(_n.state != NodeState.QUARANTINED)
    tx.execute(moves.values(deadline=_n.deadline + seconds))


def set_progress(tx: Tx, node: Node, deadline: float | None, **columns: Any) -> None:
    """Set columns of a locked node together with its state's deadline. Not a transition."""
    ROWS.set(tx, node.id, deadline=deadline, **columns)


def set_state(
    tx: Tx,
    node: Node,
    values: Mapping[str, Any],
    *,
    event: NodeEvent,
    cause: str,
    actor: str,
    erased: str | None = None,
) -> Node:
    """Write a transition with all its columns, and a row of the history; return the changed node.
    Only `core.nodes.transitions.move` calls this, as it knows what else a transition changes.
    Raises `Stale` when the row has moved on. `erased`: how the node's disks were erased, as JSON.
    """
    return set_last_state(tx, node, [(event, cause, values)], actor, erased)


def set_last_state(
    tx: Tx,
    node: Node,
    steps: Sequence[tuple[NodeEvent, str, Mapping[str, Any]]],
    actor: str,
    erased: str | None = None,
) -> Node:
    """Write several successive transitions of a node, (event, cause, columns) each. The node's row
    gets the values of the last transition; the history gets a row for each. `erased`: as of
    `set_state`."""
    before, values, history = node, dict[str, Any](), list[dict[str, Any]]()
    for event, cause, columns in steps:
        moved = changed(before, columns)
        history.append(_transition(before, moved, event, cause, actor) | {"erased": erased})
        before, values = moved, {**values, **columns}
    done = _MOVE.write(tx, {**values, "of_node": node.id, "left": node.generation})
    if done != 1:
        raise Stale(node.id, node.generation)
    insert_all(tx, t.node_history, history)
    return before


def _transition(
    node: Node, moved: Node, event: NodeEvent, cause: str, actor: str
) -> dict[str, Any]:
    """Return the row of the history for a transition from `node` to `moved`."""
    written = node.progress_done if node.state in states.WORKING else None
    return dict(
        node_id=node.id,
        at=moved.since,
        event=event,
        from_state=node.state,
        to_state=moved.state,
        generation=moved.generation,
        vcluster_id=moved.vcluster_id,
        cause=cause,
        actor=actor,
        bytes_written=written,
        rate=(
            node.progress_rate or written / max(moved.since - node.since, 0.001)
            if written
            else None
        ),
    )


class NodeMove(NamedTuple):
    """A transition that is written together with others. `values`: all columns that it changes;
    `power`: the power action that it requests, or ''."""

    node: Node
    moved: Node
    values: Mapping[str, Any]
    event: NodeEvent
    cause: str
    power: str


def set_states(tx: Tx, transitions: Sequence[NodeMove], actor: str, now: float) -> None:
    """Write transitions of free nodes, each with its row of the history and its power action.
    Raises `Stale` when one of the nodes has moved on or has a holder: then nothing may be
    committed."""
    changes = (
        RowChange(
            {"id": one.node.id, "generation": one.node.generation, "vcluster_id": None},
            # writing an unchanged value would cost an update of its index
            {key: value for key, value in one.values.items() if getattr(one.node, key) != value},
        )
        for one in transitions
    )
    if update_all(tx, t.nodes, changes) != len(transitions):
        raise Stale(transitions[0].node.id, transitions[0].node.generation)
    history = [_transition(one.node, one.moved, one.event, one.cause, actor) for one in transitions]
    insert_all(tx, t.node_history, history)
    actions = [
        {
            "node_id": one.node.id,
            "generation": one.moved.generation,
            "desired": one.power,
            "next_at": now,
            "wished_at": now,
        }
        for one in transitions
        if one.power
    ]
    insert_all(tx, t.power_actions, actions)


def wish_power(tx: Tx, node: Node, desired: str, now: float) -> PowerAction | None:
    """Request that the node be switched 'on' or 'off', shut down ('soft') or power-cycled
    ('cycle'): add a row for the power edge. None when the node has no power driver.

    Open requests of earlier generations are dropped by the power edge, not here.
    """
    if node.power_driver == "none":
        return None
    seq = node.power_seq + 1
    ROWS.set(tx, node.id, power_wanted=desired, power_seq=seq)
    return POWER_ACTIONS.add(
        tx,
        node_id=node.id,
        generation=node.generation,
        desired=desired,
        next_at=now,
        wished_at=now,
    )


def count_lost(tx: Tx, since: float) -> int:
    """Return how many nodes have lost their agents after `since`, including those whose machines
    asked to boot while their agents seemed connected."""
    h = t.node_history.c
    gone = (h.event == NodeEvent.ASKED) & (h.from_state != NodeState.OFF)
    query = select(func.count(h.node_id.distinct())).where(
        h.at > since, (h.event == NodeEvent.LOST) | gone
    )
    return tx.scalar(query) or 0


def places(tx: Tx, node_id: int) -> list[NodePlace]:
    """Return the places of the node's MACs other than the remembered one, the oldest first."""
    return _PLACES.all(tx, _PLACES_OF, {"node": node_id})


def add_place(
    tx: Tx, node_id: int, now: float, *, approved: bool = False, **place: str | None
) -> None:
    """Add a place of a node; `place`: subnet, circuit, remote, port."""
    row = {"node_id": node_id, "heard_at": now, "approved": approved, **place}
    insert_all(tx, t.node_places, [row])


def forget_places(tx: Tx, node_id: int) -> None:
    """Delete all places of a node."""
    tx.execute(delete(t.node_places).where(t.node_places.c.node_id == node_id))


def history(tx: Tx, node_id: int, limit: int = 1000) -> list[dict[str, Any]]:
    """Return the node's transitions, oldest first, as dictionaries of the table's columns."""
    h = t.node_history
    query = select(h).where(h.c.node_id == node_id).order_by(h.c.id.desc()).limit(limit)
    return [dict(row._mapping) for row in tx.execute(query)][::-1]
