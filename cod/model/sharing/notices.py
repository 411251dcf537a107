"""Notices, and their deliveries."""

from __future__ import annotations

from dataclasses import dataclass

from cod.choices import DeliveryState


@dataclass(frozen=True, slots=True)
class Notice:
    """A row of `notices`: a message to a group (`group_id` None: to the site's administrators).

    events  the events as JSON, for programs; None: the notice is for people
    link    path of the portal's page where people can act on it; '': none
    """

    id: int
    at: float
    kind: str
    group_id: int | None
    vcluster_id: int | None
    subject: str
    about: str
    events: str | None = None
    link: str = ""


@dataclass(frozen=True, slots=True)
class Send:
    """A row of `notice_sends`: a notice's delivery by one channel ('webhook' or 'email')."""

    id: int
    notice_id: int
    channel: str
    target: str
    attempts: int
    next_at: float
    claimed_by: str | None
    claim_expires: float | None
    done_at: float | None
    delivered: bool
    error: str

    @property
    def state(self) -> DeliveryState:
        """Return whether the delivery waits, was made or was given up."""
        if self.done_at is None:
            return DeliveryState.WAITING
        return DeliveryState.DELIVERED if self.delivered else DeliveryState.GIVEN_UP
