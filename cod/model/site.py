"""The site and its rules, as its administrator describes them in the site file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cod.model.posix import PosixRules
from cod.model.volumes import FileServer, VolumeRules


@dataclass(frozen=True, slots=True)
class Subnet:
    """One IPv4 network that COD answers on.

    interface   the server's interface on it, or None when it is reached through a relay only
    server      COD's own address there: siaddr, option 54, the host of boot URLs
    relay       giaddr by which a relay names this subnet (usually its router), or None
    boot_pool   first and last address for firmware and trampoline
    block_pool  first and last address from which vclusters get their private blocks
    block_size  addresses in a block (a power of two)
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
class Isolation:
    """Where isolated vclusters get their networks, from the `[isolation]` table of the site file.

    vlans         first and last VLAN
    by_default    a new vcluster is isolated unless it asks not to be
    networks      the network that their subnets are cut from
    default_size  prefix length of a subnet; `largest_size`: the shortest that may be asked for
    interface     the server's interface that carries the VLANs tagged; None: DHCP is relayed
    server        COD's address that nodes behind the relay reach; None with `interface`
    router        which address of a subnet the site's router has: 'first', 'last' or 'none'
    """

    vlans: tuple[int, int]
    networks: str
    default_size: int = 26
    largest_size: int = 20
    interface: str | None = None
    server: str | None = None
    router: str = "none"
    by_default: bool = False


@dataclass(frozen=True, slots=True)
class Policy:
    """The site's rules, from the `[policy]` table of the site file.

    unknown         'discover' answers PXE clients that are not in the database, 'known-only'
                    ignores them
    auto_approve    new machines need no administrator
    new_rate        new machines a second that are registered of one relay or interface;
                    `new_burst`: at once before
    new_machines    machines that are in the database and wait for approval, or have never reported,
                    at most
    new_time        seconds after which a machine that has never reported and asks no more is
                    forgotten
    approved_share  share of each boot pool that is kept for approved machines
    patience        factor on every deadline of `states.NODE_RULES` (slow firmware, emulated
                    hardware)
    binding_time    seconds of a DHCP binding given to an operating system
    boot_time       the same for firmware and trampoline
    heartbeat       seconds between signs of life of an agent; three missed are a loss
    secret_time     seconds in which a boot's secret must be used
    default_lease   seconds of a vcluster's lease where its group says nothing
    moves           'ask': a node that boots from another place waits for an administrator;
                    'follow': it does not
    os_addresses    'ours': nodes' systems get their addresses of COD; 'theirs': of another DHCP
                    server on their network, and COD takes those as the nodes'
    wipe            how disks are erased: 'tables' (only partition tables: the node is kept for its
                    group), 'zero', or 'purge' (those that can erase themselves first)
    same_wwn        disks of one machine that show one WWN: 'refuse' them, 'paths' to one disk, or
                    'disks' of their own
    power_cycle     may COD power-cycle nodes that overrun a deadline
    power_rate      machines of one power driver that a server begins to switch in a second, at
                    most; `power_at_once`: that it is switching at a time
    inertia         seconds for which a newly assigned node is immune from reclaims;
                    `inertia_by_priority` overrides it for holders of a priority
    age_step        seconds: requests of one priority submitted within the same step are of one age,
                    and the more constraining goes first
    hold_after      seconds that a request waits before nodes are held back for it; 0: they never
                    are
    reclaim_grace   seconds that a holder has to give nodes back before they are seized
    max_grace       seconds that a group may set as its own grace of a reclaim; 0: no more than
                    `reclaim_grace`
    victims         criteria by which nodes of preemptible vclusters are taken: 'cheap-type',
                    'whole-block', 'last-started'
    drain_grace     seconds between the end of a lease and the seizure of its nodes
    turnaround      seconds until nodes that are given back are free again: erased, and in the
                    reserve; of types of which none came back yet
    lease_warnings  seconds before the end of a lease at which its group is warned
    fair            how groups of one priority are ranked: 'tree', 'classic' or 'dominant'
                    (`policy.sharing.shares`)
    fair_half_life  seconds in which half of what a group has used fades; 0: groups are not ranked
    node_limit      nodes that a group may hold at once, where the group says nothing; 0: no limit
    max_lease       seconds of a whole lease, with all extensions, where the group says nothing; 0:
                    no limit
    pending_requests  requests and reservations of a group that wait at once, at most
    changes         changes of one person in a minute, at most; of both, 0: no limit
    """

    unknown: str = "discover"
    auto_approve: bool = False
    new_rate: float = 2.0
    new_burst: int = 500
    new_machines: int = 5000
    new_time: float = 86400.0
    approved_share: float = 0.25
    patience: float = 1.0
    binding_time: float = 3600.0
    boot_time: float = 900.0
    heartbeat: float = 5.0
    secret_time: float = 300.0
    default_lease: float = 86400.0
    moves: str = "ask"
    os_addresses: str = "ours"
    wipe: str = "zero"
    same_wwn: str = "refuse"
    power_cycle: bool = True
    power_rate: float = 8.0
    power_at_once: int = 16
    inertia: float = 300.0
    inertia_by_priority: Mapping[int, float] = field(default_factory=dict)
    age_step: float = 600.0
    hold_after: float = 3600.0
    reclaim_grace: float = 300.0
    max_grace: float = 0.0
    victims: tuple[str, ...] = ("cheap-type", "last-started")
    drain_grace: float = 300.0
    turnaround: float = 900.0
    lease_warnings: tuple[float, ...] = (86400.0, 3600.0)
    fair: str = "tree"
    fair_half_life: float = 0.0
    node_limit: int = 0
    max_lease: float = 0.0
    pending_requests: int = 200
    changes: int = 600


