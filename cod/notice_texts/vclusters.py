"""Notices about a vcluster: its lease, its nodes that come and go, its VCM."""

from __future__ import annotations

from collections.abc import Sequence

from cod.model import Vcluster
from cod.notice_texts.words import (
    NoticeText,
    cluster_page,
    moment,
    node_count,
    node_names,
    notice,
    sentence,
)
from cod.quantity import span


def lease_began(vcluster: Vcluster, *, cut: bool = False) -> NoticeText:
    """Describe a granted request, whose nodes are on their way. `cut`: the group's node-hours make
    the lease shorter than requested."""
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
            " All of them are guaranteed to other groups, which may call them back: the cluster"
            " can lose its last node."
        )
    return notice(
        "lease-began",
        f"{vcluster.name}: {node_count(vcluster.size)} granted",
        f"Cluster {vcluster.name} gets {node_count(vcluster.size)}, which are being installed."
        f"{called} Its lease ends {moment(vcluster.expires_at)}.{shorter}",
        cluster_page(vcluster),
    )


def vcluster_ready(vcluster: Vcluster, nodes: int) -> NoticeText:
    """Describe a vcluster whose nodes are all active for the first time."""
    return notice(
        "ready",
        f"{vcluster.name} is ready",
        f"Cluster {vcluster.name} is ready: {node_count(nodes)} run its software. Its lease ends "
        f"{moment(vcluster.expires_at)}.",
        cluster_page(vcluster),
    )


def lease_warning(vcluster: Vcluster, seconds: float) -> NoticeText:
    """Describe a lease that ends in about `seconds`."""
    return notice(
        "lease-warning",
        f"{vcluster.name}: lease ends in {span(seconds)}",
        f"The lease of cluster {vcluster.name} ends {moment(vcluster.expires_at)}. Its nodes are"
        " then drained and taken back, and their disks are erased. Extend the lease to keep the"
        " nodes, or save your data before.",
        cluster_page(vcluster, "extend"),
    )


def extended(vcluster: Vcluster) -> NoticeText:
    """Describe a lease that was extended."""
    return notice(
        "lease-extended",
        f"{vcluster.name}: lease extended",
        f"The lease of cluster {vcluster.name} now ends {moment(vcluster.expires_at)}.",
        cluster_page(vcluster),
    )


def renamed(vcluster: Vcluster, former: str) -> NoticeText:
    """Describe that a vcluster was renamed; `former` is its old name."""
    return notice(
        "renamed",
        f"{former}: called {vcluster.name} now",
        f"Cluster {former} is called {vcluster.name} now. The names of its nodes in DNS have"
        " changed, and the former ones lead to them until the cluster ends. Its nodes keep the"
        " host names that they were installed with until they are reinstalled.",
        cluster_page(vcluster),
    )


def lease_ended(vcluster: Vcluster) -> NoticeText:
    """Describe a lease that is over: the nodes are drained until `drain_until`."""
    return notice(
        "lease-ended",
        f"{vcluster.name}: lease has ended",
        f"The lease of cluster {vcluster.name} has ended. Its nodes stay until"
        f" {moment(vcluster.drain_until)} and are then powered off and taken back, and their"
        " disks are erased. Save your data, or extend the lease before then.",
        cluster_page(vcluster, "extend"),
    )


def drained(vcluster: Vcluster) -> NoticeText:
    """Describe a vcluster whose grace after the lease is over, so that its nodes are taken."""
    return notice(
        "drained",
        f"{vcluster.name}: its nodes are taken back",
        f"The lease of cluster {vcluster.name} has ended, and so has the time to save data. Its"
        " nodes are taken back and erased. Create a new cluster to get nodes again.",
        "/vclusters/new",
    )


def deleted(vcluster: Vcluster, actor: str) -> NoticeText:
    """Describe a vcluster that `actor` ended."""
    return notice(
        "deleted",
        f"{vcluster.name} was deleted",
        f"Cluster {vcluster.name} was deleted by {actor}. Its nodes return to the reserve pool and"
        " are erased.",
    )


def reclaim(vcluster: Vcluster, nodes: Sequence[str], count: int, deadline: float) -> NoticeText:
    """Describe a reclaim of `count` nodes by `deadline`. The manager chose `nodes` (names; may be
    empty)."""
    chosen = (
        f" Unless other matching nodes are released before, COD takes these: {node_names(nodes)}."
        if nodes
        else ""
    )
    return notice(
        "reclaim",
        f"{vcluster.name}: {node_count(count)} to release",
        f"{_request(vcluster)} needs {node_count(count)} of cluster {vcluster.name}. Release"
        f" them by {moment(deadline)}. Nodes that are not released by then are powered off and"
        f" taken, and their disks are erased.{chosen}",
        cluster_page(vcluster, "reclaims"),
    )


