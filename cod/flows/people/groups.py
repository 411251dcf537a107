"""Groups, as the site's administrator sees them: their priority, their leases, and how they are
told things."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cod.core import posix as numbers
from cod.core import volumes
from cod.model import Effect, Group, NoticeRules, Policy, PosixRules, Refused, Result
from cod.policy.people import delivery
from cod.policy.scheduler import preemption
from cod.quantity import exact_span
from cod.store.engine import Tx
from cod.store.notices import notices
from cod.store.people import groups
from cod.store.scheduler import requests

one = groups.named
# the columns of `groups` that name where notices go, too
CHANNELS = (notices.WEBHOOK, notices.EMAIL)
EVENTS = ("notices", "vclusters", "nodes")
RULES = NoticeRules()
POSIX = PosixRules()
POLICY = Policy()


def every(tx: Tx, only: frozenset[int] | None = None) -> list[Group]:
    """Return groups by name; `only` those with these ids (None: all)."""
    return [group for group in groups.every(tx) if only is None or group.id in only]


def create(
    tx: Tx,
    name: str,
    *,
    priority: int = 0,
    default_lease: float | None = None,
    max_lease: float | None = None,
    email: str = "",
    webhook: str = "",
    events: Sequence[str] = ("notices",),
    image_quota: int | None = None,
    gid: int | None = None,
    volume_quota: int | None = None,
    grace: float | None = None,
    wipe: str | None = None,
    rules: NoticeRules = RULES,
    posix: PosixRules = POSIX,
    policy: Policy = POLICY,
    now: float,
) -> Group:
    """Return a new group; leases in seconds, None for the site's default and for no limit. Raises
    `Refused`.

    image_quota  bytes that its images and open uploads may take; None: the site's default
    gid          its POSIX number; None: the next of the site's range
    volume_quota bytes that its volumes may have together; None: the site's default
    grace        seconds in which its vclusters give nodes back after a reclaim; None: the site's
    wipe         how the disks of its nodes are erased at least: 'zero' or 'purge'; None: as the
                 site says
    policy       bounds the grace
    events       what is posted to its webhook: 'notices', 'vclusters', 'nodes'; rules: where that
                 may be
    """
    if groups.by_name(tx, name):
        raise Refused("conflict", f"there is a group {name!r} already", "name")
    columns = dict(
        priority=priority,
        default_lease=default_lease,
        max_lease=max_lease,
        email=email,
        webhook=webhook,
        events=events,
        image_quota=image_quota,
        volume_quota=volume_quota,
        grace=grace,
        wipe=wipe,
    )
    if gid is not None:
        numbers.take_gid(tx, name, gid, now)
    return groups.add(tx, name, now, posix=posix, gid=gid, **_checked(columns, {}, rules, policy))


def change(
    tx: Tx,
    name: str,
    changes: Mapping[str, Any],
    *,
    rules: NoticeRules = RULES,
    policy: Policy = POLICY,
    now: float,
) -> Result[Group]:
    """Change the columns in `changes`; the value is the group. Raises `Refused`.

    Leases that run stay as long as they are. A new priority holds at once, for what runs and for
    what waits; what is yet to be told goes the new way.
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


def delete(tx: Tx, name: str) -> None:
    """Remove a group whose vclusters have ended and that has no images and templates any more, with
    its notices. Raises `Refused`."""
    group = one(tx, name)
    if name == groups.SITE:
        raise Refused(
            "conflict", "the site's own group stays: it owns what nobody else does", "name"
        )
    owned = [f"{count} {what}" for what, count in groups.owned(tx, group.id).items() if count]
    if owned:
        raise Refused(
            "conflict",
            f"group {name} owns {', '.join(owned)}: end its vclusters, delete its images and "
            "volumes and retire its templates first",
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
        columns["email"] = delivery.check_email(columns["email"])
    if "webhook" in columns:
        columns["webhook"] = delivery.check_webhook(columns["webhook"], rules)
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
