"""Users who want to be told when a request is decided."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sqlalchemy import delete, exists, insert, or_, select

from cod.store import tables as t
from cod.store.engine import Tx, rows_among
from cod.store.people.people import ABLE
from cod.store.rows import remove_all

_w = t.request_watchers.c


def of(tx: Tx, request_id: int) -> set[int]:
    """Return the ids of the users who watch a request."""
    return set(tx.scalars(select(_w.user_id).where(_w.request_id == request_id)))


def put(tx: Tx, request_id: int, user_ids: Iterable[int]) -> None:
    """Add users who watch a request."""
    rows = [{"request_id": request_id, "user_id": one} for one in {*user_ids} - of(tx, request_id)]
    if rows:
        tx.execute(insert(t.request_watchers), rows)


def remove(tx: Tx, request_id: int, user_id: int) -> None:
    """Remove a user from those who watch the request."""
    tx.execute(delete(t.request_watchers).where(_w.request_id == request_id, _w.user_id == user_id))


def take(tx: Tx, request_ids: Sequence[int]) -> dict[int, list[tuple[int, str]]]:
    """Return (id, e-mail address) of the users who watch each of the requests, have an address and
    may still sign in and see the request; delete all watchers of the requests."""
    u, r, v, p = t.users.c, t.node_requests.c, t.vclusters.c, t.group_permissions.c
    found: dict[int, list[tuple[int, str]]] = {}
    query = (
        select(_w.request_id, u.id, u.email)
        .join_from(t.request_watchers, t.users, u.id == _w.user_id)
        .join(t.node_requests, r.id == _w.request_id)
        .join(t.vclusters, v.id == r.vcluster_id)
        .where(or_(u.admin, exists().where(p.user_id == u.id, p.group_id == v.group_id)), *ABLE)
        .where(u.email != "")
    )
    for request_id, user_id, email in rows_among(tx, query, _w.request_id, request_ids):
        found.setdefault(request_id, []).append((user_id, email))
    remove_all(tx, _w.request_id, list(request_ids))
    return found
