"""When the boot and image server loses patience: connections in memory, on a clock that the test
moves."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.address import IPv4Address
from twisted.internet.testing import MemoryReactorClock, StringTransport

from cod.model import Site, SiteRef
from cod.net.bootfiles import BootFiles
from cod.net.bootserver.connection import HttpLimits
from cod.net.bootserver.sendfile import TURN, SendFile
from cod.net.bootserver.server import HttpServer

LIMITS = HttpLimits(request=15, idle=30, stall=60)


class Transport(StringTransport):
    """A transport in memory whose descriptor, if given, is a pipe's end; counts how often it was
    asked to write."""

    def __init__(self, fd: int = -1) -> None:
        super().__init__()
        self.fd, self.starts, self.aborted = fd, 0, False
        self.options: list[tuple[int, ...]] = []

    def registerProducer(self, producer: Any, streaming: bool) -> None:
        super().registerProducer(producer, streaming)
        if not streaming:  # as real transports do
            producer.resumeProducing()

    def setTcpNoDelay(self, enabled: bool) -> None:
        pass

    def getHandle(self) -> Transport:
        return self

    def setsockopt(self, *option: int) -> None:
        self.options.append(option)

    def startWriting(self) -> None:
        self.starts += 1

    def stopWriting(self) -> None:
        pass

    def fileno(self) -> int:
        return self.fd

    def abortConnection(self) -> None:
        self.aborted = True


class Room:
    """A server in memory and one connection to it."""

    def __init__(self, site: Site, root: Path) -> None:
        self.reactor = MemoryReactorClock()
        self.server = HttpServer(
            self.reactor, None, SiteRef(site), root, root, [], 8069, lambda: 0.0, limits=LIMITS
        )
        self.server.startService()
        factory: Any = self.reactor.tcpServers[0][1]
        self.connection: Any = factory.buildProtocol(IPv4Address("TCP", "10.0.0.5", 1000))
        self.transport = Transport()
        self.connection.makeConnection(self.transport)

    def wait(self, seconds: int) -> bool:
        """Let time pass; True if the connection was cut off."""
        for _ in range(seconds):
            self.reactor.advance(1)
        return self.transport.aborted


@pytest.fixture
def room(site: Site, tmp_path: Path) -> Room:
    (tmp_path / "file").write_bytes(b"content")
    return Room(site, tmp_path)


GET = b"GET /files/none HTTP/1.1\r\nHost: h\r\n\r\n"


def test_says_nothing(room: Room) -> None:
    assert not room.wait(14)
    assert room.wait(2)


def test_a_request_dripping_in_is_cut_off_however_lively(room: Room) -> None:
    for byte in b"GET /files/" + b"a" * 14:
        room.connection.dataReceived(bytes([byte]))
        room.wait(1)
    assert room.transport.aborted


def test_idle_between_requests(room: Room) -> None:
    for _ in range(3):
        room.connection.dataReceived(GET)
        assert not room.wait(28)
    assert room.wait(3)


def test_an_answer_that_moves_is_left_alone_and_one_that_stands_still_is_not(room: Room) -> None:
    room.connection.dataReceived(b"GET /files/file HTTP/1.1\r\nHost: h\r\n\r\n")
    sending: Any = room.connection._sending
    assert sending is room.transport.producer
    for _ in range(4):
        assert not room.wait(50)
        sending.at += 1
    assert not room.wait(60)
    assert room.wait(2)


def test_nothing_is_read_while_an_answer_is_under_way(room: Room) -> None:
    room.connection.dataReceived(b"GET /files/file HTTP/1.1\r\nHost: h\r\n\r\n")
    assert room.transport.producerState == "paused"


def test_closed_connections_are_forgotten(room: Room) -> None:
    room.connection.connectionLost()
    assert (len(room.server._connections), len(room.server._per_peer)) == (0, 0)
    room.wait(100)
    assert not room.transport.aborted


# ---------------------------------------------------------------- sendfile


def test_one_turn_sends_no_more_than_its_share(tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(bytes(3 * TURN))
    file, out = BootFiles(tmp_path).open("big"), os.open(tmp_path / "out", os.O_WRONLY | os.O_CREAT)
    transport, moved = Transport(out), []
    sending = SendFile(transport, file, TURN // 2, 2 * TURN)
    done = sending.start()
    while transport.producer is not None:
        before = sending.at
        sending.resumeProducing()
        moved.append(sending.at - before)
    os.close(out)
    assert moved == [TURN, TURN]
    assert done.called
    assert (tmp_path / "out").stat().st_size == 2 * TURN


def test_a_truncated_file_aborts(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"ten bytes!")
    file, out = (
        BootFiles(tmp_path).open("file"),
        os.open(tmp_path / "out", os.O_WRONLY | os.O_CREAT),
    )
    transport = Transport(out)
    sending = SendFile(transport, file, 0, 10)
    done = sending.start()
    os.truncate(tmp_path / "file", 0)
    sending.resumeProducing()
    os.close(out)
    assert transport.aborted
    assert not done.called


def test_a_full_socket_is_tried_again(tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(bytes(TURN))
    file = BootFiles(tmp_path).open("big")
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    transport = Transport(writing)
    sending = SendFile(transport, file, 0, TURN)
    done = sending.start()
    received, starts = 0, []
    while not done.called:
        sending.resumeProducing()
        starts.append(transport.starts)
        received += len(os.read(reading, TURN))
    received += len(os.read(reading, TURN)) if received < TURN else 0
    assert received == TURN
    assert starts[1] > starts[0]
    assert [value for _, _, value in transport.options] == [1, 0], "the last segment may be short"
    os.close(reading)
    os.close(writing)
