"""Ledger of what each test file costs, as a plugin of pytest and as a command.

Each run writes `build/ledger.json`. ``python -m tests.ledger`` enters the last run into
`tests/ledger.tsv`, which is kept in the repository: the order of the next run comes from it
(`tests/schedule.py`). ``--page`` rewrites the table of `docs/testing.md`.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import time
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from functools import cache
from pathlib import Path
from types import CodeType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
KEPT = ROOT / "tests/ledger.tsv"
LAST = ROOT / "build/ledger.json"
PAGE = ROOT / "docs/testing.md"
MACHINES = "COD_LAB_LEDGER"
"""Environment variable with the name of a file: the lab appends a line of JSON for each machine
that it starts."""
GROUPS = "cod-tests-"  # control groups of runs, by the processes' ids
ENDED = (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)
WHOLE = ("", "not nightly")  # marks that leave a file's usual tests in


@dataclass
class Cost:
    """What a file's tests cost: seconds of CPU in all processes; seconds of wall time without the
    wait for a core; machines started cold and restored; processes that a test started and did not
    wait for at once."""

    tests: int = 0
    cpu: float = 0.0
    wall: float = 0.0
    cold: int = 0
    restored: int = 0
    daemons: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(Cost)))


COLUMNS = ("file", *(f.name for f in fields(Cost)))


class Meter:
    """CPU seconds used by this process and by all that it has started: of a control group where
    one can be made, else of the processes below this one in /proc."""

    def __init__(self, name: str) -> None:
        self._group = _new_group(name)

    def leave(self) -> None:
        """Go back to the group above, and remove the own one if no other process is in it."""
        if self._group is not None:
            with suppress(OSError):
                (self._group.parent / "cgroup.procs").write_text(str(os.getpid()))
                self._group.rmdir()
            self._group = None

    def cpu(self) -> float:
        """Return the seconds used until now."""
        if self._group is None:
            return sum(_used(pid) for pid in _tree(os.getpid()))
        text = (self._group / "cpu.stat").read_text()
        return int(text.split("usage_usec ", 1)[1].split(None, 1)[0]) / 1e6

    def kept_waiting(self) -> float:
        """Return the seconds in which a process wanted a core that others had; 0.0: not known."""
        try:
            assert self._group
            text = (self._group / "cpu.pressure").read_text()
        except (AssertionError, OSError):
            return 0.0
        return int(text.split("total=", 1)[1].split(None, 1)[0]) / 1e6


@cache
def _groups() -> Path | None:
    """Return the control group (v2) of this process, or None: there is none."""
    mounts = [line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    folders = [mount[4] for mount in mounts if mount[mount.index("-") + 1] == "cgroup2"]
    own = re.search(r"^0::/(.*)", Path("/proc/self/cgroup").read_text(), re.MULTILINE)
    return Path(folders[0], own[1]) if folders and own else None


def _new_group(name: str) -> Path | None:
    """Move this process into a new control group and return it, or None: it may not."""
    try:
        parent = _groups()
        if parent is None:
            return None
        group = parent / f"{GROUPS}{name}"
        group.mkdir(exist_ok=True)
        (group / "cpu.stat").read_text()
        (group / "cgroup.procs").write_text(str(os.getpid()))
    except OSError:
        return None
    return group


def remove_groups() -> None:
    """Remove the control groups of runs in which no process is left."""
    for group in parent.glob(f"{GROUPS}*") if (parent := _groups()) else ():
        with suppress(OSError):  # one that is in use
            group.rmdir()


def _tree(pid: int) -> Iterator[int]:
    """Yield a process and all below it."""
    yield pid
    with suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            for child in (thread / "children").read_text().split():
                yield from _tree(int(child))


def _used(pid: int) -> float:
    """Return a process's CPU seconds with those of its children that have ended."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return 0.0
    return sum(map(int, stat[11:15])) / os.sysconf("SC_CLK_TCK")


class Daemons:
    """Count of processes that were started and not waited for at once."""

    def __init__(self) -> None:
        import subprocess

        self.number = 0
        self._waits = (subprocess.run.__code__, subprocess.call.__code__)
        sys.addaudithook(self._audit)

    def _audit(self, event: str, _: object) -> None:
        if event == "subprocess.Popen" and not set(self._waits) & set(_callers()):
            self.number += 1


def _callers() -> Iterator[CodeType]:
    """Yield the code of the nearest callers: of the hook, of Popen's methods, of who made it."""
    frame = sys._getframe(2)
    for _ in range(5):
        if frame is None:
            return
        yield frame.f_code
        frame = frame.f_back  # type: ignore[assignment]


