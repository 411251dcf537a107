"""Bearer tokens of the REST API, by digest; the tokens themselves are not kept."""

from __future__ import annotations

from dataclasses import fields

from sqlalchemy import delete, insert, or_, select

from cod.model import ApiToken
from cod.store import tables as t
from cod.store.engine import Tx

_T = t.api_tokens
_COLUMNS = [_T.c[f.name] for f in fields(ApiToken)]


def every(tx: Tx, user_id: int | None = None) -> list[ApiToken]:
    """Return all tokens of that user (None: of the site's administrator), by name."""
    query = select(*_COLUMNS).where(
        _T.c.user_id.is_(None) if user_id is None else _T.c.user_id == user_id
    )
    return [ApiToken(*row) for row in tx.execute(query.order_by(_T.c.name))]


def by_name(tx: Tx, name: str) -> ApiToken | None:
    """Return the token with that name."""
    row = tx.execute(select(*_COLUMNS).where(_T.c.name == name)).one_or_none()
    return ApiToken(*row) if row else None


def valid(tx: Tx, digest: str, now: float) -> ApiToken | None:
    """Return the token with that digest, unless it has expired."""
    query = select(*_COLUMNS).where(
        _T.c.digest == digest, or_(_T.c.expires_at.is_(None), _T.c.expires_at > now)
    )
    row = tx.execute(query).one_or_none()
    return ApiToken(*row) if row else None


def add(
    tx: Tx,
    name: str,
    scope: str,
    digest: str,
    now: float,
    expires_at: float | None,
    *,
    user_id: int | None = None,
    group_id: int | None = None,
) -> ApiToken:
    """Return a new token. The name is unique; the caller checks first."""
    tx.execute(
        insert(_T).values(
            name=name,
            scope=scope,
            digest=digest,
            created_at=now,
            expires_at=expires_at,
            user_id=user_id,
            group_id=group_id,
        )
    )
    token = by_name(tx, name)
    assert token is not None
    return token


def remove(tx: Tx, name: str) -> bool:
    """Remove the token; False when there is none."""
    return bool(tx.execute(delete(_T).where(_T.c.name == name)).rowcount)
