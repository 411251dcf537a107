"""Messages that are nearly right: what each protocol's attacks send, the same at every run."""

from __future__ import annotations

import os
import random
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

COUNT = int(os.environ.get("COD_ATTACK", "10000"))
"""Messages of each protocol; `make attack` sends a million."""


def mutants(good: Sequence[bytes], seed: int, number: int = COUNT) -> Iterator[bytes]:
    """Yield random bytes now and then; else a good message with some bytes changed, cut short, or
    with some put in."""
    rng = random.Random(seed)
    for _ in range(number):
        packet = bytearray(rng.choice(good))
        match rng.randrange(5):
            case 0:
                packet = bytearray(rng.randbytes(rng.randrange(1, 1400)))
            case 1:
                del packet[rng.randrange(len(packet)) :]
            case 2:
                at = rng.randrange(len(packet))
                packet[at:at] = rng.randbytes(rng.randrange(1, 64))
            case _:
                for _ in range(rng.randrange(1, 5)):
                    packet[rng.randrange(len(packet))] = rng.randrange(256)
        yield bytes(packet)


VALUES: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    1,
    -1,
    2**31,
    2**63,
    10**30,
    -(2**64),
    0.5,
    -0.0,
    1e308,
    1e-320,
    float("nan"),
    float("inf"),
    "",
    " ",
    "\0",
    "\ud800",
    "\u202e",
    "\ufffe",
    "é",
    "名",
    "..",
    "/etc/passwd",
    "%00",
    "a" * 64,
    "A" * 5000,
    "-",
    "1",
    "1e9",
    "nan",
    "a\nb",
    "a,b",
    "*",
    "'",
    '"',
    "<x/>",
    "&a;",
    "2026-11-22T00:00:00Z",
    [],
    [[]],
    {},
    {"a": {}},
    [None],
    [1, "a"],
    ["a"] * 300,
    {"": 1},
)
"""What a field of a message may hold in place of what it should."""


def changed(value: Any, rng: random.Random) -> Any:
    """Return a JSON value with one place of it changed: another value, one more, one less, or its
    text mutated."""
    if isinstance(value, dict) and value and rng.random() < 0.9:
        name = rng.choice(sorted(value))
        others = {key: each for key, each in value.items() if key != name}
        match rng.randrange(12):
            case 0:
                return others
            case 1:
                return value | {
                    rng.choice([*sorted(value), "x", "", "__class__"]): rng.choice(VALUES)
                }
            case _:
                return value | {name: changed(value[name], rng)}
    if isinstance(value, list) and value and rng.random() < 0.8:
        at = rng.randrange(len(value))
        return [*value[:at], changed(value[at], rng), *value[at + rng.randrange(2) :]]
    if isinstance(value, str) and value and rng.random() < 0.5:
        return next(mutants([value.encode(errors="replace")], rng.getrandbits(32), 1)).decode(
            "latin-1"
        )
    return rng.choice(VALUES)


def memory(pid: int | str = "self") -> int:
    """Return the KiB of memory that a process has."""
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1])


def descriptors(pid: int | str = "self") -> int:
    """Return how many descriptors a process has open."""
    return len(os.listdir(f"/proc/{pid}/fd"))
