"""Order and overlap of test files under pytest-xdist, as a plugin of pytest.

Tests with an `xdist_group` are one unit, all other tests of a file are one, which makes what its
tests share once. Units start longest first, by the kept ledger (`tests/ledger.py`). A unit that
burns a core takes as many tokens as it uses quarters of a core on average; workers for which too
few are left run units that mostly wait.
"""

from __future__ import annotations

import fcntl
import math
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import pytest
from xdist.scheduler import LoadGroupScheduling

from tests import ledger
from tests.ledger import Cost

BURNS = 0.6  # of a core's time: from there on a file's tests need tokens
QUARTERS = 4  # tokens of a core
LEAST, MOST = 3, 5  # tokens of a file that needs any: two of the dearest fit beside each other
UNKNOWN = 10.0  # seconds that a file which is not in the ledger may last
SPLIT = 60.0  # seconds from which on the tests of a file without group go to several workers
KEEP = 2.0  # seconds for which a worker keeps its tokens over short tests
LOOK = 0.02  # seconds between two looks at the tokens


def tokens_of(cost: Cost | None) -> int:
    """Return the quarters of a core that a file's tests use on average; none where they mostly
    wait."""
    if cost is None:
        return QUARTERS
    if cost.cpu <= BURNS * cost.wall:
        return 0
    return min(MOST, math.ceil(QUARTERS * cost.cpu / max(cost.wall, 0.1)))


def supply() -> int:
    """Return how many tokens there are: half a core's more than there are cores, because also those
    who burn one wait at times."""
    return cores() * QUARTERS + QUARTERS // 2


def length(cost: Cost) -> float:
    """Return the seconds that tests last at least, on a machine that does nothing else. The wall
    time of several processes that wait for a core at once is too small."""
    return max(cost.cpu, cost.wall)


def unit(nodeid: str, costs: Mapping[str, Cost]) -> str:
    """Return the unit of a test: its group, its file, or the test itself in a long file."""
    if nodeid.rfind("@") > nodeid.rfind("]"):
        return nodeid.rsplit("@", 1)[1]
    file = _file(nodeid)
    return nodeid if file in costs and length(costs[file]) > SPLIT else file


def _file(nodeid: str) -> str:
    return nodeid.split("::", 1)[0]


class Plan:
    """Units with what they are expected to last, and which to start next."""

    def __init__(self, nodeids: Sequence[str], costs: Mapping[str, Cost]) -> None:
        number: dict[str, int] = {}
        for nodeid in nodeids:
            number[_file(nodeid)] = number.get(_file(nodeid), 0) + 1
        self.costs: dict[str, Cost] = {}
        for nodeid in nodeids:
            file = _file(nodeid)
            cost = costs.get(file, Cost(cpu=UNKNOWN, wall=UNKNOWN))
            share = Cost(cpu=cost.cpu / number[file], wall=cost.wall / number[file])
            name = unit(nodeid, costs)
            self.costs[name] = self.costs.get(name, Cost()) + share

    def next(self, waiting: Collection[str], running: Collection[str], tokens: int) -> str:
        """Return the longest unit that waits to start; of those that need no tokens, when too few
        are left for any other."""
        left = tokens - sum(tokens_of(self.costs[each]) for each in running)
        light = [each for each in waiting if left < LEAST and not tokens_of(self.costs[each])]
        return max(light or waiting, key=lambda each: length(self.costs[each]))


class LongestFirst(LoadGroupScheduling):
    """The scheduler of `--dist loadgroup`, with files as groups and the longest first."""

    def __init__(self, config: pytest.Config, log: Any = None) -> None:
        super().__init__(config, log)
        self._known = ledger.read()
        self._plan: Plan | None = None

    def _split_scope(self, nodeid: str) -> str:
        return unit(nodeid, self._known)

    def _assign_work_unit(self, node: Any) -> None:
        if self._plan is None:
            self._plan = Plan(self.collection or (), self._known)
        running = [
            name
            for units in self.assigned_work.values()
            for name, tests in units.items()
            if not all(tests.values())
        ]
        self.workqueue.move_to_end(self._plan.next(self.workqueue, running, supply()), last=False)
        super()._assign_work_unit(node)


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0))


