"""Rows about switches and their ports. Names of attributes are the columns' names; `store/tables`
explains each."""

from __future__ import annotations

from dataclasses import dataclass

from cod.model.site import Switch


@dataclass(frozen=True, slots=True)
class SwitchSession:
    """A row of `switches`: what came of the sessions with a switch."""

    name: str
    epoch: int
    claimed_by: str | None
    claim_expires: float | None
    next_at: float
    failures: int
    reason: str
    about: str
    tried_at: float | None
    answered_at: float | None
    check_wanted: bool


@dataclass(frozen=True, slots=True)
class SwitchPort:
    """A row of `switch_ports`: which NIC is on a port, and the VLANs that the port should be in and
    was last read in.

    wanted_vlan  None: the provisioning VLAN of its switch
    """

    id: int
    switch: str
    port: str
    node_id: int | None
    mac: str | None
    source: str
    seen_at: float
    wanted_vlan: int | None
    seq: int
    wished_at: float
    applied_vlan: int | None
    applied_seq: int
    verified_at: float | None
    attempts: int
    next_at: float | None
    reason: str
    given_up: bool
    corrected_at: float | None

    @property
    def pending(self) -> bool:
        """Return whether the newest wish has not been read back from the switch yet."""
        return self.applied_seq != self.seq


@dataclass(frozen=True, slots=True)
class SwitchPortView:
    """A switch port for people, with the name of the node whose NIC is on it."""

    port: SwitchPort
    node: str | None

    @property
    def state(self) -> str:
        """Return how it goes: 'untouched' (COD has never changed the port), 'applied', 'pending' or
        'given up'."""
        if self.port.given_up:
            return "given up"
        if self.port.pending:
            return "pending"
        return "applied" if self.port.seq else "untouched"


@dataclass(frozen=True, slots=True)
class SwitchView:
    """A switch of the site file for people, with what came of the sessions with it; None: there was
    none.

    ports     how many of its ports are known; `pending`: wait for their VLAN; `given_up`: are not
              tried any more
    """

    switch: Switch
    session: SwitchSession | None
    ports: int = 0
    pending: int = 0
    given_up: int = 0
