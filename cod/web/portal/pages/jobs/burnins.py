"""The page where a node is tested, with the results of its tests over time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from cod import svg
from cod.choices import BurninTest
from cod.flows import views
from cod.flows.nodes import burnins
from cod.model import BurninView
from cod.pool import Tx
from cod.states import BurninState, NodeState
from cod.web.api.routes import Named, see
from cod.web.portal.forms import Fields
from cod.web.portal.page import Page, PageCall, act
from cod.web.portal.pages.timeline import dated, time_label

SHOWN = "/nodes/{name}/burnin"
_OPEN = (BurninState.WANTED, BurninState.RUNNING)
_CAN = (NodeState.INACTIVE, NodeState.OFF, NodeState.TRAMPOLINE, NodeState.WIPE)
MOST_LINES, MOST_DATES = 6, 6
# Figures that people look at first, with their units: of a table, and those that are drawn over
# time.
FIGURES = (
    ("tested_percent", "% tested"),
    ("tested_mib", "MiB"),
    ("rounds", "rounds"),
    ("read_mb_s", "MB/s read"),
    ("write_mb_s", "MB/s written"),
    ("throughput_mbit_s", "Mb/s"),
    ("link_mbit_s", "Mb/s link"),
    ("drops", "drops"),
    ("smart_power_on_hours", "h powered on"),
)
_DRAWN = (("read_mb_s", 1.0), ("throughput_mbit_s", 0.125))  # both as MB/s


def _one(tx: Tx, ask: PageCall[Named]) -> dict[str, Any]:
    view = views.node(tx, ask.names.name, ask.site.policy)
    past = burnins.history(tx, name=ask.names.name)
    last = past[0] if past else None
    return {
        "node": view.node,
        "holder": view.vcluster,
        "past": past,
        "last": last,
        "figures": FIGURES,
        "tests": BurninTest.abouts().items(),
        "under_way": last is not None and last.state in _OPEN,
        "rules": ask.site.burnin,
        "can_be": view.node.state in _CAN and view.vcluster is None,
        "chart": chart(past),
    }


def chart(past: Sequence[BurninView]) -> Markup | None:
    """Return the chart of the speeds of disks and network over time, with a line for each part;
    None if no part was measured twice."""
    points: dict[str, list[tuple[float, float]]] = {}
    for view in reversed(past):
        for result in view.results:
            for figure, factor in _DRAWN:
                if (value := result["figures"].get(figure)) is not None:
                    part = result["part"] if result["test"] == "disk" else "network"
                    points.setdefault(part, []).append((view.asked_at, value * factor))
    several = [svg.Line(part, measured) for part, measured in points.items() if len(measured) > 1]
    drawn = several[:MOST_LINES]
    if not drawn:
        return None
    moments = sorted({at for line in drawn for at, _ in line.points})
    length = moments[-1] - moments[0]
    ticks = [(at, dated(at, length)) for at in moments[:: max(1, len(moments) // MOST_DATES)]]
    return Markup(
        svg.inline(
            svg.lines(
                "",
                drawn,
                svg.Axis("UTC", ticks, moments=True, label_of=time_label),
                svg.Axis("MB/s"),
            ),
            "Speeds over time",
        )
    )


def _request_body(fields: Fields) -> dict[str, Any]:
    """Return the body with the ticked tests, of which there must be one. Without minutes the site
    file's length applies."""
    made: dict[str, Any] = {"erase": bool(fields.one("erase")), "tests": fields.all("tests")}
    if minutes := fields.one("minutes").strip():
        made["seconds"] = int(minutes) * 60 if minutes.isdecimal() and len(minutes) < 9 else minutes
    return made


PAGES = (Page(SHOWN, "burnin.html", _one, see("node"), nav="/nodes"),)
ACTIONS = (
    act(SHOWN, "POST", SHOWN, "{reply.node} is being tested.", body=_request_body),
    act(SHOWN + "/cancel", f"DELETE {SHOWN}", SHOWN, "The burn-in of {reply.node} is cancelled."),
)
