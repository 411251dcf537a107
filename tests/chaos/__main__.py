"""See the package."""

from __future__ import annotations

import argparse
import json
import random
import signal
import sys
import time
from pathlib import Path

from cod.lab import cleaner
from tests.chaos.faults import FAULTS
from tests.chaos.run import ChaosRun
from tests.chaos.site import running

ONE_HOST = {1: "sqlite", 2: "mariadb"}  # databases by how many servers use them


def main() -> None:
    """Run, and print what came of it; exit 1 where anything was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--hosts", type=int, choices=(1, 2), default=2, help="1: with SQLite")
    parser.add_argument("--machines", type=int, default=12)
    several = parser.add_mutually_exclusive_group()
    several.add_argument("--galera", action="store_true", help="three nodes of it, not one MariaDB")
    several.add_argument("--pair", action="store_true", help="a primary with its replica")
    parser.add_argument("--faults", nargs="+", choices=FAULTS, default=list(FAULTS))
    parser.add_argument("--keep", type=Path, help="copy the servers' logs to this folder")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(2))  # what was mounted is unmounted
    told = sys.stderr if options.json else sys.stdout
    print(f"seed {options.seed}, {options.minutes:g} minutes", file=told, flush=True)
    cleaner.start()
    one = ONE_HOST[options.hosts]
    database = "galera" if options.galera else "pair" if options.pair else one
    with running(hosts=options.hosts, machines=options.machines, database=database) as site:
        try:
            run = ChaosRun(site, options.seed, lambda line: print(line, file=told, flush=True))
            end = time.monotonic() + 60 * options.minutes
            outcome = run.run(lambda _: time.monotonic() < end, options.faults)
        finally:
            for server in site.servers if options.keep else ():
                (options.keep / f"{server.name}.log").write_bytes(server.log.read_bytes())
    if outcome.violations:
        print(*outcome.story, "", *outcome.violations[:100], sep="\n", file=told)
    print(json.dumps(outcome.as_json()) if options.json else outcome)
    sys.exit(bool(outcome.violations))


if __name__ == "__main__":
    main()
