"""`cod group`: groups, which own vclusters; their priorities, and the addresses of their
notices."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import click

from cod.choices import DeliveryState
from cod.cli.nouns import Noun
from cod.cli.people.member import group as invite
from cod.cli.record_fields import OrNone, body_of, facts, fields_table, options_named, set_options
from cod.cli.scheduler.shares import preview_table, share_table
from cod.cli.show import (
    client,
    created,
    if_missing_option,
    newest_option,
    print_result,
    shown,
    table,
    table_with,
    when,
    with_dry_run,
    with_json,
    with_table,
)
from cod.client import path
from cod.model.sharing.groups import Group


@click.group()
def group() -> None:
    """Groups own vclusters and give their requests a priority.

    Example:
      cod group create physics --priority 10 --max-lease 14d --email ann@example.org
    """


@group.command()
@click.argument("name")
@set_options(Group, new=True)
@if_missing_option
@with_json
def create(ctx: click.Context, /, name: str, if_missing: bool, **asked: Any) -> None:
    """Create a group. Users whom the site's rule lets create groups are the owners of theirs; the
    site sets priority, longest lease, quotas and GID.

    Example:
      cod group create physics --priority 10 --default-lease 8h --max-lease 14d
    """
    shown(
        created(client(ctx), "groups", name, {"name": name, **body_of(Group, asked)}, if_missing),
        _one,
    )


def _one(value: Any) -> Any:
    return table(("", ""), facts(Group, value))


noun = Noun(group, "groups", partial(fields_table, Group), _one)
noun.list("List groups.", "cod group list", "cod group list -o wide --sort -priority")
noun.show("Show a group.", "cod group show physics")
noun.delete(
    "Delete a group that has no running vclusters, images, templates or uploads. Its owners can"
    " delete a group that a user created, from a day after that on.",
    "cod group delete physics",
)


def by_type(option: str, words: tuple[str, ...], field: str, types: str) -> dict[str, Any]:
    """Return the fields that the `words` of an option set. A number alone sets `field`. TYPE=N sets
    `types`, and replaces the numbers of all types. 'none' clears both fields. Raises UsageError."""
    if words == ("none",):
        return {field: 0 if field == "guarantee" else None, types: {}}
    fields: dict[str, Any] = {}
    for word in words:
        name, equals, text = word.rpartition("=")
        number = _number(text, whole=field != "shares")
        if number is None or (equals and not name):
            raise click.UsageError(
                f"{option} takes a number such as 20, or a type and one such as gpu=4; or only"
                f" none; not {word}"
            )
        if name:
            fields.setdefault(types, {})[name] = number
        else:
            fields[field] = number
    return fields


def _number(text: str, *, whole: bool) -> float | None:
    """Return the number in a text; None if the text is no number, or a negative one."""
    form = r"[0-9]+" if whole else r"[0-9]+(\.[0-9]+)?(e[0-9]+)?"
    return (int(text) if whole else float(text)) if re.fullmatch(form, text) else None


@group.command("set")
@click.argument("name")
@set_options(Group)
@click.option(
    "--shares",
    multiple=True,
    metavar="N|TYPE=N|none",
    help=(
        "What it is to have of the site, in proportion to the other groups', or of nodes of a type."
        " none: none by type."
    ),
)
@click.option(
    "--guarantee",
    multiple=True,
    metavar="N|TYPE=N|none",
    help="Nodes that are not taken from it for others; of a type, or of all that are not named.",
)
@click.option(
    "--limit",
    "limits",
    multiple=True,
    metavar="N|TYPE=N|none",
    help=(
        "Nodes that it may hold at once, of all types or of one; give it again for more types."
        " none: the site's limit, and none by type."
    ),
)
@click.option(
    "--hours",
    type=OrNone(click.FloatRange(0)),
    help="Node-hours that it may use in a month; none: no limit.",
)
@click.option("--parent", metavar="GROUP", help="Group that it is a subgroup of; none: of none.")
@click.option(
    "--user-shares/--no-user-shares",
    default=None,
    help="Rank the group's requests by what their users have used. [default: as before]",
)
@click.option(
    "--preview",
    is_flag=True,
    help="Change nothing: simulate the last days with these shares, guarantees and limits.",
)
@click.option(
    "--days",
    metavar="N",
    type=click.IntRange(1, 28),
    help="With --preview: days that are simulated. [default: 14]",
)
@with_dry_run
def set_(
    ctx: click.Context,
    /,
    name: str,
    shares: tuple[str, ...],
    guarantee: tuple[str, ...],
    limits: tuple[str, ...],
    hours: float | str | None,
    parent: str | None,
    user_shares: bool | None,
    preview: bool,
    days: int | None,
    **asked: Any,
) -> None:
    """Change a group. Existing vclusters and requests keep their leases and priorities.

    Example:
      cod group set physics --priority 20 --email "ann@example.org, bob@example.org" --webhook ""
      cod group set physics --shares 40 --guarantee 8 --limit 20 --limit gpu=4
      cod group set vision --shares gpu=3 --guarantee gpu=2
      cod group set physics --shares 40 --preview --days 7
    """
    said_of_shares = {"hours_limit": hours, "parent": parent, "user_shares": user_shares}
    by_types = (
        by_type("--limit", limits, "node_limit", "type_limits")
        | by_type("--guarantee", guarantee, "guarantee", "type_guarantees")
        | by_type("--shares", shares, "shares", "type_shares")
    )
    if by_types.get("shares", 0) is None:
        del by_types["shares"]  # 'none' is for types: a group always has shares of the site
    entitled = by_types | {
        key: None if value == "none" else value
        for key, value in said_of_shares.items()
        if value is not None
    }
    body = body_of(Group, asked)
    if not body and not entitled:
        others = ("--shares", "--guarantee", "--limit", "--hours", "--parent", "--user-shares")
        raise click.UsageError(f"say what to set: {options_named(Group, *others)}")
    if body and entitled:  # two changes, of which the second could be refused
        raise click.UsageError(
            "--shares, --guarantee, --limit, --hours, --parent and --user-shares are set by a "
            "command of their own"
        )
    if days is not None and not preview:
        raise click.UsageError("--days belongs to --preview")
    if preview and not entitled:
        raise click.UsageError(
            "--preview tries --shares, --guarantee, --limit, --hours or --parent"
        )
    if preview:
        asked_days = {} if days is None else {"days": days}
        value = client(ctx).post(path("shares", name, "preview"), entitled | asked_days)
        shown(value, preview_table)
    elif entitled:
        value = client(ctx).patch(path("shares", name), entitled)
        shown(value, lambda one: share_table([one]))
    else:
        shown(client(ctx).patch(path("groups", name), body), _one)


@group.command("webhook-secret")
@click.argument("name")
@click.option(
    "--new", is_flag=True, help="Create a new secret first; later deliveries are signed with it."
)
@with_json
def webhook_secret(ctx: click.Context, name: str, new: bool) -> None:
    """Print the secret that signs the group's webhook (docs/notices).

    Example:
      cod group webhook-secret physics
    """
    where = path("groups", name, "webhook-secret")
    value = client(ctx).post(where) if new else client(ctx).get(where)
    print_result(value, value["secret"])


@group.command()
@click.argument("name")
@click.option(
    "--state", type=click.Choice(DeliveryState.names()), help="Only deliveries in this state."
)
@newest_option(100)
@with_table
def deliveries(ctx: click.Context, name: str, state: str | None, limit: int) -> None:
    """List a group's newest deliveries by webhook and mail, oldest first.

    Example:
      cod group deliveries physics --state "given up"
    """
    values = client(ctx).newest(path("groups", name, "deliveries"), limit, state=state)
    shown(values, delivery_table)


delivery_table = table_with(
    ("ID", "id"),
    ("AT", lambda v: when(v["at"])),
    ("KIND", "kind"),
    ("SUBJECT", "subject"),
    ("CHANNEL", "channel"),
    ("TO", "to"),
    ("STATE", "state"),
    ("ATTEMPTS", lambda v: str(v["attempts"])),
    ("NEXT", lambda v: when(v["next_at"])),
    ("ERROR", "error"),
)


@group.command()
@click.argument("name")
@click.argument("number", metavar="ID", type=click.IntRange(1))
@with_json
def resend(ctx: click.Context, name: str, number: int) -> None:
    """Repeat a delivery, to the group's present webhook or addresses.

    Example:
      cod group resend physics 4711
    """
    value = client(ctx).post(path("groups", name, "deliveries", number, "resend"))
    shown(value, lambda one: delivery_table([one]))


group.add_command(invite, "invite")
