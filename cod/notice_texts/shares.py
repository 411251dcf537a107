"""Notices about a group's use of the site, and about promises that the site cannot keep."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import quote

from cod.notice_texts.words import NoticeText, moment, notice


def guarantees_exceed(what: str, guarantees: Mapping[str, int], nodes: int) -> NoticeText:
    """Describe that the site has fewer `nodes` than it guarantees to these groups. `what`: the kind
    of nodes."""
    each = ", ".join(f"{name} {count}" for name, count in sorted(guarantees.items()))
    return notice(
        "guarantees",
        f"{sum(guarantees.values())} {what} are guaranteed, the site has {nodes}",
        f"The site has {nodes} {what}, and {sum(guarantees.values())} are guaranteed to groups:"
        f" {each}. Not all of them can call in what they are guaranteed. Bring back retired nodes,"
        " or lower guarantees.",
        "/shares",
    )


def guarantees_met() -> NoticeText:
    """Describe the end of `guarantees_exceed`."""
    return notice(
        "guarantees-met",
        "the site has as many nodes as are guaranteed",
        "No more nodes are guaranteed to groups than the site has.",
        "/shares",
    )


def budget(
    group: str, part: int, cost: float, budget: float, currency: str, ends: float
) -> NoticeText:
    """Describe that a group's use has cost `part` per cent of its budget for the month that ends at
    `ends`."""
    return notice(
        "budget",
        f"{group}: {part} % of the month's budget is used",
        f"The nodes of group {group} have cost {cost:,.2f} of {budget:,.2f} {currency} in this"
        f" month, which ends {moment(ends)}. The budget is a warning: nothing is stopped.",
        f"/groups/{quote(group, safe='')}",
    )


def node_hours(group: str, part: int, used: float, limit: float, ends: float) -> NoticeText:
    """Describe that a group has used `part` per cent of its node-hours for the month that ends at
    `ends`."""
    what = (
        f"It gets no more nodes before {moment(ends)}. Its leases that run last until they end."
        if part >= 100
        else "New leases, and longer ones, are bounded by what is left."
    )
    return notice(
        "node-hours",
        f"{group}: {part} % of the month's node-hours used",
        f"Group {group} has used {used:,.1f} of its {limit:,.0f} node-hours of this month. {what}",
        "/shares",
    )
