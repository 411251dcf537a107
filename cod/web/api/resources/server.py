"""The server itself: its health, its hosts, faults, and the nodes' lifecycle."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from importlib.metadata import version
from typing import Annotated, Any, Literal

from pydantic import Field

from cod import model, states
from cod.flows import servers, views
from cod.flows.nodes import faults
from cod.flows.people.access import DryRun, StoppedWork
from cod.states import ConflictKind, NodeEvent, NodeState
from cod.web.api.event_texts import POSITION
from cod.web.api.models import Items, OneOrSeveral, Paged, Query, Reply, ReplyOf
from cod.web.api.routes import ADMINS, ANYBODY, Shaped, as_it_is, listed, nothing, paged, route


class ConflictReply(Reply):
    """A conflict of addresses or identities."""

    id: int
    at: float
    kind: str
    subnet: str | None
    address: str | None
    mac: str | None
    about: str

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> ConflictReply:
        own = {key: row[key] for key in cls.model_fields}
        return cls(
            **own | {"address": None if row["address"] is None else model.dotted(row["address"])}
        )


class ConflictQuery(Paged):
    kind: Annotated[str | None, OneOrSeveral(ConflictKind)] = Field(default=None, max_length=200)
    sort: Literal["id", "-id"] = "-id"


class FaultReply(ReplyOf[model.OutsideFault], whole=True):
    """A part of the site outside COD that does not work.

    kind     switch, switch-port, file-server, power-control, found-off, image-server or dhcp
    since    when the fault began, or, for a switch, when it last answered; null: not known
    ended    when the fault ended; null: it lasts
    affects  nodes, or volumes of a file server
    waits    vclusters that hold these or wait for them
    """


class FailedNodeReply(ReplyOf[model.FailedNode], whole=True):
    """A node that is out of service because something failed."""


class FailureGroupReply(ReplyOf[model.FailureGroup], whole=True):
    """Nodes that failed alike. `key`: what they have in common: the reason without its numbers, the
    block, or the template; '' for none."""

    nodes: list[FailedNodeReply]


class FailureQuery(Query):
    """The key by which failed nodes are grouped."""

    by: Literal["reason", "rack", "template"] = "reason"


class ServerReply(Reply):
    """A host of the site's servers.

    parts            parts that run on it: edge, images, manager, web
    silent           parts that have not been seen for a minute
    database_schema  the schema that its program was written for
    seen             when it last reported that it runs
    manages          the resource manager runs on it
    """

    name: str
    addresses: list[str]
    parts: list[str]
    silent: list[str]
    version: str
    database_schema: str
    started: float
    seen: float
    manages: bool

    @classmethod
    def of(cls, server: model.ServerView) -> ServerReply:
        values = asdict(server)
        return cls(started=values.pop("started_at"), seen=values.pop("seen_at"), **values)


class DatabaseHostReply(Reply):
    """A host of the database, as it described itself in the last seconds.

    name        HOST:PORT, as the site file names it
    role        galera, primary (accepts writes) or replica (read-only); null: it did not answer
    node_state  of a Galera node: Synced if it serves; null: the host is in no cluster
    is_writer   the site's servers write to it
    behind      seconds of the other hosts' newest commits that it lacks; null: not known. The
                server's parts write every 15 s, so less than that says nothing
    reason      why it did not answer; null: it did
    """

    name: str
    role: Literal["galera", "primary", "replica"] | None
    node_state: str | None
    is_writer: bool
    behind: float | None
    reason: str | None

    @classmethod
    def of(cls, host: model.DatabaseHost) -> DatabaseHostReply:
        return cls(
            name=host.name,
            role=host.role or None,
            node_state=host.node_state or None,
            is_writer=host.is_writer,
            behind=host.behind,
            reason=host.reason or None,
        )


class ServerList(Items[ServerReply]):
    """The hosts of the site's servers.

    database_writer  the host that is the database's writer; null if the database has one host
    database         the database's hosts; empty if it is a file
    """

    database_writer: str | None
    database: list[DatabaseHostReply]

    @classmethod
    def of(cls, found: model.ServersView) -> ServerList:
        items = [ServerReply.of(each) for each in found.items]
        database = [DatabaseHostReply.of(each) for each in found.database]
        return cls(items=items, database_writer=found.database_writer or None, database=database)


class Arrow(Reply):
    """A transition of the lifecycle."""

    state: NodeState
    event: NodeEvent
    to: NodeState


class StateReply(Reply):
    """A state of the lifecycle. `deadline` in seconds; null: the state has none."""

    name: NodeState
    kind: Literal["stable", "motion", "final"]
    about: str
    deadline: float | None
    retries: int


class Lifecycle(Reply):
    """The nodes' lifecycle, which is part of this server's program."""

    states: list[StateReply]
    arrows: list[Arrow]


class Health(Reply):
    """The health of the server, which answers, and of its database. `counts` by thing and label;
    empty for callers without a token."""

    ok: bool
    counts: dict[str, dict[str, int]]


class ServerInfo(Reply):
    """Name, version and ports of this server."""

    name: str
    domain: str
    version: str
    subnets: list[str]
    http_port: int
    confd_port: int


class EventQuery(Query):
    """Position at which to begin in the events."""

    after: str | None = Field(
        default=None,
        pattern=POSITION,
        description="last id of a stream that was followed; left out: only new events",
    )


class RemedyReply(Reply):
    """A change that would make an impossible request possible: its number of nodes, and whether
    they may be of several types and blocks."""

    count: int
    spread: bool


class FieldFault(Reply):
    """Error in one part of the input."""

    field: str
    detail: str


class Problem(Reply):
    """An error (RFC 9457). `code` is stable; `field` names the part of the input at fault, if there
    is one; `errors` has all parts at fault, and `field` and `detail` the first of them."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    field: str | None = None
    errors: list[FieldFault] = Field(default=[], description="of 422: all that is wrong")
    remedies: list[RemedyReply] = Field(
        default=[], description="of 'impossible': what the site could meet, the largest first"
    )


