"""The tables of the site file: what each key is, its limits, its default.

With `cod.site.subnets`, `cod.site.signin` and `cod.site.file` they are the only description of the
file: `cod.site.load` reads it with them, `cod init` writes it out of them. What a value may be is
in `cod.site.values`.
"""

from __future__ import annotations

import re
from ipaddress import IPv4Address, IPv4Network, IPv6Network, ip_address
from pathlib import Path
from string import Formatter
from typing import Literal

from pydantic import Field, field_validator, model_validator
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from cod.choices import BurninTest, PowerDriverKind, Wipe
from cod.model import Refused
from cod.policy.hardware import keep
from cod.site.values import (
    DIALECTS,
    LABEL,
    AbsolutePath,
    Attribute,
    FileName,
    HostName,
    MailAddress,
    Mark,
    NameServer,
    NotNegative,
    Port,
    Positive,
    Priority,
    Secondary,
    Table,
    address_and_port,
)

_CURVE_URL = re.compile(r"https?://[A-Za-z0-9.:\[\]-]+(/[!-~]*)?", re.ASCII)


class ServerTable(Table):
    """The server itself."""

    name: str = Field(
        "",
        max_length=64,
        description="this server's name among those that share its database; empty: the host's",
    )
    data_dir: Path = Field(
        Path("/var/lib/cod"),
        description="everything COD keeps: boot/, images/, run/ and the SQLite file live below it",
    )
    database: str = Field(
        "",
        description=(
            "database URL; empty: SQLite in the data folder. "
            "MariaDB: mysql+pymysql://cod:PASSWORD@localhost/cod"
        ),
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="debug, info, warning or error (re-read on SIGHUP)"
    )
    log_format: Literal["text", "json"] = Field(
        "text", description="text for people, json for programs; one line each"
    )
    keep_history: NotNegative = Field(
        365.0,
        description=(
            "days after which the nodes' history, decided requests, "
            "reclaims, notices, conflicts and the audit are deleted; 0: never"
        ),
    )

    @field_validator("database")
    @classmethod
    def _known_database(cls, url: str) -> str:
        if not url:
            return url
        try:
            dialect = make_url(url).get_backend_name()
        except ArgumentError:
            raise ValueError("should be a URL such as sqlite:////var/lib/cod/cod.db") from None
        if dialect not in DIALECTS:
            raise ValueError(f"should be a sqlite, mysql or mariadb URL, not {dialect}")
        return url


class ApiTable(Table):
    """The portal and the REST API. A UNIX socket for the local administrator (run/api.sock) is
    always there."""

    listen: tuple[str, ...] = Field(
        (),
        description=(
            "ADDRESS:PORT pairs for the portal and for programs, over TLS; "
            "people sign in, programs show a token (`cod token create`)"
        ),
    )
    names: tuple[HostName, ...] = Field(
        (),
        description=(
            "the server's names as browsers know it (not its addresses); "
            "the first goes into links. None: the host's"
        ),
    )
    certificate: AbsolutePath | None = Field(
        None,
        description=(
            "PEM file of the site's own certificate with those that "
            "sign it; re-read on SIGHUP. Not set: COD makes one, DATA_DIR/web/web.crt"
        ),
    )
    key: AbsolutePath | None = Field(None, description="PEM file of its key")
    plain: bool = Field(
        False,
        description="without TLS; for loopback alone, behind a proxy on the same host that has TLS",
    )
    upload_limit: int = Field(256 * 2**30, gt=0, description="largest image upload, bytes")

    @field_validator("listen")
    @classmethod
    def _pairs(cls, listen: tuple[str, ...]) -> tuple[str, ...]:
        for pair in listen:
            address_and_port(pair)
        return listen

    @model_validator(mode="after")
    def _coherent(self) -> ApiTable:
        if (self.certificate is None) != (self.key is None):
            raise ValueError("certificate and key should be set both, or neither")
        if self.plain and not all(
            ip_address(address_and_port(pair)[0]).is_loopback for pair in self.listen
        ):
            raise ValueError(
                "plain should be true only where every address in listen is a loopback address"
            )
        return self


