"""TFTP sessions over an in-memory network that loses, repeats and delays datagrams."""

from __future__ import annotations

import contextlib
import heapq
import itertools
import random
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cod.wire import tftp
from cod.wire.tftp import (
    Malformed,
    SessionLimits,
    TftpRequest,
    TftpSession,
    decode_request,
    encode_error,
    negotiate,
    netascii,
)

CONTENT = random.Random(7).randbytes(70_001)


def rrq(
    name: str, options: dict[str, object] | None = None, mode: str = "octet", opcode: int = 1
) -> bytes:
    words = [name, mode, *itertools.chain.from_iterable((options or {}).items())]
    return struct.pack("!H", opcode) + b"".join(str(word).encode() + b"\0" for word in words)


def ack(block: int) -> bytes:
    return struct.pack("!HH", 4, block & 0xFFFF)


def opened(
    content: bytes = CONTENT, limits: SessionLimits = tftp.DEFAULTS, **options: object
) -> TftpSession:
    return TftpSession(decode_request(rrq("f", dict(options))), content, limits)


def blocks(bursts: object) -> list[int]:
    """Block numbers of the DATA datagrams in `bursts`."""
    return [struct.unpack("!H", d[2:4])[0] for burst in bursts for d in burst.datagrams()]  # type: ignore[attr-defined]


# ---------------------------------------------------------------- requests


def test_request_is_read_with_options_in_any_case() -> None:
    request = decode_request(rrq("boot/x", {"BLKSIZE": 1428, "WindowSize": 4}, mode="OCTET"))
    assert request == TftpRequest("read", "boot/x", "octet", {"blksize": "1428", "windowsize": "4"})


def test_write_request_is_told_apart() -> None:
    assert decode_request(rrq("x", opcode=2)).kind == "write"


@pytest.mark.parametrize(
    "datagram",
    [
        b"",
        b"\0",
        b"\0\1",
        b"\0\1name",
        b"\0\1name\0octet",
        b"\0\1n\0octet\0blksize\0",
        b"\0\1n\0octet\0blksize\0" + b"9",
        b"\0\1\xff\xfe\0octet\0",
        b"\0\3\0\1data",
        b"\0\4\0\1",
        b"\0\5\0\1x\0",
        b"\0\6a\0b\0",
        b"\0\7",
        b"\0\1" + b"a" * 2000,
    ],
)
def test_what_is_no_request_is_malformed(datagram: bytes) -> None:
    with pytest.raises(Malformed):
        decode_request(datagram)


def test_error_carries_its_text() -> None:
    assert encode_error(0, "too many") == b"\0\5\0\0too many\0"
    assert encode_error(1, "n\N{LATIN SMALL LETTER O WITH DIAERESIS}") == b"\0\5\0\1n?\0"


def test_netascii_line_ends() -> None:
    assert netascii(b"a\nb\rc\r\n") == b"a\r\nb\r\0c\r\0\r\n"


@pytest.mark.parametrize(
    ("asked", "granted"),
    [
        ({}, {}),
        ({"blksize": "1428", "tsize": "0"}, {"blksize": 1428, "tsize": 99}),
        ({"blksize": "7"}, {}),
        ({"blksize": "65465"}, {"blksize": 65464}),
        ({"blksize": "-1", "timeout": "x", "tsize": "", "windowsize": "1e3"}, {}),
        ({"timeout": "0"}, {}),
        ({"timeout": "255"}, {"timeout": 255}),
        ({"timeout": "256"}, {}),
        ({"windowsize": "0"}, {}),
        ({"windowsize": "65535"}, {"windowsize": 64}),
        ({"windowsize": "64", "blksize": "32768"}, {"blksize": 32768, "windowsize": 4}),
        ({"multicast": "", "utimeout": "5"}, {}),
        ({"blksize": "9" * 400}, {}),
    ],
)
def test_negotiation(asked: dict[str, str], granted: dict[str, int]) -> None:
    assert negotiate(asked, 99) == granted


def test_the_size_of_an_empty_file_is_not_told() -> None:
    assert negotiate({"tsize": "0"}, 0) == {}


# ---------------------------------------------------------------- sessions, step by step


def test_lockstep_without_options_starts_with_data_and_ends_with_a_short_block() -> None:
    session = opened(b"x" * 1000)
    assert blocks(session.start(0)) == [1]
    assert session.receive(ack(1), 0)[0].datagrams() == [b"\0\3\0\2" + b"x" * 488]
    assert session.receive(ack(2), 0) == ()
    assert session.outcome == "done"
    assert session.progress == 1000


@pytest.mark.parametrize(("length", "count"), [(0, 1), (511, 1), (512, 2), (1024, 3)])
def test_a_file_of_whole_blocks_ends_with_an_empty_one(length: int, count: int) -> None:
    session = opened(b"x" * length)
    bursts = session.start(0)
    sent = 0
    while not session.outcome:
        (datagram,) = bursts[0].datagrams()
        sent += 1
        bursts = session.receive(ack(sent), 0)
    assert sent == count
    assert len(datagram) - 4 == length % 512


