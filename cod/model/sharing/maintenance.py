"""Maintenance windows, and who holds nodes in them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

IN_MAINTENANCE = "maintenance"
"""How the reason begins with which a node is out of service for a window, in its history, too."""


@dataclass(frozen=True, slots=True)
class MaintenanceWindow:
    """A row of `maintenance_windows`: nodes are out of service from `begins_at` to `ends_at`.

    begins_at  None: nodes go as they come free, and none is taken
    ends_at    None: nodes come back when an administrator ends the window
    names, filter  which nodes, as they were meant; both '': all of the site
    drain      its nodes are given to nobody from now on, and go as they come free
    stay_out   nodes do not come back at the end
    bit        1, 2, 4 …: no other open window has it; of one that is over -id
    warned     owners were told so many seconds before; None: when it was planned
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
        """Return which nodes are meant, for people."""
        return ", ".join(filter(None, (self.names, self.filter))) or "the whole site"

    @property
    def site(self) -> bool:
        """Return whether all nodes of the site are meant."""
        return not self.names and not self.filter

    @property
    def since(self) -> float:
        """Return when its nodes go to no lease any longer; of one that drains: since it was
        made."""
        return self.created_at if self.drain or self.begins_at is None else self.begins_at


@dataclass(frozen=True, slots=True)
class RecordedWindow:
    """A maintenance window as it was, or is. `nodes`: how many it has taken or will take, by the
    ids of their types and blocks (None: in none) of now."""

    window: MaintenanceWindow
    nodes: Mapping[tuple[int, int | None], int]


@dataclass(frozen=True, slots=True)
class AskedWindow:
    """A maintenance window that is asked for; see `MaintenanceWindow`. `site`: all nodes."""

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

    nodes    how many of its nodes; `held`: of all that it holds
    lost     of them, those that are taken from it: its lease is not over by then
    leaves_at  when the last of them leaves it; None: nobody knows
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

    nodes    all that are in it; `out`: those that it has put out of service; `free`: those that
             nobody holds
    empty_at  when nobody holds any of them; None: nobody knows
    holders  who holds some; late: vclusters whose reservations in advance find no place by it
    """

    window: MaintenanceWindow
    nodes: int
    out: int
    free: int
    empty_at: float | None
    holders: tuple[WindowHolder, ...]
    late: tuple[str, ...] = ()
