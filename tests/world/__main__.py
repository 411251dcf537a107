"""Run worlds by seed: ``python -m tests.world [--seed N | --seeds N | --forever | --sum FILE …]``.

One seed is told in its short form, or, with `--long`, in its long one; of many, each tenth has its
long form.
A seed in which something is wrong is told as a story, its acts made as few as possible, with the
options that run it again, and the line that makes a test of it.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from itertools import islice
from pathlib import Path

from tests.world import table
from tests.world.lives import live, row_of, story, told
from tests.world.plan import plan

SECONDS = 90.0  # of wall time in which many seeds begin


def main(words: Sequence[str] | None = None) -> int:
    """Run worlds; return 1 where anything is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, help="run this world alone, and tell its story")
    parser.add_argument("--only", type=int, nargs="*", help="with these of its acts alone")
    parser.add_argument("--calm", action="store_true", help="its network and database are well")
    parser.add_argument("--long", action="store_true", help="the long form of each")
    parser.add_argument(
        "--seeds", type=int, default=200, help="at most so many, begun in 90 seconds"
    )
    parser.add_argument("--first", type=int, default=1, help="the first of them")
    parser.add_argument("--forever", action="store_true", help="until it is stopped")
    parser.add_argument("--minutes", type=float, default=1e9, help="stop after that many")
    parser.add_argument("--processes", type=int, default=os.cpu_count(), help="at a time")
    parser.add_argument("--table", type=Path, default=Path("build/worlds.jsonl"))
    parser.add_argument("--sum", type=Path, nargs="+", help="print the sums of tables")
    options = parser.parse_args(words)
    if options.seed is not None:
        short = not options.long
        acts = set(range(len(plan(options.seed, short=short).acts)))
        skip = acts.difference(options.only) if options.only is not None else ()
        outcome = live(options.seed, skip, calm=options.calm, short=short)
        print(story(outcome))
        return bool(outcome.troubles)
    if options.sum:
        print(table.summed(table.read(options.sum)))
        return 0
    if options.forever:
        rows = table.read([options.table])
        worlds = table.left(rows, options.first, long=options.long)
        seconds = 60.0 * options.minutes
    else:
        rows, seconds = [], SECONDS
        worlds = islice(table.left(rows, options.first, long=options.long), options.seeds)
    return many(options.table, rows, worlds, options.processes, seconds)


def many(
    file: Path,
    rows: list[table.WorldRow],
    worlds: Iterator[tuple[int, bool]],
    processes: int,
    seconds: float,
) -> int:
    """Run `worlds`, each of which gets a row in the table, until it is stopped or `seconds` have
    passed; tell of each in which something is wrong; print the sums of them and of the `rows`
    before. Return 1 where anything is wrong in one of them."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    end, running = time.monotonic() + seconds, set[Future[table.WorldRow | str]]()
    with ProcessPoolExecutor(processes, max_tasks_per_child=200) as pool:
        try:
            while True:
                if time.monotonic() < end:
                    for world in islice(worlds, processes - len(running)):
                        running.add(pool.submit(row_of, *world))
                if not running:
                    break
                done, running = wait(running, return_when=FIRST_COMPLETED)
                for result in (each.result() for each in done):
                    if isinstance(result, str):
                        print(result, flush=True)
                        continue
                    table.add(file, result)
                    rows.append(result)
                    if result.troubles:
                        name = table.world_name(result.seed, result.short)
                        print(f"{name}: {result.troubles[0]}; leaving out acts …", flush=True)
                        running.add(pool.submit(told, result.seed, result.short))
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
    print(table.summed(rows))
    return any(row.troubles for row in rows if row.program == table.program())


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":  # sets of names have the same order each time
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "tests.world", *sys.argv[1:]])
    sys.exit(main())