class Tokens:
    """Tokens that workers take: locks on the bytes of a file, which the kernel releases when a
    worker dies.

    Workers wait in line: only the first takes tokens, so that no worker which runs many short
    tests, or needs few, keeps the others out.
    """

    def __init__(self, path: Path, number: int) -> None:
        self._file: IO[bytes] = path.open("r+b")
        self._number = number
        self._held: set[int] = set()

    def take(self, count: int) -> None:
        """Wait until this worker has at least so many tokens."""
        if len(self._held) >= count:
            return
        self.give()  # who keeps some while it waits in line may keep the first from going on
        fcntl.lockf(self._file, fcntl.LOCK_EX, 1, self._number)  # the line
        while True:
            self._take_free(count)
            if len(self._held) >= count:
                break
            time.sleep(LOOK)
        fcntl.lockf(self._file, fcntl.LOCK_UN, 1, self._number)

    def _take_free(self, count: int) -> None:
        for token in set(range(self._number)) - self._held:
            if len(self._held) >= count:
                return
            try:
                fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, token)
            except OSError:
                continue
            self._held.add(token)

    def give(self) -> None:
        """Give back all tokens that this worker has."""
        for token in self._held:
            fcntl.lockf(self._file, fcntl.LOCK_UN, 1, token)
        self._held.clear()


class Turns:
    """Takes tokens for tests that burn a core, before any time limit of the test begins.

    A stand that a file shares goes on while its tests wait: such a file (mark `system`) keeps its
    tokens to its end. Other files let go after `KEEP` seconds.
    """

    def __init__(
        self,
        tokens: Tokens,
        costs: Mapping[str, Cost],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tokens = tokens
        self._costs = costs
        self._clock = clock
        self._since: float | None = None

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> Generator[None, object, object]:
        """Run a test with the tokens that it needs."""
        if not (count := self._needs(item)):
            return (yield)
        self._tokens.take(count)
        if self._since is None:
            self._since = self._clock()
        try:
            return (yield)
        finally:
            if not self._keeps(item, nextitem):
                self._tokens.give()
                self._since = None

    def _needs(self, item: pytest.Item) -> int:
        return tokens_of(self._costs.get(_file(item.nodeid)))

    def _keeps(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool:
        if nextitem is None or self._since is None or not self._needs(nextitem):
            return False
        if item.get_closest_marker("system"):
            return item.path == nextitem.path
        return self._clock() - self._since < KEEP and not nextitem.get_closest_marker("system")


_FOLDER = pytest.StashKey[Path]()


def pytest_configure(config: pytest.Config) -> None:
    """Make the run's tokens, in the controller; use them, in workers of which there are more than
    cores."""
    worker = getattr(config, "workerinput", None)
    if worker is not None:
        if worker["tokens"] and worker["workercount"] > cores():
            tokens = Tokens(Path(worker["tokens"]), supply())
            config.pluginmanager.register(Turns(tokens, ledger.read()), "turns")
    elif getattr(config.option, "dist", "no") == "loadgroup":
        folder = config.stash[_FOLDER] = Path(tempfile.mkdtemp(prefix="cod-tokens-"))
        (folder / "tokens").touch()
        config.add_cleanup(lambda: shutil.rmtree(folder))


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell a worker where the run's tokens are."""
    folder = node.config.stash.get(_FOLDER, None)
    node.workerinput["tokens"] = str(folder / "tokens") if folder else ""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LongestFirst | None:
    """Use the longest-first order with `--dist loadgroup`."""
    return LongestFirst(config, log) if config.option.dist == "loadgroup" else None
