"""Records of volumes: rows, orders to file servers, and views."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Annotated, Literal

from cod.choices import FileServerDriverKind
from cod.model.described import About, FieldKind, FieldLevel, Undescribed
from cod.model.keys import (
    DAY,
    LABEL,
    AbsolutePath,
    HostName,
    NotNegativeDays,
    Read,
    SiteTable,
    key_about,
    site_key,
)

_PLAIN = re.compile(r"(/[A-Za-z0-9_][A-Za-z0-9._-]*)+")
_SSH = r"^$|^[a-z_][a-z0-9._-]{0,31}@[A-Za-z0-9][A-Za-z0-9.-]{0,252}(:[0-9]{1,5})?$"
SMALLEST_VOLUME = 2**20  # bytes
NfsSecurity = Literal["sys", "krb5", "krb5i", "krb5p"]
"""How an export authenticates users (RFC 7530, 3.2.1): it trusts the node (sys), or uses Kerberos,
also with signed (krb5i) or encrypted (krb5p) messages."""


def _plain(path: str) -> str:
    """Return an absolute path if a file of exports needs no quotes for it. Raise `ValueError` if
    not."""
    plain = str(PurePosixPath(path))
    if not _PLAIN.fullmatch(plain):
        raise ValueError("should be an absolute path of letters, digits, '.', '_' and '-', below /")
    return plain


@dataclass(frozen=True, slots=True)
class FileServer(SiteTable):
    """A file server; new volumes are made on the first (docs/volumes). Repeat for more. Re-read
    on SIGHUP."""

    name: str = field(
        metadata=key_about("its name, a DNS label; volumes remember it", pattern=LABEL)
    )
    driver: FileServerDriverKind = field(metadata=key_about(FileServerDriverKind.explained()))
    address: HostName = field(
        metadata=key_about("address or name by which nodes mount its volumes")
    )
    root: Annotated[str, Read(_plain)] = field(
        metadata=key_about("directory on it in which volumes are made; it must exist")
    )
    ssh: str = site_key(
        "",
        "USER@HOST or USER@HOST:PORT that COD signs in as, with the rights "
        "of root; empty: the file server is this host",
        pattern=_SSH,
    )
    ssh_key: AbsolutePath | None = site_key(None, "file of the private key to sign in with")
    known_hosts: AbsolutePath | None = site_key(None, "file with its host key, in OpenSSH's form")
    squash: Literal["root", "all", "none"] = site_key(
        "root",
        "whose ids become nobody's: root's, all, or "
        "none: then root on a node is root in its volumes",
    )
    exports: Annotated[str, Read(lambda path: path and _plain(path))] = site_key(
        "",
        "directory on it of the files that describe its exports; empty: /etc/ganesha/cod.d,"
        " or /etc/exports.d",
    )


@dataclass(frozen=True, slots=True)
class VolumeKeys(SiteTable):
    """Groups' volumes on file servers (docs/volumes). Re-read on SIGHUP."""

    quota: int | None = site_key(
        None,
        "bytes that a group's volumes may have together, where the group "
        "says nothing; not set: no limit",
        ge=0,
        unit="bytes",
    )
    grace: NotNegativeDays = site_key(
        7 * DAY,
        "days for which a deleted volume is kept, so that its owners can restore it",
        fixed="volumes that are deleted cannot be brought back",
    )
    homes: bool = site_key(
        True,
        "vclusters mount home directories from their group's home volume, unless "
        "they are requested without; home in [accounts] ends in /{name} then",
        fixed="nodes would find other home directories",
    )
    home_size: int = site_key(
        50 * 2**30, "bytes of a group's home volume", ge=SMALLEST_VOLUME, unit="bytes"
    )
    sec: NfsSecurity = site_key(
        "sys",
        "how NFS protects new volumes whose owners do not say, and home volumes: sys, krb5, krb5i"
        " or krb5p (docs/kerberos)",
        fixed="it asks for a realm and for templates that are its clients",
    )


@dataclass(frozen=True, slots=True)
class VolumeRules(VolumeKeys):
    """Rules for groups' volumes on file servers.

    home_mount  mount point of home directories on nodes
    """

    home_mount: str = "/home"