class BootTable(Table):
    """How nodes boot. Loaders are file names below the boot root (DATA_DIR/boot)."""

    http_port: Port = Field(
        8069, description="boot and image server, on each subnet's server address"
    )
    confd_port: Port = Field(
        8070, description="where the nodes' agents connect, on each subnet's server address"
    )
    bios_loader: FileName = Field(
        "undionly.kpxe", description="first-stage loader for BIOS machines"
    )
    uefi_loader: FileName = Field(
        "snponly.efi", description="first-stage loader for UEFI x64 machines"
    )
    console: str = Field(
        "ttyS0,115200", description="kernel console of the trampoline; empty for none"
    )
    metadata_link_local: bool = Field(
        False,
        description=(
            "nodes may ask for their metadata at 169.254.169.254, port "
            "80, too; an interface of this host has to have that address (docs/metadata.md)"
        ),
    )


class DnsTable(Table):
    """Names of vclusters' nodes, answered on each subnet's server address."""

    port: int = Field(53, ge=0, le=65535, description="0: COD answers no DNS questions")
    forward: tuple[IPv4Address, ...] = Field(
        (),
        description=(
            "servers to ask about other names, for machines on the "
            "site's networks; none: such questions are refused"
        ),
    )
    names: int = Field(
        100, ge=0, le=10_000, description="names (CNAME) that owners may add to a vcluster, at most"
    )
    external: bool = Field(False, description="such a name may lead to a host elsewhere")
    secondaries: tuple[Secondary, ...] = Field(
        (),
        description=(
            "servers that may copy the zones (AXFR) and are told of "
            "changes (NOTIFY): ADDRESS, or ADDRESS:PORT"
        ),
    )
    name_servers: tuple[NameServer, ...] = Field(
        (),
        description=(
            "the zones' name servers: addresses of the site's "
            "own, in the same order on each, and host names of others; none: this "
            "one"
        ),
    )


class NmpTable(Table):
    """Where virtual cluster managers (VCMs) connect, on each subnet's server address."""

    port: int = Field(8071, ge=0, le=65535, description="0: no VCM can connect")
    plain_port: int = Field(
        0,
        ge=0,
        le=65535,
        description=(
            "without TLS, for VCMs that are known by their addresses "
            "alone (`cod vcm enroll --plain`): for closed networks; 0: none"
        ),
    )
    keepalive: Positive = Field(
        30.0,
        description=(
            "silent seconds after which VCM and COD each ask whether the other "
            "is there; three times that, and the connection is given up"
        ),
    )


