"""Sentences that explain a group's use of the site over some days: compared with the other groups'
use and the free nodes, and with what would let the group use more. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from cod.quantity import span

NEGLIGIBLE = 0.005  # part of the site: a smaller part counts as none
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
    """Parts of the site's node-hours over `seconds`, each 0 to 1.

    own     used by the group
    others  used by other groups
    free    used by no group
    share   the group's share of the site; None: shares are off
    """

    group: str
    seconds: float
    own: float
    others: tuple[OthersPart, ...]
    free: float
    share: float | None


@dataclass(frozen=True, slots=True)
class GroupNow:
    """A group's present use, and its limits.

    held          nodes that it holds
    node_limit    nodes that it may hold; None: no limit
    waiting       its waiting requests
    hours_used    node-hours of this month so far
    hours_limit   node-hours that it may use in a month; None: no limit
    """

    held: int
    node_limit: int | None
    waiting: int
    hours_used: float
    hours_limit: float | None


def sentence(use: SiteUse) -> str:
    """Return a sentence about the group's use of the site, its share, and the other groups' use."""
    parts = [f"{use.group} used {percent(use.own)} of the site in {span(use.seconds)}"]
    if use.share is not None:
        parts.append(f"its share is {percent(use.share)}")
    parts += [
        f"{_groups(one)} used {percent(one.part)}" for one in use.others if one.part >= NEGLIGIBLE
    ]
    return "; ".join([*parts, f"{percent(use.free)} were free"]) + "."


def changes(use: SiteUse, now: GroupNow) -> Iterator[str]:
    """Yield sentences, each about something that would let the group use more of the site."""
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
    """Return a part, 0 to 1, as a percentage. A part below 0.1 % but not 0 is 'less than 0.1 %'."""
    if 0 < part < 0.001:
        return "less than 0.1 %"
    return f"{100 * part:.0f} %" if part >= 0.1 else f"{100 * part:.2g} %"


def _groups(one: OthersPart) -> str:
    priority = "its priority" if one.priority == "equal" else f"{one.priority} priority"
    return f"{one.groups} group{'s' if one.groups != 1 else ''} of {priority}"
