"""The DNS server: UDP and TCP on one of the site's addresses.

Messages that wait in the UDP socket are read and answered as one batch, in one read of the
database. Questions about other names than the site's are refused, or, if the site file names
servers to ask, forwarded to these for clients on the site's networks.
"""

from __future__ import annotations

import logging
import random
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from ipaddress import ip_address, ip_network
from typing import Any

import prometheus_client as prometheus
from twisted.internet.defer import Deferred
from twisted.internet.error import CannotListenError
from twisted.internet.protocol import DatagramProtocol
from twisted.python.failure import Failure

from cod.flows.boot import dns as flow
from cod.flows.boot import zones
from cod.model import DnsAnswer, SiteRef
from cod.net.dns import transferkey, tsig
from cod.net.dns.streams import Stream, Streams
from cod.net.quietlog import QuietLog
from cod.net.socketservice import SocketService
from cod.pool import Pool
from cod.wire import dns as wire
from cod.wire.errors import PeerError

BATCH = 256  # questions in one read
LONGEST = 4096  # bytes of a question
BUFFER = 2**20  # bytes that wait in the kernel
TRANSFERS = 10  # whole zones that are sent at a time
PATIENCE = 2.0  # seconds for the answer of a server that a question is forwarded to
MOST_FORWARDED = 500  # questions that may be with other servers at a time

ANSWERS = prometheus.Counter("cod_dns_answers_total", "DNS answers", ["code"])

log = logging.getLogger("cod.dns")

Reply = Callable[[bytes], object]
Sign = Callable[[bytes], bytes]


