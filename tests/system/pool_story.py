"""A batch pool on whole machines, from `qsub` to sleep: what the test of it looks at and the
benchmark draws.

The master and the VCM run on a stand-in host beside the rack (tests/system/annex.py); the machines
that they ask for are QEMU's, with unmodified firmware, primed with `images/execd`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from xml.sax.saxutils import escape

from cod.client import ApiError, Unreachable
from cod.lab.spec import LabDisk, LabNode
from cod.vcm.batch.commands import NotUnderstood
from cod.vcm.gridengine.view import read
from tests.system.annex import HEAD, POWERLESS, Annex, annex
from tests.system.cell import Cell
from tests.system.installation import USER
from tests.system.qemu import TEMPLATES, Rack, rack

VCLUSTER, IMAGE = "pool", "execd"
MACHINES = ("b1", "b2")
SPOOL = "/var/spool/gridengine/execd"
POLICY = """\
inertia = 0
[nmp]
port = 8071
[energy]
manage = true
warm_low = 0
warm_high = {warm}
idle_time = 1
"""
SEED = f"USERS=alice:{USER}\n"
KNOBS = {"maximum": len(MACHINES), "idle_limit": 5.0, "calm": 5.0, "join_time": 300.0}
PATIENCE = 900.0  # seconds for a step, on a busy host
PERIOD = 0.25  # seconds between looks
# What a machine's console says on its way; the same at each boot.
SAYS = {
    "loader runs": "for the iPXE command line",
    "trampoline runs": "COD trampoline on Linux",
    "disk boots": "/boot/disk/",
    "system has its address": "execd: image=",
}
# What the queue shows of a host, in the order in which it comes about.
IN_QUEUE = ("is in the queue", "has reported", "takes jobs", "runs a job")


@dataclass
class Story:
    """The pool. `seen`: (when, machine, what) in their order, states of COD, of the queue, and
    words on the console."""

    rack: Rack
    cell: Cell
    seen: list[tuple[float, str, str]] = field(default_factory=list)
    _hosts: dict[str, str] = field(default_factory=dict)
    _now: set[tuple[str, str]] = field(default_factory=set)
    _said: dict[tuple[str, str], int] = field(default_factory=dict)
    _ending: threading.Event = field(default_factory=threading.Event)

    # ------------------------------------------------------------ what happens

    def submit(self, seconds: float) -> int:
        """A job that sleeps; its number."""
        said = self.cell.run(
            "qsub",
            "-terse",
            "-r",
            "y",
            "-wd",
            "/tmp",
            "-o",
            "/dev/null",
            "-e",
            "/dev/null",
            "-b",
            "y",
            "/bin/sleep",
            str(seconds),
            user=USER,
        )
        return int(said.stdout)

    def accounts(self) -> list[dict[str, str]]:
        """What the master has written down of jobs that ended (accounting(5))."""
        file = self.cell.root / "default/common/accounting"
        rows = (
            [line.split(":") for line in file.read_text().splitlines() if line[:1] not in ("#", "")]
            if file.exists()
            else []
        )
        return [
            {
                "job": row[5],
                "host": row[1].split(".")[0],
                "owner": row[3],
                "failed": row[11],
                "status": row[12],
            }
            for row in rows
        ]

    def ended(self, *jobs: int) -> None:
        """Wait until these jobs have ended."""
        self.rack.wait(
            lambda: {str(job) for job in jobs} <= {row["job"] for row in self.accounts()},
            "the jobs have ended",
            PATIENCE,
        )

    def reaches(self, *states: str) -> None:
        """Wait until all machines are in one of `states`."""
        for name in MACHINES:
            self.rack.reaches(name, *states, seconds=PATIENCE)

    # ------------------------------------------------------------ what is seen

    def watch(self) -> None:
        """Look at queue and consoles until the end."""
        spoken: list[tuple[str, str]] = []
        while not self._ending.wait(PERIOD):
            spoken += self.listen()
            try:
                self._hosts.update(
                    {
                        node["hostname"]: name
                        for name, node in self.rack.nodes().items()
                        if node["hostname"] and name in MACHINES
                    }
                )
                hosts = read(
                    self.cell.run("qstat", "-f", "-r", "-u", "*", "-xml").stdout.encode(), "all.q"
                ).hosts
            except (NotUnderstood, AssertionError, OSError, ApiError, Unreachable):
                continue
            self._compare(
                spoken,
                {
                    (host.name, what)
                    for host in hosts.values()
                    for what, is_so in zip(
                        IN_QUEUE, (True, host.heard, host.usable, bool(host.running)), strict=True
                    )
                    if is_so
                },
            )
            spoken = []

    def _compare(self, spoken: list[tuple[str, str]], now: set[tuple[str, str]]) -> None:
        """Note what one look has brought, in the order of causes: a host leaves the queue before
        its machine is switched, and a machine has spoken before its host comes into the queue."""

        def order(fact: tuple[str, str]) -> int:
            return IN_QUEUE.index(fact[1])

        for host, what in sorted(self._now - now, key=order, reverse=True):
            self._note(self._hosts.get(host, ""), f"no longer {what}")
        for machine, what in spoken:
            self._note(machine, what)
        for host, what in sorted(now - self._now, key=order):
            self._note(self._hosts.get(host, ""), what)
        self._now = now

    def listen(self) -> list[tuple[str, str]]:
        """(machine, what) of what is new on the consoles."""
        new = []
        for name in MACHINES:
            text = self.rack.console(name)
            for what, words in SAYS.items():
                if text.count(words) > self._said.get((name, what), 0):
                    new.append((name, what))
                self._said[name, what] = text.count(words)
        return new

    def _note(self, machine: str, what: str) -> None:
        if machine:
            self.seen.append((time.time(), machine, what))

    def stop(self) -> None:
        """Look no more."""
        self._ending.set()

    def timeline(self, name: str, since: float) -> list[tuple[str, float]]:
        """(what, seconds after `since`) of one machine, in order: its states in COD, and all that
        was seen of it."""
        rows = [
            (str(row["to_state"]), row["at"] - since)
            for row in self.rack.history(name)
            if row["at"] >= since
        ]
        rows += [
            (what, at - since) for at, machine, what in self.seen if machine == name and at >= since
        ]
        return sorted(rows, key=lambda row: row[1])


@contextmanager
def story(
    *, warm: int = 0, cache: bool = False, knobs: Mapping[str, float] | None = None
) -> Iterator[Story]:
    """The pool with its head and no other node; the machines are known, free, and off (or idle,
    `warm` of them).

    cache  the execution image's disks are kept when nodes are given back
    knobs  settings of the pool beside `KNOBS`
    """
    machines = [LabNode(name, "bios", memory=512, disks=(LabDisk(640 << 20),)) for name in MACHINES]
    with (
        rack(machines, patience=3.0, policy=POLICY.format(warm=warm) + POWERLESS) as stand,
        annex(stand) as beside,
    ):
        offer_batch_host(stand, IMAGE, SEED, cache=cache)
        for name in MACHINES:
            stand.power(name, "on")
        cell = _cell(beside, knobs or {})
        made = Story(stand, cell)
        made.reaches("inactive" if warm else "off")
        made.listen()  # what was said before is not part of the story
        thread = threading.Thread(target=made.watch)
        thread.start()
        try:
            yield made
        finally:
            made.stop()
            thread.join()
            cell.kill_vcm()
            print(cell.log()[-4000:])


def offer_batch_host(
    stand: Rack, image: str, user_data: str, group: str = "", cache: bool = False
) -> None:
    """Add a batch host's image, and its template with these user data, which are the group's secret
    if there is one."""
    stand.cod("image", "add", image, f"{TEMPLATES.parent}/build/images/{image}.img", "--wait")
    secret, owner = (' secret="yes"', ["--group", group]) if group else ("", [])
    seed = (
        "<personalise"
        f' seed="nocloud"><user-data{secret}>{escape(user_data)}</user-data></personalise>'
    )
    document = (
        (TEMPLATES / f"{image}.xml").read_text().replace('<personalise seed="nocloud"/>', seed)
    )
    assert seed in document
    path = stand.folder / f"{image}.xml"
    path.write_text(
        document.replace("<template ", '<template cache="yes" ', 1) if cache else document
    )
    stand.cod("template", "add", str(path), *owner)


def _cell(beside: Annex, knobs: Mapping[str, float]) -> Cell:
    """Head and VCM."""
    beside.hosts[HEAD].on()
    beside.rack.reaches(HEAD, "inactive")
    cell = Cell(beside, VCLUSTER, domain="cod.demo", spool=SPOOL)
    cell.up(HEAD)
    cell.enrol(template=IMAGE, **KNOBS, **knobs)
    cell.start_vcm()
    return cell
