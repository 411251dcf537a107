"""The TFTP server on loopback, with clients that others wrote and some that mean no good."""

from __future__ import annotations

import contextlib
import math
import random
import select
import socket
import struct
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine

from cod.model import Binding, Site, SiteRef, ipv4
from cod.net.tftp.server import TftpServer, TransferLimits
from cod.pool import Pool, in_transaction
from cod.store.nodes import bindings, nodes, secrets
from cod.wire import diskloader
from cod.wire.tftp import SessionLimits
from tests.waiting import until

pytestmark = pytest.mark.slow  # half a minute of processor time and more, together with its like

MAC = "52:54:00:12:34:56"
PATIENT = SessionLimits(timeout=120)  # says nothing twice while a test looks at what comes
LARGE = random.Random(3).randbytes(1_000_017)
Start = Callable[..., TftpServer]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "boot"
    (root / "sub").mkdir(parents=True)
    (root / "large").write_bytes(LARGE)
    (root / "empty").write_bytes(b"")
    (root / "sub" / "text").write_bytes(b"one\ntwo\n")
    (root / "link").symlink_to("sub/text")
    (root / "escape").symlink_to("../secret")
    (tmp_path / "secret").write_bytes(b"not for you")
    return root


@pytest.fixture
def start(reactor: Any, in_reactor: Any, pool: Pool, site: Site, root: Path) -> Iterator[Start]:
    servers: list[TftpServer] = []

    def start(**options: Any) -> TftpServer:
        subnet = replace(site.subnets[0], server="127.0.0.1")
        options["limits"] = replace(
            options.get("limits", SessionLimits()), amplified=options.pop("amplified", math.inf)
        )
        server = TftpServer(
            reactor, pool, SiteRef(site), subnet, root, clock=lambda: 1000.0, port=0, **options
        )
        in_reactor(server.startService)
        servers.append(server)
        return server

    yield start
    for server in servers:
        in_reactor(server.stopService)


def rrq(name: str, options: str = "", opcode: int = 1, mode: str = "octet") -> bytes:
    words = [name, mode, *options.split()]
    return struct.pack("!H", opcode) + b"".join(word.encode() + b"\0" for word in words)


def client(source: str = "127.0.0.1") -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.bind((source, 0))
    sock.settimeout(60)
    return sock


def ask(server: TftpServer, datagram: bytes, source: str = "127.0.0.1") -> bytes:
    """The first answer to a datagram."""
    with client(source) as sock:
        sock.sendto(datagram, ("127.0.0.1", server.port))
        return sock.recv(70000)


def bind(engine: Engine, address: str, mac: str = MAC) -> None:
    """A node with that MAC, bound to that address."""

    def rows(tx: Any) -> None:
        node = nodes.by_mac(tx, mac) or nodes.add(
            tx, name="n1", boot_mac=mac, now=0, cause="test", actor="test"
        )
        bindings.add(
            tx, [Binding(ipv4(address), mac, "boot", node.id, "lab", None, "bound", 5000.0)]
        )

    in_transaction(engine, rows)


def run(*command: str | Path) -> None:
    subprocess.run([str(word) for word in command], check=True, timeout=120, capture_output=True)


# ---------------------------------------------------------------- foreign clients


@pytest.mark.parametrize("name", ["large", "empty", "sub/text", "link"])
def test_curl(start: Start, root: Path, tmp_path: Path, name: str) -> None:
    port = start().port
    run(
        "curl",
        "-sf",
        "--tftp-blksize",
        "1428",
        "-o",
        tmp_path / "got",
        f"tftp://127.0.0.1:{port}/{name}",
    )
    assert (tmp_path / "got").read_bytes() == (root / name).read_bytes()


def test_busybox(start: Start, tmp_path: Path) -> None:
    port = start().port
    run(
        "busybox",
        "tftp",
        "-b",
        "1428",
        "-g",
        "-r",
        "large",
        "-l",
        tmp_path / "got",
        "127.0.0.1",
        str(port),
    )
    assert (tmp_path / "got").read_bytes() == LARGE


@pytest.mark.parametrize(
    "options",
    [
        [],
        ["windowsize 16"],
        ["blksize 1428", "windowsize 16"],
        ["blksize 65464", "windowsize 2"],
        ["blksize 8", "windowsize 64"],
    ],
)
def test_atftp(start: Start, tmp_path: Path, options: list[str]) -> None:
    """Blocks of 65464 bytes pass every link's MTU: the kernel refuses to cut such bursts, and plain
    sends go out."""
    port = start().port
    words = [word for option in options for word in ("--option", option)]
    run("atftp", *words, "-g", "-r", "large", "-l", tmp_path / "got", "127.0.0.1", str(port))
    assert (tmp_path / "got").read_bytes() == LARGE


