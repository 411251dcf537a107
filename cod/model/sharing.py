"""Rows about groups and what they have and ask for: vclusters, requests, reclaims, VCMs, notices.

Names of attributes are the columns' names; `store/tables.py` explains each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

from cod.choices import DeliveryState, NoticeFormat
from cod.model.addresses import dotted
from cod.model.described import About, FieldKind, FieldLevel, Undescribed
from cod.model.posix import HIGHEST, LOWEST
from cod.model.records import record
from cod.model.rights import Right
from cod.model.volumes import AskedVolume


@dataclass(frozen=True, slots=True)
class Group:
    """A row of `groups`.

    webhook_events  what is posted to its webhook: 'notices', 'vclusters', 'nodes', with spaces
                    between
    webhook_turn    how often its webhook's secret was changed
    shares          what it is to have of the site, in proportion to the other groups'
    guarantee       nodes that are not taken from it for others
    node_limit      nodes that it may hold at once; None: the site's default
    hours_limit     node-hours that it may use in a month; None: no limit
    parent_id       the group that it is a subgroup of
    faded_usage     node-seconds, weighted by the cost of their types, that have not faded yet, at
                    `faded_at`
    odd_turn        the last turn for which it has been given an odd node of its share
                    (`policy.sharing.turns`)
    user_shares     its requests are ranked by what their users have used
                    (`policy.sharing.users`)
    """

    id: Undescribed[int]
    name: Annotated[str, About("Group")]
    priority: Annotated[
        int,
        About(
            "Priority",
            FieldKind.NUMBER,
            "priority of its requests; a higher one goes first",
            set_by=Right.ADMIN,
            least=-1_000_000,
            most=1_000_000,
        ),
    ] = 0
    default_lease: Annotated[
        float | None,
        About(
            "Default lease",
            FieldKind.SPAN,
            "lease of its new vclusters",
            none="the site's",
            example="7d",
            set_by=Right.MANAGE,
        ),
    ] = None
    max_lease: Annotated[
        float | None,
        About(
            "Longest lease",
            FieldKind.SPAN,
            "longest lease of its vclusters, extensions included",
            none="no limit",
            example="30d",
            set_by=Right.ADMIN,
        ),
    ] = None
    created_at: Annotated[float, About("Created", FieldKind.MOMENT, level=FieldLevel.WIDE)] = 0.0
    gid: Annotated[
        int | None,
        About(
            "GID",
            FieldKind.NUMBER,
            "POSIX number on nodes; files keep the old number when it changes",
            set_by=Right.ADMIN,
            least=LOWEST,
            most=HIGHEST,
        ),
    ] = None
    grace: Annotated[
        float | None,
        About(
            "Grace",
            FieldKind.SPAN,
            "time to give nodes back after a reclaim, as far as the site allows",
            none="the site's",
            example="2h",
            set_by=Right.MANAGE,
            least=0,
        ),
    ] = None
    wipe: Annotated[
        Literal["zero", "purge"] | None,
        About(
            "Erasure",
            FieldKind.CHOICE,
            "how the disks of nodes that it has had are erased at least: zero, or purge (disks that"
            " can do so erase themselves first); the strictest of site, group and template holds",
            none="as the site says",
            set_by=Right.MANAGE,
        ),
    ] = None
    image_quota: Annotated[
        int | None,
        About(
            "Image quota",
            FieldKind.SIZE,
            "space for its images and open uploads",
            none="the site's",
            example="500GB",
            set_by=Right.ADMIN,
        ),
    ] = None
    volume_quota: Annotated[
        int | None,
        About(
            "Volume quota",
            FieldKind.SIZE,
            "space for its volumes together",
            none="the site's",
            example="2TB",
            set_by=Right.ADMIN,
        ),
    ] = None
    email: Annotated[
        str,
        About(
            "E-mail",
            about="addresses for notices, separated by commas",
            none="nobody",
            set_by=Right.MANAGE,
            longest=6000,
        ),
    ] = ""
    webhook: Annotated[
        str,
        About(
            "Webhook",
            about="URL that notices are posted to, http or https",
            none="no webhook",
            set_by=Right.MANAGE,
            longest=2000,
        ),
    ] = ""
    budget: Annotated[
        float | None,
        About(
            "Budget of a month",
            FieldKind.NUMBER,
            "money, in the site's currency, for node-hours and energy of a month; the group is told"
            " at 80 and 100 per cent, and nothing is stopped",
            none="none",
            set_by=Right.ADMIN,
            least=0,
        ),
    ] = None
    created_by: Annotated[
        str | None,
        About(
            "Created by",
            about="the user who created it by the site's rule",
            none="an administrator",
        ),
    ] = None
    webhook_format: Annotated[
        NoticeFormat,
        About(
            "Webhook's format",
            FieldKind.CHOICE,
            "what the webhook expects to be posted",
            set_by=Right.MANAGE,
            level=FieldLevel.WIDE,
        ),
    ] = NoticeFormat.JSON
    webhook_events: Undescribed[str] = "notices"
    webhook_turn: Undescribed[int] = 0
    shares: Undescribed[float] = 1.0
    guarantee: Undescribed[int] = 0
    node_limit: Undescribed[int | None] = None
    hours_limit: Undescribed[float | None] = None
    parent_id: Undescribed[int | None] = None
    faded_usage: Undescribed[float | None] = None
    faded_at: Undescribed[float | None] = None
    odd_turn: Undescribed[int | None] = None
    user_shares: Undescribed[bool] = False

    @property
    def events(
        self,
    ) -> Annotated[
        tuple[Literal["notices", "vclusters", "nodes"], ...],
        About(
            "Events",
            FieldKind.CHOICE,
            "what is posted to the webhook: notices, what happens to vclusters, to nodes",
            set_by=Right.MANAGE,
            level=FieldLevel.WIDE,
            longest=3,
        ),
    ]:
        """`webhook_events`, one by one."""
        named: Any = self.webhook_events.split()
        return tuple(named)


@dataclass(frozen=True, slots=True)
class GroupUser:
    """Somebody who shares a group's nodes with the other users of it.

    user_id      0: whoever created vclusters whose creator is not known
    shares       in proportion to the other users'; 1 for who is not in the group
    faded_usage  node-seconds, as of `Group`, at `faded_at`
    """

    group_id: int
    user_id: int
    shares: float = 1.0
    faded_usage: float = 0.0
    faded_at: float = 0.0


@dataclass(frozen=True, slots=True)
class TypeTerms:
    """A row of `group_type_terms`: what a group has been given of the nodes of one type.

    guarantee  nodes that are not taken from it for others
    shares     what it is to have of them, in proportion to the other groups'; None: as of the site
    """

    guarantee: int = 0
    shares: float | None = None


@dataclass(frozen=True, slots=True)
class ApiToken:
    """A row of `api_tokens` without its digest. `scope` is 'admin', 'read', 'metrics' or
    'calendar', of a user's 'write', 'read' or 'calendar'."""

    id: int
    name: str
    scope: str
    created_at: float
    expires_at: float | None
    user_id: int | None = None
    group_id: int | None = None


