"""Order and overlap of tests: the longest first, and no more that burn a core than cores can take."""

from __future__ import annotations

import fcntl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests import ledger, schedule
from tests.ledger import ROOT, Cost
from tests.schedule import KEEP, LongestFirst, Plan, Tokens, Turns, tokens_of, unit
from tests.waiting import until

LINE = 6  # tokens of the test's file: the byte behind theirs is the line
LONG, SHORT, WAITS = "tests/system/test_l.py", "tests/unit/test_s.py", "tests/net/test_w.py"
COSTS = {
    LONG: Cost(2, 50.0, 55.0),
    SHORT: Cost(4, 4.0, 4.0),
    WAITS: Cost(2, 1.0, 20.0),
    "tests/attack/test_many.py": Cost(2, 80.0, 40.0),
}
TESTS = [
    f"{SHORT}::test_1",
    f"{SHORT}::test_2",
    f"{WAITS}::test_1",
    f"{LONG}::test_1[a@b]@machines",
    f"{LONG}::test_2@machines",
    "tests/attack/test_many.py::test_1",
    "tests/attack/test_many.py::test_2",
]


@pytest.mark.parametrize(
    ("test", "right"),
    [
        (TESTS[0], SHORT),
        (TESTS[3], "machines"),
        (f"{SHORT}::test_3[a@b]", SHORT),
        (TESTS[5], TESTS[5]),  # of a long file without group
        ("tests/unit/test_new.py::test_1", "tests/unit/test_new.py"),
    ],
)
def test_what_goes_to_one_worker(test: str, right: str) -> None:
    assert unit(test, COSTS) == right


def started(tokens: int, running: list[str]) -> list[str]:
    """Units in the order in which they start beside `running`."""
    plan = Plan(TESTS, COSTS)
    waiting = [each for each in plan.costs if each not in running]
    order = []
    while waiting:
        order.append(plan.next(waiting, running, tokens))
        waiting.remove(order[-1])
    return order


def test_the_longest_starts_first() -> None:
    order = started(99, running=[])
    assert order[0] == "machines"
    assert set(order[1:3]) == set(TESTS[5:])
    assert order[3:] == [WAITS, SHORT]


def test_what_waits_starts_first_when_too_few_tokens_are_left() -> None:
    assert started(4 + 3, running=["machines"])[0] == TESTS[5]
    assert started(4 + 2, running=["machines"])[0] == WAITS


@pytest.mark.parametrize(
    ("cost", "right"),
    [
        (None, 4),  # an unknown file
        (COSTS[LONG], 4),
        (Cost(1, 7.0, 10.0), 3),
        (COSTS[WAITS], 0),
        (Cost(1, 90.0, 20.0), 5),  # several processes
    ],
)
def test_a_file_takes_a_token_for_each_quarter_of_a_core(cost: Cost | None, right: int) -> None:
    assert tokens_of(cost) == right


def test_the_dearest_file_finds_tokens_enough_on_one_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule, "cores", lambda: 1)
    assert schedule.supply() >= schedule.MOST


def test_an_unknown_file_has_a_length() -> None:
    assert Plan(["tests/unit/test_new.py::test_1"], {}).costs["tests/unit/test_new.py"].wall > 0


class Worker:
    """A worker as pytest-xdist's scheduler sees it, which writes down what it gets."""

    shutting_down = False

    def __init__(self) -> None:
        self.got: list[int] = []

    def send_runtest_some(self, indices: list[int]) -> None:
        self.got += indices

    def shutdown(self) -> None:
        self.shutting_down = True


def test_xdist_hands_out_units_in_this_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new release of pytest-xdist may call other methods; then no run is in order."""
    monkeypatch.setattr(ledger, "read", lambda: COSTS)
    monkeypatch.setattr(schedule, "supply", lambda: 6)
    option = SimpleNamespace(loadscopereorder=True)
    config: Any = SimpleNamespace(getvalue=lambda name: ["popen"], option=option)
    scheduler, worker = LongestFirst(config), Worker()
    scheduler.add_node(worker)
    scheduler.add_node_collection(worker, TESTS)
    scheduler.schedule()
    while [test for test in worker.got if test not in done(scheduler, worker)]:
        scheduler.mark_test_complete(worker, worker.got[len(done(scheduler, worker))])
    order = [unit(TESTS[index], COSTS) for index in worker.got]
    assert order == ["machines", "machines", WAITS, TESTS[5], TESTS[6], SHORT, SHORT]
    assert worker.shutting_down


def done(scheduler: LongestFirst, worker: Any) -> list[int]:
    """Return the tests that a worker has finished."""
    units = scheduler.assigned_work[worker].values()
    return [TESTS.index(test) for tests in units for test, ended in tests.items() if ended]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "tokens").touch()
    return tmp_path / "tokens"


TAKES = """
import sys
from pathlib import Path
from tests.schedule import Tokens
tokens = Tokens(Path(sys.argv[1]), int(sys.argv[2]))
for line in sys.stdin:
    what, *count = line.split()
    getattr(tokens, what)(*map(int, count))
    print(line.strip(), flush=True)
