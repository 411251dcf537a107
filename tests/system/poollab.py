"""A batch system's pool on a stand, for stories that share it: a vcluster 'pool' with its head, and
machines to spare.

Every story begins with `fresh`: what an earlier one has set going is over, and the VCM has seen
nothing of it. gridlab.py (Grid Engine) and slurmlab.py (Slurm) hold what differs.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from cod.flows.people import groups
from cod.states import RequestState
from cod.store.engine import Tx
from cod.store.scheduler import requests
from tests.system.installation import HEAD, Installation, toml
from tests.system.site_images import offer
from tests.system.stand import Stand, ip
from tests.waiting import until

RULES = "inertia = 0\nreclaim_grace = 20\n[nmp]\nport = 8071\nkeepalive = 1\n"
EXAMPLES = Path(__file__).parents[2] / "docs/examples"
WISH = "#SBATCH --signal=B:USR1@60\n"
Made = TypeVar("Made", bound=Installation)


class PoolLab(Generic[Made]):
    """See the module. Nodes besides the head are n2, n3 …; `spare` machines are for the pool and
    for others."""

    knobs: ClassVar[dict[str, Any]] = {}

    def __init__(self, stand: Stand, cell: Made) -> None:
        self.stand, self.cell = stand, cell
        self._gates, self._mark = count(1), 0
        self._knobs: dict[str, Any] = {}

    # ------------------------------------------------------------ what a batch system is

    def hosts(self) -> set[str]:
        """Hosts that the batch system knows, besides the head."""
        raise NotImplementedError

    def cancel(self) -> None:
        """Take all jobs out of the queue."""
        raise NotImplementedError

    def waits(self) -> bool:
        """Return whether there is a job in the queue, waiting or running."""
        raise NotImplementedError

    def release(self, jobs: list[int]) -> None:
        """Jobs that were submitted on hold may start, all at the same moment, however long
        submitting them took."""
        raise NotImplementedError

    def kill_master(self) -> None:
        """kill -9 of the batch system's server."""
        raise NotImplementedError

    def start_master(self) -> None:
        """Start it as the head's boot does."""
        raise NotImplementedError

    # ------------------------------------------------------------ setting up

    def up(self) -> None:
        """The site, the head with its server, and the VCM."""
        self.stand.serve()
        for host in self.stand.hosts.values():
            host.on()
        for name in self.stand.hosts:
            self.stand.reaches(name, "inactive")
        with self.stand.engine.begin() as tx:
            groups.create(tx, name="top", priority=10, now=time.time())
        offer(self.stand, "exec")
        self.cell.up("exec")
        self.cell.enrol()
        text = (self.cell.folder / "vcm/vcm.toml").read_text()
        self._settings = text[: text.index(f"[{self.cell.table}]")].replace(
            "interval = 1.0", "interval = 0.5"
        )

    def start_vcm(self, **knobs: Any) -> None:
        """The VCM with these knobs."""
        self._knobs = knobs
        table = {**self.cell.settings(), **self.knobs, **knobs}
        lines = [f"{key} = {toml(value)}" for key, value in table.items()]
        (self.cell.folder / "vcm/vcm.toml").write_text(
            self._settings + f"[{self.cell.table}]\n" + "\n".join(lines) + "\n"
        )
        self.cell.start_vcm()

    def restart_vcm(self, **knobs: Any) -> None:
        """kill -9, and start again."""
        self.cell.kill_vcm()
        self.start_vcm(**knobs)

    def fresh(self, **knobs: Any) -> None:
        """No jobs, no nodes but the head, nothing asked for or on its way, and a VCM that has just
        been started: of one that runs nobody could say what it has seen and is about to do."""
        if self._knobs != knobs:  # with others it might keep its nodes
            self.restart_vcm(**knobs)
        while True:
            self.cancel()
            self.shrunk()
            self.cell.kill_vcm()
            if self.is_fresh():
                break
            self.start_vcm(**knobs)
        self._mark = len(self.cell.log())
        self.start_vcm(**knobs)

    # ------------------------------------------------------------ what happens to it

    def link(self, machine: str, state: str) -> None:
        """Pull out or plug in a machine's network cable: `state` is down or up."""
        number = machine.removeprefix("m")
        ip("-n", self.stand.namespace, "link", "set", f"v{number}", state)

    # ------------------------------------------------------------ jobs

    def submit(self, count: int, seconds: float | Path, *options: str) -> list[int]:
        """So many jobs; their numbers. They end after so many seconds, or when the gate is open."""
        return [self.cell.submit(seconds, *options) for _ in range(count)]

    def gate(self) -> Path:
        """A file that is not there: jobs wait for it. `touch` opens it."""
        return self.cell.jobs / f"gate{next(self._gates)}"

    def resumable(self, steps: int, *options: str, wish: str = "") -> tuple[int, Path, Path]:
        """Submit the example of a job that saves itself; once it has done a few of its steps, of a
        second each, return its number, what it says, what it saves.

        wish  the line of its script that asks for a signal; '': it has none
        """
        text = (EXAMPLES / "resumable-job.sh").read_text()
        assert WISH in text
        script = self.cell.jobs / "resumable.sh"
        script.write_text(text.replace(WISH, wish + "\n"))
        job = self.cell.submit(steps, *options, script=script)
        saved = self.cell.jobs / f"saved/{job}"
        until(saved.exists, "it runs", 240)
        time.sleep(3)
        return job, self.cell.jobs / f"said.{job}", saved

    def started(self, jobs: list[int], least: int = 0) -> None:
        """Wait until all have started, or at least so many."""
        until(
            lambda: sum(bool(self.cell.ran(job)) for job in jobs) >= (least or len(jobs)),
            "they run",
            180,
        )

    def resumed(self, said: Path, steps: int, step: int) -> None:
        """Wait until that example has ended; it has run twice, the second time from `step` on, or
        from a later one."""
        until(lambda: f"has done all {steps} steps" in said.read_text(), "it has ended", 240)
        begun = [
            int(line.split()[-1])
            for line in said.read_text().splitlines()
            if "begins with step" in line
        ]
        assert begun[0] == 0
        assert [one >= step for one in begun[1:]] == [True], (step, begun)

    def ended(self, jobs: list[int], seconds: float = 240.0) -> None:
        """Wait until all have run to their end."""
        until(
            lambda: all(self.cell.ended(job) for job in jobs),
            lambda: f"all have ended; {[job for job in jobs if not self.cell.ended(job)]} have not",
            seconds,
            0.1,
        )

    def once(self, jobs: list[int], rescheduled: dict[int, int] | None = None) -> None:
        """Each has ended once, and started once more than it was rescheduled (by job; others were
        not)."""
        for job in jobs:
            said = [line.split()[0] for line in self.cell.ran(job)]
            again = (rescheduled or {}).get(job, 0)
            assert said.count("end") == 1, (job, said)
            assert said.count("start") == 1 + again, (job, said)

    def placed(self, job: int) -> str:
        """The host on which it started last; '' before it has started."""
        said = [line.split()[1] for line in self.cell.ran(job) if line.startswith("start")]
        return said[-1].split(".")[0] if said else ""

    # ------------------------------------------------------------ nodes

    def states(self) -> dict[str, str]:
        """The machines' states."""
        return {name: self.stand.state(name) for name in self.stand.hosts}

    def free(self) -> int:
        """How many machines are in the reserve."""
        return sum(state == "inactive" for state in self.states().values())

    def shrunk(self, members: int = 0, seconds: float = 240.0) -> None:
        """Wait until the pool has so many nodes besides its head, and nothing is asked for or on
        its way."""
        until(
            lambda: self.rests(members),
            lambda: (
                f"the pool has {members} nodes: {self.states()}, {self.hosts()}, {self.memory()}"
            ),
            seconds,
            0.1,
        )

    def rests(self, members: int = 0) -> bool:
        """Return whether COD, the VCM and the batch system all count so many nodes, and nothing is
        to change."""
        states, memory = self.states(), self.memory()
        held = [name for name in states if self.stand.node(name).vcluster_id is not None]
        return (
            len(held) == len(memory["nodes"]) == 1 + members
            and set(states.values()) <= {"active", "inactive"}
            and not memory["requests"]
            and not memory["reclaims"]
            and not self.stand.read(_pending)
            and len(self.hosts()) == members
        )

    def is_fresh(self) -> bool:
        """Return whether the pool is as it was when it was made, without a job."""
        return self.rests() and not self.waits()

    def grants(self) -> int:
        """How many nodes were ever given to the pool."""
        return sum(
            1
            for name in self.stand.hosts
            for move in self.stand.history(name)
            if move["to_state"] == "active"
        )

    def active(self, name: str) -> int:
        """How many nodes of a vcluster are active."""
        held = self.stand.cod("node", "list", "--vcluster", name)
        return sum(node["state"] == "active" for node in held)

    def memory(self) -> dict[str, Any]:
        """What the VCM has written down; nothing, while it is being replaced."""
        try:
            found: dict[str, Any] = json.loads((self.cell.folder / "vcm/state.json").read_text())
        except (FileNotFoundError, ValueError):
            return {"nodes": {}, "requests": {}, "reclaims": {}, "keys": 0}
        return found

    def remembers(
        self, truth: Callable[[dict[str, Any]], Any], what: str, seconds: float = 180.0
    ) -> None:
        """Wait until the VCM's memory is so."""
        until(lambda: truth(self.memory()), lambda: f"{what}: {self.memory()}", seconds, 0.01)

    def says(self, words: str, seconds: float = 180.0) -> None:
        """Wait until the VCM has said that, in this story."""
        self.stand.wait(lambda: words in self.said(), seconds, f"the VCM says {words!r}")

    def said(self) -> str:
        """What the VCM has said in this story."""
        return self.cell.log()[self._mark :]


