"""A world by seed: a whole server on virtual time, machines that converse with it, people who ask,
and all that goes wrong.

What happens is planned by the seed before the world begins, as a list of acts, so that a shorter
list can be tried. Chance within (delays, losses, what the database does) is drawn from the same
seed as the world goes on.
"""

from __future__ import annotations

import gc
import logging
import random
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from sqlalchemy import ColumnElement, Engine, and_, func, select
from twisted.internet.defer import Deferred
from twisted.logger import globalLogPublisher

from cod.flows import replies
from cod.flows.nodes import nodes as node_flows
from cod.flows.scheduler import maintenance, reinstalls
from cod.flows.scheduler import vclusters as owner_flows
from cod.flows.vcms import vcms as vcm_flows
from cod.flows.volumes import volumes as volume_flows
from cod.model import (
    IN_MAINTENANCE,
    AskedVcluster,
    AskedVolume,
    AskedWindow,
    FlowContext,
    Refused,
    Result,
    Site,
    VolumeView,
    Who,
)
from cod.policy.histories import Histories, NodeTransition
from cod.pool import Pool
from cod.states import NODE_RULES, Disk, NodeEvent, NodeState, WrongEvent
from cod.store import tables as t
from cod.store import volumes
from cod.store.engine import Tx
from cod.store.nodes.nodes import Stale
from cod.store.people import audit, groups
from cod.store.scheduler import vclusters
from cod.web.api.resources.documents import documents as document_routes
from cod.web.api.resources.documents.documents import DocumentApply
from cod.web.api.routes import Call, Names
from tests.contexts import flow_context
from tests.history_rows import history_after, node_rows
from tests.world.clock import Clock, SimReactor
from tests.world.fileserver import WAYS, SimFileServer, attached
from tests.world.loss import MOST, Loss
from tests.world.machine import BMCS, SERVERS, Machine, Relay
from tests.world.network import Network, Weather
from tests.world.plan import OF_VOLUMES, Act, Plan
from tests.world.server import Part, seams, settings, site
from tests.world.switch import HOME, VLANS, SimSwitch, port_of
from tests.world.switch import WAYS as SWITCH_WAYS
from tests.world.vcm import SimVcm

START = 1_000_000.0
PARTS = ("edge", "images", "manager", "web")
NAMES = ("one", "two", "three")
CLOCK_STEP = 3600.0
GROUPS = {"low": 0, "high": 9}
FREE = (NodeState.INACTIVE, NodeState.OFF)
MOVING = [state for state, rule in NODE_RULES.items() if rule.kind == "motion"]
RESTART = 1.5  # seconds until a killed part is started again
REST = 1200.0  # seconds in which everything comes to rest
# seconds after the end of a lease in which its nodes are taken back: a manager that has only begun
# waits for a minute, and the owner has a grace
LEASE_LATE = 100.0
PLANNED = 20.0  # seconds within which a manager has planned for a request, or with free nodes
ASKS_AGAIN = 3.0  # seconds until a person whose question got no answer asks again
LATER = {"exchange": 40.0, "forget": MOST}  # seconds until the last thing of such an act happens
TRIES = 40  # a server is off for up to 80 s


# ---------------------------------------------------------------- the database


class Database:
    """How the database is: what becomes of the next transaction."""

    def __init__(self, world: World, chances: dict[str, float]) -> None:
        self._world, self.chances = world, chances
        self._rng = random.Random(f"{world.seed} database")
        self.away_until = 0.0

    def latency(self) -> float:
        return self._rng.uniform(0.0005, 0.004)

    def fault(self, reading: bool) -> str:
        """Return what is to go wrong with the next transaction; ''."""
        world, drawn = self._world, self._rng.random()
        if world.clock.now < self.away_until:
            world.seen["transaction while the database is away"] += 1
            return "away"
        for name in ("lost answer", "deadlock"):
            drawn -= self.chances[name]
            if drawn < 0 and not reading:
                world.seen[f"transaction: {name}"] += 1
                return name
        return ""


# ---------------------------------------------------------------- the world


Told = tuple[float, Callable[["World"], None]]
"""What people ask for or do, and how many seconds after the beginning."""


@dataclass
class Outcome:
    """What came of a world."""

    seed: int
    steps: int = 0
    transactions: int = 0
    seconds: float = 0.0
    seen: Counter[str] = field(default_factory=Counter)
    troubles: list[str] = field(default_factory=list)
    story: list[str] = field(default_factory=list)
    digest: str = ""


class _Log(logging.Handler):
    """What the server logs as an error that is no trouble of the database is a fault of its own."""

    def __init__(self, world: World) -> None:
        super().__init__(logging.WARNING)
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        sentence = record.getMessage()
        self._world.say(f"log: {sentence[:200]}")
        if sentence.startswith("not so: ") and not re.search(": (COD|OSError): ", sentence):
            self._world.trouble(f"a VCM says: {sentence}")
        if error is not None and not (Pool.is_away(error) or isinstance(error, Stale)):
            self._world.trouble(f"{sentence}: {type(error).__name__}: {error}")


