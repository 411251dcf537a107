"""confd's two machines against each other over a fake wire, and against rubbish."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cod.net.confd import connection
from cod.orders import Erasure, ImageSource, Namesake, Order, Partition
from cod.wire import xmldoc
from cod.wire.confd import keys as session_keys
from cod.wire.confd import protocol
from cod.wire.confd.frames import Seal
from cod.wire.confd.messages import (
    Ack,
    Challenge,
    Done,
    Error,
    Failed,
    Heartbeat,
    Hello,
    Message,
    Progress,
    Proof,
    Report,
    Welcome,
    decode,
    element_text,
    encode,
)
from cod.wire.confd.protocol import (
    AgentSide,
    Framer,
    NewSecret,
    ProtocolError,
    Proved,
    Secret,
    Secrets,
    ServerSide,
    State,
)
from cod.wire.confd.x25519 import BASE, x25519

MAC = "52:54:00:12:34:56"
SECRET = Secret("a1b2c3", bytes(range(32)))
SALT = bytes(range(16))
KEYS = (b"\xcc" * 32, b"\xdd" * 32)  # the agent's and the server's, of X25519
NODE = (
    '<node version="1"><system vendor="A &amp; B" /><firmware kind="bios" /><memory mib="2048" />'
    '<cpu count="1" sockets="1" arch="x86_64"><flag>vmx</flag></cpu>'
    f'<nic name="eth0" mac="{MAC}" link="up" boot="yes" /><kernel release="6.1.0" /></node>'
)
ORDER = Order(
    "7.12",
    "prime",
    disk="serial:X Y",
    wipe=False,
    verify=True,
    table="gpt",
    partitions=(Partition(1, 1 << 30, "esp", "EFI"), Partition(2, 0, "linux", boot=True)),
    images=(
        ImageSource("1", "http://10.0.0.1:8069/images/ab", "chunks", "ab", 1 << 29),
        ImageSource("2", "https://x/y?a=1&b=2", "zstd", "cd", 5, "http://x/installer", "ef"),
    ),
    seed={"meta-data": "{}\n", "user-data": "#!/bin/sh\r\necho <&\"'\t\x00 é\n"},
    keep=("serial:Z",),
    sector=4096,
)
MESSAGES: list[Message] = [
    Hello("a1", MAC, bytes(32), KEYS[0]),
    Hello("a1", MAC, bytes(32)),
    Challenge(SALT, bytes(32), KEYS[1]),
    Challenge(SALT, bytes(32)),
    Proof(bytes(32)),
    Welcome(bytes(32), "n1", 5.0),
    Report(NODE),
    ORDER,
    Order("1.2", "wait"),
    Order("1.2", "wipe", purge=True),
    Order("1.2", "wipe", tables=True),
    Progress("1.2", "write", 5, 1 << 40, 1.5e9),
    Progress("1.2", "write", 5, 1 << 40, 1.5e9, "n12"),
    Done("1.2", {"bytes_written": 1e12, "seconds": 0.25}),
    Done("1.2"),
    Done("1.2", erased=(Erasure("sda", "M", "S", "", 1 << 40, "discard", 2.5, 4096),) * 2),
    Done("1.2", namesakes=(Namesake("volume group", "vg0", "sdb"),) * 2),
    Failed("1.2", "no such disk: <sda>"),
    Failed("1.2", "no place for the seed", "order"),
    Heartbeat(),
    Ack("1.2"),
    Ack(),
    Error("unknown", "no such secret"),
]


def checked(body: bytes) -> Any:
    return xmldoc.parse(body, "confd")


TEXTS = st.text("ab&<>\"'\t\n\r é\U0001f600", max_size=9)


@st.composite
def elements(draw: st.DrawFn, depth: int = 3) -> ET.Element:
    """Draw an element of ElementTree's without text behind elements."""
    names = st.sampled_from(["a", "node", "x-y"])
    element = ET.Element(draw(names), draw(st.dictionaries(names, TEXTS, max_size=3)))
    element.text = draw(st.none() | TEXTS)
    if depth:
        element.extend(draw(st.lists(elements(depth - 1), max_size=2)))
    return element


