"""Messages that are nearly right: what each protocol's attacks send, the same at every run."""

from __future__ import annotations

import os
import random
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

COUNT = int(os.environ.get("COD_ATTACK", "20000"))
"""Messages of each protocol; `make attack` sends a million."""


def mutants(good: Sequence[bytes], seed: int, number: int = COUNT) -> Iterator[bytes]:
    """Yield random bytes now and then; else a good message with some bytes changed, cut short, or with some put in."""
    rng = random.Random(seed)
    for _ in range(number):
        packet = bytearray(rng.choice(good))
        match rng.randrange(5):
            case 0:
                packet = bytearray(rng.randbytes(rng.randrange(1, 1400)))
            case 1:
                del packet[rng.randrange(len(packet)):]
            case 2:
                at = rng.randrange(len(packet))
                packet[at:at] = rng.randbytes(rng.randrange(1, 64))
            case _:
                for _ in range(rng.randrange(1, 5)):
                    packet[rng.randrange(len(packet))] = rng.randrange(256)
        yield bytes(packet)


def memory(pid: int | str = "self") -> int:
    """Return the KiB of memory that a process has."""
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1])


def descriptors(pid: int | str = "self") -> int:
    """Return how many descriptors a process has open."""
    return len(os.listdir(f"/proc/{pid}/fd"))