class DryRunQuery(Query):
    """Query string that every change takes."""

    dry_run: bool = Field(
        default=False,
        description="Change nothing, and answer 200 with a `DryRunReply`: what would change, and"
        " whose work would stop. What the change would be refused for, this is, too",
    )


class StoppedWorkReply(ReplyOf[StoppedWork], whole=True):
    """Nodes in use of a virtual cluster whose work would stop."""

    nodes: list[str]


class DryRunReply(ReplyOf[DryRun], whole=True):
    """Effect that a change would have: values before and after, as the audit stores them (null for
    a thing that does not exist), and the work that would stop."""

    stops: list[StoppedWorkReply]


def _health(counts: list[tuple[str, str, int]]) -> Health:
    by_thing: dict[str, dict[str, int]] = {}
    for thing, label, count in counts:
        by_thing.setdefault(thing, {})[label] = count
    return Health(ok=True, counts=by_thing)


def lifecycle() -> Lifecycle:
    """Return the lifecycle's table as a reply."""
    rules = [
        StateReply.model_validate(
            {
                "name": state,
                "kind": rule.kind,
                "about": rule.about,
                "deadline": rule.deadline,
                "retries": rule.retries,
            }
        )
        for state, rule in states.NODE_RULES.items()
    ]
    arrows = [
        Arrow(state=state, event=event, to=to)
        for (state, event), to in states.NODE_TRANSITIONS.items()
    ]
    return Lifecycle(states=rules, arrows=arrows)


SERVER = (
    route(
        "GET /conflicts",
        ADMINS,
        "List address and identity conflicts, newest first",
        lambda a: partial(views.conflict_list, page=a.query.page, kind=a.query.kind),
        reply=paged(ConflictReply, "The newest conflicts first."),
        query=ConflictQuery,
    ),
    route(
        "GET /faults",
        ADMINS,
        "List faults of switches, file servers, BMCs and other DHCP servers",
        lambda a: partial(faults.every, now=a.now),
        reply=listed(
            FaultReply,
            "Faults outside of COD: those that last, then those that ended in the last day; the"
            " newest first.",
        ),
    ),
    route(
        "GET /faults/nodes",
        ADMINS,
        "List nodes that failed and are out of service, grouped by reason, rack or template",
        lambda a: partial(faults.failed, by=a.query.by),
        reply=listed(
            FailureGroupReply, "Nodes that failed, the largest group first.", "FailureGroups"
        ),
        query=FailureQuery,
    ),
    route(
        "GET /states",
        ANYBODY,
        "Show the nodes' lifecycle",
        lambda a: nothing(lifecycle()),
        reply=as_it_is(Lifecycle),
    ),
    route(
        "GET /health",
        ANYBODY,
        "Check that the server and its database answer",
        lambda a: views.alive if a.is_stranger else views.counts,
        reply=Shaped(Health, _health),
        open=True,
    ),
    route(
        "GET /server",
        ANYBODY,
        "Show name and version of the server",
        lambda a: nothing(
            ServerInfo(
                name=a.site.name,
                domain=a.site.domain,
                version=version("cod"),
                http_port=a.site.boot.http_port,
                subnets=[each.name for each in a.site.subnets],
                confd_port=a.site.boot.confd_port,
            )
        ),
        reply=as_it_is(ServerInfo),
    ),
    route(
        "GET /servers",
        ADMINS,
        "List the hosts of the site's servers, and the parts that run there",
        lambda a: partial(servers.every, now=a.now, database=a.database),
        reply=Shaped(ServerList, ServerList.of),
    ),
)
