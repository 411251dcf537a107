"""Rows about machines: nodes, what they are and use, and who speaks for them.

Names of attributes are the columns' names; `store/tables.py` explains each.
"""

from __future__ import annotations

import hashlib
from base64 import b64decode, b64encode
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, NamedTuple

from cod.choices import PowerDriverKind
from cod.model.described import About, FieldKind, FieldLevel, Undescribed
from cod.model.names import DNS_LABEL
from cod.model.records import record
from cod.model.rights import Right


def _named(noun: str) -> About:
    return About(noun, about="name, a DNS label", set_by=Right.ADMIN, pattern=f"^{DNS_LABEL}$")


def _of_site(label: str, about: str) -> About:
    """Return the description of a number that the site has, too."""
    return About(
        label,
        FieldKind.NUMBER,
        about,
        none="the site's",
        null="site",
        set_by=Right.ADMIN,
        level=FieldLevel.DETAIL,
        least=0,
        most=1_000_000,
    )


@record(frozen=True, slots=True)
class Node:
    """A row of `nodes`."""

    id: Undescribed[int]
    name: Annotated[str, _named("Node")]
    state: Annotated[str, About("State", FieldKind.STATE)]
    since: Annotated[float, About("Since", FieldKind.MOMENT, level=FieldLevel.WIDE)]
    generation: Undescribed[int]
    deadline: Annotated[float | None, About("Deadline", FieldKind.MOMENT, level=FieldLevel.DETAIL)]
    attempts: Annotated[int, About("Attempts", FieldKind.NUMBER, level=FieldLevel.DETAIL)]
    reason: Annotated[str, About("Reason")]
    boot_mac: Annotated[str, About("MAC")]
    uuid: Annotated[str | None, About("UUID", level=FieldLevel.DETAIL)]
    firmware: Annotated[str | None, About("Firmware")]
    type_id: Undescribed[int | None]
    block_id: Undescribed[int | None]
    subnet: Annotated[str | None, About("Subnet", level=FieldLevel.DETAIL)]
    relay: Annotated[str | None, About("Relay", level=FieldLevel.DETAIL)]
    circuit: Annotated[str | None, About("Circuit id", level=FieldLevel.DETAIL)]
    remote: Annotated[str | None, About("Remote id", level=FieldLevel.DETAIL)]
    attributes: Undescribed[str | None]
    reported_at: Annotated[
        float | None, About("Reported", FieldKind.MOMENT, level=FieldLevel.DETAIL)
    ]
    last_seen: Annotated[
        float | None, About("Last contact", FieldKind.MOMENT, level=FieldLevel.DETAIL)
    ]
    disk: Annotated[str, About("Disks", level=FieldLevel.DETAIL)]
    cached_template_id: Undescribed[int | None]
    cached_group_id: Undescribed[int | None]
    vcluster_id: Undescribed[int | None]
    request_id: Undescribed[int | None]
    template_id: Undescribed[int | None]
    hostname: Annotated[str | None, About("Host")]
    assigned_at: Undescribed[float | None]
    released: Undescribed[int]
    progress_done: Undescribed[int]
    progress_total: Undescribed[int]
    progress_rate: Undescribed[float]
    power: Undescribed[str]
    power_driver: Annotated[
        PowerDriverKind,
        About(
            "Power driver",
            FieldKind.CHOICE,
            "the way in which the node is switched",
            set_by=Right.ADMIN,
            level=FieldLevel.DETAIL,
            part="power",
        ),
    ]
    power_address: Annotated[
        str,
        About(
            "Power address",
            about="address of the BMC or outlet, as the driver expects it",
            set_by=Right.ADMIN,
            closed=True,
            level=FieldLevel.DETAIL,
            longest=200,
            part="power",
        ),
    ]
    power_account: Annotated[
        str | None,
        About(
            "Power account",
            about="an [[account]] of the site file",
            none="none",
            set_by=Right.ADMIN,
            closed=True,
            level=FieldLevel.DETAIL,
            longest=63,
            part="power",
        ),
    ]
    watts: Undescribed[float | None]
    power_wanted: Undescribed[str | None]
    power_seq: Undescribed[int]
    boot_served_at: Undescribed[float | None]
    # of the tuple of its request that it was granted for; its place in a rack is `rack_position`
    position: Undescribed[int | None] = None
    progress_phase: Undescribed[str] = ""
    progress_source: Undescribed[str] = ""
    disk_signature: Undescribed[int | None] = None
    keep: Undescribed[str] = ""
    waits_for: Undescribed[str] = ""
    waits_since: Undescribed[float | None] = None
    boot_unordered: Undescribed[bool] = False
    home_at: Undescribed[float | None] = None
    home_subnet: Undescribed[str | None] = None
    home_circuit: Undescribed[str | None] = None
    home_remote: Undescribed[str | None] = None
    home_port: Undescribed[str | None] = None
    power_seen_at: Undescribed[float | None] = None
    wipe: Undescribed[str] = ""
    serial: Annotated[str | None, About("Serial", level=FieldLevel.WIDE)] = None
    rack_position: Undescribed[str | None] = None
    tags: Undescribed[str] = ""


