"""A running server that is attacked on every port at once: how long do others wait, and does
anything grow?

Floods of mutated datagrams (DHCP, TFTP, DNS), connections with mutated bytes (HTTP boot, confd,
NMP, REST) and clients that never finish a request come from one machine; a bystander on another
asks DNS, the boot server and the REST API all the time. Prints how many messages were sent, the
bystander's worst delay for each service beside that of quiet times (the goal is 0.3 s on a quiet
host), and what each process grew by. `COD_ATTACK_SECONDS` says for how long.
"""

from __future__ import annotations

import itertools
import os
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from dnslib import DNSRecord

from tests.attack.mutants import descriptors, memory, mutants
from tests.attack.test_decoders import ATTACKS
from tests.system.intruder import CONFD, HTTP, SERVER, TFTP, Intruder
from tests.system.stand import Stand

pytestmark = [
    pytest.mark.system,
    pytest.mark.slow,
    pytest.mark.in_turn(2),
    pytest.mark.xdist_group("bystander"),
]

SECONDS = float(os.environ.get("COD_ATTACK_SECONDS", "20"))
QUIET = 4.0  # seconds without an attack, before it
ROUNDS = 50  # questions to each service that are answered during the attack, however long it takes
GROWTH, MORE_FILES = 48 << 10, 64  # KiB, descriptors of a process, when all clients are gone
DNS, NMP = 53, 8071
PAUSE = 0.002  # seconds between two messages of an attacker
GET = b"GET /files/file HTTP/1.1\r\nHost: 10.77.0.1\r\nRange: bytes=5-90\r\n\r\n"
POST = (
    b"POST /api/v1/templates HTTP/1.1\r\nHost: x\r\nContent-Type:"
    b' application/json\r\nContent-Length: 40\r\n\r\n{"name": "red", "document": "<template"}'
)
LIST = b"GET /api/v1/nodes?state=inactive&limit=5 HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.fixture
def stand(tmp_path: Path) -> Iterator[Stand]:
    with Stand(tmp_path, machines=2) as stand:
        stand.write_site()
        (stand.socket_folder / "data/boot/file").write_bytes(bytes(100_000))
        stand.serve()
        yield stand


class Bystander:
    """Somebody who uses three services, one question of each after the other; `worst`: seconds, by
    service."""

    def __init__(self, stand: Stand) -> None:
        self.worst: dict[str, float] = {}
        self.asked = 0
        self._stand, self._host = stand, Intruder(stand["m2"])
        self._host.boot()
        self._question = bytes(DNSRecord.question("none.cod.test").pack())

    def watch(self, until: Callable[[], bool]) -> None:
        """Ask until that is true; an answer that never comes raises TimeoutError."""
        self.worst = dict.fromkeys(("dns", "boot", "api"), 0.0)
        with self._host.datagrams() as dns, self._stand.client() as client:
            while not until():
                for service, ask in (
                    ("dns", lambda: self._name(dns)),
                    ("boot", lambda: self._host.get("/files/file")),
                    ("api", lambda: client.get("/health")),
                ):
                    start = time.monotonic()
                    ask()
                    self.worst[service] = max(self.worst[service], time.monotonic() - start)
                    self.asked += 1
                time.sleep(0.02)  # the pace of the questions: a bystander is no load itself

    def _name(self, dns: socket.socket) -> None:
        dns.sendto(self._question, (SERVER, DNS))
        dns.recv(4096)


