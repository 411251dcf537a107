"""Rows of the site's database, for checks of other things than the database itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError

from cod.core.database.writer import connect
from cod.model import database_urls
from cod.site.load import Settings
from cod.store import schema
from cod.store.engine import NoWriter, Tx

T = TypeVar("T")


def rows(settings: Settings, read: Callable[[Tx], T]) -> T | None:
    """Return what `read` returns; None where the database does not tell, or has another schema."""
    url = make_url(next(iter(database_urls(settings.database).values())))
    if url.get_backend_name() == "sqlite" and not Path(url.database or "").exists():
        return None  # to connect would make it
    engine = connect(settings.database)
    try:
        schema.check(engine)
        with engine.connect() as tx:
            return read(tx)
    except (DBAPIError, schema.SchemaMismatch, NoWriter):
        return None
    finally:
        engine.dispose()
