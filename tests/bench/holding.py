"""What it costs, and what it brings, to hold nodes back for large requests: `python -m
tests.bench.holding`.

Four blocks of 16 nodes; small jobs of one, two and four nodes come all the time, altogether for
nine tenths of the nodes, and every six hours one that wants twelve of a block; all of one priority.
Leases are up to two and a half hours, and jobs are over when 70 % to 100 % of theirs is.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from cod.model import Policy
from tests.unit.stream import Stream, crowd

DAYS, LARGE, HOUR = 4, 12, 3600.0


def run(hold_after: float) -> tuple[list[float], list[float], float, int]:
    """Hours that large and small jobs waited, the share of the nodes' time that was used, large
    jobs never served."""
    jobs = crowd(
        1,
        DAYS,
        64,
        [((6 * number + 5) * HOUR + 7, LARGE) for number in range(4 * DAYS - 1)],
        early=0.7,
    )
    stream = Stream([16] * 4, jobs, Policy(hold_after=hold_after, drain_grace=0.0))
    for _ in stream.run(DAYS * 86400):
        pass
    sizes = {
        number: job.count for number, job in enumerate(sorted(jobs, key=lambda job: job.at), 1)
    }
    large = [wait / HOUR for number, wait in stream.waits.items() if sizes[number] == LARGE]
    small = [wait / HOUR for number, wait in stream.waits.items() if sizes[number] < LARGE]
    return (
        large,
        small,
        stream.utilisation,
        sum(size == LARGE for size in sizes.values()) - len(large),
    )


def _figures(waits: Sequence[float]) -> str:
    return f"{statistics.mean(waits):.1f} h, {max(waits):.1f} h" if waits else "-"


def main() -> None:
    print(
        "| hold_after | large jobs waited (mean, longest) | never served | small jobs waited |"
        " nodes' time used |"
    )
    print("|---|---|---:|---|---:|")
    for hold_after in (0.0, 1800.0, 3600.0, 14400.0):
        large, small, used, never = run(hold_after)
        print(
            f"| {hold_after:,.0f} s | {_figures(large)} | {never} | {_figures(small)} |"
            f" {used:.1%} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