@given(elements())
def test_an_element_is_spelled_as_by_elementtree(element: ET.Element) -> None:
    assert element_text(element) == ET.tostring(element, "unicode")


Parses = pytest.mark.parametrize("parse", [protocol.plain, checked], ids=["plain", "checked"])


@Parses
@pytest.mark.parametrize("message", MESSAGES, ids=lambda m: type(m).__name__)
def test_every_message_survives_the_way(message: Message, parse: Callable[[bytes], Any]) -> None:
    assert decode(parse(encode(message))) == message


@given(reason=st.text(max_size=3000))
def test_any_reason_makes_a_valid_message(reason: str) -> None:
    message = decode(checked(encode(Failed("1.2", reason))))
    assert isinstance(message, Failed)
    assert len(message.reason) <= 2000


# ---------------------------------------------------------------- frames


@given(bodies=st.lists(st.binary(max_size=300), max_size=8), data=st.data())
def test_frames_come_out_however_the_stream_is_cut(
    bodies: list[bytes], data: st.DataObject
) -> None:
    stream = b"".join(protocol.frame(body) for body in bodies) + b"\0\0"
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=10)))
    framer, got = Framer(), []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        framer.add(stream[start:end])
        got += iter(framer.take, None)
    assert got == bodies


def test_a_gigabyte_is_refused_before_it_comes() -> None:
    framer = Framer()
    framer.add((1 << 30).to_bytes(4, "big"))
    with pytest.raises(ProtocolError, match="1073741824 bytes"):
        framer.take()
    assert len(framer) == 4


# ---------------------------------------------------------------- two machines


@dataclass
class Pair:
    """Both machines and what they have been told. `cut` says in which pieces bytes cross the
    wire."""

    cut: Callable[[bytes], Iterator[bytes]] = lambda data: iter([data])
    known: dict[str, protocol.Verifier] = field(
        default_factory=lambda: {SECRET.id: protocol.verifier(SECRET.key, SALT)}
    )
    secrets: Secrets = field(default_factory=lambda: Secrets(SECRET))
    heard: list[Any] = field(default_factory=list)  # by the server
    told: list[Any] = field(default_factory=list)  # to the agent
    lose: str = ""  # name of the message that is lost, and the connection with it

    def connect(self, number: int = 0) -> None:
        self.agent = AgentSide(self.secrets.current(), MAC, bytes([number]) * 32, KEYS[0], checked)
        self.server = ServerSide(bytes([255 - number]) * 32, KEYS[1], checked)

    def run(self) -> None:
        """Carry bytes to and fro until nothing moves."""
        while True:
            up = self.agent.to_send()
            if up and self.lose in ("hello", "proof") and self.lose.encode() in up:
                return
            for piece in self.cut(up):
                for event in self.server.receive(piece):
                    self.serve(event)
            down = self.server.to_send()
            if down and self.lose in ("challenge", "welcome") and self.lose.encode() in down:
                return
            for piece in self.cut(down):
                for event in self.agent.receive(piece):
                    if isinstance(event, NewSecret):
                        self.secrets.learned(event.secret)
                    elif isinstance(event, Error) and event.code == "unknown":
                        self.secrets.refused()
                    self.told.append(event)
            if not up and not down:
                return

    def serve(self, event: Any) -> None:
        self.heard.append(event)
        if isinstance(event, protocol.NeedVerifier):
            if event.id not in self.known:
                self.server.refuse("unknown", "no such secret")
                return
            for more in self.server.known(self.known[event.id]):
                self.serve(more)
        elif isinstance(event, Proved):
            if event.id == SECRET.id:  # traded for the session's
                self.known = {event.session: event.verifier}
            for more in self.server.welcome("n1", 2.5):
                self.serve(more)


def whole(data: bytes) -> Iterator[bytes]:
    yield data


