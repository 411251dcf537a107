"""The clauses of docs/nmp that a VCM can be held to, each named after the section that has
it."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cod.wire.nmp import bodies as b
from cod.wire.nmp.bodies import Hello
from cod.wire.nmp.frames import Message
from tests.conformance.cod import KEEPALIVE, Line
from tests.conformance.kit import Failed, Kit

QUIET = 2.0  # seconds in which something that should not be done would have been done


@dataclass(frozen=True, slots=True)
class Clause:
    """A clause: its section on the page, what it says of a VCM or a server, and the function that
    tries it."""

    section: str
    says: str
    attempt: Callable[[Any], None]


CLAUSES: list[Clause] = []


def clause(section: str, says: str) -> Callable[[Callable[[Kit], None]], Callable[[Kit], None]]:
    """Put a function into the table. It raises `Failed`."""

    def put(attempt: Callable[[Kit], None]) -> Callable[[Kit], None]:
        CLAUSES.append(Clause(section, says, attempt))
        return attempt

    return put


def expect(truth: object, otherwise: str) -> None:
    """Raise `Failed` unless that is so."""
    if not truth:
        raise Failed(otherwise)


# ---------------------------------------------------------------- opening


@clause("On the wire", "connects by TLS 1.2 or newer and shows its certificate")
def shows_its_certificate(kit: Kit) -> None:
    line = kit.fresh()
    shown = line.socket.getpeercert() if hasattr(line.socket, "getpeercert") else None
    expect(shown, "it shows no certificate")


@clause("On the wire", "speaks to nobody but a server `cod` of the site's own authority")
def knows_its_server(kit: Kit) -> None:
    line = kit.connected()
    before = len(kit.cod.faults)
    for impostor in kit.cod.impostors():
        kit.cod.impostor, kit.cod.met_impostor = impostor, 0
        line.close()
        kit.within(lambda: kit.cod.met_impostor, "it does not come again")
    kit.cod.impostor = None
    kit.within(lambda: kit.cod.line, "it does not come again to COD", 90.0)
    told = kit.cod.faults[before:]
    del kit.cod.faults[before:]
    expect(not told, "it speaks to a server that is not the site's")


@clause("Opening", "says hello first, for the vcluster of its certificate")
def says_hello_first(kit: Kit) -> None:
    line = kit.connected()
    expect(line.heard[0][0].verb == "hello", f"it says {line.heard[0][0].verb} first")


@clause("Opening", "says nothing before it is welcomed")
def waits_for_the_welcome(kit: Kit) -> None:
    line = kit.connected()
    kit.cod.greets = False
    line.close()
    kit.within(
        lambda: kit.cod.lines[-1] is not line and kit.cod.lines[-1].heard, "it does not come again"
    )
    kit.cod.run(QUIET)
    newest = kit.cod.lines[-1]
    expect(len(newest.heard) == 1, f"it says {newest.heard[-1][0].verb} before it is welcomed")
    kit.cod.greets = True
    message, hello = newest.heard[0]
    assert isinstance(hello, Hello)
    kit.cod.welcome(newest, message, hello)
    kit.welcomed()


# ---------------------------------------------------------------- what is kept


KEPT = "What is kept, and what may be repeated"


@clause(KEPT, "says seen=0 at its first start, and asks for the whole picture")
def asks_for_the_picture_at_first(kit: Kit) -> None:
    line = kit.fresh()
    hello = line.heard[0][1]
    assert isinstance(hello, Hello)
    expect(hello.seen == 0, f"without a memory it says seen={hello.seen}")
    kit.within(
        lambda: kit.cod.bodies(b.Status), "it does not ask for the vcluster's nodes by status"
    )


@clause(KEPT, "acknowledges what it has dealt with, and no more than it was sent")
def acknowledges(kit: Kit) -> None:
    kit.connected()
    for _ in range(3):
        kit.dealt_with(kit.cod.owe(b.Lease("extended", 4e9)), "a lease")
    sent = kit.cod.sequence
    kit.cod.run(QUIET)
    expect(
        all(ack.sequence <= sent for ack in kit.cod.bodies(b.Ack)),
        "it acknowledges what was not sent",
    )


@clause(KEPT, "says after a lost connection how far it has come")
def goes_on_after_a_lost_connection(kit: Kit) -> None:
    line = kit.connected()
    number = kit.cod.owe(b.Lease("extended", 4e9))
    kit.dealt_with(number, "a lease")
    line.close()
    _comes_again_with(kit, line, number)


@clause(KEPT, "remembers after a kill -9 what it has acknowledged")
def remembers_what_it_acknowledged(kit: Kit) -> None:
    line = kit.connected()
    number = kit.cod.owe(b.Lease("extended", 4e9))
    kit.dealt_with(number, "a lease")
    kit.kill()
    line.close()
    kit.start()
    _comes_again_with(kit, line, number)


def _comes_again_with(kit: Kit, line: Line, number: int) -> None:
    kit.within(lambda: kit.cod.line and kit.cod.line is not line, "it does not come again")
    assert kit.cod.line is not None
    hello = kit.cod.line.heard[0][1]
    assert isinstance(hello, Hello)
    expect(hello.seen == number, f"it has acknowledged {number} and says seen={hello.seen}")


@clause(KEPT, "hears a message twice, and acknowledges it again")
def hears_a_message_twice(kit: Kit) -> None:
    line = kit.connected()
    number = kit.cod.owe(b.Lease("extended", 4e9))
    kit.dealt_with(number, "a lease")
    acks = len(kit.cod.bodies(b.Ack))
    line.send(b.Lease("extended", 4e9), sequence=number)
    kit.within(
        lambda: len(kit.cod.bodies(b.Ack)) > acks,
        "a message that comes again is not acknowledged again",
    )
    expect(line.open, "it ends the connection")


@clause(
    KEPT,
    "goes on from the welcome's sequence, and asks for the whole picture, where that is not what it"
    " has seen",
)
def believes_the_welcome(kit: Kit) -> None:
    line = kit.connected()
    kit.cod.sequence += 1000
    kit.cod.acked, kit.cod.owed = kit.cod.sequence, {}  # all of that was dropped
    since = len(kit.cod.said)
    line.close()
    kit.within(lambda: kit.cod.bodies(b.Status, since), "it does not ask for the whole picture")
    kit.dealt_with(
        kit.cod.owe(b.Lease("extended", 4e9)), "the first message after those that were dropped"
    )


# ---------------------------------------------------------------- asking for nodes


@clause("Asking for nodes", "asks for the nodes that it wants, once")
def asks_once(kit: Kit) -> None:
    kit.fresh()
    since = len(kit.cod.said)
    kit.request()
    kit.cod.run(QUIET)
    keys = {asked.key for asked in kit.cod.bodies(b.RequestNodes, since)}
    expect(len(keys) == 1, f"it asks {len(keys)} times for one node, under different keys")


@clause("Asking for nodes", "takes a granted node, and does not ask for another in its place")
def takes_what_is_granted(kit: Kit) -> None:
    kit.fresh()
    kit.grown()
    since = len(kit.cod.said)
    kit.cod.run(QUIET)
    expect(not kit.cod.bodies(b.RequestNodes, since), "it asks for more than it wants")
    expect(not kit.cod.bodies(b.ReleaseNodes, since), "it gives back at once what it has just got")


@clause("Asking for nodes", "asks again under the same key when it got no answer")
def asks_again_under_its_key(kit: Kit) -> None:
    kit.fresh()
    kit.cod.instead["request-nodes"] = lambda line, message, asked: line.close()
    first = kit.request()
    kit.cod.instead.clear()
    since = len(kit.cod.said)
    kit.within(lambda: kit.cod.bodies(b.RequestNodes, since), "it does not ask again")
    again = kit.cod.bodies(b.RequestNodes, since)[0]
    expect(
        again.key == first.key, f"it asks under the key {again.key}, before that under {first.key}"
    )


@clause("Asking for nodes", "asks under the same key after a kill -9, too, or not at all")
def keeps_its_keys_over_a_restart(kit: Kit) -> None:
    kit.fresh()
    kit.cod.instead["request-nodes"] = lambda line, message, asked: None
    first = kit.request()
    kit.kill()
    kit.cod.instead.clear()
    since = len(kit.cod.said)
    kit.start()
    kit.welcomed()
    kit.within(
        lambda: kit.cod.bodies(b.RequestNodes, since),
        "after a kill it has forgotten what it wanted",
    )
    keys = {asked.key for asked in kit.cod.bodies(b.RequestNodes, since)}
    expect(
        keys == {first.key}, f"it asks under {', '.join(keys)}, before the kill under {first.key}"
    )


@clause("Errors", "asks again where COD is unavailable")
def asks_again_where_cod_is_unavailable(kit: Kit) -> None:
    kit.fresh()

    def unavailable(line: Line, message: object, asked: object) -> None:
        line.send(b.Error("unavailable", "the database is away"), answers=line.heard[-1][0].id)

    kit.cod.instead["request-nodes"] = unavailable
    first = kit.request()
    kit.cod.instead.clear()
    since = len(kit.cod.said)
    kit.within(
        lambda: kit.cod.bodies(b.RequestNodes, since), "it does not ask again", 3 * kit.patience
    )
    expect(
        kit.cod.bodies(b.RequestNodes, since)[0].key == first.key, "it asks again under another key"
    )


@clause("Errors", "takes a rule's no, and does not ask more than once a second")
def takes_no_for_an_answer(kit: Kit) -> None:
    kit.fresh()

    def refused(line: Line, message: object, asked: object) -> None:
        line.send(
            b.Error("refused", "the vcluster has addresses for no more"),
            answers=line.heard[-1][0].id,
        )

    kit.cod.instead["request-nodes"] = refused
    since = len(kit.cod.said)
    line = kit.welcomed()
    kit.request()
    kit.cod.run(3 * QUIET)
    count = len(kit.cod.bodies(b.RequestNodes, since))
    expect(count <= 3 * QUIET + 1, f"it asks {count} times in {3 * QUIET:.0f} s")
    expect(line.open, "it ends the connection")


# ---------------------------------------------------------------- giving back


@clause("Giving back", "gives back, by release-nodes, what it does not want any more")
def gives_back(kit: Kit) -> None:
    kit.fresh()
    host = kit.grown()
    since = len(kit.cod.said)
    kit.want(1)
    kit.within(
        lambda: kit.cod.bodies(b.ReleaseNodes, since), "it keeps a node that it does not want"
    )
    named = {one.node for said in kit.cod.bodies(b.ReleaseNodes, since) for one in said.nodes}
    expect(
        named <= {"n1", "node1", host, host.replace("n", "node")},
        f"it gives back {', '.join(named)}",
    )
    kit.dealt_with(kit.cod.sequence, "that a node is lost")


@clause(
    "Giving back", "answers a reclaim, by nodes that would do and no more of them than are wanted"
)
def answers_a_reclaim(kit: Kit) -> None:
    kit.fresh()
    host = kit.grown() if kit.wants else "n1"
    since = len(kit.cod.said)
    number = kit.cod.owe(b.Reclaim(5, 1, 4e9, "group web needs 1 node", "", (b.Named(host),)))
    kit.dealt_with(number, "a reclaim")
    kit.within(
        lambda: kit.cod.bodies(b.ReclaimAnswer, since) or kit.cod.bodies(b.ReleaseNodes, since),
        "it neither answers the reclaim nor gives a node back",
    )
    for answer in kit.cod.bodies(b.ReclaimAnswer, since):
        named = {one.node for one in answer.nodes}
        expect(answer.reclaim == 5, f"it answers reclaim {answer.reclaim}, which there is not")
        expect(
            named <= {host, host.replace("n", "node")} and len(named) <= 1,
            f"it names {', '.join(named)}",
        )
        expect(named or answer.reason, "it names no node and gives no reason")


@clause("Giving back", "names one node where one is wanted, and none but those that would do")
def names_none_too_many(kit: Kit) -> None:
    kit.fresh()
    would_do = {"n1", "node1", kit.grown(), "node2"}
    kit.grown()  # the newest would not do
    since = len(kit.cod.said)
    kit.cod.owe(b.Reclaim(8, 1, 4e9, "group web needs 1 node", "", (b.Named("n1"), b.Named("n2"))))

    def said() -> list[b.ReclaimAnswer | b.ReleaseNodes]:
        return [*kit.cod.bodies(b.ReclaimAnswer, since), *kit.cod.bodies(b.ReleaseNodes, since)]

    kit.within(said, "it neither answers the reclaim nor gives a node back")
    kit.cod.run(QUIET)
    named = {one.node.replace("node", "n") for each in said() for one in each.nodes}
    expect(named <= would_do, f"it names {', '.join(sorted(named - would_do))}, which would not do")
    expect(len(named) <= 1, f"it names {', '.join(sorted(named))}, where one is wanted")


@clause("Giving back", "uses a node again that it named for a reclaim which is cancelled")
def uses_again_what_was_reclaimed(kit: Kit) -> None:
    kit.fresh()
    host = kit.grown()

    def too_late(line: Line, message: Message, answer: b.ReclaimAnswer) -> None:
        kit.cod.owe(b.ReclaimOver(9, "cancelled"))
        line.send(
            b.Error("refused", "reclaim 9 is cancelled: nothing is to be given"), answers=message.id
        )

    kit.cod.instead["reclaim-answer"] = too_late
    since = len(kit.cod.said)
    kit.cod.owe(b.Reclaim(9, 1, 4e9, "group web needs 1 node", "", (b.Named(host),)))
    kit.within(
        lambda: kit.cod.bodies(b.ReclaimAnswer, since) or kit.cod.bodies(b.ReleaseNodes, since),
        "it does not answer",
    )
    if kit.cod.bodies(b.ReleaseNodes, since):  # it gave the node back at once, and may
        return
    kit.dealt_with(kit.cod.sequence, "reclaim-over")
    kit.request()

    def keys() -> set[str]:
        return {asked.key for asked in kit.cod.bodies(b.RequestNodes, since)}

    # a VCM that looks once a second at what it needs does so later on a busy machine
    kit.cod.run(4 * QUIET, lambda: len(keys()) > 1)
    expect(
        len(keys()) == 1,
        f"it wants one node more and asks for {len(keys())}: {host} is left unused",
    )
    expect(not kit.cod.bodies(b.ReleaseNodes, since), f"it gives {host} back all the same")


@clause("States", "counts a lost node no more")
def counts_no_lost_node(kit: Kit) -> None:
    kit.fresh()
    host = kit.grown()
    since = len(kit.cod.said)
    lost = kit.cod.members.pop(host.replace("n", "node"))
    kit.cod.owe(b.NodeState(lost.node, lost.hostname, lost.address, "lost", "it was seized"))
    kit.dealt_with(kit.cod.sequence, "that a node is lost")
    kit.within(
        lambda: kit.cod.bodies(b.RequestNodes, since),
        f"it wants two nodes, has one, and asks for none: {host} is lost",
    )


@clause(
    "Giving back",
    "keeps its promise: a node that it named within so many seconds is given back by then",
)
def keeps_its_promise(kit: Kit) -> None:
    kit.fresh()
    host = kit.grown()
    since = len(kit.cod.said)
    kit.cod.owe(b.Reclaim(6, 1, 4e9, "group web needs 1 node", "", (b.Named(host),)))
    kit.within(
        lambda: kit.cod.bodies(b.ReclaimAnswer, since) or kit.cod.bodies(b.ReleaseNodes, since),
        "it does not answer",
    )
    promised = [
        one
        for answer in kit.cod.bodies(b.ReclaimAnswer, since)
        for one in answer.nodes
        if one.within > 0
    ]
    if promised:
        kit.within(
            lambda: kit.cod.bodies(b.ReleaseNodes, since),
            f"{host} was promised and is not given back",
            promised[0].within + kit.patience,
        )


@clause("Giving back", "goes on when a reclaim is over, before the node is lost")
def hears_that_a_reclaim_is_over(kit: Kit) -> None:
    kit.connected()
    kit.cod.owe(b.Reclaim(7, 1, 4e9, "group web needs 1 node", "", (b.Named("n1"),)))
    number = kit.cod.owe(b.ReclaimOver(7, "cancelled"))
    kit.dealt_with(number, "reclaim-over")


@clause("States", "takes a state that it does not know as one in which a node cannot be used")
def takes_unknown_states(kit: Kit) -> None:
    line = kit.connected()
    number = kit.cod.owe(
        b.NodeState("node1", "n1", "10.77.128.1", "hibernating", "from a newer COD")
    )
    kit.dealt_with(number, "a node-state with an unknown state")
    kit.dealt_with(
        kit.cod.owe(b.NodeState("node1", "n1", "10.77.128.1", "active")), "the next node-state"
    )
    expect(line.open, "it ends the connection")


@clause("Asking for nodes", "passes over a node-state of a node that no grant has named")
def passes_over_the_unknown(kit: Kit) -> None:
    line = kit.connected()
    number = kit.cod.owe(b.NodeState("node77", "n77", "10.77.128.77", "prime"))
    kit.dealt_with(number, "a node-state of a node that it does not know")
    expect(line.open, "it ends the connection")


@clause("Asking for nodes", "passes over progress, which is not acknowledged")
def passes_over_progress(kit: Kit) -> None:
    line = kit.connected()
    acks = len(kit.cod.bodies(b.Ack))
    line.send(b.Progress("node1", "prime", 5, 10))
    kit.cod.run(QUIET)
    expect(line.open, "it ends the connection")
    expect(len(kit.cod.bodies(b.Ack)) == acks, "it acknowledges what has no number")


@clause("The lease", "deals with everything that happens to a lease")
def deals_with_leases(kit: Kit) -> None:
    kit.connected()
    for event in ("warning", "draining", "extended"):
        kit.dealt_with(kit.cod.owe(b.Lease(event, 4e9)), f"a lease, {event},")


# ---------------------------------------------------------------- keeping the connection


@clause("Keeping the connection", "answers ping by pong")
def answers_pings(kit: Kit) -> None:
    line = kit.connected()
    since = len(kit.cod.said)
    line.send(b.Ping())
    kit.within(lambda: kit.cod.bodies(b.Pong, since), "it does not answer a ping", 2 * KEEPALIVE)


@clause("Opening", "says ping when it has heard nothing for the welcome's keepalive")
def says_ping(kit: Kit) -> None:
    kit.connected()
    since = len(kit.cod.said)
    kit.within(
        lambda: kit.cod.bodies(b.Ping, since),
        f"it says no ping though it heard nothing for {KEEPALIVE:.0f} s",
        4 * KEEPALIVE,
    )


@clause("Keeping the connection", "comes again after a goodbye")
def comes_again_after_goodbye(kit: Kit) -> None:
    line = kit.connected()
    line.send(b.Bye("this server is being stopped"))
    kit.within(
        lambda: kit.cod.line and kit.cod.line is not line, "it does not come again after a goodbye"
    )


@clause("On the wire", "understands a higher minor version")
def understands_a_later_minor(kit: Kit) -> None:
    line = kit.connected()
    since = len(kit.cod.said)
    line.send(b.Ping(), version="1.7")
    kit.within(
        lambda: kit.cod.bodies(b.Pong, since),
        "it does not answer a ping of version 1.7",
        2 * KEEPALIVE,
    )


@clause(
    "On the wire",
    "understands a message that comes a byte at a time, and headers that it does not know",
)
def understands_bytes_as_they_come(kit: Kit) -> None:
    line = kit.connected()
    since = len(kit.cod.said)
    said = line.talk.says(Message("ping", "slow-1", b"<ping/>"))
    for byte in said.replace(b"Message-Id", b"X-Later: 1\r\nmessage-id"):
        line.raw(bytes([byte]))
    kit.within(
        lambda: any(message.answers == "slow-1" for _, message, _ in kit.cod.said[since:]),
        "it does not answer",
        2 * KEEPALIVE,
    )


@clause("Errors", "stays when it is told of an error, and when it is told what it does not know")
def survives_errors(kit: Kit) -> None:
    line = kit.connected()
    line.send(b.Error("refused", "a test"))
    line.raw(b"NMP/1.0 celebrate\r\nMessage-Id: odd-1\r\nContent-Length: 12\r\n\r\n<celebrate/>")
    since = len(kit.cod.said)
    line.send(b.Ping())
    kit.within(lambda: kit.cod.bodies(b.Pong, since), "it does not answer any more", 3 * KEEPALIVE)


@clause("Errors", "comes again, and not more than once a second, while it is not let in")
def comes_at_a_measured_pace(kit: Kit) -> None:
    line = kit.connected()

    def shown_out(newest: Line, message: object, hello: object) -> None:
        newest.send(b.Error("identity", "nobody is enrolled"), answers=newest.heard[-1][0].id)
        newest.close()

    kit.cod.instead["hello"] = shown_out
    before = len(kit.cod.lines)
    line.close()
    kit.cod.run(5 * QUIET, lambda: len(kit.cod.lines) >= before + 2)
    seconds = 3 * QUIET
    at = len(kit.cod.lines)
    kit.cod.run(seconds)
    count = len(kit.cod.lines) - at
    kit.cod.instead.clear()
    expect(count <= seconds + 1, f"it comes {count} times in {seconds:.0f} s")
    kit.within(lambda: kit.cod.line, "it gives up", 90.0)


@clause("Keeping the connection", "says goodbye when it is stopped by SIGTERM, and ends")
def says_goodbye(kit: Kit) -> None:
    kit.connected()
    since = len(kit.cod.said)
    kit.kill(signal.SIGTERM)
    kit.cod.run(1.0, lambda: kit.cod.bodies(b.Bye, since))
    expect(kit.cod.bodies(b.Bye, since), "it ends without a goodbye")


@clause(
    "The messages", "says nothing that is not whole, in its place, and valid against schema/nmp.rng"
)
def says_nothing_wrong(kit: Kit) -> None:
    kit.end()
    expect(not kit.faults, "; ".join(dict.fromkeys(kit.faults)))
