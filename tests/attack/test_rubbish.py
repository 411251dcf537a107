"""Rubbish on every port of a running server: no process dies or grows, nobody else notices, the
next one is served.

m1 is connected meanwhile, m2 comes when all is over, m3 is the vandal. The packets are the same at
every run.
"""

from __future__ import annotations

import random
import resource
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from cod.store.nodes import sessions
from cod.wire.confd import protocol
from tests.attack.mutants import memory, mutants
from tests.system.intruder import CONFD, HTTP, SERVER, TFTP, Intruder, Line
from tests.system.stand import Stand
from tests.unit.dhcp_captures import IPXE_ROM_DISCOVER, IPXE_ROM_REQUEST, OVMF_DISCOVER

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.xdist_group("rubbish")]

PACKETS = 10_000  # to each port
GROWTH = 32 << 10  # KiB that a process may grow by
OPEN = 120.0  # seconds until a connection that is still open counts as never closed


@pytest.fixture(scope="module")
def stand(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stand]:
    with Stand(tmp_path_factory.mktemp("rubbish"), machines=3) as stand:
        stand.write_site()
        (stand.socket_folder / "data/boot/file").write_bytes(bytes(100_000))
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, limits[1]))  # what it inherits
        stand.serve()
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        stand["m1"].on()
        stand.reaches("m1", "inactive")
        yield stand


@pytest.fixture(scope="module")
def vandal(stand: Stand) -> Intruder:
    vandal = Intruder(stand["m3"])
    vandal.boot()
    return vandal


@pytest.fixture(scope="module")
def trickles(vandal: Intruder) -> list[socket.socket]:
    """Connections that have sent a byte and will send no more."""
    lines = [
        vandal.connect(port) for port, number in ((HTTP, 100), (CONFD, 7)) for _ in range(number)
    ]
    for line in lines:
        line.sendall(b"\0")
    return lines


def processes(stand: Stand) -> dict[int, int]:
    """The server's processes, the supervisor first: process id -> KiB in memory."""
    assert stand.server is not None
    pid = stand.server.pid
    parts = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    assert len(parts) == 4
    return {each: memory(each) for each in (pid, *map(int, parts))}


def standing(stand: Stand) -> object:
    node = stand.node("m1")
    return node.state, node.generation, stand.read(sessions.get, node.id).epoch


@pytest.fixture(autouse=True)
def unharmed(stand: Stand, vandal: Intruder, trickles: object) -> Iterator[None]:
    """Afterwards the same processes are there, no larger, none has met a bug, and m1 has not been
    disturbed."""
    before, m1, log = processes(stand), standing(stand), stand.folder / "server.log"
    start = log.stat().st_size
    yield
    after = processes(stand)
    assert after.keys() == before.keys()
    grown = {pid: after[pid] - before[pid] for pid in after}
    print("KiB grown:", grown)
    assert max(grown.values()) < GROWTH
    assert standing(stand) == m1
    assert "Traceback" not in log.read_text()[start:]


def test_parts_may_open_as_many_files_as_the_system_allows(stand: Stand) -> None:
    assert stand.server is not None
    for pid in processes(stand).keys() - {stand.server.pid}:
        soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        assert soft == hard > 256


# ---------------------------------------------------------------- datagrams


def read_request(name: str, *options: str) -> bytes:
    return (
        struct.pack("!H", 1)
        + b"\0".join(word.encode() for word in (name, "octet", *options))
        + b"\0"
    )


@pytest.mark.parametrize(
    ("port", "good"),
    [
        (67, [IPXE_ROM_DISCOVER, IPXE_ROM_REQUEST, OVMF_DISCOVER]),
        (
            TFTP,
            [
                read_request("file"),
                read_request("file", "blksize", "1428", "tsize", "0", "windowsize", "16"),
                read_request("pxelinux.cfg/01-52-54-00-12-34-56"),
                b"\0\4\0\1",
                b"\0\5\0\1no\0",
                b"\0\2file\0octet\0",
            ],
        ),
    ],
    ids=["dhcp", "tftp"],
)
def test_datagrams(vandal: Intruder, port: int, good: list[bytes]) -> None:
    senders = [vandal.datagrams() for _ in range(16)]
    for number, packet in enumerate(mutants(good, port, PACKETS)):
        senders[number % 16].sendto(packet, ("255.255.255.255" if port == 67 else SERVER, port))
        if number % 100 == 99:
            # the pace of the load: what the kernel drops for want of room tests nothing
            time.sleep(0.01)
    assert vandal.tftp("file")[:4] == b"\0\3\0\1"
    vandal.boot()
    for sender in senders:
        sender.close()


# ---------------------------------------------------------------- connections


