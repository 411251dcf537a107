"""Maintenance windows: nodes are out of service for a while, by names, blocks, a filter, or all of
the site.

An administrator plans, changes and ends them; the manager carries them out (`run`), a few nodes in
each transaction. Rows of the nodes and of the window record what has been done, so that another
manager can go on wherever one stops. `policy.reservations.maintenance` has the rule for leases.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from cod import notice_texts
from cod.core import advance_reservations, notices
from cod.core.nodes import selection, transitions
from cod.model import (
    IN_MAINTENANCE,
    AskedWindow,
    Effect,
    FlowContext,
    MaintenanceWindow,
    Node,
    Policy,
    Refused,
    Result,
    Site,
    Vcluster,
    Who,
    WindowHolder,
    WindowView,
)
from cod.notice_texts import NoticeText
from cod.policy.nodes import lifecycle
from cod.policy.reservations import maintenance as policy
from cod.policy.scheduler import leases
from cod.states import NodeEvent, NodeState, Step, WindowState
from cod.store import claims, watermarks
from cod.store.engine import Tx, trial
from cod.store.nodes import nodes
from cod.store.people import groups
from cod.store.scheduler import maintenance as rows
from cod.store.scheduler import requests, vclusters

ACTOR = "maintenance"
BATCH = 50  # nodes that one transaction moves: tens of milliseconds
MOST = 100_000  # nodes of a window
KEPT = 30 * 86400.0  # seconds for which windows that are over are listed
WAKES = (Effect("wake", "manager"),)
_OPEN = frozenset(rows.OPEN)
_Said = Callable[[Vcluster, Sequence[str], MaintenanceWindow], NoticeText]

node_names = rows.node_names


# ---------------------------------------------------------------- looking


def every(
    tx: Tx, *, site: Site, now: float, groups: frozenset[int] | None = None
) -> list[WindowView]:
    """Return the windows that are not over, and those of the last 30 days. Each has the vclusters
    of these groups (None: of all) that hold nodes of the window."""
    return _views(tx, rows.every(tx, now - KEPT), site.policy, now, groups)


def show(
    tx: Tx,
    *,
    window_id: int,
    site: Site,
    now: float,
    groups: frozenset[int] | None = None,
) -> WindowView:
    """Return one window, as `every` does. Raises `Refused`."""
    return _views(tx, [rows.numbered(tx, window_id)], site.policy, now, groups)[0]


def _views(
    tx: Tx,
    windows: Sequence[MaintenanceWindow],
    rules: Policy,
    now: float,
    seen: frozenset[int] | None,
) -> list[WindowView]:
    counts = defaultdict(list)
    for one in rows.counts(tx, [window.id for window in windows]):
        counts[one.window_id].append(one)
    live = {one.id: one for one in vclusters.every(tx)}
    held = vclusters.held_each(
        tx,
        [
            one.vcluster_id
            for some in counts.values()
            for one in some
            if one.vcluster_id is not None
        ],
    )
    named = groups.names(tx)
    found = []
    for window in windows:
        holders, leaving = [], [now]
        own = counts[window.id]
        for one in own:
            vcluster = live.get(one.vcluster_id or 0)
            if vcluster is None:
                continue
            gone = leases.gone_at(vcluster, rules)
            leaves = policy.leaves_at(window, gone, now)
            leaving.append(leaves)
            if seen is None or vcluster.group_id in seen:
                holders.append(
                    WindowHolder(
                        vcluster.name,
                        named[vcluster.group_id],
                        one.nodes,
                        held[vcluster.id],
                        one.nodes if leaves < gone else 0,
                        None if leaves == math.inf else leaves,
                    )
                )
        empty = max(leaving)
        found.append(
            WindowView(
                window,
                sum(one.nodes for one in own),
                sum(one.out for one in own),
                sum(one.nodes for one in own if one.vcluster_id is None),
                None if empty == math.inf else empty,
                tuple(sorted(holders, key=lambda one: (one.group, one.vcluster))),
            )
        )
    return found


# ---------------------------------------------------------------- planning


def plan(tx: Tx, context: FlowContext, *, asked: AskedWindow) -> Result[WindowView]:
    """Plan a window, and tell the groups that lose nodes by it. Raises `Refused`."""
    site, now = context.site, context.now
    policy.check(asked, now)
    chosen_nodes = _chosen_nodes(tx, asked.names, asked.where, context.who, now)
    late = _failing(tx, site, now)
    window = rows.add(
        tx,
        # a planned window runs after the manager's next look at the earliest
        state=WindowState.RUNNING if asked.drain else WindowState.PLANNED,
        begins_at=asked.begins_at,
        ends_at=asked.ends_at,
        reason=asked.reason,
        names=asked.names.strip(),
        filter=asked.where.strip(),
        drain=asked.drain,
        stay_out=asked.stay_out,
        bit=policy.bit(rows.open_(tx)),
        warned=None,
        created_at=now,
        created_by=context.actor,
    )
    rows.put(tx, window, chosen_nodes)
    if asked.begins_at is not None:
        _warned(tx, window, site.policy, now)
    _tell(tx, window, notice_texts.maintenance, site.policy, now)
    delayed = _tell_late(tx, window, late, site, now)
    made = show(tx, window_id=window.id, site=site, now=now)
    return Result(replace(made, late=delayed), WAKES)


def check(tx: Tx, context: FlowContext, *, asked: AskedWindow) -> WindowView:
    """Return the window that `plan` would make, and change nothing. The window shows which
    vclusters lose nodes, and when none of its nodes is held any more. Raises `Refused`."""
    with trial(tx):
        return plan(tx, context, asked=asked).value


def change(
    tx: Tx, context: FlowContext, *, window_id: int, changes: Mapping[str, Any]
) -> Result[WindowView]:
    """Change times, reason, or whether nodes stay out, of a window that is not over. The groups
    that lose nodes by it are told of new times. A window that has begun keeps its beginning. Raises
    `Refused`."""
    site, now = context.site, context.now
    window = rows.numbered(tx, window_id, lock=True)
    _check_open(window)
    begins = changes.get("begins_at", window.begins_at)
    if begins != window.begins_at and policy.begun(window, now):
        raise Refused("conflict", "the maintenance has begun already", "begins_at")
    if begins is None and not window.drain:
        raise Refused("invalid", "say when the maintenance begins", "begins_at")
    policy.check_times(begins, changes.get("ends_at", window.ends_at), now)
    late = _failing(tx, site, now)
    changed = rows.change(tx, window, **changes, revision=window.revision + 1)
    if begins != window.begins_at:
        changed = rows.change(tx, changed, warned=None)
        _warned(tx, changed, site.policy, now)
    if (changed.begins_at, changed.ends_at) != (window.begins_at, window.ends_at):
        _tell(tx, changed, notice_texts.maintenance_moved, site.policy, now, before=window)
        if changed.state == WindowState.RUNNING:  # nodes that are out of service say until when
            rows.set_reason(tx, changed.id, policy.out(changed))
    delayed = _tell_late(tx, changed, late, site, now)
    made = show(tx, window_id=window.id, site=site, now=now)
    return Result(replace(made, late=delayed), WAKES)


def end(tx: Tx, context: FlowContext, *, window_id: int) -> Result[WindowView]:
    """Cancel a window that has not begun, and tell the groups that would have lost nodes; or end a
    window that runs, whose nodes then come back into service. Raises `Refused`."""
    site, now = context.site, context.now
    window = rows.numbered(tx, window_id, lock=True)
    _check_open(window)
    before = show(tx, window_id=window.id, site=site, now=now)
    _raise_version(tx)
    if window.state == WindowState.PLANNED:
        _tell(tx, window, notice_texts.maintenance_cancelled, site.policy, now)
        ended = rows.close(tx, window, WindowState.CANCELLED, ends_at=now)
    else:
        if not policy.begun(window, now):
            _tell(tx, window, notice_texts.maintenance_cancelled, site.policy, now)
        ended = rows.change(tx, window, ends_at=now, revision=window.revision + 1)
    return Result(replace(before, window=ended), WAKES)


def _check_open(window: MaintenanceWindow) -> None:
    if window.state not in _OPEN:
        raise Refused("conflict", f"the maintenance is {window.state}", "id")


def _chosen_nodes(tx: Tx, names: str, where: str, who: Who, now: float) -> list[int]:
    """Return the ids of the nodes that `names` and the filter `where` select; all of the site if
    both are empty. Raises `Refused`, also where a name selects no node."""
    if not names.strip() and not where.strip():
        return rows.ours(tx)
    chosen = selection.selected(tx, names, where, who, now, MOST)
    for _, why in chosen.missing:
        raise Refused("not_found", why, "names")
    found = rows.ours(tx, [node_id for node_id, _ in chosen.nodes])
    if not found:
        raise Refused("not_found", "none of these nodes is in service", "names")
    return found


def _failing(tx: Tx, site: Site, now: float) -> frozenset[int]:
    return frozenset(advance_reservations.failing(tx, site, now))


def _raise_version(tx: Tx) -> None:
    """Invalidate grants that are planned already: their leases may run into the window."""
    watermarks.version(tx, watermarks.RESERVED, lock=True)
    watermarks.raise_version(tx, watermarks.RESERVED)


def _warned(tx: Tx, window: MaintenanceWindow, rules: Policy, now: float) -> None:
    """Record that the owners were warned, if the window's warning is due already: the notices about
    the planned window count as the warning."""
    due = policy.warning(window, rules, now)
    if due is not None:
        rows.change(tx, window, warned=due)


def _tell(
    tx: Tx,
    window: MaintenanceWindow,
    text_of: _Said,
    rules: Policy,
    now: float,
    before: MaintenanceWindow | None = None,
) -> None:
    """Tell the groups that lose nodes by the window, or would have lost them by the window as it
    was `before`."""
    for vcluster_id, names in rows.held_names(tx, window.id).items():
        vcluster = vclusters.get(tx, vcluster_id)
        if vcluster is None:
            continue
        gone = leases.gone_at(vcluster, rules)
        if any(
            policy.leaves_at(one, gone, now) < gone for one in (window, before) if one is not None
        ):
            notices.tell(tx, vcluster, text_of(vcluster, names, window), now)


def _tell_late(
    tx: Tx, window: MaintenanceWindow, before: frozenset[int], site: Site, now: float
) -> tuple[str, ...]:
    """Tell the groups whose reservations cannot be met any more because of the window; return the
    names of their vclusters. `before`: the requests that could not be met already."""
    _raise_version(tx)
    names = []
    for request_id in sorted(_failing(tx, site, now) - before):
        request = requests.get(tx, request_id)
        vcluster = vclusters.get(tx, request.vcluster_id) if request is not None else None
        if vcluster is not None:
            notices.tell(tx, vcluster, notice_texts.maintenance_in_the_way(vcluster, window), now)
            names.append(vcluster.name)
    return tuple(names)


# ---------------------------------------------------------------- carrying out


def run(tx: Tx, *, claim: claims.Claim, site: Site, now: float) -> Result[bool]:
    """Carry on with the windows: warn owners, take nodes that are due, and bring back the nodes of
    windows that are over, `BATCH` at most. Return whether there may be more to do at once. Raises
    `Lost`."""
    windows = rows.open_(tx)
    effects: set[Effect] = set()
    if windows:
        claims.confirm(tx, claim)
    for window in windows:
        if policy.over(window, now):
            moved = _return(tx, window, site, now)
        else:
            moved = _take(tx, _begin(tx, window, site, now), site, now)
        effects.update(
            effect for before, node in moved for effect in transitions.wakes(before, node)
        )
        if len(moved) == BATCH:
            return Result(True, tuple(effects))
    return Result(False, tuple(effects))


def _begin(tx: Tx, window: MaintenanceWindow, site: Site, now: float) -> MaintenanceWindow:
    """Start a window whose time has come, or warn of a window whose time is near; return the window
    as it is now. A window that starts also gets the nodes that were added to a named block, such as
    a rack, since the window was planned."""
    due = policy.warning(window, site.policy, now)
    if due is not None:
        _tell(tx, window, notice_texts.maintenance, site.policy, now)
        return rows.change(tx, window, warned=due)
    if window.state != WindowState.PLANNED or not policy.begun(window, now):
        return window
    if not window.filter:
        rows.put(tx, window, _still_meant(tx, window, now))
    return rows.change(tx, window, state=WindowState.RUNNING)


def _still_meant(tx: Tx, window: MaintenanceWindow, now: float) -> list[int]:
    """Return the nodes that the window's names select now; none if a name selects no node."""
    try:
        return _chosen_nodes(tx, window.names, "", Who(ACTOR, admin=True), now)
    except Refused:
        return []