def test_netascii(start: Start) -> None:
    assert ask(start(), rrq("sub/text", mode="netascii")) == b"\0\3\0\1one\r\ntwo\r\n"


def test_without_segmentation_in_the_kernel(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # no such control message: EINVAL
    monkeypatch.setattr("cod.net.tftp.transfers.UDP_SEGMENT", 199)
    port = start().port
    run(
        "atftp",
        "--option",
        "blksize 1428",
        "--option",
        "windowsize 16",
        "-g",
        "-r",
        "large",
        "-l",
        tmp_path / "got",
        "127.0.0.1",
        str(port),
    )
    assert (tmp_path / "got").read_bytes() == LARGE


# ---------------------------------------------------------------- what is not served


@pytest.mark.parametrize(
    "name",
    [
        "../secret",
        "sub/../../secret",
        "/../secret",
        "escape",
        "sub",
        "",
        ".",
        "..\\secret",
        "sub\\text",
        "missing",
        "/etc/passwd",
        "//etc/passwd",
        "%2e%2e/secret",
        "sub/text/",
        "large/x",
        "a" * 600,
        "pxelinux.cfg/default",
    ],
)
def test_nothing_outside_the_root(start: Start, name: str) -> None:
    answer = ask(start(), rrq(name))
    if name == "sub/text/":  # the same file, harmlessly
        assert answer == b"\0\3\0\1one\ntwo\n"
    else:
        assert answer == b"\0\5\0\1file not found\0"


def test_writing_is_refused(start: Start) -> None:
    assert ask(start(), rrq("new", opcode=2))[:4] == b"\0\5\0\2"


def test_unknown_mode_and_malformed_requests_are_illegal(start: Start) -> None:
    server = start()
    assert ask(server, rrq("large", mode="mail"))[:4] == b"\0\5\0\4"
    assert ask(server, b"\0\1large")[:4] == b"\0\5\0\4"


def test_options_out_of_range_are_left_out(start: Start) -> None:
    assert ask(start(), rrq("large", "blksize 4 tsize 0 color red")) == b"\0\6tsize\x001000017\0"


def test_too_many_transfers_are_refused_and_room_is_made_again(start: Start) -> None:
    server = start(transfer_limits=TransferLimits(in_all=3, per_peer=2), limits=PATIENT)
    with client("127.0.0.2") as one, client("127.0.0.2") as other:
        for sock in (other, one):
            sock.sendto(rrq("large"), ("127.0.0.1", server.port))
            datagram, sender = sock.recvfrom(600)
            assert datagram[:4] == b"\0\3\0\1"
        assert ask(server, rrq("large"), "127.0.0.2")[:4] == b"\0\5\0\0"
        # a repeated request does not start another transfer
        one.sendto(rrq("large"), ("127.0.0.1", server.port))
        assert ask(server, rrq("large"), "127.0.0.3")[:2] == b"\0\3"
        # to another socket than the next request, which may be read first
        one.sendto(b"\0\5\0\0enough\0", sender)
        until(lambda: ask(server, rrq("empty"), "127.0.0.2") == b"\0\3\0\1", "no room is made")


def test_a_client_that_starts_anew_from_its_port_gets_a_new_transfer(start: Start) -> None:
    server = start(limits=PATIENT)
    with client() as sock:
        sock.sendto(rrq("large"), ("127.0.0.1", server.port))
        _, first = sock.recvfrom(600)
        sock.sendto(b"\0\4\0\1", first)
        sock.recv(600)
        sock.sendto(rrq("large"), ("127.0.0.1", server.port))
        datagram, second = sock.recvfrom(600)
        assert datagram[:4] == b"\0\3\0\1"
        assert second != first


def test_a_stranger_cannot_speak_for_the_client(start: Start) -> None:
    server = start(limits=PATIENT)
    with client() as sock, client("127.0.0.9") as stranger:
        sock.sendto(rrq("large"), ("127.0.0.1", server.port))
        _, sender = sock.recvfrom(600)
        stranger.sendto(b"\0\5\0\0die\0", sender)
        sock.sendto(b"\0\4\0\1", sender)
        assert sock.recv(600)[:4] == b"\0\3\0\2"


def test_silent_clients_are_forgotten(start: Start, in_reactor: Any) -> None:
    server = start(limits=SessionLimits(timeout=0.05, unanswered=1))
    with client() as sock:
        sock.sendto(rrq("large"), ("127.0.0.1", server.port))
        assert [sock.recv(600)[:4] for _ in range(2)] == [b"\0\3\0\1"] * 2
        left = server.transfers
        until(
            lambda: (
                in_reactor(lambda: (len(left), len(left._by_fd), left.of_address("127.0.0.1")))
                == (0, 0, 0)
            ),
            "it is remembered",
        )
        sock.setblocking(False)
        with pytest.raises(BlockingIOError):
            sock.recv(600)


def test_an_address_that_never_answers_is_sent_no_more_than_four_times_what_came_from_it(
    start: Start,
) -> None:
    """Headers of 28 bytes counted; whoever answers once is served at once from then on."""
    server = start(amplified=4.0, limits=SessionLimits(timeout=0.05))
    request = rrq("large")
    with client("127.0.0.7") as victim:
        victim.settimeout(0.2)
        sent = got = 0
        for _ in range(12):
            victim.sendto(request, ("127.0.0.1", server.port))
            sent += len(request) + 28
            with contextlib.suppress(TimeoutError):
                while True:
                    got += len(victim.recv(70000)) + 28
        assert 0 < got <= 4 * sent
    with client("127.0.0.8") as honest:
        honest.settimeout(0.2)
        honest.sendto(request, ("127.0.0.1", server.port))
        with pytest.raises(TimeoutError):
            honest.recv(600)
        honest.settimeout(60)
        for _ in range(3):
            honest.sendto(request, ("127.0.0.1", server.port))
        _, sender = honest.recvfrom(600)
        honest.sendto(b"\0\4\0\1", sender)
        assert honest.recv(600)[:4] == b"\0\3\0\2"
        honest.sendto(b"\0\5\0\0enough\0", sender)
    until(lambda: not len(server.transfers), "the transfer has not ended")
    assert ask(server, request, "127.0.0.8")[:4] == b"\0\3\0\1"


def test_ten_thousand_bad_datagrams_and_the_next_good_client_gets_its_file(
    start: Start, tmp_path: Path
) -> None:
    server = start(transfer_limits=TransferLimits(in_all=200, per_peer=200))
    rng = random.Random(11)
    seeds = [
        rrq("large", "blksize 1428 windowsize 16"),
        rrq("x", opcode=2),
        b"\0\4\0\1",
        b"\0\5\0\1x\0",
        b"\0\3\0\1a",
    ]
    with contextlib.ExitStack() as stack:
        socks = [stack.enter_context(client("127.0.0.7")) for _ in range(20)]
        for number in range(10_000):
            datagram = bytearray(
                rng.choice(seeds) if number % 3 else rng.randbytes(rng.randrange(600))
            )
            for _ in range(rng.randrange(4)):
                if datagram:
                    datagram[rng.randrange(len(datagram))] = rng.randrange(256)
            socks[number % 20].sendto(datagram, ("127.0.0.1", server.port))
            # let the server read: the kernel would drop what does not fit the socket's buffer
            if number % 500 == 0:
                ask(server, rrq("empty"))
    run("curl", "-sf", "-o", tmp_path / "got", f"tftp://127.0.0.1:{server.port}/large")
    assert (tmp_path / "got").read_bytes() == LARGE


# ---------------------------------------------------------------- documents


def test_pxelinux_configuration_for_the_bound_address(
    start: Start, engine: Engine, tmp_path: Path
) -> None:
    bind(engine, "127.0.0.1")
    port = start().port
    run(
        "curl",
        "-sf",
        "-o",
        tmp_path / "got",
        f"tftp://127.0.0.1:{port}/pxelinux.cfg/01-52-54-00-12-34-56",
    )
    text = (tmp_path / "got").read_text()
    assert "KERNEL" in text
    assert "boot/52:54:00:12:34:56/secret.cpio" in text.replace("-", ":")


def test_pxelinux_configuration_tells_a_stranger_nothing(start: Start, engine: Engine) -> None:
    bind(engine, "127.0.0.44")
    answer = ask(start(), rrq("pxelinux.cfg/01-52-54-00-12-34-56"))
    assert b"is not bound to" in answer
    assert b"vmlinuz" not in answer


def test_the_program_that_finds_a_disk(start: Start) -> None:
    server = start()
    program = diskloader.loader(0x1234ABCD)
    assert ask(server, rrq("boot/disk/1234abcd"))[4:] == program[:512]
    assert ask(server, rrq("1234abcd"))[:4] == b"\0\5\0\1", "not at the root"


def test_secret_only_for_the_bound_address(start: Start, engine: Engine) -> None:
    bind(engine, "127.0.0.1")
    server = start()
    refused = ask(server, rrq(f"boot/{MAC}/secret.cpio"), "127.0.0.2")
    assert refused[:4] == b"\0\5\0\2"
    assert in_transaction(engine, secrets.of_mac, MAC) == []
    assert ask(server, rrq(f"boot/{MAC}/secret.cpio"))[:10] == b"\0\3\0\x01070701"
    (minted,) = in_transaction(engine, secrets.of_mac, MAC)
    assert (minted.address, minted.kind, minted.expires_at) == ("127.0.0.1", "boot", 1300.0)


# ---------------------------------------------------------------- many at once


def test_five_hundred_sessions_at_once(start: Start, root: Path, in_reactor: Any) -> None:
    server = start(transfer_limits=TransferLimits(per_peer=600))
    content = LARGE[:60_000]
    (root / "some").write_bytes(content)
    received: dict[int, bytearray] = {}
    socks = [client() for _ in range(500)]
    poll = select.epoll()
    for sock in socks:
        poll.register(sock, select.EPOLLIN)
        sock.sendto(rrq("some", "blksize 1428 windowsize 4"), ("127.0.0.1", server.port))
        received[sock.fileno()] = bytearray()
    by_fd = {sock.fileno(): sock for sock in socks}
    expected = dict.fromkeys(by_fd, 0)
    finished = 0
    while in_reactor(lambda: len(server.transfers)) < 500:
        assert poll.poll(60)
    while finished < 500:
        events = poll.poll(60)
        assert events, f"only {finished} of 500 finished"
        for fd, _ in events:
            datagram, sender = by_fd[fd].recvfrom(2000)
            opcode, block = struct.unpack("!HH", datagram[:4])
            if opcode == 6 or block == expected[fd] + 1:
                expected[fd] += opcode == 3
                received[fd] += datagram[4:] if opcode == 3 else b""
                last = opcode == 3 and len(datagram) < 1432
                if opcode == 6 or block % 4 == 0 or last:
                    by_fd[fd].sendto(struct.pack("!HH", 4, expected[fd]), sender)
                finished += last
    assert all(got == content for got in received.values())
    for sock in socks:
        sock.close()


# ---------------------------------------------------------------- bad luck


def test_a_file_truncated_meanwhile_ends_its_transfer_only(
    start: Start, root: Path, in_reactor: Any
) -> None:
    server = start(limits=PATIENT)

    def large() -> list[str]:
        return [t.name for t in server.transfers._by_fd.values() if t.name == "large"]

    with client() as sock:
        sock.sendto(rrq("large", "blksize 8192"), ("127.0.0.1", server.port))
        _, sender = sock.recvfrom(600)
        assert in_reactor(large) == ["large"]
        (root / "large").write_bytes(b"short")
        # the first page was filled up with zeros; the second is not there
        sock.sendto(b"\0\4\0\0", sender)
        until(lambda: in_reactor(large) == [], "the transfer goes on")
    assert ask(server, rrq("sub/text")) == b"\0\3\0\1one\ntwo\n"


def test_a_bug_in_one_transfer_does_not_stop_the_others(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start(limits=PATIENT)
    with client() as sock:
        sock.sendto(rrq("large"), ("127.0.0.1", server.port))
        _, sender = sock.recvfrom(600)
        with monkeypatch.context() as patch:
            patch.setattr("cod.wire.tftp.TftpSession.receive", lambda *_: 1 / 0)
            sock.sendto(b"\0\4\0\1", sender)
            until(lambda: not len(server.transfers), "the bug ends nothing")
        sock.setblocking(False)
        with pytest.raises(BlockingIOError):
            sock.recv(600)
    assert ask(server, rrq("sub/text")) == b"\0\3\0\1one\ntwo\n"


def test_a_bug_in_reading_a_request_does_not_close_the_socket(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start()
    read: list[bytes] = []
    with monkeypatch.context() as patch, client() as sock:
        patch.setattr(
            "cod.wire.tftp.decode_request", lambda datagram: read.append(datagram) or 1 / 0
        )
        sock.sendto(rrq("large"), ("127.0.0.1", server.port))
        until(lambda: read, "nobody reads it")
    assert ask(server, rrq("sub/text")) == b"\0\3\0\1one\ntwo\n"


def test_no_descriptor_left(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    server = start()

    def none_left(*_: object) -> None:
        raise OSError(24, "Too many open files")

    with client() as sock:
        with monkeypatch.context() as patch:
            patch.setattr("cod.net.tftp.transfers.Transfers.begin", none_left)
            sock.sendto(rrq("large"), ("127.0.0.1", server.port))
            assert b"no room" in sock.recv(600)
        sock.sendto(rrq("sub/text"), ("127.0.0.1", server.port))
        assert sock.recv(600) == b"\0\3\0\1one\ntwo\n"
