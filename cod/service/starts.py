"""The process that predicts the starts of waiting requests: `python -m cod.service.starts`.

It reads the arguments of `policy.reservations.starts.predicted` from its standard input, and writes
the result, both pickled. Only its parent has access to these pipes. It has the lowest priority, and
ends after `SECONDS` of processor time with the predictions that it has by then.
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
    """Read one question and write its answer."""
    os.nice(NICE)
    snapshot, policy, now, groups = pickle.load(sys.stdin.buffer)
    found = predicted(snapshot, policy, now, groups, go_on=lambda: time.process_time() < SECONDS)
    sys.stdout.buffer.write(pickle.dumps(found))


if __name__ == "__main__":
    main()
