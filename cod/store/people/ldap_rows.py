"""Rows behind the LDAP tree of a vcluster: the vcluster of the node that asks, the users and groups
with accounts on its nodes, and the nodes' names."""

from __future__ import annotations

from collections.abc import Collection
from functools import cache
from typing import Any

from sqlalchemy import ColumnElement, and_, bindparam, func, select, union

from cod.model import SYSTEM_ACCOUNTS, NodeTree, NodeUser, Role, ipv4
from cod.states import OWN_SYSTEM
from cod.store import tables as t
from cod.store.engine import Prepared, Tx, grouped
from cod.store.people.people import ABLE
from cod.store.rows import Rows

_u, _p, _g, _v, _n, _b = (
    each.c for each in (t.users, t.group_permissions, t.groups, t.vclusters, t.nodes, t.bindings)
)
_LOGS_IN = (Role.OWNER, Role.MEMBER)  # viewers look, they do not log in
_ROLE = (
    select(_p.role).where(_p.group_id == bindparam("group"), _p.user_id == _u.id).scalar_subquery()
)
_USERS = Rows(
    NodeUser,
    t.users,
    elsewhere={"uid": _u.uid, "gid": _u.gid, "role": func.coalesce(_ROLE, "")},
)
_COLUMNS = (_v.id, _v.name, _g.id, _g.name, _g.gid)
_TREE = Prepared(
    select(*_COLUMNS)
    .join_from(t.bindings, t.nodes, _n.id == _b.node_id)
    .join(t.vclusters, _v.id == _n.vcluster_id)
    .join(t.groups, _g.id == _v.group_id)
    .where(
        _b.address == bindparam("address"),
        _b.kind == "vcluster",
        _b.state.in_(["bound", "reserved"]),
        _n.state.in_(OWN_SYSTEM),
        _v.live_name.is_not(None),
    )
)


def tree_at(tx: Tx, address: str) -> NodeTree | None:
    """Return the vcluster of the node whose own system has that address; None if there is none."""
    try:
        number = ipv4(address)
    except OSError:
        return None
    row = _TREE.row(tx, {"address": number})
    return None if row is None else NodeTree(*row)


def tree_of(tx: Tx, vcluster_id: int) -> NodeTree | None:
    """Return the vcluster as `tree_at` does; None if it has ended."""
    row = tx.execute(
        select(*_COLUMNS)
        .join_from(t.vclusters, t.groups, _g.id == _v.group_id)
        .where(_v.id == vcluster_id, _v.live_name.is_not(None))
    ).one_or_none()
    return None if row is None else NodeTree(*row)


def _accounts(admins: bool) -> ColumnElement[bool]:
    """Return the condition that a user has an account on nodes of the group (parameter `group`);
    with `admins`, site administrators have accounts, too. Each part of the union has an index, so
    that only the users of one group are read."""
    of_group = select(_p.user_id).where(_p.group_id == bindparam("group"), _p.role.in_(_LOGS_IN))
    some = union(of_group, select(_u.id).where(_u.admin)) if admins else of_group
    return and_(
        _u.id.in_(some),
        _u.uid.is_not(None),
        _u.gid.is_not(None),
        _u.name.not_in(SYSTEM_ACCOUNTS),
        *ABLE,
    )


@cache
def _users(admins: bool, narrowed: tuple[str, ...]) -> Prepared:
    """Return the statement for accounts. It has a parameter of wanted values for each of the
    columns `narrowed`."""
    return Prepared(
        _USERS.select.where(
            _accounts(admins),
            _u.id > bindparam("after"),
            *(_u[name].in_(bindparam(f"some_{name}", expanding=True)) for name in narrowed),
        )
        .order_by(_u.id)
        .limit(bindparam("most"))
    )


def users(
    tx: Tx,
    group_id: int,
    admins: bool,
    *,
    names: Collection[str] | None = None,
    uids: Collection[int] | None = None,
    gids: Collection[int] | None = None,
    after: int = 0,
    limit: int,
) -> list[NodeUser]:
    """Return the users with accounts on nodes of the group, by id, with ids above `after`. `names`,
    `uids` and `gids` narrow the list (None: any value). `admins`: site administrators have
    accounts, too."""
    given = {
        name: list(each)
        for name, each in (("name", names), ("uid", uids), ("gid", gids))
        if each is not None
    }
    values: dict[str, Any] = {f"some_{name}": each for name, each in given.items()}
    values |= {"group": group_id, "after": after, "most": limit}
    return _USERS.all(tx, _users(admins, tuple(given)), values)


@cache
def _shared(admins: bool) -> Prepared:
    """Return the statement for primary groups that several users can share: those with a name and
    with another number than the user's."""
    named = _accounts(admins), _u.gid != _u.uid, _u.primary_group != ""
    columns = func.min(_u.id), func.min(_u.primary_group), _u.gid
    found = select(*columns).where(*named).group_by(_u.gid)
    return Prepared(found.order_by(func.min(_u.id)))


def primary_groups(tx: Tx, group_id: int, admins: bool) -> list[tuple[int, str, int]]:
    """Return (id of the first user with this primary group, name, number) for each primary group
    from the site's directory that users with accounts on the group's nodes have, by id."""
    return [(*row,) for row in _shared(admins).rows(tx, {"group": group_id})]


_MEMBERS = Prepared(select(_u.name).where(_accounts(False)).order_by(_u.name))
_k = t.ssh_keys.c
_KEYS = Prepared(
    select(_k.user_id, _k.algorithm, _k.key, _k.name)
    .where(_k.user_id.in_(bindparam("users", expanding=True)))
    .order_by(_k.id)
)


def members(tx: Tx, group_id: int) -> list[str]:
    """Return the names of the group's members who have accounts, in order."""
    return [name for (name,) in _MEMBERS.rows(tx, {"group": group_id})]


def keys(tx: Tx, user_ids: Collection[int]) -> dict[int, list[str]]:
    """Return the users' SSH keys as lines of authorized_keys, by user."""
    return grouped(
        (user, f"{algorithm} {key} {name}".rstrip())
        for user, algorithm, key, name in _KEYS.rows(tx, {"users": list(user_ids)})
    )


def running(tx: Tx, group_id: int) -> list[str]:
    """Return the nodes of the group's vclusters that run their own systems, as HOST.VCLUSTER."""
    rows = tx.execute(
        select(_n.hostname, _v.name)
        .join_from(t.nodes, t.vclusters, _v.id == _n.vcluster_id)
        .where(
            _v.group_id == group_id,
            _v.live_name.is_not(None),
            _n.state.in_(OWN_SYSTEM),
            _n.hostname.is_not(None),
        )
    )
    return sorted(f"{host}.{vcluster}" for host, vcluster in rows)


def hosts(tx: Tx, vcluster_id: int) -> list[str]:
    """Return the names of the vcluster's nodes."""
    return [
        name
        for name in tx.scalars(
            select(_n.hostname).where(_n.vcluster_id == vcluster_id).order_by(_n.hostname)
        )
        if name
    ]
