"""What groups and the site's administrators are told: one function for each event, which says what
happened and what to do about it. Pure.

Each function returns the arguments that `store.notices.notices.add` takes beside the recipient, so
that a flow tells of an event in one line::

    notices.add(tx, **notice_texts.lease_ended(vcluster), group_id=vcluster.group_id,
    vcluster_id=vcluster.id, now=now)

`KINDS` lists the kinds of notices; programs that receive notices tell them apart by these names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TypedDict
from urllib.parse import quote

from cod.model import MaintenanceWindow, Vcluster
from cod.quantity import first_few, span

KINDS = {
    "lease-began": "the vcluster's nodes were granted, and its lease runs",
    "ready": "all nodes of the vcluster run its software",
    "lease-warning": "the lease ends soon",
    "lease-extended": "the lease ends later than it did",
    "lease-ended": "the lease is over; the nodes are drained",
    "drained": "the grace after the lease is over; the nodes are taken back",
    "deleted": "the vcluster was deleted",
    "reclaim": "nodes are wanted for a request of higher priority",
    "reclaim-dropped": "reclaimed nodes are no longer needed",
    "reclaimed": "nodes were taken back",
    "move": "nodes of the vcluster are to move to another",
    "moved": "nodes of the vcluster were moved to another",
    "reservation-late": "a reservation in advance begins later than planned",
    "maintenance": "nodes of the vcluster go out of service for maintenance, or do not after all",
    "series": "a start of a series of reservations could not be reserved",
    "series-reserved": "such a start is reserved after all",
    "node-hours": "a group has used 80 or 100 per cent of its node-hours of the month",
    "budget": "a group has used 80 or 100 per cent of its budget of the month",
    "guarantees": "groups are guaranteed more nodes than the site has",
    "guarantees-met": "the site has as many nodes again as groups are guaranteed",
    "decided": "a request that somebody watches was granted, rejected or withdrawn",
    "rejected": "a request for nodes was rejected",
    "node-lost": "a node of the vcluster broke and is replaced",
    "reinstalled": "nodes of the vcluster were installed anew",
    "reinstall-halt": "a node was lost while it was installed anew; the others stay as they are",
    "stopped": "a failed node is not replaced, because another would fail, too",
    "hardware": "a node's hardware has changed",
    "architecture": "a machine cannot be booted",
    "identity": "a machine claims to be a node, and what COD sees of that node contradicts it",
    "dhcp": "a node's system takes its address from another DHCP server",
    "namesake": "another disk of a node has a volume called as one that was written",
    "found-off": "a node in use is off, though COD did not switch it off",
    "found-on": "a node in use that was found off is on again",
    "site-held": "the site grants and erases nothing until it is compared with its machines",
    "quarantined": "a node was taken out of service and needs an administrator",
    "power-control": "BMCs or outlets of nodes do not answer",
    "power-recovered": "BMCs and outlets that nodes waited for answer again",
    "directory-held": "the directory says that many users lose their rights, and is not believed",
    "directory-normal": "users are as the directory says again",
    "dns-secondary": "a secondary name server does not follow the site's zones",
    "dns-recovered": "a secondary name server follows the site's zones again",
    "image-server": "images are not served to nodes",
    "images-recovered": "images that nodes waited for are served again",
    "switch": "a switch does not answer, and nodes wait for it",
    "switch-recovered": "a switch that nodes waited for answers again",
    "switch-port": "a switch port could not be put into its VLAN and needs an administrator",
    "captured": "a node's disk was saved as an image",
    "capture-failed": "the capture of a node's disk failed",
    "vcm-certificate": (
        "the certificate of the vcluster's VCM expires soon, or has expired, and was not renewed"
    ),
    "volume-deleted": "a volume was deleted, and is kept for a while",
    "volume-erased": "the data of a deleted volume was erased",
    "volume-trouble": "a file server does not carry out a change of a volume",
    "volume-recovered": "a file server has carried out the change that it did not before",
    "authority": (
        "the certificate of the site's authority for VCMs expires; servers have to be restarted"
        " before"
    ),
    "new-machines": "unknown machines ask to boot, more than COD registers",
    "test": "a test notice was requested",
}
ENDS = {
    "found-on": "found-off",
    "power-recovered": "power-control",
    "images-recovered": "image-server",
    "directory-normal": "directory-held",
    "dns-recovered": "dns-secondary",
    "switch-recovered": "switch",
    "volume-recovered": "volume-trouble",
}
"""Kinds of notices that tell the end of a fault, and those that told its beginning, with the same
link."""
REMEDIES = {
    "lease-began": "Open the cluster",
    "ready": "Open the cluster",
    "lease-warning": "Extend the lease",
    "lease-extended": "Open the cluster",
    "lease-ended": "Extend the lease",
    "drained": "Request a new cluster",
    "reclaim": "Choose nodes to release",
    "reclaim-dropped": "Open the cluster",
    "reclaimed": "Request more nodes",
    "move": "Choose nodes to release",
    "moved": "Open the cluster",
    "reservation-late": "See why",
    "maintenance": "Open the cluster",
    "series": "Look at the series",
    "series-reserved": "Open the cluster",
    "node-hours": "See the group's shares",
    "budget": "See what was used",
    "guarantees": "Look at the shares",
    "guarantees-met": "Look at the shares",
    "decided": "Open the request",
    "rejected": "See why, and change the request",
    "node-lost": "Open the cluster",
    "reinstalled": "Open the cluster",
    "reinstall-halt": "Change the template, and try again",
    "stopped": "See why, and try again",
    "hardware": "Look at the node",
    "identity": "Look at the node",
    "dhcp": "Look at the node",
    "namesake": "Look at the node",
    "found-off": "Look at the node",
    "quarantined": "Look at the node",
    "found-on": "Look at the node",
    "site-held": "Look at the faults",
    "power-control": "Look at the faults",
    "power-recovered": "Look at the faults",
    "directory-held": "Look at the faults",
    "directory-normal": "Look at the faults",
    "dns-secondary": "Look at the faults",
    "dns-recovered": "Look at the faults",
    "image-server": "Look at the faults",
    "images-recovered": "Look at the faults",
    "switch": "Look at the faults",
    "switch-recovered": "Look at the faults",
    "switch-port": "Look at the node",
    "captured": "Open the image",
    "capture-failed": "Try again",
    "volume-deleted": "Restore the volume",
    "volume-trouble": "Look at the volume",
    "volume-recovered": "Open the volume",
    "vcm-certificate": "Enroll the VCM again",
}
"""What a notice's link is called, by kind."""
SECONDARY = "/faults#name-server-"
"""How the links of notices about secondaries begin; the rest is ADDRESS@SERVER."""
LONGEST_SUBJECT = 200
MOST_NAMES = 20  # nodes that a sentence names


