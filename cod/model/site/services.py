"""The site's rules for services besides the allocation of nodes, and for power control."""

from __future__ import annotations

from dataclasses import dataclass, field
from string import Formatter
from typing import Annotated, Literal

from cod.choices import BurninTest, PowerDriverKind
from cod.model.keys import (
    DAY,
    LABEL,
    AbsolutePath,
    AnyNetwork,
    NotNegativeDays,
    Port,
    PositiveDays,
    PositiveSeconds,
    Read,
    SiteTable,
    key_about,
    needed,
    site_key,
)


@dataclass(frozen=True, slots=True)
class TypeRules(SiteTable):
    """Rules for node types. Re-read on SIGHUP, for nodes that report from then on; `cod type
    refresh` sees to all."""

    ignore: tuple[str, ...] = site_key(
        ("firmware/version", "pci/subvendor", "pci/subdevice"),
        "attributes that take no part, beside "
        "those that are particular to one machine: 'disk/model', 'nic/driver'",
    )
    memory_parts: int = site_key(
        16,
        "memory is rounded up to a multiple of this fraction of the next power of two",
        ge=1,
        le=1024,
    )
    clock_step: int = site_key(100, "MHz that clocks are rounded to", ge=1, le=10_000)


@dataclass(frozen=True, slots=True)
class ImageRules(SiteTable):
    """Rules for groups' images, and for their way to nodes. Re-read on SIGHUP."""

    quota: int | None = site_key(
        None,
        "bytes that a group's images, in their served form, and its open "
        "uploads may take where the group has no quota of its own; not set: no limit",
        ge=0,
        unit="bytes",
    )
    keep_uploads: PositiveDays = site_key(
        3 * DAY,
        "days after which an upload that nothing more comes of is given up",
        fixed="uploads that are deleted cannot be brought back",
    )
    open: bool = site_key(
        False,
        "nodes fetch images without being known by their addresses: where a cache, "
        "or a router that translates addresses, stands between them and the server",
        fixed="it guards images",
    )
    largest: int = site_key(
        1 << 42,
        "bytes that an image may have on a disk: a small file "
        "can stand for a very large one, which takes as long to be taken in",
        ge=1,
        le=1 << 50,
        unit="bytes",
    )
    expansion: int = site_key(
        100,
        "bytes of data that each byte of an added file may "
        "stand for; 16 GiB are always accepted, and 1 GiB while a qcow2 file is converted",
        ge=1,
        le=1_000_000,
    )
    ingest_time: PositiveSeconds = site_key(
        3600.0, "seconds that taking in a file may last; a large file has one more for each 4 MiB"
    )
    open_uploads: int = site_key(
        50, "uploads of a group that are not complete; 0: no limit", ge=0, le=100_000
    )
    open_captures: int = site_key(
        20, "nodes that are being captured for a group at once; 0: no limit", ge=0, le=100_000
    )
    pass_on: bool = site_key(
        True,
        "nodes that are installed with the same template pass its images on to each other; "
        "false: each fetches them from the server",
    )
    pass_on_rate: int = site_key(
        125_000_000,
        "bytes per second that a node sends to others at most; 0: no limit",
        ge=0,
        le=1 << 40,
        unit="bytes",
    )


@dataclass(frozen=True, slots=True)
class ConsoleRules(SiteTable):
    """Recording of nodes' serial consoles, where their power driver has one. Re-read on SIGHUP."""

    record: bool = site_key(
        False,
        "follow the consoles. With `ipmi` each is a session with a BMC and a "
        "process of some megabytes, all the time",
    )
    match: str = site_key(
        "*",
        "pattern on the names of the nodes that are followed: 'rack1-*'",
        min_length=1,
        max_length=200,
    )
    size: int = site_key(
        2**20,
        "bytes of a file; of each node about two of them are kept",
        ge=2**16,
        le=2**24,
        unit="bytes",
        fixed="what is deleted cannot be brought back",
    )
    type: Literal["nobody", "administrators", "holders"] = site_key(
        "administrators",
        "who may type on a console: 'nobody', 'administrators', or 'holders' as well. A console is"
        " the firmware's too: set a password for its setup before holders may type",
        fixed="a console is the firmware's, too",
    )
    keep: NotNegativeDays = site_key(
        30 * DAY,
        "days after which what was recorded is deleted; 0: never",
        fixed="what is deleted cannot be brought back",
    )
    most: int = site_key(
        1000,
        "consoles that this server follows at a time; further nodes are not recorded",
        ge=1,
        le=10_000,
    )