@dataclass(frozen=True, slots=True)
class Energy:
    """The site's rules for its reserve pool, from the `[energy]` table; types may have their own
    marks and watts.

    manage     put surplus nodes to sleep; False: whatever is free stays as it is
    warm_low, warm_high   free nodes of each type kept awake: fewer than low, some are woken; more
                          than high, some sleep
    forecast_weeks  weeks of the timeline by which the marks of each hour are forecast, between
               `warm_low` and `warm_high`; 0: those are the marks
    forecast_quantile  share of those weeks for which the forecast would have sufficed
    idle_time  seconds that a node must have been idle before it is put to sleep
    wake_time  seconds that a node has for waking when it wakes alone; `wake_step` more for each
               that wakes with it
    watts_off, watts_idle, watts_busy   of one node: asleep; awake in the reserve; in use
    carbon     grams of CO2 for each kWh, where no curve says it; 0: emissions are not counted
    curve_file, curve_url   where the price of a kWh, or the CO2 emitted for it, is by the hour; at
               most one of them
    curve_of   'carbon' or 'price'
    curve_poll seconds between looks at it; curve_stale: seconds after which the last is too old
    hold_above preemptible vclusters get no nodes while the curve is above it; None: always
    """

    manage: bool = False
    warm_low: int = 1
    warm_high: int = 4
    forecast_weeks: int = 0
    forecast_quantile: float = 0.9
    idle_time: float = 900.0
    wake_time: float = 600.0
    wake_step: float = 5.0
    watts_off: float = 5.0
    watts_idle: float = 80.0
    watts_busy: float = 200.0
    carbon: float = 0.0
    curve_file: str | None = None
    curve_url: str = ""
    curve_of: str = "carbon"
    curve_poll: float = 900.0
    curve_stale: float = 21_600.0
    hold_above: float | None = None

    @property
    def curve(self) -> str:
        """Return the file or the address of the curve; '' where the site has none."""
        return self.curve_file or self.curve_url


@dataclass(frozen=True, slots=True)
class TypeRules:
    """What makes nodes equal, from the `[types]` table. Never counts what is particular to one
    machine.

    ignore        attributes that take no part: paths such as 'disk/model'
                  (`policy.hardware.attributes`), with what is
    below
    memory_parts  memory is rounded up to a multiple of this fraction of the next power of two
    clock_step    MHz that clocks are rounded to
    """

    ignore: tuple[str, ...] = ("firmware/version", "pci/subvendor", "pci/subdevice")
    memory_parts: int = 16
    clock_step: int = 100


@dataclass(frozen=True, slots=True)
class BurninRules:
    """Tests of nodes, from the `[burnin]` table.

    at_registration  new machines are tested when they are approved
    after_trouble    nodes that are restored from quarantine or retirement are tested
    after_failures   free nodes that failed or timed out so often on their way to the reserve are
                     tested; 0: none
    every            seconds after which a free node is tested again; 0: never
    tests            which tests where nobody says
    seconds          for all of a burn-in's tests where nobody says
    erase_new        a burn-in that the site asks for first erases disks that COD never wrote, so as
                     to test them by writing
    least_link, least_network   Mb/s of each link, and of the throughput; a node with less fails. 0:
                                no limit
    least_hdd, least_ssd, least_nvme   the same for reading disks, in MB/s
    """

    at_registration: bool = False
    after_trouble: bool = False
    after_failures: int = 0
    every: float = 0.0
    tests: tuple[str, ...] = ("memory", "disk", "network")
    seconds: int = 600
    erase_new: bool = False
    least_link: int = 0
    least_network: int = 0
    least_hdd: int = 0
    least_ssd: int = 0
    least_nvme: int = 0