class PolicyTable(Table):
    """The site's rules. Re-read on SIGHUP."""

    unknown: Literal["discover", "known-only"] = Field(
        "discover",
        description=(
            "PXE clients that are not in the database: 'discover' answers and registers them,"
            " 'known-only' leaves them to another server"
        ),
    )
    auto_approve: bool = Field(
        False,
        description=(
            "new machines need no administrator's approval. With true, any "
            "machine that network-boots here may have its disks wiped"
        ),
    )
    new_rate: float = Field(
        2.0,
        ge=0.01,
        le=1000,
        description=(
            "new machines a second that are registered of those behind one relay, or on one"
            " interface: invented MACs cannot fill database and boot pool. A subnet may have four"
            " times that, a switch port (option 82) an eighth. Refused machines are registered when"
            " they ask again"
        ),
    )
    new_burst: int = Field(
        500,
        ge=1,
        le=100_000,
        description=(
            "new machines that are registered at once before "
            "`new_rate` counts: as many as are switched on together"
        ),
    )
    new_machines: int = Field(
        5000,
        ge=1,
        le=1_000_000,
        description=(
            "machines that wait for approval or have never "
            "reported, at most; those that never reported give way, oldest first"
        ),
    )
    new_time: NotNegative = Field(
        86400.0,
        description=(
            "seconds after which a machine that has never reported, and "
            "does not ask any more, is forgotten; 0: never"
        ),
    )
    approved_share: float = Field(
        0.25,
        ge=0,
        le=0.9,
        description=(
            "share of each boot pool that only approved machines "
            "get addresses of: they boot however many new machines ask"
        ),
    )
    patience: Positive = Field(
        1.0, description="factor on every deadline of the node lifecycle (slow firmware)"
    )
    binding_time: Positive = Field(
        3600.0, description="seconds of a DHCP binding given to an operating system"
    )
    boot_time: Positive = Field(
        900.0, description="seconds of a DHCP binding given to firmware and trampoline"
    )
    heartbeat: Positive = Field(
        5.0, description="seconds between an agent's signs of life; three missed are a loss"
    )
    secret_time: Positive = Field(
        300.0, description="seconds in which a boot's secret must be used"
    )
    default_lease: Positive = Field(
        86400.0, description="seconds of a vcluster's lease where its group says nothing"
    )
    moves: Literal["ask", "follow"] = Field(
        "ask",
        description=(
            "a node that boots from another relay or switch port than before: 'ask' has it wait for"
            " an administrator, 'follow' takes it as it is"
        ),
    )
    os_addresses: Literal["ours", "theirs"] = Field(
        "ours",
        description=(
            "who gives nodes' systems their addresses: 'ours' is COD, 'theirs' is another DHCP"
            " server on the same network, whose addresses COD takes as the nodes'"
        ),
    )
    wipe: Wipe = Field(
        Wipe.ZERO,
        description=(
            "how disks are erased at least: zero (every byte reads as zero), purge (disks that can"
            " do so erase themselves first, then the same; preview), or tables (partition tables"
            " and signatures at once, the rest before another group gets the node; preview)"
        ),
    )
    same_wwn: Literal["refuse", "paths", "disks"] = Field(
        "refuse",
        description=(
            "disks of one machine that show one WWN: refuse (none is used), paths (of a disk with"
            " two ports: the first is used), or disks (with a copied WWN: each is used); from a"
            " machine's next boot of the trampoline on"
        ),
    )
    power_cycle: bool = Field(True, description="may COD power-cycle nodes that overrun a deadline")
    power_rate: float = Field(
        8.0,
        ge=0.01,
        le=1000,
        description=(
            "machines of one power driver that are begun to be "
            "switched in a second, at most: a rack that starts at once trips its breaker"
        ),
    )
    power_at_once: int = Field(
        16,
        ge=1,
        le=1000,
        description=(
            "machines of one power driver that are being switched at "
            "a time, at most: a command and its verification"
        ),
    )
    inertia: NotNegative = Field(
        300.0, description="seconds for which a newly assigned node is immune from reclaims"
    )
    inertia_by_priority: dict[Priority, NotNegative] = Field(
        {}, description="the same for holders of one priority: { 10 = 3600 }"
    )
    age_step: Positive = Field(
        600.0,
        description=(
            "seconds: requests of one priority submitted within the same step "
            "are of one age, and the more constraining goes first"
        ),
    )
    hold_after: NotNegative = Field(
        3600.0,
        description=(
            "seconds that a request waits before nodes that come free are "
            "held back for it, so that later ones of its priority do not pass it for ever; "
            "0: never"
        ),
    )
    reclaim_grace: NotNegative = Field(
        300.0,
        description=(
            "seconds that a holder has to give nodes back before they "
            "are seized for a request of higher priority"
        ),
    )
    max_grace: NotNegative = Field(
        0.0,
        description=(
            "seconds that a group may set as its own grace of a reclaim, such "
            "as 7200; 0: no more than reclaim_grace"
        ),
    )
    victims: tuple[Literal["cheap-type", "whole-block", "last-started"], ...] = Field(
        ("cheap-type", "last-started"),
        description=(
            "which nodes of preemptible vclusters are taken first, the criterion that counts most"
            " in front: cheap-type (of the type of lowest cost), whole-block (of the block that can"
            " lose most), last-started (those whose work began last)"
        ),
    )
    drain_grace: NotNegative = Field(
        300.0, description="seconds between the end of a lease and the seizure of its nodes"
    )
    turnaround: NotNegative = Field(
        900.0,
        description=(
            "seconds until nodes that are given back are free again, erased: reservations in"
            " advance count on that until it is learnt of the nodes' type"
        ),
    )
    lease_warnings: tuple[Positive, ...] = Field(
        (86400.0, 3600.0),
        description="seconds before the end of a lease at which its group is warned",
    )
    fair: Literal["tree", "classic", "dominant"] = Field(
        "tree",
        description=(
            "how groups of one priority are ranked by their "
            "shares and what they have used: Slurm's Fair Tree, or its classic "
            "formula; or by their dominant shares: by what they hold of the type of nodes of which "
            "they hold most"
        ),
    )
    fair_half_life: NotNegative = Field(
        0.0,
        description=(
            "seconds in which half of what a group has used fades, such "
            "as 604800; 0: groups of one priority are not ranked, and nothing is taken "
            "from equals by their shares"
        ),
    )
    node_limit: int = Field(
        0,
        ge=0,
        le=10_000_000,
        description=(
            "nodes that a group may hold at once, where the group says nothing; 0: no limit"
        ),
    )
    max_lease: NotNegative = Field(
        0.0,
        description=(
            "seconds of a whole lease, with all extensions, where the group "
            "says nothing; 0: no limit"
        ),
    )
    pending_requests: int = Field(
        200,
        ge=0,
        le=100_000,
        description=(
            "requests and reservations of a group that wait for nodes at once; 0: no limit. The"
            " group site has none"
        ),
    )
    changes: int = Field(
        600,
        ge=0,
        le=1_000_000,
        description=(
            "changes that one person makes in a minute through portal and API, at most; 0: no limit"
        ),
    )

    @field_validator("victims")
    @classmethod
    def _once(cls, victims: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(victims)) < len(victims):
            raise ValueError("should name each criterion once")
        return victims


