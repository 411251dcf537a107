"""Run worlds by seed: ``python -m tests.world [--seed N | --seeds N | --forever]``.

A seed in which something is wrong is told as a story, its acts made as few as possible.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import time
from collections import Counter

from tests.world.lives import live, shrunk
from tests.world.world import Outcome

SECONDS = 90.0  # of wall time that many seeds may take
LEAST = 300  # steps of a world


def main() -> int:
    """Run worlds; return 1 where anything is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, help="run this world alone, and tell its story")
    parser.add_argument("--seeds", type=int, default=200, help="at most so many, in 90 seconds")
    parser.add_argument("--first", type=int, default=1, help="the first of them")
    parser.add_argument("--forever", action="store_true", help="until something is wrong")
    options = parser.parse_args()
    if options.seed is not None:
        outcome = live(options.seed)
        tell(outcome)
        return bool(outcome.troubles)
    return many(options.first, None if options.forever else options.seeds)


def many(first: int, most: int | None) -> int:
    """Run worlds from `first` on, at most so many in `SECONDS`; None: until one fails."""
    began, seen = time.monotonic(), Counter[str]()
    count = steps = transactions = short = 0
    for seed in itertools.count(first):
        if most is not None and (count == most or time.monotonic() - began >= SECONDS):
            break
        outcome = live(seed)
        count, seen = count + 1, seen + outcome.seen
        steps, transactions = steps + outcome.steps, transactions + outcome.transactions
        short += outcome.steps < LEAST
        if outcome.troubles:
            fail(outcome)
            return 1
        if most is None and count % 100 == 0:
            print(f"{count} seeds, {steps:,} steps", flush=True)
    spent = time.monotonic() - began
    print(
        f"{count} seeds from {first} on, {steps:,} steps ({steps // max(count, 1):,} a seed, fewer"
    )
    print(
        f"than {LEAST} in {short}), {transactions:,} transactions,"
        f" {steps / spent:,.0f} steps a second"
    )
    for name, times in sorted(seen.items(), key=lambda item: -item[1]):
        print(f"{times:8,} {name}")
    return 0


def fail(outcome: Outcome) -> None:
    """Tell what is wrong, as shortly as can be."""
    print(f"seed {outcome.seed}: {outcome.troubles[0]}; leaving out acts …", flush=True)
    skipped, shorter = shrunk(outcome.seed)
    tell(shorter)
    print(f"without the acts {sorted(skipped)}; the whole of it: make sim SEED={outcome.seed}")


def tell(outcome: Outcome) -> None:
    """Print a world's story."""
    print("\n".join(outcome.story))
    print(f"seed {outcome.seed}: {outcome.steps:,} steps, digest {outcome.digest}")
    for one in outcome.troubles:
        print(f"WRONG: {one}")


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":  # sets of names have the same order each time
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "tests.world", *sys.argv[1:]])
    sys.exit(main())
