"""Volumes: rows, what the file server is to do about one, and how they are shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class FileServer:
    """A `[[fileserver]]` of the site file.

    address      where nodes reach its NFS service
    root         directory that volumes are made in
    ssh          'USER@HOST' or 'USER@HOST:PORT' that COD signs in as; '': the file server is this
                 very host
    ssh_key      file of the private key
    known_hosts  file of the host keys that COD accepts
    squash       whose ids become nobody's: 'root', 'all' or 'none'
    exports      directory of the files that describe its exports; '': the driver's own choice
    """

    name: str
    driver: str
    address: str
    root: str
    ssh: str = ""
    ssh_key: str | None = None
    known_hosts: str | None = None
    squash: str = "root"
    exports: str = ""


@dataclass(frozen=True, slots=True)
class VolumeRules:
    """What groups may keep on file servers, from the `[volumes]` table.

    quota      bytes of a group's volumes, where the group says nothing; None: no limit
    grace      seconds for which a deleted volume can be restored
    homes      new vclusters mount their group's home volume, unless they are asked for without
    home_size  bytes of a group's home volume
    home_mount where home directories are on nodes
    """

    quota: int | None = None
    grace: float = 7 * 86400.0
    homes: bool = True
    home_size: int = 50 * 2**30
    home_mount: str = "/home"


@dataclass(frozen=True, slots=True)
class Volume:
    """A row of `volumes`."""

    id: int
    name: str
    group_id: int
    kind: str
    fileserver: str
    path: str
    export_id: int
    size: int
    enforced: str
    source: str
    sequence: int
    applied: int
    attempts: int
    next_at: float
    claimed_by: str | None
    claim_expires: float | None
    reason: str
    told: bool
    made_at: float | None
    created_at: float
    deleted_at: float | None
    purge_at: float | None


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
    mount         where; '': the site's choice
    delete_after  seconds after the vcluster's end for which the volume is kept; None: always
    """

    volume: str
    mount: str = ""
    read_only: bool = False
    delete_after: float | None = None


@dataclass(frozen=True, slots=True)
class VolumeMount:
    """A volume that the nodes of a vcluster can mount now: its file server exports it to them.

    kind     'data', or 'home': `mount` holds a directory for each user, mounted by itself
    server   address of the file server
    options  of the mount: 'rw,nfsvers=4.2,…'
    """

    volume: str
    kind: str
    mount: str
    server: str
    path: str
    options: str

    @property
    def source(self) -> str:
        """Return what is mounted: 'SERVER:PATH'; of a home, what the users' directories are in."""
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
    """What a file server is to make of one volume: all of it, whatever was there before.

    sequence   of the change; a file server refuses one that is older than what it has carried out
    may_make   its directory may be made; False: it was made before, and one that is missing is an
               error
    gid        group that may write into it; None: every user of the nodes may
    snapshots  names of those that shall be there; `dropped`: that shall not
    kind       as in `Volume`
    erase      the volume and its snapshots are deleted for good
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
    group: str
    state: str
    attachments: Sequence[Attachment] = field(default=())
    snapshots: Sequence[Snapshot] = field(default=())
