"""The script that COD runs on a file server for one volume, and its answer.

The functions are in `volume.sh` and, for each driver, `ganesha.sh` or `kernel.sh`. This module adds
the values that they work on, quoted for the shell. The last line calls one function with the word
`end`, so that nothing of a script runs that arrives cut short.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from shlex import quote

from cod.choices import FileServerDriverKind
from cod.model import FileServer, WantedVolume

NOTHING: Mapping[str, str] = dict.fromkeys(
    (
        "id",
        "kind",
        "number",
        "path",
        "size",
        "sequence",
        "may_make",
        "source",
        "gid",
        "clients",
        "homes",
        "snapshots",
        "dropped",
        "erase",
        "sec",
    ),
    "",
)


def apply(server: FileServer, wanted: WantedVolume) -> str:
    """Return the script that brings the volume on its file server into the wanted state."""
    return _script(
        server,
        "apply",
        {
            "id": str(wanted.id),
            "kind": wanted.kind,
            "number": str(wanted.export_id),
            "path": wanted.path,
            "size": str(wanted.size),
            "sequence": str(wanted.sequence),
            "may_make": _flag(wanted.may_make),
            "source": wanted.source,
            "gid": "" if wanted.gid is None else str(wanted.gid),
            "clients": "\n".join(
                f"{one.network} {'ro' if one.read_only else 'rw'}" for one in wanted.clients
            ),
            "homes": "\n".join(f"{one.name} {one.uid} {one.gid}" for one in wanted.homes),
            "snapshots": " ".join(wanted.snapshots),
            "dropped": " ".join(wanted.dropped),
            "erase": _flag(wanted.erase),
            "sec": wanted.sec,
        },
    )


def listing(server: FileServer) -> str:
    """Return the script that lists what the file server exports."""
    return _script(server, "list", {})


def withdrawal(server: FileServer, number: int) -> str:
    """Return the script that withdraws an export of no volume."""
    return _script(server, "withdraw_stray", {"number": str(number), "sequence": "0"})


def exported(output: str) -> dict[int, int]:
    """Return the sequence numbers of exports by their numbers, from the answer to `listing`."""
    found = {}
    for line in output.splitlines():
        key, _, value = line.partition("=")
        number, _, sequence = value.partition(" ")
        if key == "export" and number.isdecimal() and sequence.isdecimal():
            found[int(number)] = int(sequence)
    return found


def value(output: str, key: str) -> str:
    """Return the last value of `key` in an answer; '' where the answer has none."""
    return next(
        (
            line.partition("=")[2]
            for line in reversed(output.splitlines())
            if line.startswith(f"{key}=")
        ),
        "",
    )


def _flag(yes: bool) -> str:
    return "yes" if yes else "no"


def _script(server: FileServer, function: str, values: Mapping[str, str]) -> str:
    own = {
        "root": server.root,
        "exports": server.exports or FileServerDriverKind(server.driver).exports,
        "squash": server.squash,
    }
    assignments = "\n".join(
        f"{name}={quote(text)}" for name, text in {**NOTHING, **own, **values}.items()
    )
    return f"{_functions(server.driver)}\n{assignments}\n{function} end\n"


@cache
def _functions(driver: str) -> str:
    folder = Path(__file__).parent
    return (folder / "volume.sh").read_text() + (folder / f"{driver}.sh").read_text()
