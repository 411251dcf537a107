"""`cod key`, `cod session` and `cod audit`: one's own account, and the history of changes."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from cod.cli.local_files import TEXT_FILE, text_of
from cod.cli.show import (
    PAST,
    SPAN,
    client,
    for_programs,
    newest_option,
    password_option,
    print_json,
    print_result,
    shown,
    table_of,
    table_with,
    value_text,
    when,
    with_json,
    with_table,
)
from cod.client import ApiError, path
from cod.quantity import counted

# ---------------------------------------------------------------- keys


@click.group()
def key() -> None:
    """Your SSH keys. Nodes of your groups' vclusters let them in as root from their next
    installation on. With --user, an administrator's way to somebody else's.

    Example:
      cod key add ~/.ssh/id_ed25519.pub
      cod key add bob.pub --user bob
    """


_of_user = click.option("--user", metavar="NAME", help="Of that user; for administrators.")


def _path(user: str | None, *rest: Any) -> str:
    """Return the path of one's own keys, or of a user's."""
    return path(*(("users", user) if user else ("me",)), "keys", *rest)


_keys = table_with(
    ("KEY", lambda v: v["id"]),
    ("NAME", "name"),
    ("ALGORITHM", "algorithm"),
    ("FINGERPRINT", "fingerprint"),
    ("FROM", lambda v: "directory" if v["given"] else "here"),
    ("SINCE", lambda v: when(v["created_at"])),
)


@key.command("list")
@_of_user
@with_table
def list_keys(ctx: click.Context, user: str | None) -> None:
    """List your keys.

    Example:
      cod key list
    """
    shown(client(ctx).get(_path(user))["items"], _keys)


@key.command("add")
@click.argument("file", type=TEXT_FILE)
@click.option("--name", default="", help="Name of the key. [default: its comment]")
@click.option(
    "--if-missing", is_flag=True, help="If it is among your keys, show it and change nothing."
)
@_of_user
@with_json
def add_key(ctx: click.Context, file: Path, name: str, if_missing: bool, user: str | None) -> None:
    """Add the public key in FILE (- is standard input) to your keys, or to a user's.

    Example:
      cod key add ~/.ssh/id_ed25519.pub --name laptop
    """
    api, line = client(ctx), text_of(file).strip()[:8000]
    existing = api.get(_path(user))["items"] if if_missing else []
    same = [one for one in existing if one["key"] in line.split()]
    value = same[0] if same else api.post(_path(user), {"key": line, "name": name})
    shown(value, lambda value: _keys([value]))


@key.command("remove")
@click.argument("number", type=int)
@_of_user
@with_json
def remove_key(ctx: click.Context, number: int, user: str | None) -> None:
    """Remove a key. Running nodes keep the key until they are installed again.

    Example:
      cod key remove 3
    """
    client(ctx).delete(_path(user, number))
    print_result({"id": number, "state": "removed"}, f"key {number}: removed")


# ---------------------------------------------------------------- sessions


@click.group()
def session() -> None:
    """Your browser sessions, and tokens for the command line.

    Example:
      cod session list
    """


@session.command()
@with_json
def whoami(ctx: click.Context) -> None:
    """Show your account as the server sees it.

    Example:
      cod session whoami
    """
    value = client(ctx).get("/me")
    groups = ", ".join(f"{each['group']} ({each['role']})" for each in value["groups"])
    rights = "administrator" if value["admin"] else groups or "no group"
    print_result(
        value, f"{value['name']}: {rights}" + ("" if value["writes"] else "; may only look")
    )


@session.command()
@click.argument("name")
@click.option(
    "--token",
    "token",
    default="cli",
    show_default=True,
    help="Name of the token; by default with the time where it is taken.",
)
@click.option(
    "--expires",
    type=SPAN,
    default=43_200.0,
    metavar="TIME",
    help="Such as 8h or 90d.  [default: 12h]",
)
@password_option()
@with_json
def start(ctx: click.Context, name: str, token: str, expires: float, password: str) -> None:
    """Sign in with name and password, and print a token for $COD_TOKEN.

    Example:
      export COD_TOKEN=$(cod --server https://cod.example.org session start ann)
    """
    api = client(ctx)
    wanted = {"name": name, "password": password, "lifetime": expires}
    try:
        value = api.sign_in(token=token, **wanted)
    except ApiError as error:
        if error.code != "conflict" or ctx.get_parameter_source("token") != ParameterSource.DEFAULT:
            raise
        # a second terminal, or the day after: the earlier token stays
        value = api.sign_in(token=time.strftime(f"{token}-%Y%m%d-%H%M%S"), **wanted)
    print_result(value, value["token"])


@session.command("list")
@with_table
def list_sessions(ctx: click.Context) -> None:
    """List your browser sessions.

    Example:
      cod session list
    """
    shown(
        client(ctx).get("/me/sessions")["items"],
        table_with(
            ("SESSION", "id"),
            ("FROM", "address"),
            ("BROWSER", "browser"),
            ("SINCE", lambda v: when(v["created_at"])),
            ("LAST SEEN", lambda v: when(v["last_seen"])),
            ("UNTIL", lambda v: when(v["expires_at"])),
        ),
    )


@session.command()
@click.argument("number", type=int, required=False)
@click.option("--all", "every", is_flag=True, help="End all sessions.")
@with_json
def end(ctx: click.Context, number: int | None, every: bool) -> None:
    """End a browser session, or all.

    Example:
      cod session end --all
    """
    if every == (number is not None):
        raise click.UsageError("say which session, or --all")
    if every:
        value = client(ctx).delete("/me/sessions")
        return print_result(value, f"signed out of {counted(value['ended'], 'browser')}")
    client(ctx).delete(path("me", "sessions", number or 0))
    return print_result({"id": number, "state": "ended"}, f"session {number}: ended")


# ---------------------------------------------------------------- the audit


@click.group(invoke_without_command=True)
@click.option("--group", help="Only changes of this group's things.")
@click.option("--actor", help="Only changes by this actor: user:ann, token:ci.")
@click.option(
    "--action", help="Only actions that begin with this text: vcluster, 'sign-in failed'."
)
@click.option("--thing", help="Only changes of this thing.")
@click.option("--since", type=PAST, metavar="TIME", help="Only changes since then: 7d, 2026-12-01.")
@click.option("--until", type=PAST, metavar="TIME", help="Only changes before then.")
@newest_option(50)
@with_table
def audit(ctx: click.Context, /, limit: int, **filters: Any) -> None:
    """Show changes, the newest last: those of groups that you own; for administrators, all.

    Example:
      cod audit --group physics --action vcluster
      cod audit --since 2026-11-01 --until 2026-12-01 --limit 100000 -o csv > november.csv
    """
    if ctx.invoked_subcommand is not None:
        return None
    values = client(ctx).newest("/audit", limit, **filters)
    if for_programs():
        return print_json(values[::-1])
    return shown(
        values,
        lambda rows: table_of(
            rows,
            ("AT", lambda v: when(v["at"])),
            ("WHO", "actor"),
            ("FROM", "address"),
            ("DID", "action"),
            ("TO", "thing"),
            ("GROUP", "group"),
            ("CHANGE", _change),
        ),
    )


def _change(row: Any) -> str:
    """Return a change of a value, 'size 2 -> 4'; a new or removed value in short."""
    before, after = row["before"] or {}, row["after"] or {}
    if before and after:
        return ", ".join(
            f"{name} {_brief(name, before.get(name))} -> {_brief(name, after.get(name))}"
            for name in {**before, **after}
        )
    return ", ".join(
        f"{name} {_brief(name, value)}"
        for name, value in (after or before).items()
        if value not in (None, "")
    )


def _brief(name: str, value: Any) -> str:
    return value_text(name, value, 40) or "-"
