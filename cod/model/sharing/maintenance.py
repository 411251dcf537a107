"""Maintenance windows, and the vclusters that hold nodes in them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

IN_MAINTENANCE = "maintenance"
"""The beginning of the reason of nodes that are out of service for a window."""


@dataclass(frozen=True, slots=True)
class MaintenanceWindow:
    """A row of `maintenance_windows`: nodes are out of service from `begins_at` to `ends_at`.

    begins_at  None: nodes go out of service as they come free, and none is taken from a holder
    ends_at    None: nodes come back when an administrator ends the window
    names, filter  the nodes, as the administrator named them; both '': all nodes of the site
    drain      whether nodes are granted to no request from now on, and go as they come free
    stay_out   whether nodes stay out of service at the end
    bit        1, 2, 4 …, different for each open window; -id once the window is over
    warned     the last warning to owners, in seconds before the beginning; None: none but the
               announcement
    revision   how often its times were changed
    """

    id: int
    state: str
    begins_at: float | None
    ends_at: float | None
    reason: str
    names: str
    filter: str
    drain: bool
    stay_out: bool
    bit: int
    warned: float | None
    created_at: float
    created_by: str
    revision: int = 0

    @property
    def what(self) -> str:
        """Return the nodes of the window in words, for people."""
        return ", ".join(filter(None, (self.names, self.filter))) or "the whole site"

    @property
    def site(self) -> bool:
        """Return whether the window includes all nodes of the site."""
        return not self.names and not self.filter

    @property
    def since(self) -> float:
        """Return from when on no lease gets its nodes: for a window that drains, from its
        creation."""
        return self.created_at if self.drain or self.begins_at is None else self.begins_at


@dataclass(frozen=True, slots=True)
class RecordedWindow:
    """A past or present maintenance window. `nodes`: number of its nodes by their present (type id,
    block id; None: no block)."""

    window: MaintenanceWindow
    nodes: Mapping[tuple[int, int | None], int]


@dataclass(frozen=True, slots=True)
class AskedWindow:
    """A request for a maintenance window, as `MaintenanceWindow`. `where`: its `filter`; `site`: it
    includes all nodes."""

    reason: str
    names: str = ""
    where: str = ""
    site: bool = False
    begins_at: float | None = None
    ends_at: float | None = None
    drain: bool = False
    stay_out: bool = False


@dataclass(frozen=True, slots=True)
class WindowHolder:
    """A vcluster with nodes in a maintenance window.

    nodes    number of its nodes in the window
    held     number of all its nodes
    lost     how many of its nodes in the window are taken from it before the end of its lease
    leaves_at  when the last of its nodes in the window leaves it; None: unknown
    """

    vcluster: str
    group: str
    nodes: int
    held: int
    lost: int
    leaves_at: float | None


@dataclass(frozen=True, slots=True)
class WindowView:
    """A maintenance window as people see it.

    nodes    number of its nodes
    out      how many of these it has put out of service
    free     how many of these no vcluster holds
    empty_at  when no vcluster will hold any of these; None: unknown
    holders  the vclusters that hold some of these
    late     vclusters whose reservations in advance find no place because of it
    """

    window: MaintenanceWindow
    nodes: int
    out: int
    free: int
    empty_at: float | None
    holders: tuple[WindowHolder, ...]
    late: tuple[str, ...] = ()
