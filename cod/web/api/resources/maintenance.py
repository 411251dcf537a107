"""Maintenance windows: times in which nodes are out of service."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Literal

from pydantic import Field

from cod import model
from cod.filters.language import LONGEST, LONGEST_LIST
from cod.flows.scheduler import maintenance
from cod.web.api.models import Body, Reply, ReplyOf
from cod.web.api.resources.energy import Moment
from cod.web.api.routes import ADMINS, ANYBODY, listed, number, numbered_route, route

_Reason = Annotated[str, Field(min_length=1, max_length=300)]


class MaintenanceCreate(Body):
    """A new maintenance window. Nodes are out of service from `begins_at` to `ends_at`."""

    names: str = Field(
        default="",
        max_length=LONGEST_LIST,
        description="names of nodes, with ranges, and blocks: n[001-064],@rack12",
    )
    where: str = Field(
        default="", max_length=LONGEST, description="a filter, applied now: rack=r12 and type=gpu"
    )
    site: bool = Field(default=False, description="all nodes of the site")
    begins_at: Moment = Field(
        default=None, description="nodes that are still held then are taken; null with drain: none"
    )
    ends_at: Moment = Field(
        default=None, description="nodes come back; null: when the window is ended by hand"
    )
    reason: _Reason
    drain: bool = Field(
        default=False,
        description="from now on nodes are given to nobody, and go as they come free",
    )
    stay_out: bool = Field(
        default=False, description="nodes stay out of service after the end, until restored by hand"
    )

    @property
    def asked(self) -> model.AskedWindow:
        """Return the window as the flow takes it."""
        return model.AskedWindow(
            self.reason,
            self.names,
            self.where,
            self.site,
            self.begins_at,
            self.ends_at,
            self.drain,
            self.stay_out,
        )


class MaintenancePatch(Body):
    """Changes to a maintenance window. A field that is left out stays as it is."""

    begins_at: Moment = Field(default=None, description="not of a window that has begun")
    ends_at: Moment = Field(default=None, description="null: when the window is ended by hand")
    reason: _Reason | None = Field(default=None, description="null: as it is")
    stay_out: bool | None = Field(default=None, description="null: as it is")

    @property
    def changes(self) -> dict[str, object]:
        """Return the changes that the patch names."""
        times = {"begins_at": self.begins_at, "ends_at": self.ends_at}
        others = {"reason": self.reason, "stay_out": self.stay_out}
        return {name: at for name, at in times.items() if name in self.model_fields_set} | {
            name: value for name, value in others.items() if value is not None
        }


class MaintenanceHolder(ReplyOf[model.WindowHolder], whole=True):
    """A vcluster with nodes in a window. `nodes`: number of the `held` nodes that the vcluster has;
    `lost`: number of these that are taken from it, because its lease ends too late; `leaves_at`:
    when the last of them leaves; null: not known."""


class Maintenance(Reply):
    """A maintenance window.

    state    planned, running, over or cancelled
    what     the window's nodes, described for people
    nodes    number of nodes; free: held by nobody; out: out of service now
    empty_at  when nobody holds any of them, as leases tell; null: not known
    holders  vclusters with nodes in it, of your groups
    late     vclusters whose reservations find no nodes because of it; only in the reply to a check,
             a creation or a change
    """

    id: int
    state: Literal["planned", "running", "over", "cancelled"]
    what: str
    names: str
    where: str
    begins_at: float | None
    ends_at: float | None
    reason: str
    drain: bool
    stay_out: bool
    created_at: float
    created_by: str
    nodes: int
    out: int
    free: int
    empty_at: float | None
    holders: list[MaintenanceHolder]
    late: list[str]

    @classmethod
    def of(cls, view: model.WindowView) -> Maintenance:
        return cls.read_from(view.window, view, where=view.window.filter, late=list(view.late))


MAINTENANCE = (
    route(
        "GET /maintenance",
        ANYBODY,
        "List maintenance windows: those to come, those that run, and those of the last 30 days",
        lambda a: partial(maintenance.every, site=a.site, now=a.now, groups=a.who.groups),
        reply=listed(Maintenance, "Maintenance windows, by their beginnings."),
    ),
    numbered_route(
        "GET /maintenance/{id}",
        ANYBODY,
        "Show a maintenance window",
        lambda a: partial(
            maintenance.show,
            window_id=number(a.names.id),
            site=a.site,
            now=a.now,
            groups=a.who.groups,
        ),
        reply=Maintenance,
    ),
    route(
        "POST /maintenance",
        ADMINS,
        "Plan maintenance of nodes, or drain them",
        lambda a: partial(maintenance.plan, context=a.context, asked=a.body.asked),
        reply=Maintenance,
        body=MaintenanceCreate,
        makes="/maintenance/{id}",
        action="maintenance plan",
    ),
    route(
        "POST /maintenance/check",
        ADMINS,
        "Show what maintenance would take from whom, and when nobody holds the nodes; nothing is"
        " changed",
        lambda a: partial(maintenance.check, context=a.context, asked=a.body.asked),
        reply=Maintenance,
        body=MaintenanceCreate,
        quiet=True,
    ),
    numbered_route(
        "PATCH /maintenance/{id}",
        ADMINS,
        "Move a maintenance window, or change its reason",
        lambda a: partial(
            maintenance.change,
            context=a.context,
            window_id=number(a.names.id),
            changes=a.body.changes,
        ),
        reply=Maintenance,
        body=MaintenancePatch,
        action="maintenance change",
    ),
    numbered_route(
        "DELETE /maintenance/{id}",
        ADMINS,
        "Cancel a maintenance window that has not begun, or end one that runs: nodes come back",
        lambda a: partial(maintenance.end, context=a.context, window_id=number(a.names.id)),
        reply=Maintenance,
        action="maintenance end",
    ),
)
