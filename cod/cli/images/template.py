"""`cod template`: configuration templates."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from xml.etree import ElementTree

import click

from cod.cli.local_files import TEXT_FILE, text_of
from cod.cli.nouns import Noun
from cod.cli.owner import group_option, owner
from cod.cli.record_fields import fields_table
from cod.cli.show import (
    client,
    for_programs,
    if_missing_option,
    print_json,
    print_result,
    shown,
    there_is,
    with_dry_run,
    with_json,
)
from cod.client import full_name, path_of
from cod.model.software import Template

file_argument = click.argument("file", type=TEXT_FILE)


@click.group()
def template() -> None:
    """Configuration templates: which images, on which disks, for which hardware (XML).

    Example:
      cod template check web.xml && cod template add web.xml
    """


COLUMNS = ("name", "revision", "created_at", "retired_at", ("digest", lambda v: v["digest"][:16]))
template_table = partial(fields_table, Template, columns=COLUMNS)
Noun(template, "templates", template_table).list(
    "List templates, newest revision of each.", "cod template list"
)


@template.command()
@click.argument("name", metavar="[GROUP/]NAME[@REVISION]")
@with_json
def show(ctx: click.Context, name: str) -> None:
    """Print a template's document.

    Example:
      cod template show physics/web@2
    """
    value = client(ctx).get(path_of("templates", name))
    print_result(value, value["document"])


@template.command()
@file_argument
@group_option
@if_missing_option
@with_json
def add(ctx: click.Context, file: Path, group: str | None, if_missing: bool) -> None:
    """Add the template in FILE; - is standard input. The document holds its name; a changed
    document becomes a new revision.

    Example:
      cod template add web.xml --group physics
    """
    api = client(ctx)
    document, group = text_of(file), owner(api, group)
    value = None
    if if_missing and (name := _name(document)):
        value = there_is(api, path_of("templates", full_name(name, group)))
    if value is None:
        value = api.post("/templates", {"document": document, "group": group})
    shown(value, lambda v: template_table([v]))


@template.command()
@file_argument
@group_option
@with_json
def check(ctx: click.Context, file: Path, group: str | None) -> None:
    """Check the template in FILE, and list its errors by line; - is standard input. Exit code 1 if
    there are any. Nothing is stored.

    Example:
      cod template check web.xml
    """
    api = client(ctx)
    value = api.post("/templates/check", {"document": text_of(file), "group": owner(api, group)})
    if for_programs():
        print_json(value)
    elif value["ok"]:
        click.echo(f"{file}: good")
    for fault in () if for_programs() else value["faults"]:
        # 0: of no line of its own
        click.echo(f"{file}:{fault['line'] or 1}: {fault['sentence']}", err=True)
    sys.exit(0 if value["ok"] else 1)


@template.command()
@click.argument("name", metavar="[GROUP/]NAME[@REVISION]")
@with_dry_run
def retire(ctx: click.Context, name: str) -> None:
    """Retire a template, or one revision, that nothing uses.

    Example:
      cod template retire physics/web@1
    """
    gone = client(ctx).delete(path_of("templates", name))["items"]
    print_result(gone, "\n".join(f"{each['name']}@{each['revision']}: retired" for each in gone))


def _name(document: str) -> str:
    """Return the name in the document; '' if the document is wrong, which the server will
    report."""
    try:
        return ElementTree.fromstring(document).get("name", "")
    except ElementTree.ParseError:
        return ""
