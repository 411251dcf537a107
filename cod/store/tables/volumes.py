"""Volumes on file servers, the vclusters that mount them, and their snapshots."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ForeignKey,
    Integer,
    String,
    Text,
    UniqueConstraint,
    false,
)

from cod.store.tables.base import FullName, Id, Name, Time, table

volumes = table(
    "volumes",
    Column("id", Id, primary_key=True),
    Column("name", FullName, nullable=False, unique=True, comment="GROUP/NAME"),
    Column("group_id", Id, ForeignKey("groups.id"), nullable=False, index=True),
    Column(
        "kind",
        String(8),
        nullable=False,
        comment="data, or home: a directory for each member of the group",
    ),
    Column(
        "fileserver",
        Name,
        nullable=False,
        index=True,
        comment="the [[fileserver]] of the site file",
    ),
    Column("path", String(300), nullable=False, comment="its directory on the file server"),
    Column("export_id", Integer, nullable=False, comment="number of its export on the file server"),
    Column("size", BigInteger, nullable=False, comment="bytes that it may hold"),
    Column(
        "enforced",
        String(8),
        nullable=False,
        default="",
        comment="what holds it to its size: project, btrfs, zfs or none; '': not known yet",
    ),
    Column(
        "source",
        FullName,
        nullable=False,
        default="",
        comment=(
            "what it is copied from when it is made, below "
            "the file server's root; '': it begins empty"
        ),
    ),
    Column(
        "sequence",
        BigInteger,
        nullable=False,
        comment="grows with each change that the file server has to make",
    ),
    Column(
        "applied",
        BigInteger,
        nullable=False,
        default=0,
        comment="sequence that the file server has carried out",
    ),
    Column(
        "attempts",
        Integer,
        nullable=False,
        default=0,
        comment="failed attempts to carry out the newest change",
    ),
    Column("next_at", Time, nullable=False, comment="when to try (again)"),
    Column("claimed_by", String(64), comment="server that carries a change out"),
    Column("claim_expires", Time),
    Column(
        "reason",
        Text,
        nullable=False,
        default="",
        comment="why the newest change is not carried out; ''",
    ),
    Column(
        "told",
        Boolean,
        nullable=False,
        default=False,
        server_default=false(),
        comment="people were told of the reason",
    ),
    Column("made_at", Time, comment="when its directory was made; null: not yet"),
    Column("created_at", Time, nullable=False),
    Column("deleted_at", Time, comment="set: deleted, and kept until purge_at"),
    Column("purge_at", Time, comment="when a deleted volume's data is erased"),
    UniqueConstraint("fileserver", "export_id"),
    comment="Directories on file servers that vclusters mount.",
)

volume_attachments = table(
    "volume_attachments",
    Column("id", Id, primary_key=True),
    Column("volume_id", Id, ForeignKey("volumes.id"), nullable=False),
    Column("vcluster_id", Id, ForeignKey("vclusters.id"), nullable=False, index=True),
    Column("mount", String(200), nullable=False, comment="where the nodes mount it"),
    Column("read_only", Boolean, nullable=False),
    Column(
        "delete_after",
        Time,
        comment="seconds after the vcluster's end for which the volume is kept; null: always",
    ),
    Column(
        "sequence",
        BigInteger,
        nullable=False,
        comment="the volume's, which exports it so, or withdraws it",
    ),
    Column(
        "leaving",
        Boolean,
        nullable=False,
        default=False,
        server_default=false(),
        comment="the export is to be withdrawn; the row goes when it has been",
    ),
    Column("created_at", Time, nullable=False),
    UniqueConstraint("volume_id", "vcluster_id"),
    comment=(
        "Which vclusters mount which volumes. A vcluster keeps its addresses until its last row has"
        " gone."
    ),
)

volume_snapshots = table(
    "volume_snapshots",
    Column("id", Id, primary_key=True),
    Column("volume_id", Id, ForeignKey("volumes.id"), nullable=False),
    Column("name", Name, nullable=False),
    Column(
        "sequence", BigInteger, nullable=False, comment="the volume's, which makes or deletes it"
    ),
    Column(
        "leaving",
        Boolean,
        nullable=False,
        default=False,
        server_default=false(),
        comment="it is to be deleted",
    ),
    Column("made_at", Time, comment="null: not yet"),
    Column("created_at", Time, nullable=False),
    UniqueConstraint("volume_id", "name"),
    comment="Snapshots of volumes, on their file servers.",
)
