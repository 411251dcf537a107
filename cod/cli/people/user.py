"""`cod user`: people who sign in."""

from __future__ import annotations

from typing import Any

import click

from cod.cli.people.links import print_link
from cod.cli.people.member import site as invite
from cod.cli.show import SPAN, as_json, client, said, shown, table, when
from cod.client import path


@click.group()
def user() -> None:
    """People: who they are, whether they may sign in, who is an administrator.

    \b
    Example:
      cod user add ann --admin --full-name "Ann Example" --email ann@example.org
    """


def _users(values: list[Any]) -> Any:
    return table(("USER", "NAME", "E-MAIL", "IS", "SIGNS IN", "SINCE"), [
        (v["name"], v["full_name"], v["email"], ", ".join(_marks(v)), v["directory"] or "here", when(v["created_at"]))
        for v in values])


def _marks(value: Any) -> list[str]:
    return [word for word in ("admin", "disabled", "absent") if value[word]]


def _one(value: Any) -> Any:
    groups = ", ".join(f"{each['group']} ({each['role']})" for each in value["groups"])
    return table(("USER", "NAME", "E-MAIL", "IS", "GROUPS"), [
        (value["name"], value["full_name"], value["email"], ", ".join(_marks(value)), groups)])


@user.command("list")
@click.option("--search", metavar="TEXT", help="Only those who have it in a name or address.")
@as_json
@click.pass_context
def list_(ctx: click.Context, search: str | None, as_json: bool) -> None:
    """List users.

    \b
    Example:
      cod user list --search example.org
    """
    shown(ctx, client(ctx).every("/users", q=search), _users, as_json)


@user.command()
@click.argument("name")
@as_json
@click.pass_context
def show(ctx: click.Context, name: str, as_json: bool) -> None:
    """Show a user and their groups.

    \b
    Example:
      cod user show ann
    """
    shown(ctx, client(ctx).get(path("users", name)), _one, as_json)


@user.command()
@click.argument("name")
@click.option("--admin", is_flag=True, help="A site administrator.")
@click.option("--full-name", default="", help="As people know them.")
@click.option("--email", default="", help="Their address.")
@click.option("--mail", is_flag=True, help="Send the link there.")
@as_json
@click.pass_context
def add(ctx: click.Context, /, name: str, as_json: bool, **told: Any) -> None:
    """Make a user and print the link by which they set their password. On the server itself this needs no token, so
    that a site's first administrator comes in.

    \b
    Example:
      cod user add ann --admin
    """
    print_link(client(ctx).post("/users", {"name": name, **told}), as_json)


@user.command("set")
@click.argument("name")
@click.option("--full-name", help="As people know them.")
@click.option("--email", help="Their address; '' for none.")
@click.option("--admin/--no-admin", default=None, help="A site administrator, or not.")
@as_json
@click.pass_context
def set_(ctx: click.Context, /, name: str, as_json: bool, **asked: Any) -> None:
    """Change a user.

    \b
    Example:
      cod user set ann --no-admin
    """
    body = {key: value for key, value in asked.items() if value is not None}
    if not body:
        raise click.UsageError("say what to set: --full-name, --email, --admin or --no-admin")
    shown(ctx, client(ctx).patch(path("users", name), body), _one, as_json)


@user.command()
@click.argument("name")
@as_json
@click.pass_context
def disable(ctx: click.Context, name: str, as_json: bool) -> None:
    """Sign a user out everywhere, at once, and let them in no more. Their tokens are worth nothing meanwhile.

    \b
    Example:
      cod user disable ann
    """
    shown(ctx, client(ctx).patch(path("users", name), {"disabled": True}), _one, as_json)


@user.command()
@click.argument("name")
@as_json
@click.pass_context
def enable(ctx: click.Context, name: str, as_json: bool) -> None:
    """Let a user in again.

    \b
    Example:
      cod user enable ann
    """
    shown(ctx, client(ctx).patch(path("users", name), {"disabled": False}), _one, as_json)


@user.command()
@click.argument("name")
@as_json
@click.pass_context
def delete(ctx: click.Context, name: str, as_json: bool) -> None:
    """Delete a user for good, with their sessions, tokens, keys and roles in groups. What they did stays in the audit
    and in histories, under their name. To keep somebody out who may come back, disable them.

    \b
    Example:
      cod user delete ann
    """
    client(ctx).delete(path("users", name))
    said({"name": name, "state": "deleted"}, f"{name}: deleted", as_json)


@user.command("password-link")
@click.argument("name")
@click.option("--expires", type=SPAN, metavar="TIME", help="Such as 8h or 3d; else the site's.")
@click.option("--mail", is_flag=True, help="Send it to their address.")
@as_json
@click.pass_context
def password_link(ctx: click.Context, name: str, expires: float | None, mail: bool, as_json: bool) -> None:
    """Make a link by which a user sets a new password. Earlier ones are worth nothing from then on.

    \b
    Example:
      cod user password-link ann --mail
    """
    print_link(client(ctx).post(path("users", name, "password-link"), {"lifetime": expires, "mail": mail}), as_json)


@user.command("sign-out")
@click.argument("name")
@as_json
@click.pass_context
def sign_out(ctx: click.Context, name: str, as_json: bool) -> None:
    """Sign a user out of all browsers.

    \b
    Example:
      cod user sign-out ann
    """
    value = client(ctx).delete(path("users", name, "sessions"))
    said(value, f"{name}: signed out of {value['ended']} browsers", as_json)


user.add_command(invite, "invite")
