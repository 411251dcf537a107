"""What groups and the site's administrators are told: one function for each event, which says what happened and what
to do about it. Pure.

Each returns what `store.notices.notices.add` wants beside whom it is for, so that a flow tells of an event in one
line::

    notices.add(tx, **news.lease_ended(vcluster), group_id=vcluster.group_id, vcluster_id=vcluster.id, now=now)

`KINDS` is the list of what can be told; programs that receive notices tell them apart by these names.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TypedDict
from urllib.parse import quote

from cod.model import Vcluster

KINDS = {
    "lease-began": "the vcluster's nodes were granted, and its lease runs",
    "ready": "all nodes of the vcluster run its software",
    "lease-warning": "the lease ends soon",
    "lease-extended": "the lease ends later than it did",
    "lease-ended": "the lease is over; the nodes are drained",
    "drained": "the grace after the lease is over; the nodes are taken back",
    "deleted": "the vcluster was deleted",
    "reclaim": "nodes are wanted for a request of higher priority",
    "reclaim-dropped": "they are not wanted any more",
    "reclaimed": "nodes were taken back",
    "rejected": "a request for nodes was rejected",
    "node-lost": "a node of the vcluster broke and is replaced",
    "hardware": "a node's hardware is not what it was",
    "architecture": "a machine cannot be booted",
    "quarantined": "a node was taken out of service and needs an administrator",
    "captured": "a node's disk was saved as an image",
    "capture-failed": "a node's disk was to be saved as an image, and was not",
    "vcm-certificate": "the certificate of the vcluster's VCM ends soon, or has ended, and was not renewed",
    "authority": "the site's authority for VCMs ends, and its servers have to be started anew before",
    "new-machines": "machines that are not known ask to boot, more than are registered",
    "test": "somebody asked for a test notice",
}
REMEDIES = {
    "lease-began": "Open the cluster", "ready": "Open the cluster", "lease-warning": "Extend the lease",
    "lease-extended": "Open the cluster", "lease-ended": "Extend the lease", "drained": "Ask for a new cluster",
    "reclaim": "Choose which nodes to give back", "reclaim-dropped": "Open the cluster",
    "reclaimed": "Ask for more nodes", "rejected": "See why, and change the request", "node-lost": "Open the cluster",
    "hardware": "Look at the node", "quarantined": "Look at the node", "captured": "Open the image",
    "capture-failed": "Try again", "vcm-certificate": "Enrol it anew",
}
"""What a notice's link is called, by kind."""
LONGEST_SUBJECT = 200
MOST_NAMES = 20  # nodes that a sentence names


class News(TypedDict):
    """A notice before it is known whom it is for; names as in `model.Notice`."""

    kind: str
    subject: str
    about: str
    link: str


def lease_began(vcluster: Vcluster) -> News:
    """Describe a granted request: nodes are on their way."""
    return _news("lease-began", f"{vcluster.name}: {_nodes(vcluster.size)} granted",
                 f"Vcluster {vcluster.name} gets {_nodes(vcluster.size)}; they are being made ready. Its lease ends "
                 f"{_at(vcluster.expires_at)}.", _page(vcluster))


def vcluster_ready(vcluster: Vcluster, nodes: int) -> News:
    """All its nodes are active for the first time."""
    return _news("ready", f"{vcluster.name} is ready",
                 f"Vcluster {vcluster.name} is ready: {_nodes(nodes)} run its software. Its lease ends "
                 f"{_at(vcluster.expires_at)}.", _page(vcluster))


def lease_warning(vcluster: Vcluster, seconds: float) -> News:
    """Describe a lease that ends in about `seconds`."""
    return _news("lease-warning", f"{vcluster.name}: lease ends in {span(seconds)}",
                 f"The lease of vcluster {vcluster.name} ends {_at(vcluster.expires_at)}. Its nodes are then drained "
                 f"and taken back, and what is on their disks is lost. Extend the lease to keep them, or save what "
                 f"you need before.", _page(vcluster, "extend"))


def extended(vcluster: Vcluster) -> News:
    """Describe a lease that was extended."""
    return _news("lease-extended", f"{vcluster.name}: lease extended",
                 f"The lease of vcluster {vcluster.name} now ends {_at(vcluster.expires_at)}.", _page(vcluster))