@record(frozen=True, slots=True)
class Vcluster:
    """A row of `vclusters`."""

    id: Annotated[
        int,
        About(
            "Id",
            FieldKind.NUMBER,
            "tells it from others that had its name: /vclusters/NAME@ID is this one, even after it"
            " has ended",
            level=FieldLevel.DETAIL,
        ),
    ]
    name: Annotated[str, About("Vcluster")]
    group_id: Undescribed[int]
    state: Annotated[str, About("State", FieldKind.STATE)]
    template_id: Undescribed[int]
    size: Annotated[int, About("Nodes", FieldKind.NUMBER)]
    creation_size: Annotated[int, About("Created with", FieldKind.NUMBER, level=FieldLevel.DETAIL)]
    attributes: Annotated[str, About("Requirements", level=FieldLevel.DETAIL)]
    subnet: Annotated[str | None, About("Subnet", level=FieldLevel.WIDE)]
    lease_time: Annotated[float, About("Lease", FieldKind.SPAN, level=FieldLevel.WIDE)]
    expires_at: Annotated[
        float | None, About("Lease ends", FieldKind.MOMENT, level=FieldLevel.WIDE)
    ]
    drain_until: Annotated[
        float | None,
        About(
            "Drained at",
            FieldKind.MOMENT,
            "set: its lease has run out, and at that time its nodes are taken back",
            level=FieldLevel.DETAIL,
        ),
    ]
    warned: Undescribed[float | None]
    ready_at: Annotated[
        float | None,
        About(
            "Ready",
            FieldKind.MOMENT,
            "when all its nodes were first active, and all that they mount was there",
            none="not yet",
            level=FieldLevel.DETAIL,
        ),
    ]
    created_at: Annotated[float, About("Created", FieldKind.MOMENT, level=FieldLevel.WIDE)]
    ended_at: Annotated[float | None, About("Ended", FieldKind.MOMENT, level=FieldLevel.DETAIL)]
    leased_at: Undescribed[float | None] = None
    isolated: Annotated[bool, About("Isolated", FieldKind.FLAG, level=FieldLevel.WIDE)] = False
    preemptible: Annotated[
        bool,
        About(
            "Preemptible",
            FieldKind.FLAG,
            "any other request may take its nodes, down to none, with the grace of a reclaim; it"
            " may have nodes that are held for others until then",
            set_by=Right.USE,
            level=FieldLevel.WIDE,
        ),
    ] = False
    network_prefix: Undescribed[int | None] = None
    description: Annotated[
        str,
        About(
            "Description",
            about="what the cluster is for",
            none="none",
            set_by=Right.USE,
            level=FieldLevel.WIDE,
            longest=500,
        ),
    ] = ""
    tags: Annotated[
        str,
        About(
            "Tags",
            about="words to find the cluster by, with spaces between",
            none="none",
            example="paper-2 urgent",
            set_by=Right.USE,
            level=FieldLevel.WIDE,
            longest=200,
        ),
    ] = ""


