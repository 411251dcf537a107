"""`cod user`: people who may sign in."""

from __future__ import annotations

from functools import partial
from typing import Any

import click

from cod.cli.nouns import Noun
from cod.cli.people.links import print_link
from cod.cli.people.member import site as invite
from cod.cli.record_fields import Show, facts, fields_table, lists
from cod.cli.show import (
    SPAN,
    client,
    created,
    if_missing_option,
    print_result,
    shown,
    table,
    with_dry_run,
    with_json,
)
from cod.client import path
from cod.model.people import User


@click.group()
def user() -> None:
    """Users: people who may sign in, and administrators.

    Example:
      cod user add ann --admin --full-name "Ann Example" --email ann@example.org
    """


def _marks(value: Any) -> str:
    return ", ".join(word for word in ("admin", "disabled", "absent") if value[word])


COLUMNS = (
    "name",
    "uid",
    "full_name",
    "email",
    ("Is", _marks),
    ("directory", lambda user: user["directory"] or "here"),
)


def _one(value: Any) -> Any:
    groups = ", ".join(f"{each['group']} ({each['role']})" for each in value["groups"])
    return table(("", ""), [*facts(User, value), ("Groups", groups)])


noun = Noun(user, "users", partial(fields_table, User, columns=COLUMNS), _one)
noun.show("Show a user and their groups.", "cod user show ann")
noun.set(User, "Change a user.", "cod user set ann --no-admin")
noun.delete(
    "Delete a user for good, with sessions, tokens, keys and roles in groups. The audit and"
    " histories keep the name. To bar a person for a while, use `cod user disable`.",
    "cod user delete ann",
)


@user.command("list")
@click.option(
    "--search", metavar="TEXT", help="Only users with this text in their name or address."
)
@lists(User)
def list_(ctx: click.Context, show: Show, search: str | None) -> None:
    """List users.

    Example:
      cod user list --search example.org
    """
    show(lambda: client(ctx).every("/users", q=search), COLUMNS)


@user.command()
@click.argument("name")
@click.option("--admin", is_flag=True, help="Make the user a site administrator.")
@click.option("--full-name", default="", help="Full name.")
@click.option("--email", default="", help="E-mail address.")
@click.option("--mail", is_flag=True, help="Send the link to --email.")
@click.option("--uid", type=int, help="Number on nodes. [default: the next of the site's range]")
@if_missing_option
@with_json
def add(ctx: click.Context, /, name: str, if_missing: bool, **fields: Any) -> None:
    """Create a user, and print the link for setting a password. On the server itself the command
    needs no token, so it creates a site's first administrator.

    Example:
      cod user add ann --admin
    """
    value = created(client(ctx), "users", name, {"name": name, **fields}, if_missing)
    if "link" in value:
        print_link(value)
    else:
        shown(value, _one)


def _synced(value: Any) -> Any:
    return table(
        ("", ""),
        [
            ("Added", ", ".join(value["added"])),
            ("Gone from the directory", ", ".join(value["gone"])),
            ("Back in it", ", ".join(value["back"])),
            ("Other roles", ", ".join(value["changed"])),
            ("Too many at once: unchanged", ", ".join(value["held"])),
            ("Not in the directory", ", ".join(value["missing"])),
        ],
    )


@user.command()
@click.argument("names", nargs=-1)
@click.option(
    "--trust", is_flag=True, help="Believe the directory even where many lose rights at once."
)
@with_json
def sync(ctx: click.Context, names: tuple[str, ...], trust: bool) -> None:
    """Compare the users with the site's LDAP directory now: users who have left it, roles that its
    groups give, and keys. Members of these groups become users before they sign in, and so do
    people called NAMES.

    Example:
      cod user sync bob carol
    """
    value = client(ctx).post("/users/sync", {"names": list(names), "trust": trust})
    shown(value, _synced)


@user.command()
@click.argument("name")
@with_dry_run
def disable(ctx: click.Context, name: str) -> None:
    """Disable a user: end all sessions at once, and refuse sign-in and tokens until `cod user
    enable`.

    Example:
      cod user disable ann
    """
    shown(client(ctx).patch(path("users", name), {"disabled": True}), _one)


@user.command()
@click.argument("name")
@with_dry_run
def enable(ctx: click.Context, name: str) -> None:
    """Enable a user that was disabled.

    Example:
      cod user enable ann
    """
    shown(client(ctx).patch(path("users", name), {"disabled": False}), _one)


@user.command("password-link")
@click.argument("name")
@click.option(
    "--expires",
    type=SPAN,
    metavar="TIME",
    help="Lifetime of the link, such as 8h or 3d. [default: the site's]",
)
@click.option("--mail", is_flag=True, help="Send the link to the user's address.")
@with_json
def password_link(ctx: click.Context, name: str, expires: float | None, mail: bool) -> None:
    """Create a link for setting a new password. Earlier links stop working.

    Example:
      cod user password-link ann --mail
    """
    print_link(
        client(ctx).post(path("users", name, "password-link"), {"lifetime": expires, "mail": mail})
    )


@user.command("sign-out")
@click.argument("name")
@with_json
def sign_out(ctx: click.Context, name: str) -> None:
    """End all browser sessions of a user.

    Example:
      cod user sign-out ann
    """
    value = client(ctx).delete(path("users", name, "sessions"))
    print_result(value, f"{name}: signed out of {value['ended']} browsers")


user.add_command(invite, "invite")
