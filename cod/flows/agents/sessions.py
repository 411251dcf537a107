"""An agent's connection: looked up, opened, seen alive, gone.

A connection opened with a *boot's* secret means that the machine has just booted the trampoline:
whatever it was doing in a state of motion is lost. One opened with the *session's* secret is the
same agent again, still at its work.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from cod.core.nodes import blame, boot_evidence, transitions
from cod.model import AgentSession, BootSecret, Meter, Node, Peer, Refused, Result, Site
from cod.policy.nodes import boot, power
from cod.states import UNAPPROVED, WORKING, NodeEvent, NodeState, Step
from cod.store.engine import Tx
from cod.store.nodes import nodes, secrets, sessions

inherited = sessions.peers_of
seen = sessions.seen
FOR_EVER = 4_000_000_000.0  # a session's secret ends with the machine's next boot, not by the clock


@dataclass(frozen=True, slots=True)
class Known:
    """A secret's verifier, and by what to ask whether its machine has just booted: None if it is no
    boot's secret, or if its node is not approved, is retired, or has no power driver."""

    verifier: BootSecret
    meter: Meter | None


@dataclass(frozen=True, slots=True)
class Opened:
    """A new connection: who is on it, and the node's name."""

    peer: Peer
    name: str


def lookup(tx: Tx, secret_id: str, mac: str, address: str, now: float) -> Known | None:
    """Return the verifier of that secret; None if the secret has expired, was minted for another
    MAC than `mac`, or is bound to another address than `address`."""
    found = secrets.with_node(tx, secret_id)
    if found is None:
        return None
    secret, node = found
    if secret.kind == "nonce" or secret.expires_at <= now:
        return None
    if (secret.mac, secret.address) != (mac, address):
        return None
    asked = (
        secret.kind == "boot"
        and node is not None
        and node.state not in UNAPPROVED | {NodeState.RETIRED}
        and node.power_driver != "none"
    )
    return Known(secret, power.meter(node) if node is not None and asked else None)


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

    A boot's secret is deleted, and all older secrets of the machine with it; a session's secret
    stays. Return an `Opened`, or the sentence why a new boot is not believed
    (`core.nodes.boot_evidence`). Raises `Refused` if another connection has used the secret or the
    machine is not known.

    power  'on', 'off' or 'unknown', as the node's power driver has just said
    here   the nodes that have an open connection to this server
    """
    found = sessions.of_mac(tx, session.mac)
    if found is None:
        raise Refused("not_found", f"no node has the MAC {session.mac}")
    node, older = found
    known = secrets.of_macs(tx, {session.mac, node.boot_mac})
    used = next((each for each in known if each.id == secret_id), None)
    if used is None and session.id not in {each.id for each in known}:
        raise Refused("conflict", "the secret has been used")
    moved = node
    columns: dict[str, Any] = {}
    # `used` is None if an earlier run of this flow was committed, and the caller did not learn it
    if used is not None and used.kind == "boot":
        heard = _is_heard(node, older, server, here, site, now)
        if why := boot_evidence.contradiction(tx, node, power, heard=heard, now=now):
            return Result(why)
        _trade(tx, used, known, node, session)
        moved = _rebooted(tx, node, site, now)
        if power == "on":
            columns = {"power": power, "power_seen_at": now, "boot_unordered": False}
    elif used is not None and node.boot_unordered:  # the same boot: its machine was not reset
        columns = {"boot_unordered": False}
    if columns:
        moved = nodes.change(tx, moved, **columns, last_seen=now)
    epoch = sessions.open(tx, node.id, server, session.address, now, older)
    opened = Opened(Peer(node.id, server, epoch, session.mac), node.name)
    return Result(opened, transitions.wakes(node, moved, look=False))  # it reports first


def _is_heard(
    node: Node,
    session: AgentSession | None,
    server: str,
    here: Collection[int],
    site: Site,
    now: float,
) -> bool:
    """Return whether the agent of the node's earlier boot is connected, to this server or another,
    and COD has ordered no power cycle since. `session`: its newest connection."""
    if session is None or not session.reported:
        return False
    if session.server == server:
        return node.id in here
    return boot.is_held(session.last_seen, site.policy, now)


def _trade(
    tx: Tx, used: BootSecret, known: Sequence[BootSecret], node: Node, session: BootSecret
) -> None:
    """Store the session's secret in place of the boot's, and delete the machine's older secrets and
    its nonces."""
    older = [
        each.id
        for each in known
        if each.id != used.id
        and (
            (
                each.mac == session.mac
                and (each.kind == "session" or each.expires_at <= used.expires_at)
            )
            or (each.mac == node.boot_mac and each.kind == "nonce")
        )
    ]
    secrets.spend_all(tx, older)
    secrets.put(tx, used.id, replace(session, kind="session", expires_at=FOR_EVER))


def _rebooted(tx: Tx, node: Node, site: Site, now: float) -> Node:
    """Apply the step that follows from a fresh boot of the trampoline, and return the node. DHCP
    has usually noticed the boot before; this is for when it has not."""
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
    step = replace(step, columns={**step.columns, "last_seen": now}, connects=True)
    return transitions.apply(tx, node, step, now=now, actor="agent", policy=site.policy)


def lost(tx: Tx, peer: Peer, site: Site, now: float) -> Result[bool]:
    """End a connection that has been gone for longer than an agent needs to come back; return
    whether it was still the node's newest.

    In states in which the agent has left on purpose, or has nothing to do, the node keeps its
    state.
    """
    if not sessions.close(tx, peer):
        return Result(False)
    node = nodes.known(tx, peer.node_id, lock=True)
    if node.state in WORKING:
        step = blame.on_trouble(
            tx, node, NodeEvent.LOST, f"its agent was lost in state {node.state}", site.policy
        )
    elif node.state == NodeState.INACTIVE:
        step = Step(NodeEvent.LOST, "its agent was lost", {"reason": "its agent was lost"})
    else:
        return Result(True)
    moved = transitions.apply(tx, node, step, now=now, actor="confd", policy=site.policy)
    return Result(True, transitions.wakes(node, moved, look=False))


def held(tx: Tx, server: str, now: float) -> dict[int, int]:
    """Note that this server still holds its connections, and delete secrets that have expired.
    Return the epochs of the server's valid connections, by node id: any other connection has been
    replaced by a newer one."""
    sessions.touch(tx, server, now)
    secrets.purge(tx, now)
    return sessions.of_server(tx, server)
