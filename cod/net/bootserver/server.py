"""The boot and image server: HTTP/1.1, GET and HEAD, file bodies by sendfile; captured disks come
in by PUT.

============================================  ====================================================
``/boot/{mac}/script.ipxe``                   the node's boot script
``/boot/{mac}/secret.cpio``                   a new secret for its boot, only for the address
                                              bound to that MAC
``/boot/disk/{signature}``, ``...-or-first``  the program that starts the disk with that
                                              signature on a BIOS machine
``/boot/once/{nonce}/{path}``                 the boot root, for the boot that was ordered
                                              with that nonce
``/files/{path}``                             the boot root
``/images/{digest}/manifest.json``            the image store, for nodes whose template names
                                              the image
``/images/{digest}/data.zst``, ``.../file``   the same
``/captures/{order}``                         disks that are being saved as images:
                                              `net.bootserver.captures`
``/latest/``, ``/nocloud/`` and others        what a node may know of itself:
                                              `net.bootserver.metadata`
============================================  ====================================================
"""

from __future__ import annotations

import logging
import re
import socket
import time
from collections import Counter
from collections.abc import Callable, Sequence
from email.utils import formatdate
from pathlib import Path
from typing import Any

import h11
import prometheus_client as prometheus
from twisted.application.service import Service
from twisted.internet.address import IPv4Address
from twisted.internet.defer import Deferred, DeferredList, ensureDeferred, maybeDeferred
from twisted.internet.interfaces import IAddress
from twisted.internet.protocol import Factory
from twisted.python.failure import Failure

from cod.model import Refused, SiteRef, mac_of
from cod.net.bootdocs import BootDocs, disk_loader
from cod.net.bootfiles import BootFiles, NoSuchFile, OpenFile
from cod.net.bootserver.captures import Captures
from cod.net.bootserver.connection import DEFAULTS, Connection, HttpLimits
from cod.net.bootserver.fetches import Fetches
from cod.net.bootserver.metadata import MetadataDocs
from cod.net.bootserver.peers import Peers
from cod.periodic import Timer
from cod.pool import Pool
from cod.wire.http import BadTarget, path_parts
from cod.wire.metadata import ROOTS as METADATA

REQUESTS = prometheus.Counter(
    "cod_http_requests_total", "HTTP requests by first path segment and status", ["kind", "status"]
)
OPEN = prometheus.Gauge("cod_http_connections", "open connections to the boot and image server")

KINDS = ("boot", "files", "images", "captures", "metadata")
FORWARDED = b"x-forwarded-for"  # a node's address, from a mirror alone
IMAGE_FILES = ("manifest.json", "data.zst", "file")
TYPES = {"json": "application/json", "ipxe": "text/plain", "txt": "text/plain"}
_FREEBIND = getattr(socket, "IP_FREEBIND", 15)  # of Linux, ip(7)
STATUS = {"not_found": 404, "forbidden": 403, "conflict": 409, "invalid": 400}

log = logging.getLogger("cod.http")


