"""Rows of the site's database, and lists of the running server, for checks of other things than
these two."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError

from cod.client import ApiError, Client, Unreachable
from cod.core.database.writer import connect
from cod.model import database_urls
from cod.site.load import Settings
from cod.store import schema
from cod.store.engine import NoWriter, Tx

PATIENCE = 5.0  # seconds for the server's answer
T = TypeVar("T")


def rows(settings: Settings, read: Callable[[Tx], T]) -> T | None:
    """Return the result of `read` on the database; None if the database does not answer, or has
    another schema."""
    url = make_url(next(iter(database_urls(settings.database).values())))
    if url.get_backend_name() == "sqlite" and not Path(url.database or "").exists():
        return None  # a connection would create the file
    engine = connect(settings.database)
    try:
        schema.check(engine)
        with engine.connect() as tx:
            return read(tx)
    except (DBAPIError, schema.SchemaMismatch, NoWriter):
        return None
    finally:
        engine.dispose()


def items(settings: Settings, path: str) -> list[dict[str, Any]] | None:
    """Return the items of a list of the API, such as "/faults", from the running server; None if no
    server runs."""
    try:
        with Client(str(settings.socket), timeout=PATIENCE) as server:
            found: list[dict[str, Any]] = server.get(path)["items"]
            return found
    except (Unreachable, ApiError):
        return None