@dataclass(frozen=True, slots=True)
class VclusterNetwork:
    """A row of `vcluster_networks`: the VLAN and the subnet of an isolated vcluster, from its first
    address on.

    server_address  COD's, by which its nodes reach it; router_address: their default router, None:
                    they have none
    """

    vlan: int
    vcluster_id: int
    first_address: int
    prefix: int
    server_address: int
    router_address: int | None

    @property
    def last_address(self) -> int:
        """Return the subnet's last address, its broadcast address."""
        return self.first_address + (1 << 32 - self.prefix) - 1

    @property
    def subnet(self) -> str:
        """Return the name by which bindings and listings know the subnet."""
        return f"vlan-{self.vlan}"

    def __str__(self) -> str:
        return f"{dotted(self.first_address)}/{self.prefix}"


@dataclass(frozen=True, slots=True)
class Assignment:
    """What a node is to run for its holder: a template's id, full `name` and `document`, and the
    holder's group.

    hardware  canonical attributes of the node's type; '' while it has none
    requires  requirements (XML or '') of the tuples that it may have been granted for: it has to
              meet one of them
    """

    template_id: int
    document: str
    group_id: int
    hardware: str = ""
    name: str = ""
    requires: tuple[str, ...] = ()


@record(frozen=True, slots=True)
class Request:
    """A row of `node_requests` with its tuples, in order.

    source_id  of a move: the vcluster whose nodes it gets; None: it is no move
    deadline   of a move: when nodes that `source_id` still holds are taken
    granted    of a move: nodes that its vcluster has got so far
    starts_at, duration  of a reservation in advance: when it begins, and for how many seconds;
                         None: it is none
    """

    id: Annotated[int, About("Id", FieldKind.NUMBER)]
    vcluster_id: Undescribed[int]
    kind: Annotated[str, About("Kind")]
    state: Annotated[str, About("State", FieldKind.STATE)]
    reason: Annotated[str, About("Reason", about="why it waits, is stopped or was rejected")]
    priority: Annotated[int, About("Priority", FieldKind.NUMBER)]
    submitted_at: Annotated[float, About("Submitted", FieldKind.MOMENT)]
    decided_at: Annotated[float | None, About("Decided", FieldKind.MOMENT)]
    may_wait: Annotated[
        bool,
        About(
            "May wait",
            FieldKind.FLAG,
            "false: it is rejected unless it can be met at once",
            level=FieldLevel.WIDE,
        ),
    ] = True
    may_spread: Annotated[
        bool,
        About(
            "May spread",
            FieldKind.FLAG,
            "the nodes of one tuple may be of several types and blocks",
            level=FieldLevel.WIDE,
        ),
    ] = False
    source_id: Undescribed[int | None] = None
    deadline: Undescribed[float | None] = None
    granted: Undescribed[int] = 0
    starts_at: Annotated[
        float | None,
        About("Starts", FieldKind.MOMENT, "of a reservation in advance; null: it is none"),
    ] = None
    duration: Annotated[
        float | None,
        About("Lasts", FieldKind.SPAN, "of a reservation in advance", level=FieldLevel.WIDE),
    ] = None
    tuples: Undescribed[tuple[RequestTuple, ...]] = ()


