"""The time for which a vcluster keeps its nodes, the nodes that it loses first, and the leases that
are due. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeVar

from cod.model import Group, Policy, Refused, Vcluster
from cod.policy.scheduler.snapshot import SiteSnapshot, VclusterHolder
from cod.quantity import exact_span, span
from cod.states import NodeState

LONGEST = 4_000_000_000.0  # seconds of a lease, as the site file has it


def check(asked: float | None, field: str = "lease") -> None:
    """Raise `Refused` unless `asked` is a possible length of a lease in seconds: positive, finite,
    and at most `LONGEST`. None is possible: the length is left open."""
    if asked is not None and not 0 < asked <= LONGEST:  # comparisons with NaN are false
        raise Refused(
            "invalid",
            f"a lease lasts more than 0 and at most {LONGEST:.0f} seconds, not {asked}",
            field,
        )


def length(asked: float | None, group: Group, policy: Policy) -> float:
    """Return the seconds of a new lease: those asked for, or the group's default, but at most the
    group's maximum."""
    default = policy.default_lease if group.default_lease is None else group.default_lease
    return min(default if asked is None else asked, longest(group, policy))


def longest(group: Group, policy: Policy) -> float:
    """Return the most seconds that a lease can last with all extensions, by the group's maximum or
    else the site's; infinity without a limit."""
    return (policy.max_lease or float("inf")) if group.max_lease is None else group.max_lease


def granted_time(asked: float | None, group: Group, policy: Policy) -> float:
    """Return the seconds of a new lease, as `length` does. Raise `Refused` if more than the group's
    maximum was asked for: a lease is not shortened silently."""
    if asked is not None and asked > longest(group, policy):
        raise Refused(
            "invalid",
            f"a lease of group {group.name} lasts {exact_span(longest(group, policy))} at most,"
            f" with all extensions; {exact_span(asked)} were asked for",
            "lease",
        )
    return length(asked, group, policy)


def latest(began: float, group: Group, policy: Policy) -> float:
    """Return when a lease that began at `began` ends at the latest, with all extensions; infinity
    without a limit."""
    return began + longest(group, policy)


def end(vcluster: Vcluster, now: float) -> float:
    """Return the end of the vcluster's lease; the latest possible time for a lease without end."""
    return now + LONGEST if vcluster.expires_at is None else vcluster.expires_at


def extended(
    asked: float,
    expires_at: float,
    began: float,
    group: Group,
    policy: Policy,
    now: float,
    *,
    clip: bool = False,
) -> float:
    """Return the end of a lease that should last `asked` seconds from now. An extension never makes
    a lease shorter.

    began  when the lease began: the group's maximum, or the site's, bounds the whole length
    clip   shorten the extension to the maximum instead of refusing it: for programs, which read the
           new end

    Raise `Refused` if the lease cannot become longer, or if `asked` exceeds the maximum.
    """
    end, bound = now + asked, latest(began, group, policy)
    if end > bound and (expires_at >= bound or not clip):
        left = (
            f"it can last {span(bound - now)} from now at most"
            if expires_at < bound and bound > now
            else "it cannot be extended any more"
        )
        raise Refused(
            "invalid" if expires_at < bound else "conflict",
            f"a lease of group {group.name} lasts {exact_span(longest(group, policy))} at most,"
            f" with all extensions, and this one began {span(now - began)} ago: {left}",
            "lease",
        )
    return max(min(end, bound), expires_at)


class Member(Protocol):
    """A vcluster's node; as in `model.Node`."""

    @property
    def name(self) -> str: ...
    @property
    def state(self) -> str: ...
    @property
    def assigned_at(self) -> float | None: ...


AnyMember = TypeVar("AnyMember", bound=Member)


def victims(held: Iterable[AnyMember], count: int) -> list[AnyMember]:
    """Return the nodes that a vcluster gives up when it shrinks by `count` without named nodes.

    Nodes that do not run its software yet go first, then the newest members. Names decide between
    equals."""
    order = sorted(
        held,
        key=lambda node: (node.state == NodeState.ACTIVE, -(node.assigned_at or 0.0), node.name),
    )
    return order[: max(count, 0)]


# ---------------------------------------------------------------- what is due


def warnings(snapshot: SiteSnapshot, policy: Policy, now: float) -> tuple[tuple[int, float], ...]:
    """Return (vcluster id, seconds) for each lease that ends within so many seconds without a
    warning.

    If several warnings are due, the most urgent one counts. An extension makes a warning due again,
    because the last warning is then no longer in `snapshot.warned`."""
    due = []
    for holder in snapshot.holders.values():
        if holder.expires_at is None or holder.drain_until is not None or holder.expires_at <= now:
            continue
        reached = [ahead for ahead in policy.lease_warnings if holder.expires_at - now <= ahead]
        if reached and min(reached) < snapshot.warned.get(holder.id, float("inf")):
            due.append((holder.id, min(reached)))
    return tuple(sorted(due))


def begun(seconds: float, policy: Policy) -> float | None:
    """Return the warning, in seconds before the end, that counts as given when a lease begins, or
    is extended, with `seconds` left. So a lease that is short from the beginning gets no warning
    that is due already. None: no warning counts as given."""
    return min((ahead for ahead in policy.lease_warnings if seconds <= ahead), default=None)


def drains(snapshot: SiteSnapshot, now: float) -> tuple[int, ...]:
    """Return vclusters whose lease has run out and that are not draining yet."""
    return tuple(
        sorted(
            holder.id
            for holder in snapshot.holders.values()
            if holder.drain_until is None and over(holder, now)
        )
    )


def expired(snapshot: SiteSnapshot, now: float) -> tuple[int, ...]:
    """Return draining vclusters whose grace is over."""
    return tuple(
        sorted(
            holder.id
            for holder in snapshot.holders.values()
            if holder.drain_until is not None and holder.drain_until <= now
        )
    )


def overdue(snapshot: SiteSnapshot, now: float) -> tuple[int, ...]:
    """Return the reclaims that are past their deadline with nodes still open."""
    return tuple(
        sorted(
            reclaim.id for reclaim in snapshot.reclaims if reclaim.open and reclaim.deadline <= now
        )
    )


class Leased(Protocol):
    """A lease; as in `model.Vcluster` and `VclusterHolder`."""

    @property
    def expires_at(self) -> float | None: ...
    @property
    def drain_until(self) -> float | None: ...


def gone_at(holder: Leased, policy: Policy) -> float:
    """Return when the holder's nodes leave it if its lease is not extended; infinity where the
    lease has no end."""
    if holder.drain_until is not None:
        return holder.drain_until
    return float("inf") if holder.expires_at is None else holder.expires_at + policy.drain_grace


def over(holder: VclusterHolder, now: float) -> bool:
    """Return whether the holder's lease has run out. Its nodes then return by themselves, and no
    request preempts them."""
    return holder.drain_until is not None or (
        holder.expires_at is not None and holder.expires_at <= now
    )
