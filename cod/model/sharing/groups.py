"""Groups, and their shares, guarantees and limits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from cod.choices import LeastWipe, NoticeFormat
from cod.model.described import About, FieldKind, FieldLevel, Undescribed
from cod.model.posix import HIGHEST, LOWEST
from cod.model.rights import Right


@dataclass(frozen=True, slots=True)
class Group:
    """A row of `groups`.

    webhook_events  events that are posted to its webhook: 'notices', 'vclusters', 'nodes',
                    separated by spaces
    webhook_turn    how often its webhook's secret was changed
    shares          its weight in the division of the site, relative to the other groups'
    guarantee       nodes that are never preempted from it
    node_limit      nodes that it may hold at once; None: the site's default
    hours_limit     node-hours that it may use in a month; None: no limit
    parent_id       the group that it is a subgroup of
    faded_usage     its usage at `faded_at`: node-seconds, weighted by the cost of their types, that
                    have not faded yet
    odd_turn        the last turn for which it got an extra node (`policy.sharing.turns`)
    user_shares     whether its requests are ranked by the usage of their users
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
            none="the site's",
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
        LeastWipe | None,
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
        """The words of `webhook_events`."""
        named: Any = self.webhook_events.split()
        return tuple(named)


@dataclass(frozen=True, slots=True)
class GroupUser:
    """A user of a group's nodes, with shares and usage in the group.

    user_id      0: the unknown creators of vclusters
    shares       weight relative to the group's other users; 1 for users who are not in the group
    faded_usage  usage at `faded_at`, as in `Group`
    """

    group_id: int
    user_id: int
    shares: float = 1.0
    faded_usage: float = 0.0
    faded_at: float = 0.0


@dataclass(frozen=True, slots=True)
class TypeTerms:
    """A row of `group_type_terms`: a group's guarantee and shares of the nodes of one type.

    guarantee  number of nodes of the type that are never preempted from the group
    shares     the group's weight when nodes of the type are divided, relative to the other groups';
               None: `Group.shares`
    """

    guarantee: int = 0
    shares: float | None = None


@dataclass(frozen=True, slots=True)
class ApiToken:
    """A row of `api_tokens` without its digest. `scope` is 'admin', 'read', 'metrics' or
    'calendar'; for a user's token 'write', 'read' or 'calendar'."""

    id: int
    name: str
    scope: str
    created_at: float
    expires_at: float | None
    user_id: int | None = None
    group_id: int | None = None
