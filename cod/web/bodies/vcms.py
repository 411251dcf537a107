"""Bodies about virtual cluster managers."""

from __future__ import annotations

from ipaddress import IPv4Address
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from cod.model import VcmView
from cod.web.bodies.base import Body, Paged, Part, Reply

Address = Annotated[str, AfterValidator(lambda text: str(IPv4Address(text)))]


class VcmEnrol(Body):
    """Who shall speak for a vcluster."""

    address: Address | None = Field(default=None, description="the only address it may come from; null: any")
    plain: bool = Field(default=False, description="it is known by its address alone, and shows no certificate")
    inside: bool = Field(default=False, description="it runs on a node of the vcluster, which gets configuration and "
                         "invitation when it is primed")
    head: str | None = Field(default=None, description="host name of that node; null: the vcluster's first")


class VcmReply(Reply):
    """A VCM. `server` holds its connection, null while it is away; `owed` messages are not acknowledged yet. `head`:
    the node of the vcluster that it runs on, which has no certificate yet where `serial` is empty. `ends_at`: when its
    certificate ends (null: it has none, or has not shown it since ends are written down); `warned_at`: when its group
    was told that it does, because the VCM, which renews it by itself months before, has not."""

    vcluster: str
    serial: str
    address: str | None
    about: str
    server: str | None
    since: float | None
    enrolled_at: float
    owed: int
    head: str | None
    ends_at: float | None
    warned_at: float | None

    @classmethod
    def of(cls, view: VcmView) -> VcmReply:
        """From a view."""
        vcm = view.vcm
        return cls(vcluster=view.vcluster, serial=vcm.serial, address=vcm.address or None, about=vcm.about,
                   server=vcm.server, since=vcm.connected_at, enrolled_at=vcm.enrolled_at, owed=view.owed,
                   head=vcm.head, ends_at=vcm.ends_at, warned_at=vcm.warned_at)


class VcmQuery(Paged):
    """Which VCMs to list."""

    sort: Literal["vcluster", "-vcluster", "enrolled_at", "-enrolled_at"] = "vcluster"


class VcmList(Part):
    """VCMs."""

    items: list[VcmReply]


class VcmEnrolled(Reply):
    """What a VCM needs, shown once: its key is not kept. Key and certificates are PEM, and empty where it is known by
    its address alone; `configuration` is the text of its file. One inside its vcluster gets all that on the node
    `head`; `primed`: that node was primed before it could be told."""

    vcluster: str
    serial: str
    key: str
    certificate: str
    authority: str
    servers: list[str]
    configuration: str
    head: str | None = None
    primed: bool = False
