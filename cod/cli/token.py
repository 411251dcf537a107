"""`cod token`: tokens for the REST API. Made in the database, so that the first one needs no token."""

from __future__ import annotations

import secrets
import time

import click

from cod.cli.local import run
from cod.cli.show import SPAN, as_json, print_json, print_table, said, when


@click.group()
def token() -> None:
    """Tokens for the REST API over TCP. Needs the site file, not the server.

    \b
    Example:
      COD_TOKEN=$(cod token create ci) cod --server http://head:8080 node list
    """


@token.command()
@click.argument("name")
@click.option("--read-only", is_flag=True, help="May look, not change: for monitoring.")
@click.option("--expires", type=SPAN, metavar="TIME", help="Such as 8h or 90d; else never.")
@as_json
@click.pass_context
def create(ctx: click.Context, name: str, read_only: bool, expires: float | None, as_json: bool) -> None:
    """Make a token and print it. It is shown this once and not kept.

    \b
    Example:
      cod token create monitoring --read-only --expires 90d
    """
    from cod.flows import tokens

    made = f"cod_{secrets.token_urlsafe(32)}"
    run(ctx, tokens.create, name, made, "read" if read_only else "admin", expires, time.time())
    said({"name": name, "token": made}, made, as_json)


@token.command("list")
@as_json
@click.pass_context
def list_(ctx: click.Context, as_json: bool) -> None:
    """List tokens: their names, not themselves.

    \b
    Example:
      cod token list
    """
    from cod.flows import tokens

    found = run(ctx, tokens.every)
    if as_json:
        print_json([{"name": t.name, "scope": t.scope, "created_at": t.created_at, "expires_at": t.expires_at}
                    for t in found])
        return
    print_table(("TOKEN", "MAY", "CREATED", "EXPIRES"),
                [(t.name, t.scope, when(t.created_at), "never" if t.expires_at is None else when(t.expires_at))
                 for t in found])


@token.command()
@click.argument("name")
@as_json
@click.pass_context
def revoke(ctx: click.Context, name: str, as_json: bool) -> None:
    """Make a token worthless, at once.

    \b
    Example:
      cod token revoke ci
    """
    from cod.flows import tokens

    run(ctx, tokens.revoke, name, time.time())
    said({"name": name, "state": "revoked"}, f"{name}: revoked", as_json)
