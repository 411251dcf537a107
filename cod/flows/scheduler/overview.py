"""The overview, for people and for administrators of the site."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cod.states import NodeState
from cod.store.engine import Tx
from cod.store.nodes import nodes
from cod.store.scheduler import overview

SOME, MANY = 12, 50


@dataclass(frozen=True, slots=True)
class Standing:
    """State of the site at a glance.

    pool     nodes by state
    aside    the newest in quarantine, `new` those that wait for approval: name, since, reason
    manager  owner and expires_at of the claim to manage; None: nobody ever had it
    """

    pool: Mapping[str, int]
    aside: list[Mapping[str, Any]]
    new: list[Mapping[str, Any]]
    manager: Mapping[str, Any] | None


def under_way(tx: Tx, groups: frozenset[int] | None) -> list[Mapping[str, Any]]:
    """Return nodes held by vclusters of these groups (None: all) that are on their way to work; see
    the store's."""
    return overview.under_way(tx, groups, MANY)


def attention(tx: Tx, *, groups: frozenset[int] | None) -> dict[str, int]:
    """Return the numbers of the portal's navigation, by its paths: requests that wait, of these
    groups; where these are all (None), machines to approve and nodes out of service, too."""
    found = {"/requests": overview.waiting(tx, groups)}
    if groups is None:
        found["/nodes"] = nodes.count_in(tx, NodeState.REGISTERING)
        found["/faults"] = nodes.count_in(tx, NodeState.QUARANTINED)
    return found


def standing(tx: Tx) -> Standing:
    """Return how the site stands now."""
    return Standing(
        overview.pool(tx),
        overview.set_aside(tx, NodeState.QUARANTINED, SOME),
        overview.set_aside(tx, NodeState.REGISTERING, SOME),
        overview.claim(tx, "manager"),
    )
