"""Rows behind the LDAP tree of a vcluster: whose node asks, who has an account there, its nodes' names."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import fields

from sqlalchemy import ColumnElement, and_, func, select, union

from cod.model import SYSTEM_ACCOUNTS, NodeTree, NodeUser, Role, ipv4
from cod.states import OWN_SYSTEM
from cod.store import tables as t
from cod.store.engine import Tx
from cod.store.people.people import ABLE

_u, _p, _g, _v, _n, _b = (each.c for each in (
    t.users, t.group_permissions, t.groups, t.vclusters, t.nodes, t.bindings))
_LOGS_IN = (Role.OWNER, Role.MEMBER)  # viewers look, they do not log in
assert [field.name for field in fields(NodeUser)] == ["id", "name", "full_name", "email", "uid", "gid", "role"]


def tree_at(tx: Tx, address: str) -> NodeTree | None:
    """Return the vcluster whose node runs its own system at that address; None: there is none."""
    try:
        number = ipv4(address)
    except OSError:
        return None
    row = tx.execute(
        select(_v.id, _v.name, _g.id, _g.name, _g.gid)
        .join_from(t.bindings, t.nodes, _n.id == _b.node_id).join(t.vclusters, _v.id == _n.vcluster_id)
        .join(t.groups, _g.id == _v.group_id)
        .where(_b.address == number, _b.kind == "vcluster", _b.state.in_(["bound", "reserved"]),
               _n.state.in_(OWN_SYSTEM), _v.live_name.is_not(None))).one_or_none()
    return None if row is None else NodeTree(*row)


def _accounts(group_id: int, admins: bool) -> ColumnElement[bool]:
    """Return the condition for users who have an account where a vcluster is the group's. Each half of it has an
    index: of a site's many users those of one group are read."""
    of_group = select(_p.user_id).where(_p.group_id == group_id, _p.role.in_(_LOGS_IN))
    some = union(of_group, select(_u.id).where(_u.admin)) if admins else of_group
    return and_(_u.id.in_(some), _u.uid.is_not(None), _u.gid.is_not(None), _u.name.not_in(SYSTEM_ACCOUNTS), *ABLE)


def users(
    tx: Tx, group_id: int, admins: bool, *, names: Collection[str] | None = None, uids: Collection[int] | None = None,
    gids: Collection[int] | None = None, after: int = 0, limit: int,
) -> list[NodeUser]:
    """Return those with an account where a vcluster is the group's, by id, with ids above `after`; None: any name, any
    number. `admins`: site administrators have one, too."""
    role = select(_p.role).where(_p.group_id == group_id, _p.user_id == _u.id).scalar_subquery()
    query = select(_u.id, _u.name, _u.full_name, _u.email, _u.uid, _u.gid, func.coalesce(role, "")).where(
        _accounts(group_id, admins))
    for column, values in ((_u.name, names), (_u.uid, uids), (_u.gid, gids)):
        if values is not None:
            query = query.where(column.in_(values))
    if after:
        query = query.where(_u.id > after)
    return [NodeUser(*row) for row in tx.execute(query.order_by(_u.id).limit(limit))]


def members(tx: Tx, group_id: int) -> list[str]:
    """Return the names of those in the group who have an account, by name."""
    return list(tx.scalars(select(_u.name).where(_accounts(group_id, False)).order_by(_u.name)))


def keys(tx: Tx, user_ids: Collection[int]) -> dict[int, list[str]]:
    """Return the users' SSH keys as lines of authorized_keys, by user."""
    k, found = t.ssh_keys.c, dict[int, list[str]]()
    for user, algorithm, key, name in tx.execute(
            select(k.user_id, k.algorithm, k.key, k.name).where(k.user_id.in_(user_ids)).order_by(k.id)):
        found.setdefault(user, []).append(f"{algorithm} {key} {name}".rstrip())
    return found


def hosts(tx: Tx, vcluster_id: int) -> list[str]:
    """Return the names of the vcluster's nodes."""
    return [name for name in tx.scalars(select(_n.hostname).where(_n.vcluster_id == vcluster_id).order_by(_n.hostname))
            if name]