class Attacker:
    """Threads that send until told to stop; `sent`: messages by protocol."""

    def __init__(self, stand: Stand) -> None:
        self.sent: Counter[str] = Counter()
        self.over = threading.Event()
        self._stand, self._host = stand, Intruder(stand["m1"])
        self._host.boot()
        streams = {
            "http": (HTTP, [GET, GET * 3]),
            "confd": (CONFD, ATTACKS["confd"][1]),
            "nmp": (NMP, ATTACKS["nmp"][1]),
            "rest": (0, [POST, LIST]),
        }
        jobs = [
            threading.Thread(target=self._datagrams, args=job)
            for job in (
                ("dhcp", 67, "255.255.255.255"),
                ("tftp", TFTP, SERVER),
                ("dns", DNS, SERVER),
            )
        ]
        jobs += [
            threading.Thread(target=self._streams, args=(name, *job))
            for name, job in streams.items()
        ]
        self._threads = [*jobs, threading.Thread(target=self._trickle)]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self.over.set()
        for thread in self._threads:
            thread.join(60)

    def _datagrams(self, name: str, port: int, to: str) -> None:
        with self._host.datagrams() as out:
            for packet in self._mutants(name, ATTACKS[name][1]):
                with suppress(OSError):
                    out.sendto(packet, (to, port))
                    self.sent[name] += 1

    def _streams(self, name: str, port: int, good: list[bytes]) -> None:
        packets = self._mutants(name, good)
        while ten := list(itertools.islice(packets, 10)):
            with suppress(OSError), self._connected(port) as line:
                line.sendall(b"".join(ten))
                self.sent[name] += len(ten)

    def _connected(self, port: int) -> socket.socket:
        if port:
            return self._host.connect(port)
        line = socket.socket(socket.AF_UNIX)
        line.connect(str(self._stand.api_socket))
        return line

    def _mutants(self, name: str, good: list[bytes]) -> Iterator[bytes]:
        for packet in mutants(good, len(name), 10_000_000):
            if self.over.wait(PAUSE):
                return
            yield packet

    def _trickle(self) -> None:
        ports = [HTTP] * 100 + [CONFD] * 7 + [NMP] * 7
        lines = [self._host.connect(port) for port in ports]
        self.sent["slow clients"] += len(lines)
        while not self.over.wait(1.0):
            for line in lines:
                with suppress(OSError):
                    line.sendall(b"G")
        for line in lines:
            line.close()


def sizes(stand: Stand) -> dict[int, tuple[int, int]]:
    """(KiB of memory, descriptors) of the server's processes."""
    assert stand.server is not None
    pid = stand.server.pid
    parts = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    assert len(parts) == 4
    return {each: (memory(each), descriptors(each)) for each in (pid, *map(int, parts))}


def test_others_are_served_while_every_port_is_attacked(
    stand: Stand, capsys: pytest.CaptureFixture[str]
) -> None:
    bystander, attacker = Bystander(stand), Attacker(stand)
    start = time.monotonic()
    bystander.watch(lambda: time.monotonic() > start + QUIET)
    quiet, before, asked = bystander.worst, sizes(stand), bystander.asked
    attacker.start()
    try:
        start = time.monotonic()
        enough = asked + 3 * ROUNDS
        bystander.watch(lambda: time.monotonic() > start + SECONDS and bystander.asked >= enough)
    finally:
        attacker.stop()

    def shrunk() -> bool:
        return all(now[1] - before[pid][1] < MORE_FILES for pid, now in sizes(stand).items())

    stand.wait(shrunk, 120, "descriptors are given back")
    after = sizes(stand)
    grown = {pid: after[pid][0] - before[pid][0] for pid in before}
    with capsys.disabled():
        print(
            f"\nsent {dict(attacker.sent)}; {bystander.asked - asked} questions of a bystander;"
            " worst seconds"
            f" { {name: round(value, 3) for name, value in bystander.worst.items()} }, in quiet"
            f" times { {name: round(value, 3) for name, value in quiet.items()} }; KiB grown"
            f" {list(grown.values())}"
        )
    assert after.keys() == before.keys(), "a process has died"
    assert set(attacker.sent) == {
        "dhcp",
        "tftp",
        "dns",
        "http",
        "confd",
        "nmp",
        "rest",
        "slow clients",
    }
    assert max(grown.values()) < GROWTH
    assert "Traceback" not in (stand.folder / "server.log").read_text()
