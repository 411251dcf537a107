"""NMP: the contents of messages, as records. `wire/nmp/xml` writes and reads them; `docs/nmp` shows
each.

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
    """COD: the server's name, and the seconds of silence after which each side sends a ping.

    sequence  the last message that COD counts as processed: later ones are sent from now on
    """

    vcluster: str
    server: str
    keepalive: float
    sequence: int = 0


@dataclass(frozen=True, slots=True)
class Enroll:
    """VCM on a node of its vcluster, instead of hello: its invitation and its request for a
    certificate.

    request  PKCS #10 (RFC 2986), DER in base64
    """

    vcluster: str
    invitation: str
    request: str


@dataclass(frozen=True, slots=True)
class Enrolled:
    """COD: the requested certificate, DER in base64. The VCM reconnects with it."""

    certificate: str


@dataclass(frozen=True, slots=True)
class Renew:
    """VCM: a request for a new certificate, as the present one has passed most of its life.

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
    """VCM: a request for all of these nodes or none. `key` is the VCM's name for the request: a
    repeated key means the same request."""

    key: str
    wanted: tuple[Wanted, ...]
    wait: bool = True
    spread: bool = False
    reason: str = ""


@dataclass(frozen=True, slots=True)
class RequestStatus:
    """VCM: a question for the request's present state."""

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
    """A node of the vcluster. `node` is its name at the site; `hostname` and `address` are its own
    in the vcluster.

    attributes  its type's canonical attributes (XML), in grants only, and there only for the first
                member of each type
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
    """COD: the request is granted, and these nodes belong to the vcluster. `node-state` tells when
    each can be used."""

    request: int
    key: str
    expires: float
    members: tuple[Member, ...]


@dataclass(frozen=True, slots=True)
class Refusal:
    """COD: the request is rejected, for this reason."""

    request: int
    key: str
    reason: str


@dataclass(frozen=True, slots=True)
class NodeState:
    """COD: a node of the vcluster has entered another state ('active': its system is up; 'lost': it
    has left the vcluster)."""

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
    """COD: those of the parked nodes that waiting requests can use, at most as many as these
    requests lack."""

    nodes: tuple[Named, ...] = ()


@dataclass(frozen=True, slots=True)
class MaintenanceStatus:
    """VCM: a question for the maintenance windows of the vcluster's nodes."""


@dataclass(frozen=True, slots=True)
class Window:
    """A maintenance window, with the vcluster's nodes in it, by host name.

    begins  when COD takes nodes that the vcluster still has; 0: it takes none
    ends    when the nodes are in service again; 0: not known
    drain   the nodes should leave as soon as their work has ended
    """

    window: int
    begins: float
    ends: float
    drain: bool
    reason: str
    nodes: tuple[Named, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeMaintenance:
    """COD: the windows of the vcluster's nodes, as planned now. A window that was moved has other
    times; a window that was withdrawn is missing."""

    windows: tuple[Window, ...] = ()


@dataclass(frozen=True, slots=True)
class Reclaim:
    """COD: a demand to give back `count` of the matching `nodes` by `deadline`. The VCM chooses
    them.

    COD takes missing nodes at the deadline.
    """

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
    """COD: the reclaim needs no more nodes. `state` is done or cancelled."""

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
    """VCM: a request to extend the lease, to end in `seconds` from now."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Done:
    """COD: the request was carried out."""


@dataclass(frozen=True, slots=True)
class Status:
    """VCM: a question for the vcluster's present state."""


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
    """VCM: all messages up to that sequence number are processed and need not be sent again."""

    sequence: int


@dataclass(frozen=True, slots=True)
class Ping:
    """A question for a sign of life."""


@dataclass(frozen=True, slots=True)
class Pong:
    """The answer to a ping."""


@dataclass(frozen=True, slots=True)
class Bye:
    """The connection ends."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class Error:
    """The refusal of a message; `line` of its body, 0 for none."""

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
