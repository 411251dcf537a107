"""The table of worlds that were run: a line of JSON for each, appended as it ends, so that a run
that is killed loses nothing, the next one goes on where it was, and several are summed."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from hashlib import blake2b
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ("cod", "trampoline", "tests/world")


@dataclass(frozen=True)
class WorldRow:
    """What came of one world. `program`: a digest of the code that ran in it; `cpu`: seconds of
    processor time; `seconds`: of its own time; `short`: whether it was the seed's short form."""

    seed: int
    program: str
    steps: int
    transactions: int
    cpu: float
    seconds: float
    seen: dict[str, int]
    troubles: list[str]
    short: bool = False


@cache
def program() -> str:
    """Return a digest of the code that worlds are made of: by another one, a seed means another
    world."""
    found = blake2b(digest_size=6)
    for path in sorted(path for part in PROGRAM for path in (ROOT / part).rglob("*.py")):
        found.update(f"{path.relative_to(ROOT)}\n".encode() + path.read_bytes())
    return found.hexdigest()


def add(file: Path, row: WorldRow) -> None:
    """Append a row."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a+b") as lines:
        if lines.tell():
            lines.seek(-1, 2)
            if lines.read() != b"\n":  # a run was killed in the middle of a line
                lines.write(b"\n")
        lines.write(json.dumps(asdict(row)).encode() + b"\n")


def read(files: Iterable[Path]) -> list[WorldRow]:
    """Return the rows of tables; half a line is left out."""
    found = []
    for file in files:
        for line in file.read_text().splitlines() if file.exists() else ():
            with suppress(ValueError):
                found.append(WorldRow(**json.loads(line)))
    return found


def left(
    rows: Iterable[WorldRow], first: int = 1, *, long: bool = False
) -> Iterator[tuple[int, bool]]:
    """Yield each seed from `first` on, and whether it means its short form (`is_short`), that this
    program has not run yet."""
    run = {(row.seed, row.short) for row in rows if row.program == program()}
    worlds = ((seed, is_short(seed, long=long)) for seed in itertools.count(first))
    return (world for world in worlds if world not in run)


def world_name(seed: int, short: bool) -> str:
    """Return the world's name on the command line of `make sim`."""
    return f"SEED={seed}" + ("" if short else " LONG=1")


def is_short(seed: int, *, long: bool = False) -> bool:
    """Return whether many worlds have this one in its short form: each tenth has its long one, or
    all, where `long`."""
    return not long and seed % 10 != 0


def summed(rows: Iterable[WorldRow]) -> str:
    """Return the sums of rows, each run of a world by a program counted once, as a table in
    Markdown, with what was wrong in which seed. A world that several programs ran is one world:
    where nothing of it has changed, its steps are the same in each."""
    worlds = {(row.program, row.seed, row.short): row for row in rows}.values()
    steps, cpu = sum(row.steps for row in worlds), sum(row.cpu for row in worlds)
    seen = sum((Counter(row.seen) for row in worlds), Counter[str]())
    wrong = [row for row in worlds if row.troubles]
    lines = [
        "| Quantity | Value |",
        "|---|--:|",
        f"| Programs | {len({row.program for row in worlds}):,} |",
        f"| Worlds | {len({(row.seed, row.short) for row in worlds}):,} |",
        f"| of them in their short form | {len({row.seed for row in worlds if row.short}):,} |",
        f"| Runs of them | {len(worlds):,} |",
        f"| Steps | {steps:,} |",
        f"| Fewest steps of a world | {min((row.steps for row in worlds), default=0):,} |",
        f"| Transactions | {sum(row.transactions for row in worlds):,} |",
        f"| Hours of the worlds' own time | {sum(row.seconds for row in worlds) / 3600:,.1f} |",
        f"| Hours of processor time | {cpu / 3600:,.2f} |",
        f"| Steps a second of processor time | {steps / cpu if cpu else 0:,.0f} |",
        f"| Runs in which something is wrong | {len(wrong):,} |",
        *(f"| {name} | {times:,} |" for name, times in sorted(seen.items(), key=_most)),
    ]
    return "\n".join(
        [
            *lines,
            *(
                f"WRONG in {world_name(row.seed, row.short)} of {row.program}: {row.troubles[0]}"
                for row in wrong
            ),
        ]
    )


def _most(item: tuple[str, int]) -> tuple[int, str]:
    return -item[1], item[0]