class EnergyTable(Table):
    """The reserve pool: how many free nodes stay awake. Types may have their own marks and watts.
    Re-read on SIGHUP."""

    manage: bool = Field(
        False, description="put surplus nodes to sleep and wake them when they are needed"
    )
    warm_low: Mark = Field(1, description="fewer free nodes of a type awake than this: wake some")
    warm_high: Mark = Field(4, description="more than this awake and idle: put some to sleep")
    forecast_weeks: int = Field(
        0,
        ge=0,
        le=4,
        description=(
            "weeks by which the marks of each weekday and hour are forecast, between warm_low and "
            "warm_high; 0: those are the marks"
        ),
    )
    forecast_quantile: float = Field(
        0.9,
        gt=0,
        le=1,
        description="share of those weeks for which the forecast would have sufficed",
    )
    idle_time: NotNegative = Field(
        900.0, description="seconds that a node is idle before it may be put to sleep"
    )
    wake_time: Positive = Field(
        600.0, description="seconds that a node has for waking, when it wakes alone"
    )
    wake_step: NotNegative = Field(
        5.0, description="seconds more for each node that wakes at the same time"
    )
    watts_off: NotNegative = Field(
        5.0, description="a node asleep, in watts, where its BMC does not measure"
    )
    watts_idle: NotNegative = Field(80.0, description="a node awake in the reserve")
    watts_busy: NotNegative = Field(200.0, description="a node in use")
    carbon: NotNegative = Field(
        0.0,
        description=(
            "grams of CO2 emitted for each kWh, where no curve says it; "
            "0: emissions are not counted"
        ),
    )
    curve_file: AbsolutePath | None = Field(
        None, description="CSV of the price of a kWh, or the CO2 emitted for it, by the hour"
    )
    curve_url: str = Field(
        "", max_length=500, description="in place of a file: where it is asked for"
    )
    curve_of: Literal["carbon", "price"] = Field(
        "carbon", description="what the curve says: grams of CO2, or a price"
    )
    curve_poll: float = Field(
        900.0, ge=60, le=86_400, description="seconds between looks at the curve"
    )
    curve_stale: Positive = Field(
        21_600.0, description="seconds after which the curve that was read last is too old"
    )
    hold_above: float | None = Field(
        None,
        allow_inf_nan=False,
        description=(
            "preemptible clusters get no nodes while the curve is above this; left out: always"
        ),
    )

    @model_validator(mode="after")
    def _coherent(self) -> EnergyTable:
        if self.warm_low > self.warm_high:
            raise ValueError(
                f"warm_low {self.warm_low} should not be above warm_high {self.warm_high}"
            )
        if self.curve_file and self.curve_url:
            raise ValueError("curve_file and curve_url should not both be there")
        if (self.curve_file or self.curve_url) and self.curve_stale <= self.curve_poll:
            raise ValueError(
                f"curve_stale {self.curve_stale:g} should be above curve_poll {self.curve_poll:g}:"
                " else each curve is too old before the next look"
            )
        if self.hold_above is not None and not (self.curve_file or self.curve_url):
            raise ValueError("hold_above should have a curve_file or a curve_url")
        if self.curve_url and not _CURVE_URL.fullmatch(self.curve_url):
            raise ValueError(
                "curve_url should begin with https:// or http://, be plain ASCII, and have no user"
            )
        watts = [self.watts_off, self.watts_idle, self.watts_busy]
        if watts != sorted(watts):
            raise ValueError(
                "watts_off, watts_idle and watts_busy should not fall: "
                + ", ".join(f"{each:g}" for each in watts)
            )
        return self