class HttpServer(Service):
    """The HTTP server for nodes, on `port` of each of `addresses` (all, if there are none).

    files_root   the boot root; images_root  the image store, a folder for each digest
    clock        wall time, for the flows and the Date header
    captures     takes captured disks; None: nobody does
    port         0 takes any free one (tests); `port` then says which
    kinds        what is answered; all else is not found
    later        the addresses may come to this host after the server has begun
    peers        knows the images of the site's other servers; None: there are no others
    """

    def __init__(
        self,
        reactor: Any,
        pool: Pool,
        site: SiteRef,
        files_root: Path,
        images_root: Path,
        addresses: Sequence[str],
        port: int,
        clock: Callable[[], float] = time.time,
        *,
        limits: HttpLimits = DEFAULTS,
        captures: Captures | None = None,
        kinds: Sequence[str] = KINDS,
        later: bool = False,
        peers: Peers | None = None,
    ) -> None:
        self.reactor = reactor
        self.limits = limits
        self.port = port
        self.seconds: Callable[[], float] = reactor.seconds
        self._files = BootFiles(files_root)
        self._images = BootFiles(images_root)
        self._docs = BootDocs(pool, site, clock)
        self._site, self._fetches = site, Fetches(pool, reactor.seconds)
        self._metadata = MetadataDocs(pool, site, reactor.seconds)
        self._captures, self._kinds, self._later = captures, kinds, later
        self._peers = peers
        self._addresses = list(addresses) or [""]
        self._clock = clock
        self._date = (0, "")
        self._connections: set[Connection] = set()
        self._per_peer: Counter[str] = Counter()
        self._scan = Timer(reactor, 1.0, self._check)

    # ------------------------------------------------------------ service and connections

    def startService(self) -> None:
        """Listen. Raises twisted's CannotListenError."""
        super().startService()  # type: ignore[no-untyped-call]
        factory = _Factory(self)
        self._listening = []
        for address in self._addresses:
            self._listening.append(self._listen(address, factory))
            self.port = self._listening[-1].getHost().port
        self._scan.startService()

    def _listen(self, address: str, factory: Factory) -> Any:
        if not self._later:
            return self.reactor.listenTCP(self.port, factory, backlog=1024, interface=address)
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as own:
            own.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            # binds to an address that no interface has yet; Twisted cannot set it before it binds
            own.setsockopt(socket.IPPROTO_IP, _FREEBIND, 1)
            own.setblocking(False)
            own.bind((address, self.port))
            own.listen(1024)
            return self.reactor.adoptStreamPort(own.fileno(), socket.AF_INET, factory)

    def stopService(self) -> Deferred[Any]:
        """Stop listening and cut open transfers. Clients continue elsewhere from where they
        were."""
        super().stopService()  # type: ignore[no-untyped-call]
        self._scan.stopService()
        for connection in list(self._connections):
            connection.transport.abortConnection()
        return DeferredList(
            [maybeDeferred(listening.stopListening) for listening in self._listening]
        )

    def admit(self, peer: str) -> Connection | None:
        """Return a connection for a new client; None if there are too many."""
        if len(self._connections) >= self.limits.connections or (
            self._per_peer[peer] >= self.limits.per_peer and not self._is_mirror(peer)
        ):
            log.debug("http %s: too many connections", peer)
            return None
        return Connection(self, peer)

    def joined(self, connection: Connection) -> None:
        self._connections.add(connection)
        self._per_peer[connection.peer] += 1
        OPEN.inc()

    def left(self, connection: Connection) -> None:
        self._connections.discard(connection)
        self._per_peer[connection.peer] -= 1
        if not self._per_peer[connection.peer]:
            del self._per_peer[connection.peer]
        OPEN.dec()

    def date(self) -> str:
        """Return the value of the Date header, computed once a second."""
        now = int(self._clock())
        if now != self._date[0]:
            self._date = (now, formatdate(now, usegmt=True))
        return self._date[1]

    def _check(self) -> None:
        now = self.seconds()
        for connection in list(self._connections):
            connection.check(now)

    # ------------------------------------------------------------ routes

    def takes_body(self, request: h11.Request) -> bool:
        """Return whether the request may have a body: only captures may."""
        sent = request.method in (b"PUT", b"POST")
        return sent and self._captures is not None and request.target.startswith(b"/captures/")

    def respond(self, connection: Connection, request: h11.Request) -> None:
        """Answer a request, now or when its flow is done."""
        try:
            parts = path_parts(request.target)
            kind = "metadata" if parts == [""] or parts[0] in METADATA else parts[0]
        except BadTarget:
            parts, kind = [""], "none"
        if kind not in self._kinds:
            kind = "none"
        try:
            if kind == "metadata":
                ensureDeferred(self._answer_metadata(connection, request, parts))
                return
            if kind == "captures" and self._captures is not None:
                self._captures.respond(connection, request, parts[1:]).addCallback(
                    lambda answer: self._answer(connection, kind, *answer)
                )
                return
            self._route(connection, request, kind, parts[1:])
        except NoSuchFile:
            self._answer(connection, kind, 404, "no such file\n")

    def _is_mirror(self, address: str) -> bool:
        return any(each.address == address for each in self._site.current.mirrors)

    def _asker(self, connection: Connection, request: h11.Request) -> str:
        """Return the address of the node that asks. If a mirror forwards the request, this is not
        the connection's peer."""
        if self._is_mirror(connection.peer):
            return dict(request.headers).get(FORWARDED, b"").decode("latin-1") or connection.peer
        return connection.peer

    def _route(
        self, connection: Connection, request: h11.Request, kind: str, rest: list[str]
    ) -> None:
        method = request.method
        if method not in (b"GET", b"HEAD"):
            self._answer(connection, kind, 405, "only GET and HEAD\n", ("Allow", "GET, HEAD"))
        elif kind == "boot":
            self._boot(connection, method, rest)
        elif kind == "files":
            self._file(connection, kind, self._files.open("/".join(rest)), rest[-1])
        elif (
            kind == "images"
            and len(rest) == 2
            and re.fullmatch("[0-9a-f]{64}", rest[0])
            and rest[1] in IMAGE_FILES
        ):
            self._image(connection, request, rest[0], rest[1])
        else:
            raise NoSuchFile

    def _boot(self, connection: Connection, method: bytes, rest: list[str]) -> None:
        """Send a document that is made for a machine, or a file to a machine that shows a nonce."""
        if len(rest) > 2 and rest[0] == "once":
            file = self._files.open("/".join(rest[2:]))
            self._docs.bring(rest[1], connection.peer).addCallbacks(
                lambda _: self._file(connection, "boot", file, rest[-1]),
                self._refused,
                errbackArgs=(connection, rest[:1]),  # no log tells the nonce
            )
            return
        machine, name = rest if len(rest) == 2 else ("", "")
        mac = mac_of(machine)
        made = {"script.ipxe": self._docs.ipxe, "secret.cpio": self._docs.secret}.get(name)
        program = disk_loader(name) if machine == "disk" else None
        if program is not None:
            self._send_document(program, connection, "disk")
        elif mac is None or made is None:
            self._answer(connection, "boot", 404, "no such document\n")
        elif method == b"HEAD":  # making one has consequences (a secret minted, a boot decided)
            self._answer(connection, "boot", 405, "", ("Allow", "GET"))
        else:
            made(mac, connection.peer).addCallbacks(
                self._send_document,
                self._refused,
                callbackArgs=(connection, name),
                errbackArgs=(connection, rest),
            )

    async def _answer_metadata(
        self, connection: Connection, request: h11.Request, parts: list[str]
    ) -> None:
        """Answer a node's question about itself."""
        try:
            status, body, headers = await self._metadata.answer(
                connection.peer, request.method, parts, dict(request.headers)
            )
        except Exception as error:
            log.error(
                "http %s: nobody can say what it may know: %s",
                connection.peer,
                error,
                exc_info=not Pool.is_away(error),
            )
            status, body = 503, "try again\n"
            headers = (("Content-Type", "text/plain"), ("Retry-After", "1"))
        self._answer(connection, "metadata", status, body, *headers)

    def _image(self, connection: Connection, request: h11.Request, digest: str, name: str) -> None:
        """Send a file of an image to clients that may have it; for others it does not exist."""
        try:
            file: OpenFile | None = self._images.open(f"{digest}/{name}")
        except NoSuchFile:
            if self._peers is None or (self._images.root / digest).is_dir():
                raise
            file = None
        if self._peers and self._peers.admits(dict(request.headers), connection.peer, digest):
            if file is None:  # its server goes on to the next that has the image
                raise NoSuchFile(digest)
            self._file(connection, "images", file, name)
            return
        asker = self._asker(connection, request)
        known = self._site.current.images.open or self._fetches.known(asker, digest)
        if known is None:
            ensureDeferred(self._ask_image_rights(connection, file, digest, name, asker))
        elif known:
            self._give(connection, file, digest, name)
        else:
            self._answer(connection, "images", 404, "no such file\n")

    async def _ask_image_rights(
        self, connection: Connection, file: OpenFile | None, digest: str, name: str, asker: str
    ) -> None:
        try:
            may = await self._fetches.ask(asker, digest)
        except Exception as error:
            log.error("http %s: nobody can say who may have images: %s", connection.peer, error)
            self._answer(connection, "images", 503, "try again\n")
            return
        if not may:
            log.info("http %s: nothing that it is to run names the image %s", asker, digest)
            self._answer(connection, "images", 404, "no such file\n")
        else:
            self._give(connection, file, digest, name)

    def _give(self, connection: Connection, file: OpenFile | None, digest: str, name: str) -> None:
        if file is not None:
            self._file(connection, "images", file, name)
        else:
            ensureDeferred(self._send_on(connection, digest, name))

    async def _send_on(self, connection: Connection, digest: str, name: str) -> None:
        """Redirect a node to a server that has the image, while this server fetches it."""
        assert self._peers is not None
        try:
            other = await self._peers.instead(digest, connection.peer)
        except Exception as error:
            log.error("http %s: nobody can say who has images: %s", connection.peer, error)
            other = ""
        if other:
            place = ("Location", f"http://{other}/images/{digest}/{name}")
            self._answer(connection, "images", 307, "", place, ("Cache-Control", "no-store"))
        else:
            words = "no server that runs has this image\n"
            self._answer(connection, "images", 503, words)

    def _file(self, connection: Connection, kind: str, file: OpenFile, name: str) -> None:
        if connection not in self._connections:
            return  # it went away while the flow ran
        content_type = TYPES.get(name.rpartition(".")[2], "application/octet-stream")
        status = connection.reply_file(file, kind, ("Content-Type", content_type))
        REQUESTS.labels(kind, status).inc()
        log.debug("http %s %s %s %d", connection.peer, kind, name, status)

    def _send_document(self, body: bytes, connection: Connection, name: str) -> None:
        content_type = TYPES.get(name.rpartition(".")[2], "application/octet-stream")
        self._answer(
            connection,
            "boot",
            200,
            body,
            ("Content-Type", content_type),
            ("Cache-Control", "no-store"),
        )

    def _refused(self, failure: Failure, connection: Connection, rest: list[str]) -> None:
        error = failure.value
        if isinstance(error, Refused):
            log.info("http %s /boot/%s: %s", connection.peer, "/".join(rest), error.sentence)
            self._answer(connection, "boot", STATUS[error.code], error.sentence + "\n")
        else:
            log.error(
                "http %s /boot/%s: %s", connection.peer, "/".join(rest), failure.getTraceback()
            )
            self._answer(connection, "boot", 500, "server error\n")

    def _answer(
        self,
        connection: Connection,
        kind: str,
        status: int,
        body: str | bytes,
        *headers: tuple[str, str],
    ) -> None:
        REQUESTS.labels(kind, status).inc()
        if connection not in self._connections:
            return  # it went away while the flow ran
        text = body.encode() if isinstance(body, str) else body
        connection.reply(status, text, *(headers or (("Content-Type", "text/plain"),)))


class _Factory(Factory):
    noisy = False

    def __init__(self, server: HttpServer) -> None:
        self._server = server

    def buildProtocol(self, addr: IAddress | None) -> Connection | None:
        assert isinstance(addr, IPv4Address)
        return self._server.admit(addr.host)
