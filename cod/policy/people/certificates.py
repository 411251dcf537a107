"""Expiry of certificates: when people are warned, and which certificates are worth renewing. Pure.

Times are seconds since the epoch. A VCM renews its certificate by itself long before it expires
(`cod.vcm.renewal`). So a certificate that is about to expire belongs to a VCM that has been away
for months, or that cannot write its files.
"""

from __future__ import annotations

DAY = 86400.0
NEAR = 30 * DAY
"""Seconds before the expiry of a VCM's certificate at which its group is warned."""
AUTHORITY_NEAR = 800 * DAY
"""Seconds before the expiry of the site's authority at which its administrators are warned. Each
server that starts postpones the expiry (`cod.security.ca`), so no server has started for long."""
AGAIN = 30 * DAY
"""Seconds between two notices about the authority."""
WORTH = DAY
"""Seconds by which a new certificate has to last longer than the one that it replaces."""


def is_due(ends_at: float | None, warned_at: float | None, now: float) -> bool:
    """Return whether a warning to the VCM's group is due: one when the certificate is about to
    expire, and one when it has expired."""
    if ends_at is None or now < ends_at - NEAR:
        return False
    return warned_at is None or warned_at < ends_at <= now


def authority_is_due(ends_at: float, warned_at: float | None, now: float) -> bool:
    """Return whether a warning to the administrators about the authority's expiry is due."""
    return now >= ends_at - AUTHORITY_NEAR and (warned_at is None or now >= warned_at + AGAIN)


def is_worth(ends_at: float, before: float | None) -> bool:
    """Return whether a certificate valid until `ends_at` is worth issuing in place of one valid
    until `before` (None: there is none)."""
    return before is None or ends_at >= before + WORTH