class World:
    """A world while it runs."""

    def __init__(
        self, seed: int, engine: Engine, folder: Path, plan: Plan, told: Sequence[Told] = ()
    ) -> None:
        self.seed, self.engine, self.plan = seed, engine, plan
        self.sqlite: Any = engine.raw_connection().driver_connection
        self.clock, self.outcome = Clock(START), Outcome(seed)
        self.seen = self.outcome.seen
        self._rng = random.Random(f"{seed} world")
        self.network = Network(self.clock, random.Random(f"{seed} network"), self.seen)
        self.network.weather = plan.weather
        self.database = Database(self, dict(plan.chances))
        self.servers = SERVERS[: plan.servers]
        self.settings = [settings(folder, name) for name in NAMES[: plan.servers]]
        self.sites = [site(plan, own, self.servers) for own in self.servers]
        self.ahead = [0.0] * plan.servers  # seconds by which each server's clock is wrong
        # seconds by which one was ahead at most. In the end that is the right time on all servers:
        # what was written by that clock would come so much later otherwise
        self._furthest = 0.0
        # (process, whether it has read) -> how long its server stops then, or as it begins to write
        self._hesitating: dict[tuple[str, bool], float] = {}
        self._late: list[float] = []  # for how long a server stops as it is told of a written disk
        self._acting: list[float] = []  # for how long the next managers stop as they begin an act
        self.relay = Relay(self.network)
        self.files = SimFileServer(self)
        self.switch = SimSwitch(self)
        self.networks: dict[int, int] = {}  # VLAN -> the virtual cluster that had it last
        self.machines = [Machine(number, self) for number in range(plan.machines)]
        self.parts: dict[tuple[int, str], Part] = {}  # by server
        self.calm, self._served_since = bool(told), 0.0
        self.checker = Histories()
        self.last, self._moved = 0, 0.0  # the newest transition, and when it was seen
        self.loss = Loss(self)
        self._written_rows = 0  # when it was checked last, as SQLite counts them
        # node -> (since when, full name of the host that it is) of its holders
        self.holders: dict[int, list[tuple[float, str]]] = {}
        self._asked: set[str] = set()  # who waits for an answer
        self.restored: set[str] = set()  # machines that an administrator brings back
        # address -> the machine that was lent it, in which boot, and until when
        self._lent: dict[str, tuple[Machine, SimReactor, float]] = {}
        self._made = self._runs = 0
        # the newest pending request, the generation of the manager's claim, both since when
        self._newest: tuple[int | None, int | None, float] = (None, None, 0.0)
        self._folder, self._told = folder, told
        # what people have asked for, by the run that is in the audit if it was carried out
        self._questions: dict[str, Told] = {}
        self._done: list[Told] = []  # what people have done without a question
        self.holdings: dict[str, tuple[int, int]] | None = None  # at rest
        self.past: list[Told] = []  # until then
        self._vcms: dict[str, SimVcm] = {}  # by virtual cluster

    # ------------------------------------------------------------ told by others

    def say(self, sentence: str) -> None:
        """Add to the story."""
        self.outcome.story.append(f"{self.clock.now - START:8.2f} {sentence}")

    def trouble(self, sentence: str) -> None:
        """Note what must not be."""
        self.say(f"!! {sentence}")
        self.outcome.troubles.append(sentence)

    def loses_wake(self) -> bool:
        return not self.calm and self._rng.random() < self.database.chances["wake"]

    def committed(self, reactor: SimReactor, reading: bool) -> None:
        """Look at what a transaction has left; sometimes its process is killed before it knows."""
        self.outcome.transactions += 1
        if reading:
            self.hesitate(reactor, has_read=True)
        else:
            self.check(by=reactor)

    def booted(self, machine: Machine, asked: float) -> None:
        """Check that a system that begins is the one whose node the machine was, when it asked for
        its boot script or since."""
        held = self.holders.get(machine.number + 1, [])
        since = [name for at, name in held if at > asked]
        before = [name for at, name in held if at <= asked][-1:]
        self.say(f"{machine.name} runs {machine.disk}")
        self.seen["system begun"] += 1
        self._check_vlan(machine, machine.disk)
        if machine.disk in (*before, *since):
            return
        if self.loss.holds_forgotten(machine):
            self.seen["system begun that the database has forgotten"] += 1
            self.loss.boots(machine)
        else:
            self.trouble(f"{machine.name} boots {machine.disk}, and is {before}, {since}")

    def named(self, machine: Machine, name: str) -> None:
        """Check that the metadata service has told a system its own name."""
        self.seen["metadata told"] += 1
        if name != machine.running and not self._is_left_over(machine):
            self.trouble(f"{machine.name} runs {machine.running}, and is told that it is {name}")

    def lent(self, machine: Machine, reactor: SimReactor, address: str, seconds: float) -> None:
        """Check that no other machine uses the address that this one was just lent."""
        other, boot, until = self._lent.get(address, (machine, reactor, 0.0))
        uses = boot.host == address and not boot.killed and until > self.clock.now
        if uses and other is not machine:
            if self._is_left_over(other):
                self.seen["address of a released system that still runs"] += 1
            else:
                self.trouble(f"{machine.name} is given {address}, which {other.name} uses")
        self._lent[address] = machine, reactor, self.clock.now + seconds
        if machine.running == machine.disk and not self._is_left_over(machine):
            self._check_vlan(machine, machine.running)
        self.check_volumes()

    def _check_vlan(self, machine: Machine, system: str) -> None:
        """Check that a system that begins, or gets its address, is in its virtual cluster's VLAN,
        unless the switch or a foreign hand has just moved the machine."""
        vlan = self.switch.vlan(machine.number)
        with self.engine.connect() as tx:
            v, w = t.vclusters.c, t.vcluster_networks.c
            query = select(w.vlan).join_from(
                t.vcluster_networks, t.vclusters, v.id == w.vcluster_id
            )
            own = tx.scalar(query.where(v.name == system.split(".")[1])) or HOME
        if vlan == own:
            self.seen["system in a VLAN of its own"] += vlan != HOME
        elif port_of(machine.number) in self.switch.untold or self.loss.holds_forgotten(machine):
            self.seen["system in a VLAN that nobody knows of"] += 1
        else:
            self.trouble(f"{machine.name} runs {system} in VLAN {vlan}, and its own is {own}")

    def check_volumes(self) -> None:
        """Check that no system can mount a volume that is not attached to its virtual cluster."""
        for address, (machine, boot, _) in self._lent.items():
            runs = machine.disk and machine.running == machine.disk and boot.host == address
            reachable = self.files.reachable(address) if runs and not boot.killed else set()
            left = self._is_left_over(machine) or self.loss.holds_forgotten(machine)
            if not reachable or left:
                continue
            with self.engine.connect() as tx:
                own = attached(tx, machine.disk.split(".")[1])
            self.seen["volumes that a system can mount"] += len(reachable & own)
            if foreign := reachable - own:
                self.trouble(f"{machine.name} runs {machine.disk}, and can mount volume {foreign}")

    def carried_out(self, machine: Machine, action: str, servers: Collection[str]) -> None:
        """Have an owner delete a virtual cluster as an agent says that its disk is written, to a
        server that stands still, and whose BMC resets nothing: the agent says so again on its next
        connection, when the node has another order."""
        held = self.holders[machine.number + 1][-1][1].split(".")
        if action != "prime" or len(held) == 1 or not self._late:
            return
        self.seen["word of an agent heard late"] += 1
        self._stop(servers, self._late.pop(), ("edge",))
        machine.bmc = "lies"
        self.ask(f"delete {held[1]}", owner_flows.delete, key=f"late {held}", name=held[1])

    def _is_left_over(self, machine: Machine) -> bool:
        """Return whether the machine runs the system of a former holder, because its BMC has not
        reset it: the server frees the node's address when the node is released."""
        held = self.holders.get(machine.number + 1, [])
        return machine.running == machine.disk and machine.running not in [
            name for _, name in held[-1:]
        ]

    # ------------------------------------------------------------ what must hold

    def check(self, *, whole: bool = False, by: SimReactor | None = None) -> None:
        """Check what must hold after every transaction, of the process `by`; after those that have
        moved no node only if `whole`."""
        written = self.sqlite.total_changes  # most looks find nothing, and need no transaction
        if written == self._written_rows and not whole:
            return
        self._written_rows = written
        with self.engine.connect() as tx:
            newest = tx.exec_driver_sql("SELECT max(id) FROM node_history").scalar() or 0
            if newest <= self.last and not whole:
                return
            new = history_after(tx, self.last)
            before, self.last = self.last, newest
            self._moved = self.clock.now if new else self._moved
            found = [str(one) for row in new for one in self.checker.add(row)]
            found += map(str, self.checker.compare(node_rows(tx)))
            found += self._look(tx)
            found += self._managed(tx, by, before) if by is not None else []
            found += _half_applied(tx)
        for row in new:
            self.seen[f"{row.from_state}: {row.event}"] += 1
            self.say(f"m{row.node - 1}: {row.from_state} -> {row.event} -> {row.to_state}")
            found += self._written(row)
            if row.event == NodeEvent.RESTORED and f"m{row.node - 1}" not in self.restored:
                found.append(f"m{row.node - 1} is restored, and no administrator has asked for it")
        for one in found:
            self.trouble(one)

    def _written(self, row: NodeTransition) -> list[str]:
        """Return in what a transition contradicts the machine's disk."""
        machine = self.machines[row.node - 1]
        if row.event not in (NodeEvent.PRIMED, NodeEvent.WIPED):
            return []
        wanted = self.holders[row.node][-1][1] if row.event == NodeEvent.PRIMED else ""
        if machine.disk == wanted:
            return []
        return [f"{machine.name} is {row.event}, and its disk holds {machine.disk}, not {wanted}"]

    def _check_leases(self) -> None:
        """Check that no vcluster has nodes long after its lease has ended."""
        v = t.vclusters.c
        if self.clock.now < self._served_since + LEASE_LATE:
            return
        if self.loss.is_deciding():  # no lease ends
            self._served_since = self.clock.now
            return
        with self.engine.connect() as tx:
            late = tx.execute(select(v.name, v.expires_at).where(self._over(LEASE_LATE))).all()
        for name, ended in late:
            self.trouble(f"{name} has nodes, and its lease ended at {ended - START:.0f} s")

    def _over(self, seconds: float) -> ColumnElement[bool]:
        """Return the condition that a vcluster has nodes though its lease ended so long ago."""
        v = t.vclusters.c
        held = select(t.nodes.c.id).where(t.nodes.c.vcluster_id == v.id).exists()
        return and_(v.expires_at < self.clock.now + self._furthest - seconds, held)

    def _managed(self, tx: Tx, by: SimReactor, before: int) -> list[str]:
        """Return that another than the manager has taken or given nodes."""
        c = t.claims.c
        names = set(tx.scalars(select(t.node_history.c.actor).where(t.node_history.c.id > before)))
        owner = tx.scalar(select(c.owner).where(c.name == "manager"))
        own = NAMES[self.servers.index(by.host)]
        if "manager" not in names or owner == own:
            return []
        return [f"server {own} has decided, and {owner} is the manager"]

    def _look(self, tx: Tx) -> list[str]:
        """Return what of the nodes contradicts their machines, and remember the holders."""
        found = []
        n, v = t.nodes.c, t.vclusters.c
        query = select(n.id, n.state, n.disk, n.hostname, v.name)
        for node, state, disk, host, name in tx.execute(
            query.outerjoin_from(t.nodes, t.vclusters, v.id == n.vcluster_id)
        ):
            held = self.holders.setdefault(node, [])
            full = f"{host}.{name}.{self.sites[0].domain}" if name else ""
            if not held or held[-1][1] != full:
                held.append((self.clock.now, full))
            machine = self.machines[node - 1]
            is_clean = state in FREE and disk == Disk.CLEAN and self.loss.noticed
            if is_clean and machine.disk:
                found.append(f"{machine.name} is free, and its disk holds {machine.disk}")
        w = t.vcluster_networks.c
        for vlan, vcluster in tx.execute(select(w.vlan, w.vcluster_id)):
            if self.networks.get(vlan, vcluster) != vcluster:
                self.seen["VLAN given to another virtual cluster"] += 1
                found += [
                    f"VLAN {vlan} is given to another, and {machine.name} is in it"
                    for machine in self.machines
                    if self.switch.vlan(machine.number) == vlan
                    and port_of(machine.number) not in self.switch.untold
                ]
            self.networks[vlan] = vcluster
        return found

    # ------------------------------------------------------------ life

    def _unhandled(self, event: Mapping[str, Any]) -> None:
        """Note an error that Twisted logs: nobody has taken it."""
        failure = event.get("log_failure")
        if failure is not None:
            self.trouble(f"nobody took {failure.type.__name__}: {failure.getErrorMessage()}")

    def run(self, skip: Collection[int] = ()) -> Outcome:
        """Let everything happen that is planned, but for the acts of those numbers."""
        log, handler = logging.getLogger("cod"), _Log(self)
        propagate, level = log.propagate, log.level
        log.addHandler(handler)
        log.propagate = False
        log.setLevel(logging.WARNING)
        globalLogPublisher.addObserver(self._unhandled)
        # Coroutines of a killed process would go through their `finally` when they are collected,
        # which is at another moment each time.
        gc.disable()
        try:
            with seams(self):
                self._run(skip)
                gc.collect(0)  # a Deferred tells of an error that nobody took when it is deleted
        finally:
            gc.enable()
            globalLogPublisher.removeObserver(self._unhandled)
            log.removeHandler(handler)
            log.propagate = propagate
            log.setLevel(level)
        self.clock.trace.update("\n".join(self.outcome.story).encode())
        self.outcome.digest = self.clock.trace.hexdigest()
        self.outcome.steps = self.clock.steps
        self.outcome.seconds = self.clock.now - START
        return self.outcome

    def _run(self, skip: Collection[int]) -> None:
        self.say(
            f"{len(self.machines)} machines, {len(self.servers)} servers, {self.plan.threads}"
            f" database threads, patience {self.plan.patience}, {self.plan.weather},"
            f" {self.plan.chances}, the reserve is"
            f" {'managed' if self.plan.energy.manage else 'not managed'}"
        )
        for server in range(len(self.servers)):
            for name in PARTS:
                self._start(server, name)
        self.clock.later(0.0, self._restore)
        for number, act in enumerate(self.plan.acts):
            if number not in skip:
                self.clock.later(act.at, self._act, act)
        for at, tell in self._told:
            self.clock.later(at, tell, self)
        ends = [act.at + LATER.get(act.what, 0.0) for act in self.plan.acts]
        ends += [at for at, _ in self._told]
        last = max(ends, default=0.0)
        self._pass(last + 5.0)
        self._calm_down()
        self._rest("at rest", self._is_settled)
        if not self.outcome.troubles:
            self._waiting_in_vain()
            self.holdings, self.past = self._counted(), self._history()
            self._delete_all()
            self._rest("given back", self._is_empty)
        for part in list(self.parts):
            self.kill(*part, again=False)
        for vcm in self._vcms.values():
            vcm.stop()
        for machine in self.machines:
            machine.power_off()

    def _pass(self, seconds: float) -> None:
        until = self.clock.now + seconds
        while self.clock.step(until) and not self.outcome.troubles:
            pass

    def _rest(self, what: str, is_there: Callable[[], str]) -> None:
        """Wait until `is_there` returns nothing; what it returns is in the way."""
        until = self.clock.now + REST
        while not self.outcome.troubles:
            self._pass(5.0)
            self.check(whole=True)
            self._check_leases()
            why = is_there()
            if not why:
                self.say(f"{what} after {self.clock.now - START:.0f} s")
                return
            if self.clock.now > until:
                self.trouble(f"not {what} after {REST:.0f} s: {why}")

    def _calm_down(self) -> None:
        self.calm = True
        # a server that stands still does what it was asked, and may manage, when it goes on
        still = [part.reactor.still_until for part in self.parts.values()]
        self._served_since = max([self.clock.now, *still])
        self.say("from now on nothing goes wrong")
        self.network.weather = Weather()
        self.network.down.clear()
        self.ahead = [self._furthest] * len(self.servers)
        self._hesitating.clear()
        self._late.clear()
        self._acting.clear()
        self.database.chances = dict.fromkeys(self.database.chances, 0.0)
        self.database.away_until = 0.0
        for machine in self.machines:
            machine.bmc, machine.fails, machine.slow = "well", 0.0, 1.0
        self.files.way = self.switch.way = "well"

    def _is_settled(self) -> str:
        """Return which nodes are in motion, and which questions have no answer."""
        if self._asked:
            return f"no answer to {sorted(self._asked)}"
        if self.clock.now < self._served_since:
            return "a server stands still"
        with self.engine.connect() as tx:
            n = t.nodes.c
            moving = tx.execute(
                select(n.id, n.state, n.reason).where(n.state.in_([*MOVING, NodeState.QUARANTINED]))
            ).all()
            if moving:
                return ", ".join(f"m{row[0] - 1} {row.state} ({row.reason})" for row in moving)
            if not self.loss.is_over(tx):
                return "the site or some of its nodes are held"
            v = t.vclusters.c
            over = tx.scalars(select(v.name).where(self._over(0.0))).all()
            if over:
                return f"the leases of {over} are over"
            r, k = t.node_requests.c, t.reclaims.c
            newest = tx.scalar(select(func.max(r.id)).where(r.state == "pending"))
            c = t.claims.c
            manages = c.name == "manager", c.expires_at > self.clock.now + self._furthest
            manager = tx.scalar(select(c.generation).where(*manages))
            if manager is None:
                return "nobody manages"
            if (newest, manager) != self._newest[:2]:
                self._newest = newest, manager, self.clock.now
            planned_at = max(self._newest[2], self._moved) + PLANNED
            if newest is not None and self.clock.now < planned_at:
                return "a request or its manager is new, or nodes have just moved"
            if tx.scalar(select(func.count()).where(k.ended_at.is_(None))):
                return "nodes are being reclaimed"
            differing = [why for vcm in self._vcms.values() if (why := vcm.differs(tx))]
            if differing:
                return "; ".join(differing)
            if why := self.files.differs(tx) or self.switch.differs(tx):
                return why
            a = t.power_actions.c
            open_ = tx.scalar(select(func.count()).where(a.done_at.is_(None)))
            return f"{open_} power wishes are open" if open_ else ""

    def _waiting_in_vain(self) -> None:
        """Check that the first request does not wait for nodes that are free: others may wait for
        those that are kept for it."""
        with self.engine.connect() as tx:
            r, q, n = t.node_requests.c, t.request_tuples.c, t.nodes.c
            wanted = tx.execute(
                select(r.id, func.sum(q["count"]))
                .join_from(t.node_requests, t.request_tuples)
                .where(r.state == "pending")
                .group_by(r.id)
                .order_by(r.priority.desc(), r.id)
            ).all()
            w, m = t.maintenance_windows.c, t.maintenance_nodes.c
            maintained = select(m.node_id).join_from(t.maintenance_nodes, t.maintenance_windows)
            maintained = maintained.where(w.state.in_(("planned", "running")))
            kinds = select(func.count()).where(n.state.in_(FREE), n.id.not_in(maintained))
            kinds = kinds.group_by(n.type_id)
            free = max(tx.scalars(kinds), default=0)
        if wanted:
            self.seen["requests wait at rest"] += 1
        if wanted and wanted[0][1] <= free:
            self.trouble(f"requests {wanted} wait, and {free} nodes of a type are free")

    def _counted(self) -> dict[str, tuple[int, int]] | None:
        """Return size and nodes of each virtual cluster at rest, without those of a short lease,
        which begins when its nodes are granted; None where all depends on how quickly each was
        served: nodes were too few for all, or a clock was wrong, so that leases ended early (those
        that a clock an hour behind has granted, when it is set right)."""
        with self.engine.connect() as tx:
            v, n, r, k = t.vclusters.c, t.nodes.c, t.node_requests.c, t.reclaims.c
            pending = select(func.count()).where(r.state == "pending")
            if (
                self.seen["clock set"]
                or self.loss.times
                or tx.scalar(pending)
                or tx.scalar(select(func.count(k.id)))
            ):
                return None
            held = select(v.name, v.size, func.count(n.id)).outerjoin_from(t.vclusters, t.nodes)
            lasting = v.state == "active", v.lease_time > REST
            found = tx.execute(held.where(*lasting).group_by(v.id).order_by(v.id))
            return {name: (size, count) for name, size, count in found}

    def _history(self) -> list[Told]:
        """Return what people have done, and asked for where that was carried out; and the present,
        until which leases end."""
        with self.engine.connect() as tx:
            runs = set(tx.scalars(select(t.audit.c.run)))
        asked = [one for run, one in self._questions.items() if run in runs]
        return [*self._done, *asked, (self.clock.now - START, lambda _: None)]

    def _is_empty(self) -> str:
        with self.engine.connect() as tx:
            v, r = t.vclusters.c, t.node_requests.c
            alive = tx.scalars(select(v.name).where(v.state != "ended")).all()
            waiting = tx.scalar(select(func.count()).where(r.state == "pending"))
            held = tx.scalar(select(func.count()).where(t.nodes.c.state.not_in(FREE)))
        if alive or waiting or held:
            return f"{alive} not ended, {waiting} requests, {held} nodes: {self._is_settled()}"
        return self._is_settled()

    # ------------------------------------------------------------ processes

    def _start(self, server: int, name: str) -> None:
        self.parts[server, name] = part = Part(self, server, name, self.plan.threads)
        part.start()
        if self.calm:  # its server was off until now
            self._served_since = self.clock.now

    def kill(self, server: int, name: str, *, again: bool = True, after: float = RESTART) -> None:
        part = self.parts.pop((server, name), None)
        if part is None:
            return
        part.reactor.kill()
        if again:
            self.clock.later(after, self._start, server, name)

    def _stop(self, hosts: Collection[str], seconds: float, names: Collection[str] = PARTS) -> None:
        """Stop processes of servers for so long, as SIGSTOP does."""
        self.say(f"{', '.join(names)} of {', '.join(hosts)} stand still for {seconds:.0f} s")
        for (_, name), part in self.parts.items():
            if part.reactor.host in hosts and name in names:
                part.reactor.still_until = self.clock.now + seconds

    def hesitate(self, reactor: SimReactor, *, has_read: bool) -> None:
        """Stop a server that is to stand still as its process begins to write, or has read: what it
        decides by is old then."""
        seconds = self._hesitating.pop((reactor.name, has_read), 0.0)
        if seconds:
            self.seen[f"server stood still as it {'had read' if has_read else 'decided'}"] += 1
            self._stop([reactor.host], seconds)

    def acts(self, reactor: SimReactor) -> None:
        """Stop a manager's server that is to stand still as it begins an act of its plan."""
        if self._acting:
            self.seen["manager stood still as it began an act"] += 1
            self._stop([reactor.host], self._acting.pop(0))

    # ------------------------------------------------------------ people

    def ask(
        self,
        words: str,
        flow: Any,
        *args: Any,
        key: str | None = None,
        recorded: bool = True,
        **kw: Any,
    ) -> None:
        """Ask as a person does: again with the same words when no answer comes. `recorded`: this
        is asked, too, in the world without faults that is compared with this one."""

        def again(world: World) -> None:
            world.ask(words, flow, *args, key=key, **kw)

        ident = f"{words} #{len(self.outcome.story)}"
        self._asked.add(ident)
        self.say(f"asks: {words}")
        first = len(self.outcome.story) % len(self.servers)

        async def asking() -> None:
            for attempt in range(TRIES if key else 1):
                part = self.parts.get(((first + attempt) % len(self.servers), "web"))
                if part is not None:
                    self._runs += 1
                    run = f"{self._runs:032x}"
                    if await self._once(
                        part, run, again if recorded else None, flow, args, key, kw
                    ):
                        break
                    self.seen["question asked again"] += 1
                await self._sleep(ASKS_AGAIN)
            self._asked.discard(ident)

        Deferred.fromCoroutine(asking())

    async def _once(
        self,
        part: Part,
        run: str,
        again: Callable[[World], None] | None,
        flow: Any,
        args: Any,
        key: str | None,
        kw: Any,
    ) -> bool:
        """Return whether an answer came to the attempt `run` at a question, which `again` asks
        again. What changes something is noted in the same transaction,
        as the API does it, and is to be found there once when the answer is there."""
        now, losses = part.now(), self.loss.times
        context = flow_context(part.site, now, "user:ann", key=key)

        def carried_out(tx: Tx) -> Any:
            return flow(tx, context, *args, **kw)

        def noted(tx: Tx) -> Any:
            if key is None:
                result = carried_out(tx)
            else:  # as the API does it
                mine = {"flow": carried_out, "key": f"{context.who} {key}", "question": key}
                result = replies.once(tx, **mine, status=200, body=str, now=now)
            audit.by(tx, context.who, "ask", "", now=now, run=run)
            if again is not None:
                # a server that stood still carries it out after what was asked later
                self._questions[run] = self.clock.now - START, again
            return result

        asked = part.pool.run_once(partial(audit.has_run, run=run, now=now), noted)
        # a part that is killed never answers
        watch = self.clock.later(30.0, lambda: asked.called or asked.cancel())
        try:
            result = await asked
        except (Refused, WrongEvent) as error:
            self.say(f"  is told: {error}")
            return True
        except Exception:
            return False
        finally:
            if watch.active():
                watch.cancel()
        with self.engine.connect() as tx:
            times = tx.scalar(select(func.count()).where(t.audit.c.run == run))
        if times != 1 and losses == self.loss.times:
            self.trouble(f"a question was answered, and carried out {times} times")
        part.wake.effects(() if isinstance(result, replies.Repeated) else result.effects)
        return True

    def _sleep(self, seconds: float) -> Deferred[None]:
        done: Deferred[None] = Deferred()
        self.clock.later(seconds, done.callback, None)
        return done

    def _restore(self) -> None:
        """Bring nodes back that were quarantined, from time to time, as an administrator does."""
        self.loss.decide()
        with self.engine.connect() as tx:
            n = t.nodes.c
            is_out = n.state == NodeState.QUARANTINED
            returns = n.reason.startswith(IN_MAINTENANCE)
            if self.loss.times:  # one that was out as its site was held waits to be restored
                returns = and_(returns, n.deadline.is_not(None))
            maintained = tx.scalars(select(n.name).where(is_out, returns)).all()
            names = set(tx.scalars(select(n.name).where(is_out))) - set(maintained)
        self.seen["nodes seen in maintenance"] += len(maintained)
        self.restored |= names
        for name in sorted(names) if not self.loss.is_deciding() else ():
            self._admin("restores", node_flows.restore, name)
        self.clock.later(20.0, self._restore)

    def _admin(self, words: str, flow: Any, name: str, **more: Any) -> None:
        self.ask(
            f"an administrator {words} {name}",
            lambda tx, context: flow(tx, context, name=name, **more),
            recorded=False,
        )

    def _live(self) -> list[tuple[str, int, str]]:
        with self.engine.connect() as tx:
            v = t.vclusters.c
            rows = tx.execute(
                select(v.name, v.size, v.state).where(v.state != "ended").order_by(v.id)
            )
            return [tuple(row) for row in rows]

    def _delete_all(self) -> None:
        for name, _, state in self._live():
            if state != "releasing":
                self.ask(f"delete {name}", owner_flows.delete, key=f"end {name}", name=name)

    # ------------------------------------------------------------ acts

    def _act(self, act: Act) -> None:
        """Do what was planned."""
        kind = act.what
        machine = self.machines[act.who % len(self.machines)]
        server = act.who // 7 % len(self.servers)
        if kind in ("create", "isolate", "resize", "release", "delete", "extend", "reinstall"):
            self._own(act)
        elif kind == "jobs" or "vcm" in kind:
            self._automate(act)
        elif kind in OF_VOLUMES:
            self._keep(act)
        elif kind == "apply":
            self._apply(act)
        elif kind == "exchange":
            self._exchange(act)
        elif kind == "switch":
            self.switch.way = SWITCH_WAYS[act.who % len(SWITCH_WAYS)]
            self.say(f"the switch {self.switch.way} for {150 * act.amount:.0f} s")
            self.clock.later(150 * act.amount, setattr, self.switch, "way", "well")
        elif kind == "port moved":
            self._move_port(act)
        elif kind == "quarantine":
            self._admin("quarantines", _quarantine, machine.name)
        elif kind == "cycle":
            self._admin("cycles", _cycle, machine.name)
        elif kind in ("maintain", "drain", "end maintenance"):
            self._maintain(act, machine)
        elif kind == "tag":
            tags = {"add" if act.amount < 0.6 else "remove": ["gpu"]}
            self._admin(f"tags {tags}", node_flows.tag, machine.name, **tags)
        elif kind == "fail over":
            self._fail_over(act)
        elif kind == "forget":
            self.loss.begin(act)
        elif kind == "kill":
            name = PARTS[act.who % len(PARTS)]
            self.say(f"part {name} of {self.servers[server]} is killed")
            self.seen["part killed"] += 1
            self.kill(server, name)
        elif kind == "kill server":
            self.say(f"the server {self.servers[server]} is killed")
            self.seen["server killed"] += 1
            for name in PARTS:
                self.kill(server, name)
        elif kind == "still":
            self.seen["server stood still"] += 1
            self._stop([self.servers[server]], 20 + 60 * act.amount)
        elif kind == "still deciding":
            self._hesitating[f"manager {server}", False] = 20 + 60 * act.amount
        elif kind == "still reading":
            self._hesitating[f"{PARTS[act.who % 3]} {server}", True] = 4 + 40 * act.amount
        elif kind == "still acting":
            # the one that takes over stands still for longer, before it has done the same
            self._acting += [20 + 20 * act.amount, 50 + 20 * act.amount]
        elif kind == "late answer":
            self._late.append(10 + 30 * act.amount)
        elif kind == "clock":
            self.ahead[server] += CLOCK_STEP if act.amount < 0.5 else -CLOCK_STEP
            self._furthest = max(self._furthest, self.ahead[server])
            self.seen["clock set"] += 1
            self.say(f"the clock of {self.servers[server]}: {self.ahead[server]:+.0f} s")
        elif kind == "away":
            self.say(f"the database is away for {30 * act.amount:.0f} s")
            self.database.away_until = self.clock.now + 30 * act.amount
        elif kind == "storm":
            self.say(f"half of all datagrams are lost for {20 * act.amount:.0f} s")
            self.network.weather = Weather(0.5, 0.2, 0.01, 2.0)
            self.clock.later(20 * act.amount, self._clear_up)
        else:
            self._hurt(machine, act)

    def _maintain(self, act: Act, machine: Machine) -> None:
        """Plan the maintenance of a machine or two, have it begin when they are free, or end it."""
        if act.what == "end maintenance":
            with self.engine.connect() as tx:
                w = t.maintenance_windows.c
                open_ = tx.scalars(select(w.id).where(w.state.in_(("planned", "running")))).all()
            if open_:
                window = open_[act.who % len(open_)]
                words = f"maintenance {window} ends"
                self.ask(words, maintenance.end, recorded=False, window_id=window)
            return
        number = machine.number + 1
        names = {machine.name, self.machines[number % len(self.machines)].name}
        self.restored |= names  # when it is over
        begins = None if act.what == "drain" else self.clock.now + 60.0 * act.amount
        ends = self.clock.now + 30.0 + 90.0 * act.amount
        asked = AskedWindow(
            "a new fan",
            " ".join(sorted(names)),
            begins_at=begins,
            ends_at=ends,
            drain=begins is None,
        )
        words = f"{act.what} of {asked.names} until {ends - START:.0f} s"
        key = f"maintenance {act.at:.4f}"
        self.ask(words, maintenance.plan, key=key, recorded=False, asked=asked)

    def _fail_over(self, act: Act) -> None:
        """Kill the server that manages, or stop it, for so long that the others take over at the
        same time."""
        with self.engine.connect() as tx:
            c = t.claims.c
            owner = tx.scalar(select(c.owner).where(c.name == "manager"))
        if owner not in NAMES[: len(self.servers)]:
            return
        server, seconds = NAMES.index(owner), 20.0 + 60.0 * act.amount
        self.seen["manager's server killed or stopped"] += 1
        if act.who % 2:
            self._stop([self.servers[server]], seconds)
            return
        self.say(f"the server {self.servers[server]} is off for {seconds:.0f} s")
        for name in PARTS:
            self.kill(server, name, after=seconds)

    def _clear_up(self) -> None:
        if not self.calm:
            self.network.weather = self.plan.weather

    def _hurt(self, machine: Machine, act: Act) -> None:
        """Do to a machine what was planned."""
        self.seen[f"machine: {act.what}"] += 1
        if act.what == "reset":
            self.say(f"{machine.name} is reset by hand")
            machine.reset()
        elif act.what == "unplug":
            self.say(f"{machine.name} loses its power for {60 * act.amount:.0f} s")
            was = machine.on
            machine.power_off()
            if was:
                self.clock.later(60 * act.amount, machine.power_on)
        elif act.what == "replay":
            machine.replay()
        elif act.what == "drop":
            self.say(f"the connections of {machine.name} are reset")
            machine.drop()
        elif act.what == "stuck":
            self.say(f"{machine.name} hangs until it is switched off")
            machine.stick()
        elif act.what == "hang":
            self.say(f"{machine.name} is cut off for {90 * act.amount:.0f} s")
            machine.hang(90 * act.amount)
        elif act.what == "bmc":
            machine.bmc = BMCS[act.who % len(BMCS)]
            self.say(f"the BMC of {machine.name}: {machine.bmc}")
        elif act.what == "failing":
            machine.fails = act.amount
            self.say(f"the disk of {machine.name} fails")
        elif act.what == "slow":
            machine.slow = 1 + 20 * act.amount
            self.say(f"{machine.name} is slow")

    def _own(self, act: Act) -> None:
        live = self._live()
        key = f"k{act.at:.4f}" if act.amount < 0.8 else None
        if act.what in ("create", "isolate"):
            self._made += 1
            name, group = f"v{self._made}", list(GROUPS)[act.who % 2]
            size = 1 + int(act.amount * 4)
            template = ("red", "blue")[act.who // 2 % 2]
            lease = 30.0 + 100.0 * act.amount if act.who % 3 == 0 else None
            asked = AskedVcluster(
                name,
                size,
                template,
                group,
                lease=lease,
                preemptible=act.who % 5 == 0,
                isolated=act.what == "isolate",
            )
            self.ask(f"{group}: {name} of {size}", owner_flows.create, asked, key=key)
            return
        if not live:
            return
        name, size, _ = live[act.who % len(live)]
        if act.what == "resize":
            more = {"name": name, "size": 1 + int(act.amount * 5)}
            self.ask(f"{name} of {size}, now {more['size']}", owner_flows.resize, key=key, **more)
        elif act.what == "release":
            more = {"name": name, "nodes_": [f"n{1 + act.who % 3}"]}
            self.ask(f"{name} gives n{1 + act.who % 3} back", owner_flows.release, key=key, **more)
        elif act.what == "delete":
            self.ask(f"delete {name}", owner_flows.delete, key=key, name=name)
        elif act.what == "reinstall":
            more = {"name": name, "template": (None, "red", "blue")[act.who % 3]}
            more |= {"nodes_": ["n1"] if act.amount < 0.5 else [], "at_once": act.who // 3 % 3}
            words = f"reinstall {name} from {more['template'] or 'its own'}"
            self.ask(words, reinstalls.want, key=key, recorded=False, **more)
        elif act.what == "extend":
            more = {"name": name, "lease": 3600.0}
            self.ask(f"extend {name}", owner_flows.extend, key=key, **more)

    def _keep(self, act: Act) -> None:
        """Do to volumes, or to their file server, what was planned."""
        if act.what == "file server":
            self.files.way = WAYS[act.who % len(WAYS)]
            self.say(f"the file server {self.files.way} for {150 * act.amount:.0f} s")
            self.clock.later(150 * act.amount, setattr, self.files, "way", "well")
        elif act.what == "exports lost":
            self.say("the file server loses its exports")
            self.files.forget()
        elif act.what == "volume":
            live = [name for name, _, state in self._live() if state != "releasing"]
            if live:
                more = {"name": f"d{act.who // 2 % 3}", "vcluster": live[act.who % len(live)]}
                self._volume(act, f"{more['vcluster']} mounts {more['name']}", _mount, **more)
        else:
            with self.engine.connect() as tx:
                there = volume_flows.every(tx, now=self.clock.now)
            if there:
                view = there[act.who % len(there)]
                more = {"name": view.volume.name}
                if act.what == "delete volume":
                    self._volume(act, f"volume {more['name']} is deleted", _delete, **more)
                elif view.attachments:
                    more["vcluster"] = view.attachments[0].vcluster
                    self._volume(act, f"{more['vcluster']} lets {more['name']} go", _let_go, **more)

    def _volume(self, act: Act, words: str, flow: Any, **more: str) -> None:
        self.ask(words, flow, key=f"volume {act.at:.4f}", recorded=False, **more)

    def _move_port(self, act: Act) -> None:
        """Have somebody at the switch's own console put the port of an isolated node, which the
        server reads again, into another VLAN."""
        isolated = [each for each in self.machines if self.switch.vlan(each.number) != HOME]
        if isolated:
            self.seen["port moved by a foreign hand"] += 1
            machine, vlan = isolated[act.who % len(isolated)], (HOME, *VLANS)[act.who // 7 % 3]
            self.say(f"somebody puts the port of {machine.name} into VLAN {vlan}")
            self.switch.stray(machine.number, vlan)

    def _exchange(self, act: Act) -> None:
        """Have an isolated virtual cluster deleted whose nodes an administrator has set aside, and
        another one made that wants a VLAN, while the switch keeps their ports in the VLAN of the
        first."""
        with self.engine.connect() as tx:
            v, w, n = t.vclusters.c, t.vcluster_networks.c, t.nodes.c
            query = select(v.name, n.id).join_from(
                t.vclusters, t.vcluster_networks, v.id == w.vcluster_id
            )
            query = query.join(t.nodes, n.vcluster_id == v.id).where(v.state == "active")
            held = [
                (name, self.machines[node - 1])
                for name, node in tx.execute(query.order_by(v.id, n.id))
                if self.switch.vlan(node - 1) != HOME
            ]
        self.clock.later(20.0 * (1.0 + act.amount), self._own, replace(act, what="isolate"))
        if not held:
            return
        name, seconds = held[act.who % len(held)][0], 40.0 + 60.0 * act.amount
        self.switch.way = ("hangs", "refuses ports", "lies")[act.who // 7 % 3]
        self.seen[f"isolated vcluster exchanged while the switch {self.switch.way}"] += 1
        self.say(f"the switch {self.switch.way} for {seconds:.0f} s")
        self.clock.later(seconds, setattr, self.switch, "way", "well")
        for machine in [machine for holder, machine in held if holder == name]:
            self.restored.add(machine.name)
            self._admin("quarantines", _quarantine, machine.name)
        key = f"exchange {act.at:.4f}"
        self.clock.later(2.0, self.ask, f"delete {name}", owner_flows.delete, key=key, name=name)

    def _apply(self, act: Act) -> None:
        """Have an administrator apply documents; half of the times only if nobody has applied
        others since they were compared."""
        number = 1 + act.who % 7
        asked: dict[str, Any] = {"documents": documents(number)}
        site, words = self.sites[0], f"apply documents {number}"
        if act.amount < 0.5:
            with self.engine.connect() as tx:
                compared = document_routes._plan(tx, _call(site, self.clock.now, **asked))
            asked["plan"], words = compared.tag, f"{words}, as compared"

        def applied(tx: Tx, context: FlowContext) -> Any:
            self.seen["documents applied"] += 1
            try:
                return document_routes._apply(_call(site, context.now, **asked), tx)
            except replies.Changed:
                self.seen["documents that others had changed since"] += 1
                raise Refused("conflict", "others have applied documents") from None

        self.ask(words, applied, key=f"apply {act.at:.4f}", recorded=False)

    def _automate(self, act: Act) -> None:
        """Do to a VCM what was planned; the first thing is that there is one."""
        if act.what == "vcm" or not self._vcms:
            names = [name for name, _, _ in self._live() if name not in self._vcms]
            if names:
                self._employ(names[act.who % len(names)])
            return
        vcm = list(self._vcms.values())[act.who % len(self._vcms)]
        self.seen[act.what] += 1
        self.say(f"{act.what} of {vcm.vcluster} {act.amount:.2f}")
        if act.what == "jobs":
            self._bring_jobs(vcm.vcluster, 1 + int(act.amount * 5))
        elif act.what == "vcm cut":
            self.network.down.add(vcm.host)
            self.clock.later(90 * act.amount, self.network.down.discard, vcm.host)
        elif act.what == "vcm still":
            vcm.reactor.still_until = self.clock.now + 90 * act.amount
        else:
            vcm.kill(forgets=act.what == "vcm anew")

    def _employ(self, name: str) -> None:
        """Give a virtual cluster a VCM."""
        self._done.append((self.clock.now - START, lambda world: world._employ(name)))
        vcm = self._vcms[name] = SimVcm(self, name, len(self._vcms) + 1, self._folder)
        more = {"name": name, "at": vcm.host}
        self.ask(f"a VCM of {name}", _enrol, key=f"vcm {name}", recorded=False, **more)

    def employ_again(self) -> None:
        """Set the VCMs up anew that the database has forgotten, of virtual clusters that it knows."""
        with self.engine.connect() as tx:
            v, m = t.vclusters.c, t.vcms.c
            there = set(tx.scalars(select(v.name).where(v.state != "ended")))
            known = select(v.name).join_from(t.vcms, t.vclusters, v.id == m.vcluster_id)
            there -= set(tx.scalars(known))
        for name, vcm in self._vcms.items():
            if name in there:
                more = {"name": name, "at": vcm.host}
                vcm.kill(forgets=True)
                self.ask(f"a VCM of {name} again", _enrol, recorded=False, **more)

    def _bring_jobs(self, name: str, nodes: int) -> None:
        """Have the jobs of a VCM's batch system want so many nodes."""
        self._done.append((self.clock.now - START, lambda world: world._bring_jobs(name, nodes)))
        self._vcms[name].batch.want = nodes


def documents(number: int) -> list[dict[str, Any]]:
    """Return documents of groups that have the same number."""
    return [{"kind": "group", "name": name, "max_lease": f"{number} d"} for name in GROUPS]


def _half_applied(tx: Tx) -> list[str]:
    """Return that the site has something of one set of documents, and something of another."""
    g = t.groups.c
    spans = tx.scalars(select(g.max_lease).where(g.name.in_(GROUPS))).all()
    return [f"documents are applied by halves: {spans}"] if len(set(spans)) > 1 else []


def _call(site: Site, now: float, **body: Any) -> Call[Any, DocumentApply]:
    """Return the API's question that applies documents."""
    who = Who("user:ann", admin=True)
    call: Call[Any, DocumentApply] = Call(
        site, now, who, Path("/"), Names(), DocumentApply(**body), None
    )
    return replace(call, prepared=document_routes._read(call))


def _enrol(tx: Tx, context: FlowContext, *, name: str, at: str) -> Result[None]:
    vcm_flows.enrol(tx, vcluster=name, serial="", address=at, now=context.now)
    return Result(None)


def _mount(tx: Tx, context: FlowContext, *, name: str, vcluster: str) -> Result[VolumeView]:
    """Have a virtual cluster mount a volume of its group, which is made if it is not there."""
    holder = vclusters.by_name(tx, vcluster)
    group = groups.get(tx, holder.group_id).name if holder else "low"
    full = f"{group}/{name}"
    if not volumes.is_there(tx, full):
        volume_flows.create(tx, context, name=full, size=1 << 30, group=group)
    return Result(volume_flows.attach(tx, context, asked=AskedVolume(full), vcluster=vcluster))


def _let_go(tx: Tx, context: FlowContext, *, name: str, vcluster: str) -> Result[VolumeView]:
    return Result(volume_flows.detach(tx, context, name=name, vcluster=vcluster))


def _delete(tx: Tx, context: FlowContext, *, name: str) -> Result[VolumeView]:
    return Result(volume_flows.delete(tx, context, name=name))


def _quarantine(tx: Tx, context: FlowContext, *, name: str) -> Any:
    return node_flows.quarantine(tx, context, name=name, reason="somebody looks at it")


def _cycle(tx: Tx, context: FlowContext, *, name: str) -> Any:
    return node_flows.power(tx, context, name=name, desired="cycle")
