"""Play all cases and print what each measures, beside what it was before:
``python -m tests.attack.table``. Exit code 1 where a promise is broken."""

from __future__ import annotations

import os
import sys

from rich.console import Console
from rich.table import Table

from cod.lab import cleaner
from tests.attack.cases import CASES, FULL_DISK, Case


def number(value: float | None) -> str:
    """Return a measure as the table shows it."""
    return "-" if value is None else f"{value:.2f}" if value % 1 else f"{value:.0f}"


def is_kept(case: Case, value: float) -> bool:
    """Return whether what was measured is what is promised."""
    return case.most is None or value <= case.most


def main() -> int:
    """Print the table; return whether a promise is broken."""
    cleaner.start()
    table = Table("Case", "Measures", "2026-11-23", "Now", "At most", box=None, pad_edge=False)
    broken = 0
    for case in CASES:
        if case.name == FULL_DISK and os.geteuid() != 0:  # mounts a small disk
            table.add_row(case.name, case.measures, case.before, "needs root", number(case.most))
            continue
        value = case.play()
        broken += not is_kept(case, value)
        table.add_row(case.name, case.measures, case.before, number(value), number(case.most))
    Console(width=140).print(table)
    return bool(broken)


if __name__ == "__main__":
    sys.exit(main())
