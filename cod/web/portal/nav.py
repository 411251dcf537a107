"""The navigation: what there is, in order, and for whom."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from cod.model import Who


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of the navigation. `icon`: a symbol of web/templates/_icons.html."""

    path: str
    title: str
    icon: str


OWNERS = (
    Entry("/", "Overview", "overview"),
    Entry("/vclusters", "Virtual clusters", "vcluster"),
    Entry("/requests", "Requests", "request"),
    Entry("/images", "Images", "image"),
    Entry("/templates", "Templates", "template"),
    Entry("/volumes", "Volumes", "volume"),
    Entry("/groups", "Groups", "group"),
    Entry("/shares", "Shares", "policy"),
    Entry("/calendar", "Calendar", "calendar"),
    Entry("/timeline", "Timeline", "timeline"),
    Entry("/notices", "Notices", "notice"),
)
ADMINISTRATORS = (
    Entry("/nodes", "Nodes", "node"),
    Entry("/map", "Rack map", "rack"),
    Entry("/faults", "Faults", "warning"),
    Entry("/maintenance", "Maintenance", "tool"),
    Entry("/types", "Types", "type"),
    Entry("/blocks", "Blocks", "block"),
    Entry("/energy", "Reserve & energy", "energy"),
    Entry("/policy", "Policy", "policy"),
    Entry("/people", "People", "person"),
    Entry("/audit", "Audit", "audit"),
)


def entries(who: Who | None, served: Iterable[str]) -> list[tuple[str, list[Entry]]]:
    """(heading, entries) of the navigation of `who`: those whose pages are served."""
    if who is None:
        return []
    there = set(served)
    parts = [("", OWNERS), ("Administration", ADMINISTRATORS if who.admin else ())]
    shown = [(heading, [each for each in part if each.path in there]) for heading, part in parts]
    return [(heading, part) for heading, part in shown if part]
