"""A machine of `bench_fanout` in its namespace: a stand-in whose agent keeps of an image only its
beginning.

The agent is the product's: it asks the server for its order, fetches, checks and unpacks all
chunks. Only what it would write to its disk goes nowhere, so that a hundred gigabytes cost no disk;
the first chunk names the system that the stand-in boots afterwards. Each line on its console begins
with the time, by the clock that all processes of this host share.
"""

from __future__ import annotations

import sys
import time

from cod.lab import standin
from trampoline import ctramp
from trampoline.options import parse
from trampoline.target import Target

KEPT = 1 << 20  # bytes of the disk
# Bytes of chunks that a node keeps for others: a machine takes half of what it has, and all nodes
# share one host's here.
MEMORY = 128 << 20


class Machine(standin.StandIn):
    """A stand-in whose agent is this module."""

    agent = "tests.bench.fanout_node"


def log(line: str) -> None:
    """Print a line of the agent's, and when."""
    print(f"{time.monotonic():.3f} agent: {line}", flush=True)


def agent() -> int:
    """Run the agent with a disk that keeps only its beginning."""
    write = Target.write

    def sink(target: Target, data: memoryview, offset: int) -> None:
        if offset < KEPT:
            write(target, data, offset)

    Target.write = sink  # type: ignore[method-assign, assignment]
    ctramp.log = log
    return ctramp.main(ctramp.Options(**parse(), memory=MEMORY))


if __name__ == "__main__":
    if "--folder" in sys.argv:
        standin.main(Machine)
    else:
        sys.exit(agent())
