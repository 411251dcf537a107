"""The page that enters a table of machines. It first shows what would change, and then makes the
change."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from cod.machine_lists import csv_file
from cod.machine_lists.entry import ListedMachine, NotTaken, UnreadableList
from cod.pool import Tx
from cod.web.api.calls import checked
from cod.web.api.resources.inventory import MOST, MachineEntry
from cod.web.api.routes import ADMINS, Names
from cod.web.http.errors import HttpProblem
from cod.web.portal.formatting import outcomes
from cod.web.portal.forms import Fields
from cod.web.portal.page import Page, PageCall, act

_PATH = "/machine-list"


@dataclass(frozen=True, slots=True)
class ReadTable:
    """Contents of a table: `entries` in the API's form; `places`, the place of each, such as `line
    7`; and `left`, the rows that cannot be entered."""

    entries: list[dict[str, Any]]
    places: list[str]
    left: list[NotTaken]


def read(text: str) -> ReadTable:
    """Return the contents of a table. Raises `HttpProblem` if the text is no table, or has too many
    machines."""
    entries: list[dict[str, Any]] = []
    places: list[str] = []
    left: list[NotTaken] = []
    try:
        for each in csv_file.read_text(text):
            if isinstance(each, NotTaken):
                left.append(each)
            elif (fault := _fault(each)) is not None:
                left.append(fault)
            else:
                entries.append(_entry(each))
                places.append(each.where)
            if max(len(entries), len(left)) > MOST:  # reading the rest could take seconds
                raise _wrong(f"the table has more than {MOST} machines: split it")
    except UnreadableList as error:
        raise _wrong(str(error)) from None
    if not entries:
        first = f": {left[0].where}, {left[0].what}: {left[0].reason}" if left else ""
        raise _wrong(f"the table names no machine{first}")
    return ReadTable(entries, places, left)


def _entry(machine: ListedMachine) -> dict[str, Any]:
    known = {key: value for key, value in asdict(machine.known()).items() if value}
    return known | {key: list(known[key]) for key in ("macs", "tags") if key in known}


def _fault(machine: ListedMachine) -> NotTaken | None:
    """Return why the machine cannot be an entry; None if it can."""
    try:
        checked(MachineEntry, _entry(machine))
    except HttpProblem as wrong:
        return NotTaken(machine.where, wrong.field or machine.name, wrong.detail)
    return None


def _wrong(sentence: str) -> HttpProblem:
    return HttpProblem(422, "invalid", sentence, "list", {"list": sentence})


def _load(tx: Tx, ask: PageCall[Names]) -> dict[str, Any]:
    return {"read": read}


def _with_file(fields: Fields) -> Fields:
    """Return the fields with the text of the file as the text of the table."""
    text = fields.one("file") or fields.one("list")
    kept = {name: texts for name, texts in fields.values.items() if name != "file"}
    return replace(fields, values=kept | {"list": [text]})


def _look(fields: Fields) -> dict[str, Any]:
    return {"machines": read(fields.one("list")).entries}


PAGES = (Page(_PATH, "machine-list.html", _load, ADMINS, nav="/nodes"),)
ACTIONS = (
    act(
        f"{_PATH}/check",
        "POST /inventory/check",
        _PATH,
        again=_PATH,
        edit=_with_file,
        body=_look,
    ),
    act(
        _PATH,
        "POST /inventory",
        _PATH,
        lambda ask, reply: f"Machines of the table: {outcomes(reply.items)}.",
        then=lambda ask, reply: "/nodes",
        body=lambda fields: _look(fields) | {"checked": fields.one("checked")},
    ),
)
