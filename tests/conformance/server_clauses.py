"""The clauses of docs/nmp that a server can be held to by a VCM alone, each named after the
section that has it. They ask for one node, and withdraw that."""

from __future__ import annotations

import secrets
from collections.abc import Callable

from cod.wire.nmp import bodies as b
from cod.wire.nmp.frames import LONGEST_BODY, LONGEST_LINE
from tests.conformance.clauses import KEPT, QUIET, Clause, expect
from tests.conformance.kit import NotTried
from tests.conformance.server import Peer, Server

SERVER_CLAUSES: list[Clause] = []


def clause(
    section: str, says: str
) -> Callable[[Callable[[Server], None]], Callable[[Server], None]]:
    """Put a function into the table. It raises `Failed`."""

    def put(attempt: Callable[[Server], None]) -> Callable[[Server], None]:
        SERVER_CLAUSES.append(Clause(section, says, attempt))
        return attempt

    return put


# ---------------------------------------------------------------- opening


@clause("Opening", "welcomes a VCM by TLS, as `cod`, with its vcluster and a keepalive")
def welcomes(server: Server) -> None:
    _, welcome = server.opened()
    expect(welcome.vcluster == server.vcluster, f"it welcomes {welcome.vcluster}")
    expect(welcome.keepalive > 0, "its keepalive is 0")


@clause("On the wire", "lets nobody in who shows no certificate")
def wants_a_certificate(server: Server) -> None:
    peer = server.connected(certificate=False)
    peer.send(b.Hello(server.vcluster, "conformance", 0))
    peer.refused("identity", goes_on=False)


@clause("Errors", "refuses a hello for another vcluster than the certificate's, and closes")
def knows_its_vclusters(server: Server) -> None:
    peer = server.connected()
    peer.send(b.Hello("another-vcluster", "conformance", 0))
    peer.refused("identity", goes_on=False)


@clause("A connection's life", "refuses what is said before hello, and closes")
def waits_for_hello(server: Server) -> None:
    peer = server.connected()
    peer.send(b.Status())
    peer.refused("out-of-state", goes_on=False)


@clause("Reasons for goodbye", "says goodbye to a connection whose place a newer one has taken")
def newest_wins(server: Server) -> None:
    first, _ = server.opened()
    server.opened()
    _, bye = first.until(b.Bye, "a goodbye")
    expect(bye.reason == "a newer connection has taken its place", f"its reason is {bye.reason!r}")


# ---------------------------------------------------------------- frames


@clause("On the wire", "understands a higher minor version")
def understands_a_later_minor(server: Server) -> None:
    peer, _ = server.opened()
    peer.until(b.Pong, "a ping of version 1.7", peer.send(b.Ping(), version="1.7"))


@clause("On the wire", "refuses another major version, says what is spoken, and closes")
def refuses_another_major(server: Server) -> None:
    peer, _ = server.opened()
    peer.send(b.Ping(), version="2.0")
    error = peer.refused("version", goes_on=False)
    expect("1." in error.sentence, f"it does not say which version is spoken: {error.sentence}")


@clause("On the wire", "understands a message that comes a byte at a time, and unknown headers")
def understands_bytes_as_they_come(server: Server) -> None:
    peer, _ = server.opened()
    peer.until(b.Pong, "a ping in pieces", peer.send(b.Ping(), slowly=True))


@clause("Errors", "closes where a header stands twice, or a line is too long")
def closes_on_malformed_frames(server: Server) -> None:
    for bad in (
        b"NMP/1.0 ping\r\nMessage-Id: 1\r\nMessage-Id: 2\r\n\r\n",
        b"NMP/1.0 ping\r\nX-Long: " + b"x" * LONGEST_LINE + b"\r\n\r\n",
    ):
        peer, _ = server.opened()
        peer.raw(bad)
        peer.refused("malformed", goes_on=False)


@clause("Errors", "refuses a body that is too long before it has come, and closes")
def refuses_long_bodies(server: Server) -> None:
    peer, _ = server.opened()
    head = f"NMP/1.0 status\r\nMessage-Id: 1\r\nContent-Length: {LONGEST_BODY + 1}\r\n\r\n"
    peer.raw(head.encode())
    peer.refused("too-large", goes_on=False)


@clause("Errors", "refuses an unknown verb and an invalid body, and goes on")
def goes_on_after_errors(server: Server) -> None:
    peer, _ = server.opened()
    peer.raw(b"NMP/1.0 celebrate\r\nMessage-Id: odd-1\r\nContent-Length: 12\r\n\r\n<celebrate/>")
    peer.refused("unknown-verb", goes_on=True)
    peer.raw(b"NMP/1.0 extend\r\nMessage-Id: odd-2\r\nContent-Length: 9\r\n\r\n<extend/>")
    error = peer.refused("invalid", goes_on=True)
    expect(error.line == 1, f"it says line {error.line} of a body of one line")


