"""Sample of the tests that run on MariaDB, as a plugin of pytest.

Nearly all of them run on SQLite too. With `--sample today` a fifth of them runs on MariaDB, chosen
by name and day, beside those in which the database itself matters: tests that run on MariaDB alone,
tests marked `mariadb_always`, and tests that name threads, locks, races, digests or JSON. Tests
with the mark `in_turn(N)` run on one day of N each. Without the option all run. A day in
place of `today` (2026-11-26) chooses as on that day.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Container, Iterable, Iterator
from datetime import UTC, date, datetime
from pathlib import Path
from types import CodeType
from typing import Any

import pytest

ONE_OF = 5
WORDS = {"thread", "lock", "race", "barrier", "digest", "json"}
"""In a test's name or in the names that it uses; a plural or a verb's form of one as well."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option."""
    parser.addoption(
        "--sample",
        type=_day,
        metavar="DAY",
        help="run a fifth of MariaDB's tests, by the day (or: today)",
    )


def _day(text: str) -> str:
    return (
        datetime.now(UTC).date().isoformat() if text == "today" else str(date.fromisoformat(text))
    )


def pytest_configure(config: pytest.Config) -> None:
    """Sum up, in the process that reports."""
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Summary(), "sampling-summary")


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell a worker the day: workers that read it themselves would not agree at midnight."""
    node.workerinput["sample"] = node.config.option.sample


def day_of(config: pytest.Config) -> str | None:
    """Return the day by which the run chooses, or None: all tests run."""
    worker: dict[str, str | None] | None = getattr(config, "workerinput", None)
    return config.option.sample if worker is None else worker["sample"]


def chosen(nodeid: str, day: str) -> bool:
    """Return whether the day's sample has a test."""
    digest = hashlib.sha256(f"{day} {nodeid.split('@', 1)[0]}".encode()).digest()
    return int.from_bytes(digest[:8]) % ONE_OF == 0


def in_turn(items: Iterable[pytest.Item], day: str) -> set[pytest.Item]:
    """Return the tests marked `in_turn(N)` whose turn is not the day's. Those of a file follow one
    another day by day, or have one day `together`; `first` is the place of the file's first."""
    number = date.fromisoformat(day).toordinal()
    left_out, places = set[pytest.Item](), Counter[Path]()
    for item in items:
        if (mark := item.get_closest_marker("in_turn")) is not None:
            place = mark.kwargs.get("first", 0)
            place += 0 if mark.kwargs.get("together") else places[item.path]
            if (place + number) % mark.args[0]:
                left_out.add(item)
            places[item.path] += 1
    return left_out


def always(item: pytest.Item, nodeids: Container[str]) -> bool:
    """Return whether a test says more on MariaDB than on SQLite. `nodeids`: of all tests."""
    if item.get_closest_marker("mariadb_always"):
        return True
    if item.nodeid.replace("mariadb", "sqlite") not in nodeids:
        return True
    function = getattr(item, "function", None)
    return function is not None and named(function.__name__, *_names(function.__code__))


def named(*names: str) -> bool:
    """Return whether one of the names has one of the words."""
    words = {
        re.sub(r"(ing|ed|s)$", "", word.lower())
        for name in names
        for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+", name)
    }
    return bool(words & WORDS)


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _names(each)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what the day's sample does not have."""
    day = day_of(config)
    if day is None:
        return
    of = [item for item in items if item.get_closest_marker("mariadb")]
    nodeids = {item.nodeid for item in items}
    nodeids -= {item.nodeid for item in of}
    left_out = {item for item in of if not always(item, nodeids) and not chosen(item.nodeid, day)}
    others = in_turn(items, day)
    items[:] = [item for item in items if item not in left_out | others]
    config.hook.pytest_deselected(items=list(left_out | others))
    counts = (len(of) - len(left_out), len(of))
    if (output := getattr(config, "workeroutput", None)) is not None:
        output["sample"] = counts
    else:
        config.pluginmanager.getplugin("sampling-summary").counts = counts


class Summary:
    """What the controller says at the end."""

    counts: tuple[int, int] | None = None

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Take the counts that a worker reports; all workers have the same."""
        self.counts = getattr(node, "workeroutput", {}).get("sample", self.counts)

    def pytest_terminal_summary(self, terminalreporter: Any, config: pytest.Config) -> None:
        """Say how many tests ran on MariaDB."""
        if self.counts:
            terminalreporter.write_line(
                f"MariaDB: {self.counts[0]} of {self.counts[1]} tests, the sample of"
                f" {config.option.sample}; `make test-all` runs all"
            )
