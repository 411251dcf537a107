"""Holds any virtual cluster manager, or a server, to docs/nmp: ``python -m tests.conformance
[options] -- COMMAND …``.

Prints a table of the page's clauses, each passed, failed or not tried; the exit status is 1 if any
has failed. docs/nmp-kit says how an author uses it.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.conformance.clauses import CLAUSES
from tests.conformance.kit import Failed, Kit, NotTried
from tests.conformance.server import Server
from tests.conformance.server_clauses import SERVER_CLAUSES


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of a clause: passed, failed or not tried, and why."""

    section: str
    clause: str
    result: str
    why: str = ""


def judge(kit: Kit | Server, only: str = "") -> list[Verdict]:
    """Try every clause of VCMs, or of servers, (whose section or text has `only` in it), one after
    the other."""
    found = []
    try:
        for one in CLAUSES if isinstance(kit, Kit) else SERVER_CLAUSES:
            if only.lower() not in f"{one.section} {one.says}".lower():
                continue
            result, why = "passed", ""
            try:
                one.attempt(kit)
            except Failed as failed:
                result, why = "failed", str(failed)
            except NotTried as missing:
                result, why = "not tried", str(missing)
            if result == "failed":
                kit.end()  # the next one begins with a VCM that nothing has happened to
            found.append(Verdict(one.section, one.says, result, why))
    finally:
        kit.end()
    return found


def main(words: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.conformance", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument(
        "--wants",
        default="",
        metavar="COMMAND",
        help=(
            "shell command, run in the VCM's folder, after "
            "which it wants {count} nodes in all; without it some clauses are not tried"
        ),
    )
    parser.add_argument(
        "--more",
        type=Path,
        metavar="FILE",
        help="text to be added to vcm.toml; {folder} is filled in",
    )
    parser.add_argument(
        "--patience", type=float, default=30.0, metavar="SECONDS", help="for what it should do"
    )
    parser.add_argument(
        "--only", default="", metavar="TEXT", help="the clauses that have this in them"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--server",
        type=Path,
        metavar="FOLDER",
        help="hold the server to the page that this folder of `cod vcm enroll` names, not a VCM",
    )
    parser.add_argument(
        "command",
        nargs="*",
        help=(
            "the VCM's, after --; {config} and {folder} are filled in, else the "
            "configuration file comes last"
        ),
    )
    options = parser.parse_args(words)
    more = options.more.read_text() if options.more else ""
    if bool(options.server) == bool(options.command):
        parser.error("either --server or a VCM's command")
    kit = (
        Server(options.server, options.patience)
        if options.server
        else Kit(options.command, options.wants, more, options.patience)
    )
    found = judge(kit, options.only)
    if options.json:
        print(json.dumps([asdict(one) for one in found], indent=1))
    else:
        show(found)
    return int(any(one.result == "failed" for one in found))


def show(found: Sequence[Verdict]) -> None:
    """Print the table."""
    width = max((len(one.section) for one in found), default=0)
    for one in found:
        print(
            f"{one.result:9}  {one.section:{width}}  {one.clause}"
            + (f"\n{'':11}{one.why}" if one.why else "")
        )
    counts = {
        result: sum(one.result == result for one in found)
        for result in ("passed", "failed", "not tried")
    }
    print(", ".join(f"{count} {result}" for result, count in counts.items()))


if __name__ == "__main__":
    sys.exit(main())
