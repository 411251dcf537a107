"""Explanations, in sentences, of a group's part of the site over some days: beside the other
groups' parts and the free nodes, and with what would change it. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from cod.quantity import span

NEGLIGIBLE = 0.005  # of the site: less is none
DAY = 86400.0


@dataclass(frozen=True, slots=True)
class OthersPart:
    """Use of the site by other groups of higher, equal or lower priority: `groups` of them, and
    their `part` of the site's node-hours, 0 to 1."""

    priority: str
    groups: int
    part: float


@dataclass(frozen=True, slots=True)
class SiteUse:
    """A group's part of the site's node-hours over `seconds`, the others', and what was free; all
    0 to 1.

    share  of the site, as shares say it; None: they are off
    """

    group: str
    seconds: float
    own: float
    others: tuple[OthersPart, ...]
    free: float
    share: float | None


@dataclass(frozen=True, slots=True)
class GroupNow:
    """Present bounds of a group.

    held          nodes; node_limit: as many as it may hold, None: any
    waiting       requests that wait
    hours_used    of this month; hours_limit: of a month, None: any
    """

    held: int
    node_limit: int | None
    waiting: int
    hours_used: float
    hours_limit: float | None


def sentence(use: SiteUse) -> str:
    """Return what the group used, beside its share and the others'."""
    parts = [f"{use.group} used {percent(use.own)} of the site in {span(use.seconds)}"]
    if use.share is not None:
        parts.append(f"its share is {percent(use.share)}")
    parts += [
        f"{_groups(one)} used {percent(one.part)}" for one in use.others if one.part >= NEGLIGIBLE
    ]
    return "; ".join([*parts, f"{percent(use.free)} were free"]) + "."


def changes(use: SiteUse, now: GroupNow) -> Iterator[str]:
    """Yield what would let the group use more, each a sentence."""
    if now.node_limit is not None and now.held >= now.node_limit:
        yield f"It holds {now.held} nodes, which is its limit: an administrator can raise it."
    if now.hours_limit is not None and now.hours_used >= now.hours_limit:
        yield "Its node-hours of the month are used: an administrator can raise them."
    above = next((one for one in use.others if one.priority == "higher"), None)
    wants = f"{now.waiting} of its requests wait." if now.waiting else "No request of it waits."
    if use.free >= NEGLIGIBLE and not now.waiting:
        yield f"{wants} {percent(use.free)} of the site were free: request more nodes."
    elif use.free >= NEGLIGIBLE:
        yield (
            f"{wants} Nodes were free, too, but may not match: the request's page says which"
            " requirement, block or type it waits for."
        )
    elif now.waiting:
        yield f"{wants} Nothing was free."
    if above is not None and above.part >= NEGLIGIBLE:
        yield (
            "Groups of higher priority go first whatever the shares: a guarantee is not taken for"
            " them, and a higher priority is set by an administrator."
        )
    if use.share is None:
        yield "Shares are off: groups of one priority are served in the order of their requests."
    elif use.own < use.share:
        yield "It has used less than its share: its requests go before those of groups with more."
    else:
        yield "It has used more than its share: requests of groups with less go before its own."


def percent(part: float) -> str:
    """Return a part of 1 as per cent: less than 0.1 % is said so, where it is not nothing."""
    if 0 < part < 0.001:
        return "less than 0.1 %"
    return f"{100 * part:.0f} %" if part >= 0.1 else f"{100 * part:.2g} %"


def _groups(one: OthersPart) -> str:
    priority = "its priority" if one.priority == "equal" else f"{one.priority} priority"
    return f"{one.groups} group{'s' if one.groups != 1 else ''} of {priority}"
