"""Pages about volumes: a list, a new volume, and one volume with all its actions."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from cod import quantity
from cod.flows import views
from cod.flows.people.access import offered
from cod.flows.volumes import volumes
from cod.model import Page as Part
from cod.model import Right, VolumeView
from cod.pool import Tx
from cod.web.api.models import FULL, Query
from cod.web.api.resources.volumes import VOLUMES, VolumeQuery
from cod.web.api.routes import ANYBODY, Named, Names, see
from cod.web.portal.page import Page, PageCall, act
from cod.web.portal.pages.wizard import own_groups
from cod.web.portal.record_fields import columns_of, facts_of

SHOWN_ABOVE = {"name", "kind", "reason", "state", "deleted_at", "purge_at"}
HELD = {
    "": "not known yet",
    "none": "nothing: the file system has no quotas",
    "project": "a quota of XFS",
    "btrfs": "a quota of Btrfs",
    "zfs": "a quota of ZFS",
}
SECURITIES = {
    "sys": "the node's word (sys)",
    "krb5": "Kerberos (krb5)",
    "krb5i": "Kerberos, signed (krb5i)",
    "krb5p": "Kerberos, encrypted (krb5p)",
}
LISTED = {"name", "kind", "fileserver", "size", "enforced", "reason", "state"}
NEW, SHOWN = "/volumes/new", "/volumes/{name}"


class NewVolume(Query):
    """The snapshot of which the new volume is a copy."""

    source: str = Field(default="", max_length=FULL)
    snapshot: str = Field(default="", max_length=63)


def _list(tx: Tx, ask: PageCall[Names, VolumeQuery]) -> dict[str, Any]:
    return {
        "found": VOLUMES[0].call(ask)(tx),
        "servers": ask.site.fileservers,
        "more": columns_of(VolumeView, ask, LISTED),
    }


def securities(ask: PageCall[Any, Any]) -> list[tuple[str, str]]:
    """Return the ways to protect a volume, the site's default first; none if the site has no
    Kerberos."""
    if not ask.site.kerberos.realm:
        return []
    return sorted(SECURITIES.items(), key=lambda one: one[0] != ask.site.volumes.sec)


def _new(tx: Tx, ask: PageCall[Names, NewVolume]) -> dict[str, Any]:
    groups = own_groups(tx, ask.who)
    return {
        "groups": groups,
        "servers": [one.name for one in ask.site.fileservers],
        "securities": securities(ask),
        "rooms": [(one.name, *volumes.room(tx, group=one.name, site=ask.site)) for one in groups],
    }


def _one(tx: Tx, ask: PageCall[Named]) -> dict[str, Any]:
    view = volumes.show(tx, name=ask.names.name, now=ask.now)
    attached = {one.vcluster for one in view.attachments if not one.leaving}
    found = views.vcluster_list(tx, page=EVERY, groups=ask.who.groups, ended=False)
    open_ = [
        one.vcluster.name
        for one in found
        if one.vcluster.name not in attached
        and one.vcluster.state in ("pending", "active")
        and offered(ask.who, Right.MANAGE, one.vcluster.group_id)
    ]
    words = {"enforced": HELD.get(view.volume.enforced), "sec": SECURITIES[view.volume.sec]}
    facts = facts_of(view, ask.now, without=SHOWN_ABOVE, words=words)
    return {
        "view": view,
        "v": view.volume,
        "open": open_,
        "securities": securities(ask),
        "grace": ask.site.volumes.grace,
        "told": facts,
    }


EVERY = Part(limit=500)
PAGES = (
    Page("/volumes", "volumes.html", _list, ANYBODY, VolumeQuery),
    Page(NEW, "volume-new.html", _new, ANYBODY, NewVolume, "/volumes"),
    Page(SHOWN, "volume.html", _one, see("volume"), nav="/volumes"),
)


ACTIONS = (
    act(
        "/volumes",
        "POST",
        NEW,
        "Volume {reply.name} is being made.",
        then=lambda ask, reply: f"/volumes/{reply.name}",
        convert={"size": quantity.read_size},
    ),
    act(
        SHOWN + "/resize",
        f"PATCH {SHOWN}",
        SHOWN,
        "The volume is changed.",
        convert={"size": quantity.read_size},
    ),
    act(
        SHOWN + "/attach",
        "POST",
        SHOWN,
        "{ask.body.vcluster} mounts {reply.name} in a moment.",
        convert={"delete_after": quantity.read_span},
    ),
    act(
        SHOWN + "/detach",
        "POST",
        SHOWN,
        "{reply.name} is being withdrawn from {ask.body.vcluster}.",
    ),
    act(SHOWN + "/snapshots", "POST", SHOWN, "Snapshot {ask.body.snapshot} is being taken."),
    act(
        SHOWN + "/snapshots/{id}/delete",
        f"DELETE {SHOWN}/snapshots/{{id}}",
        SHOWN,
        "Snapshot {ask.names.id} is deleted.",
    ),
    act(
        SHOWN + "/delete",
        f"DELETE {SHOWN}",
        SHOWN,
        "Volume {reply.name} is deleted. It can be restored for a while.",
    ),
    act(SHOWN + "/restore", "POST", SHOWN, "Volume {reply.name} is restored."),
    act(SHOWN + "/remake", "POST", SHOWN, "Volume {reply.name} begins anew, empty."),
)
