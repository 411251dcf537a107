"""NMP: what stands in the bodies, as records. `wire/nmp/xml` writes and reads them; `docs/nmp`
shows each.

Times are seconds since the epoch, UTC; lengths of time are seconds; sizes are bytes; `requires` and
`attributes` are XML documents (schema/requires.rng, schema/report.rng) or ''.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Hello:
    """VCM: its vcluster, its name and version ('cod-vcm-sge 1.0'), the last sequence number that it
    has processed."""

    vcluster: str
    vcm: str
    seen: int


@dataclass(frozen=True, slots=True)
class Welcome:
    """COD: the server's name, and the silent seconds after which each side says ping.

    sequence  the last message that COD takes for processed: later ones are sent from now on
    """

    vcluster: str
    server: str
    keepalive: float
    sequence: int = 0


@dataclass(frozen=True, slots=True)
class Enroll:
    """VCM on a node of its vcluster, instead of hello: its invitation and its certificate request.

    request  PKCS #10 (RFC 2986), DER in base64
    """

    vcluster: str
    invitation: str
    request: str


@dataclass(frozen=True, slots=True)
class Enrolled:
    """COD: the requested certificate, DER in base64. The VCM connects again, with it."""

    certificate: str


@dataclass(frozen=True, slots=True)
class Renew:
    """VCM: its certificate has passed most of its life; a new certificate request.

    request  as in `Enroll`
    """

    request: str


@dataclass(frozen=True, slots=True)
class Renewed:
    """COD: the certificate that replaces the present one with its first use; and the authority's
    present certificate. DER in base64."""

    certificate: str
    authority: str


@dataclass(frozen=True, slots=True)
class Wanted:
    """One tuple of a request: `count` nodes that satisfy `requires`, for `template` ('' the
    vcluster's own)."""

    count: int
    template: str = ""
    requires: str = ""


@dataclass(frozen=True, slots=True)
class RequestNodes:
    """VCM: all of these nodes, or none. `key` is the VCM's name for the request: repeated, it is
    the same request."""

    key: str
    wanted: tuple[Wanted, ...]
    wait: bool = True
    spread: bool = False
    reason: str = ""


@dataclass(frozen=True, slots=True)
class RequestStatus:
    """VCM: what has become of the request?"""

    request: int


@dataclass(frozen=True, slots=True)
class Withdraw:
    """VCM: the request is no longer needed."""

    request: int


@dataclass(frozen=True, slots=True)
class Request:
    """COD: the present state of a request; `state` as in the API, `reason`: why it waits or was
    rejected."""

    request: int
    key: str
    state: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Member:
    """A node of the vcluster. `hostname` is its name there, `address` its own there; `node` the
    site's name of it.

    attributes  its type's canonical attributes (XML), in grants only, and there at the first member
                of each type
    """

    node: str
    hostname: str
    address: str
    state: str
    template: str
    type: str = ""
    attributes: str = ""


@dataclass(frozen=True, slots=True)
class Grant:
    """COD: the request is satisfied: these nodes are the vcluster's. `node-state` tells when each
    can be used."""

    request: int
    key: str
    expires: float
    members: tuple[Member, ...]


@dataclass(frozen=True, slots=True)
class Refusal:
    """COD: the request is rejected, and why."""

    request: int
    key: str
    reason: str


@dataclass(frozen=True, slots=True)
class NodeState:
    """COD: a node of the vcluster has come into another state ('active': its system is up; 'lost':
    it is gone)."""

    node: str
    hostname: str
    address: str
    state: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Progress:
    """COD: how many bytes of a disk are written. COD does not resend it: a newer one replaces
    it."""

    node: str
    phase: str
    done: int
    total: int


@dataclass(frozen=True, slots=True)
class Named:
    """A node by its name, the site's or the vcluster's; `within`: seconds until it can leave."""

    node: str
    within: float = 0.0


@dataclass(frozen=True, slots=True)
class ReleaseNodes:
    """VCM: these nodes are no longer needed; their systems may be switched off now."""

    nodes: tuple[Named, ...]
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ParkNodes:
    """VCM: these nodes are idle, and stay booted only until a request needs them."""

    nodes: tuple[Named, ...]


@dataclass(frozen=True, slots=True)
class NeededNodes:
    """COD: parked nodes that waiting requests can use, at most as many as these requests lack."""

    nodes: tuple[Named, ...] = ()


@dataclass(frozen=True, slots=True)
class MaintenanceStatus:
    """VCM: which maintenance windows have nodes of the vcluster?"""


@dataclass(frozen=True, slots=True)
class Window:
    """A maintenance window, with the vcluster's nodes in it, by hostname.

    begins  when COD takes nodes that the vcluster still has; 0: it takes none
    ends    when the nodes are in service again; 0: nobody knows
    drain   the nodes are wanted as soon as their work has ended
    """

    window: int
    begins: float
    ends: float
    drain: bool
    reason: str
    nodes: tuple[Named, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeMaintenance:
    """COD: the windows that have nodes of the vcluster, as they are planned now. A window that was
    moved has other times, and one that was withdrawn is missing."""

    windows: tuple[Window, ...] = ()


@dataclass(frozen=True, slots=True)
class Reclaim:
    """COD: give back `count` matching nodes by `deadline`; `nodes` has all that match. The VCM
    chooses.

    COD takes missing nodes at the deadline."""

    reclaim: int
    count: int
    deadline: float
    reason: str
    requires: str = ""
    nodes: tuple[Named, ...] = ()


@dataclass(frozen=True, slots=True)
class ReclaimAnswer:
    """VCM: these nodes, each with the seconds until it can leave (0: take it now); `reason`: why
    they are fewer than requested."""

    reclaim: int
    nodes: tuple[Named, ...] = ()
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ReclaimOver:
    """COD: nothing more is wanted. `state` is done or cancelled."""

    reclaim: int
    state: str


@dataclass(frozen=True, slots=True)
class Lease:
    """COD: the vcluster's lease: `event` is warning, draining, extended or ended; `expires` is its
    end."""

    event: str
    expires: float


@dataclass(frozen=True, slots=True)
class Extend:
    """VCM: extend the lease, to so many seconds from now."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Done:
    """COD: the request was carried out."""


@dataclass(frozen=True, slots=True)
class Status:
    """VCM: how is the vcluster?"""


@dataclass(frozen=True, slots=True)
class Vcluster:
    """COD: the vcluster's present state. A VCM that has lost its own state starts from it."""

    name: str
    state: str
    size: int
    floor: int
    expires: float
    members: tuple[Member, ...] = ()
    requests: tuple[Request, ...] = ()
    reclaims: tuple[Reclaim, ...] = ()


@dataclass(frozen=True, slots=True)
class Ack:
    """VCM: everything up to that sequence number is dealt with and need not be sent again."""

    sequence: int


@dataclass(frozen=True, slots=True)
class Ping:
    """Are you there?"""


@dataclass(frozen=True, slots=True)
class Pong:
    """Yes."""


@dataclass(frozen=True, slots=True)
class Bye:
    """The connection ends."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class Error:
    """The refusal of the message that this answers; `line` of its body, 0 for none."""

    code: str
    sentence: str
    line: int = 0


Body = (
    Hello
    | Welcome
    | Enroll
    | Enrolled
    | Renew
    | Renewed
    | RequestNodes
    | RequestStatus
    | Withdraw
    | Request
    | Grant
    | Refusal
    | NodeState
    | Progress
    | ReleaseNodes
    | ParkNodes
    | NeededNodes
    | MaintenanceStatus
    | NodeMaintenance
    | Reclaim
    | ReclaimAnswer
    | ReclaimOver
    | Lease
    | Extend
    | Done
    | Status
    | Vcluster
    | Ack
    | Ping
    | Pong
    | Bye
    | Error
)
