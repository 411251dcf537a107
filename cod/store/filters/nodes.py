"""Filters of nodes as conditions on `views.node_query`, and lookups of nodes by names, MACs and
other identities.

Texts that people search by words are read from narrow indexes of their own, not from the rows of
nodes, which hold whole hardware reports.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from sqlalchemy import (
    Column,
    ColumnElement,
    Select,
    and_,
    cast,
    func,
    not_,
    or_,
    select,
    true,
    union_all,
)
from sqlalchemy import String as Text

from cod.choices import NodeLabel
from cod.filters.fields import Comparison, Value, addresses, digits, spellings
from cod.filters.language import AllOf, AnyOf, FieldTest, Filter, FreeWord, Not
from cod.model import AddressRange, NodeView, described, mac_of
from cod.store import tables as t
from cod.store.engine import Tx, rows_among
from cod.store.paging import contains
from cod.store.rows import theirs

_n = t.nodes.c
_labelled = t.nodes.alias("labelled")  # a node by itself, so that its row need not be read
_b, _p, _v = t.bindings.c, t.switch_ports.c, t.vclusters.c
_NodeIds = Select[tuple[int]]
FEW = 500  # nodes that are named to the database one by one


def condition(tx: Tx, tree: Filter) -> ColumnElement[bool]:
    """Return the filter as a condition for rows of `views.node_query`. The condition is never null,
    so that `Not` matches all other nodes. Searches of words that match few nodes are run here."""
    match tree:
        case AllOf():
            return and_(*(condition(tx, part) for part in tree.parts))
        case AnyOf():
            return or_(*(condition(tx, part) for part in tree.parts))
        case Not():
            return not_(condition(tx, tree.part))
        case FreeWord():
            return _among(tx, [_LABELS[name](tree.text) for name in tree.fields])
        case FieldTest():
            return _test(tx, tree)


def _test(tx: Tx, test: FieldTest) -> ColumnElement[bool]:
    values = [value for value in test.values if value is not None]
    found = [_absent(tx, test.field)] if len(values) < len(test.values) else []
    if values and test.field in _PARTS:
        found.append(_among(tx, [_PARTS[test.field](test.comparison, values)]))
    elif values and test.comparison == "~" and test.field in _LABELS:
        found.append(_among(tx, [_LABELS[test.field](str(value)) for value in values]))
    elif values:
        column = _COLUMNS[test.field]
        found.append(and_(column.is_not(None), _compared(column, test.comparison, values)))
    return or_(*found)


def _compared(
    column: ColumnElement[Any], comparison: Comparison, values: Sequence[Value]
) -> ColumnElement[bool]:
    match comparison:
        case "=":
            return column.in_(values)
        case "~":
            return or_(*(contains(column, str(value)) for value in values))
        case "<":
            return column < values[0]
        case "<=":
            return column <= values[0]
        case ">":
            return column > values[0]
        case ">=":
            return column >= values[0]


def _absent(tx: Tx, field: str) -> ColumnElement[bool]:
    """Return the condition that a node has no value of the field."""
    if field in _HOLDERS:
        return not_(_among(tx, [_HOLDERS[field]]))
    column = _COLUMNS[field]
    if column.type.python_type is str:
        return or_(column.is_(None), column == "")
    return column.is_(None)


def _among(tx: Tx, queries: Iterable[_NodeIds | None]) -> ColumnElement[bool]:
    """Return the condition that one of the queries returns the node."""
    every = union_all(*(query for query in queries if query is not None))
    few = set(tx.scalars(every.limit(FEW + 1)))
    if len(few) <= FEW:  # their rows are read by key, not all rows of the site
        return _n.id.in_(sorted(few))
    # as a table, so that it is read once for all nodes
    found = every.subquery()
    # "IS true" keeps MariaDB from joining the tables of all conditions: of ten words it sought the
    # best order for half a minute
    return _n.id.in_(select(found.c[0])).is_(true())


# ---------------------------------------------------------------- labels


def _own(name: str) -> Callable[[str], _NodeIds]:
    """Return a function from a text to the query for nodes whose column `name` contains the text.
    The column has an index of its own."""
    column = _labelled.c[name]
    return lambda text: select(_labelled.c.id).where(contains(column, text))


def _holding(
    column: Column[Any], label: Column[Any], holds: Select[Any]
) -> Callable[[str], _NodeIds]:
    """Return a function from a text to the query for nodes that belong to something, such as a
    vcluster, whose name contains the text. `holds` selects the ids of things with a `label`, and
    the node's `column` is one of these ids."""
    return lambda text: select(_labelled.c.id).where(column.in_(holds.where(contains(label, text))))


