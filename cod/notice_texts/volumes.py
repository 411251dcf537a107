"""Notices about volumes, and about the file servers that carry out their changes."""

from __future__ import annotations

from urllib.parse import quote

from cod.notice_texts.words import NoticeText, moment, notice, sentence


def volume_deleted(name: str, purge_at: float, cause: str) -> NoticeText:
    """Describe a volume that was deleted; its data is kept until `purge_at`. `cause`: a sentence
    without its full stop."""
    return notice(
        "volume-deleted",
        f"volume {name} is deleted: restore it before {moment(purge_at)}",
        f"Volume {name} is deleted: {cause}. Its data is kept until {moment(purge_at)} and then"
        " erased. Until then an owner of its group can restore it.",
        _page_of(name),
    )


def volume_erased(name: str) -> NoticeText:
    """Describe a deleted volume that can no longer be restored."""
    return notice(
        "volume-erased",
        f"volume {name} is erased",
        f"The time in which volume {name} could be restored is over. Its data and its snapshots are"
        " erased.",
    )


def volume_trouble(name: str, fileserver: str, error: str) -> NoticeText:
    """Describe a change of a volume that its file server does not carry out."""
    return notice(
        "volume-trouble",
        f"volume {name}: file server {fileserver} does not carry out a change",
        f"A change of volume {name} is not carried out: {sentence(error)} COD keeps trying."
        " Nodes that have mounted the volume keep it as it was.",
        _page_of(name),
    )


def volume_trouble_over(name: str, fileserver: str) -> NoticeText:
    """Describe that a file server has carried out a change that it did not carry out before."""
    return notice(
        "volume-recovered",
        f"volume {name}: file server {fileserver} has carried out the change",
        f"File server {fileserver} has carried out the change of volume {name} that it did not"
        " carry out before.",
        _page_of(name),
    )


def _page_of(name: str) -> str:
    return "/volumes/" + quote(name)
