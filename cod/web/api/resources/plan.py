"""The next pass of the resource manager: its actions, the reasons why a request waits, and the
prospects of a new request."""

from __future__ import annotations

from functools import partial
from typing import Any

from pydantic import Field

from cod.flows.people.access import RequiredRight
from cod.flows.scheduler import explain, plan
from cod.model import Right, Site
from cod.pool import Tx
from cod.states import RequestState
from cod.web.api.models import REVISION, Body, Reply, ReplyOf, Requirements, Seconds
from cod.web.api.resources.energy import Moment
from cod.web.api.resources.requests import length
from cod.web.api.resources.server import RemedyReply
from cod.web.api.routes import ADMINS, Call, Names, listed, number, numbered_route, route, see

OTHERS = explain.OTHERS


class PlannedReply(Reply):
    """One action that the next pass of the resource manager would take. Fields that do not concern
    the action are null.

    kind: warn, drain, expire, end, seize, grant, ease, take, hold, reserve, reject, wait, wake or
    sleep; for take, ease and seize, `vcluster` loses nodes; for hold and reserve, nodes are kept
    for `vcluster`.
    """

    kind: str
    vcluster: str | None
    request: int | None
    nodes: int
    type: str | None
    block: str | None
    subnet: str | None
    about: str

    @classmethod
    def of(cls, planned: Any) -> PlannedReply:
        texts = {
            name: getattr(planned, name) or None for name in ("vcluster", "type", "block", "subnet")
        }
        return cls.read_from(planned, request=planned.request_id, **texts)


class Lack(Reply):
    """Reasons why nodes of a type do not match a tuple of the request. `position` counts tuples
    from 0."""

    position: int
    phrases: list[str]


class TypeFit(Reply):
    """A node type as the request sees it, with the number of its nodes in the site, free, coming,
    and held by vclusters."""

    name: str
    cost: float
    site: int
    free: int
    coming: int
    held: int
    lacks: list[Lack]


class AheadReply(Reply):
    """A request that comes before this one and needs nodes of the same types. `request` is null,
    and `vcluster` is 'a vcluster of another group', if the caller may not see them. `priority` is
    null if the request's vcluster is preemptible."""

    request: int | None
    vcluster: str
    priority: int | None
    wanted: int


class HeldReply(Reply):
    """Nodes that match and that a vcluster holds. `takeable` of them may be taken for the request
    now.

    vcluster: its name, or 'a vcluster of another group'; priority: null if the vcluster is
    preemptible; protected: what protects the other nodes: priority, inertia, floor, leaving or
    draining; until: when that ends, if known.
    """

    vcluster: str
    priority: int | None
    count: int
    takeable: int
    protected: str | None
    until: float | None
    sentence: str


class ChanceReply(Reply):
    """An event that frees, or may free, `count` nodes that match. `at` is null if its time is not
    known."""

    at: float | None
    count: int
    sentence: str


class ExplainReply(Reply):
    """Reasons why a request waits, or its outcome; the lists are empty for one that does not wait.

    code: what the next pass makes of it: granted, coming, taking, busy, limit, ports, impossible or
    now; else its state.
    """

    request: int
    vcluster: str
    state: RequestState
    code: str
    sentence: str
    reason: str = Field(description="the sentence's beginning: why it waits, or what became of it")
    wanted: int = Field(description="nodes")
    fitting: int = Field(description="nodes of the site that would do for some of its tuples")
    free: int
    coming: int
    own: int = Field(description="that its vcluster has already")
    aside: int = Field(description="in quarantine, or off where nothing can switch them on now")
    portless: int = Field(
        description=(
            "further nodes that match, but whose switch port is not known or cannot be "
            "changed: the vcluster is isolated"
        )
    )
    position: int = Field(
        description=(
            "place among those that wait for the same types, the first is 1; 0: it does not wait"
        )
    )
    ahead: list[AheadReply]
    types: list[TypeFit]
    holders: list[HeldReply]
    chances: list[ChanceReply]
    remedies: list[RemedyReply] = Field(
        description=(
            "what would have helped one that was rejected, or would help one that waits: to be"
            " granted in the next pass where `at_once`, else at all"
        )
    )
    at_once: bool
    start: str = Field(
        description="when it is expected to start, and what would make it sooner; '': not told yet"
    )

    @classmethod
    def of(cls, found: explain.Why) -> ExplainReply:
        """Return the reply from the request's view, its explanation, and the names of vclusters
        that may be seen, by id."""
        view, why, names = found.request, found.why, found.names
        ahead = [
            AheadReply.read_from(
                one,
                request=one.request_id if one.vcluster_id in names else None,
                vcluster=names.get(one.vcluster_id, OTHERS),
            )
            for one in why.ahead
        ]
        return cls.read_from(
            found,
            why,
            view,
            request=view.request.id,
            state=view.request.state,
            ahead=ahead,
            types=[_fit(one) for one in why.types],
            holders=[_held(one) for one in why.holders],
        )


