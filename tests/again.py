"""Run the files of the few tests that failed among all others once more, alone, and name those
tests if they pass then.

A whole run has thousands of tests on busy cores, and one that is unsteady would refuse a change
that it has nothing to do with. It is a fault all the same: its first failure stays in the output,
and it is named at the end. More than `FEW` failures are no chance, and get no second run.
"""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests import ledger

FEW = 3
FAILED = 1  # pytest's exit status when tests were run and some failed
LAST = Path(".pytest_cache/v/cache/lastfailed")
AGAIN = "TESTS_RUN_AGAIN"  # the ids of the failed tests, in the environment of their second run


def main(status: int, options: Sequence[str], last: Path = LAST) -> int:
    """Return the status of a run that ended with `status`, after the files of its failed tests were
    run again with the same `options`: 0 where all passed then. Whole files: a test may go on from
    what the one before it has left on a stand."""
    if status != FAILED or not last.exists():
        return status
    failed = [without_group(test) for test in json.loads(last.read_text())]
    if not 0 < len(failed) <= FEW:
        return status
    files = sorted({test.split("::")[0] for test in failed})
    print(f"\nOnce more, alone: {' '.join(files)}", flush=True)
    cost = ledger.LAST.read_bytes()  # of the whole run: it is what `make ledger` enters
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.again", *options, *files]
    environment = os.environ | {AGAIN: json.dumps(failed)}
    again = subprocess.run(command, check=False, env=environment).returncode
    ledger.LAST.write_bytes(cost)
    if again == 0:
        print("\nUNSTEADY: failed among all others, passed alone; each of these is to be mended:")
        print("\n".join(f"  {test}" for test in failed))
    return again


_not_passed: set[str] = set()


def pytest_configure() -> None:
    """Expect of a second run that each test that failed passes."""
    _not_passed.update(json.loads(os.environ.get(AGAIN, "[]")))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note what has passed."""
    if report.when == "call" and report.passed:
        _not_passed.discard(report.nodeid)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Have the run fail where a test that failed was skipped now, alone or with its file."""
    if _not_passed and session.exitstatus == 0:
        print(f"\nskipped in its second run: {', '.join(sorted(_not_passed))}")
        session.exitstatus = FAILED


def without_group(test: str) -> str:
    """Return a test's id without the group that xdist puts behind it: `file::test[a@b]@group`."""
    name, bracket, tail = test.rpartition("]")
    return name + bracket + tail.split("@")[0]


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