@dataclass(frozen=True, slots=True)
class KnownMachine:
    """An administrator's description of a machine, which COD may not have seen yet. None: not said.

    name   of the node
    macs   of its network cards, the one that it boots from first
    block, position, power_account  '' for none
    """

    name: str
    macs: tuple[str, ...] = ()
    uuid: str | None = None
    serial: str | None = None
    block: str | None = None
    power_driver: str | None = None
    power_address: str | None = None
    power_account: str | None = None
    position: str | None = None
    tags: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class BmcSystem:
    """A computer, as a BMC tells of it: the BMC's word, which may be wrong or a lie.

    host     where the BMC was asked
    driver   'redfish' or 'ipmi'
    address  of its power, in that driver's form
    account  of the site file, by which the BMC was signed in to
    serials  numbers of which one may be the system's serial number
    uuids    the system's UUID, in both orders of bytes that BMCs have been seen to use
    power    'on', 'off' or 'unknown'
    """

    host: str
    driver: str
    address: str
    account: str = ""
    model: str = ""
    serials: tuple[str, ...] = ()
    uuids: tuple[str, ...] = ()
    macs: tuple[str, ...] = ()
    power: str = "unknown"


class EntryOutcome(StrEnum):
    """The outcome of entering a machine."""

    ADDED = "added"
    CHANGED = "changed"
    UNCHANGED = "unchanged"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class EnteredMachine:
    """The outcome of entering a `KnownMachine`. `about`: what changed, or why the machine was
    refused; else ''."""

    name: str
    outcome: EntryOutcome
    about: str = ""


class ActionOutcome(StrEnum):
    """The outcome of an action for one of many nodes."""

    DONE = "done"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class ActedNode:
    """Outcome of an action for one node.

    name    of the node afterwards; where no node is meant, as it was asked for
    about   why it was refused, and `code`, of which kind that is; '' else
    state   of the node afterwards; None: there is no such node
    stops   vcluster whose work on the node stops; None: none
    """

    name: str
    outcome: ActionOutcome
    about: str = ""
    state: str | None = None
    stops: str | None = None
    code: str = ""


@dataclass(frozen=True, slots=True)
class ActedNodes:
    """An action for many nodes, in words, and what became of it for each."""

    action: str
    nodes: tuple[ActedNode, ...]


@dataclass(frozen=True, slots=True)
class NodePlace:
    """A row of `node_places`: where a node's MAC was heard besides its remembered place; the node
    may boot there where an administrator has approved it."""

    id: int
    node_id: int
    subnet: str | None
    circuit: str | None
    remote: str | None
    port: str | None
    heard_at: float
    approved: bool


@dataclass(frozen=True, slots=True)
class NodeType:
    """A row of `node_types`: nodes that are equal. `attributes` is their canonical form (XML)."""

    id: Undescribed[int]
    name: Annotated[str, _named("Type")]
    digest: Undescribed[str]
    attributes: Undescribed[str]
    cost: Annotated[
        float,
        About(
            "Cost",
            FieldKind.NUMBER,
            "cost of a node; cheaper types go first",
            set_by=Right.ADMIN,
            least=0,
            most=1e9,
        ),
    ]
    created_at: Annotated[float, About("First seen", FieldKind.MOMENT, level=FieldLevel.WIDE)]
    warm_low: Annotated[
        int | None, _of_site("Fewest free nodes awake", "COD wakes nodes below this number")
    ] = None
    warm_high: Annotated[
        int | None, _of_site("Most free nodes awake", "COD puts idle nodes to sleep above it")
    ] = None
    watts_off: Annotated[
        float | None, _of_site("Watts asleep", "watts of one node that sleeps")
    ] = None
    watts_idle: Annotated[
        float | None, _of_site("Watts awake and free", "watts of one node that is awake and free")
    ] = None
    watts_busy: Annotated[float | None, _of_site("Watts in use", "watts of one node in use")] = None
    turnaround: Annotated[
        float | None,
        About(
            "Turnaround",
            FieldKind.SPAN,
            "time until its nodes that are given back are free again, as learnt",
            none="none came back yet",
            level=FieldLevel.WIDE,
        ),
    ] = None