class NoticeText(TypedDict):
    """A notice without its recipient; names as in `model.Notice`."""

    kind: str
    subject: str
    about: str
    link: str


def lease_began(vcluster: Vcluster, *, cut: bool = False) -> NoticeText:
    """Describe a granted request: nodes are on their way. `cut`: the group's node-hours make the
    lease shorter than was asked."""
    shorter = (
        " The lease is shorter than was asked for: the group has no more node-hours left in this"
        " month."
        if cut
        else ""
    )
    growth = 0 if vcluster.preemptible else vcluster.size - vcluster.creation_size
    called = ""
    if growth > 0 and vcluster.creation_size:
        called = f" {growth} of them are guaranteed to other groups, which may call them back."
    elif growth > 0:
        called = (
            " All of them are guaranteed to other groups, which may call them back: the vcluster"
            " can lose its last node."
        )
    return _news(
        "lease-began",
        f"{vcluster.name}: {_nodes(vcluster.size)} granted",
        f"Vcluster {vcluster.name} gets {_nodes(vcluster.size)}, which are being installed.{called}"
        f" Its lease ends {_at(vcluster.expires_at)}.{shorter}",
        _page(vcluster),
    )


def guarantees_exceed(what: str, guarantees: Mapping[str, int], nodes: int) -> NoticeText:
    """Describe that the site has fewer `nodes` than groups are guaranteed, by their names. `what`:
    which nodes."""
    each = ", ".join(f"{name} {count}" for name, count in sorted(guarantees.items()))
    return _news(
        "guarantees",
        f"{sum(guarantees.values())} {what} are guaranteed, the site has {nodes}",
        f"The site has {nodes} {what}, and {sum(guarantees.values())} are guaranteed to groups:"
        f" {each}. Not all of them can call in what they are guaranteed. Bring back retired nodes,"
        " or lower guarantees.",
        "/shares",
    )


def guarantees_met() -> NoticeText:
    """Describe the end of `guarantees_exceed`."""
    return _news(
        "guarantees-met",
        "the site has as many nodes as are guaranteed",
        "No more nodes are guaranteed to groups than the site has.",
        "/shares",
    )


def budget(
    group: str, part: int, cost: float, budget: float, currency: str, ends: float
) -> NoticeText:
    """Describe that a group's use has cost `part` per cent of its budget of the month that `ends`
    then."""
    return _news(
        "budget",
        f"{group}: {part} % of the month's budget is used",
        f"The nodes of group {group} have cost {cost:,.2f} of {budget:,.2f} {currency} in this"
        f" month, which ends {_at(ends)}. The budget is a warning: nothing is stopped.",
        f"/groups/{quote(group, safe='')}",
    )


