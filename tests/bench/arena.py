"""Where servers are measured against each other: two network namespaces joined by a veth, rounds in
turn, CPU counted.

Everything is started here and ended by its pid; the namespaces go when the arena is left, also by
SIGTERM or SIGHUP. Needs root.
"""

from __future__ import annotations

import fcntl
import json
import os
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TextIO

from tests import manual

ROOT = Path(__file__).resolve().parents[2]
# Results, pages and pictures go below this folder: the project's, or a test's own.
OUT = Path(os.environ.get("COD_BENCH_OUT", ROOT))
RESULTS, PLOTS = OUT / "build/bench", OUT / "docs/plots"
ROUNDS = int(os.environ.get("ROUNDS", "5"))
SERVER, CLIENT = "10.199.77.1", "10.199.77.2"
# Control groups: one counts the servers' CPU (also of children that nobody waits for), one gives
# servers and clients alike a large share of a machine that has other work, which would otherwise
# decide the rounds.
GROUP = f"cod-bench-{os.getpid()}"
V1, V2 = Path("/sys/fs/cgroup/cpuacct") / GROUP, Path("/sys/fs/cgroup") / GROUP
COUNTED = V1 if V1.parent.exists() else V2
SHARED = Path("/sys/fs/cgroup/cpu") / GROUP
SHARE = 20480  # twenty times the usual
ENDING = (signal.SIGTERM, signal.SIGHUP)


def page(name: str) -> Path:
    """Return the manual's page `name` below `OUT`. Raises `ValueError`."""
    return manual.page(name, OUT / "docs")


def put_pages(folder: Path) -> None:
    """Copy the manual to where a benchmark with that `COD_BENCH_OUT` changes it."""
    shutil.copytree(ROOT / "docs", folder / "docs", ignore=shutil.ignore_patterns("decisions"))


def marks(name: str, maker: str = "make bench") -> tuple[str, str]:
    """Return the lines between which a program writes into a page of the manual."""
    return f"<!-- {name}: made by {maker} -->", f"<!-- end of {name} -->"


def between_marks(text: str, name: str, maker: str = "make bench") -> list[str]:
    """Return the lines that a page's text has between its marks of that name."""
    begin, end = marks(name, maker)
    return text.split(begin)[1].split(end)[0].strip().splitlines()


def put_between_marks(
    file: Path, name: str, lines: Iterable[str], maker: str = "make bench"
) -> None:
    """Write `lines` between a page's marks of that name, in place of what is there. Raises
    `ValueError` where the marks are missing."""
    begin, end = marks(name, maker)
    before, rest = file.read_text().split(begin)
    _, after = rest.split(end)
    file.write_text("\n".join([before + begin, "", *lines, "", end + after]))


@dataclass
class Measure:
    """One line of `build/bench/NAME.json`. `ratio` is value to peer_value, `goal` what it should
    reach."""

    name: str
    value: float
    unit: str
    peer: str = ""
    peer_value: float | None = None
    ratio: float | None = None
    goal: str = ""
    rounds: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Smoke:
    """The smallest form of a benchmark, for a test that the benchmark still runs.

    rows    how the names of its measures begin: each measure with one of them
    sizes   the module's constants (`module.NAME` for those of a module that it imports) in place
            of the large ones
    words   its command line
    system  whether it needs root, namespaces or machines
    slow    whether it boots machines or takes a minute, and so runs by night
    needs   programs of its peers
    test    a test file that runs the benchmark's parts on a story of its own, in `make test`; it
            is run in place of a smallest form where even that would take minutes
    """

    rows: tuple[str, ...] = ()
    sizes: Mapping[str, Any] = field(default_factory=dict)
    words: tuple[str, ...] = ()
    system: bool = False
    slow: bool = False
    needs: tuple[str, ...] = ()
    test: str = ""


@dataclass
class Run:
    """One round of one contender: how much was moved in how long, and the CPU seconds of both
    sides."""

    amount: float
    seconds: float
    server_cpu: float
    client_cpu: float

    @property
    def rate(self) -> float:
        return self.amount / self.seconds


def server_cpu() -> float:
    """CPU seconds of all servers so far."""
    if COUNTED is V1:
        return int((V1 / "cpuacct.usage").read_text()) / 1e9
    return int((V2 / "cpu.stat").read_text().split()[1]) / 1e6


