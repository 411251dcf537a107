"""The DHCP sockets: one for each interface, and one for each server address of subnets behind
relays.

All messages that wait in the socket are read at once and answered as one batch, in one transaction.
While the database thread works, and for a moment after a batch of few, the next batch gathers in
the kernel (group commit). Replies leave after the commit. A batch whose flow raises is run again
one message at a time, so that a message which triggers a bug fails alone, and a message that
another server has entered first is answered from that server's rows.
"""

from __future__ import annotations

import logging
import socket
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import prometheus_client as prometheus
from twisted.internet.defer import Deferred, succeed
from twisted.python.failure import Failure

from cod.flows.boot import dhcp as flow
from cod.model import DhcpAnswer, DhcpQuery, SiteRef, Subnet
from cod.net.socketservice import SocketService
from cod.pool import FEW, REST, URGENT, Pool
from cod.wire import dhcp as wire

# Messages in one transaction. Their replies leave in one burst: of 192 a relay with a usual socket
# buffer (208 KiB) that was sending meanwhile lost up to 6 of 100, of 64 next to none.
BATCH = 64
BUFFER = 8 * 2**20  # bytes that wait in the kernel: 1,000 machines that are switched on together
LONGEST = 2048  # bytes; a longer datagram is cut off and does not decode

METRICS = {
    "in": prometheus.Counter("cod_dhcp_received_total", "DHCP messages of clients", ["kind"]),
    "out": prometheus.Counter("cod_dhcp_replies_total", "DHCP replies", ["kind"]),
    "stage": prometheus.Counter("cod_dhcp_bound_total", "Addresses bound, by who asked", ["stage"]),
    "dropped": prometheus.Counter(
        "cod_dhcp_dropped_total", "DHCP messages without the reply that was due", ["why"]
    ),
}

log = logging.getLogger("cod.dhcp")

Exchange = tuple[wire.Packet, DhcpQuery]