def node_hours(group: str, part: int, used: float, limit: float, ends: float) -> NoticeText:
    """Describe that a group has used `part` per cent of its node-hours of the month that `ends`
    then."""
    what = (
        f"It gets no more nodes before {_at(ends)}. Its leases that run last until they end."
        if part >= 100
        else "New leases, and longer ones, are bounded by what is left."
    )
    return _news(
        "node-hours",
        f"{group}: {part} % of the month's node-hours used",
        f"Group {group} has used {used:,.1f} of its {limit:,.0f} node-hours of this month. {what}",
        "/shares",
    )


def vcluster_ready(vcluster: Vcluster, nodes: int) -> NoticeText:
    """Describe a vcluster whose nodes are all active for the first time."""
    return _news(
        "ready",
        f"{vcluster.name} is ready",
        f"Vcluster {vcluster.name} is ready: {_nodes(nodes)} run its software. Its lease ends "
        f"{_at(vcluster.expires_at)}.",
        _page(vcluster),
    )


def lease_warning(vcluster: Vcluster, seconds: float) -> NoticeText:
    """Describe a lease that ends in about `seconds`."""
    return _news(
        "lease-warning",
        f"{vcluster.name}: lease ends in {span(seconds)}",
        f"The lease of vcluster {vcluster.name} ends {_at(vcluster.expires_at)}. Its nodes are then"
        " drained and taken back, and their disks are erased. Extend the lease to keep the nodes,"
        " or save your data before.",
        _page(vcluster, "extend"),
    )


def extended(vcluster: Vcluster) -> NoticeText:
    """Describe a lease that was extended."""
    return _news(
        "lease-extended",
        f"{vcluster.name}: lease extended",
        f"The lease of vcluster {vcluster.name} now ends {_at(vcluster.expires_at)}.",
        _page(vcluster),
    )


def lease_ended(vcluster: Vcluster) -> NoticeText:
    """Describe a lease that is over: the nodes are drained until `drain_until`."""
    return _news(
        "lease-ended",
        f"{vcluster.name}: lease has ended",
        f"The lease of vcluster {vcluster.name} has ended. Its nodes stay until"
        f" {_at(vcluster.drain_until)} and are then powered off and taken back, and their disks are"
        " erased. Save your data, or extend the lease before then.",
        _page(vcluster, "extend"),
    )


def maintenance(vcluster: Vcluster, nodes: Sequence[str], window: MaintenanceWindow) -> NoticeText:
    """Describe maintenance of nodes that vcluster holds longer than until it begins."""
    return _news(
        "maintenance",
        f"{vcluster.name}: {_nodes(len(nodes))} in maintenance from {_at(window.begins_at)}",
        f"These nodes of vcluster {vcluster.name} go out of service {_at(window.begins_at)}"
        f"{_until(window)} ({window.reason}): {_names(nodes)}. They are powered off and taken then,"
        " and their disks are erased. Save your data, or release them before. Other nodes take"
        " their places as far as there are any.",
        _page(vcluster),
    )


def maintenance_began(
    vcluster: Vcluster, nodes: Sequence[str], window: MaintenanceWindow
) -> NoticeText:
    """Describe nodes that were taken for maintenance."""
    return _news(
        "maintenance",
        f"{vcluster.name}: {_nodes(len(nodes))} taken for maintenance",
        f"These nodes of vcluster {vcluster.name} are out of service{_until(window)}"
        f" ({window.reason}): {_names(nodes)}. Other nodes take their places as far as there are"
        " any.",
        _page(vcluster),
    )


def maintenance_in_the_way(vcluster: Vcluster, window: MaintenanceWindow) -> NoticeText:
    """Describe a reservation in advance that finds no place by maintenance."""
    return _news(
        "maintenance",
        f"{vcluster.name}: maintenance is in the way of its reservation",
        f"Maintenance of {window.what} from {_at(window.begins_at)}{_until(window)}"
        f" ({window.reason}) leaves too few nodes for the reservation of vcluster {vcluster.name}."
        " It begins late. Reserve another time, or fewer nodes.",
        _page(vcluster),
    )


def maintenance_moved(
    vcluster: Vcluster, nodes: Sequence[str], window: MaintenanceWindow
) -> NoticeText:
    """Describe maintenance of nodes of the vcluster that takes place at another time."""
    return _news(
        "maintenance",
        f"{vcluster.name}: maintenance now begins {_at(window.begins_at)}",
        f"Maintenance of these nodes of vcluster {vcluster.name} was moved. It now begins"
        f" {_at(window.begins_at)}{_until(window)} ({window.reason}): {_names(nodes)}.",
        _page(vcluster),
    )


