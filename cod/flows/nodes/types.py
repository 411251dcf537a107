"""Node types: COD discovers them, and administrators set their names, costs and marks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from cod.core import preemption
from cod.model import Effect, Energy, NodeType, NodeView, Refused, Result, Site, TypeView
from cod.policy.hardware import equal
from cod.policy.people import names
from cod.quantity import counted
from cod.store import views
from cod.store.engine import Tx
from cod.store.nodes import types
from cod.store.scheduler import reservations

SHOWN = 1000  # nodes of a type that are shown with it
stored = types.every


@dataclass(frozen=True, slots=True)
class Refreshed:
    """A batch of nodes that `refresh` has processed: `looked` nodes, of which `changed` changed
    their type. `next`: the `after` of the next batch, None after the last."""

    looked: int
    changed: int
    next: int | None


def every(tx: Tx) -> list[TypeView]:
    """Return all types, by name."""
    states = types.states(tx)
    found = sorted(types.every(tx), key=lambda each: each.name)
    return [
        TypeView(each, states.get(each.id, {}), tuple(equal.facts(each.attributes)))
        for each in found
    ]


def names_of(tx: Tx) -> list[str]:
    """Return the names of all types, in order."""
    return sorted(types.names(tx).values())


def show(
    tx: Tx, *, name: str, site: Site, groups: frozenset[int] | None = None
) -> tuple[TypeView, list[NodeView]]:
    """Return one type, with the first `SHOWN` of its nodes; only nodes that these groups hold, if
    `groups` is not None."""
    found = types.named(tx, name)
    return _view(tx, found), preemption.protected(
        views.nodes(tx, type=name, limit=SHOWN, groups=groups), site.policy
    )


def change(tx: Tx, *, name: str, site: Site, changes: Mapping[str, Any]) -> Result[TypeView]:
    """Change a type's `name`, `cost`, marks (`warm_low`, `warm_high`) or watts; return the type.
    Fields that `changes` does not name stay; for marks and watts of None, the site's apply."""
    found = types.named(tx, name, lock=True)
    columns = {key: value for key, value in changes.items() if key != "name"}
    new_name = changes.get("name", name)
    if new_name != name:
        names.check_label(new_name)
        if types.by_name(tx, new_name):
            raise Refused("conflict", f"there is a type {new_name!r} already", "name")
        columns["name"] = new_name
    _check_marks(replace(found, **columns), site.energy)
    if columns:
        types.change(tx, found.id, **columns)
    return Result(_view(tx, replace(found, **columns)), (Effect("wake", "manager"),))


def delete(tx: Tx, *, name: str) -> None:
    """Delete a type without nodes. If a node with the same hardware reports later, the type comes
    back under a new name."""
    found = types.named(tx, name, lock=True)
    count = sum(types.states(tx, found.id).get(found.id, {}).values())
    if count:
        raise Refused("conflict", f"type {name} has {counted(count, 'node')}", "name")
    if not types.delete_unused(tx, found.id):
        raise Refused(
            "conflict",
            f"type {name} is named in the records of reclaims, or has a node just now",
            "name",
        )


def refresh(tx: Tx, *, after: int, limit: int, site: Site, now: float) -> Result[Refreshed]:
    """Compute the types of the next `limit` nodes with an id above `after` again, by the site's
    present rules.

    A node whose type changes loses its reservation, because it may not match the request any more.
    """
    batch = types.reported(tx, after, limit)
    moved = [node.id for node in batch if _refresh(tx, node, site, now)]
    reservations.drop(tx, moved)
    done = Refreshed(len(batch), len(moved), batch[-1].id if len(batch) == limit else None)
    return Result(done, (Effect("wake", "manager"),) if moved else ())


def _refresh(tx: Tx, node: types.Reported, site: Site, now: float) -> bool:
    try:
        made = equal.canonical(node.attributes, site.types)
    except Refused:  # the report is older than the limits of reports; the next one is refused
        return False
    type_id = types.of(tx, made, now, system=equal.system(made)).id
    return type_id != node.type_id and types.put(tx, node, type_id)


def _check_marks(type_: NodeType, energy: Energy) -> None:
    low = energy.warm_low if type_.warm_low is None else type_.warm_low
    high = energy.warm_high if type_.warm_high is None else type_.warm_high
    if low > high:
        whose = [
            "the site's " if mark is None else "" for mark in (type_.warm_low, type_.warm_high)
        ]
        raise Refused(
            "invalid",
            f"{whose[0]}warm_low {low} should not be above {whose[1]}warm_high {high}",
            "warm_high" if type_.warm_low is None else "warm_low",
        )


def _view(tx: Tx, type_: NodeType) -> TypeView:
    return TypeView(
        type_, types.states(tx, type_.id).get(type_.id, {}), tuple(equal.facts(type_.attributes))
    )
