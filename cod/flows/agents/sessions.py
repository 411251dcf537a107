"""An agent's connection: looked up, opened, seen alive, gone.

A connection opened with a *boot's* secret means that the machine has just booted the trampoline:
whatever it was doing in a state of motion is lost. One opened with the *session's* secret is the
same agent again, still at its work.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from cod.core.nodes import blame, boot_evidence, boot_nonces, transitions
from cod.model import BootSecret, Node, Peer, Refused, Result, Site
from cod.policy.nodes import boot
from cod.states import WORKING, NodeEvent, NodeState, Step
from cod.store.engine import Tx
from cod.store.nodes import nodes, secrets, sessions

inherited = sessions.peers_of
seen = sessions.seen
FOR_EVER = 4_000_000_000.0  # a session's secret ends with the machine's next boot, not by the clock


@dataclass(frozen=True, slots=True)
class Opened:
    """A new connection: who is on it, and the node's name."""

    peer: Peer
    name: str


def lookup(tx: Tx, secret_id: str, mac: str, address: str, now: float) -> BootSecret | None:
    """Return the verifier of that secret, if it is alive, was minted for `mac` and is used from the
    address it is bound to."""
    found = secrets.get(tx, secret_id)
    if found is None or found.kind == "nonce" or found.expires_at <= now:
        return None
    return found if (found.mac, found.address) == (mac, address) else None


def open(
    tx: Tx,
    secret_id: str,
    session: BootSecret,
    server: str,
    site: Site,
    now: float,
    *,
    power: str = "unknown",
    here: Collection[int] = (),
) -> Result[Opened | str]:
    """Open the session of an agent that has proven `secret_id`; `session` is the verifier of the
    secret that both sides derived.

    A boot's secret is spent, and with it every older one of the machine; a session's stays. The
    value is an `Opened`, or the sentence with which a new boot is not believed
    (`core.nodes.boot_evidence`). Raises `Refused` when the secret is gone (somebody was quicker) or
    the machine is not known.

    power  'on', 'off' or 'unknown', as the node's power driver has just said
    here   the nodes that have an open connection to this server
    """
    node = nodes.by_mac(tx, session.mac)
    node = node and nodes.get(tx, node.id, lock=True)
    if node is None:
        raise Refused("not_found", f"no node has the MAC {session.mac}")
    moved = node
    if _is_of_boot(tx, secret_id):
        heard = _is_heard(tx, node, server, here, site, now)
        if why := boot_evidence.contradiction(tx, node, power, heard=heard, site=site, now=now):
            return Result(why)
    if _trade(tx, secret_id, session):
        boot_nonces.end(tx, node)
        moved = _rebooted(tx, node, site, now)
        if power == "on":
            moved = nodes.change(tx, moved, power=power, power_seen_at=now, boot_unordered=False)
    elif node.boot_unordered:  # the same boot as before: its machine was not reset
        moved = nodes.change(tx, node, boot_unordered=False)
    epoch = sessions.open(tx, node.id, server, session.address, now)
    sessions.seen(tx, [(node.id, now)])
    return Result(
        Opened(Peer(node.id, server, epoch, session.mac), node.name), transitions.wakes(node, moved)
    )


def _is_of_boot(tx: Tx, secret_id: str) -> bool:
    used = secrets.get(tx, secret_id)
    return used is not None and used.kind == "boot"


def _is_heard(
    tx: Tx, node: Node, server: str, here: Collection[int], site: Site, now: float
) -> bool:
    """Return whether the agent of the node's earlier boot is connected, to this server or another,
    and COD has ordered no power cycle since."""
    session = sessions.get(tx, node.id)
    if session is None or not session.reported:
        return False
    if session.server == server:
        return node.id in here
    return boot.is_held(session.last_seen, site.policy, now)


def _trade(tx: Tx, secret_id: str, session: BootSecret) -> bool:
    """Return whether this opened a first connection after a boot. False: the session's own secret
    was used, or this is a re-run."""
    used = secrets.get(tx, secret_id)
    if used is None and secrets.get(tx, session.id) is None:
        raise Refused("conflict", "the secret has been used")
    if used is None or used.kind == "session":
        return False
    for older in secrets.of_mac(tx, session.mac):
        if older.kind == "session" or older.expires_at <= used.expires_at:
            secrets.spend(tx, older.id)
    secrets.add(tx, replace(session, kind="session", expires_at=FOR_EVER))
    return True


def _rebooted(tx: Tx, node: Node, site: Site, now: float) -> Node:
    """Return what a fresh boot of the trampoline means. DHCP has usually noticed before; this is
    for when it has not."""
    cause = "its agent connected after a new boot"
    if node.state in WORKING:
        step = blame.on_trouble(
            tx, node, NodeEvent.ASKED, f"rebooted in state {node.state}", site.policy
        )
    elif node.state == NodeState.BOOT:
        step = blame.on_trouble(
            tx, node, NodeEvent.BOOT_FAILED, "came up in the trampoline again", site.policy
        )
    elif node.state in (NodeState.OFF, NodeState.INACTIVE):
        step = Step(NodeEvent.ASKED, cause)
    else:
        return node
    return transitions.apply(tx, node, step, now=now, actor="agent", policy=site.policy)


def lost(tx: Tx, peer: Peer, site: Site, now: float) -> Result[bool]:
    """Note a connection that has been gone for longer than an agent needs to come back; return
    whether it was still the newest.

    In the states in which the agent has left on purpose, or has nothing to do, only the session
    ends.
    """
    if not sessions.close(tx, peer):
        return Result(False)
    node = nodes.get(tx, peer.node_id, lock=True)
    assert node is not None
    if node.state in WORKING:
        step = blame.on_trouble(
            tx, node, NodeEvent.LOST, f"its agent was lost in state {node.state}", site.policy
        )
    elif node.state == NodeState.INACTIVE:
        step = Step(NodeEvent.LOST, "its agent was lost", {"reason": "its agent was lost"})
    else:
        return Result(True)
    moved = transitions.apply(tx, node, step, now=now, actor="confd", policy=site.policy)
    return Result(True, transitions.wakes(node, moved))


def held(tx: Tx, server: str, now: float) -> dict[int, int]:
    """Note that this server still holds its connections, and delete secrets that have expired.
    Return which connections these are, epochs by node: others are replaced."""
    sessions.touch(tx, server, now)
    secrets.purge(tx, now)
    return sessions.of_server(tx, server)
