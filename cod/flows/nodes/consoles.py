"""Consoles: which are recorded, and which recordings a person may read.

The recordings are files, which the edges write and read (`cod.consolefiles`). This module decides
which consoles and which parts.
"""

from __future__ import annotations

from dataclasses import dataclass

from cod.choices import WITH_CONSOLES
from cod.model import ConsoleRules, Effect, Refused, Result
from cod.policy.nodes import console
from cod.states import NodeState
from cod.store import claims
from cod.store.engine import Tx
from cod.store.nodes import consoles, nodes

CLAIM = "consoles"
LATE = 30.0  # seconds after which typed text is dropped: nobody expects it any longer
MOST_WAITING = 20  # texts for one console
BATCH = 200  # texts that are passed on in one transaction


@dataclass(frozen=True, slots=True)
class Followed:
    """A console to record. `tenure`: the holder's time with the node to which the present output
    belongs; see `policy.nodes.console`."""

    node_id: int
    node: str
    driver: str
    address: str
    account: str | None
    tenure: str


@dataclass(frozen=True, slots=True)
class Readable:
    """A person's access to a node's console.

    tenure  the only tenure that the person may read; None: all
    about   why the console is not recorded; '' where it is
    server  the server that records; '' where none does
    untyped why the person cannot type; '' where they can
    """

    node_id: int
    node: str
    tenure: str | None
    about: str
    server: str
    untyped: str = ""


@dataclass(frozen=True, slots=True)
class AcceptedInput:
    """Input that was accepted for a node's console, with its bytes counted."""

    node: str
    bytes: int


@dataclass(frozen=True, slots=True)
class Typed:
    """Text that a person typed, for the console of a node while it has that tenure."""

    node_id: int
    tenure: str
    text: str


def followed(tx: Tx, rules: ConsoleRules) -> list[Followed]:
    """Return the consoles to follow, by their nodes' ids."""
    found = [
        Followed(node_id, name, driver, address, account, console.tenure(vcluster_id, assigned_at))
        for node_id, name, driver, address, account, vcluster_id, assigned_at in (
            consoles.of_drivers(tx, WITH_CONSOLES)
        )
    ]
    return [each for each in found if not console.unrecorded(rules, each.node, each.driver)]


FREE = console.FREE
"""The tenure of a node without a holder: for administrators alone."""
pause = console.pause
"""Seconds until a console that was lost is tried again."""


def readable(tx: Tx, *, name: str, rules: ConsoleRules, everything: bool, now: float) -> Readable:
    """Return which recordings of a node's console a person may read: everything, or what was
    recorded since the present holder got the node. Raises `Refused`."""
    node = nodes.named(tx, name)
    if node.vcluster_id is None and not everything:  # released since the person's rights were read
        raise Refused("not_found", f"there is no node {name!r}", "name")
    about = console.unrecorded(rules, node.name, node.power_driver)
    own = None if everything else console.tenure(node.vcluster_id, node.assigned_at)
    untyped = console.untyped(
        rules, node.name, node.power_driver, node.state, administrator=everything
    )
    return Readable(node.id, node.name, own, about, claims.owner(tx, CLAIM, now), untyped)


def type_(
    tx: Tx, *, name: str, text: str, rules: ConsoleRules, everything: bool, now: float
) -> Result[AcceptedInput]:
    """Store text for a node's console, on which the server that follows consoles will type it; wake
    that server if it is this one. `everything`: the person is an administrator. Raises
    `Refused`."""
    node = nodes.named(tx, name, lock=True)
    found = readable(tx, name=name, rules=rules, everything=everything, now=now)
    why = found.untyped or ("" if found.server else "no server follows consoles now")
    if why:
        raise Refused("conflict", f"nothing can be typed on the console of {node.name}: {why}")
    consoles.forget_before(tx, now - LATE)
    if consoles.waiting(tx, node.id) >= MOST_WAITING:
        raise Refused(
            "conflict",
            f"{MOST_WAITING} texts wait for the console of {node.name}: wait until they are typed",
        )
    own = console.tenure(node.vcluster_id, node.assigned_at)
    consoles.type_(tx, node.id, own, text, now, administrator=everything)
    return Result(AcceptedInput(node.name, len(text.encode())), (Effect("wake", "consoles"),))


def is_typed(tx: Tx) -> bool:
    """Return whether anything waits to be typed."""
    return bool(consoles.waiting(tx))


def typed(tx: Tx, server: str, now: float) -> list[Typed]:
    """Take the texts to type, if this server follows the consoles. No text is typed twice: if the
    server dies now, the text is lost. Texts are dropped that are late, or whose author's vcluster
    has lost the node or does not run its system any more."""
    if claims.owner(tx, CLAIM, now) != server:
        return []
    return [
        Typed(row.node_id, row.tenure, row.typed)
        for row in consoles.take(tx, BATCH)
        if now - row.at <= LATE
        and row.tenure == console.tenure(row.vcluster_id, row.assigned_at)
        and (row.administrator or row.state == NodeState.ACTIVE)
    ]
