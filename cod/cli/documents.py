"""`cod apply`, `cod diff`, `cod get`: the site's configuration as documents in YAML files."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import Any

import click

from cod.cli.show import as_json as as_json_option
from cod.cli.show import client, for_programs, insist, print_json, with_json, yes_option
from cod.client import ApiError
from cod.quantity import counted

_COLOURS = {"+": "green", "-": "red", "@": "cyan"}
_MARKS = {"create": "+", "change": "~", "delete": "-"}

files = click.option(
    "-f",
    "--file",
    "paths",
    multiple=True,
    required=True,
    metavar="PATH",
    help="File, folder of *.yaml files, or - for standard input; several times for several.",
)
prunes = click.option(
    "--prune",
    is_flag=True,
    help="Delete what was applied from documents before and is in none of these.",
)


@click.command()
@files
@prunes
@with_json
def diff(ctx: click.Context, paths: tuple[str, ...], prune: bool) -> None:
    """Show what applying documents would change. Exit code 1 if something differs.

    Example:
      cod diff -f site.d/
    """
    found = _Documents(ctx, paths, prune).ask("check")
    _print(found)
    ctx.exit(1 if found["changes"] else 0)


@click.command()
@files
@prunes
@click.option("--dry-run", is_flag=True, help="Show what would be done, and change nothing.")
@yes_option
@with_json
def apply(
    ctx: click.Context, paths: tuple[str, ...], prune: bool, dry_run: bool, yes: bool
) -> None:
    """Make the site as documents say: all of them, or nothing. Shows what differs, and asks.

    Example:
      cod apply -f site.d/
      cod apply -f site.d/ --prune --yes
    """
    documents = _Documents(ctx, paths, prune)
    found = documents.ask("check")
    idle = not found["changes"] and not found["adopted"]
    if dry_run or idle or not for_programs():
        _print(found)
    if dry_run or idle:
        return
    insist(_question(found), yes or not found["changes"])
    done = documents.ask("apply", plan=found["plan"])
    if for_programs():
        print_json(done)
    elif done["changes"]:
        click.echo(f"Applied {counted(len(done['changes']), 'change')}.")


@click.command()
@click.argument("kinds", metavar="KIND")
@click.argument("name", required=False)
@click.option(
    "-o",
    "--output",
    type=click.Choice(["yaml", "json"]),
    default="yaml",
    show_default=True,
    help="Format.",
)
@as_json_option
@click.pass_context
def get(ctx: click.Context, kinds: str, name: str | None, output: str, as_json: bool) -> None:
    """Print the site's configuration as documents that `cod apply` takes. Secrets are left out.

    KIND is group, member, type, share, block, template, volume, port or vcm, several with commas
    between, or all.

    Example:
      cod get all > site.yaml
      cod get group physics
    """
    from cod.cli.site_files import written  # the YAML writer is slow to load

    asked = None if kinds == "all" else kinds
    items = client(ctx).every("/documents", kind=asked, name=name)
    if as_json or output == "json":
        print_json([_document(each) for each in items])
        return
    texts = []
    for each in items:
        hidden = "".join(
            f"# {field}: it is set, and left out because it has a secret\n"
            for field in each["hidden"]
        )
        texts.append(written(_document(each)) + hidden)
    click.echo("---\n".join(texts), nl=False)


def _document(item: Any) -> dict[str, Any]:
    return {"kind": item["kind"], "name": item["name"], **item["fields"]}


class _Documents:
    """The documents in files, and the server's replies about them."""

    def __init__(self, ctx: click.Context, paths: tuple[str, ...], prune: bool) -> None:
        """Read the files."""
        from cod.cli.site_files import UnreadableDocuments, read  # slow to load

        try:
            self._documents = read(paths)
        except UnreadableDocuments as error:
            raise click.ClickException(str(error)) from None
        self._api, self._prune = client(ctx), prune

    def ask(self, what: str, **also: Any) -> Any:
        """Return the changes that the server makes, or would make. Raises `ApiError` with the
        places of faults in the files."""
        values = [each.values for each in self._documents]
        try:
            return self._api.post(
                f"/documents/{what}", {"documents": values, "prune": self._prune, **also}
            )
        except ApiError as error:
            if error.status == 412:
                sentence = "the site was changed meanwhile, and nothing was applied: compare again"
                raise ApiError(error.status, error.code, sentence) from None
            errors = [{**one, "field": self._place(one["field"])} for one in error.errors]
            field = errors[0]["field"] if errors else error.field
            raise ApiError(error.status, error.code, error.detail, field, errors) from None

    def _place(self, field: str) -> str:
        """Return FILE:LINE and the field of a fault, given its path in the request, such as
        'documents.3.priority'."""
        first, _, rest = field.partition(".")
        number, _, path = rest.partition(".")
        if first != "documents" or not number.isdigit():
            return field
        place = self._documents[int(number)].place(path)
        return f"{place}: {path}" if path else place


def _question(found: Any) -> str:
    actions = Counter(each["action"] for each in found["changes"])
    parts = [f"{action} {actions[action]}" for action in _MARKS if actions[action]]
    return f"{', '.join(parts).capitalize()}?"


def _print(found: Any) -> None:
    if for_programs():
        print_json(found)
        return
    for each in found["changes"]:
        click.secho(f"{_MARKS[each['action']]} {each['kind']} {each['thing']}", bold=True)
        for field in each["fields"]:
            for line in _lines(field["field"], field["before"], field["after"]):
                click.secho(f"  {line}", fg=_COLOURS.get(line[:1]))
    if not found["changes"]:
        click.echo("Nothing differs.")
    if left := [f"{each['kind']} {each['thing']}" for each in found["left"]]:
        click.echo(
            f"Applied before, and in no document now: {', '.join(left)}. "
            "--prune deletes such things."
        )


def _lines(field: str, before: Any, after: Any) -> Iterator[str]:
    """Yield the lines of a unified diff of a field's values."""
    from cod.cli.site_files import written

    was, is_ = (
        [] if value is None else written({field: value}).splitlines() for value in (before, after)
    )
    if before is not None and after is None:
        is_ = [f"{field}: null"]
    several = max(len(was), len(is_)) > 4
    for line in islice(difflib.unified_diff(was, is_, n=2, lineterm=""), 2, None):  # no header
        if several or not line.startswith("@"):
            yield line