@dataclass(frozen=True, slots=True)
class RequestTuple:
    """One (count, attributes, template) of a request; `attributes` is a requirements document (XML)
    or ''."""

    count: int
    attributes: str
    template_id: int


@dataclass(frozen=True, slots=True)
class Series:
    """A row of `reservation_series`: a virtual cluster is reserved for each of its starts.

    asked      what else each of them is created with: fields of `AskedVcluster`, as JSON
    starts_at  the first start; duration: seconds of each lease
    zone       the time zone whose clock the starts keep; days: of the week, 'mon' …
    count      starts in all; ends_at: no start is later; None: no limit
    """

    id: int
    name: str
    group_id: int
    asked: str
    starts_at: float
    duration: float
    zone: str
    days: tuple[str, ...]
    count: int | None
    ends_at: float | None
    created_at: float


@dataclass(frozen=True, slots=True)
class Occurrence:
    """A row of `series_occurrences`: a start of a series that was decided.

    vcluster  the name of its virtual cluster
    refused   why it could not be reserved, as a sentence; '': it was
    """

    series_id: int
    starts_at: float
    vcluster: str
    refused: str = ""


SeriesStart = Literal["reserved", "late", "running", "ended", "cancelled", "refused"]


@dataclass(frozen=True, slots=True)
class OccurrenceView:
    """A start of a series that was decided, and what has become of its virtual cluster.

    state  reserved: it starts then; late: that time is over, and it has not started; running;
           ended: its lease is over; cancelled: it was ended before it started; refused: it could
           not be reserved, for `refused`
    """

    starts_at: float
    vcluster: str
    refused: str
    state: SeriesStart


@dataclass(frozen=True, slots=True)
class SeriesView:
    """A series with its group's name.

    nodes        of each of its vclusters; template: of the first ones
    occurrences  its starts to come that were decided; past: those of the last four weeks
    next_start   the next one, decided or not; None: none is to come
    """

    series: Series
    group: str
    nodes: int
    template: str
    occurrences: tuple[OccurrenceView, ...]
    past: tuple[OccurrenceView, ...]
    next_start: float | None


@dataclass(frozen=True, slots=True)
class AskedTuple:
    """A tuple as it is asked for. '' stands for what the vcluster was created with, or, in a
    request for a new one, for what its first tuple asks for.

    attributes  requirements (XML, schema/requires.rng)
    template    'name' or 'name@revision'
    """

    count: int
    attributes: str = ""
    template: str = ""


@dataclass(frozen=True, slots=True)
class AskedVcluster:
    """A vcluster as it is asked for.

    size        of its first nodes; all of them count for its size, and for its creation size
    template    'name' or 'name@revision'
    attributes  requirements of its nodes (XML, schema/requires.rng), '' for any
    also        nodes of other kinds
    lease       seconds asked for; None for the group's default
    spread      its nodes may be of several types and blocks; wait: False: it is rejected if it
                cannot be had at once
    network_size  prefix length of an isolated one's subnet; None: the site's default, or what so
                  many nodes need
    mounts      volumes that it mounts; those of its group may be named without it
    starts_at   reserve it in advance (`core.advance_reservations`): it has its name, and its
                addresses or its network, from now on, and its nodes from then
    """

    MAKES: ClassVar[type] = Vcluster
    name: Undescribed[str]
    size: Undescribed[int]
    template: Undescribed[str]
    group: Undescribed[str]
    attributes: Undescribed[str] = ""
    also: Undescribed[Sequence[AskedTuple]] = ()
    lease: Undescribed[float | None] = None
    spread: Undescribed[bool] = False
    wait: Undescribed[bool] = True
    preemptible: bool = False
    isolated: Annotated[
        bool | None,
        About(
            "Isolated",
            FieldKind.FLAG,
            "its nodes are in a VLAN and a subnet of their own",
            none="as the site's rules say",
            set_by=Right.USE,
        ),
    ] = None
    network_size: Undescribed[int | None] = None
    description: str = ""
    tags: str = ""
    homes: Annotated[
        bool | None,
        About(
            "Homes",
            FieldKind.FLAG,
            "its nodes mount home directories from its group's home volume",
            none="as the site's rules say",
            set_by=Right.USE,
        ),
    ] = None
    mounts: Undescribed[Sequence[AskedVolume]] = ()
    starts_at: Undescribed[float | None] = None


