"""Parts of the site that nodes wait for: administrators are told once when a part does not answer,
and once when no node waits for it any more.

A watermark (`store.watermarks`) for each part says when administrators were told that it is away.
"""

from __future__ import annotations

from collections.abc import Sequence

from cod import notice_texts
from cod.core import notices
from cod.model import Node
from cod.notice_texts import NoticeText
from cod.states import IMAGE_SERVER, KERBEROS, POWER_CONTROL
from cod.store import watermarks
from cod.store.engine import Tx
from cod.store.nodes import nodes

TOLD_AFTER = 60.0  # seconds that a node waits before administrators are told
AGAIN = 600.0  # seconds until they are told of all nodes that have begun to wait since


def look(tx: Tx, now: float) -> bool:
    """Add notices of parts that nodes have waited for long enough, and of parts that no node waits
    for any more. Return whether there was one. Outages of switches are noted by their sessions."""
    has_notified = False
    for part, away, back in (
        (POWER_CONTROL, _power_control, notice_texts.power_control_back),
        (IMAGE_SERVER, _image_server, notice_texts.images_served),
        (KERBEROS, _kerberos, notice_texts.keytabs_made),
    ):
        waiting = nodes.waiting_for(tx, part)
        if not waiting:
            has_notified |= end(tx, part, back(), now)
            continue
        reported_at = watermarks.at(tx, _mark(part))
        new = [
            one for one in waiting if reported_at is None or (one.waits_since or now) > reported_at
        ]
        patient = reported_at is not None and now < reported_at + AGAIN
        if new and not patient and now >= (new[0].waits_since or now) + TOLD_AFTER:
            begin(tx, part, away(new), now)
            has_notified = True
    return has_notified


def _power_control(waiting: Sequence[Node]) -> NoticeText:
    names = [f"{one.name} ({one.power_driver} {one.power_address})" for one in waiting]
    return notice_texts.power_control_away(names)


def _image_server(waiting: Sequence[Node]) -> NoticeText:
    return notice_texts.images_not_served([one.name for one in waiting], waiting[0].reason)


def _kerberos(waiting: Sequence[Node]) -> NoticeText:
    why = next((one.reason for one in waiting if one.reason), "")
    return notice_texts.keytabs_not_made([one.name for one in waiting], why)


def begin(tx: Tx, part: str, notice: NoticeText, now: float) -> None:
    """Tell administrators that the part is away."""
    if watermarks.move(tx, _mark(part), watermarks.at(tx, _mark(part)), now):
        notices.add(tx, **notice, group_id=None, now=now)


def begun(tx: Tx, part: str) -> bool:
    """Return whether administrators were told that the part is away, and not yet that it is
    back."""
    return watermarks.at(tx, _mark(part)) is not None


def end(tx: Tx, part: str, notice: NoticeText, now: float) -> bool:
    """Tell administrators that the part is back, if they were told that it is away; return whether
    they were."""
    if not begun(tx, part):
        return False
    watermarks.forget(tx, _mark(part))
    notices.add(tx, **notice, group_id=None, now=now)
    return True


def _mark(part: str) -> str:
    return f"away {part}"[:64]