def maintenance_cancelled(
    vcluster: Vcluster, nodes: Sequence[str], window: MaintenanceWindow
) -> NoticeText:
    """Describe maintenance of nodes of the vcluster that does not take place."""
    return _news(
        "maintenance",
        f"{vcluster.name}: maintenance is cancelled",
        f"Maintenance of these nodes of vcluster {vcluster.name}, planned for"
        f" {_at(window.begins_at)} ({window.reason}), is cancelled: {_names(nodes)}. No action is"
        " needed.",
        _page(vcluster),
    )


def _until(window: MaintenanceWindow) -> str:
    return "" if window.ends_at is None else f" until {_at(window.ends_at)}"


def drained(vcluster: Vcluster) -> NoticeText:
    """Describe a vcluster whose grace after the lease is over: its nodes are taken."""
    return _news(
        "drained",
        f"{vcluster.name}: its nodes are taken back",
        f"The lease of vcluster {vcluster.name} has ended, and so has the time to save data. Its"
        " nodes are taken back and erased. Create a new vcluster to get nodes again.",
        "/vclusters/new",
    )


def deleted(vcluster: Vcluster, actor: str) -> NoticeText:
    """Describe a vcluster that `actor` ended."""
    return _news(
        "deleted",
        f"{vcluster.name} was deleted",
        f"Vcluster {vcluster.name} was deleted by {actor}. Its nodes return to the reserve pool and"
        " are erased.",
    )


def reclaim(vcluster: Vcluster, nodes: Sequence[str], count: int, deadline: float) -> NoticeText:
    """Describe a reclaim of `count` nodes by `deadline`; the manager chose `nodes` (names; may be
    empty)."""
    chosen = (
        f" Unless other matching nodes are released before, COD takes these: {_names(nodes)}."
        if nodes
        else ""
    )
    return _news(
        "reclaim",
        f"{vcluster.name}: {_nodes(count)} to release",
        f"{_request(vcluster)} needs {_nodes(count)} of vcluster {vcluster.name}. Release them by"
        f" {_at(deadline)}. Nodes that are not released by then are powered off and taken, and"
        f" their disks are erased.{chosen}",
        _page(vcluster, "reclaims"),
    )


def reclaim_dropped(vcluster: Vcluster, count: int) -> NoticeText:
    """Describe a reclaim of `count` nodes that was dropped."""
    return _news(
        "reclaim-dropped",
        f"{vcluster.name}: {_nodes(count)} may stay",
        f"The request that needed {_nodes(count)} of vcluster {vcluster.name} no longer needs them."
        " No action is needed. Nodes that were already released do not come back.",
        _page(vcluster),
    )


def reservation_late(
    vcluster: Vcluster, request_id: int, starts_at: float, begun: bool, sentence: str = ""
) -> NoticeText:
    """Describe a reservation in advance that begins late, or, with `begun`, has begun late.
    `sentence`: why, and when it will."""
    kept = "" if vcluster.leased_at is None else " The vcluster keeps its nodes until then."
    what = (
        "Its nodes have been granted now, for as long as was asked."
        if begun
        else (
            "Too few of its nodes are free yet. The reservation has precedence and starts when its"
            f" nodes are free.{kept}{_said(sentence)}"
        )
    )
    return _news(
        "reservation-late",
        f"{vcluster.name}: reservation {'began' if begun else 'begins'} late",
        f"Request {request_id} of vcluster {vcluster.name} reserved nodes from {_at(starts_at)} on."
        f" {what}",
        f"/requests/{request_id}",
    )


def series_refused(series: str, vcluster: str, starts_at: float, why: str) -> NoticeText:
    """Describe a start of a series whose cluster could not be reserved, for `why` (a sentence)."""
    return _news(
        "series",
        f"{series}: nothing is reserved from {_at(starts_at)} on",
        f"Vcluster {vcluster} of series {series} could not be reserved from {_at(starts_at)} on:"
        f" {_sentence(why)} COD tries it again until then; the other starts of the series stay as"
        " they are.",
        f"/series/{series}",
    )


def series_reserved(series: str, vcluster: str, starts_at: float) -> NoticeText:
    """Describe a start of a series whose cluster is reserved after it was refused."""
    return _news(
        "series-reserved",
        f"{series}: {vcluster} is reserved from {_at(starts_at)} on",
        f"Vcluster {vcluster} of series {series}, which could not be reserved before, is reserved"
        f" from {_at(starts_at)} on.",
        f"/vclusters/{vcluster}",
    )


def _said(sentence: str) -> str:
    return f" The request {sentence}." if sentence else ""


