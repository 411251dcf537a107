"""Notices about requests for nodes, reservations in advance and series of reservations."""

from __future__ import annotations

from cod.model import Vcluster
from cod.notice_texts.words import NoticeText, moment, notice, sentence


def reservation_late(
    vcluster: Vcluster, request_id: int, starts_at: float, begun: bool, sentence: str = ""
) -> NoticeText:
    """Describe a reservation in advance that will begin late or, with `begun`, has begun late.
    `sentence`: why, and when it begins."""
    kept = "" if vcluster.leased_at is None else " The cluster keeps its nodes until then."
    what = (
        "Its nodes have been granted now, for as long as was asked."
        if begun
        else (
            "Too few of its nodes are free yet. The reservation has precedence and starts when its"
            f" nodes are free.{kept}{_request_sentence(sentence)}"
        )
    )
    return notice(
        "reservation-late",
        f"{vcluster.name}: reservation {'began' if begun else 'begins'} late",
        f"Request {request_id} of cluster {vcluster.name} reserved nodes from"
        f" {moment(starts_at)} on. {what}",
        f"/requests/{request_id}",
    )


def series_refused(series: str, vcluster: str, starts_at: float, why: str) -> NoticeText:
    """Describe a start of a series whose cluster could not be reserved, for `why` (a sentence)."""
    return notice(
        "series",
        f"{series}: nothing is reserved from {moment(starts_at)} on",
        f"Cluster {vcluster} of series {series} could not be reserved from {moment(starts_at)} on:"
        f" {sentence(why)} COD tries it again until then; the other starts of the series stay as"
        " they are.",
        f"/series/{series}",
    )


def series_reserved(series: str, vcluster: str, starts_at: float) -> NoticeText:
    """Describe a start of a series whose cluster is reserved after it was refused."""
    return notice(
        "series-reserved",
        f"{series}: {vcluster} is reserved from {moment(starts_at)} on",
        f"Cluster {vcluster} of series {series}, which could not be reserved before, is reserved"
        f" from {moment(starts_at)} on.",
        f"/vclusters/{vcluster}",
    )


def _request_sentence(sentence: str) -> str:
    return f" The request {sentence}." if sentence else ""


def request_rejected(vcluster: Vcluster, request_id: int, reason: str) -> NoticeText:
    """Describe a request that is rejected for `reason` (a sentence)."""
    return notice(
        "rejected",
        f"{vcluster.name}: request {request_id} rejected",
        f"Request {request_id} of cluster {vcluster.name} was rejected: {sentence(reason)}",
        f"/requests/{request_id}",
    )


def request_decided(vcluster: Vcluster, request_id: int, state: str, reason: str) -> NoticeText:
    """Describe, to people who watch a request, its decision: granted, rejected or withdrawn."""
    begins = state == "granted"
    why = f" {sentence(reason)}" if reason else ""
    return notice(
        "decided",
        f"{vcluster.name}: request {request_id} {'begins' if begins else f'was {state}'}",
        f"Request {request_id} of cluster {vcluster.name} was {state}.{why}"
        + (" Its nodes are being installed." if begins else ""),
        f"/requests/{request_id}",
    )


def request_stopped(vcluster: Vcluster, request_id: int, reason: str) -> NoticeText:
    """Describe a request to replace a failed node that is stopped for `reason` (a sentence)."""
    return notice(
        "stopped",
        f"{vcluster.name}: request {request_id} stopped",
        f"A node of cluster {vcluster.name} could not be made ready, and no other is tried in its"
        f" place: {sentence(reason)} Change the template and try the request again with its new"
        " revision, or withdraw the request.",
        f"/requests/{request_id}",
    )