@dataclass(frozen=True, slots=True)
class AskedNodes:
    """Nodes as they are asked for, beside those that a vcluster has.

    spread  the nodes of one tuple may be of several types and blocks
    wait    False: the request is rejected if it cannot be met at once
    starts_at, duration   reserve the nodes in advance (`core.advance_reservations`)
    before  with `duration`, in place of a start: choose the best start of those after which the
            nodes are given back before then (`core.flexible`)
    """

    MAKES: ClassVar[type] = Request
    tuples: Undescribed[Sequence[AskedTuple]]
    spread: Undescribed[bool] = False
    wait: Undescribed[bool] = True
    starts_at: Undescribed[float | None] = None
    duration: Undescribed[float | None] = None
    before: Undescribed[float | None] = None


@dataclass(frozen=True, slots=True)
class Reclaim:
    """A row of `reclaims`: `count` nodes taken from a vcluster for a request; `given` of them are
    on their way."""

    id: int
    vcluster_id: int
    request_id: int
    type_id: int
    block_id: int | None
    subnet: str
    attributes: str
    count: int
    given: int
    deadline: float
    state: str
    created_at: float
    ended_at: float | None


@dataclass(frozen=True, slots=True)
class Vcm:
    """A row of `vcms`: who may speak for a vcluster, and how far the messages for it have come.

    Without `serial` and `address` nobody may yet: the node `head` has not fetched its certificate.
    One that is renewed has a successor, `next_serial`, which counts from the moment it is first
    shown, and alone from then on.
    """

    vcluster_id: int
    serial: str
    address: str
    enrolled_at: float
    sequence: int
    acked: int
    about: str
    server: str | None
    epoch: int
    connected_at: float | None
    head: str | None
    ends_at: float | None
    next_serial: str | None
    next_ends_at: float | None
    warned_at: float | None


@dataclass(frozen=True, slots=True)
class VcmInvitation:
    """A row of `vcm_invitations`: what the VCM on that node may trade for a certificate, once."""

    vcluster_id: int
    node_id: int
    digest: str
    expires_at: float
    taken_by: str | None


@dataclass(frozen=True, slots=True)
class Inviter:
    """What a VCM on a node of its vcluster begins with.

    authority   certificate of the site's authority, PEM
    invitation  the secret that belongs to some words: the same for the same words, and not to be
                guessed
    """

    authority: str
    invitation: Callable[[str], str] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Owed:
    """A row of `outbox`: `body` has the fields of the message's body by name."""

    vcluster_id: int
    sequence: int
    verb: str
    body: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Notice:
    """A row of `notices`: something that a group (or, with None, the site's administrator) is told.

    events  JSON of what happened, for programs; None: it is for people
    link    path of the portal's page where something can be done about it; ''
    """

    id: int
    at: float
    kind: str
    group_id: int | None
    vcluster_id: int | None
    subject: str
    about: str
    events: str | None = None
    link: str = ""


@dataclass(frozen=True, slots=True)
class Send:
    """A row of `notice_sends`: a notice's delivery by one channel ('webhook' or 'email')."""

    id: int
    notice_id: int
    channel: str
    target: str
    attempts: int
    next_at: float
    claimed_by: str | None
    claim_expires: float | None
    done_at: float | None
    delivered: bool
    error: str

    @property
    def state(self) -> DeliveryState:
        """Return how it goes."""
        if self.done_at is None:
            return DeliveryState.WAITING
        return DeliveryState.DELIVERED if self.delivered else DeliveryState.GIVEN_UP


@dataclass(frozen=True, slots=True)
class VclusterName:
    """A row of `vcluster_names`: a name beside the nodes' host names (a CNAME). `external`: the
    target is a full name elsewhere, not a host or a name of the vcluster."""

    vcluster_id: int
    name: str
    target: str
    external: bool
    created_at: float
    actor: str


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
