"""Bearer tokens of the REST API, by digest; the tokens themselves are not kept."""

from __future__ import annotations

from sqlalchemy import delete

from cod.model import ApiToken
from cod.store import tables as t
from cod.store.engine import Tx
from cod.store.rows import Rows

_T = t.api_tokens
ROWS = Rows(ApiToken, _T)
by_name = ROWS.by_name


def every(tx: Tx, user_id: int | None = None) -> list[ApiToken]:
    """Return all tokens of that user (None: of the site's administrator), by name."""
    own = _T.c.user_id.is_(None) if user_id is None else _T.c.user_id == user_id
    return ROWS.every(tx, own, order=_T.c.name)


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
    """Add a token and return it. The name is unique; the caller checks that first."""
    return ROWS.add(
        tx,
        name=name,
        scope=scope,
        digest=digest,
        created_at=now,
        expires_at=expires_at,
        user_id=user_id,
        group_id=group_id,
    )


def remove(tx: Tx, name: str) -> bool:
    """Remove the token; False when there is none."""
    return bool(tx.execute(delete(_T).where(_T.c.name == name)).rowcount)
