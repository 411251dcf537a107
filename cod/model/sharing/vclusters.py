"""Virtual clusters: their rows, and requests for new ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from cod.model.addresses import dotted
from cod.model.described import About, FieldKind, FieldLevel, Undescribed
from cod.model.names import ONE_LINE
from cod.model.records import record
from cod.model.rights import Right
from cod.model.sharing.requests import AskedTuple
from cod.model.volumes import AskedVolume


@record(frozen=True, slots=True)
class Vcluster:
    """A row of `vclusters`."""

    id: Annotated[
        int,
        About(
            "Id",
            FieldKind.NUMBER,
            "tells it from others that had its name: /vclusters/NAME@ID is this one, even after it"
            " has ended",
            level=FieldLevel.DETAIL,
        ),
    ]
    name: Annotated[str, About("Vcluster")]
    group_id: Undescribed[int]
    state: Annotated[str, About("State", FieldKind.STATE)]
    template_id: Undescribed[int]
    size: Annotated[int, About("Nodes", FieldKind.NUMBER)]
    creation_size: Annotated[int, About("Created with", FieldKind.NUMBER, level=FieldLevel.DETAIL)]
    attributes: Annotated[str, About("Requirements", level=FieldLevel.DETAIL)]
    subnet: Annotated[str | None, About("Subnet", level=FieldLevel.WIDE)]
    lease_time: Annotated[float, About("Lease", FieldKind.SPAN, level=FieldLevel.WIDE)]
    expires_at: Annotated[
        float | None, About("Lease ends", FieldKind.MOMENT, level=FieldLevel.WIDE)
    ]
    drain_until: Annotated[
        float | None,
        About(
            "Drained at",
            FieldKind.MOMENT,
            "set: its lease has run out, and at that time its nodes are taken back",
            level=FieldLevel.DETAIL,
        ),
    ]
    warned: Undescribed[float | None]
    ready_at: Annotated[
        float | None,
        About(
            "Ready",
            FieldKind.MOMENT,
            "when all its nodes were first active, and all that they mount was there",
            none="not yet",
            level=FieldLevel.DETAIL,
        ),
    ]
    created_at: Annotated[float, About("Created", FieldKind.MOMENT, level=FieldLevel.WIDE)]
    ended_at: Annotated[float | None, About("Ended", FieldKind.MOMENT, level=FieldLevel.DETAIL)]
    leased_at: Undescribed[float | None] = None
    isolated: Annotated[bool, About("Isolated", FieldKind.FLAG, level=FieldLevel.WIDE)] = False
    preemptible: Annotated[
        bool,
        About(
            "Preemptible",
            FieldKind.FLAG,
            "any other request may take its nodes, down to none, with the grace of a reclaim; it"
            " may have nodes that are held for others until then",
            set_by=Right.USE,
            level=FieldLevel.WIDE,
        ),
    ] = False
    network_prefix: Undescribed[int | None] = None
    description: Annotated[
        str,
        About(
            "Description",
            about="what the cluster is for",
            none="none",
            set_by=Right.USE,
            level=FieldLevel.WIDE,
            longest=500,
            pattern=ONE_LINE,
        ),
    ] = ""
    tags: Annotated[
        str,
        About(
            "Tags",
            about="words to find the cluster by, with spaces between",
            none="none",
            example="paper-2 urgent",
            set_by=Right.USE,
            level=FieldLevel.WIDE,
            longest=200,
            pattern=ONE_LINE,
        ),
    ] = ""


@dataclass(frozen=True, slots=True)
class VclusterNetwork:
    """A row of `vcluster_networks`: the VLAN and the subnet of an isolated vcluster.

    first_address   the first address of the subnet
    server_address  the address by which its nodes reach COD
    router_address  the nodes' default router; None: they have none
    servers         how many addresses from `server_address` on are COD's, one for each of its hosts
    """

    vlan: int
    vcluster_id: int
    first_address: int
    prefix: int
    server_address: int
    router_address: int | None
    servers: int = 1

    @property
    def last_address(self) -> int:
        """Return the subnet's last address, its broadcast address."""
        return self.first_address + (1 << 32 - self.prefix) - 1

    @property
    def subnet(self) -> str:
        """Return the subnet's name in bindings and listings."""
        return f"vlan-{self.vlan}"

    def __str__(self) -> str:
        return f"{dotted(self.first_address)}/{self.prefix}"


@dataclass(frozen=True, slots=True)
class Assignment:
    """The system that a node's holder wants on it: a template's id, full `name`, `document` and its
    `digest`, and the holder's group.

    hardware  canonical attributes of the node's type; '' while it has none
    requires  requirements (XML or '') of the tuples that the node may have been granted for: it has
              to satisfy one of them
    """

    template_id: int
    document: str
    group_id: int
    hardware: str = ""
    name: str = ""
    digest: str = ""
    requires: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AskedVcluster:
    """A request for a new vcluster.

    size        number of nodes of its first tuple
    template    template of its first tuple, 'name' or 'name@revision'
    attributes  requirements of its first tuple (XML, schema/requires.rng); '': any nodes
    also        further tuples, whose nodes count for the vcluster's size and creation size, too
    lease       seconds of its lease; None: the group's default
    spread      the nodes of one tuple may be of several types and blocks
    wait        False: the request is rejected if it cannot be granted at once
    network_size  prefix length of an isolated vcluster's subnet; None: the site's default, or a
                  larger subnet if the number of nodes needs it
    mounts      volumes that it mounts; volumes of its group may be named without the group
    starts_at   reserve it in advance (`core.advance_reservations`): it gets its name, and its
                addresses or its network, now, and its nodes at that time
    """

    MAKES: ClassVar[type] = Vcluster
    name: Undescribed[str]
    size: Undescribed[int]
    template: Undescribed[str]
    group: Undescribed[str]
    attributes: Undescribed[str] = ""
    also: Undescribed[Sequence[AskedTuple]] = ()
    lease: Undescribed[float | None] = None
    spread: Undescribed[bool] = False
    wait: Undescribed[bool] = True
    preemptible: bool = False
    isolated: Annotated[
        bool | None,
        About(
            "Isolated",
            FieldKind.FLAG,
            "its nodes are in a VLAN and a subnet of their own",
            none="as the site's rules say",
            set_by=Right.USE,
        ),
    ] = None
    network_size: Undescribed[int | None] = None
    description: str = ""
    tags: str = ""
    homes: Annotated[
        bool | None,
        About(
            "Homes",
            FieldKind.FLAG,
            "its nodes mount home directories from its group's home volume",
            none="as the site's rules say",
            set_by=Right.USE,
        ),
    ] = None
    mounts: Undescribed[Sequence[AskedVolume]] = ()
    starts_at: Undescribed[float | None] = None


@dataclass(frozen=True, slots=True)
class VclusterName:
    """A row of `vcluster_names`: a further DNS name (CNAME) of a vcluster. `external`: the target
    is a full name elsewhere, not a host or a name of the vcluster."""

    vcluster_id: int
    name: str
    target: str
    external: bool
    created_at: float
    actor: str