def reclaimed(vcluster: Vcluster, nodes: Sequence[str]) -> NoticeText:
    """Describe nodes that were seized; the vcluster's size is what is left."""
    return _news(
        "reclaimed",
        f"{vcluster.name}: {_nodes(len(nodes))} taken back",
        f"These nodes left vcluster {vcluster.name}: {_names(nodes)}. {_request(vcluster)} needed"
        f" them. The vcluster now has {_nodes(vcluster.size)}.",
        _page(vcluster, "resize"),
    )


def _request(vcluster: Vcluster) -> str:
    if vcluster.preemptible:
        return "The vcluster is preemptible, and another request"
    return "A request of higher priority"


def move(
    vcluster: Vcluster, nodes: Sequence[str], target: str, actor: str, deadline: float
) -> NoticeText:
    """Describe nodes that `actor` moves to another vcluster by `deadline`; `target`: '' where it
    belongs to others."""
    return _news(
        "move",
        f"{vcluster.name}: {_nodes(len(nodes))} to move by {_at(deadline)}",
        f"Vcluster {vcluster.name} gives {_nodes(len(nodes))} to"
        f" {f'vcluster {target}' if target else 'a vcluster of another group'}, as {actor} decided."
        f" Finish the work on them and release them by {_at(deadline)}. Nodes that are not released"
        " by then are powered off and taken, and their disks are erased. Unless other matching"
        f" nodes are released before, COD takes these: {_names(nodes)}.",
        _page(vcluster, "reclaims"),
    )


def moved(vcluster: Vcluster, nodes: Sequence[str]) -> NoticeText:
    """Describe nodes that were taken at the deadline of a move; the vcluster's size is what is
    left."""
    return _news(
        "moved",
        f"{vcluster.name}: {_nodes(len(nodes))} moved",
        f"The time to release nodes for a move is over. These nodes left vcluster {vcluster.name}: "
        f"{_names(nodes)}. The vcluster now has {_nodes(vcluster.size)}.",
        _page(vcluster, "resize"),
    )


def request_rejected(vcluster: Vcluster, request_id: int, reason: str) -> NoticeText:
    """Describe a request that is rejected for `reason` (a sentence)."""
    return _news(
        "rejected",
        f"{vcluster.name}: request {request_id} rejected",
        f"Request {request_id} of vcluster {vcluster.name} was rejected: {_sentence(reason)}",
        f"/requests/{request_id}",
    )


def node_lost(vcluster: Vcluster, node: str, reason: str) -> NoticeText:
    """Describe a node that the vcluster lost; COD requests another in its place."""
    return _news(
        "node-lost",
        f"{vcluster.name}: node {node} is lost",
        f"Node {node} has left vcluster {vcluster.name}: {_sentence(reason)} Another node replaces"
        " it as soon as one is free.",
        _page(vcluster),
    )


def request_decided(vcluster: Vcluster, request_id: int, state: str, reason: str) -> NoticeText:
    """Describe to those who watch a request that it is decided: granted, rejected or withdrawn."""
    begins = state == "granted"
    why = f" {_sentence(reason)}" if reason else ""
    return _news(
        "decided",
        f"{vcluster.name}: request {request_id} {'begins' if begins else f'was {state}'}",
        f"Request {request_id} of vcluster {vcluster.name} was {state}.{why}"
        + (" Its nodes are being installed." if begins else ""),
        f"/requests/{request_id}",
    )


def reinstalled(vcluster: Vcluster) -> NoticeText:
    """Describe that all nodes that were to be installed anew have been."""
    return _news(
        "reinstalled",
        f"{vcluster.name}: nodes are reinstalled",
        f"All nodes of vcluster {vcluster.name} that were to be reinstalled run their new system.",
        _page(vcluster),
    )


def reinstall_stopped(vcluster: Vcluster, node: str, reason: str, waiting: int) -> NoticeText:
    """Describe that `node` was lost while it was reinstalled, and that the `waiting` ones are not
    touched."""
    return _news(
        "reinstall-halt",
        f"{vcluster.name}: reinstalling stopped at node {node}",
        f"Node {node} of vcluster {vcluster.name} was lost while it was reinstalled:"
        f" {_sentence(reason)} {_nodes(waiting)} that had not begun keep their system.",
        f"{_page(vcluster)}/reinstall",
    )


def request_stopped(vcluster: Vcluster, request_id: int, reason: str) -> NoticeText:
    """Describe a request in place of a failed node that is stopped for `reason` (a sentence)."""
    return _news(
        "stopped",
        f"{vcluster.name}: request {request_id} stopped",
        f"A node of vcluster {vcluster.name} could not be made ready, and no other is tried in its"
        f" place: {_sentence(reason)} Change the template and try the request again with its new"
        " revision, or withdraw the request.",
        f"/requests/{request_id}",
    )