def reclaim_dropped(vcluster: Vcluster, count: int) -> NoticeText:
    """Describe a reclaim of `count` nodes that was dropped."""
    return notice(
        "reclaim-dropped",
        f"{vcluster.name}: {node_count(count)} may stay",
        f"The request that needed {node_count(count)} of cluster {vcluster.name} no longer needs"
        " them. No action is needed. Nodes that were already released do not come back.",
        cluster_page(vcluster),
    )


def reclaimed(vcluster: Vcluster, nodes: Sequence[str]) -> NoticeText:
    """Describe nodes that were seized. The vcluster's size is the number of its remaining nodes."""
    return notice(
        "reclaimed",
        f"{vcluster.name}: {node_count(len(nodes))} taken back",
        f"These nodes left cluster {vcluster.name}: {node_names(nodes)}. {_request(vcluster)}"
        f" needed them. The cluster now has {node_count(vcluster.size)}.",
        cluster_page(vcluster, "resize"),
    )


def _request(vcluster: Vcluster) -> str:
    if vcluster.preemptible:
        return "The cluster is preemptible, and another request"
    return "A request of higher priority"


def move(
    vcluster: Vcluster, nodes: Sequence[str], target: str, actor: str, deadline: float
) -> NoticeText:
    """Describe nodes that `actor` moves to another vcluster by `deadline`. `target` is its name, ''
    if it belongs to another group."""
    return notice(
        "move",
        f"{vcluster.name}: {node_count(len(nodes))} to move by {moment(deadline)}",
        f"Cluster {vcluster.name} gives {node_count(len(nodes))} to"
        f" {f'cluster {target}' if target else 'a cluster of another group'}, as {actor} decided."
        f" Finish the work on them and release them by {moment(deadline)}. Nodes that are not"
        " released by then are powered off and taken, and their disks are erased. Unless other"
        f" matching nodes are released before, COD takes these: {node_names(nodes)}.",
        cluster_page(vcluster, "reclaims"),
    )


def moved(vcluster: Vcluster, nodes: Sequence[str]) -> NoticeText:
    """Describe nodes that were taken at the deadline of a move. The vcluster's size is the number
    of its remaining nodes."""
    return notice(
        "moved",
        f"{vcluster.name}: {node_count(len(nodes))} moved",
        f"The time to release nodes for a move is over. These nodes left cluster {vcluster.name}: "
        f"{node_names(nodes)}. The cluster now has {node_count(vcluster.size)}.",
        cluster_page(vcluster, "resize"),
    )


def node_lost(vcluster: Vcluster, node: str, reason: str) -> NoticeText:
    """Describe a node that the vcluster lost; COD requests another in its place."""
    return notice(
        "node-lost",
        f"{vcluster.name}: node {node} is lost",
        f"Node {node} has left cluster {vcluster.name}: {sentence(reason)} Another node replaces"
        " it as soon as one is free.",
        cluster_page(vcluster),
    )


def reinstalled(vcluster: Vcluster) -> NoticeText:
    """Describe that all nodes that were to be reinstalled are reinstalled."""
    return notice(
        "reinstalled",
        f"{vcluster.name}: nodes are reinstalled",
        f"All nodes of cluster {vcluster.name} that were to be reinstalled run their new system.",
        cluster_page(vcluster),
    )


def reinstall_stopped(vcluster: Vcluster, node: str, reason: str, waiting: int) -> NoticeText:
    """Describe that `node` was lost while it was reinstalled, and that the `waiting` nodes stay as
    they are."""
    return notice(
        "reinstall-halt",
        f"{vcluster.name}: reinstalling stopped at node {node}",
        f"Node {node} of cluster {vcluster.name} was lost while it was reinstalled:"
        f" {sentence(reason)} {node_count(waiting)} that had not begun keep their system.",
        f"{cluster_page(vcluster)}/reinstall",
    )


def vcm_certificate(vcluster: Vcluster, ends_at: float, now: float, *, inside: bool) -> NoticeText:
    """Describe a VCM's certificate that expires, or has expired, at `ends_at`. `inside`: the VCM
    runs on one of the vcluster's nodes."""
    ended = now >= ends_at
    how = "Enroll the VCM again" + (", and have its node installed again" if inside else "")
    subject = "has ended" if ended else f"ends in {span(ends_at - now)}"
    return notice(
        "vcm-certificate",
        f"{vcluster.name}: its VCM's certificate {subject}",
        f"The certificate of the virtual cluster manager of {vcluster.name}"
        f" {'ended' if ended else 'ends'} {moment(ends_at)}. The VCM should have renewed it by"
        " itself months ago: "
        + (
            f"the VCM can no longer connect. {how}."
            if ended
            else (
                "check that the VCM runs, can connect and can write its folder, and read its log."
                f" {how} if that does not help."
            )
        ),
        cluster_page(vcluster, "vcm"),
    )
