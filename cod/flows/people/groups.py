"""Groups: their priority, their leases, and the channels of their notices; and groups that users
create by the site's rule."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cod.core import node_hours, volumes
from cod.core.people import posix as numbers
from cod.model import (
    POSIX,
    SYSTEM_GROUPS,
    Effect,
    Group,
    GroupRules,
    NoticeRules,
    Policy,
    PosixRules,
    Refused,
    Result,
    Right,
    Role,
    Who,
    described,
    set_by,
)
from cod.policy import notice_delivery
from cod.policy.people import rights
from cod.policy.scheduler import preemption
from cod.quantity import exact_span
from cod.store import watermarks
from cod.store.engine import Tx
from cod.store.notices import notices
from cod.store.people import groups, people
from cod.store.scheduler import requests

one = groups.named
# channels of notices, which are also columns of `groups`
CHANNELS = (notices.WEBHOOK, notices.EMAIL)
EVENTS = ("notices", "vclusters", "nodes")
RULES = NoticeRules()
POLICY = Policy()
OWNERS_SAY = set_by(Group, Right.MANAGE) | {"name"}
"""The settings of a group that its owners may change; only administrators may change others."""
YOUNGEST = 86_400.0
"""Seconds for which a group that a user created cannot be deleted by its owners: each group takes a
number of the site's range, which no other group gets again."""


def every(tx: Tx, only: frozenset[int] | None = None, name: str | None = None) -> list[Group]:
    """Return groups, ordered by name. `only` restricts them to these ids, and `name` to the group
    of that name (None: all)."""
    return [group for group in groups.every(tx, name) if only is None or group.id in only]


def create(
    tx: Tx,
    name: str,
    *,
    gid: int | None = None,
    rules: NoticeRules = RULES,
    posix: PosixRules = POSIX,
    policy: Policy = POLICY,
    now: float,
    **columns: Any,
) -> Group:
    """Create a group with the settings in `columns`, and the defaults of all others; return the
    group. Raises `Refused`.

    gid      its POSIX number; None: the next of the site's range
    rules    where its webhook may be; policy: bounds its grace
    """
    if groups.by_name(tx, name):
        raise Refused("conflict", f"there is a group {name!r} already", "name")
    if gid is not None:
        numbers.take_gid(tx, name, gid, now)
    return groups.add(tx, name, now, posix=posix, gid=gid, **_checked(columns, {}, rules, policy))


def may_create(tx: Tx, who: Who, rules: GroupRules) -> bool:
    """Return whether `who` may create groups by the site's rules."""
    return rights.creates_groups(who, rules.creators, groups.names(tx))


def create_for(
    tx: Tx, *, who: Who, users: GroupRules, asked: Mapping[str, Any], now: float, **rules: Any
) -> Group:
    """Create a group with the settings `asked`, as `create` does, and return it. If `who` is not an
    administrator, the site's rules `users` must allow it: then `who` becomes the group's owner, and
    the rules set its limits. Raises `Refused`."""
    if who.admin:
        return create(tx, now=now, **asked, **rules)
    if not may_create(tx, who, users) or who.user_id is None:
        raise Refused("forbidden", "only the site's administrators may do that")
    usual = {each.name: each.default for each in described(Group)}
    for field, value in asked.items():
        if field not in OWNERS_SAY and value != usual[field]:
            raise Refused("forbidden", f"{field} is set by the site's administrators", field)
    name = asked["name"]
    if name == groups.SITE or name in SYSTEM_GROUPS:
        raise Refused("invalid", f"{name!r} is a name that systems use: choose another", "name")
    if name in users.creators:  # its owner would decide who may create groups
        raise Refused("invalid", f"the site's rule names {name!r}: choose another name", "name")
    # a concurrent creation waits, and counts this one
    watermarks.one_at_a_time(tx, "created groups")
    if groups.created_by(tx, who.person) >= users.most:
        raise Refused(
            "conflict",
            f"{who.person} created {users.most} groups, which is the site's limit for a user",
            "name",
        )
    own = {field: value for field, value in asked.items() if field in OWNERS_SAY}
    longest = users.max_lease or None
    group = create(tx, now=now, **own, priority=users.priority, max_lease=longest, **rules)
    groups.change(
        tx,
        group.id,
        created_by=who.person,
        shares=users.shares,
        node_limit=users.node_limit or None,
        hours_limit=users.hours_limit or None,
        parent_id=_parent(tx, users),
    )
    people.set_role(tx, group.id, who.user_id, Role.OWNER)
    return groups.get(tx, group.id)