class MatchAsk(Body):
    """A possible request: for a new vcluster of `group`, or for more nodes for `vcluster`. `name`
    and `lease` are those of the new vcluster."""

    count: int = Field(ge=1, le=100_000)
    attributes: Requirements = Field(
        default="", description="requirements (XML); empty for any node"
    )
    template: str = Field(default="", max_length=REVISION, description="empty: any")
    group: str = Field(default="site", min_length=1, max_length=63)
    vcluster: str = Field(default="", max_length=63)
    spread: bool = Field(default=False, description="the nodes may be of several types and blocks")
    name: str = Field(default="", max_length=63, description="empty: not chosen yet")
    lease: Seconds | None = Field(default=None, description="seconds; null: the group's default")
    isolated: bool | None = Field(
        default=None,
        description="the new vcluster is in a VLAN of its own; null: as the site's rules say",
    )
    preemptible: bool = Field(default=False, description="for a new vcluster that is preemptible")
    starts_at: Moment = Field(
        default=None,
        description=(
            "reserve the nodes from then on, for `lease` seconds or until `ends_at`: seconds since"
            " the epoch; null: as soon as possible"
        ),
    )
    ends_at: Moment = Field(
        default=None, description="of a reservation, in place of `lease`: when it ends"
    )


class ReservationOfferReply(ReplyOf[explain.ReservationOffer], whole=True):
    """A reservation that would be accepted: its number of nodes and its start."""


class MatchReply(Reply):
    """Prospects of a request, which was not written anywhere.

    granted      the next pass would grant the request, or the reservation would be accepted; else
                 `code` and `sentence` say why not, as for a waiting request
    matching     nodes of the site that match; `free` of them are free now, `coming` soon
    portless     how many of these an isolated vcluster cannot have, because their switch port is
                 not known or cannot be changed
    room         nodes for which the vcluster has addresses
    expected_at  when enough leases, reclaims and immunity will have ended; null: they do not tell,
                 or never
    remedies     changes that would make an impossible request possible, the largest first
    faults       why a vcluster with that name and lease would be refused, by field
    proposals    reservations that would be accepted in place of the refused one: fewer nodes from
                 the same start, or all nodes from a later one

    For a reservation, `free` of a type counts the nodes that are free for the whole time.
    """

    granted: bool
    code: str
    sentence: str
    wanted: int
    matching: int
    portless: int
    free: int
    coming: int
    room: int
    expected_at: float | None
    types: list[TypeFit]
    chances: list[ChanceReply]
    remedies: list[RemedyReply]
    faults: dict[str, str]
    proposals: list[ReservationOfferReply]

    @classmethod
    def of(cls, found: explain.Match) -> MatchReply:
        why = found.why
        return cls.read_from(
            found,
            why,
            granted=why.code == "granted",
            matching=sum(fit.site for fit in why.types if not fit.lacks),
            types=[_fit(one) for one in why.types],
        )


def _fit(fit: Any) -> TypeFit:
    lacks = [Lack(position=at, phrases=list(why)) for at, why in fit.lacks]
    return TypeFit.read_from(fit, lacks=lacks)


def _held(held: Any) -> HeldReply:
    return HeldReply.read_from(held, vcluster=held.name, protected=held.protected or None)


def _explained(
    tx: Tx, *, request_id: int, site: Site, groups: frozenset[int] | None, now: float
) -> explain.Why:
    seen = plan.look(tx, site, now)
    return explain.waits(
        tx,
        request_id=request_id,
        scene=seen.scene,
        snapshot=seen.site,
        site=site,
        groups=groups,
        now=now,
    )


def _matched(
    tx: Tx,
    *,
    asked: explain.HypotheticalRequest,
    site: Site,
    groups: frozenset[int] | None,
    now: float,
) -> explain.Match:
    seen = plan.look(
        tx,
        site,
        now,
        isolated=asked.isolated or bool(asked.vcluster),
        times=asked.starts_at is not None,
    )
    return explain.match_(
        tx, asked=asked, scene=seen.scene, snapshot=seen.site, site=site, groups=groups, now=now
    )


def _supposed(ask: Call[Names, MatchAsk]) -> explain.HypotheticalRequest:
    body = ask.body
    isolated = ask.site.isolates and not body.vcluster if body.isolated is None else body.isolated
    return explain.HypotheticalRequest(
        count=body.count,
        attributes=body.attributes,
        template=body.template,
        group=body.group,
        vcluster=body.vcluster,
        spread=body.spread,
        name=body.name,
        lease=length(body.lease, body.starts_at, body.ends_at),
        isolated=isolated,
        preemptible=body.preemptible,
        starts_at=body.starts_at,
    )


def _asks(ask: Call[Names, MatchAsk]) -> list[RequiredRight]:
    """Return the rights of everybody in the group, or in the vcluster's group. The template is one
    of that group's, or the site's."""
    whose = ("vcluster", ask.body.vcluster) if ask.body.vcluster else ("group", ask.body.group)
    return [RequiredRight(Right.SEE, *whose, field=whose[0])]


PLAN = (
    route(
        "GET /plan",
        ADMINS,
        "Show what the resource manager would do in its next pass",
        lambda a: partial(plan.preview, site=a.site, now=a.now),
        reply=listed(
            PlannedReply,
            "Actions that a pass would take now, in order. None of them has been done.",
            "PlanReply",
        ),
    ),
    numbered_route(
        "GET /requests/{id}/explain",
        see("request"),
        "Say why a request waits, who holds what it needs, and what would free it",
        lambda a: partial(
            _explained, request_id=number(a.names.id), site=a.site, groups=a.who.groups, now=a.now
        ),
        reply=ExplainReply,
    ),
    route(
        "POST /match",
        _asks,
        "Forecast a request without making it",
        lambda a: partial(
            _matched, asked=_supposed(a), site=a.site, groups=a.who.groups, now=a.now
        ),
        reply=MatchReply,
        body=MatchAsk,
        quiet=True,
    ),
)
