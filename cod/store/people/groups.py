"""Groups, which own vclusters, images and templates."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict
from itertools import chain, count
from typing import Any

from sqlalchemy import delete, func, insert, select, update

from cod.model import POSIX, Group, PosixRules, TypeTerms
from cod.model import SITE as SITE
from cod.store import tables as t
from cod.store.engine import Tx, nested
from cod.store.nodes import energy
from cod.store.people import audit, posix_ids
from cod.store.rows import Rows, only

# characters of the name of a template whose group is gone; a number still fits behind it
_LONGEST = 120
ROWS = Rows(Group, t.groups, noun="group")
get, by_name, named, change = ROWS.known, ROWS.by_name, ROWS.named, ROWS.set


def every(tx: Tx, name: str | None = None) -> list[Group]:
    """Return all groups, by name; with a `name`, only the group of that name."""
    return ROWS.every(tx, *only({t.groups.c.name: name}), order=t.groups.c.name)


def have_odd(tx: Tx, given: Mapping[int, int | None]) -> None:
    """Store, by group, the turn in which the group has an extra node of its share; None if it has
    none."""
    for group_id, turn in given.items():
        ROWS.set_where(tx, t.groups.c.id == group_id, odd_turn=turn)


def fade(tx: Tx, before: float, factor: float, now: float) -> None:
    """Multiply the usage that groups had at `before` by `factor`, and record it as that of
    `now`."""
    g = t.groups.c
    ROWS.set_where(tx, g.faded_at == before, faded_usage=g.faded_usage * factor, faded_at=now)


def use(tx: Tx, group_id: int, usage: float) -> None:
    """Add to the faded usage of a group."""
    g = t.groups.c
    ROWS.set_where(tx, g.id == group_id, faded_usage=g.faded_usage + usage)


def type_limits(tx: Tx, group_id: int | None = None) -> dict[int, dict[int, int]]:
    """Return the number of nodes that groups, or one group, may hold of each limited type, by the
    ids of the group and of the type."""
    limits = t.group_type_limits.c
    query = select(limits.group_id, limits.type_id, limits.nodes).order_by(
        limits.group_id, limits.type_id
    )
    return nested(
        tx.execute(query if group_id is None else query.where(limits.group_id == group_id))
    )


def limit_types(tx: Tx, group_id: int, limits: Mapping[int, int]) -> None:
    """Replace the numbers of nodes that a group may hold of single types, by the type's id."""
    tx.execute(delete(t.group_type_limits).where(t.group_type_limits.c.group_id == group_id))
    if limits:
        tx.execute(
            insert(t.group_type_limits),
            [
                {"group_id": group_id, "type_id": type_id, "nodes": nodes}
                for type_id, nodes in limits.items()
            ],
        )


def type_terms(tx: Tx, group_id: int | None = None) -> dict[int, dict[int, TypeTerms]]:
    """Return the guarantees and shares that groups, or one group, have of single types, by the ids
    of the group and of the type."""
    c = t.group_type_terms.c
    query = select(c.group_id, c.type_id, c.guarantee, c.shares).order_by(c.group_id, c.type_id)
    if group_id is not None:
        query = query.where(c.group_id == group_id)
    return nested((row[0], row[1], TypeTerms(*row[2:])) for row in tx.execute(query))


def give_types(tx: Tx, group_id: int, terms: Mapping[int, TypeTerms]) -> None:
    """Replace a group's guarantee and shares of single types. `terms`: by the type's id."""
    tx.execute(delete(t.group_type_terms).where(t.group_type_terms.c.group_id == group_id))
    rows = [
        {"group_id": group_id, "type_id": type_id, **asdict(one)}
        for type_id, one in terms.items()
        if one != TypeTerms()
    ]
    if rows:
        tx.execute(insert(t.group_type_terms), rows)


def names(tx: Tx) -> dict[int | None, str]:
    """Return the names of the owners of images and templates, by group id; None is the site."""
    return {None: SITE} | {
        row[0]: row[1] for row in tx.execute(select(t.groups.c.id, t.groups.c.name))
    }


def owner_id(tx: Tx, name: str) -> int | None:
    """Return the group id to store as the owner of an image or template; None for the site. Raises
    `Refused`."""
    return None if name in ("", SITE) else named(tx, name, "group").id


def prefix(tx: Tx, owner: int | None) -> str:
    """Return what the full names of an owner's things begin with: the group's name, or '' for the
    site."""
    return "" if owner is None else get(tx, owner).name