class DnsServer(SocketService):
    """A DNS server on `address`, by UDP and TCP, at `port` (0: any free one; the attribute `port`
    then says which).

    reactor  needs addReader, removeReader, listenTCP, listenUDP and callLater
    forward  servers to ask about names that are not the site's; none: such questions are refused
    """

    def __init__(
        self,
        reactor: Any,
        pool: Pool,
        site: SiteRef,
        address: str,
        *,
        port: int = 53,
        forward: Sequence[str] = (),
        forward_port: int = 53,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(reactor, f"dns {address} port {port}")
        self.port = port
        self._pool, self._site, self._address, self._clock = pool, site, address, clock
        self._forward = [(server, forward_port) for server in forward]
        rules = site.current.isolation
        self._networks = [ip_network(subnet.network) for subnet in site.current.subnets]
        self._networks += [ip_network(rules.networks)] if rules else []
        self._quiet = QuietLog(log, time.monotonic)
        self._streams: Any = None
        self.forwarding = 0
        self.transfers = 0

    def _open(self) -> socket.socket:
        for tries_left in range(10, -1, -1):
            opened = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            opened.setblocking(False)
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER)
            opened.bind((self._address, self.port))
            port = opened.getsockname()[1]
            try:
                self._streams = self._reactor.listenTCP(
                    port, Streams(self.asked), interface=self._address
                )
                break
            except CannotListenError:
                opened.close()
                # any port would do, but UDP's is in use for TCP: try again
                if self.port or not tries_left:
                    raise
        self.port = port
        return opened

    def stopService(self) -> Deferred[None] | None:  # type: ignore[override]
        super().stopService()
        streams, self._streams = self._streams, None
        return streams.stopListening() if streams is not None else None

    def doRead(self) -> None:
        """Read the messages that wait as one batch."""
        batch: list[tuple[wire.Query, str, Reply]] = []
        assert self._socket is not None
        for _ in range(BATCH):
            try:
                data, peer = self._socket.recvfrom(LONGEST)
            except OSError:  # nothing waits any more, or an ICMP error of an earlier answer
                break
            reply = self._replier(peer)
            with suppress(PeerError):
                data, sign = self._opened(data, peer[0], reply)
                self._take(data, peer[0], _signing(reply, sign), batch)
        self._look_up(batch)

    def _replier(self, peer: Any) -> Reply:
        def reply(data: bytes) -> None:
            try:
                if self._socket is not None:
                    self._socket.sendto(data, peer)
            except OSError as error:
                log.debug("not sent to %s: %s", peer[0], error)

        return reply

    # ------------------------------------------------------------ UDP and TCP alike

    def asked(self, data: bytes, peer: str, stream: Stream) -> None:
        """Answer a question that came over TCP."""
        batch: list[tuple[wire.Query, str, Reply]] = []
        try:
            data, sign = self._opened(data, peer, stream.answer)
        except tsig.Rejected:
            return  # the refusal has been sent
        except PeerError:
            stream.drop()
            return
        if not self._take(data, peer, _signing(stream.answer, sign), batch, stream=True):
            stream.drop()
        elif batch and batch[0][0].transfer:
            self._transfer(batch[0][0], peer, stream, sign)
        else:
            self._look_up(batch)

    def _opened(self, data: bytes, peer: str, reply: Reply) -> tuple[bytes, Sign | None]:
        """Return a message without its signature, and the function that signs the answer; None if
        the message has no signature, or is not from a secondary. Raises `PeerError`; if the
        signature is wrong, the answer that says so has been sent."""
        site = self._site.current
        if site.dns.transfer_key_file is None or not self._secondary(peer):
            return data, None
        try:
            key = transferkey.read(site)
            assert key is not None
            message, signer = tsig.opened(data, key, self._clock())
        except transferkey.NoKey as error:
            self._warn(peer, "signatures are not checked", str(error))
            return data, None
        except tsig.Rejected as rejected:
            ANSWERS.labels("refused").inc()
            self._warn(peer, "a question is turned away", f"it has {rejected}")
            reply(rejected.reply)
            raise
        return message, signer.sign if signer else None

    def _warn(self, peer: str, what: str, why: str) -> None:
        """Log a warning, at most once a minute: anybody can forge a secondary's address."""
        self._quiet.flush()
        self._quiet.warning((peer, what), f"{peer}: {what}: {why}")

    def _secondary(self, peer: str) -> bool:
        return peer in {address for address, _ in self._site.current.dns.secondaries}

    def _take(
        self,
        data: bytes,
        peer: str,
        reply: Reply,
        batch: list[tuple[wire.Query, str, Reply]],
        *,
        stream: bool = False,
    ) -> bool:
        """Put the question into the batch, or refuse it; return whether it was put."""
        try:
            batch.append((wire.decode(data, stream=stream), peer, reply))
        except wire.DecodeError as error:
            ANSWERS.labels("malformed").inc()
            log.debug("dropped: %s", error)
            return False
        except wire.Unanswerable as refusal:
            ANSWERS.labels("refused").inc()
            reply(refusal.reply)
        return True

    def _look_up(self, batch: Sequence[tuple[wire.Query, str, Reply]]) -> None:
        if batch:
            asked = self._pool.read(
                flow.answer, [query.question for query, _, _ in batch], self._site.current
            )
            asked.addCallbacks(
                self._answer, self._fail, callbackArgs=(batch,), errbackArgs=(batch,)
            )

    def _answer(
        self, answers: Sequence[DnsAnswer | None], batch: Sequence[tuple[wire.Query, str, Reply]]
    ) -> None:
        for (query, peer, reply), answer in zip(batch, answers, strict=True):
            try:
                self._answer_one(query, peer, reply, answer)
            except Exception:  # the other questions are other people's
                log.exception("a question of %s could not be answered", peer)
                reply(wire.failed(query))

    def _answer_one(
        self, query: wire.Query, peer: str, reply: Reply, answer: DnsAnswer | None
    ) -> None:
        if answer is None:
            self._forward_query(query, peer, reply)
            return
        ANSWERS.labels(answer.code).inc()
        site = self._site.current
        reply(
            wire.encode(
                query, answer, primary=flow.primary(site), domain=site.domain, server=self._address
            )
        )

    def _fail(self, failure: Failure, batch: Sequence[tuple[wire.Query, str, Reply]]) -> None:
        log.error("%d questions could not be looked up: %s", len(batch), failure.getErrorMessage())
        for query, _, reply in batch:
            ANSWERS.labels("failed").inc()
            reply(wire.failed(query))

    # ------------------------------------------------------------ whole zones

    def _transfer(self, query: wire.Query, peer: str, stream: Stream, sign: Sign | None) -> None:
        """Send a zone to one of the site's secondaries, which must have signed its question if the
        site has a key; refuse all other clients."""
        site = self._site.current
        unsigned = site.dns.transfer_key_file is not None and sign is None
        if unsigned or not self._secondary(peer) or self.transfers >= TRANSFERS:
            ANSWERS.labels("refused").inc()
            log.info(
                "the zone %s is not sent to %s%s",
                query.question.name,
                peer,
                ": the question is not signed" if unsigned else "",
            )
            _signing(stream.answer, sign)(wire.refused(query))
            return
        self.transfers += 1
        zone = self._pool.read(zones.transfer, query.question.name, site)
        zone.addCallback(self._send, query, peer, stream, sign)
        zone.addErrback(self._not_sent, query, _signing(stream.answer, sign))
        zone.addBoth(self._transferred)

    def _send(
        self,
        zone: zones.Transfer | None,
        query: wire.Query,
        peer: str,
        stream: Stream,
        sign: Sign | None,
    ) -> Any:
        if zone is None:
            ANSWERS.labels("refused").inc()
            _signing(stream.answer, sign)(wire.refused(query))
            return None
        ANSWERS.labels("transfer").inc()
        log.info("zone %s, serial %d, to %s", query.question.name, zone.serial, peer)
        site = self._site.current
        messages = wire.transfer(query, zone.records, primary=zone.primary, domain=site.domain)
        return stream.send_all(map(sign, messages) if sign else messages)

    def _not_sent(self, failure: Failure, query: wire.Query, reply: Reply) -> None:
        log.error("the zone %s cannot be sent: %s", query.question.name, failure.getErrorMessage())
        ANSWERS.labels("failed").inc()
        reply(wire.failed(query))

    def _transferred(self, _: object) -> None:
        self.transfers -= 1

    # ------------------------------------------------------------ names of others

    def _forward_query(self, query: wire.Query, peer: str, reply: Reply) -> None:
        here = any(ip_address(peer) in network for network in self._networks)
        if (
            not self._forward
            or not query.recursive
            or not here
            or self.forwarding >= MOST_FORWARDED
        ):
            ANSWERS.labels("refused").inc()
            reply(wire.refused(query))
            return
        forwarded = _ForwardedQuery(self._reactor, self._forward, query, reply, self._forwarded)
        self.forwarding += 1
        forwarded.ask()

    def _forwarded(self, code: str) -> None:
        self.forwarding -= 1
        ANSWERS.labels(code).inc()