# ---------------------------------------------------------------- what is kept


@clause(KEPT, "answers a key that was used before by the same request")
def answers_a_key_twice(server: Server) -> None:
    peer, _ = server.opened()
    first, again = (_wanted(peer, key) for key in [_key()] * 2)
    expect(first.request == again.request, f"one key, requests {first.request} and {again.request}")
    other = _wanted(peer, _key())
    expect(other.request != first.request, "another key is answered by the same request")
    for one in (first, other):
        peer.asked(b.Withdraw(one.request), b.Request)


@clause(KEPT, "sends again what was not acknowledged, and not what was")
def sends_again_what_was_not_acknowledged(server: Server) -> None:
    peer, welcome = server.opened()
    asked = _wanted(peer, _key())
    peer.asked(b.Withdraw(asked.request), b.Request)
    number = _refusal(peer, asked.request)
    peer, _ = server.opened(welcome.sequence)
    expect(_refusal(peer, asked.request) == number, "it comes again under another number")
    peer.send(b.Ack(number))
    peer.asked(b.Ping(), b.Pong)
    peer, welcome = server.opened(number)
    expect(welcome.sequence >= number, f"{number} is acknowledged, it goes on {welcome.sequence}")
    try:
        while (heard := peer.hear(QUIET)) is not None:
            expect(not 0 < heard[0].sequence <= number, f"{number} comes once more")
    except TimeoutError:
        return


@clause("Errors", "refuses an acknowledgement of what was not sent, and goes on")
def refuses_an_ack_too_many(server: Server) -> None:
    peer, welcome = server.opened()
    peer.send(b.Ack(welcome.sequence + 1_000_000))
    peer.refused("out-of-state", goes_on=True)


# ---------------------------------------------------------------- messages


@clause("The whole picture", "shows the vcluster of the certificate")
def shows_the_picture(server: Server) -> None:
    peer, _ = server.opened()
    picture = peer.asked(b.Status(), b.Vcluster)
    expect(picture.name == server.vcluster, f"it shows {picture.name}")


@clause("Giving back", "passes over names that are not the vcluster's")
def passes_over_names(server: Server) -> None:
    peer, _ = server.opened()
    peer.asked(b.ReleaseNodes((b.Named("no-such-node"),), "a test"), b.Done)


@clause("Giving back", "needs no parked nodes that are not the vcluster's")
def needs_only_what_is_parked(server: Server) -> None:
    peer, _ = server.opened()
    needed = peer.asked(b.ParkNodes((b.Named("no-such-node"),)), b.NeededNodes)
    expect(not needed.nodes, f"it needs {', '.join(one.node for one in needed.nodes)}")


@clause("Maintenance", "names only nodes of the vcluster, and no window without one")
def tells_of_windows(server: Server) -> None:
    peer, _ = server.opened()
    own = {member.hostname for member in peer.asked(b.Status(), b.Vcluster).members}
    for window in peer.asked(b.MaintenanceStatus(), b.NodeMaintenance).windows:
        names = {one.node for one in window.nodes}
        expect(names and names <= own, f"window {window.window} names {', '.join(names - own)}")


@clause("Asking for nodes", "has no request that the vcluster did not make")
def keeps_to_its_own(server: Server) -> None:
    peer, _ = server.opened()
    peer.send(b.RequestStatus(2**40))
    peer.refused("refused", goes_on=True)


@clause("Opening", "says ping when it has heard nothing for its own keepalive")
def says_ping(server: Server) -> None:
    peer, welcome = server.opened()
    if welcome.keepalive > server.patience / 2:
        raise NotTried(f"its keepalive is {welcome.keepalive:.0f} s: see --patience")
    peer.until(b.Ping, f"a ping after {welcome.keepalive:.0f} s")


@clause(
    "The messages", "says nothing that is not whole, in its place, and valid against schema/nmp.rng"
)
def says_nothing_wrong(server: Server) -> None:
    server.end()
    expect(not server.faults, "; ".join(dict.fromkeys(server.faults)))


def _key() -> str:
    return f"kit-{secrets.token_hex(8)}"


def _wanted(peer: Peer, key: str) -> b.Request:
    return peer.asked(b.RequestNodes(key, (b.Wanted(1),), reason="a test of the server"), b.Request)


def _refusal(peer: Peer, request: int) -> int:
    while True:
        message, refusal = peer.until(b.Refusal, "the refusal of a withdrawn request")
        if refusal.request == request:
            return message.sequence