class TypesTable(Table):
    """What makes node types. Re-read on SIGHUP, for nodes that report from then on; `cod type
    refresh` sees to all."""

    ignore: tuple[Attribute, ...] = Field(
        ("firmware/version", "pci/subvendor", "pci/subdevice"),
        description=(
            "attributes that take no part, beside "
            "those that are particular to one machine: 'disk/model', 'nic/driver'"
        ),
    )
    memory_parts: int = Field(
        16,
        ge=1,
        le=1024,
        description="memory is rounded up to a multiple of this fraction of the next power of two",
    )
    clock_step: int = Field(100, ge=1, le=10_000, description="MHz that clocks are rounded to")

    @field_validator("ignore")
    @classmethod
    def _needed(cls, ignore: tuple[str, ...]) -> tuple[str, ...]:
        for path in ignore:
            if path in ("disk", "disk/local", "disk/keep", "disk/sector", "disk/bootable"):
                raise ValueError(
                    f"{path} cannot be left out: it says which disk a template can be written to;"
                    " name what shall not count, such as disk/model or disk/size"
                )
        return ignore


class ImagesTable(Table):
    """What groups may keep of images. Re-read on SIGHUP."""

    quota: int | None = Field(
        None,
        ge=0,
        description=(
            "bytes that a group's images, in their served form, and its open "
            "uploads may take where the group has no quota of its own; not set: no limit"
        ),
    )
    keep_uploads: Positive = Field(
        3.0, description="days after which an upload that nothing more comes of is given up"
    )
    largest: int = Field(
        1 << 42,
        ge=1,
        le=1 << 50,
        description=(
            "bytes that an image may have on a disk: a small file "
            "can stand for a very large one, which takes as long to be taken in"
        ),
    )
    expansion: int = Field(
        100,
        ge=1,
        le=1_000_000,
        description=(
            "bytes of data that each byte of an added file may "
            "stand for; 16 GiB are always accepted, and 1 GiB while a qcow2 file is converted"
        ),
    )
    ingest_time: Positive = Field(
        3600.0,
        description=(
            "seconds that taking in a file may last; a large file has one more for each 4 MiB"
        ),
    )
    open_uploads: int = Field(
        50, ge=0, le=100_000, description="uploads of a group that are not complete; 0: no limit"
    )
    open_captures: int = Field(
        20,
        ge=0,
        le=100_000,
        description="nodes that are being captured for a group at once; 0: no limit",
    )
    open: bool = Field(
        False,
        description=(
            "nodes fetch images without being known by their addresses: where a cache, "
            "or a router that translates addresses, stands between them and the server"
        ),
    )


