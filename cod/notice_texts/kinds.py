"""The kinds of notices. Programs that receive notices tell them apart by these names."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class Audience(Enum):
    """Recipients of a kind of notices."""

    GROUP = "group"
    SITE = "site"
    WATCHERS = "people who watch a request"


class NoticeKind(NamedTuple):
    """A kind of notices.

    remedy  the text of its link; '': it has no link
    ends    for a notice that a fault has ended: the kind that told of its beginning, with the same
            link
    to      its recipients: a group, the site's administrators, or people who watch a request
    stays   a sentence that says why administrators cannot turn its mail off; '': they can
    """

    about: str
    remedy: str = ""
    ends: str = ""
    to: frozenset[Audience] = frozenset({Audience.GROUP})
    stays: str = ""


_SITE = frozenset({Audience.SITE})
_BOTH = frozenset({Audience.GROUP, Audience.SITE})

KINDS = {
    "lease-began": NoticeKind(
        "the cluster's nodes were granted, and its lease runs", "Open the cluster"
    ),
    "ready": NoticeKind("all nodes of the cluster run its software", "Open the cluster"),
    "lease-warning": NoticeKind("the lease ends soon", "Extend the lease"),
    "lease-extended": NoticeKind("the lease ends later than it did", "Open the cluster"),
    "lease-ended": NoticeKind("the lease is over; the nodes are drained", "Extend the lease"),
    "drained": NoticeKind(
        "the grace after the lease is over; the nodes are taken back", "Request a new cluster"
    ),
    "deleted": NoticeKind("the cluster was deleted"),
    "renamed": NoticeKind("the cluster has another name", "Open the cluster"),
    "reclaim": NoticeKind(
        "nodes are wanted for a request of higher priority", "Choose nodes to release"
    ),
    "reclaim-dropped": NoticeKind("reclaimed nodes are no longer needed", "Open the cluster"),
    "reclaimed": NoticeKind("nodes were taken back", "Request more nodes"),
    "move": NoticeKind("nodes of the cluster are to move to another", "Choose nodes to release"),
    "moved": NoticeKind("nodes of the cluster were moved to another", "Open the cluster"),
    "reservation-late": NoticeKind("a reservation in advance begins later than planned", "See why"),
    "maintenance": NoticeKind(
        "nodes of the cluster go out of service for maintenance, or do not after all",
        "Open the cluster",
    ),
    "series": NoticeKind(
        "a start of a series of reservations could not be reserved", "Look at the series"
    ),
    "series-reserved": NoticeKind("such a start is reserved after all", "Open the cluster"),
    "node-hours": NoticeKind(
        "a group has used 80 or 100 per cent of its node-hours of the month",
        "See the group's shares",
    ),
    "budget": NoticeKind(
        "a group has used 80 or 100 per cent of its budget of the month", "See what was used"
    ),
    "guarantees": NoticeKind(
        "groups are guaranteed more nodes than the site has", "Look at the shares", to=_SITE
    ),
    "guarantees-met": NoticeKind(
        "the site has as many nodes again as groups are guaranteed", "Look at the shares", to=_SITE
    ),
    "decided": NoticeKind(
        "a request that somebody watches was granted, rejected or withdrawn",
        "Open the request",
        to=frozenset({Audience.WATCHERS}),
    ),
    "rejected": NoticeKind("a request for nodes was rejected", "See why, and change the request"),
    "node-lost": NoticeKind("a node of the cluster broke and is replaced", "Open the cluster"),
    "reinstalled": NoticeKind("nodes of the cluster were installed anew", "Open the cluster"),
    "reinstall-halt": NoticeKind(
        "a node was lost while it was installed anew; the others stay as they are",
        "Change the template, and try again",
    ),
    "stopped": NoticeKind(
        "a failed node is not replaced, because another would fail, too", "See why, and try again"
    ),
    "hardware": NoticeKind("a node's hardware has changed", "Look at the node", to=_BOTH),
    "architecture": NoticeKind("a machine cannot be booted", to=_SITE),
    "identity": NoticeKind(
        "a machine claims to be a node, and what COD sees of that node contradicts it",
        "Look at the node",
        to=_SITE,
        stays="A machine may be pretending to be a node, and only an administrator can find out.",
    ),
    "dhcp": NoticeKind(
        "a node's system takes its address from another DHCP server", "Look at the node", to=_SITE
    ),
    "namesake": NoticeKind(
        "another disk of a node has a volume called as one that was written",
        "Look at the node",
        to=_BOTH,
    ),
    "found-off": NoticeKind(
        "a node in use is off, though COD did not switch it off", "Look at the node", to=_BOTH
    ),
    "found-on": NoticeKind(
        "a node in use that was found off is on again",
        "Look at the node",
        ends="found-off",
        to=_BOTH,
    ),
    "site-held": NoticeKind(
        "the site grants and erases nothing until it is compared with its machines",
        "Look at the faults",
        to=_SITE,
        stays="Nothing is granted or erased until an administrator acts.",
    ),
    "quarantined": NoticeKind(
        "a node was taken out of service and needs an administrator", "Look at the node", to=_SITE
    ),
    "power-control": NoticeKind(
        "BMCs or outlets of nodes do not answer", "Look at the faults", to=_SITE
    ),
    "power-recovered": NoticeKind(
        "BMCs and outlets that nodes waited for answer again",
        "Look at the faults",
        ends="power-control",
        to=_SITE,
    ),
    "directory-held": NoticeKind(
        "the directory says that many users lose their rights, and is not believed",
        "Look at the faults",
        to=_SITE,
        stays="People who have left keep their rights until an administrator decides.",
    ),
    "directory-normal": NoticeKind(
        "users are as the directory says again",
        "Look at the faults",
        ends="directory-held",
        to=_SITE,
    ),
    "dns-secondary": NoticeKind(
        "a secondary name server does not follow the site's zones", "Look at the faults", to=_SITE
    ),
    "dns-recovered": NoticeKind(
        "a secondary name server follows the site's zones again",
        "Look at the faults",
        ends="dns-secondary",
        to=_SITE,
    ),
    "image-server": NoticeKind("images are not served to nodes", "Look at the faults", to=_SITE),
    "images-recovered": NoticeKind(
        "images that nodes waited for are served again",
        "Look at the faults",
        ends="image-server",
        to=_SITE,
    ),
    "kerberos": NoticeKind(
        "nodes wait for keytabs that the site's command does not make",
        "Look at the faults",
        to=_SITE,
    ),
    "keytabs-made": NoticeKind(
        "no node waits for a keytab", "Look at the faults", ends="kerberos", to=_SITE
    ),
    "switch": NoticeKind(
        "a switch does not answer, and nodes wait for it", "Look at the faults", to=_SITE
    ),
    "switch-recovered": NoticeKind(
        "a switch that nodes waited for answers again",
        "Look at the faults",
        ends="switch",
        to=_SITE,
    ),
    "switch-port": NoticeKind(
        "a switch port could not be put into its VLAN and needs an administrator",
        "Look at the node",
        to=_SITE,
    ),
    "captured": NoticeKind("a node's disk was saved as an image", "Open the image"),
    "capture-failed": NoticeKind("the capture of a node's disk failed", "Try again"),
    "vcm-certificate": NoticeKind(
        "the certificate of the cluster's VCM expires soon, or has expired, and was not renewed",
        "Enroll the VCM again",
    ),
    "volume-deleted": NoticeKind(
        "a volume was deleted, and is kept for a while", "Restore the volume"
    ),
    "volume-erased": NoticeKind("the data of a deleted volume was erased"),
    "volume-trouble": NoticeKind(
        "a file server does not carry out a change of a volume", "Look at the volume", to=_BOTH
    ),
    "volume-recovered": NoticeKind(
        "a file server has carried out the change that it did not before",
        "Open the volume",
        ends="volume-trouble",
        to=_BOTH,
    ),
    "authority": NoticeKind(
        "the certificate of the site's authority for VCMs expires; servers have to be restarted"
        " before",
        to=_SITE,
        stays="VCMs are cut off unless an administrator restarts the servers in time.",
    ),
    "new-machines": NoticeKind("unknown machines ask to boot, more than COD registers", to=_SITE),
    "test": NoticeKind("a test notice was requested"),
}


def for_person(administrator: bool) -> dict[str, NoticeKind]:
    """Return the kinds of notices that a person can have by mail."""
    ours = {Audience.GROUP, Audience.WATCHERS} | ({Audience.SITE} if administrator else set())
    return {name: kind for name, kind in KINDS.items() if kind.to & ours and name != "test"}


def remedy(kind: str, unknown: str) -> str:
    """Return the text of a notice's link. `unknown` is returned for a kind that no longer
    exists."""
    return KINDS[kind].remedy if kind in KINDS else unknown
