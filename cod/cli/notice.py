"""`cod notice`: notices to groups, and their deliveries."""

from __future__ import annotations

import time
from typing import Any

import click

from cod.choices import DeliveryState, NoticeMail
from cod.cli.show import (
    client,
    for_programs,
    newest_option,
    print_json,
    print_result,
    print_rich,
    shown,
    table,
    table_of,
    table_with,
    when,
    with_json,
    with_table,
)
from cod.client import Client, path

TEST_TIME = 30.0  # seconds that a test notice is waited for


@click.group()
def notice() -> None:
    """Notices to groups and to the site's administrators, and their delivery.

    Example:
      cod notice list --group physics
    """


notice_table = table_with(
    ("ID", "id"),
    ("AT", lambda v: when(v["at"])),
    ("TO", lambda v: v["group"] or "(site)"),
    ("KIND", "kind"),
    ("SUBJECT", "subject"),
    ("DELIVERY", lambda v: _in_short(v)),
)


def _in_short(value: Any) -> str | None:
    return ", ".join(f"{each['channel']} {each['state']}" for each in value["deliveries"]) or None


def delivery_table(value: Any) -> Any:
    """Return a notice's deliveries for people."""
    return table(
        ("CHANNEL", "TO", "STATE", "ATTEMPTS", "NEXT", "ERROR"),
        [
            (d["channel"], d["to"], d["state"], str(d["attempts"]), when(d["next_at"]), d["error"])
            for d in value["deliveries"]
        ],
    )


@notice.command("list")
@click.option("--group", help="Only notices to this group.")
@click.option("--vcluster", help="Only notices about this vcluster.")
@newest_option(100, 10_000)
@with_table
def list_(ctx: click.Context, group: str | None, vcluster: str | None, limit: int) -> None:
    """List the newest notices, oldest first.

    Example:
      cod notice list --vcluster web --json
    """
    shown(client(ctx).newest("/notices", limit, group=group, vcluster=vcluster), notice_table)


@notice.command()
@click.argument("number", metavar="ID", type=click.IntRange(1))
@with_json
def show(ctx: click.Context, number: int) -> None:
    """Show a notice and the state of its deliveries.

    Example:
      cod notice show 17
    """
    _show(client(ctx).get(path("notices", number)))


def _show(value: Any) -> None:
    if for_programs():
        print_json(value)
        return
    whom = f"group {value['group']}" if value["group"] else "the site's administrators"
    click.echo(
        f"{when(value['at'])}  {value['kind']}  to {whom}\n{value['subject']}\n\n{value['about']}\n"
    )
    print_rich(delivery_table(value))


@notice.command()
@click.argument("numbers", nargs=-1, metavar="[ID...]", type=click.IntRange(1))
@click.option("--all", "all_", is_flag=True, help="All that there are now.")
@with_json
def read(ctx: click.Context, numbers: tuple[int, ...], all_: bool) -> None:
    """Note that you have read notices. Without any, say how many you have not read.

    Example:
      cod notice read --all
    """
    if numbers and all_:
        raise click.UsageError("name notices, or --all")
    with client(ctx) as server:
        if all_:
            newest = server.newest("/notices", 1)
            body = {"until": max((one["id"] for one in newest), default=0)}
        else:
            body = {"ids": list(numbers)}
        asks = bool(numbers) or all_
        value = server.post("/me/notices/read", body) if asks else server.get("/me/notices")
    print_result(value, f"{value['unread']} unread")


@notice.command()
@click.argument("kinds", nargs=-1, metavar="[KIND...]")
@click.option("--all", "all_", is_flag=True, help="All kinds whose mail can be turned off.")
@click.option(
    "--when",
    type=click.Choice(NoticeMail.names()),
    help="When they come: at once, daily in one mail, never, or by default to the addresses that"
    " the group or the site names.",
)
@with_table
def mail(ctx: click.Context, kinds: tuple[str, ...], all_: bool, when: str | None) -> None:
    """Choose which kinds of notices come to you by mail. Without --when, show what you have chosen.

    Example:
      cod notice mail lease-warning node-lost --when at-once
      cod notice mail --all --when daily
    """
    if (when is None) == bool(kinds or all_) or (kinds and all_):
        raise click.UsageError("name kinds, or --all, together with --when")
    with client(ctx) as server:
        found = server.get("/me/notices/mail")["items"]
        if when:
            chosen = kinds or [one["kind"] for one in found if not one["stays"]]
            body = {"choices": [{"kind": kind, "mail": when} for kind in chosen]}
            found = server.patch("/me/notices/mail", body)["items"]
    shown(
        found,
        lambda rows: table_of(
            rows, ("KIND", "kind"), ("MAIL", "mail"), ("ABOUT", "about"), ("STAYS", "stays")
        ),
    )


@notice.command()
@click.argument("group")
@with_json
def test(ctx: click.Context, group: str) -> None:
    """Send a group a test notice, and wait for the first attempts. Exit code 1 unless all succeed.

    Example:
      cod notice test physics
    """
    with client(ctx) as server:
        value = tried(server, server.post(path("groups", group, "test-notice")))
    _show(value)
    ctx.exit(
        0 if all(each["state"] == DeliveryState.DELIVERED for each in value["deliveries"]) else 1
    )


def tried(server: Client, value: Any, seconds: float = TEST_TIME) -> Any:
    """Return the notice once each of its deliveries has arrived or failed for the first time, but
    after `seconds` at the latest."""
    end = time.monotonic() + seconds
    while (
        any(d["state"] == "waiting" and not d["error"] for d in value["deliveries"])
        and time.monotonic() < end
    ):
        time.sleep(0.2)
        value = server.get(path("notices", value["id"]))
    return value
