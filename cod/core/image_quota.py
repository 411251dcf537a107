"""Quotas of bytes for a group's images and open uploads, and limits of its uploads and captures at
once. The site's own group belongs to the administrators, and has no limits."""

from __future__ import annotations

from cod.model import ImageRules
from cod.policy.image_uploads import check_open, check_quota
from cod.store.engine import Tx
from cod.store.images import uploads
from cod.store.nodes import captures
from cod.store.people import groups


def room(tx: Tx, *, group_id: int, rules: ImageRules, lock: bool = False) -> tuple[int, int | None]:
    """Return (bytes of the group's images and open uploads, quota in bytes); a quota of None: no
    limit. `lock` as in `uploads.taken`."""
    taken, own = uploads.taken(tx, group_id, lock=lock)
    return taken, rules.quota if own is None else own


def left(tx: Tx, group_id: int | None, rules: ImageRules, own: int = 0) -> int | None:
    """Return how many bytes an image of the group may have that has `own` bytes already; None: any
    number, as for images of the site."""
    taken, quota = room(tx, group_id=group_id, rules=rules) if group_id is not None else (0, None)
    return None if quota is None else max(quota - taken + own, 0)


def check(tx: Tx, group_id: int | None, size: int, rules: ImageRules, own: int = 0) -> None:
    """Raise `Refused` unless `size` bytes, in place of `own` bytes, fit into the group's quota.
    Images of the site always fit."""
    if group_id is not None:
        taken, quota = room(tx, group_id=group_id, rules=rules, lock=True)
        check_quota(quota, taken - own, size, groups.get(tx, group_id).name)


def check_upload(tx: Tx, group_id: int | None, rules: ImageRules) -> None:
    """Raise `Refused` if the group has as many open uploads as it may have; the site (None) has no
    limit."""
    if group_id is not None:
        name = groups.get(tx, group_id).name
        open_uploads = len(uploads.every(tx, frozenset({group_id})))
        check_open(open_uploads, rules.open_uploads, "open uploads", name)


def check_capture(tx: Tx, group_id: int | None, rules: ImageRules) -> None:
    """Raise `Refused` if as many nodes as allowed are being captured for the group; the site (None)
    has no limit."""
    if group_id is not None:
        waiting = [
            capture
            for _, capture in captures.every(tx, frozenset({group_id}))
            if capture.state in captures.OPEN
        ]
        check_open(
            len(waiting), rules.open_captures, "captures under way", groups.get(tx, group_id).name
        )