def _macs(comparison: Comparison, values: Sequence[Value]) -> _NodeIds:
    mac = t.nics.c.mac
    bare = func.replace(mac, ":", "")
    wanted = mac.in_(values) if comparison == "=" else _compared(bare, comparison, values)
    return select(t.nics.c.node_id).where(wanted)


def _mac_part(text: str) -> _NodeIds | None:
    part = digits(text)
    return _macs("~", [part]) if part and set(part) <= set("0123456789abcdef") else None


def _bound(comparison: Comparison, values: Sequence[Value]) -> _NodeIds:
    ranges = [value for value in values if isinstance(value, AddressRange)]
    return _HOLDERS["address"].where(
        or_(*(_b.address.between(each.first, each.last) for each in ranges))
    )


def _address_part(text: str) -> _NodeIds | None:
    found = addresses(text) if "." in text else None
    return None if found is None else _bound("~", [found])


def _tagged(comparison: Comparison, values: Sequence[Value]) -> _NodeIds:
    """Return the query for nodes with tags. A stored tag has a space on each side."""
    wanted = [f" {str(value).lower()} " if comparison == "=" else str(value) for value in values]
    column = _labelled.c.tags
    return select(_labelled.c.id).where(or_(*(contains(column, each) for each in wanted)))


def _in_report(kind: str, comparison: Comparison, values: Sequence[Value]) -> _NodeIds:
    """Return the query for nodes whose last report has such a label of that kind."""
    return _HOLDERS[kind].where(_compared(t.node_labels.c.label, comparison, values))


def _made_by(comparison: Comparison, values: Sequence[Value]) -> _NodeIds:
    """Return the query for nodes whose vcluster was created by a user of such a name."""
    made = select(_v.id).join(t.users, _v.user_id == t.users.c.id)
    return select(_labelled.c.id).where(
        _labelled.c.vcluster_id.in_(made.where(_compared(t.users.c.name, comparison, values)))
    )


def _at_port(comparison: Comparison, values: Sequence[Value]) -> _NodeIds:
    lower = [str(value).lower() for value in values]  # its letters are compared exactly
    return _HOLDERS["port"].where(_compared(func.lower(_PORT), comparison, lower))


_PORT: ColumnElement[Any] = _p.switch + " " + _p.port
_HOLDERS: Mapping[str, _NodeIds] = {
    "macs": select(t.nics.c.node_id),
    "address": select(_b.node_id).where(
        _b.node_id.is_not(None), _b.state.in_(("bound", "reserved"))
    ),
    "port": select(_p.node_id).where(_p.node_id.is_not(None)),
    "person": select(_labelled.c.id).where(
        _labelled.c.vcluster_id.in_(select(_v.id).where(_v.user_id.is_not(None)))
    ),
    **{
        kind: select(t.node_labels.c.node_id).where(t.node_labels.c.kind == kind)
        for kind in NodeLabel.names()
    },
}
"""Nodes that have a value at all of what is in tables of its own."""
_PARTS: Mapping[str, Callable[[Comparison, Sequence[Value]], _NodeIds]] = {
    "macs": _macs,
    "address": _bound,
    "port": _at_port,
    "tags": _tagged,
    "person": _made_by,
    **{kind: partial(_in_report, kind) for kind in NodeLabel.names()},
}
_LABELS: Mapping[str, Callable[[str], _NodeIds | None]] = {
    **{name: _own(name) for name in ("name", "hostname", "serial", "uuid", "power_address")},
    "macs": _mac_part,
    "address": _address_part,
    "port": lambda text: _at_port("~", [text]),
    "tags": lambda text: _tagged("~", [text]),
    "person": lambda text: _made_by("~", [text]),
    "part": lambda text: _in_report("part", "~", [text]),
    "reported_bmc": lambda text: _in_report("reported_bmc", "~", [text]),
    "switch": lambda text: _in_report("switch", "~", [text]),
    "vcluster": _holding(_labelled.c.vcluster_id, _v.name, select(_v.id)),
    "group": _holding(
        _labelled.c.vcluster_id,
        t.groups.c.name,
        select(_v.id).join(t.groups, _v.group_id == t.groups.c.id),
    ),
    "block": _holding(_labelled.c.block_id, t.node_blocks.c.name, select(t.node_blocks.c.id)),
    "type": _holding(_labelled.c.type_id, t.node_types.c.name, select(t.node_types.c.id)),
}
"""What finds nodes by a part of a text; None where the text cannot be a part of such a value."""
_COLUMNS: Mapping[str, ColumnElement[Any]] = {
    **{each.name: _n[each.name] for each in described(NodeView) if each.path.startswith("node.")},
    "power": _n.power,
    "watts": _n.watts,
    "position": _n.rack_position,
    "tags": _n.tags,
    "type": t.node_types.c.name,
    "block": t.node_blocks.c.name,
    "vcluster": t.vclusters.c.name,
    "group": t.groups.c.name,
    "template": t.config_templates.c.name + "@" + cast(t.config_templates.c.revision, Text(20)),
}


