"""Pages about the groups' use of the site: shares, usage that fades, guarantees and limits; and why
one group had the nodes that it had. Administrators set a group's shares and limits there."""

from __future__ import annotations

from typing import Any

from markupsafe import Markup

from cod import svg
from cod.flows.scheduler import shares, usage
from cod.flows.scheduler.shares import GroupUse
from cod.pool import Tx
from cod.web.api.routes import ANYBODY, Call, Named, see
from cod.web.portal.forms import Fields
from cod.web.portal.page import Page, PageCall, act
from cod.web.portal.pages.timeline import DAY, SHOWN, chart, dated, so_far, time_label

ONE = "/shares/{name}"
PARTS = {
    "own": "{group}",
    "higher": "higher priority",
    "equal": "its priority",
    "lower": "lower priority",
    "free": "free",
}
DAYS = (("7", "7 days"), ("14", "14 days"), ("28", "28 days"))  # that a preview simulates
WHOLE = ("guarantee", "node_limit", "days")
NULLS = ("node_limit", "hours_limit")  # that an empty field takes away


def _shares(tx: Tx, ask: Call) -> dict[str, Any]:
    held = usage.held(
        tx,
        since=ask.now - 30 * DAY,
        until=ask.now,
        by="group",
        limit=SHOWN,
        groups=ask.who.groups,
        now=ask.now,
    )
    return {
        "found": shares.every(tx, only=ask.who.groups, site=ask.site, now=ask.now),
        "ranked": ask.site.policy.fair_half_life > 0,
        "rule": ask.site.policy.fair,
        "half_life": ask.site.policy.fair_half_life,
        "chart": chart(so_far(held), "Nodes held by group"),
    }


def _one(tx: Tx, ask: PageCall[Named]) -> dict[str, Any]:
    name = ask.names.name
    use = shares.used(tx, name, site=ask.site, now=ask.now)
    return {
        "use": use,
        "days": DAYS,
        "one": shares.one(tx, name, site=ask.site, now=ask.now),
        "chart": _chart(use),
        "heads": [words.format(group=name) for words in PARTS.values()],
        "rows": [
            (dated(day.at, 30 * DAY), [getattr(day, part) for part in PARTS]) for day in use.days
        ],
    }


def _chart(use: GroupUse) -> Markup | None:
    """Return the chart of nodes by day, with the group's own at the bottom; None before two days
    have been counted."""
    if len(use.days) < 2:
        return None
    stacked = [
        (words.format(group=use.group), [(day.at, getattr(day, part)) for day in use.days])
        for part, words in PARTS.items()
    ]
    length = use.days[-1].at - use.days[0].at
    ticks = [(day.at, dated(day.at, length)) for day in use.days[3::6]]
    drawn = svg.areas(
        "", stacked, svg.Axis("UTC", ticks, label_of=time_label), svg.Axis("nodes", least=1)
    )
    return Markup(svg.inline(drawn, f"Nodes of {use.group}, of others, and free"))


def _body(fields: Fields, *more: str) -> dict[str, Any]:
    """Return the body from the form's numbers, and from those in `more`. An empty limit is null."""
    body: dict[str, Any] = {}
    for name in ("shares", "guarantee", *NULLS, *more):
        text = fields.one(name).strip()
        if not text and name not in NULLS:
            continue
        try:
            number = float(text) if text else None
        except ValueError:
            body[name] = text  # the API refuses it with a reason
            continue
        whole = number is not None and name in WHOLE and number.is_integer()
        body[name] = int(number) if whole and number is not None else number
    return body


PAGES = (
    Page("/shares", "shares.html", _shares, ANYBODY),
    Page(ONE, "share.html", _one, see("group"), nav="/shares"),
)
ACTIONS = (
    act(
        ONE,
        "PATCH",
        ONE,
        "The shares and limits of {reply.group} are set.",
        body=_body,
    ),
    act(f"{ONE}/preview", "POST", ONE, again=ONE, body=lambda fields: _body(fields, "days")),
)
