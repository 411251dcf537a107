"""Frozen records that travel between floors. Standard library only; part of it travels in the ramdisk.

A record that mirrors a table carries the columns' names (see `store/tables.py`, where each column is explained).
Times are seconds since the epoch, UTC, as floats; lengths of time are seconds; sizes are bytes unless a name says
otherwise; MACs are lower-case with colons; IPv4 addresses are dotted strings, except in `bindings`, which sorts them
as integers.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


def ipv4(text: str) -> int:
    """A dotted IPv4 address as an integer. Raises OSError when it is none."""
    return int.from_bytes(socket.inet_aton(text), "big")


def dotted(address: int) -> str:
    """The reverse of `ipv4`."""
    return socket.inet_ntoa(address.to_bytes(4, "big"))


# ---------------------------------------------------------------- the site, as its administrator describes it


@dataclass(frozen=True, slots=True)
class Subnet:
    """One IPv4 network that COD answers on.

    interface   the server's interface on it, or None when it is reached through a relay only
    server      COD's own address there: siaddr, option 54, the host of boot URLs
    relay       giaddr by which a relay names this subnet (usually its router), or None
    boot_pool   first and last address for firmware and trampoline
    block_pool  first and last address from which vclusters get their private blocks
    block_size  addresses in one vcluster's block (a power of two)
    """

    name: str
    network: str
    server: str
    boot_pool: tuple[str, str]
    block_pool: tuple[str, str]
    block_size: int = 64
    router: str | None = None
    interface: str | None = None
    relay: str | None = None
    dns: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Policy:
    """The site's rules, from the `[policy]` table of the site file.

    unknown         'discover' answers PXE clients that are not in the database, 'known-only' ignores them
    auto_approve    new machines need no administrator
    patience        factor on every deadline of `states.NODE_RULES` (slow firmware, emulated hardware)
    binding_time    seconds of a DHCP binding given to an operating system
    boot_time       the same for firmware and trampoline
    heartbeat       seconds between signs of life of an agent; three missed are a loss
    secret_time     seconds in which a boot's secret must be used
    default_lease   seconds of a vcluster's lease where its group says nothing
    power_cycle     may COD power-cycle nodes that overrun a deadline
    inertia         seconds for which a newly assigned node is immune from reclaims; `inertia_by_priority` overrides it
                    for holders of a priority
    age_step        seconds: requests of one priority submitted within the same step are of one age, and the more
                    constraining goes first
    reclaim_grace   seconds that a holder has to give nodes back before they are seized
    drain_grace     seconds between the end of a lease and the seizure of its nodes
    lease_warnings  seconds before the end of a lease at which its group is warned
    """

    unknown: str = "discover"
    auto_approve: bool = False
    patience: float = 1.0
    binding_time: float = 3600.0
    boot_time: float = 900.0
    heartbeat: float = 5.0
    secret_time: float = 300.0
    default_lease: float = 86400.0
    power_cycle: bool = True
    inertia: float = 300.0
    inertia_by_priority: Mapping[int, float] = field(default_factory=dict)
    age_step: float = 600.0
    reclaim_grace: float = 300.0
    drain_grace: float = 300.0
    lease_warnings: tuple[float, ...] = (86400.0, 3600.0)


@dataclass(frozen=True, slots=True)
class Energy:
    """The site's rules for its reserve pool, from the `[energy]` table; types may have their own marks and watts.

    manage     put surplus nodes to sleep; False: whatever is free stays as it is
    warm_low, warm_high   free nodes of each type kept awake: fewer than low, some are woken; more than high, some sleep
    idle_time  seconds that a node must have been idle before it is put to sleep
    wake_time  seconds that a node has for waking when it wakes alone; `wake_step` more for each that wakes with it
    watts_off, watts_idle, watts_busy   of one node: asleep; awake in the reserve; in use
    """

    manage: bool = False
    warm_low: int = 1
    warm_high: int = 4
    idle_time: float = 900.0
    wake_time: float = 600.0
    wake_step: float = 5.0
    watts_off: float = 5.0
    watts_idle: float = 80.0
    watts_busy: float = 200.0


@dataclass(frozen=True, slots=True)
class TypeRules:
    """What makes nodes equal, from the `[types]` table. Never counts what is particular to one machine.

    ignore        attributes that take no part: paths such as 'disk/model' (`policy.attributes`), with what is below
    memory_parts  memory is rounded up to a multiple of this fraction of the next power of two
    clock_step    MHz that clocks are rounded to
    """

    ignore: tuple[str, ...] = ("firmware/version",)
    memory_parts: int = 16
    clock_step: int = 100


@dataclass(frozen=True, slots=True)
class Account:
    """An account on BMCs or outlets. `password_file` names the file with its password: see `cod.power.accounts`."""

    name: str
    user: str
    password_file: str


@dataclass(frozen=True, slots=True)
class Mail:
    """The site's SMTP server and what is sent through it, from the `[smtp]` table.

    host    '' where the site has none: then nobody gets mail
    tls     'none', 'starttls' or 'tls' (from the first byte)
    user, password_file   to sign in with; the file holds the password. '' and None: without
    sender  address that mail comes from
    admins  addresses of the site's administrators
    """

    host: str = ""
    port: int = 587
    tls: str = "starttls"
    user: str = ""
    password_file: str | None = None
    sender: str = ""
    admins: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NoticeRules:
    """How notices leave the site, from the `[notices]` table.

    local_webhooks  may webhooks be at addresses of the server itself (loopback, link-local, the subnets' `server`)
    ca_file         PEM file of the certificate authorities to trust in mail servers and webhooks; None: the system's
    """

    local_webhooks: bool = False
    ca_file: str | None = None


@dataclass(frozen=True, slots=True)
class PowerRule:
    """How new machines whose name or MAC fits the pattern `match` are switched; see `policy.power.rule_for`.

    account  name of the site file's account to sign in to their BMCs with; None for none
    """

    match: str
    driver: str
    address: str
    account: str | None = None


@dataclass(frozen=True, slots=True)
class Dns:
    """The DNS server on each subnet's server address: its port (0: none), and whom to ask about other names."""

    port: int = 53
    forward: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Site:
    """Everything a flow may want to know about the site. Built once by `cod.config` from the site file.

    domain     DNS suffix; a vcluster's subdomain is `<vcluster>.<domain>`
    nmp_port   where VCMs connect, on each subnet's `server` address; 0: nowhere
    nmp_plain_port   the same without TLS, for VCMs that are known by their addresses
    nmp_keepalive    silent seconds after which either side of such a connection asks whether the other is there
    http_port, confd_port   where nodes reach the boot server and confd, on each subnet's `server` address
    bios_loader, uefi_loader   file names of the NBPs under the boot root
    console    kernel console argument for the trampoline, '' for none
    power      rules for the power driver of new machines, first fit
    accounts   what power drivers sign in with; nodes name them
    types      what makes node types
    """

    name: str
    domain: str
    subnets: tuple[Subnet, ...]
    policy: Policy = field(default_factory=Policy)
    http_port: int = 8069
    confd_port: int = 8070
    bios_loader: str = "undionly.kpxe"
    uefi_loader: str = "snponly.efi"
    console: str = "ttyS0,115200"
    power: tuple[PowerRule, ...] = ()
    energy: Energy = field(default_factory=Energy)
    dns: Dns = field(default_factory=Dns)
    nmp_port: int = 8071
    nmp_plain_port: int = 0
    nmp_keepalive: float = 30.0
    mail: Mail = field(default_factory=Mail)
    notices: NoticeRules = field(default_factory=NoticeRules)
    accounts: tuple[Account, ...] = ()
    types: TypeRules = field(default_factory=TypeRules)


# ---------------------------------------------------------------- rows


@dataclass(frozen=True, slots=True)
class Node:
    """A row of `nodes`."""

    id: int
    name: str
    state: str
    since: float
    generation: int
    deadline: float | None
    attempts: int
    reason: str
    boot_mac: str
    uuid: str | None
    firmware: str | None
    type_id: int | None
    block_id: int | None
    subnet: str | None
    relay: str | None
    circuit: str | None
    remote: str | None
    attributes: str | None
    reported_at: float | None
    last_seen: float | None
    disk: str
    cached_template_id: int | None
    cached_group_id: int | None
    vcluster_id: int | None
    request_id: int | None
    template_id: int | None
    hostname: str | None
    assigned_at: float | None
    released: int
    progress_done: int
    progress_total: int
    progress_rate: float
    power: str
    power_driver: str
    power_address: str
    power_account: str | None
    watts: float | None
    power_wanted: str | None
    power_seq: int
    boot_served_at: float | None


@dataclass(frozen=True, slots=True)
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


@dataclass(frozen=True, slots=True)
class BootSecret:
    """A row of `boot_secrets`: the verifier of a secret that a machine booted with (see wire/confd)."""

    id: str
    mac: str
    kind: str
    address: str
    salt: bytes
    stored_key: bytes
    server_key: bytes
    expires_at: float


@dataclass(frozen=True, slots=True)
class Vcluster:
    """A row of `vclusters`."""

    id: int
    name: str
    group_id: int
    state: str
    template_id: int
    size: int
    creation_size: int
    attributes: str
    subnet: str | None
    first_address: int | None
    last_address: int | None
    lease_time: float
    expires_at: float | None
    drain_until: float | None
    warned: float | None
    ready_at: float | None
    created_at: float
    ended_at: float | None


@dataclass(frozen=True, slots=True)
class Template:
    """A row of `config_templates`: one revision of a configuration template. `document` is its XML."""

    id: int
    name: str
    revision: int
    group_id: int | None
    document: str
    digest: str
    created_at: float
    retired_at: float | None


@dataclass(frozen=True, slots=True)
class Image:
    """A row of `images`. `size` is of the image as written to a disk; `stored` of its served form.

    content  'disk' (it has a partition table), 'partition' (it has none) or 'file' (a kernel or ramdisk, served as is)
    digest   BLAKE2b-256 of the served form's manifest (of the file itself, if plain); names the folder that is served
    source   while ingesting: the file on the server that is taken in
    """

    id: int
    name: str
    group_id: int | None
    state: str
    format: str
    size: int
    used: int
    stored: int
    sha256: str
    digest: str
    created_at: float
    reason: str
    content: str = ""
    source: str = ""


@dataclass(frozen=True, slots=True)
class Ingested:
    """What came of an image file that was turned into its served form (`cod.images.ingest`); names as in `Image`."""

    format: str
    content: str
    size: int
    used: int
    stored: int
    sha256: str
    digest: str


@dataclass(frozen=True, slots=True)
class Request:
    """A row of `node_requests` with its tuples, in order."""

    id: int
    vcluster_id: int
    kind: str
    state: str
    reason: str
    priority: int
    submitted_at: float
    decided_at: float | None
    may_wait: bool = True
    may_spread: bool = False
    tuples: tuple[RequestTuple, ...] = ()


@dataclass(frozen=True, slots=True)
class RequestTuple:
    """One (count, attributes, template) of a request; `attributes` is a requirements document (XML) or ''."""

    count: int
    attributes: str
    template_id: int


@dataclass(frozen=True, slots=True)
class Reclaim:
    """A row of `reclaims`: `count` nodes taken from a vcluster for a request; `given` of them are on their way."""

    id: int
    vcluster_id: int
    request_id: int
    type_id: int
    block_id: int | None
    subnet: str
    attributes: str
    count: int
    given: int
    deadline: float
    state: str
    created_at: float
    ended_at: float | None


@dataclass(frozen=True, slots=True)
class Notice:
    """A row of `notices`: something that a group (or, with None, the site's administrator) is told."""

    id: int
    at: float
    kind: str
    group_id: int | None
    vcluster_id: int | None
    subject: str
    about: str


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


@dataclass(frozen=True, slots=True)
class NoticeView:
    """A notice for people: with the names of its group and vcluster, and how its deliveries stand."""

    notice: Notice
    group: str | None
    vcluster: str | None
    sends: tuple[Send, ...] = ()


@dataclass(frozen=True, slots=True)
class PowerAction:
    """A row of `power_actions`: a wish that a node be 'on', 'off', 'soft' (off, its system being asked first) or be
    'cycle'd, valid for one `generation`. `stage`: how many commands were accepted for it and did not show."""

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
class NodeType:
    """A row of `node_types`: nodes that are equal. `attributes` is their canonical form (XML)."""

    id: int
    name: str
    digest: str
    attributes: str
    cost: float
    created_at: float
    warm_low: int | None = None
    warm_high: int | None = None
    watts_off: float | None = None
    watts_idle: float | None = None
    watts_busy: float | None = None


@dataclass(frozen=True, slots=True)
class EnergyUse:
    """A row of `energy_use`: what nodes of a type used on a day (since the epoch, UTC) for a group; 0: the reserve.

    seconds    node-seconds
    joules     used; `always_on`: what it would have been had no node slept
    """

    day: int
    group_id: int
    type_id: int
    seconds: float
    joules: float
    always_on: float


@dataclass(frozen=True, slots=True)
class Group:
    """A row of `groups`."""

    id: int
    name: str
    priority: int
    default_lease: float | None
    max_lease: float | None
    created_at: float
    email: str = ""
    webhook: str = ""


@dataclass(frozen=True, slots=True)
class ApiToken:
    """A row of `api_tokens` without its digest. `scope` is 'admin' or 'read'."""

    id: int
    name: str
    scope: str
    created_at: float
    expires_at: float | None


@dataclass(frozen=True, slots=True)
class Vcm:
    """A row of `vcms`: who may speak for a vcluster, and how far the messages for it have come."""

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


@dataclass(frozen=True, slots=True)
class Owed:
    """A row of `outbox`: `body` has the fields of the message's body by name."""

    vcluster_id: int
    sequence: int
    verb: str
    body: Mapping[str, Any]


# ---------------------------------------------------------------- rows with the names of what they refer to, for people


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node for people. `address` is the one it has now; `template` is 'name@revision'.

    immune_until  when its scheduling inertia ends, or ended: from then on it may be taken for others
    """

    node: Node
    macs: tuple[str, ...]
    type: str | None
    vcluster: str | None
    template: str | None
    address: str | None
    immune_until: float | None = None
    block: str | None = None


@dataclass(frozen=True, slots=True)
class TypeView:
    """A node type for people. `states` counts its nodes by state; `facts` are its attributes as ('memory/mib', '4096
    MiB'), those of several like parts numbered: 'nic 2/speed'."""

    type: NodeType
    states: Mapping[str, int]
    facts: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class BlockView:
    """A block for people. `types` counts its nodes by the name of their type, '' for those that have none yet."""

    name: str
    types: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class VcmView:
    """A VCM for people. `vcluster` is the name; `owed`: how many messages wait for it."""

    vcm: Vcm
    vcluster: str
    owed: int


@dataclass(frozen=True, slots=True)
class VclusterView:
    """A vcluster for people. `states` counts its nodes by state."""

    vcluster: Vcluster
    group: str
    template: str
    states: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class RequestView:
    """A node request for people. `templates`: 'name@revision' of each of its tuples, in order."""

    request: Request
    vcluster: str
    templates: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ReclaimView:
    """A reclaim for people. `vcluster` loses nodes to `wanted_by`; `chosen`: names of those that go unless others are
    given instead; `block` is '' for nodes in no block.
    """

    reclaim: Reclaim
    vcluster: str
    wanted_by: str
    type: str
    block: str
    chosen: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a node is to run for its holder: a template's id and `document`, and the holder's group.

    hardware  canonical attributes of the node's type; '' while it has none
    requires  requirements (XML or '') of the tuples that it may have been granted for: it has to meet one of them
    """

    template_id: int
    document: str
    group_id: int
    hardware: str = ""
    requires: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Session:
    """A row of `sessions`: an agent's open connection."""

    node_id: int
    server: str
    epoch: int
    address: str
    connected_at: float
    last_seen: float
    reported: bool
    order_sent: str


@dataclass(frozen=True, slots=True)
class Peer:
    """Which connection an agent's message came in on: the key of its session, and the MAC that it proved to have."""

    node_id: int
    server: str
    epoch: int
    mac: str


# ---------------------------------------------------------------- DHCP, between net/dhcp and flows/dhcp


@dataclass(frozen=True, slots=True)
class DhcpQuery:
    """A client's message as the flow sees it (RFC 2131 field and option names).

    kind        DISCOVER, REQUEST, DECLINE, RELEASE or INFORM
    subnet      name of the site's subnet that it came from (interface or giaddr); None if the site has none
    arch        option 93, None when absent
    stage       who is speaking: 'firmware', 'ipxe', 'pxelinux', 'httpclient', 'trampoline' or 'os'
    requested   option 50; server_id option 54; uuid option 97 in the form that Linux prints
    circuit     option 82's circuit id, remote its remote id, both in hex and cut to what a column holds; None when absent
    """

    kind: str
    mac: str
    xid: int
    subnet: str | None
    stage: str
    ciaddr: str = "0.0.0.0"
    giaddr: str = "0.0.0.0"
    requested: str | None = None
    server_id: str | None = None
    arch: int | None = None
    uuid: str | None = None
    client_id: bytes | None = None
    circuit: str | None = None
    remote: str | None = None


@dataclass(frozen=True, slots=True)
class DhcpClient:
    """What the DHCP flow needs to know of the node that owns a MAC: columns of `nodes`, and its vcluster's name."""

    id: int
    name: str
    state: str
    boot_mac: str
    boot_served_at: float | None
    template_id: int | None
    vcluster: str | None
    relay: str | None = None
    circuit: str | None = None
    remote: str | None = None


@dataclass(frozen=True, slots=True)
class DhcpAnswer:
    """What the flow decided: `kind` OFFER, ACK or NAK. Options that are None are left out.

    subnet      whose server, router and DNS servers are told
    lease_time  seconds; None in the answer to an INFORM, which binds nothing
    bootfile    the next thing to load, a file name or a URL
    """

    kind: str
    yiaddr: str
    subnet: str
    lease_time: float | None = None
    hostname: str | None = None
    domain: str | None = None
    bootfile: str | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class BootPlan:
    """What a node is to boot now, decided by `policy.boot`; written out by `wire/bootscript`.

    action   'trampoline', 'local' (its own disk), 'kernel' (diskless) or 'none' (not ours to boot)
    kernel, initrds, cmdline   URLs and arguments, for 'trampoline' and 'kernel'
    why      one line for the log and the script's comment
    """

    action: str
    why: str
    kernel: str = ""
    initrds: tuple[str, ...] = ()
    cmdline: str = ""


# ---------------------------------------------------------------- DNS, between net/dns and flows/dns


@dataclass(frozen=True, slots=True)
class DnsQuestion:
    """A question: `name` in lower case without the last dot, `type` as text ('A', 'PTR' …, 'TYPE65' if unnamed)."""

    name: str
    type: str


@dataclass(frozen=True, slots=True)
class DnsAnswer:
    """What the site says of a name of its own. `code` is 'ok' or 'nxdomain'; 'ok' with nothing else is an empty answer.

    address  an IPv4 address as an integer; `name` the target of a reverse name
    apex     the zone's SOA and NS; `server` the address of the server that is asked
    """

    code: str
    address: int | None = None
    name: str = ""
    apex: bool = False
    server: bool = False


# ---------------------------------------------------------------- orders, between flows/orders and the agent


@dataclass(frozen=True, slots=True)
class ImageSource:
    """Where one image of a prime order comes from and where it goes.

    target       'disk' (whole disk) or a partition's number in the order's layout
    compression  'chunks' (COD's served form: `url` is the folder), 'raw', 'gzip' or 'zstd'
    digest       'chunks': BLAKE2b-256 of the manifest; else sha256 of the bytes as served
    size         bytes of the image as it lies on the disk; for the installer 'qcow2', its virtual size
    installer    'copy'; 'qcow2' (the bytes served are a qcow2 file); or the URL of a static program that is run with
                 the device's path as its argument and the unpacked image on standard input
    installer_digest   sha256 of that program
    """

    target: str
    url: str
    compression: str
    digest: str
    size: int
    installer: str = "copy"
    installer_digest: str = ""


@dataclass(frozen=True, slots=True)
class Partition:
    """One partition of a layout. Size 0 means the rest of the disk, for the last one.

    type  'linux', 'esp', 'bios', 'swap', 'lvm', 'raid', 'data' or a GPT type GUID
    """

    number: int
    size: int
    type: str
    name: str = ""


@dataclass(frozen=True, slots=True)
class Order:
    """What the agent shall do now. `id` is '<node id>.<generation>': the same order repeated has the same id.

    action   'wait', 'wipe', 'prime', 'reboot', 'off' or 'capture'
    disk     rule that picks the target disk: 'first', 'smallest' or 'largest' of those that are large enough, or
             'serial:X' / 'path:X'
    wipe     erase all local disks before writing; False: write zeros where the image is empty, touch nothing else
    verify   read back and compare what was written
    table    partition table to write first: 'gpt' or 'mbr' with `partitions`; 'keep': none (the image brings its own)
    seed     files of the NoCloud seed partition by name; empty for none
    keep     disks that are never touched: 'serial:X' / 'path:X'
    """

    id: str
    action: str
    disk: str = "first"
    wipe: bool = True
    verify: bool = False
    table: str = "keep"
    partitions: tuple[Partition, ...] = ()
    images: tuple[ImageSource, ...] = ()
    seed: Mapping[str, str] = field(default_factory=dict)
    keep: tuple[str, ...] = ()


# ---------------------------------------------------------------- what flows give back


@dataclass(frozen=True, slots=True)
class Effect:
    """Something to do after the commit. Only wake-ups travel this way; everything else is a row (house rule 3).

    kind  'wake'     what: 'manager', 'orders' (confd sessions), 'power', 'notices'
    """

    kind: str
    what: str


@dataclass(frozen=True, slots=True)
class Result:
    """A flow's return value where it has both an answer and effects."""

    value: Any
    effects: tuple[Effect, ...] = ()


class Refused(Exception):
    """A rule says no; the sentence is for the user. `field` names the part of the input, `code` is stable.

    code  'invalid', 'not_found', 'conflict' or 'forbidden'
    """

    def __init__(self, code: str, sentence: str, field: str = "") -> None:
        super().__init__(sentence)
        self.code = code
        self.sentence = sentence
        self.field = field
