"""Checks of nodes' histories: who held each node over time, and whether a rule was violated."""

from __future__ import annotations

from dataclasses import dataclass

from cod.model import dotted
from cod.policy.histories import Histories, NodeRow, NodeTransition, Owner, Violation
from cod.store import histories as rows
from cod.store.engine import Tx
from cod.store.nodes import nodes


@dataclass(frozen=True, slots=True)
class CheckedHistories:
    """Histories of nodes. `names`: the nodes' names by id; `transitions`: how many were read."""

    names: dict[int, str]
    histories: Histories
    violations: list[Violation]
    transitions: int


def check(tx: Tx, *, node: str | None = None) -> CheckedHistories:
    """Check the histories of all nodes, or of one, against the rules and against the nodes' present
    rows. Reads only; the transaction has to see one moment of the database. Raises `Refused`."""
    one = None if node is None else nodes.named(tx, node).id
    histories = Histories({one[0]: Owner(*one[1:]) for one in rows.owners(tx)}, whole=False)
    found: list[Violation] = []
    count = 0
    for row in rows.transitions(tx, one):
        found += histories.add(NodeTransition(*row))
        count += 1
    present, names = now(tx, one)
    found += histories.compare(present)
    return CheckedHistories(names, histories, found, count)


def now(tx: Tx, node_id: int | None = None) -> tuple[list[NodeRow], dict[int, str]]:
    """Return each node, or one, as it is now, with the facts of its holder; and the nodes' names by
    id."""
    found, names = [], dict[int, str]()
    for values in rows.rows(tx, node_id):
        names[values["node"]] = values.pop("name")
        values["strange"] = tuple(map(dotted, values["strange"]))
        found.append(NodeRow(**values))
    return found, names
