"""A site that is held: its manager plans nothing and no deadline passes, and no node in the
trampoline is erased or installed by itself.

An administrator holds a site that was restored from a backup, until the machines were compared with
the database: a node that the backup says is free may run a system that was installed since.
"""

from __future__ import annotations

from dataclasses import dataclass

from cod.states import NodeState
from cod.store import watermarks
from cod.store.engine import Tx
from cod.store.nodes import nodes


@dataclass(frozen=True, slots=True)
class SiteHold:
    """A hold of the site. `silent`: names of nodes in the trampoline that have not been heard of
    since."""

    since: float
    silent: tuple[str, ...] = ()


def start(tx: Tx, now: float) -> SiteHold:
    """Hold the site; a hold that lasts already goes on."""
    since = watermarks.at(tx, watermarks.HOLD)
    if since is None:
        watermarks.move(tx, watermarks.HOLD, None, now)
    return show(tx) or SiteHold(now)


def show(tx: Tx) -> SiteHold | None:
    """Return the hold of the site; None while there is none."""
    since = watermarks.at(tx, watermarks.HOLD)
    if since is None:
        return None
    silent = [
        node.name
        for node in nodes.every(tx)
        if node.state == NodeState.TRAMPOLINE and (node.last_seen is None or node.last_seen < since)
    ]
    return SiteHold(since, tuple(sorted(silent)))


def lasts(tx: Tx) -> bool:
    """Return whether the site is held."""
    return watermarks.at(tx, watermarks.HOLD) is not None


def end(tx: Tx, now: float) -> None:
    """End the hold. Deadlines that passed meanwhile are put off by the time it lasted."""
    since = watermarks.at(tx, watermarks.HOLD)
    if since is None:
        return
    for node in nodes.overdue(tx, now, limit=1_000_000):
        nodes.extend_deadline(tx, node, (node.deadline or now) + max(0.0, now - since))
    watermarks.forget(tx, watermarks.HOLD)
