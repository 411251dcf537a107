"""Kill parts of a server under load at random moments, and check its nodes' histories throughout:
``python -m tests.server_kills [SEED] [MINUTES]``.

A real `cod serve` with simulated machines: virtual clusters come, grow and go, and meanwhile one of
the server's parts, the whole server or a machine is killed with SIGKILL, again and again. All rows
of nodes and of their history, and the disks of free machines, are read all the time
(`cod.policy.histories` says what is wrong with them). At the end everything is given back. What is
killed and asked for next is drawn by the seed; how that falls together with the server's work is
not.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlalchemy.exc import DBAPIError

from cod.client import ApiError, Client, Unreachable, path
from cod.lab import cleaner
from cod.policy.histories import Histories, NodeRow, NodeTransition
from cod.states import Disk, NodeState
from cod.store.engine import Tx, connect, is_retryable
from tests.history_rows import history_after, node_rows
from tests.system.site_images import offer
from tests.system.stand import Stand

MACHINES, DISK = 6, 8 << 20
TEMPLATES = ("red", "blue")
PARTS = ("edge", "images", "manager", "web")
TARGETS = (*PARTS, "server", "machine")
MOST_MOVES = 8  # transitions between two kills
STILL = 20.0  # seconds without a transition after which a kill comes all the same
POLICY = "heartbeat = 1.0"


@dataclass
class Outcome:
    """What a run has come to."""

    kills: Counter[str] = field(default_factory=Counter)
    asked: Counter[str] = field(default_factory=Counter)
    looks: int = 0
    disks: int = 0
    transitions: int = 0
    violations: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        kills = ", ".join(f"{name} {count}" for name, count in sorted(self.kills.items()))
        asked = ", ".join(f"{name} {count}" for name, count in sorted(self.asked.items()))
        return (
            f"{self.kills.total()} kills ({kills}); {asked}; {self.transitions} transitions, rows"
            f" read {self.looks} times, free disks {self.disks} times: {len(self.violations)}"
            " violations"
        )


# ---------------------------------------------------------------- what is read


class Turns(threading.Thread):
    """Does `turn` again and again, with pauses of `pause` seconds, until it is stopped."""

    def __init__(self, turn: Callable[[], None], pause: float) -> None:
        super().__init__(daemon=True)
        self._turn, self._pause, self._ending = turn, pause, threading.Event()
        self.failure: BaseException | None = None

    def run(self) -> None:
        """Take turns; what one raises ends the thread and is kept."""
        try:
            while not self._ending.wait(self._pause):
                self._turn()
        except BaseException as error:
            self.failure = error

    def stop(self) -> None:
        """Stop. Raises what has ended the thread, where anything has."""
        self._ending.set()
        self.join()
        if self.failure is not None:
            raise self.failure


class Watch:
    """Reads rows and disks, with an engine of its own."""

    def __init__(self, stand: Stand, outcome: Outcome) -> None:
        self._stand, self._outcome = stand, outcome
        self._engine = connect(str(stand.engine.url))
        self._checker = Histories()
        self.history: list[NodeTransition] = []

    def conclude(self) -> None:
        """Look a last time, and read the whole history again: nothing that was once read may be
        gone or another."""
        self.look()
        again = self.read(lambda tx: history_after(tx, 0))
        if again != self.history:
            self._outcome.violations.append("rows of the history are gone, or have changed")
        self._engine.dispose()

    def read(self, flow: Callable[[Tx], Any]) -> Any:
        """Return what `flow` reads at one moment; again where the database was busy."""
        while True:
            with suppress(_Busy):
                return self._once(flow)
            time.sleep(0.05)

    def _once(self, flow: Callable[[Tx], Any]) -> Any:
        try:
            with self._engine.connect().execution_options(reading=True) as tx, tx.begin():
                return flow(tx)
        except DBAPIError as error:
            if is_retryable(error):
                raise _Busy from error
            raise

    def look(self) -> None:
        """Read what is new, compare all nodes, and look at the disk of one that is free."""
        last = self.history[-1].id if self.history else 0
        new, rows = self.read(lambda tx: (history_after(tx, last), node_rows(tx)))
        told = [one for row in new for one in self._checker.add(row)]
        found = list(map(str, [*told, *self._checker.compare(rows)]))
        self.history += new
        free = [row for row in rows if row.state == NodeState.INACTIVE and row.disk == Disk.CLEAN]
        if free:
            found += self._written(free[self._outcome.looks % len(free)])
        self._outcome.violations += found
        self._outcome.looks += 1
        self._outcome.transitions = len(self.history)

    def _written(self, node: NodeRow) -> list[str]:
        """Return what is wrong with the disk of a free node."""
        self._outcome.disks += 1
        disk = (self._stand.hosts[f"m{node.node}"].folder / "disk").read_bytes()
        # a node that was free before and after was free meanwhile
        if any(disk) and node in self.read(node_rows):
            return [f"node {node.node}: is free and clean, and its disk is not empty"]
        return []


class _Busy(Exception):
    """The database had no time."""


# ---------------------------------------------------------------- what is done


class Load:
    """Asks for virtual clusters, changes and deletes them. What the server does not answer is not
    asked again."""

    def __init__(self, stand: Stand, outcome: Outcome, rng: random.Random) -> None:
        self._stand, self._outcome, self._rng = stand, outcome, rng
        self._made = 0

    def ask(self) -> None:
        """Ask for one thing."""
        with suppress(Unreachable, ApiError), self._stand.client() as client:
            self._act(client)

    def _act(self, client: Client) -> None:
        restore(client, self._outcome)
        there = [one for one in client.items("/vclusters") if one["state"] != "ended"]
        word = self._rng.choice(("create", "create", "resize", "delete"))
        if word == "create" and len(there) < MACHINES:
            self._made += 1
            size, template = self._rng.randint(1, 2), self._rng.choice(TEMPLATES)
            body = {"name": f"v{self._made}", "size": size, "template": template}
            client.post("/vclusters", body)
        elif word == "resize" and there:
            body = {"size": self._rng.randint(1, 3)}
            client.post(path("vclusters", self._rng.choice(there)["name"], "resize"), body)
        elif word == "delete" and there:
            client.delete(path("vclusters", self._rng.choice(there)["name"]))
        else:
            return
        self._outcome.asked[word] += 1


def restore(client: Client, outcome: Outcome) -> None:
    """Bring nodes back that were quarantined: what is killed all the time spends its retries."""
    for node in client.items("/nodes", state="quarantined"):
        client.post(path("nodes", node["name"], "restore"), {})
        outcome.asked["restore"] += 1


def parts(supervisor: int) -> dict[str, int]:
    """Return the processes of a server's parts by name; those that have just ended are missing."""
    found = {}
    for pid in Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text().split():
        with suppress(OSError):
            program, _, part = Path(f"/proc/{pid}/comm").read_text().strip().partition("-")
            if part and program == "cod":
                found[part] = int(pid)
    return found