def add(
    tx: Tx,
    name: str,
    now: float,
    *,
    posix: PosixRules = POSIX,
    gid: int | None = None,
    **columns: Any,
) -> Group:
    """Add a group and return it; without a `gid` it gets one from the site's range. The name is
    unique; the caller checks that first. Raises `Refused` if the range is used up."""
    if gid is None:
        gid = posix_ids.give(tx, ("gid",), posix.first_gid, posix.last_gid, f"group:{name}", now)
    return ROWS.add(tx, name=name, created_at=now, gid=gid, **columns)


def created_by(tx: Tx, user: str) -> int:
    """Return how many existing groups the user has created."""
    return ROWS.count(tx, t.groups.c.created_by == user)


def ensure(tx: Tx, name: str, now: float) -> Group:
    """Return the group with that name, and create it if it is missing. A created group has no
    shares, so that it takes none of the others' nodes."""
    return by_name(tx, name) or add(tx, name, now, shares=0.0)


def owned(tx: Tx, group_id: int) -> dict[str, int]:
    """Return how many things still belong to the group, by kind. Ended vclusters and retired
    templates do not count."""
    v, c = t.vclusters.c, t.config_templates.c
    queries = {
        "vclusters": select(func.count()).where(v.group_id == group_id, v.live_name.is_not(None)),
        "series of reservations": (
            select(func.count()).where(t.reservation_series.c.group_id == group_id)
        ),
        "images": select(func.count()).where(t.images.c.group_id == group_id),
        "templates": (
            select(func.count(c.name.distinct())).where(
                c.group_id == group_id, c.retired_at.is_(None)
            )
        ),
        "volumes": select(func.count()).where(t.volumes.c.group_id == group_id),
        "open uploads": select(func.count()).where(t.uploads.c.group_id == group_id),
    }
    return {what: tx.scalar(query) or 0 for what, query in queries.items()}


def still_there(tx: Tx, ids: Collection[int], since: float) -> set[int]:
    """Return those of the groups that existed at `since`, with their rows locked against removal."""
    query = select(t.groups.c.id).where(t.groups.c.id.in_(ids), t.groups.c.created_at <= since)
    return set(tx.scalars(query.order_by(t.groups.c.id).with_for_update(read=True)))


def remove(tx: Tx, group_id: int, site_id: int) -> None:
    """Remove a group that owns nothing any more, with its members' roles and the invitations and
    tokens for it.

    Its ended vclusters and retired templates move to the group `site_id`, because nodes' histories
    go on naming them; as the site's own, everybody could see them. Its energy moves to that group,
    too. Its audit moves to administrators: SQLite gives its id to the next group, which must not
    inherit the entries.
    """
    # see `still_there`
    tx.execute(select(t.groups.c.id).where(t.groups.c.id == group_id).with_for_update())
    audit.disown(tx, group_id)
    energy.fold(tx, group_id, site_id)
    v, n = t.vclusters.c, t.nodes.c
    tx.execute(update(t.vclusters).where(v.group_id == group_id).values(group_id=site_id))
    _disown_templates(tx, group_id, site_id)
    tx.execute(update(t.nodes).where(n.cached_group_id == group_id).values(cached_group_id=None))
    ROWS.set_where(tx, t.groups.c.parent_id == group_id, parent_id=None)
    for table in (
        t.captures,
        t.node_failures,
        t.group_type_limits,
        t.group_type_terms,
        t.group_permissions,
        t.user_usage,
        t.node_permissions,
        t.invitations,
        t.api_tokens,
    ):
        tx.execute(delete(table).where(table.c.group_id == group_id))
    tx.execute(delete(t.groups).where(t.groups.c.id == group_id))


def _disown_templates(tx: Tx, group_id: int, site_id: int) -> None:
    """Give a group's templates to the group `site_id`, `physics/web` as `site/physics.web`. A later
    group called `physics` inherits neither their names nor their revisions."""
    c, group = t.config_templates.c, get(tx, group_id).name
    for name in tx.scalars(select(c.name).where(c.group_id == group_id).distinct()).all():
        left = f"{get(tx, site_id).name}/{group}.{name.rpartition('/')[2]}"[:_LONGEST]
        names = chain([left], (f"{left}.{number}" for number in count(2)))
        free = next(
            each for each in names if tx.scalar(select(c.id).where(c.name == each).limit(1)) is None
        )
        tx.execute(
            update(t.config_templates).where(c.name == name).values(name=free, group_id=site_id)
        )