GET = b'GET /files/file HTTP/1.1\r\nHost: 10.77.0.1\r\nRange: bytes=5-90\r\nIf-Range: "x"\r\n\r\n'
POST = (
    b"POST /api/v1/templates HTTP/1.1\r\nHost: x\r\nContent-Type:"
    b' application/json\r\nContent-Length: 40\r\n\r\n{"name": "red", "document": "<template"}'
)
STREAM = (
    b"PUT /api/v1/images/x HTTP/1.1\r\nHost: x\r\nTransfer-Encoding:"
    b" chunked\r\n\r\n5\r\nabcde\r\n0\r\n\r\n"
)
LIST = b"GET /api/v1/nodes?state=inactive&limit=5 HTTP/1.1\r\nHost: x\r\n\r\n"
HELLO = protocol.frame(
    b'<hello version="1" id="%s" mac="52:54:00:12:34:56" nonce="%s"/>' % (b"a" * 32, b"0" * 64)
)


@pytest.mark.parametrize(
    ("port", "good"),
    [(HTTP, [GET, GET * 3]), (CONFD, [HELLO, HELLO * 2]), (0, [POST, LIST, STREAM])],
    ids=["http", "confd", "api"],
)
def test_connections(stand: Stand, vandal: Intruder, port: int, good: list[bytes]) -> None:
    packets = list(mutants(good, port, PACKETS))
    each = 10
    for start in range(0, PACKETS, each):
        with _api(stand) if port == 0 else vandal.connect(port) as line:
            with suppress(OSError):
                for packet in packets[start : start + each]:
                    line.sendall(packet)
                line.shutdown(socket.SHUT_WR)
            _until_closed(line)
    assert vandal.get("/files/file") == 200
    with stand.client() as client:
        assert client.get("/health")["ok"]


def _api(stand: Stand) -> socket.socket:
    line = socket.socket(socket.AF_UNIX)
    line.settimeout(60)
    line.connect(str(stand.api_socket))
    return line


def _until_closed(line: socket.socket) -> None:
    with suppress(ConnectionError):
        while line.recv(65536):
            pass


# ---------------------------------------------------------------- from a machine that has proven
# itself


BOMB = (
    b'<!DOCTYPE a [<!ENTITY a "ha">'
    + b"".join(b'<!ENTITY %c "%s">' % (98 + n, b"&%c;" % (97 + n) * 10) for n in range(20))
    + b"]><report>&u;</report>"
)
BODIES = {
    "doctype": b'<!DOCTYPE report SYSTEM "http://10.77.0.1:8069/files/file"><report/>',
    "entities": BOMB,
    "a file": (
        b'<!DOCTYPE a [<!ENTITY a SYSTEM "file:///etc/passwd">]><failed order="1">&a;</failed>'
    ),
    "utf-16": "<!DOCTYPE a []><report/>".encode("utf-16"),
    "deep": b"<report>" + b"<a>" * 100_000 + b"</a>" * 100_000 + b"</report>",
    "wide": b"<report>" + b'<node version="1"/>' * 200_000 + b"</report>",
    "attributes": b"<report " + b" ".join(b'a%d="1"' % n for n in range(100_000)) + b"/>",
    "unknown": b"<obey/>",
    "server's": b'<ack order="1"/>',
    "empty": b"",
    "random": random.Random(1).randbytes(100_000),
}


def _huge(line: Line) -> None:
    line.write(struct.pack("!I", 1 << 30) + bytes(1000))


def _unsealed(line: Line) -> None:
    line.write(protocol.frame(b"<heartbeat/>"))


def _again(line: Line) -> None:
    line.slip(b"<heartbeat/>")
    line.write(bytes(line.said[-(4 + 16 + len(b"<heartbeat/>")) :]))


ATTACKS: dict[str, Callable[[Line], None]] = {
    **{name: lambda line, body=body: line.slip(body) for name, body in BODIES.items()},
    "1 GB declared": _huge,
    "unsealed": _unsealed,
    "a frame twice": _again,
}


@pytest.fixture(scope="module")
def secret(vandal: Intruder) -> protocol.Secret:
    """The secret of m3's session: it is good until the next boot."""
    line = vandal.session(vandal.boot())
    line.socket.close()
    assert line.session is not None
    return line.session


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_session_ends_at_once_and_says_why(
    stand: Stand, vandal: Intruder, secret: protocol.Secret, attack: str
) -> None:
    log = stand.folder / "server.log"
    line = vandal.session(secret)
    start = log.stat().st_size
    with suppress(ConnectionError):
        ATTACKS[attack](line)
    assert line.is_closed()  # long before a silent peer is given up
    stand.wait(lambda: "m3: closed: " in log.read_text()[start:], what="the log says why")
    reason = next(text for text in log.read_text()[start:].splitlines() if "m3: closed: " in text)
    assert len(reason) < 500
    line.socket.close()


# ---------------------------------------------------------------- afterwards


def test_who_only_trickles_is_cut_off(trickles: list[socket.socket]) -> None:
    for line in trickles:
        line.settimeout(OPEN)
        _until_closed(line)  # TimeoutError: it is still open


def test_the_next_machine_goes_its_way(stand: Stand) -> None:
    stand["m2"].on()
    stand.reaches("m2", "inactive")
