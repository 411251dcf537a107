"""Volumes: directories on file servers that vclusters mount."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import Field

from cod.flows.people.access import RequiredRight
from cod.flows.volumes import volumes
from cod.model import AskedVolume, FileServer, NfsSecurity, Right, Volume, VolumeView
from cod.web.api.models import (
    FULL,
    Body,
    DnsLabel,
    OwnName,
    Paged,
    Reply,
    ReplyOf,
    Seconds,
)
from cod.web.api.routes import (
    ADMINS,
    ANYBODY,
    Call,
    Named,
    Names,
    Shaped,
    in_parts,
    listed,
    manage,
    named_route,
    paged,
    part_route,
    route,
    see,
    use,
)

Bytes = Annotated[int, Field(ge=0, le=2**62, description="bytes")]
MountPoint = Annotated[
    str,
    Field(
        max_length=200,
        description=(
            "where the nodes mount it; '': /NAME, of a home volume the site's directory of homes"
        ),
    ),
]
DeleteAfter = Annotated[
    Seconds | None,
    Field(
        description=(
            "seconds after the vcluster's end for which the volume is "
            "kept before it is deleted; null: it is kept for good"
        )
    ),
]


class VolumeCreate(Body):
    """A new volume."""

    name: OwnName
    size: Bytes
    group: str = Field(default="site", min_length=1, max_length=63)
    fileserver: str = Field(default="", max_length=63, description="'': the site's first")
    source: str = Field(
        default="", max_length=FULL, description="volume whose data it begins with; '': it is empty"
    )
    snapshot: str = Field(
        default="", max_length=63, description="the source's snapshot that is copied"
    )
    sec: NfsSecurity | None = Field(
        default=None,
        description="how NFS protects it; null: as the source is, or as the site file says",
    )


class VolumePatch(Body):
    """Changes to a volume."""

    size: Bytes | None = None
    sec: NfsSecurity | None = Field(
        default=None,
        description="how NFS protects it; nodes that have mounted it have to mount it again",
    )


class VolumeAttach(Body):
    """A vcluster that is to mount the volume."""

    vcluster: DnsLabel
    mount: MountPoint = ""
    read_only: bool = False
    delete_after: DeleteAfter = None


class VolumeDetach(Body):
    """A vcluster that is to mount the volume no longer."""

    vcluster: str = Field(min_length=1, max_length=63)


class SnapshotCreate(Body):
    """A new snapshot."""

    snapshot: str = Field(min_length=1, max_length=63, description="its name")


class AttachmentReply(Reply):
    """A vcluster that mounts the volume. `state`: waiting (for the file server), exported, or
    leaving."""

    vcluster: str
    mount: str
    read_only: bool
    delete_after: float | None
    state: Literal["waiting", "exported", "leaving"]


class SnapshotReply(Reply):
    """A snapshot. `state`: making, ready or erasing."""

    name: str
    created_at: float
    state: Literal["making", "ready", "erasing"]


class VolumeReply(ReplyOf[VolumeView]):
    """A volume. `state`: making, ready, changing, trouble (described by `reason`; COD keeps
    trying), deleted or erasing."""

    name: str
    state: Literal["making", "ready", "changing", "trouble", "deleted", "erasing"]
    attachments: list[AttachmentReply]

    @classmethod
    def values(cls, view: VolumeView) -> dict[str, Any]:
        """Return the described values, and the vclusters that mount the volume."""
        attachments = [
            AttachmentReply.read_from(
                one,
                state=(
                    "leaving"
                    if one.leaving
                    else "exported"
                    if view.volume.applied >= one.sequence
                    else "waiting"
                ),
            )
            for one in view.attachments
        ]
        return super().values(view) | {"attachments": attachments}


class VolumeInFull(VolumeReply):
    """A volume with its snapshots."""

    snapshots: list[SnapshotReply]

    @classmethod
    def of(cls, view: VolumeView) -> VolumeInFull:
        shots = [
            SnapshotReply.read_from(
                one,
                state="erasing" if one.leaving else "making" if one.made_at is None else "ready",
            )
            for one in view.snapshots
        ]
        return cls(**cls.values(view), snapshots=shots)


class VolumeQuery(Paged):
    sort: Literal[
        "name", "-name", "group", "-group", "size", "-size", "created_at", "-created_at"
    ] = "name"


class FileServerReply(Reply):
    """A file server of the site file. `size`: bytes that its volumes may have together; `reason`:
    why a change of one of them cannot be carried out."""

    name: str
    driver: str
    address: str
    root: str
    squash: str
    volumes: int
    size: int
    reason: str

    @classmethod
    def of(cls, found: tuple[FileServer, list[Volume]]) -> FileServerReply:
        """Return the reply from a file server and its volumes."""
        server, own = found
        return cls.read_from(
            server,
            volumes=len(own),
            size=sum(one.size for one in own),
            reason=next((one.reason for one in own if one.reason), ""),
        )


def _creates(ask: Call[Names, VolumeCreate]) -> Sequence[RequiredRight]:
    """Return the rights of members and owners of the volume's group, who can see the volume that is
    copied."""
    owner = RequiredRight(Right.USE, "group", ask.body.group, field="group")
    source = RequiredRight(Right.SEE, "volume", ask.body.source, field="source")
    return [owner, source] if ask.body.source else [owner]


def _attaches(ask: Call[Named, VolumeAttach]) -> Sequence[RequiredRight]:
    """Return the rights of owners of the vcluster's group who are members of the volume's group.
    Only an owner of the volume's group may have the volume deleted."""
    right = Right.USE if ask.body.delete_after is None else Right.MANAGE
    return [
        RequiredRight(right, "volume", ask.names.name),
        RequiredRight(Right.MANAGE, "vcluster", ask.body.vcluster, field="vcluster"),
    ]