def lease_ended(vcluster: Vcluster) -> News:
    """Describe a lease that is over: the nodes are drained until `drain_until`."""
    return _news("lease-ended", f"{vcluster.name}: lease has ended",
                 f"The lease of vcluster {vcluster.name} has ended. Its nodes stay until {_at(vcluster.drain_until)} "
                 f"and are then switched off and taken back, and what is on their disks is lost. Save what you need, "
                 f"or extend the lease before then.", _page(vcluster, "extend"))


def drained(vcluster: Vcluster) -> News:
    """The grace after its lease is over: its nodes are taken."""
    return _news("drained", f"{vcluster.name}: its nodes are taken back",
                 f"The lease of vcluster {vcluster.name} has ended and the time to save things is over. Its nodes are "
                 f"taken back and wiped. For nodes again, create a new vcluster.", "/vclusters/new")


def deleted(vcluster: Vcluster, actor: str) -> News:
    """Somebody ended it."""
    return _news("deleted", f"{vcluster.name} was deleted",
                 f"Vcluster {vcluster.name} was deleted by {actor}. Its nodes go back to the reserve pool and are "
                 f"wiped.")


def reclaim(vcluster: Vcluster, nodes: Sequence[str], count: int, deadline: float) -> News:
    """`count` nodes are wanted back by `deadline`; the manager chose `nodes` (names; may be empty: nothing chosen)."""
    chosen = f" Unless other matching nodes are given back before, these are taken: {_names(nodes)}." if nodes else ""
    return _news("reclaim", f"{vcluster.name}: {_nodes(count)} to give back",
                 f"A request of higher priority needs {_nodes(count)} of vcluster {vcluster.name}. They are to be "
                 f"given back by {_at(deadline)}. What is not given back by then is switched off and taken, and what "
                 f"is on its disks is lost.{chosen}", _page(vcluster, "reclaims"))


def reclaim_dropped(vcluster: Vcluster, count: int) -> News:
    """`count` nodes that were to be given back may stay."""
    return _news("reclaim-dropped", f"{vcluster.name}: {_nodes(count)} may stay",
                 f"The request that needed {_nodes(count)} of vcluster {vcluster.name} does not need them any more. "
                 f"Nothing is to be done; nodes that were given back already are not returned.", _page(vcluster))


def reclaimed(vcluster: Vcluster, nodes: Sequence[str]) -> News:
    """`nodes` were seized; the vcluster's size is what is left."""
    return _news("reclaimed", f"{vcluster.name}: {_nodes(len(nodes))} taken back",
                 f"These nodes left vcluster {vcluster.name} for a request of higher priority: {_names(nodes)}. It has "
                 f"{_nodes(vcluster.size)} now.", _page(vcluster, "resize"))


def request_rejected(vcluster: Vcluster, request_id: int, reason: str) -> News:
    """Describe a request that is rejected for `reason` (a sentence)."""
    return _news("rejected", f"{vcluster.name}: request {request_id} rejected",
                 f"Request {request_id} of vcluster {vcluster.name} was rejected: {_sentence(reason)}",
                 f"/requests/{request_id}")


def node_lost(vcluster: Vcluster, node: str, reason: str) -> News:
    """A node that it holds cannot be used by it any more; another is asked for in its place."""
    return _news("node-lost", f"{vcluster.name}: node {node} is lost",
                 f"Node {node} has left vcluster {vcluster.name}: {_sentence(reason)} Another one takes its place as "
                 f"soon as there is one.", _page(vcluster))


def hardware_changed(
    node: str, before: str, after: str, holder: str | None, lacking: str = "", changes: str = ""
) -> News:
    """A node reported other hardware than before: its types, by name; `lacking`: what its holder's needs miss now;
    `changes`: what differs."""
    what = f" What has changed: {_sentence(changes)}" if changes else ""
    held = f" It is held by vcluster {holder}." if holder else ""
    misses = f" It does not fit there any more: {_sentence(lacking)}" if lacking else ""
    return _news("hardware", f"node {node}: hardware has changed",
                 f"Node {node} was of type {before} and is of type {after} now.{what}{held}{misses} If nobody "
                 f"changed it on purpose, have a look at the machine, and at its last report.", _path("nodes", node))


def cannot_boot(about: str) -> News:
    """Describe the first machine of the day that COD has no boot loader for; `about` says which and why."""
    told = _sentence("Machine " + about)
    return _news("architecture", "a machine cannot be booted",
                 f"{told} COD does not answer it. Others of the same day are listed on the page Nodes.")