def hardware_changed(
    node: str, before: str, after: str, holder: str | None, lacking: str = "", changes: str = ""
) -> NoticeText:
    """Describe a node that reported other hardware than before: its types, by name; `lacking`: what
    its holder's needs miss now; `changes`: what differs."""
    what = f" What has changed: {_sentence(changes)}" if changes else ""
    held = f" It is held by vcluster {holder}." if holder else ""
    misses = f" It no longer matches: {_sentence(lacking)}" if lacking else ""
    return _news(
        "hardware",
        f"node {node}: hardware has changed",
        f"Node {node} was of type {before} and is of type {after} now.{what}{held}{misses} If"
        " nobody changed the hardware on purpose, check the machine and its last report.",
        _path("nodes", node),
    )


def cannot_boot(about: str) -> NoticeText:
    """Describe the first machine of the day that COD has no boot loader for; `about` says which and
    why."""
    told = _sentence("Machine " + about)
    return _news(
        "architecture",
        "a machine cannot be booted",
        f"{told} COD does not answer it. Other machines of the same day are listed on the page"
        " Nodes.",
    )


def vcm_certificate(vcluster: Vcluster, ends_at: float, now: float, *, inside: bool) -> NoticeText:
    """Describe a VCM's certificate that ends, or has ended, at `ends_at`. `inside`: the VCM runs on
    one of its nodes."""
    ended = now >= ends_at
    how = "Enroll the VCM again" + (", and have its node installed again" if inside else "")
    subject = "has ended" if ended else f"ends in {span(ends_at - now)}"
    return _news(
        "vcm-certificate",
        f"{vcluster.name}: its VCM's certificate {subject}",
        f"The certificate of the virtual cluster manager of {vcluster.name}"
        f" {'ended' if ended else 'ends'} {_at(ends_at)}. The VCM should have renewed it by itself"
        " months ago: "
        + (
            f"the VCM can no longer connect. {how}."
            if ended
            else (
                "check that the VCM runs, can connect and can write its folder, and read its log."
                f" {how} if that does not help."
            )
        ),
        _page(vcluster, "vcm"),
    )


def authority_ends(ends_at: float) -> NoticeText:
    """Describe an authority's certificate that ends: no server has been started for so long."""
    return _news(
        "authority",
        "the authority for VCMs ends",
        "The certificate of this site's authority, by which virtual cluster managers and servers"
        f" know each other, ends {_at(ends_at)}. A server renews it when it starts. VCMs get the"
        " new one when they renew their own certificates, within nine months. Restart each server"
        " of the site soon.",
    )


def not_believed(node: str, why: str) -> NoticeText:
    """Describe a machine whose agent claimed to be a node and was refused; `why`: a sentence."""
    return _news(
        "identity",
        f"a machine claims to be node {node}",
        f"An agent that claims to be node {node} was refused: {_sentence(why)} Another machine may"
        " use its MAC address, or the node's power driver and address are not its own.",
        _path("nodes", node),
    )


def asked_elsewhere(node: str, about: str) -> NoticeText:
    """Describe a machine that asked to boot as a node, but not where the node is; `about`: a
    sentence."""
    return _news(
        "identity",
        f"node {node} was heard elsewhere",
        f"{_sentence(about[0].upper() + about[1:])} It gets no answer. If the node was moved, an"
        " administrator confirms that; else another machine uses its MAC address. Further nodes"
        " heard elsewhere within the hour are listed as conflicts only.",
        _path("nodes", node),
    )


def other_dhcp_server(node: str, about: str) -> NoticeText:
    """Describe a node whose system takes its address from another DHCP server; `about`: a
    sentence."""
    return _news(
        "dhcp",
        f"node {node} uses another DHCP server",
        f"{_sentence(about[0].upper() + about[1:])} Further nodes within the hour are listed as"
        " conflicts only.",
        _path("nodes", node),
    )


def namesakes(node: str, about: str) -> NoticeText:
    """Describe a node with a volume on another disk that has the name of one that was written;
    `about`: sentences."""
    return _news(
        "namesake",
        f"node {node}: two volumes have the same name",
        f"Node {node}: {about}",
        _path("nodes", node),
    )


def found_off(node: str) -> NoticeText:
    """Describe a node in use that is off, though COD did not switch it off."""
    return _news(
        "found-off",
        f"node {node} is off",
        f"The power driver of node {node} says twice in a row that the node is off, and COD did not"
        " switch it off. Its system may have shut down, or its power may have failed. Power the"
        " node"
        " on, or release it.",
        _path("nodes", node),
    )


def found_on(node: str) -> NoticeText:
    """Describe the end of `found_off`."""
    return _news(
        "found-on",
        f"node {node} is on again",
        f"The power driver of node {node} says that the node is on again. No action is needed.",
        _path("nodes", node),
    )


