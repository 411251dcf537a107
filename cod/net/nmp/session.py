"""The server's side of a VCM's session: the VCM's messages are carried out in order, and the
messages of its outbox are sent in order."""

from __future__ import annotations

import logging
import secrets
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from functools import partial
from math import inf
from typing import Any, Protocol

from twisted.python.failure import Failure

from cod.flows.people.access import has_run
from cod.flows.vcms import certificates, vcms
from cod.model import Effect, OutboxMessage, Refused
from cod.net.nmp import connection, verbs
from cod.net.nmp.connection import NmpConnection
from cod.net.nmp.limits import Quotas
from cod.net.nmp.verbs import VcmPeer
from cod.pool import Pool
from cod.security.ca import Ca, Issued
from cod.wire.nmp import bodies as b
from cod.wire.nmp import xml
from cod.wire.nmp.frames import Fault, Message

WINDOW = 200  # messages sent and not acknowledged, after which nothing more is sent

log = logging.getLogger("cod.nmp")


class ShownIdentity(Protocol):
    """The identity that a peer has shown: see `net.nmp.tls.PeerIdentity`."""

    @property
    def serial(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def tls(self) -> bool: ...
    @property
    def until(self) -> float: ...


class Server(connection.Host, Protocol):
    """The parts of a server that a session needs.

    sessions   open ones, by the vcluster's id
    quotas     the remaining quota of each
    identity   returns the identity of a transport's peer (`net.nmp.tls.PeerIdentity`)
    authority  issues certificates to invited peers; None: none are invited
    """

    pool: Pool
    server: str
    clock: Callable[[], float]
    effects: Callable[[Iterable[Effect]], object]
    identity: Callable[[Any], ShownIdentity]
    authority: Ca | None
    sessions: dict[int, VcmSession]
    quotas: Quotas


class VcmSession(NmpConnection):
    """A VCM's connection."""

    def __init__(self, server: Server, address: str) -> None:
        super().__init__(server, address)
        self._server = server
        self._peer: VcmPeer | None = None
        self.greeted = vcms.Greeted(0, 0, 0)
        self.sent = self.acked = 0
        self._until = inf
        self._shown: dict[str, tuple[str, int]] = {}

    @property
    def name(self) -> str:
        """Return the vcluster's name; before the hello, the peer's address."""
        return self._peer.vcluster if self._peer else self.address

    def look_after(self, now: float) -> None:
        """End the connection if the VCM's certificate has expired since the handshake."""
        if self.is_open and not self._closing and self._server.clock() >= self._until:
            self._server.quiet.warning(
                (self.name, "expired"), f"the certificate of the VCM of {self.name} has ended"
            )
            self.leave("its certificate has ended")
        super().look_after(now)

    # ------------------------------------------------------------ carrying out

    async def carry_out(self, message: Message) -> None:
        """Carry out a message, in a flow."""
        try:
            body = xml.read(message)
            if isinstance(body, b.Hello):
                await self._greet(message, body)
            elif isinstance(body, b.Enroll):
                await self._enroll(message, body)
            elif self._peer is not None:
                await self._deal_with(message, body, self._peer)
        except Fault as fault:
            fault.about = message.id
            self.refuse(fault)
        except Refused as refused:
            fatal = refused.code == "forbidden"
            self.refuse(
                Fault(
                    "identity" if fatal else "refused",
                    refused.sentence,
                    about=message.id,
                    fatal=fatal,
                )
            )
        except Exception as error:
            sentence = f"VCM of {self.name}: {message.verb} could not be carried out: {error}"
            if self._server.pool.is_away(error):
                self._server.quiet.warning((self.name, "unavailable"), sentence)
            else:
                log.error("%s", sentence, exc_info=True)
            self.say(
                b.Error("unavailable", "this could not be looked up now: ask again"),
                answers=message.id,
            )
            if not self.is_open:  # a VCM says hello once in a connection
                self.leave("come again later")

    async def _greet(self, message: Message, hello: b.Hello) -> None:
        server, shown = self._server, self._server.identity(self.transport)
        # a VCM that is known by its address alone uses the plain port
        if shown.tls and not shown.serial:
            raise Fault("identity", "a certificate is wanted", fatal=True)
        server.quotas.greets(shown.serial or self.address)
        if shown.name and shown.name != hello.vcluster:
            raise Fault(
                "identity",
                f"the certificate is of vcluster {shown.name}, not {hello.vcluster}",
                fatal=True,
            )
        greeted = await server.pool.run(
            vcms.greet,
            vcluster=hello.vcluster,
            serial=shown.serial,
            address=self.address,
            about=hello.vcm,
            seen=hello.seen,
            server=server.server,
            now=server.clock(),
            ends_at=None if shown.until == inf else shown.until,
        )
        if self._closing:  # it has gone while we looked
            self._gone(greeted.vcluster_id, greeted.epoch)
            return
        older = server.sessions.get(greeted.vcluster_id)
        # it came later and was looked up sooner
        if older is not None and older.greeted.epoch > greeted.epoch:
            self.leave("a newer connection has taken its place")
            return
        self._peer = VcmPeer(hello.vcluster, greeted.vcluster_id)
        self.opened(server.quotas.of(greeted.vcluster_id))
        self._until = shown.until
        self.greeted, self.sent, self.acked = greeted, greeted.acked, greeted.acked
        server.sessions[greeted.vcluster_id] = self
        if older is not None:
            older.leave("a newer connection has taken its place")
        keepalive = server.site.current.nmp.keepalive
        self.say(
            b.Welcome(hello.vcluster, server.server, keepalive, greeted.acked), answers=message.id
        )
        log.info("VCM of %s (%s) is connected", hello.vcluster, hello.vcm)
        server.poll()

    async def _enroll(self, message: Message, asked: b.Enroll) -> None:
        """Exchange the VCM's invitation for a certificate. If the answer is lost, the VCM may
        repeat the request with the same key."""
        server = self._server
        if server.authority is None or not server.identity(self.transport).tls:
            raise Fault("identity", "certificates are issued by TLS only", fatal=True)
        server.quotas.greets(self.address)
        now = server.clock()
        issued = _certified(server.authority, asked.vcluster, asked.request, now)
        run = secrets.token_hex(16)
        await server.pool.run_once(
            partial(has_run, run=run, now=now),
            vcms.admit,
            vcluster=asked.vcluster,
            invitation=asked.invitation,
            address=self.address,
            serial=issued.serial,
            ends_at=issued.ends_at,
            key=issued.holder,
            now=now,
            run=run,
        )
        log.info(
            "the VCM of %s at %s has traded its invitation for a certificate",
            asked.vcluster,
            self.address,
        )
        self.say(b.Enrolled(b64encode(issued.der()).decode()), answers=message.id)
        self.leave("")

    async def _renew(self, message: Message, asked: b.Renew, peer: VcmPeer) -> None:
        """Issue the certificate that follows this connection's one. The old certificate stays valid
        until the new one is used, so a VCM that does not get the answer can ask again."""
        server, now = self._server, self._server.clock()
        if server.authority is None:
            raise Fault("refused", "this server issues no certificates")
        issued = _certified(server.authority, peer.vcluster, asked.request, now)
        run = secrets.token_hex(16)
        await server.pool.run_once(
            partial(has_run, run=run, now=now),
            vcms.spoken,
            self.greeted,
            partial(
                certificates.renew,
                vcluster_id=peer.id,
                epoch=self.greeted.epoch,
                serial=issued.serial,
                ends_at=issued.ends_at,
                address=self.address,
                now=now,
                run=run,
            ),
        )
        log.info("the VCM of %s has renewed its certificate", peer.vcluster)
        ours = server.authority.der()
        self.say(
            b.Renewed(b64encode(issued.der()).decode(), b64encode(ours).decode()),
            answers=message.id,
        )

    async def _deal_with(self, message: Message, body: b.Body, peer: VcmPeer) -> None:
        server = self._server
        if isinstance(body, b.Ack):
            await self._acknowledged(body, peer)
        elif isinstance(body, b.Ping):
            self.say(b.Pong(), answers=message.id)
        elif isinstance(body, b.Bye):
            self.leave("")
        elif isinstance(body, b.Error):
            server.quiet.warning(
                (peer.vcluster, "says"), f"VCM of {peer.vcluster} says: {body.sentence}"
            )
        elif isinstance(body, b.Renew):
            await self._renew(message, body, peer)
        elif not isinstance(body, b.Pong):
            flow = partial(
                verbs.answer, body=body, peer=peer, site=server.site.current, now=server.clock()
            )
            result = await server.pool.run(vcms.spoken, self.greeted, flow)
            server.effects(result.effects)
            if isinstance(body, b.RequestNodes | b.ReclaimAnswer) and body.reason:
                about = (
                    f"{message.verb}"
                    f" {body.key if isinstance(body, b.RequestNodes) else body.reclaim}"
                )
                self._server.quiet.info(
                    (peer.vcluster, about), f"VCM of {peer.vcluster}: {about}: {body.reason}"
                )
            self.say(result.value, answers=message.id)

    async def _acknowledged(self, ack: b.Ack, peer: VcmPeer) -> None:
        if ack.sequence > self.sent:
            raise Fault("out-of-state", f"{ack.sequence} was not sent yet")
        upto = max(ack.sequence, *self._acks_behind())
        if upto <= self.acked:
            return
        await self._server.pool.run(
            vcms.spoken, self.greeted, lambda tx: vcms.acknowledge(tx, peer.id, upto)
        )
        had_room = self.has_room()
        self.acked = max(self.acked, upto)
        if not had_room:
            self._server.poll()

    def _acks_behind(self) -> list[int]:
        """Return the sequence numbers of the acknowledgements that wait directly behind this one,
        after a 0: one transaction serves all. A faulty message among them is refused in its
        turn."""
        found = [0]
        while self._heard and self._heard[0].verb == "ack":
            try:
                body = xml.read(self._heard[0])
            except Fault:
                break
            if not isinstance(body, b.Ack) or body.sequence > self.sent:
                break
            self._heard.popleft()
            found.append(body.sequence)
        return found

    # ------------------------------------------------------------ telling

    def tell(self, row: OutboxMessage) -> None:
        if self.say(verbs.outbox_body(row), sequence=row.sequence):
            self.sent = row.sequence

    def show(self, node: str, phase: str, done: int, total: int) -> None:
        """Send the VCM the progress of the node's disk, if it has changed and the VCM is
        reading."""
        if self.has_room() and self._shown.get(node) != (phase, done):
            self._shown[node] = (phase, done)
            self.say(b.Progress(node, phase, done, total))

    def has_room(self) -> bool:
        """Return whether more messages may be sent before the VCM reads and acknowledges some."""
        return self._full_since is None and self.sent - self.acked < WINDOW and not self._closing

    def connectionLost(self, reason: Failure | None = None) -> None:
        super().connectionLost(reason)
        peer = self._peer
        if peer is not None:
            log.info("VCM of %s is not connected any more", peer.vcluster)
            if self._server.sessions.get(peer.id) is self:
                del self._server.sessions[peer.id]
            self._gone(peer.id, self.greeted.epoch)

    def _gone(self, vcluster_id: int, epoch: int) -> None:
        server = self._server
        done = server.pool.run(vcms.gone, vcluster_id, server.server, epoch, server.clock())
        done.addErrback(lambda failure: log.warning("not noted: %s", failure.getErrorMessage()))


def _certified(authority: Ca, vcluster: str, asked: str, now: float) -> Issued:
    """Return the certificate for the request `asked` (PKCS #10, DER in base64). Raises `Fault`."""
    try:
        return authority.certify(vcluster, b64decode(asked), datetime.fromtimestamp(now, UTC))
    except ValueError as error:
        raise Fault("invalid", f"the request for a certificate: {error}", line=1) from None