@dataclass(frozen=True, slots=True)
class Volume:
    """A row of `volumes`."""

    id: Undescribed[int]
    name: Annotated[str, About("Volume")]
    group_id: Undescribed[int]
    kind: Annotated[Literal["data", "home"], About("Kind", FieldKind.CHOICE)]
    fileserver: Annotated[str, About("File server")]
    path: Annotated[str, About("Directory", level=FieldLevel.WIDE)]
    export_id: Undescribed[int]
    size: Annotated[int, About("Size", FieldKind.SIZE)]
    sec: Annotated[
        NfsSecurity,
        About(
            "Protected by",
            FieldKind.CHOICE,
            "how NFS protects it: sys (the node's word), krb5, krb5i (signed) or krb5p (encrypted)",
            level=FieldLevel.WIDE,
        ),
    ]
    enforced: Annotated[
        str,
        About(
            "Held to it by",
            about="what holds it to its size on the file server: project, btrfs, zfs or none;"
            " '': not known yet",
        ),
    ]
    source: Undescribed[str]
    sequence: Undescribed[int]
    applied: Undescribed[int]
    attempts: Undescribed[int]
    next_at: Undescribed[float]
    claimed_by: Undescribed[str | None]
    claim_expires: Undescribed[float | None]
    reason: Annotated[str, About("Reason")]
    told: Undescribed[bool]
    made_at: Undescribed[float | None]
    created_at: Annotated[float, About("Created", FieldKind.MOMENT, level=FieldLevel.WIDE)]
    deleted_at: Annotated[float | None, About("Deleted", FieldKind.MOMENT, level=FieldLevel.DETAIL)]
    purge_at: Annotated[
        float | None,
        About(
            "Erased", FieldKind.MOMENT, "when a deleted volume is erased", level=FieldLevel.DETAIL
        ),
    ]


@dataclass(frozen=True, slots=True)
class Attachment:
    """A row of `volume_attachments`, with the vcluster's name."""

    id: int
    volume_id: int
    vcluster_id: int
    mount: str
    read_only: bool
    delete_after: float | None
    sequence: int
    leaving: bool
    created_at: float
    vcluster: str


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A row of `volume_snapshots`."""

    id: int
    volume_id: int
    name: str
    sequence: int
    leaving: bool
    made_at: float | None
    created_at: float


@dataclass(frozen=True, slots=True)
class AskedVolume:
    """A volume that a vcluster is to mount.

    volume        its name, bare or in full
    mount         mount point; '': COD chooses it
    delete_after  seconds after the vcluster's end after which the volume is deleted; None: it is
                  kept
    """

    volume: str
    mount: str = ""
    read_only: bool = False
    delete_after: float | None = None


@dataclass(frozen=True, slots=True)
class VolumeMount:
    """A volume that the nodes of a vcluster can mount now: its file server exports it to them.

    kind     'data'; or 'home': each user's directory below `mount` is mounted separately
    server   address of the file server
    options  mount options: 'rw,nfsvers=4.2,…'
    """

    volume: str
    kind: str
    mount: str
    server: str
    path: str
    options: str

    @property
    def source(self) -> str:
        """Return the source of the mount, 'SERVER:PATH'; for a home volume, the parent of the
        users' directories."""
        return f"{self.server}:{self.path}"


@dataclass(frozen=True, slots=True)
class ExportClient:
    """Addresses that may mount a volume: a network ('10.0.4.0/26' or '10.0.4.7/32')."""

    network: str
    read_only: bool


@dataclass(frozen=True, slots=True)
class HomeDirectory:
    """A directory of a home volume and its owner's ids on nodes."""

    name: str
    uid: int
    gid: int


@dataclass(frozen=True, slots=True)
class WantedVolume:
    """The complete state that a volume is to have on a file server, whatever its state was before.

    sequence   number of the change; a file server refuses numbers below the last one carried out
    may_make   whether its directory may be created; False: the directory was created before, and
               its absence is an error
    gid        group that may write to it; None: every user of the nodes may
    snapshots  names of the snapshots that it is to have
    dropped    names of the snapshots that are to be deleted
    kind       as in `Volume`
    erase      whether the volume and its snapshots are to be deleted for good
    """

    id: int
    name: str
    export_id: int
    path: str
    size: int
    sequence: int
    may_make: bool
    source: str = ""
    gid: int | None = None
    clients: tuple[ExportClient, ...] = ()
    homes: tuple[HomeDirectory, ...] = ()
    snapshots: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    kind: str = "data"
    sec: NfsSecurity = "sys"
    erase: bool = False


@dataclass(frozen=True, slots=True)
class VolumeTask:
    """A claimed change of a volume; `attempts` is part of the claim."""

    volume_id: int
    name: str
    fileserver: str
    sequence: int
    server: str
    attempts: int
    wanted: WantedVolume


@dataclass(frozen=True, slots=True)
class VolumeView:
    """A volume as people see it.

    state  'making', 'ready', 'changing', 'trouble', 'deleted' or 'erasing'
    """

    volume: Volume
    group: Annotated[str, About("Group", FieldKind.LINK, level=FieldLevel.WIDE, place="groups")]
    state: Annotated[str, About("State", FieldKind.STATE)]
    attachments: Undescribed[Sequence[Attachment]] = field(default=())
    snapshots: Undescribed[Sequence[Snapshot]] = field(default=())