UNTIL_LEFT = 4_000_000_000.0
"""When a vcluster's binding expires: it ends when the node leaves, not by the clock."""


@record(frozen=True, slots=True)
class Binding:
    """A row of `bindings`: an IPv4 address (as an integer) bound to a client."""

    address: int
    mac: str | None
    kind: str
    node_id: int | None
    subnet: str
    hostname: str | None
    state: str
    expires_at: float
    client_id: str | None = None
    xid: int = 0
    acked_at: float | None = None

    @property
    def until(self) -> float | None:
        """Return when it ends by the clock, in seconds since the epoch; None: it does not."""
        return self.expires_at if self.expires_at < UNTIL_LEFT else None


@dataclass(frozen=True, slots=True)
class BootSecret:
    """A row of `boot_secrets`: the verifier of a secret that a machine booted with (see
    wire/confd), or what is kept of a nonce (`core.nodes.boot_nonces`).

    kind  'boot', 'session' or 'nonce'
    """

    id: str
    mac: str
    kind: str
    address: str
    salt: bytes
    stored_key: bytes
    server_key: bytes
    expires_at: float


@dataclass(frozen=True, slots=True)
class AgentSession:
    """A row of `sessions`: an agent's open connection."""

    node_id: int
    server: str
    epoch: int
    address: str
    connected_at: float
    last_seen: float
    reported: bool
    order_sent: str


class NodeStory(NamedTuple):
    """A machine's own account of its system, since its site was held.

    known    the newest generation in which the database can have had the node installed
    verdict  of `states.StoryVerdict`
    source   'agent' or 'dhcp'; '' where nothing was said
    said     for people
    """

    node_id: int
    known: int
    verdict: str
    source: str = ""
    at: float | None = None
    said: str = ""


class ImageReceiver(NamedTuple):
    """A node that is being primed, as far as it matters to who passes images on to whom.

    address  where its agent is
    clean    its disk is written at once, and not erased before
    phase    which step its agent has told of last
    """

    node_id: int
    generation: int
    name: str
    template_id: int | None
    subnet: str | None
    address: str
    clean: bool
    phase: str

    @property
    def order_id(self) -> str:
        return f"{self.node_id}.{self.generation}"


@dataclass(frozen=True, slots=True)
class Peer:
    """The connection that an agent's message came in on: the key of its session, and the MAC that
    it proved to have."""

    node_id: int
    server: str
    epoch: int
    mac: str


@dataclass(frozen=True, slots=True)
class PowerAction:
    """A row of `power_actions`: a wish that a node be 'on', 'off', 'soft' (off, its system being
    asked first) or be 'cycle'd, valid for one `generation`. `stage`: how many commands were
    accepted for it and did not show."""

    id: int
    node_id: int
    generation: int
    desired: str
    attempts: int
    next_at: float
    claimed_by: str | None
    claim_expires: float | None
    done_at: float | None
    error: str
    wished_at: float
    stage: int


@dataclass(frozen=True, slots=True)
class EnergyUse:
    """A row of `energy_use`: what nodes of a type used on a day (since the epoch, UTC) for a group;
    0: the reserve.

    seconds    node-seconds
    joules     used; `always_on`: what it would have been had no node slept
    grams      CO2 emitted for what was used
    """

    day: int
    group_id: int
    type_id: int
    seconds: float
    joules: float
    always_on: float
    grams: float = 0.0


@dataclass(frozen=True, slots=True)
class VclusterEnergy:
    """A row of `vcluster_energy`: what a vcluster's nodes used on a day; the figures are those of
    `EnergyUse`."""

    day: int
    vcluster_id: int
    seconds: float
    joules: float
    always_on: float
    grams: float


