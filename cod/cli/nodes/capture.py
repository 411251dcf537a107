"""`cod node capture`: makes a node's disk an image and a template."""

from __future__ import annotations

from typing import Any

import click

from cod.cli.nodes.follow import follow
from cod.cli.nodes.many import name_of
from cod.cli.show import (
    client,
    node_word,
    shown,
    size,
    table_with,
    when,
    with_json,
    with_table,
)
from cod.cli.wait import wait_option
from cod.client import path

OVER = ("done", "failed", "cancelled")


class NotCaptured(click.ClickException):
    """Exit code 1: the capture failed, or was cancelled."""


@click.command()
@click.argument("name")
@click.option("--image", help="Name of the image; a group's is GROUP/NAME.")
@click.option("--template", help="Name of the template; '' for none. [default: the image's name]")
@click.option(
    "--group", help="Owner of both; '' for the site. [default: the group that holds the node]"
)
@click.option(
    "--partition",
    type=click.IntRange(1, 128),
    help="Save this partition alone, without a template.",
)
@click.option(
    "--map",
    "of_map",
    is_flag=True,
    help="Save the map of the partitions and the boot code alone, without a template.",
)
@click.option(
    "--cancel", is_flag=True, help="Cancel the capture; the node returns to its previous state."
)
@wait_option
@with_json
def capture(
    ctx: click.Context,
    name: str,
    image: str | None,
    template: str | None,
    group: str | None,
    partition: int | None,
    of_map: bool,
    cancel: bool,
    wait: bool,
    timeout: float,
) -> None:
    """Save a node's disk as an image, and make a template that writes it to other nodes. Without
    --image: show progress.

    An active node reboots for the capture, and then continues as before. A node without a power
    driver waits until somebody reboots it. The capture changes nothing on the disk, and leaves out
    the node's seed (its name, keys and passwords).

    Example:
      cod node capture n7 --image web-golden --wait
      cod node capture n7 --image web-root --partition 3
      cod node capture n7 --cancel
    """
    api = client(ctx)
    name = name_of(api, name)
    place = path("nodes", name, "capture")
    if cancel:
        value = api.delete(place)
    elif image is None:
        value = api.get(place)
    else:
        asked = {
            "image": image,
            "template": template,
            "group": group,
            "partition": partition,
            "map": of_map or None,
        }
        value = api.post(place, {key: given for key, given in asked.items() if given is not None})
    if wait and not cancel:
        value = follow(api, place, "capture", OVER, timeout)
    shown(value, facts)
    if wait and value["state"] != "done":
        raise NotCaptured(f"{name} was not captured: {value['reason']}")


@click.command()
@with_table
def captures(ctx: click.Context) -> None:
    """List the newest capture of each node.

    Example:
      cod node captures
    """
    shown(
        client(ctx).every("/captures"),
        table_with(
            ("NODE", "node"),
            ("IMAGE", "image"),
            ("TEMPLATE", "template"),
            ("GROUP", "group"),
            ("STATE", about),
            ("ASKED", lambda v: when(v["asked_at"])),
            ("ENDED", lambda v: when(v["ended_at"])),
            ("REASON", "reason"),
        ),
    )


def facts(value: Any) -> Any:
    """Return a capture for people."""
    from rich.text import Text

    return Text(
        "\n".join(
            f"{key:<9} {text}"
            for key, text in (
                ("node", f"{value['node']} ({node_word(value['node_state'])})"),
                ("image", value["image"]),
                ("of", part(value["what"])),
                ("template", value["template"] or "none"),
                ("group", value["group"] or "site"),
                ("state", about(value)),
                ("asked", f"{when(value['asked_at'])} by {value['actor']}"),
                ("ended", when(value["ended_at"])),
                ("reason", value["reason"]),
            )
            if text
        )
    )


def part(what: str) -> str:
    """Return the part of a disk that is captured, for people; '' for the whole disk."""
    return f"partition {what}" if what.isdecimal() else "the partition map" if what else ""


def about(value: Any) -> str:
    """'running 41 % 120.0 MiB/s'."""
    if value["state"] != "running" or not value["total"]:
        return str(value["state"])
    return f"running {100 * value['done'] // value['total']} % {size(value['rate'])}/s"