def _signing(reply: Reply, sign: Sign | None) -> Reply:
    """Return a function that signs and sends a reply; without a signer, `reply` itself."""
    return (lambda message: reply(sign(message))) if sign else reply


class _ForwardedQuery(DatagramProtocol):
    """A question that is forwarded to other servers, one after the other, from a port of its own
    (RFC 5452)."""

    transport: Any

    def __init__(
        self,
        reactor: Any,
        servers: Sequence[tuple[str, int]],
        query: wire.Query,
        reply: Reply,
        done: Callable[[str], None],
    ) -> None:
        self._reactor, self._servers, self._query = reactor, list(servers), query
        self._reply, self._done = reply, done
        self._id = random.SystemRandom().getrandbits(16).to_bytes(2, "big")
        # a random id replaces the client's, which may be guessed
        self._question = bytes(query.record.pack())[2:]
        self._timer: Any = None
        self._port = reactor.listenUDP(0, self, maxPacketSize=LONGEST)

    def ask(self) -> None:
        """Ask the next server; when none is left, answer that the question failed."""
        while self._servers:
            self._server = self._servers.pop(0)
            try:
                self.transport.write(self._id + self._question, self._server)
            except OSError as error:  # no route leads there
                log.debug("%s cannot be asked: %s", self._server[0], error)
                continue
            self._timer = self._reactor.callLater(PATIENCE, self.ask)
            return
        self._end(wire.failed(self._query), "failed")

    def datagramReceived(self, data: bytes, addr: Any) -> None:
        """Pass an answer on, if the server that was asked sends it and it repeats the question (RFC
        5452 section 9)."""
        if addr[:2] != self._server or data[:2] != self._id or not wire.answers(data, self._query):
            return
        number = int(self._query.record.header.id).to_bytes(2, "big")
        if len(data) > self._query.room:  # to be asked for again, over TCP
            data = wire.shortened(self._query)
        self._end(number + data[2:], "passed on")

    def connectionRefused(self) -> None:
        """Leave the question to its time limit: no server listens there."""

    def _end(self, data: bytes, code: str) -> None:
        if self._timer is not None and self._timer.active():
            self._timer.cancel()
        self._servers = []
        self._port.stopListening()
        self._reply(data)
        self._done(code)
