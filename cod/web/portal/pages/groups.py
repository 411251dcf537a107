"""Pages about groups: their members and roles, the addresses of their notices, and what they have
and use."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any, get_args

from cod import quantity
from cod.choices import DeliveryState, LeastWipe, NoticeFormat, Wipe
from cod.flows import views
from cod.flows.images import images
from cod.flows.nodes import energy
from cod.flows.notices import notices
from cod.flows.people import groups, invitations, people, sshkeys
from cod.flows.people.access import offered
from cod.flows.scheduler import shares
from cod.flows.scheduler.shares import UserShare
from cod.model import Group, Listed, Member, Right, Role, SingleRight, Who
from cod.model import Page as Part
from cod.pool import Tx
from cod.web.api.resources.energy import EnergyReport
from cod.web.api.resources.groups import GROUPS, GroupCreate, GroupQuery
from cod.web.api.resources.notices import DeliveryQuery, DeliveryReply
from cod.web.api.resources.people import MemberReply, MemberSet
from cod.web.api.routes import ANYBODY, Call, Named, NamedMember, Names, see
from cod.web.portal import forms
from cod.web.portal.forms import Fields
from cod.web.portal.page import Page, PageCall, act, to
from cod.web.portal.record_fields import body_by, columns_of, facts_of, settings_of

LISTED = {
    *("name", "priority", "default_lease", "max_lease", "gid", "grace", "wipe", "image_quota"),
    *("volume_quota", "email", "webhook", "webhook_format", "created_by"),
}
SHOWN = "/groups/{name}"
EVENTS = {
    "notices": "notices for people",
    "vclusters": "what happens to virtual clusters",
    "nodes": "what happens to nodes",
}
BEYOND = {
    Role.OWNER: (),
    Role.MEMBER: (SingleRight.INVITE.value,),
    Role.VIEWER: tuple(SingleRight.names()),
}
"""The single rights that a role does not have anyway."""


def _list(tx: Tx, ask: PageCall[Names, GroupQuery]) -> dict[str, Any]:
    found = GROUPS[0].call(ask)(tx)
    held: Counter[str] = Counter()
    for view in views.vcluster_list(tx, groups=ask.who.groups):
        held[view.group] += sum(view.states.values())
    return {
        "found": found,
        "held": held,
        "roles": ask.who.roles,
        "creates": ask.who.writes and groups.may_create(tx, ask.who, ask.site.groups),
        "default_lease": ask.site.policy.default_lease,
        "more": columns_of(Group, ask, LISTED),
    }


def _one(tx: Tx, ask: PageCall[Named]) -> dict[str, Any]:
    group = groups.one(tx, ask.names.name)
    only = frozenset({group.id})
    owns = offered(ask.who, Right.MANAGE, group.id)
    vclusters = views.vcluster_list(tx, groups=only)
    taken, quota = images.room(tx, group_id=group.id, rules=ask.site.images)
    wipes = {"": f"as the site says: {Wipe(ask.site.policy.wipe).about}"} | {
        way: way.about for way in get_args(LeastWipe)
    }
    usual = quantity.exact_span(group.default_lease or ask.site.policy.default_lease)
    used = energy.report(tx, since=None, until=None, by="day", group=group.name, now=ask.now)
    month = energy.of_month(tx, group.name, group.id, ask.site.energy, ask.now)
    return {
        "g": group,
        "month": month,
        "owns": owns,
        "vclusters": vclusters,
        "taken": taken,
        "quota": quota,
        "states": sum((Counter(view.states) for view in vclusters), Counter()),
        "energy": EnergyReport.of(used),
        "members": (members := people.members(tx, group.name)),
        "standings": _standings(tx, ask, group, members) if group.user_shares else [],
        "ranked": ask.site.policy.fair_half_life > 0,
        "roles": Role.abouts(),
        "rights": SingleRight.abouts(),
        "beyond": BEYOND,
        "invites": _invites(ask.who, group.id),
        "keys": sshkeys.in_group(tx, group.id),
        "invitations": invitations.every(tx, groups=only, now=ask.now) if owns else [],
        "deliveries": _deliveries(tx, group.name, Part(limit=8)) if owns else [],
        "rules": facts_of(
            group,
            ask.now,
            without=(
                *("name", "created_at", "email", "webhook", "webhook_format", "events"),
                "image_quota",
            ),
            words={"default_lease": usual, "wipe": wipes[group.wipe or ""]},
        ),
        "settings": settings_of(
            group,
            Right.MANAGE,
            options={
                "wipe": wipes,
                "events": EVENTS,
                "webhook_format": NoticeFormat.abouts(),
            },
            none={
                "default_lease": f"the site's, {quantity.exact_span(ask.site.policy.default_lease)}"
            },
        ),
        "limits": settings_of(group, Right.ADMIN),
        "myself": ask.who.name.partition(":")[2],
    }


def _standings(
    tx: Tx, ask: Call, group: Group, members: Sequence[Member]
) -> list[tuple[UserShare | None, Member | None]]:
    """Return each user's share and usage in the group, with the user's membership. Members without
    usage come last."""
    roles = {one.user: one for one in members}
    found: list[tuple[UserShare | None, Member | None]] = [
        (one, roles.pop(one.user, None))
        for one in shares.of_users(tx, group.name, site=ask.site, now=ask.now)
    ]
    return found + [(None, one) for one in roles.values()]


def _invites(who: Who, group_id: int) -> list[str]:
    """Return the roles in which `who` may invite people into the group."""
    if offered(who, Right.MANAGE, group_id):
        return Role.names()
    if not offered(who, Right.MANAGE, group_id, SingleRight.INVITE):
        return []
    return ["member", "viewer"] if offered(who, Right.USE, group_id) else ["viewer"]


def _deliveries(
    tx: Tx, group: str, page: Part, state: str | None = None, channel: str | None = None
) -> Listed[DeliveryReply]:
    found = notices.deliveries(tx, group=group, page=page, state=state, channel=channel)
    return found.each(DeliveryReply.of_pair)


def _log(tx: Tx, ask: PageCall[Named, DeliveryQuery]) -> dict[str, Any]:
    group = groups.one(tx, ask.names.name)
    return {
        "g": group,
        "owns": offered(ask.who, Right.MANAGE, group.id),
        "states": DeliveryState.names(),
        "found": _deliveries(tx, group.name, ask.query.page, ask.query.state, ask.query.channel),
    }


PAGES = (
    Page("/groups", "groups.html", _list, ANYBODY, GroupQuery),
    Page(SHOWN, "group.html", _one, see("group"), nav="/groups"),
    Page(SHOWN + "/deliveries", "deliveries.html", _log, see("group"), DeliveryQuery, "/groups"),
)


# ---------------------------------------------------------------- forms


def _role(fields: Fields) -> dict[str, Any]:
    ticked = {"rights": fields.all("rights")} if fields.one("shown") else {}
    return {"role": fields.one("role"), **ticked}


def _shared(fields: Fields) -> dict[str, Any]:
    return forms.body_of(MemberSet, Fields({"shares": [fields.one("shares")]}), {})


def _role_said(ask: Call, reply: Any) -> str:
    beside = f", and has the rights {', '.join(reply.rights)}" if reply.rights else ""
    return f"{reply.user} is {reply.role} of {reply.group}{beside}."


def _shares_said(ask: Call, reply: MemberReply) -> str:
    return f"{reply.user} has the shares {reply.shares:g} in {reply.group}."


def _left(ask: Call[NamedMember], reply: Any) -> str:
    """Return the page to show after a user has left a group, which the user no longer sees."""
    gone = not ask.who.admin and ask.names.user == ask.who.name.partition(":")[2]
    return "/groups" if gone else f"/groups/{ask.names.name}"


def _open_sessions(nodes: list[str]) -> str:
    if not nodes:
        return ""
    some = quantity.first_few(nodes, 8)
    return f" Sessions that are open on {some} go on until they are ended there."


_SECRET = SHOWN + "/webhook-secret"
_MEMBER = SHOWN + "/members/{user}"

ACTIONS = (
    act(
        "/groups",
        "POST",
        "/groups",
        lambda ask, reply: (
            f"Group {reply.name} is created. "
            f"{'Invite its owner next' if ask.who.admin else 'You are its owner'}."
        ),
        then=lambda ask, reply: f"/groups/{reply.name}",
        body=lambda fields: forms.body_of(GroupCreate, fields, {}),
    ),
    act(
        SHOWN + "/settings",
        f"PATCH {SHOWN}",
        SHOWN,
        "Saved.",
        body=partial(body_by, Group, Right.MANAGE),
    ),
    act(
        SHOWN + "/limits",
        f"PATCH {SHOWN}",
        SHOWN,
        "Saved.",
        body=partial(body_by, Group, Right.ADMIN),
    ),
    act(
        SHOWN + "/remove",
        f"DELETE {SHOWN}",
        SHOWN,
        "Group {ask.names.name} is deleted.",
        then=to("/groups"),
    ),
    act(
        SHOWN + "/members",
        f"PUT {_MEMBER}",
        SHOWN,
        _role_said,
        body=_role,
        names=lambda names, fields: {**names, "user": fields.one("user").strip()},
    ),
    act(_MEMBER + "/role", f"PUT {_MEMBER}", SHOWN, _role_said, body=_role),
    act(_MEMBER + "/shares", f"PUT {_MEMBER}", SHOWN, _shares_said, body=_shared),
    act(
        SHOWN + "/user-shares",
        "PATCH /shares/{name}",
        SHOWN,
        lambda ask, reply: f"Users' shares are {'on' if reply.user_shares else 'off'}.",
    ),
    act(
        _MEMBER + "/remove",
        f"DELETE {_MEMBER}",
        SHOWN,
        lambda ask, reply: (
            f"{reply.user} is no longer in {reply.group}.{_open_sessions(reply.nodes)}"
        ),
        then=_left,
    ),
    act(SHOWN + "/invite", f"POST {SHOWN}/invitations", SHOWN, shows="link.html"),
    act(
        SHOWN + "/invitations/{id}/revoke",
        "DELETE /invitations/{id}",
        SHOWN,
        "The link is revoked.",
    ),
    act(_SECRET, "GET", SHOWN, shows="webhook-secret.html"),
    act(_SECRET + "/change", f"POST {_SECRET}", SHOWN, shows="webhook-secret.html"),
    act(
        SHOWN + "/test",
        f"POST {SHOWN}/test-notice",
        SHOWN,
        "A test notice is on its way; its deliveries are shown below.",
    ),
    act(
        SHOWN + "/deliveries/{id}/resend",
        "POST",
        SHOWN + "/deliveries",
        "The delivery is repeated.",
    ),
)
