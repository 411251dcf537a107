"""Notices about maintenance windows that affect a vcluster."""

from __future__ import annotations

from collections.abc import Sequence

from cod.model import MaintenanceWindow, Vcluster
from cod.notice_texts.words import NoticeText, cluster_page, moment, node_count, node_names, notice


def maintenance(vcluster: Vcluster, nodes: Sequence[str], window: MaintenanceWindow) -> NoticeText:
    """Describe maintenance of nodes that the vcluster holds beyond its beginning."""
    return notice(
        "maintenance",
        f"{vcluster.name}: {node_count(len(nodes))} in maintenance from {moment(window.begins_at)}",
        f"These nodes of cluster {vcluster.name} go out of service {moment(window.begins_at)}"
        f"{_until(window)} ({window.reason}): {node_names(nodes)}. They are powered off and taken"
        " then, and their disks are erased. Save your data, or release them before. Other nodes"
        " take their places as far as there are any.",
        cluster_page(vcluster),
    )


def maintenance_began(
    vcluster: Vcluster, nodes: Sequence[str], window: MaintenanceWindow
) -> NoticeText:
    """Describe nodes that were taken for maintenance."""
    return notice(
        "maintenance",
        f"{vcluster.name}: {node_count(len(nodes))} taken for maintenance",
        f"These nodes of cluster {vcluster.name} are out of service{_until(window)}"
        f" ({window.reason}): {node_names(nodes)}. Other nodes take their places as far as there"
        " are any.",
        cluster_page(vcluster),
    )


def maintenance_in_the_way(vcluster: Vcluster, window: MaintenanceWindow) -> NoticeText:
    """Describe a reservation in advance that finds no nodes because of maintenance."""
    return notice(
        "maintenance",
        f"{vcluster.name}: maintenance is in the way of its reservation",
        f"Maintenance of {window.what} from {moment(window.begins_at)}{_until(window)}"
        f" ({window.reason}) leaves too few nodes for the reservation of cluster {vcluster.name}."
        " It begins late. Reserve another time, or fewer nodes.",
        cluster_page(vcluster),
    )


def maintenance_moved(
    vcluster: Vcluster, nodes: Sequence[str], window: MaintenanceWindow
) -> NoticeText:
    """Describe maintenance of the vcluster's nodes that was moved to another time."""
    return notice(
        "maintenance",
        f"{vcluster.name}: maintenance now begins {moment(window.begins_at)}",
        f"Maintenance of these nodes of cluster {vcluster.name} was moved. It now begins"
        f" {moment(window.begins_at)}{_until(window)} ({window.reason}): {node_names(nodes)}.",
        cluster_page(vcluster),
    )


def maintenance_cancelled(
    vcluster: Vcluster, nodes: Sequence[str], window: MaintenanceWindow
) -> NoticeText:
    """Describe maintenance of the vcluster's nodes that was cancelled."""
    return notice(
        "maintenance",
        f"{vcluster.name}: maintenance is cancelled",
        f"Maintenance of these nodes of cluster {vcluster.name}, planned for"
        f" {moment(window.begins_at)} ({window.reason}), is cancelled: {node_names(nodes)}. No"
        " action is needed.",
        cluster_page(vcluster),
    )


def _until(window: MaintenanceWindow) -> str:
    return "" if window.ends_at is None else f" until {moment(window.ends_at)}"
