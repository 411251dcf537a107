"""The site's networks, and the servers of COD on them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from cod.model.addresses import room_of_blocks
from cod.model.keys import (
    LABEL,
    AbsolutePath,
    Address,
    FileName,
    Limits,
    NameServer,
    Network,
    Pool,
    Port,
    PositiveSeconds,
    Secondary,
    SiteTable,
    key_about,
    site_key,
)

Vlan = Annotated[int, Limits({"ge": 2, "le": 4094})]
PrefixLength = Annotated[int, Limits({"ge": 20, "le": 29})]
LONGEST_TRUNK = 10  # of the 15 characters of an interface's name; the rest is for ".4094"


@dataclass(frozen=True, slots=True)
class Subnet(SiteTable):
    """One IPv4 network that COD answers on. Repeat the table for more."""

    name: str = field(metadata=key_about("its name in listings, a DNS label", pattern=LABEL))
    network: Network = field(metadata=key_about("the network, ADDRESS/BITS"))
    server: Address = field(
        metadata=key_about(
            "COD's own address on it (behind a relay: the address that nodes reach); with several "
            "servers the list of theirs, the same on each"
        )
    )
    boot_pool: Pool = field(
        metadata=key_about("first and last address for firmware and trampoline")
    )
    block_pool: Pool = field(
        metadata=key_about("first and last address from which vclusters get their blocks")
    )
    block_size: int = site_key(
        64,
        "addresses in a block, a power of two; a vcluster has as many blocks as it needs",
        ge=2,
        le=2**20,
    )
    router: Address | None = site_key(None, "default router given to nodes")
    interface: str | None = site_key(
        None,
        "the server's interface on it; leave out for a network behind a relay",
        min_length=1,
        max_length=15,
    )
    relay: Address | None = site_key(
        None, "address by which a DHCP relay names this network (giaddr)"
    )
    dns: tuple[Address, ...] = site_key(
        (), "name servers given to nodes; none: COD's own, if it is on"
    )
    # addresses of the site's other servers on it: `cod.site` takes them from `server`
    others: tuple[Address, ...] = field(default=(), metadata={"exclude": True})
    # how many nodes all its blocks together have addresses for
    room: int = field(init=False, repr=False, compare=False, metadata={"exclude": True})

    def __post_init__(self) -> None:
        object.__setattr__(self, "room", room_of_blocks(self.block_pool, self.block_size))

    @property
    def servers(self) -> tuple[str, ...]:
        """Return the addresses of all servers of COD on it, this host's own first."""
        return (self.server, *self.others)


@dataclass(frozen=True, slots=True)
class Isolation(SiteTable):
    """Networks of their own for isolated vclusters: VLANs, and subnets. Without `vlans` no
    vcluster can be isolated."""

    vlans: tuple[Vlan, Vlan] = field(
        metadata=key_about(
            "first and last VLAN that COD may give to vclusters; "
            "every switch that nodes are on has to carry them"
        )
    )
    networks: Network = field(
        metadata=key_about("the network that vclusters' subnets are cut from")
    )
    default_size: PrefixLength = site_key(
        26, "prefix length of a subnet where a vcluster asks for none"
    )
    largest_size: PrefixLength = site_key(
        20, "prefix length of the largest subnet that a vcluster may have"
    )
    interface: str | None = site_key(
        None,
        "the server's interface that carries the VLANs tagged: COD makes INTERFACE.VLAN for"
        " each VLAN in use, or takes one that is there",
        min_length=1,
        max_length=LONGEST_TRUNK,
    )
    server: Address | None = site_key(
        None,
        "instead of `interface`: the server's address that nodes "
        "reach through the router, which relays their DHCP to it; with several servers the list"
        " of theirs, to all of which it relays",
    )
    router: Literal["first", "last", "none"] = site_key(
        "none",
        "the address of each subnet that the site's "
        "router has, which nodes get as their default router",
    )
    by_default: bool = site_key(False, "a new vcluster is isolated unless it asks not to be")
    # `cod.site` fills these in. `others`: addresses of the site's other servers, beside `server`.
    # `hosts`: with `interface`, all servers by their addresses on the first subnet, in the file's
    # order, each of which has an address in each new network; `place`: this host's among them
    others: tuple[Address, ...] = field(default=(), metadata={"exclude": True})
    hosts: tuple[Address, ...] = field(default=(), metadata={"exclude": True})
    place: int = field(default=0, metadata={"exclude": True})

    @property
    def servers(self) -> tuple[str, ...]:
        """Return the addresses of all servers behind the router, this host's own first."""
        return (self.server, *self.others) if self.server else ()


