"""The process that reckons the starts of waiting requests: `python -m cod.service.starts`.

It reads the arguments of `policy.reservations.starts.predicted` from its standard input, and
writes what that returns, both pickled; its parent is the only one that speaks to it. It is as nice
as can be, and ends after `SECONDS` of processor time with what it knows by then.
"""

from __future__ import annotations

import os
import pickle
import sys
import time

from cod.policy.reservations.starts import predicted

SECONDS = 30.0
NICE = 19


def main() -> None:
    """Answer one question."""
    os.nice(NICE)
    snapshot, policy, now, groups = pickle.load(sys.stdin.buffer)
    found = predicted(snapshot, policy, now, groups, go_on=lambda: time.process_time() < SECONDS)
    sys.stdout.buffer.write(pickle.dumps(found))


if __name__ == "__main__":
    main()