def kill(stand: Stand, target: str, rng: random.Random) -> bool:
    """Kill a part, the server or a machine; return whether it was running. A server and a machine
    are started again here, a part is by its supervisor."""
    if target == "machine":
        host = stand.hosts[rng.choice(sorted(stand.hosts))]
        was_on = host.is_on
        host.reset()
        return was_on
    if target == "server":
        stand.kill()
        stand.serve()
        return True
    assert stand.server is not None
    pid = parts(stand.server.pid).get(target)
    if pid is None:  # it was killed a moment ago, and its supervisor has not started it yet
        return False
    os.kill(pid, signal.SIGKILL)
    return True


def run(
    stand: Stand,
    seed: int,
    more: Callable[[Outcome], bool],
    targets: tuple[str, ...] = TARGETS,
    said: Callable[[str], None] = lambda _: None,
) -> Outcome:
    """Kill for as long as there is `more` to do, then let everything come to rest; return what was
    found. The stand's server runs, and its machines are free."""
    outcome = Outcome()
    rng, watch = random.Random(seed), Watch(stand, outcome)
    load = Load(stand, outcome, random.Random(f"{seed} load"))
    looking, asking = Turns(watch.look, 0.1), Turns(load.ask, 0.25)
    looking.start()
    asking.start()
    while more(outcome) and not outcome.violations and looking.is_alive() and asking.is_alive():
        wanted = len(watch.history) + rng.randint(1, MOST_MOVES)
        end = time.monotonic() + STILL
        while len(watch.history) < wanted and time.monotonic() < end:
            time.sleep(0.01)
        time.sleep(rng.uniform(0.0, 0.3))
        target = rng.choice(targets)
        if kill(stand, target, rng):
            outcome.kills[target] += 1
            said(f"{target}: {outcome}")
    asking.stop()
    if not outcome.violations:
        stand.wait(lambda: _is_at_rest(stand, outcome), 900.0, "all machines are free")
    looking.stop()
    watch.conclude()
    return outcome


def _is_at_rest(stand: Stand, outcome: Outcome) -> bool:
    """Delete what is left; return whether all machines are free."""
    with suppress(Unreachable, ApiError), stand.client() as client:
        restore(client, outcome)
        for each in client.items("/vclusters"):
            if each["state"] in ("pending", "active"):
                client.delete(path("vclusters", each["name"]))
        return all(node["state"] == "inactive" for node in client.items("/nodes"))
    return False


def made(folder: Path, machines: int = MACHINES) -> Stand:
    """Return a stand for `run`, not yet entered."""
    return Stand(folder, machines, disk_size=DISK, patience=0.3, policy=POLICY)


def begin(stand: Stand) -> None:
    """Start the server and the machines, and add the templates."""
    stand.serve()
    for name, host in stand.hosts.items():
        host.on()
        stand.reaches(name, "inactive")
    for name in TEMPLATES:
        offer(stand, name, 4 << 20)


def main(seed: int, minutes: float) -> None:
    """Run, and print what came of it; exit 1 where anything was found."""
    cleaner.start()
    print(f"seed {seed}, {minutes:.0f} minutes", flush=True)
    with tempfile.TemporaryDirectory() as folder, made(Path(folder)) as stand:
        begin(stand)
        end = time.monotonic() + 60 * minutes
        outcome = run(
            stand,
            seed,
            lambda _: time.monotonic() < end,
            said=lambda line: print(line, flush=True),
        )
    print(outcome)
    for one in outcome.violations[:100]:
        print(one)
    sys.exit(bool(outcome.violations))


if __name__ == "__main__":
    words = [word for word in sys.argv[1:] if word]
    main(
        int(words[0]) if words else random.randrange(10**6),
        float(words[1]) if words[1:] else 60.0,
    )
