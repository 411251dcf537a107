"""A database that forgets its last seconds in a world, while the machines keep what they hold; and
the administrator, who decides about the nodes of a held site by looking at the machines."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from sqlalchemy import select

from cod.flows.nodes import hold
from cod.flows.nodes import nodes as node_flows
from cod.model import FlowContext, Result
from cod.orders import Order
from cod.policy.histories import Histories
from cod.states import OWN_SYSTEM, StoryVerdict
from cod.store import claims
from cod.store import tables as t
from cod.store.engine import Tx
from cod.workers import lost_commits
from tests.history_rows import history_after
from tests.world.plan import Act
from tests.world.switch import HOME, port_of

MOST = 60.0  # seconds that a database forgets
OTHER = "its machine holds something else"
SESSION = 60.0  # seconds that a session with a switch lasts that nobody gives up
TELLS = 60.0  # seconds in which machines tell what they hold before the administrator decides


class Loss:
    """What a world's database has forgotten.

    times      how many times it has forgotten something
    forgotten  full names of hosts that a machine was meanwhile, and the database may know nothing
               of: its disk may hold one, until it is written anew. By number
    noticed    whether the site was held since
    """

    def __init__(self, world: Any) -> None:
        self.world = world
        self.times, self.noticed = 0, True
        self.forgotten: dict[int, set[str]] = {}
        self._lost: list[tuple[float, float]] = []  # from when to when it has forgotten all
        self._decided: set[int] = set()  # machines that an administrator wants erased
        self._told: dict[int, int] = {}  # machines whose agents looked, after so many losses
        # ports in VLANs where the database neither had them last nor wants them
        self._astray: dict[str, int] = {}
        self._unseen_until = self._sessions_until = 0.0
        self._since = 0.0  # when the site was seen to be held first, or nodes of it

    # ------------------------------------------------------------ the database

    def begin(self, act: Act) -> None:
        """Have the database forget what comes within the next seconds, at their end. Half of the
        times all servers crash with it."""
        copy = sqlite3.connect(":memory:")
        self.world.sqlite.backup(copy)
        seconds = MOST * (1.0 + act.amount) / 2
        self.world.clock.later(seconds, self._forget, copy, self.world.clock.now, act.who % 2)

    def _forget(self, copy: sqlite3.Connection, since: float, crashes: int) -> None:
        world = self.world
        self.times += 1
        self._lost.append((since, world.clock.now))
        world.seen["database forgot its last seconds"] += 1
        world.say(f"the database forgets {world.clock.now - since:.0f} s")
        if crashes:
            world.say("all servers crash with it")
            world.seen["database forgot its last seconds as all servers crashed"] += 1
            for part in list(world.parts):
                world.kill(*part)
        copy.backup(world.sqlite)
        copy.close()
        world.database.away_until = world.clock.now + 2.0
        # servers that go on give orders until one of them has looked
        self._unseen_until = world.clock.now + (0.0 if crashes else 2.0 + 2.0 * world.plan.poll)
        # nor does a session with a switch that was under way end with the loss
        self._sessions_until = self._unseen_until + (0.0 if crashes else SESSION)
        self.noticed = False
        self._follow(since)
        with world.engine.begin() as tx:
            if not all(self._knows(tx, each.memory) for each in world.settings):
                world.seen["database forgot what a server had not seen: held by hand"] += 1
                world.say("an administrator holds the site")
                hold.start(tx, world.clock.now)

    def _knows(self, tx: Tx, memory: Path) -> bool:
        """Return whether the server that keeps this file can tell that something is lost."""
        found, seen = claims.progress(tx), lost_commits._read(memory)
        return found is not None and seen is not None and found.is_behind(seen)

    def _follow(self, since: float) -> None:
        """Have the checks know what the database knows, and the world what it has forgotten."""
        world = self.world
        for machine in world.machines:
            held = world.holders.get(machine.number + 1, [])
            known = [one for one in held if one[0] <= since]
            names = {name for at, name in held if at > since}
            names.add(machine.disk.removeprefix("part of "))
            self.forgotten[machine.number] = names - {"", *(name for _, name in known)}
            world.holders[machine.number + 1] = known
            world.switch.untold.add(port_of(machine.number))
        world.files.forgotten |= world.files.exports.keys()
        self._decided.clear()
        world.restored |= {machine.name for machine in world.machines}  # the hold does that
        with world.engine.connect() as tx:
            world.checker, rows = Histories(), history_after(tx, 0)
            for row in rows:
                world.checker.add(row)
            world.last = rows[-1].id if rows else 0
            w = t.vcluster_networks.c
            world.networks = {row[0]: row[1] for row in tx.execute(select(w.vlan, w.vcluster_id))}
            p = t.switch_ports.c
            self._astray = {
                port: vlan
                for port, *known in tx.execute(select(p.port, p.applied_vlan, p.wanted_vlan))
                if (vlan := world.switch.vlans.get(port, HOME)) not in [x or HOME for x in known]
            }

    def has_lost(self, moment: float) -> bool:
        """Return whether the database has forgotten what happened at `moment`, such as which secret
        was spent."""
        return any(since <= moment <= until for since, until in self._lost)

    # ------------------------------------------------------------ the machines

    def holds_forgotten(self, machine: Any) -> bool:
        """Return whether the machine's disk holds what the database may have forgotten."""
        written = machine.disk.removeprefix("part of ")
        return written in self.forgotten.get(machine.number, ())

    def tells(self, machine: Any) -> None:
        """Note that a machine's agent looks at its disk."""
        self._told[machine.number] = self.times

    def boots(self, machine: Any) -> None:
        """Check that a machine does not boot what the database has forgotten once its agent has
        told of it, until its disk is written anew."""
        if self._told.get(machine.number) == self.times:
            self.world.trouble(
                f"{machine.name} boots {machine.disk}, which the database has forgotten, and its"
                " agent has told so"
            )

    def moves(self, ports: Iterable[str]) -> None:
        """Check that a port is not moved from a VLAN that the database has forgotten while its node
        is held, and its agent has told nothing."""
        p, s = t.switch_ports.c, t.node_stories.c
        query = select(s.source).join_from(t.node_stories, t.switch_ports, p.node_id == s.node_id)
        for port in ports:
            vlan = self._astray.pop(port, None)
            if vlan is None or self.world.switch.vlans.get(port, HOME) != vlan:
                continue
            with self.world.engine.connect() as tx:
                source = tx.scalar(query.where(p.port == port))
            if source in (None, "agent") or self.world.clock.now < self._sessions_until:
                continue
            self.world.trouble(
                f"port {port} is moved from VLAN {vlan}, which the database has forgotten of it,"
                " and its node is held"
            )

    def writes(self, machine: Any, order: Order) -> None:
        """Check that a machine is not told to write over what the database has forgotten, unless an
        administrator has decided so."""
        if not self.holds_forgotten(machine) or machine.number in self._decided:
            return
        if self.world.clock.now < self._unseen_until:
            self.world.seen["forgotten disk written before the loss was noticed"] += 1
        else:
            self.world.trouble(
                f"{machine.name} is to {order.action} over {machine.disk}, which the database has"
                " forgotten, and nobody has decided so"
            )

    def written(self, machine: Any, begun: int) -> None:
        """Note that a machine's disk was written, by an order that was `begun` after so many
        losses."""
        if begun == self.times:
            self.forgotten.pop(machine.number, None)
            self._decided.discard(machine.number)

    # ------------------------------------------------------------ the administrator

    def is_over(self, tx: Tx) -> bool:
        """Return whether neither the site nor any node is held; a site without a loss never is."""
        is_over = not hold.lasts(tx) and hold.counts(tx) is None
        if not self.times and not is_over:
            self.world.trouble("the site is held, and its database has forgotten nothing")
        return is_over and self.noticed

    def is_deciding(self) -> bool:
        """Return whether the site or a node of it is held."""
        with self.world.engine.connect() as tx:
            return not self.is_over(tx)

    def decide(self) -> None:
        """Do what the administrator does every 20 s while the site or nodes of it are held."""
        world = self.world
        if not self.is_deciding():
            self._since = 0.0
            return
        with world.engine.connect() as tx:
            held = hold.show(tx)
        if held.since is None and not held.nodes:
            return  # nobody has noticed yet
        if held.since is not None:
            self.noticed = True
        if not self._since:
            self._since = world.clock.now
            world.seen[f"hold: {held.why}"] += 1
            self._ask("wakes the silent nodes", _wake)
            world.employ_again()
        elif world.clock.now > self._since + TELLS:
            for node, story in held.nodes:
                if story.verdict != StoryVerdict.AGREES:
                    self._decide(node, f"{story.verdict}, by {story.source or 'nobody'}")
            if held.since is not None:
                self._ask("ends the hold", _end)

    def _decide(self, node: Any, verdict: str) -> None:
        """Decide about a node by what its machine's disk holds."""
        world = self.world
        machine = world.machines[node.id - 1]
        with world.engine.connect() as tx:
            name = tx.scalar(select(t.vclusters.c.name).where(t.vclusters.c.id == node.vcluster_id))
        own = f"{node.hostname}.{name}.{world.sites[0].domain}" if name else ""
        is_own = machine.disk == own
        world.seen[f"held node: {verdict}{', as it should be' if is_own else ''}"] += 1
        if node.state not in OWN_SYSTEM:
            self._decided.add(machine.number)
            self._ask(f"erases {node.name}", _decide, erase=[node.name])
        elif is_own:
            self._ask(f"keeps {node.name}", _decide, keep=[node.name])
        else:
            self._ask(
                f"sets {node.name} aside", node_flows.quarantine, name=node.name, reason=OTHER
            )

    def _ask(self, words: str, flow: Any, **more: Any) -> None:
        self.world.ask(f"an administrator {words}", flow, recorded=False, **more)


def _wake(tx: Tx, context: FlowContext) -> Result[None]:
    hold.wake(tx, context.now)
    return Result(None)


def _end(tx: Tx, context: FlowContext) -> Result[None]:
    hold.end(tx, context.now)
    return Result(None)


def _decide(
    tx: Tx, context: FlowContext, *, keep: Sequence[str] = (), erase: Sequence[str] = ()
) -> Result[None]:
    hold.decide(tx, context, keep=keep, erase=erase)
    return Result(None)