def _parent(tx: Tx, users: GroupRules) -> int | None:
    """Return the id of the parent of the groups that users create; None if they have no parent.
    Raises `Refused`."""
    if not users.parent:
        return None
    parent = groups.by_name(tx, users.parent)
    if parent is None or parent.parent_id is not None:
        raise Refused(
            "conflict",
            f"the site's rule names {users.parent!r} as the parent of new groups, which is no "
            "group that can have subgroups: tell an administrator",
        )
    return parent.id


def change(
    tx: Tx,
    name: str,
    changes: Mapping[str, Any],
    *,
    rules: NoticeRules = RULES,
    policy: Policy = POLICY,
    now: float,
) -> Result[Group]:
    """Change the columns in `changes`; return the group. Raises `Refused`.

    Running leases keep their length. A new priority applies at once to running vclusters and to
    waiting requests. Notices that are not delivered yet go to the new address.
    """
    group = one(tx, name)
    before = {"default_lease": group.default_lease, "max_lease": group.max_lease}
    columns = _checked(changes, before, rules, policy)
    if columns.get("gid", group.gid) != group.gid:
        numbers.take_gid(tx, name, columns["gid"], now)
    groups.change(tx, group.id, **columns)
    if columns.get("gid", group.gid) != group.gid:
        volumes.gid_changed(tx, group.id, now)
    for channel in CHANNELS:
        if columns.get(channel, getattr(group, channel)) != getattr(group, channel):
            notices.redirect(tx, group.id, channel, columns[channel], now)
    wakes = [Effect("wake", "notices")]
    if columns.get("priority", group.priority) != group.priority:
        requests.rank(tx, group.id, columns["priority"])
        wakes.append(Effect("wake", "manager"))
    return Result(groups.get(tx, group.id), tuple(wakes))


def new_secret(tx: Tx, name: str) -> Group:
    """Change the secret that signs the posts of a group's webhook. Raises `Refused`."""
    group = one(tx, name)
    groups.change(tx, group.id, webhook_turn=group.webhook_turn + 1)
    return one(tx, name)


def delete(tx: Tx, name: str, *, admin: bool = True, now: float = 0.0) -> None:
    """Delete a group and its notices. The group may own no active vclusters or series, and no
    images, volumes or active templates. Without `admin`, only a group that a user created can be
    deleted, `YOUNGEST` seconds after its creation at the earliest, and not in a month in which the
    group has used limited node-hours. Raises `Refused`."""
    group = one(tx, name)
    if not admin and group.created_by is None:
        raise Refused("forbidden", "only the site's administrators may do that")
    if not admin and now < group.created_at + YOUNGEST:
        raise Refused(
            "conflict",
            f"owners can delete group {name} {exact_span(YOUNGEST)} after it was created; an "
            "administrator can delete it now",
            "name",
        )
    if not admin and group.hours_limit is not None and node_hours.used(tx, group, now):
        raise Refused(
            "conflict",
            f"group {name} has used node-hours of this month, which a new group would have once "
            "more: owners can delete it from the first of next month on, an administrator now",
            "name",
        )
    if name == groups.SITE:
        raise Refused(
            "conflict", "the site's own group stays: it owns what nobody else does", "name"
        )
    owned = [f"{count} {what}" for what, count in groups.owned(tx, group.id).items() if count]
    if owned:
        raise Refused(
            "conflict",
            f"group {name} owns {', '.join(owned)}: end its vclusters and series, delete its images"
            " and volumes and retire its templates first",
            "name",
        )
    notices.forget(tx, group.id)
    groups.remove(tx, group.id, groups.ensure(tx, groups.SITE, group.created_at).id)


def _checked(
    changes: Mapping[str, Any], before: Mapping[str, Any], rules: NoticeRules, policy: Policy
) -> dict[str, Any]:
    columns = dict(changes)
    longest_grace = preemption.longest_grace(policy)
    if (columns.get("grace") or 0.0) > longest_grace:
        raise Refused(
            "invalid",
            f"the site allows groups a grace of {exact_span(longest_grace)} at most, and"
            f" {exact_span(columns['grace'])} were asked for; an administrator can raise"
            " max_grace in the site file",
            "grace",
        )
    if "email" in columns:
        columns["email"] = notice_delivery.check_email(columns["email"])
    if "webhook" in columns:
        columns["webhook"] = notice_delivery.check_webhook(columns["webhook"], rules)
    if "events" in columns:
        columns["webhook_events"] = " ".join(sorted(set(columns.pop("events")), key=EVENTS.index))
    after = {**before, **columns}
    default, longest = after.get("default_lease"), after.get("max_lease")
    if default is not None and longest is not None and default > longest:
        raise Refused(
            "invalid",
            f"default_lease {default:g} s should not be longer than max_lease {longest:g} s",
            "default_lease",
        )
    return columns
