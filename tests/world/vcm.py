"""A virtual cluster's VCM: the service of `cod.vcm` on a batch system that is made up.

The batch system goes on when its VCM is killed, as a real one does. Its commands take time, fail,
and fail after they have done their work.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sqlalchemy import func, select

from cod.states import NodeState
from cod.store import tables as t
from cod.store.engine import Tx
from cod.vcm.connect import plainly
from cod.vcm.pool import ANY, Demand, Member, Named, NotYet, Reclaim
from cod.vcm.retry import Options
from cod.vcm.service import VcmService
from tests.world.clock import SimReactor

PORT = 8072
INTERVAL = 5.0  # seconds between looks at the batch system
RESTART = 1.5  # seconds until a killed VCM is started again
FAILS = 0.15  # share of commands that fail, before they do anything or after


class Batch:
    """The batch system of a virtual cluster.

    want     nodes that its jobs want
    members  the site's names of its nodes, by host name
    """

    def __init__(self, world: Any, vcluster: str) -> None:
        self.want, self.members = 1, dict[str, str]()
        self.reactor: SimReactor | None = None  # of the VCM that runs its commands
        self._world = world
        self._rng = random.Random(f"{world.seed} batch {vcluster}")

    def look(self, members: Mapping[str, Member], coming: Counter[str], now: float) -> Demand:
        self._command()
        more = self.want - len(members) - coming.total()
        leave = () if coming else tuple(sorted(members)[self.want :])
        return Demand({ANY: max(0, more)}, leave, withdraw={"": max(0, -more)}, why="its jobs")

    def add(self, member: Member) -> None:
        self._command()
        self.members[member.hostname] = member.node
        self._fail()

    def choose(
        self, reclaim: Reclaim, members: Mapping[str, Member], now: float
    ) -> Sequence[Named]:
        self._command()
        return [Named(name, self._rng.uniform(0.0, 8.0)) for name in sorted(members)]

    def remove(self, member: Member, lost: bool) -> None:
        self._command()
        self.members.pop(member.hostname, None)
        self._fail()

    def _command(self) -> None:
        """Take the time of a command, which may fail."""
        assert self.reactor is not None
        self.reactor.pause(self._rng.uniform(0.0, 0.2 if self._world.calm else 2.0))
        self._fail()

    def _fail(self) -> None:
        if not self._world.calm and self._rng.random() < FAILS / 2:
            self._world.seen["command of a batch system failed"] += 1
            raise NotYet if self._rng.random() < 0.3 else OSError("the command failed")


class SimVcm:
    """The VCM of a virtual cluster, on a host of its own."""

    def __init__(self, world: Any, vcluster: str, number: int, folder: Path) -> None:
        self.vcluster, self.host = vcluster, f"10.80.250.{number}"
        self.batch = Batch(world, vcluster)
        self._world, self._state = world, folder / f"{vcluster}.vcm"
        self._start()

    def _start(self) -> None:
        world = self._world
        self.reactor = SimReactor(world.clock, world.network, self.host, f"VCM {self.vcluster}")
        world.clock.running = self.batch.reactor = self.reactor
        options = Options(self.vcluster, "world 1.0", self._state, INTERVAL, extend=3600.0)
        servers = [(server, PORT) for server in world.servers]
        VcmService(
            self.reactor,
            self.reactor.getThreadPool(),
            options,
            self.batch,
            plainly(self.reactor, servers),
            lambda: world.clock.now,
        ).startService()

    def kill(self, *, forgets: bool = False) -> None:
        """Kill the VCM. `forgets`: its host is set up anew, with a new batch system."""
        if self.reactor.killed:
            return
        self.reactor.kill()
        if forgets:
            self._state.unlink(missing_ok=True)
            self.batch.members.clear()
        self._world.clock.later(RESTART, self._start)

    def stop(self) -> None:
        self.reactor.kill()

    def differs(self, tx: Tx) -> str:
        """Return in what the batch system and the database differ about the virtual cluster's
        nodes; '' in nothing, or when the virtual cluster has ended."""
        n, v, r, q = t.nodes.c, t.vclusters.c, t.node_requests.c, t.request_tuples.c
        found = tx.scalar(select(v.id).where(v.name == self.vcluster, v.state == "active"))
        if found is None:
            return ""
        query = select(n.hostname, n.name, n.state).where(n.vcluster_id == found)
        held = tx.execute(query.order_by(n.id)).all()
        active = {host: name for host, name, state in held if state == NodeState.ACTIVE}
        if self.batch.members != active:
            return f"{self.vcluster} has {active}, its batch system {self.batch.members}"
        pending = select(func.sum(q["count"])).join_from(t.node_requests, t.request_tuples)
        waiting = tx.scalar(pending.where(r.vcluster_id == found, r.state == "pending")) or 0
        others = select(func.count()).where(n.vcluster_id.is_distinct_from(found))
        more = waiting if tx.scalar(others) else self.batch.want  # COD refuses what no site has
        if len(held) <= self.batch.want <= len(held) + more:
            return ""
        return f"{self.vcluster} has {len(held)} nodes and waits for {waiting}: {self.batch.want}"
