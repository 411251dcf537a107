"""Expiry of certificates: the time at which somebody is told, and the certificates worth renewing.
Pure.

Times are seconds since the epoch. A VCM renews its certificate by itself long before
(`cod.vcm.renewal`); so one that is near its end belongs to a VCM that has been away for months, or
cannot write its files.
"""

from __future__ import annotations

DAY = 86400.0
NEAR = 30 * DAY
"""A VCM's certificate is near its end: its group is told."""
AUTHORITY_NEAR = 800 * DAY
"""The site's authority is near its end: its administrators are told. A server that starts puts the
end off (`cod.security.ca`), so none has been started for long."""
AGAIN = 30 * DAY
"""Between two notices about the authority."""
WORTH = DAY
"""So much longer than the one before has to last what is given for it."""


def is_due(ends_at: float | None, warned_at: float | None, now: float) -> bool:
    """Return whether the VCM's group is to be told (again). Once when it is near its end, and once
    when it has ended."""
    if ends_at is None or now < ends_at - NEAR:
        return False
    return warned_at is None or warned_at < ends_at <= now


def authority_is_due(ends_at: float, warned_at: float | None, now: float) -> bool:
    """Return whether the administrators are to be told of the authority's end (again)."""
    return now >= ends_at - AUTHORITY_NEAR and (warned_at is None or now >= warned_at + AGAIN)


def is_worth(ends_at: float, before: float | None) -> bool:
    """Return whether a certificate until `ends_at` is worth having in place of one until
    `before`."""
    return before is None or ends_at >= before + WORTH
