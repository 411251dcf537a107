"""A pool of virtual hosts as a `cod.vcm.pool.Pool`: its nodes run the virtual machines whose domain
documents are in a folder. Preview: tried with libvirt's `test:///` driver."""

from __future__ import annotations

import logging
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock

from cod.vcm.batch.commands import CommandFailed, NotUnderstood
from cod.vcm.libvirt.placement import Size, VirtualHost, new_hosts, place
from cod.vcm.libvirt.settings import LibvirtTable
from cod.vcm.libvirt.virsh import Machine, Virsh, owned, read
from cod.vcm.pool import ANY, Demand, GivenUp, Member, Named, NotYet, Reclaim

# seconds after which the machines of a departed node are started elsewhere if they were not seen to
# end: COD cuts the node's power meanwhile
GONE = 120.0
AT_ONCE = 16  # nodes that are looked at
# virsh reads its commands by words, and digits alone as another machine's number
NAME = re.compile(r"(?![0-9]+$)[A-Za-z0-9][A-Za-z0-9_.+-]{0,62}")
log = logging.getLogger("cod.vcm")


class HostPool:
    """A pool of virtual hosts. `dry_run`: start and stop no machines; tests pass their own
    `connect` and `clock`."""

    def __init__(
        self,
        table: LibvirtTable,
        vcluster: str,
        *,
        dry_run: bool = False,
        connect: Callable[[str], Virsh] = Virsh,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._table, self._owner, self._dry_run = table, f"cod:{vcluster}", dry_run
        self._connect, self._clock = connect, clock
        self._links: dict[str, Virsh] = {}
        # the machines on each node, as last read: a node that does not answer may still run them
        self._seen: dict[str, dict[str, Machine]] = {}
        self._leaving: set[str] = set()
        self._empty_since: dict[str, float] = {}
        self._stopping: dict[str, float] = {}
        self._logged: set[str] = set()
        self._silent_since: dict[str, float] = {}
        # nodes that were leaving before a restart, whose machines are not known yet
        self._recalled: set[str] = set()
        self._held: dict[str, float] = {}  # machines that are not started before then
        self._blind_until = 0.0  # nor any machine before that
        self._logged_blind = ""
        # one thread changes machines at a time: two could start one machine on two nodes
        self._alone = Lock()

    # ------------------------------------------------------------ what is wanted

    def look(self, members: Mapping[str, Member], coming: Counter[str], now: float) -> Demand:
        """Start and stop machines as the folder says, and return the demand for nodes to run
        them."""
        with self._alone:
            return self._look(members, coming, now)

    def _look(self, members: Mapping[str, Member], coming: Counter[str], now: float) -> Demand:
        documents = self._documents()
        ours = {name: one for name, one in members.items() if name not in self._table.keep}
        with ThreadPoolExecutor(AT_ONCE) as threads:  # those that are silent take a minute each
            seen = threads.map(self._see, ours.values())
            answering = {name for name, answers in zip(ours, seen, strict=True) if answers}
        for name in answering if not self._dry_run else ():
            self._end_unwanted(ours[name], documents)
        unseen = sorted((ours.keys() | self._recalled) - self._seen.keys())
        if unseen or now < self._blind_until:
            self._say_blind(unseen)
            return Demand()
        self._logged_blind = ""
        self._held = {name: until for name, until in self._held.items() if now < until}
        wanted = {
            name: machine.size for name, (machine, _) in documents.items() if name not in self._held
        }
        hosts = {
            name: VirtualHost(
                self._capacity(ours[name]) if name in ours else Size(),
                {each: machine.size for each, machine in running.items()},
                name in answering and name not in self._leaving,
            )
            for name, running in self._seen.items()
        }
        found = place(wanted, hosts)
        for machine, host in found.start.items() if not self._dry_run else ():
            self._start(ours[host], *documents[machine])
        empty = {name for name in answering if not self._seen[name]}
        self._empty_since = {name: self._empty_since.get(name, now) for name in empty}
        # a chosen node is no longer a member at the next look, unless its reclaim was cancelled
        self._leaving -= ours.keys()
        return self._demand(ours, coming, {name: wanted[name] for name in found.waiting}, now)

    def _demand(
        self,
        ours: Mapping[str, Member],
        coming: Counter[str],
        waiting: Mapping[str, Size],
        now: float,
    ) -> Demand:
        count, too_large = new_hosts(waiting, self._table.capacities[0].size)
        for name in {*too_large} - self._logged:
            log.warning("machine %s is larger than a node of the pool", name)
        self._logged = set(too_large)
        size, on_the_way = len(ours), coming.total()
        count = max(count, self._table.minimum - size)
        more = min(count - on_the_way, self._table.maximum - size - on_the_way)
        old = [
            name
            for name, since in sorted(self._empty_since.items(), key=lambda one: one[::-1])
            if now >= since + self._table.idle_limit
        ]
        hoped_for = waiting.keys() - {*too_large}
        leave = old[: max(0, size - self._table.minimum)] if not hoped_for else []
        return Demand(
            {ANY: more} if more > 0 else {},
            tuple(leave),
            withdraw={"": on_the_way - count} if on_the_way > count else {},
            why=(
                f"{len(waiting)} virtual machines wait"
                if more > 0
                else f"empty for {self._table.idle_limit:.0f} s"
                if leave
                else ""
            ),
        )

    def _say_blind(self, unseen: Sequence[str]) -> None:
        sentence = (
            f"no machine is started until {', '.join(unseen)} answer: one that runs there would run"
            " twice"
            if unseen
            else "no machine is started until the power of a node that is gone has been cut"
        )
        if sentence != self._logged_blind:
            log.warning("%s", sentence)
        self._logged_blind = sentence

    def _documents(self) -> dict[str, tuple[Machine, str]]:
        """Return the machines that should run, with their documents. Raises if the folder cannot be
        read: then nothing is changed."""
        found = dict[str, tuple[Machine, str]]()
        for path in sorted(Path(self._table.machines).iterdir()):
            if path.suffix != ".xml":
                continue
            document = path.read_text()
            try:
                machine = read(document)
            except NotUnderstood as error:
                raise NotUnderstood(f"{path}: {error}") from None
            if machine.name != path.stem or not NAME.fullmatch(machine.name):
                raise NotUnderstood(
                    f"{path}: the file's name and the machine's have to be one word, no number"
                )
            found[machine.name] = machine, document
        return found

    def _capacity(self, member: Member) -> Size:
        """Return the declared capacity of a node; none for a type without a declaration."""
        declared = {one.type: one.size for one in self._table.capacities}
        return declared.get(member.type, declared.get("", Size()))

    def _see(self, member: Member) -> bool:
        """Look at the machines of a node. Return False if it does not answer: the machines seen
        last then count as running, and none is started there."""
        name = member.hostname
        try:
            self._seen[name] = self._link(member).machines()
        except (CommandFailed, NotUnderstood) as error:
            if name not in self._silent_since:
                log.warning("%s: %s", name, error)
            self._silent_since.setdefault(name, self._clock())
            return False
        if self._silent_since.pop(name, None) is not None:
            log.info("%s answers again", name)
        return True

    def _link(self, member: Member) -> Virsh:
        uri = self._table.uri.format(hostname=member.hostname, address=member.address)
        return self._links.setdefault(member.hostname, self._connect(uri))

    def _start(self, member: Member, machine: Machine, document: str) -> None:
        # counts as running there until the node is read again: the command may have succeeded
        # even if its answer is lost
        self._seen[member.hostname][machine.name] = machine
        self._stopping.pop(machine.name, None)
        try:
            self._link(member).start(owned(document, self._owner))
        except CommandFailed as error:
            log.warning("machine %s is not started on %s: %s", machine.name, member.hostname, error)
            return
        log.info("machine %s runs on %s", machine.name, member.hostname)

    def _end_unwanted(self, member: Member, documents: Mapping[str, object]) -> None:
        unwanted = {
            name
            for name, machine in self._seen[member.hostname].items()
            if machine.owner == self._owner and name not in documents
        }
        if member.hostname not in self._leaving:
            for name in self._seen[member.hostname].keys() - unwanted:
                self._stopping.pop(name, None)  # it is wanted again
        self._stop(member, unwanted)

    def _stop(self, member: Member, names: set[str]) -> None:
        """Shut machines down, once each, and end those that still run after `stop_time`."""
        now = self._clock()
        for name in sorted(names):
            try:
                if name not in self._stopping:
                    self._stopping[name] = now
                    self._link(member).shut_down(name)
                elif now >= self._stopping[name] + self._table.stop_time:
                    self._link(member).end(name)
            except CommandFailed as error:  # it may have ended by itself
                log.info("%s: %s", member.hostname, error)
        here = set().union(*self._seen.values())
        self._stopping = {name: at for name, at in self._stopping.items() if name in here}

    # ------------------------------------------------------------ joining and leaving

    def add(self, member: Member) -> None:
        """Accept a node for machines.

        Raises `NotYet` until its libvirt answers, and `GivenUp` if the node has less than its
        type's declared capacity.
        """
        if member.hostname in self._table.keep:
            return
        with self._alone:
            self._leaving.discard(member.hostname)
            self._part(member.hostname)  # it may have another address now
            link = self._link(member)
        declared = self._capacity(member)
        if declared == Size():
            raise GivenUp(f"no capacity is declared for nodes of type {member.type!r}")
        has = link.capacity()  # without the lock: a node that is booting takes its time
        if not has.holds(declared):
            raise GivenUp(
                f"it has {has.cpus} processors and {has.memory} MiB, less than is declared"
            )
        with self._alone:
            if not self._see(member):
                raise NotYet(f"{member.hostname} does not answer")
            self._recalled.discard(member.hostname)

    def recall(self, promised: Mapping[str, float]) -> None:
        """Remember nodes that were leaving before a restart. No machine is started until these
        nodes have been read."""
        self._recalled.update(name for name in promised if name not in self._table.keep)

    def choose(
        self, reclaim: Reclaim, members: Mapping[str, Member], now: float
    ) -> Sequence[Named]:
        """Choose the nodes whose machines have the least memory in all, empty nodes first."""
        with self._alone:

            def cost(name: str) -> tuple[int, str]:
                running = self._seen.get(name, {}).values()
                return sum(one.size.memory for one in running), name

            ours = sorted((name for name in members if name not in self._table.keep), key=cost)
            chosen = ours[: reclaim.count]
            self._leaving.update(chosen)
            spare = max(1.0, min(self._table.stop_time, reclaim.deadline - now))
            return [Named(name, spare if self._seen.get(name) else 1.0) for name in chosen]

    def remove(self, member: Member, lost: bool) -> None:
        """Stop the pool's machines on a node; the next look starts them on other nodes.

        Machines that are not the pool's end with the node. Raises `NotYet` while machines shut
        down, and, for up to `stop_time`, while a node that is not `lost` does not answer.
        """
        name = member.hostname
        if name in self._table.keep:
            return
        with self._alone:
            self._leaving.add(name)
            if not lost and self._see(member):
                running = self._seen[name]
                ours = {machine for machine, state in running.items() if state.owner == self._owner}
                self._stop(member, ours)
                if ours:
                    raise NotYet(f"machines on {name} shut down")
            elif not lost and self._clock() < self._silent_since[name] + self._table.stop_time:
                raise NotYet(f"{name} does not answer")
            # machines that may still run there start elsewhere only after its power has been cut
            elif name in self._seen:
                self._held.update(dict.fromkeys(self._seen[name], self._clock() + GONE))
            elif member.since or name in self._recalled:  # it had been added in a former life
                self._blind_until = self._clock() + GONE
            for known in (self._seen, self._silent_since, self._empty_since):
                known.pop(name, None)
            self._recalled.discard(name)
            self._leaving.discard(name)
            self._part(name)

    def _part(self, hostname: str) -> None:
        if link := self._links.pop(hostname, None):
            link.close()