def test_options_are_acknowledged_before_data() -> None:
    session = opened(b"x" * 3000, blksize=1000, tsize=0, windowsize=2)
    (oack,) = session.start(0)[0].datagrams()
    assert oack == b"\0\6blksize\x001000\0tsize\x003000\0windowsize\x002\0"
    assert blocks(session.receive(ack(0), 0)) == [1, 2]
    assert blocks(session.receive(ack(2), 0)) == [3, 4]


def test_a_client_that_refuses_the_options_ends_the_session() -> None:
    session = opened(blksize=1000)
    session.start(0)
    assert session.receive(encode_error(8, "no"), 0) == ()
    assert session.outcome == "error"
    assert session.receive(ack(0), 0) == ()


def test_lockstep_drops_repeated_acknowledgements() -> None:
    session = opened()
    session.start(0)
    assert blocks(session.receive(ack(1), 0)) == [2]
    assert session.receive(ack(1), 0) == ()
    assert session.receive(ack(0), 0) == ()
    assert session.receive(ack(77), 0) == ()


def test_window_goes_back_to_the_first_lost_block() -> None:
    session = opened(windowsize=8, blksize=512)
    session.start(0)
    assert blocks(session.receive(ack(0), 0)) == list(range(1, 9))
    assert blocks(session.receive(ack(3), 0)) == list(range(4, 12))


def test_repeated_acknowledgement_resends_a_window_once_and_not_the_next() -> None:
    session = opened(windowsize=4)
    session.start(0)
    session.receive(ack(0), 0)
    assert blocks(session.receive(ack(0), 0)) == [1, 2, 3, 4]
    assert session.receive(ack(0), 0) == ()
    assert blocks(session.receive(ack(4), 0)) == [5, 6, 7, 8]
    assert session.receive(ack(4), 0) == ()
    session.receive(ack(8), 0)
    assert blocks(session.receive(ack(8), 0)) == [9, 10, 11, 12]


def test_a_window_larger_than_one_call_takes_is_sent_in_several_bursts() -> None:
    session = opened(windowsize=60, blksize=1428, limits=SessionLimits(window_bytes=1 << 20))
    session.start(0)
    bursts = session.receive(ack(0), 0)
    assert len(bursts) == 2
    assert blocks(bursts) == list(range(1, 51))
    assert all(sum(map(len, burst.datagrams())) < 65507 and burst.size == 1432 for burst in bursts)


def test_waits_double_and_the_session_gives_up() -> None:
    session = opened(limits=SessionLimits(timeout=1, retries=6))
    session.start(0)
    session.receive(ack(1), 0)
    waits, now = [], 0.0
    while not session.outcome:
        waits.append(session.deadline - now)
        now = session.deadline
        assert session.tick(now - 0.01) == ()
        session.tick(now)
    assert waits == [1, 2, 4, 4, 4, 4, 4]
    assert session.outcome == "timeout"


def test_a_client_that_never_answers_gets_three_retransmissions_and_no_long_wait() -> None:
    session = opened(timeout=255)
    datagrams, now = list(session.start(0)), 0.0
    while not session.outcome:
        now = session.deadline
        datagrams += session.tick(now)
    assert len(datagrams) == 4
    assert now == 16


def test_four_losses_in_a_row_do_not_cost_an_impatient_client_the_file() -> None:
    session, patience = opened(), 13.0
    session.start(0)
    session.receive(ack(1), 0)
    sent = 1
    while session.deadline < patience:
        session.tick(session.deadline)
        sent += 1
    assert sent == 5


def test_progress_gives_the_retries_back() -> None:
    session = opened()
    session.start(0)
    session.receive(ack(1), 0)
    for _ in range(5):
        session.tick(session.deadline)
    session.receive(ack(2), session.deadline)
    for _ in range(10):
        assert session.tick(session.deadline)


@pytest.mark.slow
def test_block_numbers_wrap() -> None:
    content = random.Random(1).randbytes(8 * 140_000 + 3)
    assert deliver(opened(content, blksize=8, windowsize=64), "") == ("done", content)


# ---------------------------------------------------------------- a lossy network


class Client:
    """A receiver after RFC 1350 and 7440, written apart from the server: acknowledges the last
    block in order."""

    def __init__(self, options: bool, blksize: int, window: int) -> None:
        self.received = bytearray()
        self.expected = 0 if options else 1
        self.blksize, self.window = blksize, window
        self.in_window = 0
        self.complete = False

    def hear(self, datagram: bytes) -> list[bytes]:
        opcode, block = struct.unpack("!HH", datagram[:4])
        if opcode == 6:
            if self.expected == 0:
                self.expected = 1
            return [ack(0)] if self.expected == 1 else []
        if self.complete or self.expected == 0 or block != self.expected & 0xFFFF:
            self.in_window = 0
            return [ack(self.expected - 1)]
        self.received += datagram[4:]
        self.complete = len(datagram) - 4 < self.blksize
        self.expected += 1
        self.in_window += 1
        if self.complete or self.in_window == self.window:
            self.in_window = 0
            return [ack(self.expected - 1)]
        return []

    def impatient(self) -> list[bytes]:
        self.in_window = 0
        return [ack(self.expected - 1)] if self.expected else []


