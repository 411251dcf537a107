"""The effect of maintenance windows on leases. Pure.

A lease may begin on nodes of a window if it ends, with its grace, before the window begins, or if
it begins after the window's end. While a window drains, no request gets its nodes. Nodes that are
still held when the window begins are taken from their holders.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from cod.model import IN_MAINTENANCE, AskedWindow, MaintenanceWindow, Policy, Refused
from cod.policy.scheduler.reasons import at
from cod.policy.scheduler.snapshot import WindowTimes

MOST = 30
"""Most windows that may be open at a time: each is a bit of a signed 32-bit number."""
LATE = 3600.0  # seconds that a window's beginning may be in the past when it is planned


def times(windows: Sequence[MaintenanceWindow], policy: Policy) -> dict[int, WindowTimes]:
    """Return the windows by their bits, as the planner sees them."""
    return {
        one.bit: WindowTimes(
            -math.inf if one.drain or one.begins_at is None else one.begins_at - policy.drain_grace,
            math.inf if one.ends_at is None else one.ends_at,
            obstacle(one),
        )
        for one in windows
    }


def obstacle(window: MaintenanceWindow) -> str:
    """Say what keeps a request from nodes of a window: 'maintenance of @r12 begins 2026-12-14 08:00
    UTC (power feed), before its lease would end'."""
    if window.drain or window.begins_at is None:
        return f"{window.what} is being drained ({window.reason})"
    return (
        f"maintenance of {window.what} begins {at(window.begins_at)} ({window.reason}), before its"
        " lease would end"
    )


def bit(windows: Sequence[MaintenanceWindow]) -> int:
    """Return a bit that no open window has. Raises `Refused` if all bits are in use."""
    used = {one.bit for one in windows}
    free = next((1 << place for place in range(MOST) if 1 << place not in used), None)
    if free is None:
        raise Refused("conflict", f"at most {MOST} windows are planned at a time: cancel one")
    return free


def check(asked: AskedWindow, now: float) -> None:
    """Raise `Refused` unless the window names its nodes in one way, and its times are possible."""
    if asked.site is bool(asked.names.strip() or asked.where.strip()):
        why = "name nodes, or say by a filter which are meant, or say that it is the whole site"
        raise Refused("invalid", why, "names")
    if asked.begins_at is None and not asked.drain:
        raise Refused("invalid", "say when the maintenance begins", "begins_at")
    check_times(asked.begins_at, asked.ends_at, now)
    if asked.begins_at is not None and asked.begins_at < now - LATE:
        why = "that time is over, and nodes would be taken at once: name a later one"
        raise Refused("invalid", why, "begins_at")


def check_times(begins_at: float | None, ends_at: float | None, now: float) -> None:
    """Raise `Refused` for an end that is over, or no later than the beginning."""
    if ends_at is not None and ends_at <= max(now, begins_at or now):
        raise Refused("invalid", "the maintenance ends after it begins, and after now", "ends_at")


def leaves_at(window: MaintenanceWindow, gone_at: float, now: float) -> float:
    """Return when nodes of the window leave their holder, whose lease would keep them until
    `gone_at`."""
    begins = math.inf if window.begins_at is None else max(window.begins_at, now)
    return min(begins, gone_at)


def warning(window: MaintenanceWindow, policy: Policy, now: float) -> float | None:
    """Return the warning that is due before a window takes nodes, in seconds before its beginning;
    None if no warning is due."""
    if window.begins_at is None:
        return None
    left = window.begins_at - now
    reached = min((ahead for ahead in policy.lease_warnings if left <= ahead), default=None)
    if reached is None or left <= 0 or (window.warned is not None and window.warned <= reached):
        return None
    return reached


AFTER = "after maintenance"


def out(window: MaintenanceWindow) -> str:
    """Return the reason, shown with the nodes of the window, why they are out of service."""
    until = "" if window.ends_at is None else f" until {at(window.ends_at)}"
    return f"{IN_MAINTENANCE}{until}: {window.reason}"


def begun(window: MaintenanceWindow, now: float) -> bool:
    """Return whether the window has begun, so that its nodes are taken from their holders."""
    return window.begins_at is not None and window.begins_at <= now


def over(window: MaintenanceWindow, now: float) -> bool:
    """Return whether the window is over, so that its nodes return to service."""
    return window.ends_at is not None and window.ends_at <= now