def quarantined(node: str, reason: str) -> NoticeText:
    """Describe a node that was taken out of service."""
    return _news(
        "quarantined",
        f"node {node} is quarantined",
        f"Node {node} was taken out of service: {_sentence(reason)} It gets no work until an"
        " administrator returns it to service.",
        _path("nodes", node),
    )


def site_held(reason: str) -> NoticeText:
    """Describe a site that is held."""
    return _news(
        "site-held",
        "the site is held",
        f"Nothing is granted or erased: {reason}. Machines are asked what they hold, and compared"
        " with the database. An administrator ends the hold on the server's host.",
        _path("faults"),
    )


def switch_away(switch: str, nodes: Sequence[str], reason: str) -> NoticeText:
    """Describe a switch that does not answer; `nodes` wait for their ports' VLANs."""
    return _news(
        "switch",
        f"switch {switch} does not answer",
        f"COD cannot change ports of switch {switch}: {_sentence(reason)} These nodes wait for it:"
        f" {_names(nodes)}. The nodes continue by themselves once the switch answers.",
        _fault(f"switch {switch}"),
    )


def switch_back(switch: str) -> NoticeText:
    """Describe a switch that answers again after `switch_away`."""
    return _news(
        "switch-recovered",
        f"switch {switch} answers again",
        f"Switch {switch} answers again. Nodes that waited for it go on.",
        _fault(f"switch {switch}"),
    )


def power_control_away(nodes: Sequence[str]) -> NoticeText:
    """Describe BMCs or outlets that do not answer; `nodes`: each with its driver and address."""
    return _news(
        "power-control",
        f"power control of {_nodes(len(nodes))} does not answer",
        f"BMCs or outlets of these nodes do not answer: {_names(nodes)}. COD keeps trying."
        " The nodes continue by themselves once their BMCs or outlets answer. A vcluster that has"
        " waited for a node for half an hour gets another node in its place.",
        _fault("power control"),
    )


def power_control_back() -> NoticeText:
    """Describe the end of `power_control_away`."""
    return _news(
        "power-recovered",
        "no node waits for power control",
        "All BMCs and outlets that nodes waited for answer again, or are no longer needed.",
        _fault("power control"),
    )


def images_not_served(nodes: Sequence[str], reason: str) -> NoticeText:
    """Describe images that COD does not serve. `nodes` need them; `reason`: what one of them
    says."""
    return _news(
        "image-server",
        f"{_nodes(len(nodes))} cannot fetch images",
        f"COD does not serve the images of these nodes: {_names(nodes)}. {nodes[0]} says:"
        f" {_sentence(reason)} The nodes continue by themselves once the images are served.",
        _fault("the image server"),
    )


def images_served() -> NoticeText:
    """Describe the end of `images_not_served`."""
    return _news(
        "images-recovered",
        "no node waits for images",
        "COD serves the images that nodes waited for again, or nodes no longer need them.",
        _fault("the image server"),
    )


def directory_held(users: Sequence[str], people: int) -> NoticeText:
    """Describe an answer of the directory that would take rights from `users`, of `people` who have
    some: too many at once for COD to believe it."""
    return _news(
        "directory-held",
        f"{len(users)} of {people} users would lose their rights",
        f"By what the LDAP directory says, these of {people} users have left it, or a group that"
        f" gave them a role: {_names(users)}. They keep their rights, because an empty or partial"
        " answer looks the same. Look whether the directory is right. If it is, an administrator"
        " can compare the users with it and trust it (POST /users/sync with trust).",
        _fault("the directory"),
    )


def directory_normal() -> NoticeText:
    """Describe the end of `directory_held`."""
    return _news(
        "directory-normal",
        "users are as the directory says",
        "No answer of the LDAP directory is held back: users have the rights that it gives.",
        _fault("the directory"),
    )


def secondary_late(secondary: str, wrong: str) -> NoticeText:
    """Describe a secondary that does not follow the site's zones. `secondary`: ADDRESS@SERVER, by
    the server that asks it; `wrong`: why."""
    address, _, server = secondary.partition("@")
    return _news(
        "dns-secondary",
        f"name server {address} does not follow the zones",
        f"Server {server} asks the secondary {address} for the serials of the site's zones:"
        f" {_sentence(wrong)} Its clients may get names of nodes that have left. Look whether it"
        " runs, may fetch zones (its log), and has the key of [dns] transfer_key_file.",
        _fault(f"name server {secondary}"),
    )


def secondary_follows(secondary: str) -> NoticeText:
    """Describe the end of `secondary_late`."""
    address, _, server = secondary.partition("@")
    return _news(
        "dns-recovered",
        f"name server {address} follows the zones again",
        f"The secondary {address} has the zones' serials, as server {server} sees it.",
        _fault(f"name server {secondary}"),
    )