def _take(tx: Tx, window: MaintenanceWindow, site: Site, now: float) -> list[tuple[Node, Node]]:
    """Put nodes of a running window out of service, `BATCH` at most: free nodes, and, after the
    window's beginning, nodes that vclusters hold. Return each node before and after the change."""
    if window.state != WindowState.RUNNING:
        return []
    due = rows.to_take(tx, window.id, BATCH, held=policy.begun(window, now))
    reason = policy.out(window)
    taken: dict[int, list[str]] = defaultdict(list)
    moved = []
    for node in due:
        if node.vcluster_id is not None:
            taken[node.vcluster_id].append(node.hostname or node.name)
        step = Step(
            NodeEvent.QUARANTINED,
            reason,
            {"reason": reason},
            "off" if node.vcluster_id is not None else None,
            notified=True,
        )
        moved.append(
            (node, transitions.apply(tx, node, step, now=now, actor=ACTOR, policy=site.policy))
        )
    rows.set_taken(tx, window.id, [node.id for node in due])
    for vcluster_id, names in taken.items():
        vcluster = vclusters.get(tx, vcluster_id)
        if vcluster is not None:
            notice = notice_texts.maintenance_began(vcluster, names, window)
            notices.tell(tx, vcluster, notice, now)
    return moved


def _return(tx: Tx, window: MaintenanceWindow, site: Site, now: float) -> list[tuple[Node, Node]]:
    """Bring back nodes that the window has put out of service; their disks are erased first. Nodes
    stay out if the window says so, or if another running window has them, too. The window is over
    after its last node."""
    due = rows.to_return(tx, window.id, BATCH)
    others = rows.in_others(tx, window.id, [node.id for node in due])
    moved = []
    for node in due:
        if node.state != NodeState.QUARANTINED or not node.reason.startswith(IN_MAINTENANCE):
            continue  # an administrator, or another rule, has decided otherwise
        if node.id in others:
            rows.set_taken(tx, others[node.id], [node.id])
        elif window.stay_out:
            nodes.change(tx, node, reason=f"{policy.AFTER}: {window.reason}")
        else:
            step = lifecycle.restored(node, f"maintenance is over: {window.reason}")
            moved.append(
                (node, transitions.apply(tx, node, step, now=now, actor=ACTOR, policy=site.policy))
            )
    if len(due) < BATCH:
        rows.close(tx, window, WindowState.OVER)
    else:
        rows.clear(tx, window.id, [node.id for node in due])
    return moved
