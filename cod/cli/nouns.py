"""Commands that nouns share: list all things of a noun, and show, change or delete one by its
name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import click

from cod.cli.output import Table
from cod.cli.record_fields import body_of, options_named, set_options
from cod.cli.show import (
    client,
    print_result,
    shown,
    watched,
    watching,
    with_dry_run,
    with_json,
    with_table,
)
from cod.client import path

Values = list[Any]
by_name = click.argument("name")
by_number = click.argument("number", type=click.IntRange(1))


@dataclass(frozen=True, slots=True)
class Noun:
    """A noun of the API, whose commands each send one request. The caller gives each command its
    help text and examples.

    commands  the group that the commands are added to
    kind      the first part of its paths: "groups"
    table     returns the table of several things
    in_full   returns the view of one thing; None: a table with one row
    named     the arguments that name one thing
    place     returns the path of one thing
    """

    commands: click.Group
    kind: str
    table: Callable[[Values], Table]
    in_full: Callable[[Any], Any] | None = None
    named: Callable[[Any], Any] = by_name
    place: Callable[..., str] = path

    def list(self, about: str, *examples: str, watch: bool = False) -> None:
        """Add the command that lists all things; with `watch`, it has the option `--watch`."""

        @with_table
        def list_(ctx: click.Context, watch: bool = False) -> None:
            api = client(ctx)
            watched(lambda: api.every(path(self.kind)), self.table, watch)

        self._add("list", watching(list_) if watch else list_, about, *examples)

    def show(self, about: str, *examples: str) -> None:
        """Add the command that shows one thing."""

        def show(ctx: click.Context, **named: Any) -> None:
            shown(client(ctx).get(self.place(self.kind, *named.values())), self.one)

        options = with_json if self.in_full else with_table
        self._add("show", self.named(options(show)), about, *examples)

    def set(self, record: type, about: str, *examples: str) -> None:
        """Add the command that changes fields of one thing, by the descriptions of the record's
        fields."""

        @with_dry_run
        def set_(ctx: click.Context, /, name: str, **asked: Any) -> None:
            body = body_of(record, asked)
            if not body:
                raise click.UsageError(f"say what to set: {options_named(record)}")
            shown(client(ctx).patch(self.place(self.kind, name), body), self.one)

        self._add("set", self.named(set_options(record)(set_)), about, *examples)

    def delete(self, about: str, *examples: str) -> None:
        """Add the command that deletes one thing."""

        @with_dry_run
        def delete(ctx: click.Context, name: str) -> None:
            client(ctx).delete(self.place(self.kind, name))
            print_result({"name": name, "state": "deleted"}, f"{name}: deleted")

        self._add("delete", self.named(delete), about, *examples)

    def one(self, value: Any) -> Any:
        """Return the view of one thing for people."""
        return self.table([value]) if self.in_full is None else self.in_full(value)

    def _add(self, name: str, run: Callable[..., None], about: str, *examples: str) -> None:
        lines = "".join(f"\n  {example}" for example in examples)
        command = click.command(name, help=f"{about}\n\nExample:{lines}")
        self.commands.add_command(command(run))
