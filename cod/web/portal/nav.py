"""The navigation: its entries in order, for owners and for administrators."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of the navigation. `icon` is a symbol of web/templates/_icons.html. `below` has the
    pages of a section, of which the first has the section's path. `paths` are the paths of all
    pages that belong to the entry."""

    path: str
    title: str
    icon: str
    below: tuple[Entry, ...] = ()
    paths: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        paths = tuple(each.path for each in self.below) or (self.path,)
        object.__setattr__(self, "paths", paths)


OWNERS = (
    Entry("/", "Overview", "overview"),
    Entry(
        "/vclusters",
        "Clusters",
        "vcluster",
        (
            Entry("/vclusters", "Virtual clusters", "vcluster"),
            Entry("/requests", "Requests", "request"),
            Entry("/calendar", "Calendar", "calendar"),
            Entry("/timeline", "Timeline", "timeline"),
        ),
    ),
    Entry(
        "/templates",
        "Software and data",
        "template",
        (
            Entry("/templates", "Templates", "template"),
            Entry("/images", "Images", "image"),
            Entry("/volumes", "Volumes", "volume"),
        ),
    ),
    Entry(
        "/groups",
        "Groups",
        "group",
        (Entry("/groups", "Groups and members", "group"), Entry("/shares", "Shares", "policy")),
    ),
    Entry("/notices", "Notices", "notice"),
)
MACHINES = (
    Entry("/nodes", "Nodes", "node"),
    Entry("/map", "Rack map", "rack"),
    Entry("/faults", "Faults", "warning"),
    Entry("/maintenance", "Maintenance", "tool"),
    Entry("/types", "Types", "type"),
    Entry("/blocks", "Blocks", "block"),
)
SITE = (
    Entry("/energy", "Reserve & energy", "energy"),
    Entry("/policy", "Policy", "policy"),
    Entry("/settings", "Settings", "tool"),
    Entry("/people", "People", "person"),
    Entry("/audit", "Audit", "audit"),
)
COUNTED = {"/requests": "waiting", "/nodes": "to approve", "/faults": "out of service"}
"""The pages whose entries have numbers, and what the numbers count."""
COUNTS = "counts"
"""The name of a live part that every page has: the numbers, as JSON by path."""


def entries(served: Iterable[str], *, admin: bool) -> list[tuple[str, list[Entry]]]:
    """Return (heading, entries) of the navigation of administrators or of others, with those
    entries whose pages are served. Owners have one group without a heading, administrators three.
    """
    paths = set(served)
    parts: list[tuple[str, tuple[Entry, ...]]] = [("", OWNERS)]
    if admin:
        parts = [("Use", OWNERS), ("Machines", MACHINES), ("Site", SITE)]
    shown = [(heading, [*_served(part, paths)]) for heading, part in parts]
    return [(heading, part) for heading, part in shown if part]


def _served(part: Iterable[Entry], paths: set[str]) -> Iterable[Entry]:
    for each in part:
        below = tuple(one for one in each.below if one.path in paths)
        if each.path in paths:
            yield replace(each, below=below)
