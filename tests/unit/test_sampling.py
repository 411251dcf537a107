"""The sample of tests on MariaDB: a fifth, the same for all workers of a day, and some always."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.sampling import always, chosen, day_of, in_turn, named, pytest_configure_node

TESTS = [f"tests/store/test_{n % 9}.py::test_{n}[mariadb]" for n in range(1000)]
DAYS = [f"2026-11-{day:02}" for day in range(1, 31)]


def test_a_day_has_a_fifth_and_a_month_nearly_all() -> None:
    assert 150 < sum(chosen(test, DAYS[0]) for test in TESTS) < 250
    assert [chosen(test, DAYS[0]) for test in TESTS] != [chosen(test, DAYS[1]) for test in TESTS]
    assert sum(any(chosen(test, day) for day in DAYS) for test in TESTS) > 990


def test_a_choice_is_the_same_in_every_process_and_group() -> None:
    """No seed of a process has to do with it: these are in the sample of that day."""
    found = [test for test in TESTS[:20] if chosen(test, "2026-11-26")]
    assert found == [TESTS[n] for n in (0, 2, 7, 8, 9, 17)]
    assert found == [test for test in TESTS[:20] if chosen(f"{test}@group", "2026-11-26")]


def test_a_worker_chooses_by_the_day_of_its_controller() -> None:
    """The worker has read its own arguments after midnight."""
    controller: Any = SimpleNamespace(option=SimpleNamespace(sample="2026-11-26"))
    node = SimpleNamespace(config=controller, workerinput={})
    pytest_configure_node(node)
    later = SimpleNamespace(sample="2026-11-27")
    worker: Any = SimpleNamespace(option=later, workerinput=node.workerinput)
    assert day_of(controller) == day_of(worker) == "2026-11-26"


@pytest.mark.parametrize(
    ("name", "right"),
    [
        ("threading", True),
        ("Thread", True),
        ("test_two_races", True),
        ("callFromThread", True),
        ("locked", True),
        ("json", True),
        ("block", False),
        ("test_a_site_traces", False),
        ("clock", False),
    ],
)
def test_names_that_say_that_the_database_matters(name: str, right: bool) -> None:
    assert named("test_this", name) == right


def item(name: str, function: Any, *marks: str) -> Any:
    """A test as pytest collects it."""
    return SimpleNamespace(
        nodeid=name, function=function, get_closest_marker=lambda mark: mark in marks
    )


def plain() -> None:
    """Stand for a test that only writes rows."""


def parallel() -> None:
    """Stand for a test whose inner function uses a lock."""

    def inner() -> None:
        lock.acquire()  # type: ignore[name-defined]  # noqa: F821

    inner()


def test_what_says_more_on_mariadb_always_runs() -> None:
    others = {"test_a[sqlite]"}
    assert not always(item("test_a[mariadb]", plain), others)
    assert always(item("test_a[mariadb]", parallel), others)
    assert always(item("test_a[mariadb]", plain, "mariadb_always"), others)
    assert always(item("test_b", plain), others)  # has no twin on SQLite
    assert always(item("test_b[mariadb]", plain), others)


class Marked:
    """Stands for a collected test of a file with the mark `in_turn(2, first=...)`; None: without
    it."""

    def __init__(self, path: str, first: int | None, **more: bool) -> None:
        self.path = path
        kwargs = {"first": first} | more
        self._mark = None if first is None else SimpleNamespace(args=(2,), kwargs=kwargs)

    def get_closest_marker(self, _: str) -> SimpleNamespace | None:
        return self._mark


def test_tests_that_take_turns_run_once_in_so_many_days() -> None:
    """Each day has its share of a file. A test's day is the same when its file runs alone, as it
    does after a failure."""
    one: list[Any] = [Marked("one", None if n % 3 == 0 else 0) for n in range(30)]
    other: list[Any] = [Marked("other", 1)]
    days = [set(one + other) - in_turn(one + other, day) for day in DAYS[:2]]
    assert [len(day & set(one)) for day in days] == [10 + 10, 10 + 10]
    assert [sum(each in day for day in days) for each in one] == [2, 1, 1] * 10
    assert [other[0] in day for day in days] == [one[1] not in day for day in days]
    assert [set(other) - in_turn(other, day) for day in DAYS[:2]] == [
        day & set(other) for day in days
    ]


def test_tests_of_one_dear_fixture_have_one_day() -> None:
    those: list[Any] = [Marked("deb", 0, together=True) for _ in range(4)]
    left = [len(in_turn(those, day)) for day in DAYS[:2]]
    assert sorted(left) == [0, 4]
