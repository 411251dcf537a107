"""Virtual cluster managers: who may speak for a vcluster, and what is owed to them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Vcm:
    """A row of `vcms`: who may speak for a vcluster, and how far the messages for it have come.

    Without `serial` and `address` nobody may yet: the node `head` has not fetched its certificate.
    One that is renewed has a successor, `next_serial`, which counts from the moment it is first
    shown, and alone from then on.
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
    """A row of `vcm_invitations`: what the VCM on that node may trade for a certificate, once."""

    vcluster_id: int
    node_id: int
    digest: str
    expires_at: float
    taken_by: str | None


@dataclass(frozen=True, slots=True)
class Inviter:
    """The site's secrets for enrolling a VCM on a node of its vcluster.

    authority   certificate of the site's authority, PEM
    invitation  the secret that belongs to some words: the same for the same words, and not to be
                guessed
    """

    authority: str
    invitation: Callable[[str], str] = field(repr=False)


@dataclass(frozen=True, slots=True)
class OutboxMessage:
    """A row of `outbox`: `body` has the fields of the message's body by name."""

    vcluster_id: int
    sequence: int
    verb: str
    body: Mapping[str, Any]
