"""`cod node add`, `delete`, `import` and `export`: machines that COD knows before they boot."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from cod.cli.nodes.many import ChosenNodes, names_of, where_option
from cod.cli.record_fields import body_of, set_options
from cod.cli.show import (
    client,
    confirm,
    for_programs,
    print_json,
    print_result,
    print_table,
    with_json,
    yes_option,
)
from cod.client import ApiError, path
from cod.machine_lists import FORMATS, csv_file, reader
from cod.machine_lists.entry import ListedMachine, UnreadableList
from cod.model import KnownMachine
from cod.model.views import NodeView

MOST = 500  # machines in one request, as in `web.api.resources.inventory`


@click.command()
@click.argument("name")
@click.option(
    "--mac",
    "macs",
    multiple=True,
    help="MAC of a network card; several times for several, the one that boots first.",
)
@click.option("--uuid", help="UUID of the system, as its firmware (DMI) tells it.")
@click.option("--serial", help="Serial number of the system.")
@set_options(NodeView, new=True, without=("name",))
@with_json
def add(ctx: click.Context, /, name: str, macs: tuple[str, ...], **asked: Any) -> None:
    """Add a machine before it boots. It is adopted at its first network boot, by a MAC or by its
    UUID, or by its serial number once it reports.

    Example:
      cod node add r1-07 --mac 52:54:00:12:34:56 --block rack1 --power-driver ipmi
      --power-address 10.1.0.7 --power-account rack1
    """
    body = {"name": name, "macs": list(macs), **body_of(NodeView, asked)}
    value = client(ctx).post("/nodes", body)
    print_result(value, f"{name} is expected. Power it on to have it boot from the network.")


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@yes_option
@with_json
def delete(ctx: click.Context, names: tuple[str, ...], yes: bool) -> None:
    """Delete nodes that have never reported. Others are retired: `cod node retire`.

    Example:
      cod node delete r1-07
    """
    api = client(ctx)
    found = names_of(api, ChosenNodes(names))
    confirm(lambda: f"Delete {', '.join(found)}?", yes)
    for name in found:
        api.delete(path("nodes", name))
    print_result({"deleted": found}, f"Deleted {', '.join(found)}.")


@click.command("import")
@click.argument("format_", metavar="FORMAT", type=click.Choice(FORMATS))
@click.argument("file", type=click.Path(exists=True, allow_dash=True, path_type=Path))
@click.option("--dry-run", is_flag=True, help="Show what would be done, and change nothing.")
@click.option(
    "--account",
    metavar="NAME",
    help="The [[account]] of the site file by which the BMCs of the list are signed in to.",
)
@with_json
def import_(
    ctx: click.Context, format_: str, file: Path, dry_run: bool, account: str | None
) -> None:
    """Enter machines from a list, before or after they boot. A second import changes what changed.

    FORMAT is csv, dhcpd (ISC), kea, dnsmasq, ethers, warewulf (nodes.conf), xcat (stanzas, or a
    folder of tables), cobbler (a JSON file, or the folder of systems), maas, foreman or netbox.
    FILE - is standard input.

    Example:
      cod node import csv machines.csv --dry-run
      cod node import xcat nodes.stanza --account rack1
    """
    try:
        found = list(reader(format_)(file))
    except UnreadableList as error:
        raise click.ClickException(str(error)) from None
    machines = [each for each in found if isinstance(each, ListedMachine)]
    not_taken = [each for each in found if not isinstance(each, ListedMachine)]
    records = [asdict(machine.known(account or "")) for machine in machines]
    entries = [{key: value for key, value in record.items() if value} for record in records]
    places = [machine.where for machine in machines]
    outcomes = _enter(ctx, entries, places, "/inventory/check" if dry_run else "/inventory")
    if for_programs():
        replies = [{"where": place, **one} for place, one in zip(places, outcomes, strict=True)]
        print_json({"machines": replies, "not_taken": [asdict(fact) for fact in not_taken]})
    else:
        _print(places, outcomes, not_taken, dry_run)
    if not outcomes or any(one["outcome"] == "refused" for one in outcomes):
        ctx.exit(1)


def _enter(
    ctx: click.Context, entries: list[dict[str, Any]], places: list[str], route: str
) -> list[Any]:
    """POST the entries in parts; return the outcome of each. `places` are the entries' places in
    the list.

    Entries that share a name or identifier are sent first, so that they are in the same request
    where possible: the server refuses the later of two such entries only if both are in one
    request. Raises `ApiError` with the places of faults.
    """
    api, outcomes = client(ctx), dict[int, Any]()
    times = Counter(mark for each in entries for mark in _marks(each))
    single = [all(times[mark] == 1 for mark in _marks(each)) for each in entries]
    order = sorted(range(len(entries)), key=single.__getitem__)
    parts = [order[start : start + MOST] for start in range(0, len(order), MOST)]
    # click shows no bar in a pipe
    with click.progressbar(parts, label="Machines", file=sys.stderr, hidden=len(parts) < 2) as bar:
        for part in bar:
            try:
                answer = api.post(route, {"machines": [entries[number] for number in part]})
            except ApiError as error:
                errors = [_placed(one, [places[number] for number in part]) for one in error.errors]
                field = errors[0]["field"] if errors else error.field
                raise ApiError(error.status, error.code, error.detail, field, errors) from None
            outcomes.update(zip(part, answer["items"], strict=True))
    return [outcomes[number] for number in range(len(entries))]


def _placed(error: Any, places: list[str]) -> dict[str, Any]:
    """Return a fault of the request with the place in the list in place of the path,
    'machines.3.uuid'."""
    start, *rest = error["field"].split(".")
    if start != "machines" or not rest or not rest[0].isdigit():
        return dict(error)
    return {**error, "field": ", ".join([places[int(rest[0])], *rest[1:]])}


def _marks(entry: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the (field, value) pairs that no two entries should share. Serial numbers are left
    out, because some makers give all machines the same."""
    own = [(key, entry[key]) for key in ("name", "uuid") if key in entry]
    return own + [("mac", mac) for mac in entry.get("macs", ())]


