"""`cod token`: tokens for the REST API. The site's tokens are made in the database, so that the
first one needs no token; `--mine` makes one's own over the API."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from cod.cli.server.local import local_user, run
from cod.cli.show import (
    SPAN,
    client,
    for_programs,
    print_json,
    print_result,
    shown,
    table_with,
    when,
    with_json,
    with_table,
)
from cod.client import SITE_FILE, path

T = TypeVar("T")
mine_ = click.option(
    "--mine", is_flag=True, help="Your own tokens, over the API, in place of the site's."
)


@click.group()
def token() -> None:
    """Tokens for the REST API over TCP. Site tokens need the site file but no server; your own
    (--mine) need the server.

    Example:
      COD_TOKEN=$(cod token create ci) cod --server https://head:8443 node list
    """


@token.command()
@click.argument("name")
@click.option("--read-only", is_flag=True, help="Allow reading only.")
@click.option(
    "--metrics", is_flag=True, help="Allow metrics and targets only: for a monitoring system."
)
@click.option(
    "--calendar",
    is_flag=True,
    help="Allow the calendar feed only, at /calendar.ics?token=TOKEN of the server.",
)
@click.option(
    "--expires", type=SPAN, metavar="TIME", help="Lifetime, such as 8h or 90d. [default: unlimited]"
)
@mine_
@click.option("--group", default="", help="With --mine: limit the token to this group.")
@click.option(
    "--if-missing",
    is_flag=True,
    help="If there is one of that name, change nothing and print no token: it is not kept.",
)
@with_json
def create(
    ctx: click.Context,
    name: str,
    read_only: bool,
    metrics: bool,
    calendar: bool,
    expires: float | None,
    mine: bool,
    group: str,
    if_missing: bool,
) -> None:
    """Create a token and print it. The token is shown only once.

    Example:
      cod token create prometheus --metrics --expires 90d
    """
    if metrics and (read_only or mine):
        raise click.UsageError("--metrics goes with neither --read-only nor --mine")
    if calendar and (read_only or metrics):
        raise click.UsageError("--calendar goes with neither --read-only nor --metrics")
    if group and not mine:
        raise click.UsageError("--group goes with --mine: the site's tokens are for all groups")
    scopes = {"calendar": calendar, "metrics": metrics, "read": read_only}
    scope = next((word for word, is_wanted in scopes.items() if is_wanted), "")
    if if_missing and any(_is_called(each["name"], name, mine) for each in _listed(ctx, mine)):
        if for_programs():
            print_json({"name": name, "token": None})
        return click.echo(f"there is a token {name!r} already", err=True)
    if mine:
        body = {
            "name": name,
            "scope": scope or "write",
            "group": group,
            "lifetime": expires,
        }
        value = client(ctx).post("/me/tokens", body)
        return print_result(value, value["token"])
    from cod.flows.people import tokens

    made = f"cod_{secrets.token_urlsafe(32)}"
    _run(
        ctx,
        tokens.create,
        name,
        made,
        scope or "admin",
        expires,
        time.time(),
        local_user(),
    )
    return print_result({"name": name, "token": made}, made)


@token.command("list")
@mine_
@with_table
def list_(ctx: click.Context, mine: bool) -> None:
    """List tokens by name. The tokens themselves are not stored.

    Example:
      cod token list
    """
    shown(
        _listed(ctx, mine),
        table_with(
            ("TOKEN", "name"),
            ("MAY", lambda v: v["scope"] + (f" in {v['group']}" if v.get("group") else "")),
            ("CREATED", lambda v: when(v["created_at"])),
            ("EXPIRES", lambda v: "never" if v["expires_at"] is None else when(v["expires_at"])),
        ),
    )


def _run(ctx: click.Context, flow: Callable[..., T], *args: Any) -> T:
    """Run a flow on the site's tokens. Raises `click.ClickException`, also on a host without the
    site."""
    if not (file := Path(ctx.find_root().obj["site"] or SITE_FILE)).exists():
        raise click.ClickException(
            f"the site's tokens are in its database, and there is no {file} here: run this on the "
            "server (with --site FILE), or add --mine for your own tokens"
        )
    return run(ctx, flow, *args)


def _is_called(full: str, name: str, mine: bool) -> bool:
    """Return whether a token's full name, which is NAME@USER for a user's token, means `name`."""
    return (full.rpartition("@")[0] if mine else full) == name


def _listed(ctx: click.Context, mine: bool) -> list[dict[str, Any]]:
    if mine:
        return list(client(ctx).get("/me/tokens")["items"])
    from cod.flows.people import tokens

    return [
        {"name": t.name, "scope": t.scope, "created_at": t.created_at, "expires_at": t.expires_at}
        for t in _run(ctx, tokens.every)
    ]


@token.command()
@click.argument("name")
@mine_
@with_json
def revoke(ctx: click.Context, name: str, mine: bool) -> None:
    """Revoke a token, at once.

    Example:
      cod token revoke ci
    """
    if mine:
        client(ctx).delete(path("me", "tokens", name))
        return print_result({"name": name, "state": "revoked"}, f"{name}: revoked")
    from cod.flows.people import tokens

    _run(ctx, tokens.revoke, name, time.time(), local_user())
    return print_result({"name": name, "state": "revoked"}, f"{name}: revoked")
