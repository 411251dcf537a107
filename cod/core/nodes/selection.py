"""Selection of nodes by names and ranges, by a filter, or by both."""

from __future__ import annotations

from dataclasses import dataclass

from cod.filters import language
from cod.filters.fields import node_fields
from cod.filters.language import Filter
from cod.model import Refused, Who
from cod.model.names import natural_key
from cod.store import lists
from cod.store.engine import Tx
from cod.store.filters import nodes as node_filters

MOST = 500  # nodes that one action is for


@dataclass(frozen=True, slots=True)
class NodeSelection:
    """The nodes that names and a filter select.

    nodes    (id, name), in the order in which they were named
    missing  (name, why) for each name that identifies no node, or several
    """

    nodes: tuple[tuple[int, str], ...]
    missing: tuple[tuple[str, str], ...] = ()


def filter_of(where: str, who: Who, now: float) -> Filter | None:
    """Return the parsed tree of a filter of nodes; None for ''. Raises `Refused`."""
    return language.where(where, node_fields(who.admin), now) if where.strip() else None


def named(tx: Tx, names: str, who: Who) -> NodeSelection:
    """Return the nodes that a list of names identifies, among those that `who` may see. Raises
    `Refused`."""
    wanted = language.nodes(names)
    by_label = node_filters.by_labels(tx, wanted.labels, who.groups)
    by_block = node_filters.in_blocks(tx, wanted.blocks, who.groups)
    found: dict[int, str] = {}
    missing: list[tuple[str, str]] = []
    for label in wanted.labels:
        nodes = by_label.get(label, [])
        if len(nodes) == 1:
            found |= nodes
        elif nodes:
            several = ", ".join(name for _, name in nodes)
            missing.append((label, f"{label!r} identifies several nodes: {several}"))
        else:
            missing.append((label, f"there is no node {label!r}"))
    for block in wanted.blocks:
        if block not in by_block:
            missing.append((f"@{block}", f"there is no block {block!r}"))
        found |= dict(by_block.get(block, []))
    return NodeSelection(tuple(found.items()), tuple(missing))


def selected(
    tx: Tx, names: str, where: str, who: Who, now: float, most: int = MOST
) -> NodeSelection:
    """Return the nodes that are named and match the filter. Without names, return all nodes that
    match the filter, in the natural order of their names (n2 before n10). Raises `Refused`, also if
    there are neither names nor a filter, and for more than `most` nodes."""
    tree = filter_of(where, who, now)
    chosen = named(tx, names, who) if names.strip() else None
    if chosen is None and tree is None:
        raise Refused("invalid", "name nodes, or say by a filter which are meant", "names")
    if tree is not None:
        ids = None if chosen is None else [node_id for node_id, _ in chosen.nodes]
        fitting = lists.node_names(tx, who.groups, tree, ids, most + 1)
        inside = dict(fitting)
        chosen = (
            NodeSelection(tuple(sorted(fitting, key=lambda node: natural_key(node[1]))))
            if chosen is None
            else NodeSelection(
                tuple(each for each in chosen.nodes if each[0] in inside), chosen.missing
            )
        )
    assert chosen is not None
    if not chosen.nodes and not chosen.missing:
        raise Refused("not_found", "no node matches", "where" if tree else "names")
    if len(chosen.nodes) > most:
        raise Refused(
            "invalid",
            f"more than {most:,} nodes are meant: narrow the filter, such as by a block",
            "where" if tree else "names",
        )
    return chosen