# ---------------------------------------------------------------- by what identifies a node

Known = tuple[int, str]
"""A node's id and its name."""


def by_labels(
    tx: Tx, labels: Sequence[str], groups: frozenset[int] | None
) -> dict[str, list[Known]]:
    """Return the nodes of these groups (None: of all groups) that each label identifies. A label is
    compared with names, MACs in any spelling, UUIDs, serial numbers and host names, in this order,
    until one matches. Labels that identify no node are left out."""
    found: dict[str, list[Known]] = {}
    for column, spelled in _IDENTITIES:
        keys = {key: label for label in labels if label not in found for key in spelled(label)}
        matches: dict[str, set[Known]] = {}
        for value, node_id, name in _seen(tx, column, list(keys), groups):
            # MariaDB finds what is written in another case, too
            label = keys.get(value) or keys.get(value.lower())
            if label is not None:
                matches.setdefault(label, set()).add((node_id, name))
        found |= {label: sorted(nodes) for label, nodes in matches.items()}
    return found


def in_blocks(
    tx: Tx, names: Sequence[str], groups: frozenset[int] | None
) -> dict[str, list[Known]]:
    """Return the nodes of these groups (None: all nodes) that are in each of these blocks, by the
    block's name. Blocks that do not exist are left out."""
    b = t.node_blocks.c
    found: dict[str, list[Known]] = {
        row[0]: [] for row in rows_among(tx, select(b.name), b.name, names)
    }
    for block, node_id, name in _seen(tx, b.name, list(found), groups):
        found[block].append((node_id, name))
    return found


def _seen(
    tx: Tx, column: Column[Any], values: Sequence[str], groups: frozenset[int] | None
) -> Iterator[tuple[str, int, str]]:
    """Yield (value, id, name) of the nodes of these groups that have one of the values in the
    column."""
    query = select(column, _n.id, _n.name).select_from(t.nodes)
    query = query.outerjoin(t.vclusters, _n.vcluster_id == t.vclusters.c.id)
    if column.table is t.nics:
        query = query.join(t.nics, t.nics.c.node_id == _n.id)
    elif column.table is t.node_blocks:
        query = query.join(t.node_blocks, t.node_blocks.c.id == _n.block_id)
    query = query.where(*theirs(t.vclusters.c.group_id, groups)).order_by(_n.name)
    return rows_among(tx, query, column, values)


def _lower(text: str) -> tuple[str, ...]:
    return (text.lower(),)


def _mac(text: str) -> tuple[str, ...]:
    mac = mac_of(text)
    return () if mac is None else (mac,)


_IDENTITIES: tuple[tuple[Column[Any], Callable[[str], tuple[str, ...]]], ...] = (
    (_n.name, _lower),
    (t.nics.c.mac, _mac),
    (_n.uuid, _lower),
    (_n.serial, spellings),
    (_n.hostname, _lower),
)
