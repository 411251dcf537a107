"""Many TFTP clients in one process, all started before any is served on: ``tftp_crowd SERVER COUNT
NAME FILE``.

Lockstep, blksize 1428. Fails unless every client receives exactly FILE.
"""

from __future__ import annotations

import resource
import select
import socket
import struct
import sys
from pathlib import Path

BLKSIZE = 1428


class Client:
    """One client; sends its last datagram again when told to."""

    def __init__(self, server: str, name: str) -> None:
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.setblocking(False)
        self.peer = (server, 69)
        self.last = f"\0\1{name}\0octet\0blksize\0{BLKSIZE}\0".encode()
        self.expected = 0
        self.parts: list[bytes] = []
        self.complete = False
        self.repeat()

    def repeat(self) -> None:
        self.socket.sendto(self.last, self.peer)

    def hear(self) -> None:
        datagram, self.peer = self.socket.recvfrom(2048)
        opcode, block = struct.unpack("!HH", datagram[:4])
        if opcode == 5:
            raise SystemExit(datagram)
        if opcode == 3 and block == self.expected:
            self.parts.append(datagram[4:])
            self.complete = len(datagram) < BLKSIZE + 4
        elif opcode == 3 or self.expected:
            return
        self.last = struct.pack("!HH", 4, self.expected)
        self.expected += 1
        self.repeat()


def main(server: str, count: str, name: str, path: str) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    content = Path(path).read_bytes()
    clients = {
        client.socket.fileno(): client
        for client in (Client(server, name) for _ in range(int(count)))
    }
    poll = select.epoll()
    for fd in clients:
        poll.register(fd, select.EPOLLIN)
    running = set(clients)
    while running:
        ready = poll.poll(2.0)
        for fd, _ in ready:
            clients[fd].hear()
            if clients[fd].complete:
                running.discard(fd)
        if not ready:
            for fd in running:
                clients[fd].repeat()
    wrong = sum(b"".join(client.parts) != content for client in clients.values())
    if wrong:
        raise SystemExit(f"{wrong} of {count} differ")


if __name__ == "__main__":
    main(*sys.argv[1:])
