"""/etc/ethers: a MAC and a name on each line. If a line has an address in place of the name, the
file `hosts` beside it, or else /etc/hosts, gives the name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from cod.machine_lists.entry import ListedMachine, NotTaken, label, text_of
from cod.model import mac_of


def read(path: Path) -> Iterator[ListedMachine | NotTaken]:
    """Yield the machines of the lines."""
    beside = path.parent / "hosts"
    names = _names(beside if beside.exists() else Path("/etc/hosts"))
    for number, line in enumerate(text_of(path).splitlines(), 1):
        where, words = f"line {number}", line.split("#")[0].split()
        if not words:
            continue
        # ethers(5) leaves out leading zeros: 0:1a:2b:3:4:5
        mac = mac_of(":".join(each.zfill(2) for each in words[0].split(":"))) or mac_of(words[0])
        if mac is None or len(words) < 2:
            yield NotTaken(where, line.strip(), "it is no line of a MAC and a name")
        elif words[1][0].isdigit() and words[1].count(".") == 3 and words[1] not in names:
            yield NotTaken(where, words[1], "no name of this address is in the file hosts")
        else:
            yield ListedMachine(where, label(names.get(words[1], words[1])), (mac,))


def _names(path: Path) -> dict[str, str]:
    """Return the first name of each address of a file like /etc/hosts."""
    lines = text_of(path).splitlines() if path.exists() else []
    rows = (line.split("#")[0].split() for line in lines)
    return {row[0]: row[1] for row in rows if len(row) > 1}