class DhcpServer(SocketService):
    """A DHCP server on `subnet`'s interface, for that subnet and every other subnet of `site` whose
    relays send there. Without an interface it answers what is sent to `subnet`'s server address:
    relayed messages and renewals.

    reactor   needs addReader, removeReader and callLater
    clock     seconds since the epoch
    port      where to listen; replies to clients and relays go where RFC 2131 says, unless
              `reply_ports` maps those ports to others (tests, which may not use 67 and 68)
    counts    since the start: ('in', kind), ('out', kind), ('stage', stage), ('dropped', why), as
              in METRICS
    """

    def __init__(
        self,
        reactor: Any,
        pool: Pool,
        site: SiteRef,
        subnet: Subnet,
        clock: Callable[[], float] = time.time,
        *,
        port: int = wire.SERVER_PORT,
        reply_ports: dict[int, int] | None = None,
    ) -> None:
        where = f" on {subnet.interface}" if subnet.interface else ""
        super().__init__(reactor, f"dhcp {subnet.name}{where}")
        self.site = site
        self.subnet = subnet
        self.counts: Counter[tuple[str, str]] = Counter()
        self._published: Counter[tuple[str, str]] = Counter()
        self._pool = pool
        self._clock = clock
        self._port = port
        self._reply_ports = reply_ports or {}
        self._newcomers = flow.Newcomers()
        self._subnets = {each.name: each for each in site.current.subnets}

    # for an interface it needs CAP_NET_RAW and CAP_NET_BIND_SERVICE
    def _open(self) -> socket.socket:
        listener = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        listener.setblocking(False)
        # one socket for each interface, all on port 67
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        try:
            # SO_RCVBUFFORCE: past net.core.rmem_max
            listener.setsockopt(socket.SOL_SOCKET, 33, BUFFER)
        except PermissionError:
            # without CAP_NET_ADMIN: the kernel grants no more than net.core.rmem_max
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER)
        if self.subnet.interface is not None:
            listener.setsockopt(
                socket.SOL_SOCKET, socket.SO_BINDTODEVICE, self.subnet.interface.encode()
            )
            listener.bind(("", self._port))
        else:
            listener.bind((self.subnet.server, self._port))
        return listener

    def doRead(self) -> None:
        """Read the messages that wait. While a batch is in the database, the reactor does not watch
        the socket."""
        self._reactor.removeReader(self)
        self._next()

    # ------------------------------------------------------------ one batch

    def _next(self) -> None:
        """Read the messages that wait as the next batch; if there are none, let the reactor watch
        the socket."""
        if self._socket is None:
            return
        batch: list[Exchange] = []
        # not recvfrom: a reply goes where the message says, never to the packet's source
        receive = self._socket.recv
        for _ in range(BATCH):
            try:
                data = receive(LONGEST)
            except BlockingIOError:
                break
            except OSError as error:
                # such as ENETDOWN: the interface is down, but may come up again
                log.warning("%s: %s", self._name, error)
                break
            try:
                packet = wire.decode(data)
                query = wire.query(packet, self.subnet.name if self.subnet.interface else None)
            except wire.DecodeError as error:
                self.counts["dropped", "malformed"] += 1
                log.debug("dropped: %s", error)
                continue
            except Exception:  # a bug; left to the reactor it would close the socket
                self.counts["dropped", "failed"] += 1
                log.exception("dropped: %s", data.hex())
                continue
            self.counts["in", query.kind] += 1
            batch.append((packet, query))
        if not batch:
            self._reactor.addReader(self)
            return
        # replies first: the two threads at once take more time than in turn
        self._ask(batch).addCallbacks(
            self._send, self._failed, callbackArgs=(batch,), errbackArgs=(batch,)
        ).addBoth(self._go_on, batch)

    def _go_on(self, result: Failure | None, batch: Sequence[Exchange]) -> Failure | None:
        """Have the next batch read; after one of few, a moment later. An error is left to Twisted's
        log."""
        if len(batch) < FEW:
            self._reactor.callLater(REST, self._next)
        else:
            self._next()
        return result

    def _ask(self, batch: Sequence[Exchange]) -> Deferred[list[DhcpAnswer | None]]:
        queries = [query for _, query in batch]
        return self._pool.run_at(
            URGENT, flow.answer, queries, self.site.current, self._newcomers, self._clock()
        )

    def _failed(self, failure: Failure, batch: Sequence[Exchange]) -> Deferred[None] | None:
        error = failure.value
        raced = error is not None and self._pool.is_race(error)
        # clients will ask again
        if (len(batch) == 1 and not raced) or (error is not None and self._pool.is_away(error)):
            self._give_up(failure, batch)
            return None
        log.warning(
            "a batch of %d messages failed (%s): each again alone",
            len(batch),
            failure.getErrorMessage(),
        )
        done: Deferred[None] = succeed(None)
        for exchange in batch:
            done.addCallback(self._alone, [exchange])
        return done

    def _alone(self, _: None, batch: Sequence[Exchange]) -> Deferred[None]:
        return self._ask(batch).addCallbacks(
            self._send, self._give_up, callbackArgs=(batch,), errbackArgs=(batch,)
        )

    def _give_up(self, failure: Failure, batch: Sequence[Exchange]) -> None:
        self.counts["dropped", "failed"] += len(batch)
        log.error("no answer to %s: %s", [query for _, query in batch], failure.getTraceback())

    # ------------------------------------------------------------ replies

    def _send(self, answers: Sequence[DhcpAnswer | None], batch: Sequence[Exchange]) -> None:
        for (packet, query), answer in zip(batch, answers, strict=True):
            if answer is None:
                continue
            try:
                self._reply(packet, query, answer)
            except Exception:  # a bug: the other replies of the batch shall not suffer from it
                self.counts["dropped", "failed"] += 1
                log.exception("no reply to %s", query)
        # Once a batch: counting in Prometheus's shared files costs more than counting here.
        self.counts["dropped", "limited"] = self._newcomers.refused
        for key, count in self.counts.items():
            if count != self._published[key]:
                METRICS[key[0]].labels(key[1]).inc(count - self._published[key])
                self._published[key] = count

    def _reply(self, packet: wire.Packet, query: DhcpQuery, answer: DhcpAnswer) -> None:
        subnet = answer.network or self._subnets[answer.subnet]
        reply = wire.reply(packet, query, answer, subnet)
        host, port = wire.destination(reply)
        if host == wire.BROADCAST and self.subnet.interface is None:
            if query.ciaddr == "0.0.0.0":
                return  # no relay and no address: no way back from a socket that is on no wire
            host = query.ciaddr  # a refused renewal came through routers, where no broadcast goes
        self.counts["out", answer.kind] += 1
        if answer.kind == "ACK":
            self.counts["stage", query.stage] += 1
        log.debug(
            "%s %s %s to %s (%s)", answer.kind, answer.yiaddr, answer.reason, query.mac, query.stage
        )
        if self._socket is None:
            return
        try:
            self._socket.sendto(wire.encode(reply), (host, self._reply_ports.get(port, port)))
        except OSError as error:
            # its buffer is full, or the interface is down: the client will ask again
            self.counts["dropped", "unsent"] += 1
            log.warning("not sent to %s: %s", host, error)
