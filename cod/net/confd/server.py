"""confd: the server's side of the agents' connections. See `docs/confd`; the protocol itself is
in `wire/confd/protocol`.

A connection stays open for as long as its machine is in the trampoline, and is its sign of life.
What an agent says goes to one flow at a time, in order; what several agents say at once shares a
transaction. Orders come from a poll of the rows that wait for this server's connections, twice a
second and whenever something local may have changed them. Heartbeats are kept in memory and written
in batches.

A peer gets little before it has proven itself: 4 KiB, ten seconds, a few connections for each
address. Whatever breaks the protocol is logged in one line and the connection is closed; others do
not notice.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Generator, Iterable
from dataclasses import dataclass
from typing import Any
from typing import Protocol as Interface

from twisted.application.service import Service
from twisted.internet.defer import Deferred, ensureDeferred, inlineCallbacks, succeed
from twisted.internet.protocol import Factory

from cod.flows.agents import orders, sessions
from cod.model import (
    ChunkKeys,
    Effect,
    HostKey,
    HostKeyMaker,
    Inviter,
    Meter,
    Peer,
    Result,
    SiteRef,
    Unsealer,
)
from cod.orders import Order
from cod.periodic import Timer
from cod.pool import NODES, Pool

POLL = 0.5  # seconds between looks for orders
# at most so many seconds between writes of `last_seen`, so that no node seems silent
BATCH = 15.0
BATCH_SIZE = 500  # nodes in one transaction
MISSED = 3  # heartbeats

log = logging.getLogger("cod.confd")


@dataclass(frozen=True, slots=True)
class StrangerLimits:
    """Limits of unproven peers: seconds to prove oneself; connections in all, unproven, unproven
    from one address."""

    proof_time: float = 10.0
    connections: int = 20_000
    unproven: int = 1_000
    unproven_each: int = 8


USUAL = StrangerLimits()


class StrangerLines:
    """A limit on log lines about peers that have not proven themselves: one a minute for each
    address, `MOST` in all.

    The number that was left out is logged when the next minute's first line is.
    """

    EVERY, MOST = 60.0, 100

    def __init__(self, seconds: Callable[[], float]) -> None:
        self._seconds = seconds
        self._began = seconds()
        self._reported: set[str] = set()
        self._left_out = 0

    def allows(self, address: str) -> bool:
        """Return whether a line about that address may be logged now."""
        if self._seconds() - self._began >= self.EVERY:
            if self._left_out:
                log.info("%d more connections of unknown peers were closed", self._left_out)
            self._began, self._left_out = self._seconds(), 0
            self._reported.clear()
        if address in self._reported or len(self._reported) >= self.MOST:
            self._left_out += 1
            return False
        self._reported.add(address)
        return True


class Connection(Interface):
    """The interface of an agent's connection that the server uses:
    `net.confd.connection.AgentConnection`."""

    address: str
    name: str
    peer: Peer | None
    heard_at: float
    dead: bool
    is_stranger: bool

    def order(self, order: Order) -> bool:
        """Send an order; return whether it was sent."""

    def end(self, code: str, reason: str) -> None:
        """Send the reason, and close."""

    def drop(self, reason: str) -> None:
        """Close at once."""


class ConfdServer(Service):
    """The server for agents, on `addresses`. `server` is its own name in the database, the same
    after a restart.

    connect  makes the protocol of a new connection (`net.confd.connection.AgentConnection`)
    clock    wall time for the flows; `reactor` gives the time for everything that is not stored
    effects  carries out the wake-ups that flows return, including those that lead to `poll`
    port     0 takes any free one (tests); `port` then says which
    inviter  makes the start of the VCM on a node that is primed; None: no node runs a VCM
    power    asks a node's power driver: 'on', 'off' or 'unknown'; None: nobody is asked
    ports    asks the switches on which ports a MAC was heard; None: nobody is asked
    host_key makes the SSH host key of a node that is primed (`HostKeyMaker.make`); None: nodes make
             their own
    unseal      opens nodes' keytabs; None: nodes get no keytabs
    chunk_keys  makes the keys with which nodes that are primed share image chunks; None: nodes do
                not share any
    """

    def __init__(
        self,
        connect: Callable[[ConfdServer], Any],
        reactor: Any,
        pool: Pool,
        site: SiteRef,
        server: str,
        addresses: Iterable[str],
        port: int,
        clock: Callable[[], float] = time.time,
        *,
        effects: Callable[[Iterable[Effect]], object],
        limits: StrangerLimits = USUAL,
        inviter: Inviter | None = None,
        host_key: Callable[[str, str], tuple[HostKey, str]] | None = None,
        chunk_keys: ChunkKeys | None = None,
        unseal: Unsealer | None = None,
        power: Callable[[Meter], Awaitable[str]] | None = None,
        ports: Callable[[str], Awaitable[tuple[tuple[str, ...], ...]]] | None = None,
    ) -> None:
        self._connect = connect
        self.reactor = reactor
        self.pool = pool
        self.site = site
        self.server = server
        self.port = port
        self.clock = clock
        self.effects = effects
        self.limits = limits
        self._inviter = inviter
        self._host_key = host_key
        self._chunk_keys = chunk_keys
        self._unseal = unseal
        self.power_of = power
        self.ports_of = ports
        # opened, refused, broken, lost, orders: for the metrics
        self.counts: Counter[str] = Counter()
        self.open: set[Connection] = set()
        self.stranger_lines = StrangerLines(reactor.seconds)
        # connections that have not proven themselves, by address
        self.strangers: Counter[str] = Counter()
        self.nodes: dict[int, Connection] = {}
        # node -> wall time of its last heartbeat that is not written yet
        self.seen: dict[int, float] = {}
        # (node, epoch) of sessions without a connection, since when
        self._orphans: dict[tuple[int, int], float] = {}
        self._addresses = list(addresses)
        self._polling: Deferred[Any] | None = None
        self._again = False
        # (node, epoch) of orders that count as sent and may not have been
        self.unsent: set[tuple[int, int]] = set()
        self._listening: list[Any] = []
        self._written_at = reactor.seconds()
        self._timers = [
            Timer(reactor, POLL, lambda: self.poll(notified=False)),
            Timer(reactor, 1.0, self._look_for_dead),
            Timer(reactor, 1.0, self._write_seen_in_time),
        ]

    # ------------------------------------------------------------ life

    def startService(self) -> None:
        """Listen, and give agents that were connected before a restart the usual time to come back.
        Raises CannotListenError."""
        super().startService()  # type: ignore[no-untyped-call]
        factory = Factory.forProtocol(lambda: self._connect(self))
        for address in self._addresses:
            # a long backlog: all agents come back at once when a server was away
            listening = self.reactor.listenTCP(self.port, factory, backlog=1024, interface=address)
            self.port = listening.getHost().port
            self._listening.append(listening)
        for timer in self._timers:
            timer.startService()

        def inherit(peers: list[Peer]) -> None:
            for peer in peers:
                if peer.node_id not in self.nodes:
                    self.lose_later(peer)

        self.pool.run(sessions.inherited, self.server).addCallbacks(inherit, self._unexpected)

    @inlineCallbacks
    def stopService(self) -> Generator[Deferred[Any], Any, None]:
        """Close all connections. Their sessions stay in the database for the next server of this
        name; agents may connect to any server."""
        super().stopService()  # type: ignore[no-untyped-call]
        for timer in self._timers:
            timer.stopService()
        for listening in self._listening:
            yield listening.stopListening()
        for connection in list(self.open):
            connection.end("stopping", "the server is being stopped")
        if self._polling:
            yield self._polling
        yield self._write_seen()

    # ------------------------------------------------------------ connections

    def has_room(self, address: str) -> bool:
        """Return whether another stranger may connect from `address`."""
        return (
            len(self.open) < self.limits.connections
            and len(self.open) - len(self.nodes) < self.limits.unproven
            and self.strangers[address] < self.limits.unproven_each
        )

    def adopt(self, connection: Connection, peer: Peer) -> None:
        """Register `connection` as that of `peer`. An older connection of the same node is
        closed."""
        self.known(connection)
        self.seen[peer.node_id] = self.clock()
        older = self.nodes.get(peer.node_id)
        self.nodes[peer.node_id] = connection
        if older and older is not connection:
            older.end("replaced", "the node has a newer connection")

    def stranger(self, connection: Connection) -> None:
        connection.is_stranger = True
        self.open.add(connection)
        self.strangers[connection.address] += 1

    def known(self, connection: Connection) -> None:
        """Stop counting the connection as unproven: its agent has proven itself, or it is
        closed."""
        if connection.is_stranger:
            connection.is_stranger = False
            self.strangers[connection.address] -= 1
            if not self.strangers[connection.address]:
                del self.strangers[connection.address]

    def gone(self, connection: Connection) -> None:
        """Remove a closed connection. Its agent counts as lost if it does not come back in time."""
        self.open.discard(connection)
        self.known(connection)
        peer = connection.peer
        if peer and self.nodes.get(peer.node_id) is connection:
            del self.nodes[peer.node_id]
            # it was silent for that time already
            if connection.dead:
                self.lose(peer)
            elif self.running:
                self.lose_later(peer)

    def lose_later(self, peer: Peer) -> None:
        """Count the agent as lost after the usual time, unless it has come back by then."""
        self.reactor.callLater(MISSED * self.site.current.policy.heartbeat, self.lose, peer)

    def lose(self, peer: Peer) -> None:
        """Count the agent as lost, unless it has a newer connection."""
        here = self.nodes.get(peer.node_id)
        if self.running and not (here and here.peer and here.peer.epoch != peer.epoch):
            self.pool.run_together(
                sessions.lost, peer, self.site.current, self.clock()
            ).addCallbacks(self._lost, self._unexpected, callbackArgs=(peer,))

    def _lost(self, result: Result[bool], peer: Peer) -> None:
        if result.value:
            self.counts["lost"] += 1
            log.info("node %d: its agent is gone", peer.node_id)
        self.effects(result.effects)

    def _look_for_dead(self) -> None:
        now = self.reactor.seconds()
        patience = MISSED * self.site.current.policy.heartbeat
        for connection in list(self.nodes.values()):
            if now - connection.heard_at > patience:
                connection.dead = True
                connection.drop(f"no heartbeat for {now - connection.heard_at:.0f} s")

    # ------------------------------------------------------------ orders

    def poll(self, notified: bool = True) -> Deferred[Any]:
        """Look for orders for this server's connections, never twice at a time. `notified`:
        something has changed, so the write lock is taken without checking first."""
        if self._polling:
            self._again = notified or self._again
            return self._polling
        if not self.nodes:
            return succeed(None)
        polling = ensureDeferred(self._poll(notified))
        if not polling.called:
            self._polling = polling
            polling.addBoth(self._polled)
        return polling

    def _polled(self, result: Any) -> Any:
        self._polling = None
        if self._again and self.running:
            self._again = False
            self.poll()
        return result

    async def _poll(self, notified: bool) -> None:
        unsent, self.unsent = self.unsent, set()
        try:
            site = self.site.current
            sure = notified or unsent
            if not sure and not await self.pool.read(orders.any_waiting, self.server, site):
                return
            maker = HostKeyMaker(secrets.token_hex(32), self._host_key) if self._host_key else None
            result = await self.pool.run_at(
                NODES,
                orders.waiting,
                self.server,
                site,
                self.clock(),
                self._inviter,
                maker,
                unsent,
                self._chunk_keys,
                self._unseal,
            )
            for node_id, epoch, order in result.value:
                self.send_order(node_id, epoch, order)
            self.effects(result.effects)
        except Exception:  # the next look may fare better
            self.unsent |= unsent
            log.exception("looking for orders")

    def send_order(self, node_id: int, epoch: int, order: Order) -> None:
        """Send an order on a connection. If the connection is gone, or does not send it, the next
        look finds the node's order again."""
        connection = self.nodes.get(node_id)
        here = connection and connection.peer and connection.peer.epoch == epoch
        if not (connection and here and connection.order(order)):
            self.unsent.add((node_id, epoch))

    # ------------------------------------------------------------ signs of life

    def _write_seen_in_time(self) -> Deferred[Any] | None:
        now = self.reactor.seconds()
        if now - self._written_at < min(BATCH, MISSED * self.site.current.policy.heartbeat):
            return None
        self._written_at = now
        return self._write_seen()

    @inlineCallbacks
    def _write_seen(self) -> Generator[Deferred[Any], Any, None]:
        batch, self.seen = list(self.seen.items()), {}
        connected = list(self.nodes.items())
        # between what agents say: both lock rows of many nodes, and MariaDB would undo one of them
        try:
            for start in range(0, len(batch), BATCH_SIZE):
                yield self.pool.run_together(sessions.seen, batch[start : start + BATCH_SIZE])
            mine = yield self.pool.run_together(sessions.held, self.server, self.clock())
        except Exception:
            log.exception("writing signs of life")
            return
        for node_id, connection in connected:
            if connection.peer and mine.get(node_id) != connection.peer.epoch:
                connection.end("replaced", "the node has a newer connection")
        self._look_for_orphans(mine)

    def _look_for_orphans(self, mine: dict[int, int]) -> None:
        """Count agents as lost, after the usual time, whose sessions are recorded for this server
        but have no connection: the flow that should have ended the session failed (the database was
        away)."""
        now = self.reactor.seconds()
        here = {
            (node_id, connection.peer.epoch)
            for node_id, connection in self.nodes.items()
            if connection.peer
        }
        self._orphans = {
            pair: self._orphans.get(pair, now) for pair in mine.items() if pair not in here
        }
        for (node_id, epoch), since in self._orphans.items():
            if now - since > MISSED * self.site.current.policy.heartbeat:
                self.lose(Peer(node_id, self.server, epoch, ""))

    @staticmethod
    def _unexpected(failure: Any) -> None:
        error = failure.value
        log.error("a bug, or the database is away: %s", error, exc_info=error)