def vcm_certificate(vcluster: Vcluster, ends_at: float, now: float, *, inside: bool) -> News:
    """The certificate of its VCM ends, or has ended, at `ends_at`. `inside`: the VCM runs on one of its nodes."""
    ended = now >= ends_at
    how = "Enrol it anew" + (", and have its node installed anew" if inside else "")
    subject = "has ended" if ended else f"ends in {span(ends_at - now)}"
    return _news("vcm-certificate", f"{vcluster.name}: its VCM's certificate {subject}",
                 f"The certificate of the virtual cluster manager of {vcluster.name} {'ended' if ended else 'ends'} "
                 f"{_at(ends_at)}. It should have renewed it by itself months ago: "
                 + (f"it cannot connect any more. {how}." if ended else
                    f"see that it runs, can connect and can write its folder, and what its log says. {how} if it "
                    "cannot be mended."), _page(vcluster, "vcm"))


def authority_ends(ends_at: float) -> News:
    """The certificate of the site's authority ends, and no server has been started for so long that it was renewed."""
    return _news("authority", "the authority for VCMs ends",
                 f"The certificate of this site's authority, by which virtual cluster managers and servers know each "
                 f"other, ends {_at(ends_at)}. A server that is started renews it; VCMs learn of it when they renew "
                 f"theirs, which takes them up to nine months. Start each server of the site anew soon.")


def quarantined(node: str, reason: str) -> News:
    """A node was taken out of service."""
    return _news("quarantined", f"node {node} is quarantined",
                 f"Node {node} was taken out of service: {_sentence(reason)} It gets no work until an administrator "
                 f"has looked at it and brings it back.", _path("nodes", node))


def captured(node: str, image: str, template: str) -> News:
    """A node's disk is the image `image` now; `template`: 'name@revision', '' for none."""
    use = f" The template {template} writes it to other nodes." if template else ""
    return _news("captured", f"image {image} of node {node} is ready",
                 f"The disk of node {node} was saved as the image {image}.{use}", _path("images", *image.split("/")))


def capture_failed(node: str, image: str, reason: str) -> News:
    """There will be no image of a node's disk."""
    return _news("capture-failed", f"node {node} was not captured",
                 f"The disk of node {node} was to be saved as the image {image}, and was not: {_sentence(reason)} "
                 f"Nothing on it was changed.", _path("nodes", node, "capture"))


def new_machines_refused(subnet: str, about: str) -> News:
    """Say that machines which are not known are refused on a subnet, and why: `about`, a sentence."""
    return _news("new-machines", f"new machines on subnet {subnet} are refused",
                 f"{_sentence(about[0].upper() + about[1:])} Machines that are approved boot as ever.")


def test(group: str, actor: str) -> News:
    """What `cod notice test` sends."""
    return _news("test", f"test notice for group {group}",
                 f"This notice shows whether notices reach group {group}; {actor} asked for it. Nothing is to be done.")


# ---------------------------------------------------------------- words


def span(seconds: float) -> str:
    """A length of time in whole units, rounded to the nearest: '1 day', '3 hours', '45 minutes', '30 seconds'."""
    for unit, length in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if seconds >= 2 * length or seconds == length:
            return _count(round(seconds / length), unit)
    return _count(round(seconds), "second")


def _news(kind: str, subject: str, about: str, link: str = "") -> News:
    return News(kind=kind, subject=subject[:LONGEST_SUBJECT], about=about, link=link)


def _path(*parts: str) -> str:
    """A path of the portal."""
    return "".join(f"/{quote(part, safe='')}" for part in parts)


def _page(vcluster: Vcluster, form: str = "") -> str:
    """The page of the vcluster in the portal, at that form of it."""
    return _path("vclusters", vcluster.name) + (f"#{form}" if form else "")


def _at(at: float | None) -> str:
    return "at a time not set yet" if at is None else f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M} UTC"


def _count(count: int, thing: str) -> str:
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"


def _nodes(count: int) -> str:
    return _count(count, "node")


def _names(nodes: Sequence[str]) -> str:
    more = f" and {len(nodes) - MOST_NAMES} more" if len(nodes) > MOST_NAMES else ""
    return ", ".join(nodes[:MOST_NAMES]) + more


def _sentence(text: str) -> str:
    return text if text.endswith((".", "!", "?")) else text + "."