class ConsoleTable(Table):
    """What nodes write on their serial consoles, recorded where their power driver has one. Re-read
    on SIGHUP."""

    record: bool = Field(
        False,
        description=(
            "follow the consoles. With `ipmi` each is a session with a BMC and a "
            "process of some megabytes, all the time"
        ),
    )
    match: str = Field(
        "*",
        min_length=1,
        max_length=200,
        description="pattern on the names of the nodes that are followed: 'rack1-*'",
    )
    size: int = Field(
        2**20,
        ge=2**16,
        le=2**24,
        description="bytes of a file; of each node about two of them are kept",
    )
    keep: NotNegative = Field(
        30.0, description="days after which what was recorded is deleted; 0: never"
    )
    most: int = Field(
        1000,
        ge=1,
        le=10_000,
        description="consoles that this server follows at a time; further nodes are not recorded",
    )


class BurninTable(Table):
    """When nodes are tested (burnt in), and what they must reach to be used. Re-read on SIGHUP."""

    at_registration: bool = Field(
        False, description="test new machines when they are approved, before anybody gets them"
    )
    after_trouble: bool = Field(
        False, description="test nodes that are restored from quarantine or retirement"
    )
    after_failures: int = Field(
        0,
        ge=0,
        le=10,
        description=(
            "test free nodes that failed or timed out so often on their way to the reserve; 0: none"
        ),
    )
    every: NotNegative = Field(
        0.0, description="days after which a free node is tested again; 0: never"
    )
    tests: tuple[BurninTest, ...] = Field(
        tuple(BurninTest), min_length=1, description="which tests"
    )
    seconds: int = Field(
        600,
        ge=10,
        le=864_000,
        description=(
            "for all tests of a node; what cannot be tested in that "
            "time is tested in part, evenly spread"
        ),
    )
    erase_new: bool = Field(
        False,
        description=(
            "erase disks that COD never wrote before the tests above, so that they "
            "are tested by writing, too; else such disks are only read"
        ),
    )
    least_link: int = Field(
        0,
        ge=0,
        description=(
            "Mb/s that each link that is up must have; a node with less is set aside. 0: no limit"
        ),
    )
    least_network: int = Field(
        0, ge=0, description="Mb/s of throughput to a neighbour, or from the server. 0: no limit"
    )
    least_hdd: int = Field(0, ge=0, description="MB/s of reading a disk that rotates. 0: no limit")
    least_ssd: int = Field(0, ge=0, description="MB/s of reading a disk that does not. 0: no limit")
    least_nvme: int = Field(0, ge=0, description="MB/s of reading an NVMe disk. 0: no limit")


class NoticesTable(Table):
    """How notices leave the site. Re-read on SIGHUP."""

    local_webhooks: bool = Field(
        False,
        description=(
            "groups' webhooks may be at addresses of the server itself: "
            "loopback, link-local, the subnets' `server`"
        ),
    )
    ca_file: AbsolutePath | None = Field(
        None,
        description=(
            "PEM file of the certificate authorities to trust in mail "
            "servers and webhooks; not set: the system's"
        ),
    )
    closed_networks: list[IPv4Network | IPv6Network] = Field(
        [],
        description=(
            "networks that groups' webhooks may not be in: those of BMCs and other management"
        ),
    )