def deliver(session: TftpSession, fates: str) -> tuple[str, bytes]:
    """Run `session` against a `Client`; each letter of `fates` is what happens to the next
    datagram: (d)ropped, (t)wice, (l)ate, anything else well; after the last letter all is well.
    Gives the outcome and what was received."""
    client = Client(session._acked < 0, session._blksize, session._window)
    fate = iter(fates)
    wire: list[tuple[float, int, str, bytes]] = []
    order = itertools.count()
    now, patience = 0.0, 3.0

    def carry(to: str, datagrams: list[bytes]) -> None:
        for datagram in datagrams:
            happens = next(fate, ".")
            delays = {"d": [], "t": [0.001, 0.002], "l": [0.5]}.get(happens, [0.001])
            for delay in delays:
                heapq.heappush(wire, (now + delay, next(order), to, datagram))
        # in flight: a session that answers each duplicate would fill the network
        assert len(wire) < 2000

    carry("client", [d for b in session.start(0) for d in b.datagrams()])
    heard = 0.0
    while not session.outcome:
        upcoming = wire[0][0] if wire else float("inf")
        now = max(now, min(upcoming, session.deadline, heard + patience))
        if wire and upcoming <= now:
            _, _, to, datagram = heapq.heappop(wire)
            if to == "client":
                heard = now
                carry("server", client.hear(datagram))
            else:
                carry("client", [d for b in session.receive(datagram, now) for d in b.datagrams()])
        elif heard + patience <= now:
            heard = now
            carry("server", client.impatient())
        else:
            carry("client", [d for b in session.tick(now) for d in b.datagrams()])
    return session.outcome, bytes(client.received) if client.complete else b""


OPTIONS = st.sampled_from(
    [{}, {"blksize": 1428}, {"windowsize": 4}, {"blksize": 1428, "windowsize": 16}, {"tsize": 0}]
)


@settings(max_examples=300, deadline=None)
@given(OPTIONS, st.integers(0, 30_000), st.text("dtl...", max_size=60))
def test_any_loss_delivers_the_file_whole_or_ends_in_a_timeout(
    options: dict[str, int], size: int, fates: str
) -> None:
    content = CONTENT[:size]
    outcome, received = deliver(opened(content, **options), fates)
    assert outcome in ("done", "timeout")
    assert received in (content, b"")
    if outcome == "done":
        assert received == content


@settings(max_examples=100, deadline=None)
@given(
    OPTIONS,
    st.integers(0, 30_000),
    st.text("tl.", max_size=100),
    st.lists(st.integers(0, 100), max_size=3),
)
def test_few_losses_never_cost_the_transfer(
    options: dict[str, int], size: int, fates: str, lost: list[int]
) -> None:
    pattern = "".join("d" if at in lost else kind for at, kind in enumerate(fates.ljust(101, ".")))
    assert deliver(opened(CONTENT[:size], **options), pattern) == ("done", CONTENT[:size])


def test_duplicates_made_by_the_network_die_out() -> None:
    session = opened(windowsize=4, blksize=512)
    counted = 0
    original = session.receive

    def counting(datagram: bytes, now: float) -> object:
        nonlocal counted
        bursts = original(datagram, now)
        counted += len(blocks(bursts))
        return bursts

    class Counted:
        receive = staticmethod(counting)

        def __getattr__(self, name: str) -> object:
            return getattr(session, name)

    assert deliver(Counted(), "." * 6 + "t" * 3) == ("done", CONTENT)
    assert counted < 137 + 40


# ---------------------------------------------------------------- hostile peers


def mutated(rng: random.Random, seed: bytes) -> bytes:
    datagram = bytearray(seed)
    for _ in range(rng.randrange(1, 6)):
        if datagram and rng.random() < 0.7:
            datagram[rng.randrange(len(datagram))] = rng.randrange(256)
        elif rng.random() < 0.5:
            del datagram[rng.randrange(len(datagram) + 1) :]
        else:
            datagram += rng.randbytes(rng.randrange(20))
    return bytes(datagram)


def test_ten_thousand_mutated_datagrams_do_no_harm() -> None:
    rng = random.Random(42)
    seeds = [
        rrq("a", {"blksize": 1428, "tsize": 0, "timeout": 5}),
        rrq("b", opcode=2),
        ack(1),
        encode_error(1, "x"),
        b"\0\3\0\1data",
        b"\0\6blksize\x009\0",
    ]
    session = opened(windowsize=4)
    session.start(0)
    for _ in range(10_000):
        datagram = mutated(rng, rng.choice(seeds))
        with contextlib.suppress(Malformed):
            decode_request(datagram)
        session.receive(datagram, 0)
        assert len(session.receive(datagram, 0)) <= 1
    assert deliver(opened(), "") == ("done", CONTENT)