@dataclass(frozen=True, slots=True)
class Capture:
    """A row of `captures`: a node's disk on its way into an image. `secret` is shown to the node's
    agent alone. `what`: as in `orders.Deposit`."""

    node_id: int
    image: str
    template: str
    group_id: int | None
    source_id: int | None
    state: str
    generation: int
    secret: str = field(repr=False)
    digest: str
    actor: str
    asked_at: float
    ended_at: float | None
    reason: str
    what: str = ""


@dataclass(frozen=True, slots=True)
class Reinstall:
    """A row of `reinstalls`: a node that is installed anew for its vcluster.

    at_once   nodes of the vcluster at a time; 0: all
    begun_at  when the node left its system; None: not yet
    """

    node_id: int
    vcluster_id: int
    template_id: int
    at_once: int
    actor: str
    asked_at: float
    begun_at: float | None = None


@dataclass(frozen=True, slots=True)
class Burnin:
    """A row of `burnins`: tests of a node. `tests` have commas between; `results` is JSON, a list
    of `orders.TestResult`; `secret` is shown to the node's agent, and to a neighbour's that is
    tested with it."""

    id: int
    node_id: int
    state: str
    cause: str
    tests: str
    seconds: int
    erase: bool
    secret: str = field(repr=False)
    generation: int
    actor: str
    asked_at: float
    started_at: float | None
    ended_at: float | None
    reason: str
    results: str


@dataclass(frozen=True, slots=True)
class CaptureLimits:
    """Limits of a capture. `disk`: bytes of the largest disk that the node has reported; `room`:
    bytes that the image may take in its served form, None: any number."""

    disk: int
    room: int | None


@dataclass(frozen=True, slots=True)
class CapturedPartition:
    """A partition of a captured disk, as its agent tells: bytes, GPT type or MBR type, and what was
    found in it ('ext', 'fat', 'swap'; '': not known, or empty). Number 0: the whole disk, which has
    no partition table."""

    number: int
    start: int
    size: int
    type: str
    name: str
    content: str


@dataclass(frozen=True, slots=True)
class HostKey:
    """The public part of an SSH host key of a node. `algorithm` and `key`, in base64, are as in a
    known_hosts file."""

    algorithm: str
    key: str

    @property
    def digest(self) -> bytes:
        """Return the SHA-256 digest of the key, from which its fingerprints are written."""
        return hashlib.sha256(b64decode(self.key)).digest()

    @property
    def fingerprint(self) -> str:
        """Return the key's fingerprint as ssh and ssh-keygen show it."""
        return "SHA256:" + b64encode(self.digest).decode().rstrip("=")


@dataclass(frozen=True, slots=True)
class Keytab:
    """A row of `keytabs`."""

    host: str
    node_id: int
    vcluster_id: int
    order_id: str
    sealed: bytes | None = field(repr=False)
    attempts: int
    next_at: float
    reason: str
    made_at: float | None


@dataclass(frozen=True, slots=True)
class KeytabTask:
    """Task of the site's command for keytabs, for a host: make its keytab, or remove its
    principals.

    attempts  that have failed
    made_at   when it has made a keytab for the host; None: never
    """

    host: str
    order_id: str
    node_id: int
    vcluster_id: int
    removal: bool = False
    attempts: int = 0
    made_at: float | None = None


Unsealer = Callable[[bytes, str], bytes | None]
"""Opens what was sealed for an order with that id; None: it cannot."""


@dataclass(frozen=True, slots=True)
class PrimingNode:
    """A node that is being primed: its order, its host's name with the domain, and the template."""

    order_id: str
    node_id: int
    vcluster_id: int
    host: str
    template_id: int


@dataclass(frozen=True, slots=True)
class ChunkKeys:
    """The means to let nodes have images from each other.

    key    the one by which a node checks tokens, for its order's id: the same for the same order,
           and not to be guessed
    token  for a key, an image's digest, the address of the node that asks, and the second in which
           the token expires
    """

    key: Callable[[str], str] = field(repr=False)
    token: Callable[[str, str, str, int], str] = field(repr=False)


@dataclass(frozen=True, slots=True)
class HostKeyMaker:
    """The means to make nodes' SSH host keys.

    salt  random, for an installation that has no salt yet
    make  the public and the private part (a file of OpenSSH) that belong to a salt and an order's
          id: the same for the same arguments, and not to be guessed
    """

    salt: str = field(repr=False)
    make: Callable[[str, str], tuple[HostKey, str]] = field(repr=False)
