"""`cod member` and `cod invite`: members of groups, and links that invite people."""

from __future__ import annotations

from typing import Any

import click

from cod.choices import Role, SingleRight
from cod.cli.people.links import print_link
from cod.cli.show import (
    SPAN,
    client,
    for_programs,
    password_option,
    print_result,
    shown,
    table_with,
    when,
    with_dry_run,
    with_json,
    with_table,
)
from cod.client import path

ROLES = click.Choice(Role.names())
_MAIL = click.option("--mail", is_flag=True, help="Send the link to --email.")
_EXPIRES = click.option(
    "--expires",
    type=SPAN,
    metavar="TIME",
    help="Lifetime of the link, such as 8h or 3d. [default: the site's]",
)


@click.group()
def member() -> None:
    """Members of groups. Owners manage members, members use vclusters, viewers only look.

    Example:
      cod member set physics ann owner
    """


_members = table_with(
    ("USER", "user"),
    ("NAME", "full_name"),
    ("E-MAIL", "email"),
    ("ROLE", "role"),
    ("RIGHTS", lambda v: ", ".join(v["rights"])),
    ("SHARES", lambda v: f"{v['shares']:g}"),
)


@member.command("list")
@click.argument("group")
@with_table
def list_(ctx: click.Context, group: str) -> None:
    """List the members of a group.

    Example:
      cod member list physics
    """
    shown(client(ctx).get(path("groups", group, "members"))["items"], _members)


@member.command("set")
@click.argument("group")
@click.argument("user")
@click.argument("role", type=ROLES)
@click.option(
    "--right",
    "rights",
    type=click.Choice([*SingleRight.names(), "none"]),
    multiple=True,
    help=(
        "A single right beside the role; give it again for more. none: no single right. [default: "
        "those of before]"
    ),
)
@click.option(
    "--shares",
    type=click.FloatRange(0),
    help="Shares among the group's users, where it has users' shares. [default: as before]",
)
@click.option("--force", is_flag=True, help="Allow a group without an owner: for administrators.")
@with_dry_run
def set_(
    ctx: click.Context,
    group: str,
    user: str,
    role: str,
    rights: tuple[str, ...],
    shares: float | None,
    force: bool,
) -> None:
    """Set a member's role: owner, member or viewer, and single rights beside it. Invite other
    people with `cod invite group`; administrators can add any user.

    Example:
      cod member set physics bob viewer --right consoles --right resize
    """
    if "none" in rights and len(rights) > 1:
        raise click.UsageError("--right none goes with no other right")
    body: dict[str, Any] = {"role": role, "force": force}
    if rights:
        body["rights"] = [each for each in rights if each != "none"]
    if shares is not None:
        body["shares"] = shares
    value = client(ctx).call("PUT", path("groups", group, "members", user), body)
    shown(value, lambda one: _members([one]))


@member.command()
@click.argument("group")
@click.argument("user")
@with_dry_run
def remove(ctx: click.Context, group: str, user: str) -> None:
    """Remove a person from a group. New logins to its nodes end within a minute; the command names
    the nodes on which sessions may still be open. Nodes without SSSD keep that person's SSH keys
    until they are installed again.

    Example:
      cod member remove physics bob
    """
    value = client(ctx).delete(path("groups", group, "members", user))
    still = (
        f"; to end open sessions, run `{value['command']}` on {', '.join(value['nodes'])}"
        if value["nodes"]
        else ""
    )
    print_result({**value, "state": "removed"}, f"{user}: not in {group} any more{still}")


@member.command()
@click.argument("group")
@click.option("--lines", is_flag=True, help="Print lines of an authorized_keys file only.")
@with_table
def keys(ctx: click.Context, group: str, lines: bool) -> None:
    """List the SSH keys that nodes of the group's vclusters let in. A node has the keys of the time
    when it was installed; the last two examples update a node that runs.

    Example:
      cod member keys physics
      cod member keys physics --lines >keys
      ssh root@n1.farm.cod.example.org 'cat >~/.ssh/authorized_keys' <keys
    """
    if lines and not for_programs():
        for value in client(ctx).get(path("groups", group, "keys"))["items"]:
            click.echo(value["line"])
        return
    shown(
        client(ctx).get(path("groups", group, "keys"))["items"],
        table_with(
            ("USER", "user"),
            ("KEY", lambda v: v["name"]),
            ("ALGORITHM", "algorithm"),
            ("FINGERPRINT", "fingerprint"),
        ),
    )


# ---------------------------------------------------------------- links


@click.group()
def invite() -> None:
    """Invitation links. Each works once, for a limited time.

    Example:
      cod invite group physics --role owner --email ann@example.org --mail
    """


@invite.command()
@click.argument("name")
@click.option("--role", type=ROLES, default="member", show_default=True)
@click.option("--email", default="", help="Address of the person.")
@_EXPIRES
@_MAIL
@with_json
def group(
    ctx: click.Context, name: str, role: str, email: str, expires: float | None, mail: bool
) -> None:
    """Invite a person into a group.

    Example:
      cod invite group physics --role viewer --expires 3d
    """
    body = {"role": role, "email": email, "lifetime": expires, "mail": mail}
    print_link(client(ctx).post(path("groups", name, "invitations"), body))


@invite.command()
@click.option("--email", default="", help="Address of the person.")
@_EXPIRES
@_MAIL
@with_json
def site(ctx: click.Context, email: str, expires: float | None, mail: bool) -> None:
    """Invite a person to the site, without a group.

    Example:
      cod invite site --email bob@example.org --mail
    """
    print_link(
        client(ctx).post("/invitations", {"email": email, "lifetime": expires, "mail": mail})
    )


@invite.command("list")
@with_table
def list_links(ctx: click.Context) -> None:
    """List valid links. Their secrets are not stored.

    Example:
      cod invite list
    """
    shown(
        client(ctx).get("/invitations")["items"],
        table_with(
            ("LINK", "id"),
            ("GROUP", "group"),
            ("ROLE", "role"),
            ("PASSWORD OF", "user"),
            ("FOR", "email"),
            ("BY", "invited_by"),
            ("UNTIL", lambda v: when(v["expires_at"])),
        ),
    )


@invite.command()
@click.argument("number", type=int)
@with_json
def revoke(ctx: click.Context, number: int) -> None:
    """Revoke a link.

    Example:
      cod invite revoke 17
    """
    client(ctx).delete(path("invitations", number))
    print_result({"id": number, "state": "revoked"}, f"link {number}: revoked")


@invite.command()
@click.argument("link", metavar="LINK-OR-SECRET")
@click.option("--name", default="", help="Sign-in name of the new account.")
@click.option("--full-name", default="", help="Your full name.")
@password_option(new=True)
@with_json
def accept(ctx: click.Context, link: str, name: str, full_name: str, password: str) -> None:
    """Use a link: create the account, or set the new password.

    Example:
      cod --server https://cod.example.org invite accept LINK --name ann
    """
    body = {
        "secret": link.rpartition("#")[2],
        "name": name,
        "full_name": full_name,
        "password": password,
    }
    value = client(ctx).post("/invitations/accept", body)
    print_result(value, f"{value['user']}: you can sign in now")
