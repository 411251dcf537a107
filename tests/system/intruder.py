"""A machine of the stand in the hands of somebody who means no good: it asks and connects as a
machine does.

Sockets are opened in threads that have entered the machine's network namespace; they stay in it.
"""

from __future__ import annotations

import ctypes
import os
import re
import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from cod.lab.standin import StandIn
from cod.orders import Order
from cod.wire.confd import protocol
from cod.wire.confd.messages import Message
from tests.system.stand import Host, ip

T = TypeVar("T")

CLONE_NEWNET = 0x40000000
SERVER = "10.77.0.1"
CONFD, HTTP, TFTP = 8070, 8069, 69


def inside(namespace: str, call: Callable[[], T]) -> T:
    """What `call` returns or raises, run in a thread in that network namespace; its child processes
    are there too."""
    answer: list[Any] = []

    def run() -> None:
        try:
            with open(f"/run/netns/{namespace}") as entry:
                if ctypes.CDLL(None, use_errno=True).setns(entry.fileno(), CLONE_NEWNET):
                    raise OSError(ctypes.get_errno(), "setns")
            answer.extend([call(), None])
        except BaseException as error:
            answer.extend([None, error])

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if answer[1] is not None:
        raise answer[1]
    return answer[0]


class Line:
    """A connection to confd: bytes out, bytes in, and an agent's machine over it."""

    def __init__(self, connected: socket.socket, secret: protocol.Secret, mac: str) -> None:
        self.socket, self.said = connected, bytearray()
        self.session: protocol.Secret | None = None
        self.side = protocol.AgentSide(
            secret, mac, os.urandom(protocol.NONCE), os.urandom(protocol.KEY)
        )
        self.write(self.side.to_send())

    def write(self, data: bytes) -> None:
        self.said += data
        self.socket.sendall(data)

    def next(self) -> list[protocol.Event]:
        """What the server says next, but for orders, which come when they come; [] when it has
        closed. Raises TimeoutError."""
        while True:
            try:
                data = self.socket.recv(65536)
            except ConnectionError:
                return []
            if not data:
                return []
            events = self.side.receive(data)
            self.session = next(
                (e.secret for e in events if isinstance(e, protocol.NewSecret)), self.session
            )
            if answer := self.side.to_send():
                self.write(answer)
            heard: list[protocol.Event] = [
                event for event in events if not isinstance(event, protocol.NewSecret | Order)
            ]
            if heard:
                return heard

    def tell(self, message: Message) -> list[protocol.Event]:
        """Say something, and hear what comes next."""
        self.write(self.side.send(message))
        return self.next()

    def slip(self, body: bytes) -> None:
        """Send `body` sealed as a message is, whatever it is."""
        self.side._write(body)
        self.write(self.side.to_send())

    def is_closed(self) -> bool:
        """Return whether the server closes, with no more than a refusal. Raises TimeoutError."""
        self.socket.settimeout(12)  # a silent peer would be given up after fifteen seconds
        while self.next():
            pass
        return True


class Intruder:
    """Somebody at `host`, whose own system does not run; `mac`: another card's that it uses."""

    def __init__(self, host: Host, mac: str | None = None) -> None:
        self.host, self.mac = host, mac or host.mac
        self.machine = StandIn(host.folder, self.mac, 0)
        host.by_hand = True
        if mac:
            for change in ("down", f"address {mac}", "up"):
                ip("-n", host.namespace, "link", "set", "eth0", *change.split())

    def run(self, call: Callable[[], T]) -> T:
        return inside(self.host.namespace, call)

    def boot(self) -> protocol.Secret:
        """Go the way through DHCP, script and secret as the firmware does; returns the secret."""
        return self.run(self._boot)

    def _boot(self) -> protocol.Secret:
        options = ["-V", "PXEClient:Arch:00000:UNDI:002001", "-x", "0x5d:0000"]
        self.machine.dhcp(options, tries=60)
        loader = self.machine.dhcp([*options, "-x", "0x4d:69505845"], tries=60)
        script = self.machine.fetch(loader["boot_file"]).decode()
        (url,) = re.findall(r"^initrd .*?(http://\S+secret\.cpio)", script, re.M)
        found = re.search(rb"([0-9a-f]{8,} [0-9a-f]{16,})", self.machine.fetch(url))
        assert found is not None
        return protocol.Secret.read(found[1].decode())

    def connect(self, port: int, timeout: float = 30.0) -> socket.socket:
        return self.run(lambda: socket.create_connection((SERVER, port), timeout=timeout))

    def datagrams(self, port: int = 0, timeout: float = 30.0) -> socket.socket:
        """A UDP socket that may broadcast."""
        made = self.run(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        made.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"eth0")
        made.bind(("", port))
        made.settimeout(timeout)
        return made

    def line(self, secret: protocol.Secret, mac: str | None = None) -> Line:
        """A connection to confd with hello said."""
        return Line(self.connect(CONFD), secret, mac or self.mac)

    def session(self, secret: protocol.Secret) -> Line:
        """An open connection to confd."""
        line = self.line(secret)
        line.next()
        assert line.side.state is protocol.State.OPEN
        return line

    def get(self, path: str) -> int:
        """HTTP status of a GET."""
        connection = self.connect(HTTP)
        with connection:
            connection.sendall(f"GET {path} HTTP/1.0\r\n\r\n".encode())
            return int(connection.recv(65536).split()[1])

    def tftp(self, name: str) -> bytes:
        """The first datagram of the answer to a read request; whoever never answered has to ask
        more than once."""
        with self.datagrams(timeout=1.0) as asking:
            for _ in range(30):
                asking.sendto(struct.pack("!H", 1) + name.encode() + b"\0octet\0", (SERVER, TFTP))
                with suppress(TimeoutError):
                    return asking.recv(2048)
        raise TimeoutError("TFTP does not answer")