class Machines:
    """Count of machines in the file that the lab writes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0

    def new(self) -> tuple[int, int]:
        """Return how many were started cold and restored since the last call."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._read)
                lines = file.read()
        except FileNotFoundError:
            return 0, 0
        lines = lines[: lines.rfind(b"\n") + 1]
        self._read += len(lines)
        events = [json.loads(line)["event"] for line in lines.splitlines()]
        return events.count("cold"), events.count("restored")


class Recorder:
    """What the tests of this process cost, by file."""

    def __init__(self, name: str, machines: Path) -> None:
        self.costs: dict[str, Cost] = {}
        self.meter = Meter(name)
        self._machines = Machines(machines)
        self._daemons = Daemons()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Add what one test costs, with its set-up and teardown."""
        cpu, wall, daemons = self.meter.cpu(), self._time(), self._daemons.number
        result = yield
        cost = Cost(
            1,
            self.meter.cpu() - cpu,
            max(0.0, self._time() - wall),
            *self._machines.new(),
            self._daemons.number - daemons,
        )
        name = item.path.relative_to(ROOT).as_posix() if item.path.is_relative_to(ROOT) else ""
        self.costs[name] = self.costs.get(name, Cost()) + cost
        return result

    def _time(self) -> float:
        """Return the time of a clock that stands still while others have the cores."""
        return time.monotonic() - self.meter.kept_waiting()

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Hand the costs to the controller."""
        self.meter.leave()
        output = getattr(session.config, "workeroutput", None)
        if output is not None:
            output["ledger"] = {name: asdict(cost) for name, cost in self.costs.items()}


class Collector:
    """The controller's part: adds up what the workers report, and writes it."""

    def __init__(self, config: pytest.Config, recorder: Recorder | None) -> None:
        self._began = time.monotonic()
        self._costs: dict[str, Cost] = {} if recorder is None else recorder.costs
        self._complete = True
        self._whole = whole(config.option, config.args)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Add a worker's costs; a worker that died reports none."""
        output = getattr(node, "workeroutput", {})
        self._complete &= "ledger" in output
        for name, cost in output.get("ledger", {}).items():
            self._costs[name] = self._costs.get(name, Cost()) + Cost(**cost)

    def pytest_terminal_summary(
        self, terminalreporter: Any, exitstatus: int, config: pytest.Config
    ) -> None:
        """Write the run's costs; print the dearest files when asked to."""
        self._costs.pop("", None)
        if not self._costs:
            return
        run = {
            "whole": self._whole and self._complete and exitstatus in ENDED,
            "wall": round(time.monotonic() - self._began, 1),
            "files": {name: asdict(self._costs[name]) for name in sorted(self._costs)},
        }
        LAST.parent.mkdir(exist_ok=True)
        LAST.write_text(json.dumps(run, indent=1) + "\n")
        if config.option.dearest:
            terminalreporter.section(f"{config.option.dearest} dearest files")
            for line in dearest(self._costs, config.option.dearest):
                terminalreporter.write_line(line)

    def pytest_unconfigure(self) -> None:
        """Remove the control groups of the run's workers."""
        remove_groups()


def whole(option: argparse.Namespace, args: Iterable[str]) -> bool:
    """Return whether a run takes each file's usual tests, so that the ledger can have them."""
    return (
        (option.markexpr or "") in WHOLE
        and not option.keyword
        and not option.maxfail
        and getattr(option, "hypothesis_profile", None) in (None, "cod")
        and not any("::" in arg for arg in args)
    )


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let a run print its dearest files."""
    parser.addoption("--dearest", type=int, default=0, metavar="N", help="print N dearest files")


@pytest.hookimpl(trylast=True)  # what is started before, as the cleaner, outlives the group
def pytest_configure(config: pytest.Config) -> None:
    """Begin to count, in the process that runs tests; collect, in the one that reports."""
    worker = getattr(config, "workerinput", None)
    recorder = None
    if config.option.collectonly:
        return
    if worker is not None or getattr(config.option, "dist", "no") == "no":
        path = Path(os.environ.get("TMPDIR", "/tmp"), f"{GROUPS}{os.getpid()}.jsonl")
        os.environ[MACHINES] = str(path)
        config.add_cleanup(lambda: path.unlink(missing_ok=True))
        recorder = Recorder(str(os.getpid()), path)
        config.pluginmanager.register(recorder, "ledger-recorder")
    if worker is None:
        remove_groups()
        config.pluginmanager.register(Collector(config, recorder), "ledger-collector")


def dearest(costs: Mapping[str, Cost], number: int) -> list[str]:
    """Return lines about the files that cost the most CPU, and one about all."""
    order = sorted(costs, key=lambda name: -costs[name].cpu)[:number]
    total = sum(costs.values(), Cost())
    lines = [f"{'CPU s':>8} {'wall s':>8} {'cold':>5} {'rest.':>5} {'daem.':>5}  file"]
    for name, cost in [*((name, costs[name]) for name in order), ("all files", total)]:
        lines.append(
            f"{cost.cpu:8.1f} {cost.wall:8.1f} {cost.cold:5} {cost.restored:5}"
            f" {cost.daemons:5}  {name}"
        )
    return lines


def read(path: Path = KEPT) -> dict[str, Cost]:
    """Return the kept ledger's costs by file; an absent ledger is empty."""
    if not path.exists():
        return {}
    rows = [line.split("\t") for line in path.read_text().splitlines()[1:]]
    return {
        name: Cost(int(tests), float(cpu), float(wall), *map(int, counts))
        for name, tests, cpu, wall, *counts in rows
    }


