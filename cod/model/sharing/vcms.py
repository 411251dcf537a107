"""Virtual cluster managers (VCMs): which VCM may manage a vcluster, and the messages to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Vcm:
    """A row of `vcms`: the VCM that may manage a vcluster, and the state of its messages.

    Without `serial` and `address`, no VCM may yet: the node `head` has not fetched its certificate.
    While a certificate is renewed, `next_serial` is the serial number of the new one. When the VCM
    first shows the new certificate, it replaces the old one.
    """

    vcluster_id: int
    serial: str
    address: str
    enrolled_at: float
    sequence: int
    acked: int
    about: str
    server: str | None
    epoch: int
    connected_at: float | None
    head: str | None
    ends_at: float | None
    next_serial: str | None
    next_ends_at: float | None
    warned_at: float | None


@dataclass(frozen=True, slots=True)
class VcmInvitation:
    """A row of `vcm_invitations`: an invitation that the VCM on that node may trade for a
    certificate, once."""

    vcluster_id: int
    node_id: int
    digest: str
    expires_at: float
    taken_by: str | None


@dataclass(frozen=True, slots=True)
class Inviter:
    """The site's secrets for enrolling a VCM on a node of its vcluster.

    authority   certificate of the site's authority, PEM
    invitation  returns the secret for a text: always the same for the same text, and impossible to
                guess
    """

    authority: str
    invitation: Callable[[str], str] = field(repr=False)


@dataclass(frozen=True, slots=True)
class OutboxMessage:
    """A row of `outbox`: a message to a VCM. `body`: the fields of the message's body by name."""

    vcluster_id: int
    sequence: int
    verb: str
    body: Mapping[str, Any]
