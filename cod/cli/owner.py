"""The group that a new thing belongs to. That is the group of `--group`, or else the site for an
administrator, and for everybody else the only group that they work in."""

from __future__ import annotations

import click

from cod.client import Client

group_option = click.option(
    "--group",
    help="Owner. [default: your group if you have only one; for administrators, the site]",
)


def owner(api: Client, group: str | None, site: str = "") -> str:
    """Return the group's name; `site` means the site. Raises UsageError if the person works in
    several groups."""
    if group is not None:
        return group
    me = api.get("/me")
    own = [each["group"] for each in me["groups"] if each["role"] in ("owner", "member")]
    if me["admin"] or not own:
        return site
    if len(own) > 1:
        raise click.UsageError(f"say for which group: --group {' or --group '.join(own)}")
    return str(own[0])