def port_given_up(switch: str, port: str, node: str, vlan: int, reason: str) -> NoticeText:
    """Describe a switch port that was not put into its VLAN. `node`: whose NIC is on it, '' where
    nobody knows."""
    of = f" of node {node}" if node else ""
    return _news(
        "switch-port",
        f"port {port} of switch {switch} could not be changed",
        f"Port {port} of switch {switch}{of} was not put into VLAN {vlan}: {_sentence(reason)} It"
        " is not tried again until an administrator has it tried again, or the port is wanted in"
        " another VLAN.",
        _path("nodes", node) if node else _path("nodes"),
    )


def captured(node: str, image: str, template: str) -> NoticeText:
    """Describe a node's disk that was saved as `image`; `template`: 'name@revision', '' for
    none."""
    use = f" The template {template} writes it to other nodes." if template else ""
    return _news(
        "captured",
        f"image {image} of node {node} is ready",
        f"The disk of node {node} was saved as the image {image}.{use}",
        _path("images", *image.split("/")),
    )


def capture_failed(node: str, image: str, reason: str) -> NoticeText:
    """Describe a capture that failed."""
    return _news(
        "capture-failed",
        f"node {node} was not captured",
        f"The capture of node {node} as image {image} failed: {_sentence(reason)} The disk was not"
        " changed.",
        _path("nodes", node, "capture"),
    )


def new_machines_refused(subnet: str, about: str) -> NoticeText:
    """Say that machines which are not known are refused on a subnet, and why: `about`, a
    sentence."""
    return _news(
        "new-machines",
        f"new machines on subnet {subnet} are refused",
        f"{_sentence(about[0].upper() + about[1:])} Approved machines boot as before.",
    )


def test(group: str, actor: str) -> NoticeText:
    """Describe the test that `cod notice test` sends."""
    return _news(
        "test",
        f"test notice for group {group}",
        f"This notice shows whether notices reach group {group}; {actor} requested it. No action is"
        " needed.",
    )


# ---------------------------------------------------------------- words


def volume_deleted(name: str, purge_at: float, cause: str) -> NoticeText:
    """Describe a volume that was deleted: its data is kept until `purge_at`. `cause`: a sentence
    without its stop."""
    return _news(
        "volume-deleted",
        f"volume {name} is deleted: restore it before {_at(purge_at)}",
        f"Volume {name} is deleted: {cause}. Its data is kept until {_at(purge_at)} and then"
        " erased. Until then an owner of its group can restore it.",
        _volume(name),
    )


def volume_erased(name: str) -> NoticeText:
    """Describe a deleted volume whose time to be restored is over."""
    return _news(
        "volume-erased",
        f"volume {name} is erased",
        f"The time in which volume {name} could be restored is over. Its data and its snapshots are"
        " erased.",
    )


def volume_trouble(name: str, fileserver: str, error: str) -> NoticeText:
    """Describe a change of a volume that its file server does not carry out."""
    return _news(
        "volume-trouble",
        f"volume {name}: file server {fileserver} does not carry out a change",
        f"A change of volume {name} is not carried out: {_sentence(error)} COD keeps trying."
        " Nodes that have mounted the volume keep it as it was.",
        _volume(name),
    )


def volume_trouble_over(name: str, fileserver: str) -> NoticeText:
    """Describe that a file server has carried out what it did not for a while."""
    return _news(
        "volume-recovered",
        f"volume {name}: file server {fileserver} has carried out the change",
        f"File server {fileserver} has carried out the change of volume {name} that it did not"
        " carry"
        " out before.",
        _volume(name),
    )


def _volume(name: str) -> str:
    return "/volumes/" + quote(name)


def _news(kind: str, subject: str, about: str, link: str = "") -> NoticeText:
    return NoticeText(kind=kind, subject=subject[:LONGEST_SUBJECT], about=about, link=link)


def _path(*parts: str) -> str:
    """Return a path of the portal."""
    return "".join(f"/{quote(part, safe='')}" for part in parts)


def _fault(what: str) -> str:
    """Return the path of the portal's page of faults, at the fault of that name."""
    return f"/faults#{quote(what.replace(' ', '-'), safe='')}"


def _page(vcluster: Vcluster, form: str = "") -> str:
    """Return the path of the vcluster's page in the portal, at that form."""
    return _path("vclusters", vcluster.name) + (f"#{form}" if form else "")


def _at(at: float | None) -> str:
    return (
        "at a time not set yet"
        if at is None
        else f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M} UTC"
    )


def _count(count: int, thing: str) -> str:
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"


def _nodes(count: int) -> str:
    return _count(count, "node")


def _names(nodes: Sequence[str]) -> str:
    return first_few(nodes, MOST_NAMES)


def _sentence(text: str) -> str:
    return text if text.endswith((".", "!", "?")) else text + "."