"""


class Other:
    """Another process that takes and gives tokens."""

    def __init__(self, file: Path, number: int) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", TAKES, str(file), str(number)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def says(self, what: str) -> None:
        """Begin to do it."""
        assert self.process.stdin
        print(what, file=self.process.stdin, flush=True)

    def did(self) -> str:
        """Wait until it is done."""
        assert self.process.stdout
        return self.process.stdout.readline().strip()

    def end(self) -> None:
        """Kill it."""
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def others(file: Path) -> Iterator[list[Other]]:
    others = [Other(file, LINE) for _ in range(4)]
    yield others
    for other in others:
        other.end()


def is_free(file: Path, token: int) -> bool:
    """Return whether nobody has that token (or, by its number, stands first in line)."""
    with file.open("r+b") as tokens:
        try:
            fcntl.lockf(tokens, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, token)
        except OSError:
            return False
        return True


@pytest.mark.slow  # four processes
def test_no_token_is_taken_twice_and_everybody_gets_theirs(others: list[Other], file: Path) -> None:
    first, second, third, fourth = others
    for other in (first, second):
        other.says("take 3")
        assert other.did() == "take 3"
    third.says("take 5")
    fourth.says("take 1")
    first.says("give")
    second.end()  # a worker that dies gives its tokens back
    assert (first.did(), third.did(), fourth.did()) == ("give", "take 5", "take 1")
    first.says("take 1")  # all are taken
    until(lambda: not is_free(file, LINE), "the first does not wait in line")
    third.says("take 6")  # gives its five back before it waits in line
    assert first.did() == "take 1"
    for other in (first, fourth):
        other.says("give")
        assert other.did() == "give"
    assert third.did() == "take 6"


class Counting(Tokens):
    """Tokens that write down what is done with them."""

    def __init__(self) -> None:
        self.done: list[str] = []

    def take(self, count: int) -> None:
        self.done.append(f"take {count}")

    def give(self) -> None:
        self.done.append("give")


def item(file: str, *marks: str) -> Any:
    """A test of a file."""
    return SimpleNamespace(
        nodeid=f"{file}::test", path=Path(file), get_closest_marker=lambda mark: mark in marks
    )


def ran(turns: Turns, test: Any, following: Any, tokens: Counting) -> list[str]:
    """Return what one test does with tokens, itself among it."""
    tokens.done.clear()
    running = turns.pytest_runtest_protocol(test, following)
    next(running)
    tokens.done.append("run")
    with pytest.raises(StopIteration):
        running.send(None)
    return list(tokens.done)


def test_what_waits_takes_no_token() -> None:
    tokens = Counting()
    turns = Turns(tokens, COSTS)
    assert ran(turns, item(WAITS), item(SHORT), tokens) == ["run"]


def test_short_tests_keep_a_token_for_a_while() -> None:
    tokens, now = Counting(), [0.0]
    turns = Turns(tokens, COSTS, lambda: now[0])
    assert ran(turns, item(SHORT), item(SHORT), tokens) == ["take 4", "run"]
    now[0] += KEEP
    assert ran(turns, item(SHORT), item(SHORT), tokens) == ["take 4", "run", "give"]
    assert ran(turns, item(SHORT), item(WAITS), tokens) == ["take 4", "run", "give"]
    assert ran(turns, item(SHORT), None, tokens) == ["take 4", "run", "give"]


def test_a_shared_stand_keeps_its_token_to_the_end_of_its_file() -> None:
    tokens, now = Counting(), [0.0]
    turns = Turns(tokens, COSTS, lambda: now[0])
    stand = item(LONG, "system")
    assert ran(turns, stand, stand, tokens) == ["take 4", "run"]
    now[0] += 100 * KEEP
    assert ran(turns, stand, stand, tokens) == ["take 4", "run"]
    assert ran(turns, stand, item("tests/system/test_x.py", "system"), tokens)[-1] == "give"


RUN = """
import time
import pytest
from tests.schedule import Turns

class Slow:
    def take(self, count):
        time.sleep(0.4)
        print("has waited")
    def give(self):
        pass

def pytest_configure(config):
    config.pluginmanager.register(Turns(Slow(), {}), "turns")
"""


@pytest.mark.slow  # a run of pytest
def test_the_wait_for_a_token_is_no_time_of_the_test(tmp_path: Path) -> None:
    """The time limit is half of the wait."""
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "waiter.py").write_text(RUN)
    (tmp_path / "test_one.py").write_text("def test_one(): pass\n")
    told = subprocess.run(
        [sys.executable, "-m", "pytest", "-s", "--timeout", "0.2", "-p", "waiter", "test_one.py"],
        cwd=tmp_path,
        env={"PYTHONPATH": f"{ROOT}:{tmp_path}", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
    )
    assert "has waited" in told.stdout
    assert told.returncode == 0, told.stdout


def test_workers_of_another_distribution_need_no_tokens() -> None:
    worker = {"workercount": 1000, "tokens": ""}
    config: Any = SimpleNamespace(workerinput=worker)
    schedule.pytest_configure(config)