def write(costs: Mapping[str, Cost], path: Path = KEPT) -> None:
    """Write a ledger, a line a file."""
    lines = ["\t".join(COLUMNS)]
    for name, cost in sorted(costs.items()):
        lines.append(
            f"{name}\t{cost.tests}\t{cost.cpu:.1f}\t{cost.wall:.1f}"
            f"\t{cost.cold}\t{cost.restored}\t{cost.daemons}"
        )
    path.write_text("\n".join(lines) + "\n")


def folded(
    kept: Mapping[str, Cost], last: Mapping[str, Cost], present: Iterable[str]
) -> dict[str, Cost]:
    """Return the kept ledger with the last run's files in place of the former ones, without files
    that are gone."""
    return {name: cost for name, cost in {**kept, **last}.items() if name in set(present)}


FOLDERS = ("unit", "store", "net", "conformance", "attack", "system")


def table(costs: Mapping[str, Cost]) -> str:
    """Return the costs by folder, as Markdown."""
    sums: dict[str, Cost] = {}
    files: dict[str, int] = {}
    for name, cost in costs.items():
        folder = name.split("/")[1]
        sums[folder] = sums.get(folder, Cost()) + cost
        files[folder] = files.get(folder, 0) + 1
    lines = [
        "| Folder | Files | Tests | CPU s | Wall s | Cold | Restored | Daemons |",
        "|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    order = sorted(sums, key=lambda each: FOLDERS.index(each) if each in FOLDERS else -1)
    rows = [(f"`tests/{folder}`", files[folder], sums[folder]) for folder in order]
    for label, number, cost in [*rows, ("all", len(costs), sum(costs.values(), Cost()))]:
        lines.append(
            f"| {label} | {number} | {cost.tests:,} | {cost.cpu:,.0f} | {cost.wall:,.0f}"
            f" | {cost.cold} | {cost.restored} | {cost.daemons:,} |"
        )
    return "\n".join(lines)


def paged(page: str, costs: Mapping[str, Cost]) -> str:
    """Return a page with the table between its two markers made anew."""
    return re.sub(
        r"(<!-- ledger -->\n).*?(<!-- /ledger -->)",
        lambda found: f"{found[1]}{table(costs)}\n{found[2]}",
        page,
        flags=re.DOTALL,
    )


def main() -> None:
    """Enter the last run into the kept ledger, or rewrite the page's table."""
    parser = argparse.ArgumentParser(prog="python -m tests.ledger", description=main.__doc__)
    parser.add_argument("--page", action="store_true", help=f"rewrite {PAGE.relative_to(ROOT)}")
    if parser.parse_args().page:
        PAGE.write_text(paged(PAGE.read_text(), read()))
        return
    if not LAST.exists():
        sys.exit(f"{LAST.relative_to(ROOT)} is missing: run tests first.")
    run = json.loads(LAST.read_text())
    if not run["whole"]:
        sys.exit("The last run left out tests of its files: run whole files, without -k or -x.")
    last = {name: Cost(**cost) for name, cost in run["files"].items()}
    present = [path.relative_to(ROOT).as_posix() for path in ROOT.glob("tests/**/*.py")]
    write(folded(read(), last, present))
    print("\n".join(dearest(last, 30)))


if __name__ == "__main__":
    main()
