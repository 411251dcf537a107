"""`cod settings`: the site's settings, and changes of them on all servers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from cod.cli.nouns import Noun
from cod.cli.show import client, shown, table_of, table_with, when, with_json, with_table
from cod.client import path


@click.group()
def settings() -> None:
    """Settings of the site: keys of the site file, some of which can be changed here.

    Example:
      cod settings set policy.inertia 10min
    """


settings_table = table_with(
    ("SETTING", "name"),
    ("VALUE", "text"),
    ("DEFAULT", "default_text"),
    ("FROM", "source"),
    ("CHANGED", lambda v: when(v["changed_at"])),
    ("CONFLICT", lambda v: "yes" if v["problem"] else ""),
)


def setting_in_full(one: Mapping[str, Any]) -> Any:
    """Return a setting and its changes, for people."""
    from rich.console import Group

    sentences = [one["about"], one["problem"], one["fixed"]]
    changes = table_of(
        one["changes"],
        ("ID", lambda v: str(v["id"])),
        ("WHEN", lambda v: when(v["at"])),
        ("WHO", "actor"),
        ("VALUE", "text"),
    )
    return Group(settings_table([one]), *filter(None, sentences), changes)


Noun(settings, "settings", settings_table, setting_in_full).show(
    "Show a setting: what it means, whether it can be changed, and its changes.",
    "cod settings show policy.inertia",
)


@settings.command("list")
@click.option("--changed", is_flag=True, help="Only those that were changed.")
@click.option("--open", "opened", is_flag=True, help="Only those that can be changed.")
@with_table
def list_(ctx: click.Context, changed: bool, opened: bool) -> None:
    """List the settings, and where their values come from: default, file or change.

    Example:
      cod settings list --changed
    """
    found = client(ctx).get("/settings")["items"]
    wanted = [
        each
        for each in found
        if not (changed and each["changed_at"] is None) and not (opened and each["fixed"])
    ]
    shown(wanted, settings_table)


@settings.command("set")
@click.argument("name")
@click.argument("value", required=False)
@click.option("--site-file", is_flag=True, help="Go by the site file again.")
@with_json
def set_(ctx: click.Context, name: str, value: str | None, site_file: bool) -> None:
    """Change a setting on all servers of the site, without a restart.

    VALUE is written as people write it: 10min, 500GB, yes, or a list with commas.

    Example:
      cod settings set policy.inertia 10min
      cod settings set policy.inertia --site-file
    """
    if site_file == (value is not None):
        raise click.UsageError("give VALUE or --site-file")
    shown(client(ctx).patch(path("settings", name), {"value": value}), setting_in_full)


@settings.command()
@click.argument("name")
@click.option("--change", type=int, help="Id of the change. Left out: the newest.")
@with_json
def undo(ctx: click.Context, name: str, change: int | None) -> None:
    """Put back what a setting was before a change.

    Example:
      cod settings undo policy.inertia
    """
    api = client(ctx)
    if change is None:
        changes = api.get(path("settings", name))["changes"]
        if not changes:
            raise click.ClickException(f"{name} was never changed here")
        change = changes[0]["id"]
    shown(api.post(path("settings", name, "undo"), {"change": change}), setting_in_full)