@dataclass(frozen=True, slots=True)
class Boot(SiteTable):
    """Settings of how nodes boot. Loaders are file names below the boot root (DATA_DIR/boot)."""

    http_port: Port = site_key(8069, "boot and image server, on each subnet's server address")
    confd_port: Port = site_key(
        8070, "where the nodes' agents connect, on each subnet's server address"
    )
    bios_loader: FileName = site_key("undionly.kpxe", "first-stage loader for BIOS machines")
    uefi_loader: FileName = site_key("snponly.efi", "first-stage loader for UEFI x64 machines")
    console: str = site_key("ttyS0,115200", "kernel console of the trampoline; empty for none")
    metadata_link_local: bool = site_key(
        False,
        "nodes may ask for their metadata at 169.254.169.254, port "
        "80, too; an interface of this host has to have that address (docs/metadata)",
    )


@dataclass(frozen=True, slots=True)
class ImageMirror(SiteTable):
    """An HTTP cache near some nodes, which fetch images through it (docs/mirrors). Repeat for
    more; a node has the first that is for it. Re-read on SIGHUP."""

    address: Address = field(
        metadata=key_about(
            "the cache's address: nodes reach it there, and its own requests come from it"
        )
    )
    port: Port = site_key(8069, "where it listens")
    subnets: tuple[str, ...] = site_key((), "names of the subnets whose nodes use it; none: all")
    blocks: tuple[str, ...] = site_key((), "names of the blocks whose nodes use it; none: all")

    @property
    def base(self) -> str:
        """Return the URL in front of the paths of what it passes on."""
        return f"http://{self.address}:{self.port}"


@dataclass(frozen=True, slots=True)
class Nmp(SiteTable):
    """Ports for virtual cluster managers (VCMs), on each subnet's server address."""

    port: int = site_key(8071, "0: no VCM can connect", ge=0, le=65535)
    plain_port: int = site_key(
        0,
        "without TLS, for VCMs that are known by their addresses "
        "alone (`cod vcm enroll --plain`): for closed networks; 0: none",
        ge=0,
        le=65535,
    )
    keepalive: PositiveSeconds = site_key(
        30.0,
        "silent seconds after which VCM and COD each ask whether the other "
        "is there; three times that, and the connection is given up",
    )


@dataclass(frozen=True, slots=True)
class Dns(SiteTable):
    """Names of vclusters' nodes, answered on each subnet's server address."""

    port: int = site_key(53, "0: COD answers no DNS questions", ge=0, le=65535)
    forward: tuple[Address, ...] = site_key(
        (),
        "servers to ask about other names, for machines on the "
        "site's networks; none: such questions are refused",
    )
    names: int = site_key(
        100, "names (CNAME) that owners may add to a vcluster, at most", ge=0, le=10_000
    )
    external: bool = site_key(False, "such a name may lead to a host elsewhere")
    secondaries: tuple[Secondary, ...] = site_key(
        (),
        "servers that may copy the zones (AXFR) and are told of "
        "changes (NOTIFY): ADDRESS, or ADDRESS:PORT",
    )
    transfer_key_file: AbsolutePath | None = site_key(
        None,
        "file whose first line is the key of transfers and NOTIFYs (TSIG), as dig -y takes it: "
        "ALGORITHM:NAME:SECRET; read when it is used. Unsigned transfers are refused then",
    )
    name_servers: tuple[NameServer, ...] = site_key(
        (),
        "the zones' name servers: addresses of the site's own, in the same order on each, and host"
        " names of others; none: this one",
    )