@dataclass(frozen=True, slots=True)
class Account:
    """An account on BMCs or outlets.

    password_file  the file with its password: see `cod.power.accounts`
    boot_nonce     its BMCs hand each boot of the trampoline a nonce: see `core.nodes.boot_nonces`
    """

    name: str
    user: str
    password_file: str
    boot_nonce: bool = False


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

    local_webhooks  may webhooks be at addresses of the server itself (loopback, link-local, the
                    subnets' `server`)
    ca_file         PEM file of the certificate authorities to trust in mail servers and webhooks;
                    None: the system's
    closed_networks networks that webhooks may not be in: those of BMCs, say ('10.9.0.0/16')
    """

    local_webhooks: bool = False
    ca_file: str | None = None
    closed_networks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class KeepRule:
    """A `[[keep]]` table: on nodes whose name or MAC fits the pattern `match`, the disk `disk` (see
    `policy.hardware.keep`) is neither written nor erased."""

    match: str
    disk: str


@dataclass(frozen=True, slots=True)
class ImageRules:
    """What groups may keep, from the `[images]` table.

    quota         bytes of a group's images and open uploads, where the group says nothing; None: no
                  limit
    keep_uploads  seconds after which an upload that nothing more comes of is given up
    open          the image server gives images to whoever knows their digests
    largest       bytes that an image may have on a disk
    expansion     bytes of data that each byte of an added file may stand for
    ingest_time   seconds that taking in a small file may last
    open_uploads  uploads of a group that are not complete, at most; `open_captures`: nodes that are
                  being captured for a group; 0: no limit
    """

    quota: int | None = None
    keep_uploads: float = 3 * 86400.0
    open: bool = False
    largest: int = 1 << 42
    expansion: int = 100
    ingest_time: float = 3600.0
    open_uploads: int = 50
    open_captures: int = 20


@dataclass(frozen=True, slots=True)
class GroupRules:
    """Which users may create groups, and what such a group gets, from the `[groups]` table.

    creators   groups whose owners and members may create groups; '*': every user may; none:
               administrators alone
    most       groups that one user may have created at a time
    priority, shares, node_limit, hours_limit, max_lease   of a new group, as in `Group`
    parent     the group that it is a subgroup of; '': of none
    """

    creators: tuple[str, ...] = ()
    most: int = 3
    priority: int = 0
    shares: float = 1.0
    node_limit: int | None = None
    hours_limit: float | None = None
    max_lease: float | None = None
    parent: str = ""


@dataclass(frozen=True, slots=True)
class Ldap:
    """A directory that people sign in by, from the `[ldap]` table: see there. `url` is '' where the
    site has none."""

    url: str = ""
    tls: str = "tls"
    ca_file: str | None = None
    base: str = ""
    filter: str = "(uid={name})"
    user: str = ""
    password_file: str | None = None
    create: bool = True
    check: float = 3600.0


@dataclass(frozen=True, slots=True)
class Oidc:
    """An OpenID Connect provider that people sign in by, from the `[oidc]` table. `issuer` is ''
    for none."""

    issuer: str = ""
    client_id: str = ""
    secret_file: str | None = None
    scope: str = "openid profile email"
    name_claim: str = "preferred_username"
    label: str = "Single sign-on"
    create: bool = True
    life: float = 86_400.0
    tokens: float = 7_776_000.0


@dataclass(frozen=True, slots=True)
class SignInRules:
    """How people sign in, from the `[signin]` table.

    url           where browsers reach the portal, without a slash at the end: goes into links; '':
                  not said
    named         the site file says so; else `url` has the host's own name, which others may not be
                  able to look up
    idle          seconds without a click after which a browser is signed out
    life          seconds after which it is anyhow
    invitation    seconds that an invitation or a link for a new password is good for
    letters       letters with links, and test notices, that one person may have sent in an hour;
                  `letters_in_all`: everybody together
    """

    url: str = ""
    named: bool = False
    idle: float = 43_200.0
    life: float = 604_800.0
    invitation: float = 604_800.0
    letters: int = 20
    letters_in_all: int = 200
    ldap: Ldap = field(default_factory=Ldap)
    oidc: Oidc = field(default_factory=Oidc)


@dataclass(frozen=True, slots=True)
class PowerRule:
    """How new machines whose name or MAC fits the pattern `match` are switched; see
    `policy.nodes.power.rule_for`.

    account  name of the site file's account to sign in to their BMCs with; None for none
    """

    match: str
    driver: str
    address: str
    account: str | None = None


@dataclass(frozen=True, slots=True)
class Switch:
    """A switch whose ports COD changes, from a `[[switch]]` table: see `cod.site.switches`.

    account   name of the site file's account to sign in with; None for none
    known_as  patterns on what LLDP calls the switch, beside its name
    ports     (pattern, name) pairs: what LLDP calls a port -> what the driver calls it; others stay
              as they are
    nodes_on  patterns on the driver's names of the ports that nodes are on; empty: any port
    verify    seconds between looks at a port that is in an isolated network
    """

    name: str
    driver: str
    address: str
    account: str | None = None
    platform: str = ""
    provisioning_vlan: int = 1
    known_as: tuple[str, ...] = ()
    ports: tuple[tuple[str, str], ...] = ()
    nodes_on: tuple[str, ...] = ()
    save: bool = False
    verify: float = 300.0
    ca_file: str | None = None
    certificate: str | None = None
    key: str | None = None
    host_key: str = ""


@dataclass(frozen=True, slots=True)
class ConsoleRules:
    """Which nodes' consoles are recorded, from the `[console]` table.

    record  False: nobody's
    match   pattern on the nodes' names
    size    bytes of a file; two of them are kept of each node
    keep    seconds after which what was recorded is deleted; 0: never
    most    consoles that are followed at a time
    """

    record: bool = False
    match: str = "*"
    size: int = 2**20
    keep: float = 30 * 86400.0
    most: int = 1000


@dataclass(frozen=True, slots=True)
class Dns:
    """The DNS server on each subnet's server address, from the `[dns]` table.

    port      0: none
    forward   servers to ask about other names
    secondaries   (address, port) of the servers that may copy the zones, and are told of changes
    name_servers  the zones' name servers: addresses of the site's own, names of others; none: this
                  server
    names     names that owners may add to a vcluster, at most
    external  such a name may lead to a host elsewhere
    """

    port: int = 53
    forward: tuple[str, ...] = ()
    names: int = 100
    external: bool = False
    secondaries: tuple[tuple[str, int], ...] = ()
    name_servers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Site:
    """Everything a flow may want to know about the site. Built once by `cod.site.load` from the
    site file.

    domain     DNS suffix; a vcluster's subdomain is `<vcluster>.<domain>`
    nmp_port   where VCMs connect, on each subnet's `server` address; 0: nowhere
    nmp_plain_port   the same without TLS, for VCMs that are known by their addresses
    nmp_keepalive    silent seconds after which either side of such a connection asks whether the
                     other is there
    metadata_link_local   nodes may ask for their metadata at 169.254.169.254, port 80, too
    http_port, confd_port   where nodes reach the boot server and confd, on each subnet's `server`
                            address
    bios_loader, uefi_loader   file names of the NBPs under the boot root
    console    kernel console argument for the trampoline, '' for none
    power      rules for the power driver of new machines, first fit
    accounts   what power drivers sign in with; nodes name them
    types      what makes node types
    images     what groups may keep
    signin     how people sign in
    isolation  networks of isolated vclusters; None: there can be none
    consoles   which nodes' consoles are recorded
    switches   whose ports COD changes
    posix      how people appear on nodes
    authority  PEM certificate of the site's authority, as its nodes get it; '': not known
    fileservers  where volumes are; new ones are made on the first
    volumes    what groups may keep there
    burnin     when nodes are tested, and what they must reach
    groups     which users may create groups
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
    metadata_link_local: bool = False
    power: tuple[PowerRule, ...] = ()
    energy: Energy = field(default_factory=Energy)
    dns: Dns = field(default_factory=Dns)
    isolation: Isolation | None = None
    nmp_port: int = 8071
    nmp_plain_port: int = 0
    nmp_keepalive: float = 30.0
    mail: Mail = field(default_factory=Mail)
    notices: NoticeRules = field(default_factory=NoticeRules)
    accounts: tuple[Account, ...] = ()
    types: TypeRules = field(default_factory=TypeRules)
    images: ImageRules = field(default_factory=ImageRules)
    keep: tuple[KeepRule, ...] = ()
    signin: SignInRules = field(default_factory=SignInRules)
    consoles: ConsoleRules = field(default_factory=ConsoleRules)
    switches: tuple[Switch, ...] = ()
    posix: PosixRules = field(default_factory=PosixRules)
    authority: str = ""
    fileservers: tuple[FileServer, ...] = ()
    volumes: VolumeRules = field(default_factory=VolumeRules)
    burnin: BurninRules = field(default_factory=BurninRules)
    groups: GroupRules = field(default_factory=GroupRules)

    @property
    def isolates(self) -> bool:
        """Return whether a new vcluster that does not say is isolated."""
        return self.isolation is not None and self.isolation.by_default


class SiteRef:
    """The site as it is now. Services keep this reference and ask `current` each time: SIGHUP
    replaces it at once, so that a flow sees the old rules or the new ones, never some of both."""

    __slots__ = ("current",)

    def __init__(self, site: Site) -> None:
        self.current = site
