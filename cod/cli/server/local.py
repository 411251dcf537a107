"""The database from the command line, for the few commands that need no server."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

import click

from cod.client import SITE_FILE

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from cod.pool import Tx

P = ParamSpec("P")
T = TypeVar("T")
Flow = Callable[Concatenate["Tx", P], T]


@contextmanager
def database(ctx: click.Context, *, checked: bool = True) -> Iterator[Engine]:
    """Provide the site's database. If it is `checked`, its schema must be this program's."""
    from sqlalchemy.exc import DBAPIError

    from cod.core.database.writer import connect
    from cod.site import load
    from cod.store import schema

    try:
        _, settings = load.load(Path(ctx.find_root().obj["site"] or SITE_FILE))
    except load.ConfigError as error:
        raise click.ClickException(str(error)) from None
    engine = connect(settings.database)
    try:
        if checked:
            schema.check(engine)
        yield engine
    except schema.SchemaMismatch as error:
        raise click.ClickException(str(error)) from None
    except DBAPIError as error:
        raise click.ClickException(f"the database cannot be used: {error.orig}") from None
    finally:
        engine.dispose()


def run(ctx: click.Context, flow: Flow[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run a flow in one transaction."""
    from cod.model import Refused
    from cod.pool import in_transaction

    with database(ctx) as engine:
        try:
            return in_transaction(engine, flow, *args, **kwargs)
        except Refused as refused:
            raise click.ClickException(refused.sentence) from None


def read(ctx: click.Context, flow: Flow[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run a flow that only reads, on a snapshot of the database, so that writers do not wait for
    it."""
    from cod.model import Refused
    from cod.store.engine import snapshot

    with database(ctx) as engine, snapshot(engine) as tx:
        try:
            return flow(tx, *args, **kwargs)
        except Refused as refused:
            raise click.ClickException(refused.sentence) from None


def local_user() -> str:
    """Return the local user who runs this command, in the form in which the audit names users of
    the server itself."""
    return f"user:{'root' if os.getuid() == 0 else f'uid{os.getuid()}'}"