def bytewise(data: bytes) -> Iterator[bytes]:
    return (data[i : i + 1] for i in range(len(data)))


@pytest.mark.parametrize("cut", [whole, bytewise])
def test_a_conversation(cut: Callable[[bytes], Iterator[bytes]]) -> None:
    pair = Pair(cut)
    pair.connect()
    pair.run()
    assert (pair.agent.state, pair.server.state) == (State.OPEN, State.OPEN)
    assert next(e for e in pair.told if isinstance(e, Welcome)).node == "n1"
    up: list[Message] = [
        Report(NODE),
        Progress("1.2", "write", 1, 2, 3.0),
        Done("1.2"),
        Heartbeat(),
    ]
    for piece in cut(b"".join(pair.agent.send(message) for message in up)):
        for event in pair.server.receive(piece):
            pair.serve(event)
    assert pair.heard[-4:] == up
    for piece in cut(pair.server.send(ORDER) + pair.server.send(Ack("1.2"))):
        pair.told += pair.agent.receive(piece)
    assert pair.told[-2:] == [ORDER, Ack("1.2")]


def test_the_agent_may_run_ahead_but_only_so_far() -> None:
    server = ServerSide(bytes(32), KEYS[1], checked)
    agent = AgentSide(SECRET, MAC, bytes(32), KEYS[0])
    (asked,) = server.receive(agent.to_send() + protocol.frame(b"<proof/>"))
    assert isinstance(asked, protocol.NeedVerifier)
    assert server.receive(bytes(protocol.AHEAD // 2)) == []
    with pytest.raises(ProtocolError, match="ahead"):
        server.receive(bytes(protocol.AHEAD))


def overheard() -> tuple[Pair, bytearray]:
    """Return two machines that are connected, and all that crosses the wire."""
    crossed = bytearray()

    def spy(data: bytes) -> Iterator[bytes]:
        crossed.extend(data)
        yield data

    pair = Pair(spy)
    pair.connect()
    pair.run()
    return pair, crossed


def test_the_secret_never_crosses_the_wire() -> None:
    pair, crossed = overheard()
    (new,) = [e for e in pair.told if isinstance(e, NewSecret)]
    for secret in (SECRET.key, new.secret.key, *(v.stored_key for v in pair.known.values())):
        assert secret not in crossed
        assert secret.hex().encode() not in crossed
    assert SECRET.key.hex() not in repr(SECRET)


def test_a_listener_who_knows_the_boots_secret_reads_nothing() -> None:
    """Give a listener the boot's secret and all that crosses the wire."""
    pair, crossed = overheard()
    said, frames = pair.server._bodies, [pair.server.send(ORDER), pair.agent.send(Report(NODE))]
    assert all(each in crossed for each in said)
    for frame in frames:
        assert not any(word in frame for word in (b"order", b"seed", b"node", b"mac", b"7.12"))
    client_key, server_key = session_keys.keys(SECRET.key, SALT)
    publics = [decode(protocol.plain(each)).key for each in said[:2]]
    for guess in (b"", bytes(32), *publics):
        keys = session_keys.SessionKeys.derive(
            client_key, server_key, session_keys.framed(*said[:2]), guess
        )
        with pytest.raises(ProtocolError, match="wrong tag"):
            Seal(keys.server_seal, keys.server_cipher).open(frames[0][4:])
        assert keys.secret != pair.secrets.current()


def test_equal_bodies_are_encrypted_to_different_bytes() -> None:
    pair = Pair()
    pair.connect()
    pair.run()
    sent = {pair.agent.send(Heartbeat())[20:] for _ in range(5)} | {
        pair.server.send(Heartbeat())[20:] for _ in range(5)
    }
    assert len(sent) == 10


@pytest.mark.parametrize("size", [0, 1, 63, 64, 65, 1000])
def test_a_body_of_any_size_survives_its_seal(size: int) -> None:
    one, other = (Seal(bytes(32), b"\1" * 32) for _ in range(2))
    body = random.Random(size).randbytes(size)
    assert other.open(one.close(body)) == body


def test_an_agent_of_before_is_told_so() -> None:
    server = ServerSide(bytes(32), KEYS[1], checked)
    said = server.receive(protocol.frame(encode(Hello("a1", MAC, bytes(32)))))
    assert said == [protocol.Outdated(MAC)]
    server.refuse("unknown", "too old")
    assert b"too old" in server.to_send()


def test_x25519_is_that_of_rfc_7748() -> None:
    """The first iteration of its section 5.2, Bob's keys of 6.1, and a point of small order."""
    once = bytes.fromhex("422c8e7a6227d7bca1350b3e2bb7279f7897b87bb6854b783c60e80311ae3079")
    bob = bytes.fromhex("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb")
    public = bytes.fromhex("de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f")
    for agree in (x25519, connection._agree):
        assert agree(BASE, BASE) == once
        assert agree(bob, BASE) == public
        assert agree(once, public) == agree(bob, agree(once, BASE))
        with pytest.raises(ValueError):  # noqa: PT011 (whatever it says)
            agree(bob, bytes(32))


def test_what_the_server_keeps_does_not_open_the_door() -> None:
    kept = protocol.verifier(SECRET.key, SALT)
    for stolen in (kept.stored_key, kept.server_key):
        pair = Pair(secrets=Secrets(Secret(SECRET.id, stolen)))
        pair.connect()
        with pytest.raises(ProtocolError, match="does not know the secret"):
            pair.run()
        assert pair.server.state is State.CLOSED


def test_a_server_that_does_not_know_the_secret_is_an_impostor() -> None:
    kept = protocol.verifier(SECRET.key, SALT)
    pair = Pair(known={SECRET.id: protocol.Verifier(SALT, kept.stored_key, bytes(32))})
    pair.connect()
    with pytest.raises(ProtocolError, match="impostor"):
        pair.run()
    assert pair.agent.state is State.CLOSED


def test_a_recorded_hello_and_proof_prove_nothing() -> None:
    pair = Pair()
    pair.connect(1)
    recorded = pair.agent.to_send()
    pair.server.receive(recorded)
    pair.server.known(pair.known[SECRET.id])
    pair.agent.receive(pair.server.to_send())
    recorded += pair.agent.to_send()
    again = ServerSide(b"another nonce of thirty-two bytes", KEYS[1], checked)
    (asked,) = again.receive(recorded)
    with pytest.raises(ProtocolError, match="does not know the secret"):
        again.known(pair.known[SECRET.id])
    assert isinstance(asked, protocol.NeedVerifier)


@pytest.mark.parametrize("harm", ["replay", "swap", "change", "reflect", "drop"])
def test_sealed_frames_come_once_in_order_unchanged_and_from_the_other_side(harm: str) -> None:
    pair = Pair()
    pair.connect()
    pair.run()
    first, second = pair.agent.send(Done("1.2")), pair.agent.send(Failed("1.3", "x"))
    bad = {
        "replay": first + first,
        "swap": second + first,
        "change": first[:-1] + bytes([first[-1] ^ 1]),
        "reflect": pair.server.send(Heartbeat()),
        "drop": second,
    }[harm]
    with pytest.raises(ProtocolError, match="wrong tag"):
        pair.server.receive(bad)
    assert pair.server.state is State.CLOSED


@pytest.mark.parametrize("lost", ["hello", "challenge", "proof", "welcome"])
def test_whichever_message_is_lost_the_agent_comes_back(lost: str) -> None:
    pair = Pair(lose=lost)
    pair.connect(1)
    pair.run()
    assert pair.agent.state is not State.OPEN
    pair.lose = ""
    for attempt in range(2, 5):
        pair.connect(attempt)
        pair.run()
        if pair.agent.state is State.OPEN:
            break
    assert pair.agent.state is State.OPEN
    assert attempt <= 3


def test_reconnects_use_the_session_and_the_boots_secret_is_dead() -> None:
    pair = Pair()
    for attempt in range(1, 4):
        pair.connect(attempt)
        pair.run()
        assert pair.agent.state is State.OPEN
    ids = [e.id for e in pair.heard if isinstance(e, Proved)]
    assert ids[0] == SECRET.id
    assert ids[1] == ids[2] != SECRET.id
    thief = Pair(known=pair.known)
    thief.connect(9)
    thief.run()
    assert thief.told == [Error("unknown", "no such secret")]


@pytest.mark.parametrize(
    "body",
    [encode(m) for m in MESSAGES if not isinstance(m, Hello)]
    + [
        b"",
        b"<",
        b"<a/>",
        b"\0" * 50,
        b"<hello/>",
        b'<!DOCTYPE hello [<!ENTITY a "b">]><hello/>',
        b"\xff\xfe<\0",
        encode(Hello("a1", MAC, bytes(32))).replace(b'version="1"', b'version="2"'),
        b"<hello>" * 400,
    ],
)
def test_a_stranger_says_hello_or_nothing(body: bytes) -> None:
    server = ServerSide(bytes(32), KEYS[1], checked)
    with pytest.raises(ProtocolError):
        server.receive(protocol.frame(body))
    assert server.state is State.CLOSED
    assert server.receive(protocol.frame(encode(Hello("a1", MAC, bytes(32))))) == []


@pytest.mark.parametrize(
    "body",
    [encode(m) for m in MESSAGES if not isinstance(m, Error) and getattr(m, "key", b"") != KEYS[1]]
    + [
        encode(Challenge(bytes(15), bytes(32), KEYS[1])),
        encode(Challenge(SALT, bytes(32), KEYS[1][:31])),
        encode(Challenge(SALT, bytes(32), bytes(32))),  # a point of small order
        b"<!DOCTYPE a><challenge/>",
    ],
)
def test_the_agent_expects_a_challenge_first(body: bytes) -> None:
    agent = AgentSide(SECRET, MAC, bytes(32), KEYS[0])
    with pytest.raises(ProtocolError):
        agent.receive(protocol.frame(body))


@pytest.mark.slow
def test_ten_thousand_mutations_never_get_in_and_never_crash() -> None:
    """Real conversations, changed at random: the server sees the change, or the message was not
    touched."""
    chance = random.Random(42)
    pair = Pair()
    pair.connect()
    hello = pair.agent.to_send()
    stranger = [hello, *(protocol.frame(encode(m)) for m in MESSAGES)]
    for _ in range(10_000):
        data = bytearray(chance.choice(stranger))
        for _ in range(chance.randrange(1, 6)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        server = ServerSide(bytes(32), KEYS[1], checked)
        try:
            events = server.receive(bytes(data))
        except ProtocolError:
            continue
        assert all(isinstance(event, protocol.NeedVerifier | protocol.Outdated) for event in events)
        if events and isinstance(events[0], protocol.NeedVerifier):
            server.known(protocol.verifier(SECRET.key, SALT))
            with pytest.raises(ProtocolError):
                server.receive(protocol.frame(encode(Proof(chance.randbytes(32)))))


@settings(max_examples=100, deadline=None)
@given(position=st.integers(0, 10_000), value=st.integers(0, 255))
def test_one_changed_byte_after_the_welcome_is_seen(position: int, value: int) -> None:
    pair = Pair()
    pair.connect()
    pair.run()
    data = bytearray(pair.agent.send(Done("1.2")))
    position = 4 + position % (len(data) - 4)
    if data[position] == value:
        return
    data[position] = value
    with pytest.raises(ProtocolError):
        pair.server.receive(bytes(data))


def test_secret_file() -> None:
    assert Secret.read(f"{SECRET}\n") == SECRET
    for bad in ("", "a", "a b c", "a xyz"):
        with pytest.raises(ValueError):  # noqa: PT011 (whatever it says)
            Secret.read(bad)