_SHOWN = Shaped(VolumeInFull, VolumeInFull.of)

VOLUMES = (
    route(
        "GET /volumes",
        ANYBODY,
        "List volumes",
        lambda a: in_parts(
            partial(volumes.every, now=a.now, group_ids=a.who.groups),
            a.query.page,
            lambda one: (one.volume.name, one.volume.reason),
            name=lambda one: one.volume.name,
            group=lambda one: one.group,
            size=lambda one: one.volume.size,
            created_at=lambda one: one.volume.created_at,
        ),
        reply=paged(VolumeReply, "Volumes."),
        query=VolumeQuery,
    ),
    named_route(
        "GET /volumes/{name}",
        see("volume"),
        "Show a volume with its snapshots",
        lambda a: partial(volumes.show, name=a.names.name, now=a.now),
        reply=_SHOWN,
    ),
    route(
        "POST /volumes",
        _creates,
        "Create a volume, empty or as a copy of a snapshot",
        lambda a: partial(
            volumes.create,
            context=a.context,
            name=a.body.name,
            size=a.body.size,
            group=a.body.group,
            fileserver=a.body.fileserver,
            source=a.body.source,
            snapshot=a.body.snapshot,
            sec=a.body.sec,
        ),
        reply=_SHOWN,
        body=VolumeCreate,
        status=202,
        makes="/volumes/{name}",
    ),
    named_route(
        "PATCH /volumes/{name}",
        manage("volume"),
        "Change how much a volume may hold, and how NFS protects it",
        lambda a: partial(
            volumes.change,
            context=a.context,
            name=a.names.name,
            size=a.body.size,
            sec=a.body.sec,
        ),
        reply=_SHOWN,
        body=VolumePatch,
        status=202,
    ),
    named_route(
        "POST /volumes/{name}/attach",
        _attaches,
        "Have the nodes of a vcluster mount a volume",
        lambda a: partial(
            volumes.attach,
            context=a.context,
            vcluster=a.body.vcluster,
            asked=AskedVolume(a.names.name, a.body.mount, a.body.read_only, a.body.delete_after),
        ),
        reply=_SHOWN,
        body=VolumeAttach,
        status=202,
    ),
    named_route(
        "POST /volumes/{name}/detach",
        use("volume"),
        "Withdraw a volume from the nodes of a vcluster",
        lambda a: partial(
            volumes.detach, context=a.context, name=a.names.name, vcluster=a.body.vcluster
        ),
        reply=_SHOWN,
        body=VolumeDetach,
        status=202,
    ),
    named_route(
        "POST /volumes/{name}/snapshots",
        use("volume"),
        "Take a snapshot of a volume",
        lambda a: partial(
            volumes.take_snapshot, context=a.context, name=a.names.name, snapshot=a.body.snapshot
        ),
        reply=_SHOWN,
        body=SnapshotCreate,
        status=202,
        makes="/volumes/{name}",
    ),
    part_route(
        "DELETE /volumes/{name}/snapshots/{id}",
        manage("volume"),
        "Delete a snapshot, by its name",
        lambda a: partial(
            volumes.delete_snapshot, context=a.context, name=a.names.name, snapshot=a.names.id
        ),
        reply=_SHOWN,
        status=202,
    ),
    named_route(
        "DELETE /volumes/{name}",
        manage("volume"),
        "Delete a volume: it is kept for a while and can be restored",
        lambda a: partial(volumes.delete, context=a.context, name=a.names.name),
        reply=_SHOWN,
        status=202,
    ),
    named_route(
        "POST /volumes/{name}/restore",
        manage("volume"),
        "Undo the deletion of a volume",
        lambda a: partial(volumes.restore, context=a.context, name=a.names.name),
        reply=_SHOWN,
    ),
    named_route(
        "POST /volumes/{name}/remake",
        manage("volume"),
        "Make the directory of a volume anew, empty, where its file server has lost it",
        lambda a: partial(volumes.remake, context=a.context, name=a.names.name),
        reply=_SHOWN,
        status=202,
    ),
    named_route(
        "POST /volumes/{name}/forget",
        ADMINS,
        "Forget a volume whose file server is gone for good",
        lambda a: partial(volumes.forget, context=a.context, name=a.names.name),
        reply=_SHOWN,
        ends=True,
    ),
    route(
        "GET /fileservers",
        ADMINS,
        "List the file servers that volumes are on",
        lambda a: partial(volumes.servers, site=a.site),
        reply=listed(FileServerReply, "File servers."),
    ),
)
