"""`cod completion`, and the names that a shell offers: of nodes, clusters and other things, from
the server's lists."""

from __future__ import annotations

import hashlib
import json
import time
from contextlib import suppress
from typing import Any

import click
from click.shell_completion import CompletionItem, get_completion_class

from cod.cli.local_files import cache_folder, write_private
from cod.cli.logins import named_server
from cod.cli.show import client_of
from cod.client import ApiError, Unreachable, path

PATIENCE = 1.0  # seconds for each step of asking the server
FRESH = 20.0  # seconds for which names are kept
MOST = 200  # names
PLACES = {
    "node": "/nodes",
    "vcluster": "/vclusters",
    "type": "/types",
    "block": "/blocks",
    "switch": "/switches",
    "image": "/images",
    "template": "/templates",
    "volume": "/volumes",
    "group": "/groups",
    "user": "/users",
    "series": "/series",
}
"""Where the API lists the things of a noun."""
_SAME = {"source": "vcluster", "target": "vcluster", "names": "", "name": ""}
_NEW = ("create", "add", "import", "make")  # commands whose NAME is a new one
_SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(_SHELLS))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print what makes a shell complete commands, options and names.

    Names of nodes, clusters, templates and other things are those that the server lists.

    Example:
      cod completion bash > /etc/bash_completion.d/cod
      eval "$(cod completion bash)"
      cod completion zsh > /usr/local/share/zsh/site-functions/_cod
      cod completion fish > ~/.config/fish/completions/cod.fish
    """
    made = get_completion_class(shell)
    assert made is not None
    click.echo(made(ctx.find_root().command, {}, "cod", "_COD_COMPLETE").source())


class _NameType(click.ParamType[str]):
    """The name of a thing in one of the server's lists."""

    name = "name"

    def __init__(self, place: str) -> None:
        self._place = place

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem[str]]:
        """Return the names that begin with `incomplete`; none if no server answers at once."""
        return _items(ctx, self._place, incomplete)


class _ReachedType(click.ParamType[str]):
    """A cluster, and then one of its nodes."""

    name = "name"

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem[str]]:
        """Return clusters; after a cluster, the host names of its nodes."""
        words = ctx.params.get("words") or ()
        return _items(ctx, path("vclusters", words[0]) if words else "/vclusters", incomplete)


def offer_names(noun: str, command: click.Command) -> None:
    """Make a command's arguments and options that name things of the server offer their names, and
    also those of the commands below it."""
    if isinstance(command, click.Group):
        for below in command.commands.values():
            offer_names(noun, below)
    for each in command.params:
        if each.type is not click.STRING or each.name is None:
            continue
        if noun == "ssh" and each.name == "words":
            each.type = _ReachedType()
            continue
        new = each.name in ("name", "names") and command.name in _NEW
        meant = _SAME.get(each.name, each.name.removesuffix("s")) or noun
        if not new and meant in PLACES:
            each.type = _NameType(PLACES[meant])


def _items(ctx: click.Context, place: str, incomplete: str) -> list[CompletionItem[str]]:
    names: list[str] = []
    with suppress(ApiError, Unreachable, click.ClickException, OSError):
        names = _names(ctx, place, incomplete)
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]


def _names(ctx: click.Context, place: str, incomplete: str) -> list[str]:
    """Return names from the cache if they were fetched in the last seconds, else from the
    server."""
    with client_of(named_server(ctx.find_root()), PATIENCE) as api:
        asked = json.dumps([api.server, place, incomplete])
        file = cache_folder() / f"names-{hashlib.sha256(asked.encode()).hexdigest()[:32]}"
        with suppress(OSError, ValueError):
            if 0 <= time.time() - file.stat().st_mtime < FRESH:
                kept: list[str] = json.loads(file.read_text())
                return kept
        query: dict[str, Any] = {"limit": MOST, "q": incomplete or None}
        if place.count("/") > 1:
            names = [node["hostname"] or node["name"] for node in api.get(place)["nodes"]]
        else:
            names = [each["name"] for each in api.get(place, **query)["items"]]
    _forget_old()
    write_private(file, json.dumps(names))
    return names


def _forget_old() -> None:
    """Delete cached names that are too old to be offered."""
    for file in cache_folder().glob("names-*"):
        with suppress(OSError):
            if time.time() - file.stat().st_mtime > FRESH:
                file.unlink()