# What lasts for a moment only may be over before somebody looks: as long as jobs wait, each of
# these stays true of what the VCM has written down.


def asked(memory: dict[str, Any]) -> bool:
    """Return whether nodes were asked for."""
    return bool(memory["requests"]) or len(memory["nodes"]) > 1


def leaving(memory: dict[str, Any], of: int) -> bool:
    """Return whether one of `of` nodes, the head among them, is leaving or has left."""
    return len(memory["nodes"]) < of or any(node["leaving"] for node in memory["nodes"].values())


def some_node(truth: Callable[[Any], Any]) -> Callable[[Any], bool]:
    """Return a question whether something is true of some node besides the head."""
    return lambda memory: any(
        truth(node) for node in memory["nodes"].values() if node["member"]["hostname"] != HEAD
    )


def _pending(tx: Tx) -> list[Any]:
    return requests.every(tx, states=[RequestState.PENDING])


@contextmanager
def pool_lab(folder: Path, machines: int, make: Callable[[Stand], Any]) -> Iterator[Any]:
    """A pool on a stand of so many machines, the first of them its head."""
    with Stand(folder, machines=machines, policy=RULES) as stand:
        lab = make(stand)
        try:
            lab.up()
            yield lab
        finally:
            lab.cell.kill_vcm()
            if sys.exc_info()[0] is not None and (lab.cell.folder / "vcm.log").exists():
                print(lab.cell.log()[-6000:])
