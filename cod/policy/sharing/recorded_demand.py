"""The demand that a site has recorded, as a scenario of the simulator: its nodes, its groups, and
each request as a virtual cluster of its own. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from cod.model import Group, NodeType, RecordedRequest, RecordedWindow, Site
from cod.states import RequestState

DAY = 86400.0
PERIOD = 3600.0  # seconds between passes without a change: long, for a fast simulation
BEFORE = "held before"  # the name under which requests from before the first day are counted


def scenario(
    types: Sequence[NodeType],
    nodes: Mapping[int, Mapping[int | None, int]],
    requests: Iterable[RecordedRequest],
    groups: list[dict[str, Any]],
    site: Site,
    days: int,
    now: float,
    windows: Iterable[RecordedWindow] = (),
) -> dict[str, Any]:
    """Return the tables of a scenario file for the last `days`.

    nodes    nodes in service, by type and block
    groups   as `group_tables` returns them
    windows  maintenance windows, with their nodes by type and block
    """
    since = now - days * DAY
    blocks = [(one.id, block) for one in types if one.id in nodes for block in nodes[one.id]]
    return {
        "name": f"the last {days} days",
        "days": float(days),
        "period": PERIOD,
        "policy": asdict(site.policy),
        "energy": asdict(site.energy),
        "type": [
            {
                "name": one.name,
                "blocks": list(nodes[one.id].values()),
                "cost": one.cost,
                "attributes": one.attributes,
                "warm_low": one.warm_low,
                "warm_high": one.warm_high,
            }
            for one in types
            if one.id in nodes
        ],
        "group": groups,
        "demand": list(_demands(requests, since, now)),
        "window": list(_windows(windows, blocks, since, now)),
    }


def group_tables(
    groups: Iterable[Group], settings: Mapping[str, Mapping[str, Any]], types: Iterable[str]
) -> list[dict[str, Any]]:
    """Return the groups' tables of a scenario file. `settings`: by group, as
    `flows.scheduler.shares.settings` returns them; `types`: names of types of which the site has
    nodes."""
    known = set(types)

    def by_type(values: Mapping[str, float]) -> dict[str, float]:
        return {name: value for name, value in values.items() if name in known}

    return [
        {
            "name": one.name,
            "priority": one.priority,
            "default_lease": one.default_lease,
            "max_lease": one.max_lease,
            "shares": own["shares"],
            "guarantee": own["guarantee"],
            "node_limit": own["node_limit"],
            "hours": own["hours_limit"],
            "parent": own["parent"] or "",
            "shares_of": by_type(own["type_shares"]),
            "guarantee_of": by_type(own["type_guarantees"]),
            "limit_of": by_type(own["type_limits"]),
        }
        for one in groups
        for own in (settings[one.name],)
    ]


def _windows(
    windows: Iterable[RecordedWindow],
    blocks: Sequence[tuple[int, int | None]],
    since: float,
    now: float,
) -> Iterator[dict[str, Any]]:
    """Yield the windows' tables of a scenario file. `blocks`: (type, block), in the order in which
    the scenario numbers its blocks. A window without a known end lasts beyond `now`. A window that
    was ended before it began is left out."""
    for one in windows:
        window = one.window
        taken = {place: one.nodes[key] for place, key in enumerate(blocks, 1) if key in one.nodes}
        if not taken or window.begins_at is None:
            continue
        begins = max(window.begins_at, since)
        ends = max(window.begins_at, now) + DAY if window.ends_at is None else window.ends_at
        if ends <= window.begins_at:
            continue
        yield {
            "name": f"{window.id}: {window.reason}",
            "begins": begins - since,
            "length": max(1.0, ends - begins),
            "ahead": max(0.0, begins - window.created_at),
            "blocks": list(taken),
            "counts": list(taken.values()),
        }


def _demands(
    requests: Iterable[RecordedRequest], since: float, now: float
) -> Iterator[dict[str, Any]]:
    """Yield a demand for each set of requests that are alike. A request from before `since` is made
    at the scenario's beginning, for the rest of its time."""
    alike: dict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
    for one in requests:
        begins = max(one.wanted_at, since)
        granted_at = one.decided_at if one.state == RequestState.GRANTED else None
        runtime = one.lease_time
        if granted_at is not None:
            end = one.ended_at if one.ended_at is not None else max(one.expires_at or now, now)
            runtime = end - max(granted_at, begins)
        if runtime <= 0:
            continue
        key = (one.group, one.needs, one.may_wait, one.may_spread, one.preemptible)
        alike[key].append(
            {
                "at": begins - since,
                "nodes": one.nodes,
                "runtime": runtime,
                "under": one.group if one.wanted_at >= since or granted_at is None else BEFORE,
            }
        )
    for number, (key, found) in enumerate(alike.items(), 1):
        group, needs, may_wait, may_spread, preemptible = key
        yield {
            "name": f"requests {number}",
            "model": "recorded",
            "group": group,
            "needs": needs,
            "may_wait": may_wait,
            "may_spread": may_spread,
            "preemptible": preemptible,
            "requests": sorted(found, key=lambda one: one["at"]),
        }
