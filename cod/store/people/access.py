"""Rows that each API or portal request reads first: the user of a token or a cookie, and the owner
of the requested thing."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any, NamedTuple

from sqlalchemy import Select, Table, bindparam, or_, select

from cod.model import SITE, ApiToken, Owned, Role, SingleRight, User, WebSession
from cod.store import tables as t
from cod.store.engine import Tx
from cod.store.people import people, signins, tokens
from cod.store.rows import theirs

_p = t.group_permissions.c
_ABLE_USER = (
    people.ROWS.select.add_columns(_p.group_id, _p.role, _p.rights)
    .outerjoin(t.group_permissions, _p.user_id == t.users.c.id)
    .where(t.users.c.id == bindparam("user"), *people.ABLE)
)


def digest(secret: str) -> str:
    """Return the stored digest of a token, a cookie or a link's secret: BLAKE2b-256, hex. The
    secrets are random: no salt, no slow hash."""
    return hashlib.blake2b(secret.encode(errors="replace"), digest_size=32).hexdigest()


def by_token(tx: Tx, digest: str, now: float) -> ApiToken | None:
    """Return the token with that digest, unless the token has expired."""
    c = t.api_tokens.c
    lasting = or_(c.expires_at.is_(None), c.expires_at > now)
    return tokens.ROWS.find(tx, c.digest == digest, lasting)


def by_cookie(tx: Tx, digest: str) -> WebSession | None:
    """Return the session whose cookie has that digest, whether it has expired or not."""
    return signins.SESSIONS.find(tx, t.web_sessions.c.digest == digest)


class AbleUser(NamedTuple):
    """A user who may do anything at all, with their roles and single rights by group id."""

    user: User
    roles: dict[int, Role]
    singles: dict[int, frozenset[SingleRight]]


def able_user(tx: Tx, user_id: int) -> AbleUser | None:
    """Return the user with that id, their roles and single rights; None if there is no such user or
    the user may do nothing (`User.able`)."""
    rows = tx.execute(_ABLE_USER, {"user": user_id}).all()
    if not rows:
        return None
    of = [row[-3:] for row in rows if row[-3] is not None]
    return AbleUser(
        people.ROWS.read(rows[0]),
        {group: Role(role) for group, role, _ in of},
        {group: frozenset(map(SingleRight, rights.split())) for group, _, rights in of if rights},
    )


def owned(tx: Tx, kind: str, key: str) -> Owned | None:
    """Return the owner of the thing of this kind that `key` names; None if there is no such thing.

    kind  '' (nothing in particular), 'group', 'vcluster', 'series', 'node', 'user' by name;
          'image', 'template', 'volume' by full name; 'request', 'reclaim', 'notice', 'upload',
          'invitation' by id
    """
    return _KINDS[kind](tx, key)


def in_full(tx: Tx, kind: str, key: str, groups: frozenset[int] | None) -> list[str]:
    """Return at most three full names of images, templates or volumes of `groups` (None: of all
    groups) that the bare name `key` can mean; for 'site/NAME', those of the site. Other kinds have
    none."""
    table = {"image": t.images, "template": t.config_templates, "volume": t.volumes}.get(kind)
    name, at, revision = key.partition("@")
    owner, slash, own = name.rpartition("/")
    if table is None or (slash and owner != SITE):
        return []
    meant = (
        [table.c.group_id.is_(None), table.c.name == own]
        if slash
        else [*theirs(table.c.group_id, groups), table.c.name.endswith(f"/{name}", autoescape=True)]
    )
    query = select(table.c.name).where(*meant).distinct().order_by(table.c.name).limit(3)
    return [f"{full}{at}{revision}" for full in tx.scalars(query)]


def _of(tx: Tx, query: Select[Any]) -> Owned | None:
    row = tx.execute(query.limit(1)).one_or_none()
    if row is None:
        return None
    group: int | None = row[0]
    return Owned() if group is None else Owned(frozenset({group}))


def _shared(tx: Tx, query: Select[Any]) -> Owned | None:
    """Return the owner of an image or template. If no group owns it, it is the site's, and
    everybody may see it."""
    found = _of(tx, query)
    return Owned(shared=True) if found == Owned() else found


def _number(key: str) -> int:
    return int(key) if key.isascii() and key.isdigit() and len(key) < 19 else -1


def _vcluster(tx: Tx, key: str) -> Owned | None:
    """Return the owner of the vcluster that has that name now, or else of the last one that had it.
    The key may also be 'name@id', as in `views.called`."""
    v = t.vclusters.c
    name, at, number = key.partition("@")
    query = select(v.group_id).where(v.name == name, *([v.id == _number(number)] if at else []))
    return _of(tx, query.order_by(v.live_name.is_(None), v.id.desc()))


def _node(tx: Tx, key: str) -> Owned | None:
    n, p = t.nodes.c, t.node_permissions.c
    node_id = tx.scalar(select(n.id).where(n.name == key))
    if node_id is None:
        return None
    return Owned(frozenset(tx.scalars(select(p.group_id).where(p.node_id == node_id))))


def _template(tx: Tx, key: str) -> Owned | None:
    c = t.config_templates.c
    return _shared(
        tx, select(c.group_id).where(c.name == key.partition("@")[0]).order_by(c.id.desc())
    )


def _user(tx: Tx, key: str) -> Owned | None:
    """Return the groups of a user. People in one of them may see the user."""
    u, p = t.users.c, t.group_permissions.c
    user_id = tx.scalar(select(u.id).where(u.name == key))
    if user_id is None:
        return None
    return Owned(frozenset(tx.scalars(select(p.group_id).where(p.user_id == user_id))))


def _of_vcluster(tx: Tx, table: Table, key: str) -> Owned | None:
    """Return the owner of the vcluster that a request or a reclaim belongs to."""
    v = t.vclusters.c
    return _of(
        tx,
        select(v.group_id)
        .join_from(table, t.vclusters, table.c.vcluster_id == v.id)
        .where(table.c.id == _number(key)),
    )


_KINDS: dict[str, Callable[[Tx, str], Owned | None]] = {
    "": lambda tx, key: Owned(),
    "group": lambda tx, key: _of(tx, select(t.groups.c.id).where(t.groups.c.name == key)),
    "vcluster": _vcluster,
    "image": lambda tx, key: _shared(tx, select(t.images.c.group_id).where(t.images.c.name == key)),
    "template": _template,
    "node": _node,
    "request": lambda tx, key: _of_vcluster(tx, t.node_requests, key),
    "reclaim": lambda tx, key: _of_vcluster(tx, t.reclaims, key),
    "notice": lambda tx, key: _of(
        tx, select(t.notices.c.group_id).where(t.notices.c.id == _number(key))
    ),
    "user": _user,
    "series": lambda tx, key: _of(
        tx,
        select(t.reservation_series.c.group_id).where(t.reservation_series.c.name == key),
    ),
    "volume": lambda tx, key: _of(tx, select(t.volumes.c.group_id).where(t.volumes.c.name == key)),
    "invitation": lambda tx, key: _of(
        tx, select(t.invitations.c.group_id).where(t.invitations.c.id == _number(key))
    ),
    "upload": lambda tx, key: _of(tx, select(t.uploads.c.group_id).where(t.uploads.c.id == key)),
}
