"""Records of machines: nodes, their hardware, power and energy, and their agents' connections.

Attributes have the names of their columns; `store/tables` explains each.
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
    """Return the description of a number for which the site has a default."""
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
    # position of its tuple in the request that it was granted for, not its `rack_position`
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
    """An administrator's description of a machine that COD may not have seen yet. None: not given.

    name   name of the node
    macs   MACs of its network cards, first that of the card that it boots from
    block, position, power_account  '': none
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
    """A computer, as its BMC describes it. The BMC may report wrong data, by mistake or on purpose.

    host     host name or address of the BMC
    driver   'redfish' or 'ipmi'
    address  its power address, in the driver's form
    account  account of the site file that was used to sign in to the BMC
    serials  numbers of which one may be the system's serial number
    uuids    the system's UUID in both byte orders that BMCs are known to use
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

    name    name of the node afterwards; if there is no such node, the requested name
    about   why the action was refused; '': it was not
    code    code of the refusal (`Refused`); '': it was not refused
    state   state of the node afterwards; None: there is no such node
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
    """An action for many nodes, in words, and its outcome for each node."""

    action: str
    nodes: tuple[ActedNode, ...]


@dataclass(frozen=True, slots=True)
class NodePlace:
    """A row of `node_places`: a place where a node's MAC was heard, other than the place that is
    remembered for the node. The node may boot there if an administrator has approved the place."""

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
"""`expires_at` of a vcluster's binding, which ends when the node leaves, not at a time."""


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
        """Return when the binding expires, in seconds since the epoch; None: at no set time."""
        return self.expires_at if self.expires_at < UNTIL_LEFT else None


@dataclass(frozen=True, slots=True)
class BootSecret:
    """A row of `boot_secrets`: the verifier of a secret that a machine booted with (see
    `wire.confd`), or the stored data of a nonce (`core.nodes.boot_nonces`).

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
    """A machine's report about its installed system, since a restored database was held for checks
    (`policy.stories`).

    known    the newest generation of an installation that the database can know of
    verdict  a value of `states.StoryVerdict`
    source   'agent', 'dhcp' or 'switch'; '': nothing was reported
    at       when it was reported
    said     the report as a phrase for people
    """

    node_id: int
    known: int
    verdict: str
    source: str = ""
    at: float | None = None
    said: str = ""


class InstallationRecord(NamedTuple):
    """A node in one generation, as the database knows it, to be compared with an installation of
    that generation on the node's disk.

    state       of the node in that generation; '': its history is deleted
    vcluster_id, created_at  its holder then, and when the holder was made; None: not known
    template    digest of the template of the node's present installation, if that is the one of
                this generation, or runs what it left on the disk; '' if it is another
    pending     `template` is still to be installed, perhaps in place of another
    """

    state: str = ""
    vcluster_id: int | None = None
    created_at: float | None = None
    template: str = ""
    pending: bool = False


class ImageReceiver(NamedTuple):
    """A node that is being primed, with the data that decide from which nodes it fetches its image.

    address  address of its agent
    clean    whether its disk is written without being erased before
    phase    the step that its agent reported last
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
    """The connection on which an agent's message arrived: the key of its session, and the MAC that
    the agent has proved to have."""

    node_id: int
    server: str
    epoch: int
    mac: str


@dataclass(frozen=True, slots=True)
class PowerAction:
    """A row of `power_actions`: the power state that a node is to have in its `generation`.

    desired  'on', 'off', 'soft' (off, but the system is asked to shut down first) or 'cycle'
    stage    number of commands that the machine has accepted without carrying them out
    """

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
class Meter:
    """A node, and by which driver, address and account to ask about its power."""

    node_id: int
    node: str
    driver: str
    address: str
    account: str | None


@dataclass(frozen=True, slots=True)
class EnergyUse:
    """A row of `energy_use`: the energy that nodes of a type used on a day for a group.

    day        days since the epoch, UTC
    group_id   0: the nodes were in the reserve
    seconds    node-seconds
    joules     energy used
    always_on  energy in joules that would have been used if no node had slept
    grams      CO2 emitted for the energy used
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
    """A row of `vcluster_energy`: the energy that a vcluster's nodes used on a day. Fields as in
    `EnergyUse`."""

    day: int
    vcluster_id: int
    seconds: float
    joules: float
    always_on: float
    grams: float


@dataclass(frozen=True, slots=True)
class Capture:
    """A row of `captures`: the capture of a node's disk as an image. `secret` is sent to the node's
    agent only. `what`: as in `orders.Deposit`."""

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
    """A row of `reinstalls`: a node that is reinstalled for its vcluster.

    at_once   most nodes of the vcluster that are reinstalled at a time; 0: all
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
    """A row of `burnins`: tests of a node. `tests`: separated by commas; `results`: JSON, a list of
    `orders.TestResult`; `secret`: sent to the agents of the node, and of a neighbour that is tested
    with it."""

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
    most bytes of the image's served form, None: no limit."""

    disk: int
    room: int | None


@dataclass(frozen=True, slots=True)
class CapturedPartition:
    """A partition of a captured disk, as its agent reports it.

    number   0: the whole disk, which has no partition table
    start, size  in bytes
    type     GPT type or MBR type
    content  'ext', 'fat', 'swap'; '': unknown or empty
    """

    number: int
    start: int
    size: int
    type: str
    name: str
    content: str


@dataclass(frozen=True, slots=True)
class HostKey:
    """The public part of a node's SSH host key. `algorithm` and `key` (base64) are as in a
    known_hosts file."""

    algorithm: str
    key: str

    @property
    def digest(self) -> bytes:
        """Return the SHA-256 digest of the key, from which its fingerprints are made."""
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
    """A task of the site's command for keytabs: to make a host's keytab or, if `removal`, to remove
    its principals.

    attempts  failed attempts
    made_at   when the command last made a keytab for the host; None: never
    """

    host: str
    order_id: str
    node_id: int
    vcluster_id: int
    removal: bool = False
    attempts: int = 0
    made_at: float | None = None


Unsealer = Callable[[bytes, str], bytes | None]
"""Decrypts data that was sealed for the order with the given id; None: that is impossible."""


@dataclass(frozen=True, slots=True)
class PrimingNode:
    """A node that is being primed: its order, its host name with the domain, and its template."""

    order_id: str
    node_id: int
    vcluster_id: int
    host: str
    template_id: int


@dataclass(frozen=True, slots=True)
class ChunkKeys:
    """Functions that let nodes fetch images from each other.

    key    returns the key with which a node checks tokens, given its order's id: always the same
           for the same order, and impossible to guess
    token  returns a token, given a key, an image's digest, the address of the fetching node, and
           the second at which the token expires
    """

    key: Callable[[str], str] = field(repr=False)
    token: Callable[[str, str, str, int], str] = field(repr=False)


@dataclass(frozen=True, slots=True)
class HostKeyMaker:
    """The data and function that make nodes' SSH host keys.

    salt  a random salt, for an installation that has none yet
    make  returns the public part and the private part (an OpenSSH file) of a key, given a salt and
          an order's id: always the same for the same arguments, and impossible to guess
    """

    salt: str = field(repr=False)
    make: Callable[[str, str], tuple[HostKey, str]] = field(repr=False)
