"""Bearer tokens of the REST API, by digest; the tokens themselves are not kept."""

from __future__ import annotations

import hashlib

from sqlalchemy import delete, or_

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


def valid(tx: Tx, token: str, now: float) -> ApiToken | None:
    """Return the row of that token, unless the token has expired."""
    return ROWS.find(
        tx, _T.c.digest == _digest(token), or_(_T.c.expires_at.is_(None), _T.c.expires_at > now)
    )


def _digest(token: str) -> str:
    """Return BLAKE2b-256, in hex. Tokens are random, so no salt and no slow hash are needed."""
    return hashlib.blake2b(token.encode(), digest_size=32).hexdigest()


def add(
    tx: Tx,
    name: str,
    scope: str,
    token: str,
    now: float,
    expires_at: float | None,
    *,
    user_id: int | None = None,
    group_id: int | None = None,
) -> ApiToken:
    """Return a new token. The name is unique; the caller checks first."""
    return ROWS.add(
        tx,
        name=name,
        scope=scope,
        digest=_digest(token),
        created_at=now,
        expires_at=expires_at,
        user_id=user_id,
        group_id=group_id,
    )


def remove(tx: Tx, name: str) -> bool:
    """Remove the token; False when there is none."""
    return bool(tx.execute(delete(_T).where(_T.c.name == name)).rowcount)