@dataclass(frozen=True, slots=True)
class BurninRules(SiteTable):
    """Occasions for tests of nodes (burn-ins), and the values that nodes must reach to be used.
    Re-read on SIGHUP."""

    at_registration: bool = site_key(
        False, "test new machines when they are approved, before anybody gets them"
    )
    after_trouble: bool = site_key(
        False, "test nodes that are restored from quarantine or retirement"
    )
    after_failures: int = site_key(
        0,
        "test free nodes that failed or timed out so often on their way to the reserve; 0: none",
        ge=0,
        le=10,
    )
    every: NotNegativeDays = site_key(0.0, "days after which a free node is tested again; 0: never")
    tests: tuple[BurninTest, ...] = site_key(tuple(BurninTest), "which tests", min_length=1)
    seconds: int = site_key(
        600,
        "for all tests of a node; what cannot be tested in that "
        "time is tested in part, evenly spread",
        ge=10,
        le=864_000,
        unit="seconds",
    )
    erase_new: bool = site_key(
        False,
        "erase disks that COD never wrote before the tests above, so that they "
        "are tested by writing, too; else such disks are only read",
        fixed="what is erased cannot be brought back",
    )
    least_link: int = site_key(
        0,
        "Mb/s that each link that is up must have; a node with less is set aside. 0: no limit",
        ge=0,
        unit="Mb/s",
    )
    least_network: int = site_key(
        0, "Mb/s of throughput to a neighbour, or from the server. 0: no limit", ge=0, unit="Mb/s"
    )
    least_hdd: int = site_key(
        0, "MB/s of reading a disk that rotates. 0: no limit", ge=0, unit="MB/s"
    )
    least_ssd: int = site_key(
        0, "MB/s of reading a disk that does not. 0: no limit", ge=0, unit="MB/s"
    )
    least_nvme: int = site_key(0, "MB/s of reading an NVMe disk. 0: no limit", ge=0, unit="MB/s")


@dataclass(frozen=True, slots=True)
class NoticeRules(SiteTable):
    """Delivery of notices. Re-read on SIGHUP."""

    local_webhooks: bool = site_key(
        False,
        "groups' webhooks may be at addresses of the server itself: "
        "loopback, link-local, the subnets' `server`",
        fixed="it guards the server from webhooks",
    )
    ca_file: AbsolutePath | None = site_key(
        None,
        "PEM file of the certificate authorities to trust in mail "
        "servers and webhooks; not set: the system's",
    )
    closed_networks: tuple[AnyNetwork, ...] = site_key(
        (),
        "networks that groups' webhooks may not be in: those of BMCs and other management",
        fixed="it guards the site's networks from webhooks",
    )
    digest_hour: int = site_key(
        6, "hour of the day, UTC, at which people get their daily mail of notices", ge=0, le=23
    )


@dataclass(frozen=True, slots=True)
class Mail(SiteTable):
    """The site's mail server. Without `host` nobody gets mail. Re-read on SIGHUP."""

    host: str = site_key(
        "",
        "name or address of the SMTP server",
        max_length=253,
        pattern=r"^[A-Za-z0-9.:-]*$",
        fixed="the password goes to that host",
    )
    port: Port | None = site_key(
        None,
        "its port; not set: 25, with starttls 587, with tls 465",
        fixed="the password goes to that port",
    )
    tls: Literal["none", "starttls", "tls"] = site_key(
        "starttls",
        "none, starttls or tls (from the first byte); its certificate is checked",
        fixed="the password could travel readable",
    )
    user: str = site_key(
        "",
        "to sign in with; empty: without",
        max_length=254,
        fixed="the password is in a file of the server",
    )
    password_file: AbsolutePath | None = site_key(
        None,
        "file whose first line is the password; read when it "
        "is used. Nobody but COD's user may be able to read it (mode 0600)",
    )
    sender: str = site_key("", "address that mail comes from")
    admins: tuple[str, ...] = site_key(
        (), "addresses of the site's administrators, who are told what concerns no group"
    )

    @property
    def at(self) -> int:
        """Return the port that the server listens on."""
        return self.port or {"none": 25, "starttls": 587, "tls": 465}[self.tls]


def _fillable(address: str) -> str:
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


@dataclass(frozen=True, slots=True)
class Account(SiteTable):
    """Credentials with which power drivers sign in to BMCs and outlets. Repeat for more. Re-read on
    SIGHUP."""

    name: str = field(
        metadata=key_about(
            "its name in [[power]] rules and `cod node set`, a DNS label", pattern=LABEL
        )
    )
    user: str = site_key(
        "", "user name; empty where there is none (SNMP communities)", max_length=64
    )
    password_file: AbsolutePath = needed(
        "file whose first line is the password; read when it is used. Nobody but "
        "COD's user may be able to read it (mode 0600)"
    )
    boot_nonce: bool = site_key(
        False,
        "preview: nodes with this account get a boot's secret only with the nonce that COD "
        "hands their BMC (redfish and UEFI alone; docs/power)",
    )


@dataclass(frozen=True, slots=True)
class PowerRule(SiteTable):
    """Power control of machines. The first rule that fits a new machine is used; repeat for more.
    Re-read on SIGHUP."""

    match: str = site_key(
        "*", "pattern on the node's name or MAC: 'rack1-*', '52:54:00:*'", min_length=1
    )
    driver: PowerDriverKind = site_key(
        PowerDriverKind.NONE, ", ".join(f"{kind} ({kind.about})" for kind in PowerDriverKind)
    )
    address: Annotated[str, Read(_fillable)] = site_key(
        "",
        "the driver's address of the node (docs/power); {name} and {mac} are filled in",
        max_length=160,
    )
    account: str | None = site_key(None, "name of the [[account]] to sign in with")


@dataclass(frozen=True, slots=True)
class KeepRule(SiteTable):
    """Disks that COD neither writes nor erases, beside those marked on nodes. Repeat for more.
    Re-read on SIGHUP."""

    match: str = site_key(
        "*", "pattern on the node's name or MAC: 'rack1-*', '52:54:00:*'", min_length=1
    )
    disk: str = needed("serial:SERIAL, path:/dev/NAME or model:PATTERN")