def _print(places: list[str], outcomes: list[Any], not_taken: list[Any], dry_run: bool) -> None:
    """Print the outcomes of the machines at those places, without unchanged machines, and the facts
    of the list that are not taken over."""
    rows = [
        (place, machine["name"], machine["outcome"], machine["about"])
        for place, machine in zip(places, outcomes, strict=True)
        if machine["outcome"] != "unchanged"
    ]
    if rows:
        print_table(("WHERE", "NODE", "OUTCOME", "ABOUT"), rows)
    first = {(fact.what, fact.reason): fact.where for fact in reversed(not_taken)}
    times = Counter((fact.what, fact.reason) for fact in not_taken)
    if not_taken:
        print_table(
            ("NOT TAKEN", "TIMES", "FIRST", "WHY"),
            [(what, count, first[what, why], why) for (what, why), count in times.items()],
        )
    counts = Counter(machine["outcome"] for machine in outcomes)
    words = ", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items()))
    click.echo(f"{'Would be: ' if dry_run else ''}{words or 'The list has no machines'}.")


@click.command()
@where_option
@click.argument("names", nargs=-1, metavar="[NAME...]")
@with_json
def export(ctx: click.Context, names: tuple[str, ...], where: str) -> None:
    """Print nodes as a list that `cod node import csv` reads: all, or those that are named.

    Example:
      cod node export > machines.csv
      cod node export --where 'rack = r12' > r12.csv
    """
    meant = ChosenNodes(names, where)  # raises for a name that is empty, which would mean all
    asked = {"names": ",".join(meant.names), "where": meant.where}
    found = client(ctx).get("/inventory", **{key: text for key, text in asked.items() if text})
    if for_programs():
        print_json(found["machines"])
        return
    machines = [KnownMachine(**each) for each in found["machines"]]
    click.echo(csv_file.written(machines).replace("\r\n", "\n"), nl=False)