class SmtpTable(Table):
    """The site's mail server. Without `host` nobody gets mail. Re-read on SIGHUP."""

    host: str = Field(
        "",
        max_length=253,
        pattern=r"^[A-Za-z0-9.:-]*$",
        description="name or address of the SMTP server",
    )
    port: Port | None = Field(
        None, description="its port; not set: 25, with starttls 587, with tls 465"
    )
    tls: Literal["none", "starttls", "tls"] = Field(
        "starttls",
        description="none, starttls or tls (from the first byte); its certificate is checked",
    )
    user: str = Field("", max_length=254, description="to sign in with; empty: without")
    password_file: AbsolutePath | None = Field(
        None,
        description=(
            "file whose first line is the password; read when it "
            "is used. Nobody but COD's user may be able to read it (mode 0600)"
        ),
    )
    sender: MailAddress = Field("", description="address that mail comes from")
    admins: tuple[MailAddress, ...] = Field(
        (),
        description="addresses of the site's administrators, who are told what concerns no group",
    )

    @model_validator(mode="after")
    def _coherent(self) -> SmtpTable:
        if self.host and not self.sender:
            raise ValueError("sender should be set: the address that mail comes from")
        if bool(self.user) != (self.password_file is not None):
            raise ValueError("user and password_file should be set both, or neither")
        if self.user and self.tls == "none":
            raise ValueError(
                'tls should be "starttls" or "tls" where there is a user: its password would travel'
                " readable"
            )
        if "" in self.admins:
            raise ValueError("admins should not hold an empty address")
        return self


class AccountTable(Table):
    """What power drivers sign in to BMCs and outlets with. Repeat for more. Re-read on SIGHUP."""

    name: str = Field(
        pattern=LABEL, description="its name in [[power]] rules and `cod node set`, a DNS label"
    )
    user: str = Field(
        "", max_length=64, description="user name; empty where there is none (SNMP communities)"
    )
    password_file: Path = Field(
        description=(
            "file whose first line is the password; read when it is used. Nobody but "
            "COD's user may be able to read it (mode 0600)"
        )
    )
    boot_nonce: bool = Field(
        False,
        description=(
            "preview: nodes with this account get a boot's secret only with the nonce that COD "
            "hands their BMC (redfish and UEFI alone; docs/power.md)"
        ),
    )

    @field_validator("password_file")
    @classmethod
    def _absolute(cls, path: Path) -> Path:
        if not path.is_absolute():
            raise ValueError("should be an absolute path")
        return path


class PowerTable(Table):
    """How machines are switched. The first rule that fits a new machine is used; repeat for more.
    Re-read on SIGHUP."""

    match: str = Field(
        "*", min_length=1, description="pattern on the node's name or MAC: 'rack1-*', '52:54:00:*'"
    )
    driver: PowerDriverKind = Field(
        PowerDriverKind.NONE,
        description=", ".join(f"{kind} ({kind.can.about})" for kind in PowerDriverKind),
    )
    address: str = Field(
        "",
        max_length=160,
        description=(
            "the driver's address of the node (docs/power.md); {name} and {mac} are filled in"
        ),
    )
    account: str | None = Field(None, description="name of the [[account]] to sign in with")

    @field_validator("address")
    @classmethod
    def _fillable(cls, address: str) -> str:
        try:
            fields = [
                (name, spec, turn)
                for _, name, spec, turn in Formatter().parse(address)
                if name is not None
            ]
        except ValueError:
            fields = [("", "", "")]
        if not set(fields) <= {("name", "", None), ("mac", "", None)}:
            raise ValueError("may name {name} and {mac} only; write other braces twice")
        return address


class KeepTable(Table):
    """Disks that COD neither writes nor erases, beside those marked on nodes. Repeat for more.
    Re-read on SIGHUP."""

    match: str = Field(
        "*", min_length=1, description="pattern on the node's name or MAC: 'rack1-*', '52:54:00:*'"
    )
    disk: str = Field(description="serial:SERIAL, path:/dev/NAME or model:PATTERN")

    @field_validator("disk")
    @classmethod
    def _mark(cls, disk: str) -> str:
        try:
            return keep.check(disk)
        except Refused as refused:
            raise ValueError(refused.sentence) from None