class Arena:
    """Two namespaces: servers run in one, clients in the other."""

    def __init__(self, name: str) -> None:
        self.server_side, self.client_side = f"cod-{name}-s", f"cod-{name}-c"

    def __enter__(self) -> Arena:
        self._lock = _only_one()
        self._delete()
        # by default these would end the benchmark at once, and leave servers and namespaces behind
        self._usual = {number: signal.signal(number, _leave) for number in ENDING}
        COUNTED.mkdir(exist_ok=True)
        if SHARED.parent.exists():
            SHARED.mkdir(exist_ok=True)
            (SHARED / "cpu.shares").write_text(str(SHARE))
            (SHARED / "cgroup.procs").write_text(str(os.getpid()))  # and what is started from here
        for side in (self.server_side, self.client_side):
            _ip("netns", "add", side)
            _ip("-n", side, "link", "set", "lo", "up")
        _ip(
            "-n",
            self.server_side,
            "link",
            "add",
            "v0",
            "type",
            "veth",
            "peer",
            "name",
            "v0",
            "netns",
            self.client_side,
        )
        for side, address in ((self.server_side, SERVER), (self.client_side, CLIENT)):
            _ip("-n", side, "address", "add", f"{address}/24", "dev", "v0")
            _ip("-n", side, "link", "set", "v0", "up")
        return self

    def __exit__(self, *_: object) -> None:
        self._delete()
        if SHARED.exists():
            (SHARED.parent / "cgroup.procs").write_text(str(os.getpid()))
            SHARED.rmdir()
        COUNTED.rmdir()
        for number, usual in self._usual.items():
            signal.signal(number, usual)
        self._lock.close()

    def _delete(self) -> None:
        for side in (self.server_side, self.client_side):
            subprocess.run(["ip", "netns", "delete", side], check=False, capture_output=True)

    @contextmanager
    def serving(self, command: Sequence[str | Path], ready: Callable[[], bool]) -> Iterator[None]:
        """A server in the server's namespace, from the moment it is ready until the block is
        left."""
        counted = [
            "setpriv",
            "--pdeathsig=KILL",  # a benchmark that is killed takes its server along
            "sh",
            "-c",
            f'echo $$ > {COUNTED}/cgroup.procs; exec ip netns exec {self.server_side} "$@"',
            "sh",
        ]
        process = subprocess.Popen(
            [*counted, *map(str, command)],
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            until = time.monotonic() + 10
            while not ready():
                if process.poll() is not None or time.monotonic() > until:
                    raise RuntimeError(f"did not start: {command}")
                time.sleep(0.05)
            yield
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def clients(self, commands: Sequence[Sequence[str | Path]]) -> tuple[float, float]:
        """Run clients at once; returns (seconds until the last has ended, their CPU seconds). All
        must succeed."""
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        began = time.monotonic()
        running = [
            subprocess.Popen(
                ["ip", "netns", "exec", self.client_side, *map(str, command)],
                cwd=ROOT,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
            )
            for command in commands
        ]
        for process in running:
            _, errors = process.communicate()
            if process.returncode:
                raise RuntimeError(f"{process.args!r}: {errors.decode()[-300:]}")
        seconds = time.monotonic() - began
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    def measured(self, commands: Sequence[Sequence[str | Path]], amount: float) -> Run:
        """One round: `amount` moved by `commands` from the server that is running."""
        before = server_cpu()
        seconds, client_cpu = self.clients(commands)
        return Run(amount, seconds, server_cpu() - before, client_cpu)


def alternate(
    contenders: Mapping[str, Callable[[], Run]], rounds: int = ROUNDS
) -> dict[str, list[Run]]:
    """Run the contenders in turn (A B A B), `rounds` times each; prints as it goes."""
    results: dict[str, list[Run]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, contender in contenders.items():
            run = contender()
            results[name].append(run)
            print(
                f"  {name:24} {run.rate:9.1f}/s  server CPU"
                f" {1000 * run.server_cpu / run.amount:7.3f} ms each  clients"
                f" {1000 * run.client_cpu / run.amount:7.3f} ms",
                flush=True,
            )
    return results


def compare(
    name: str, unit: str, results: Mapping[str, list[Run]], ours: str, peer: str, goal: str
) -> list[Measure]:
    """Medians of rate and server CPU of `ours` against `peer`, as two measures."""

    def median(contender: str, what: Callable[[Run], float]) -> float:
        return statistics.median(map(what, results[contender]))

    def measure(name: str, unit: str, what: Callable[[Run], float], goal: str) -> Measure:
        value, peer_value = median(ours, what), median(peer, what)
        return Measure(
            name,
            round(value, 4),
            unit,
            peer,
            round(peer_value, 4),
            round(value / peer_value, 3) if peer_value else None,
            goal,
            [round(what(run), 4) for run in results[ours]],
        )

    return [
        measure(name, f"{unit}/s", lambda run: run.rate, goal),
        measure(
            f"{name}, server CPU", f"ms/{unit}", lambda run: 1000 * run.server_cpu / run.amount, ""
        ),
    ]


def write(name: str, measures: Sequence[Measure]) -> None:
    """Write `build/bench/NAME.json` and print a table."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / f"{name}.json").write_text(
        json.dumps([asdict(m) for m in measures], indent=1) + "\n"
    )
    for m in measures:
        print(
            f"{m.name:40} {m.value:10.3f} {m.unit:8} {m.peer:12} {m.peer_value or 0:10.3f}"
            f"  ratio {m.ratio or 0:6.3f}  goal {m.goal}"
        )


def _only_one() -> TextIO:
    """Wait until no other benchmark runs on this machine's copy of the project."""
    folder = ROOT / "build" / "bench"
    folder.mkdir(parents=True, exist_ok=True)
    lock = (folder / "lock").open("w")
    fcntl.flock(lock, fcntl.LOCK_EX)
    return lock


def _leave(number: int, _: object) -> None:
    """End the benchmark by an exception, so that whatever it has started is ended first."""
    raise SystemExit(128 + number)


def python(module: str, *arguments: object) -> list[str]:
    """The command that runs one of our modules."""
    return [sys.executable, "-m", module, *map(str, arguments)]


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)
