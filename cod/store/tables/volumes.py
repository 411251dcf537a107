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
)

from cod.store.tables.base import FullName, Id, Name, Time, defaulted, not_null, table

volumes = table(
    "volumes",
    Column("id", Id, primary_key=True),
    not_null("name", FullName, unique=True, comment="GROUP/NAME"),
    not_null("group_id", Id, ForeignKey("groups.id"), index=True),
    not_null("kind", String(8), comment="data, or home: a directory for each member of the group"),
    not_null("fileserver", Name, index=True, comment="the [[fileserver]] of the site file"),
    not_null("path", String(300), comment="its directory on the file server"),
    not_null("export_id", Integer, comment="number of its export on the file server"),
    not_null("size", BigInteger, comment="bytes that it may hold"),
    defaulted("sec", String(8), "sys", comment="how NFS protects it: sys, krb5, krb5i or krb5p"),
    not_null(
        "enforced",
        String(8),
        default="",
        comment="what holds it to its size: project, btrfs, zfs or none; '': not known yet",
    ),
    not_null(
        "source",
        FullName,
        default="",
        comment=(
            "what it is copied from when it is made, below "
            "the file server's root; '': it begins empty"
        ),
    ),
    not_null(
        "sequence", BigInteger, comment="grows with each change that the file server has to make"
    ),
    not_null(
        "applied", BigInteger, default=0, comment="sequence that the file server has carried out"
    ),
    not_null(
        "attempts", Integer, default=0, comment="failed attempts to carry out the newest change"
    ),
    not_null("next_at", Time, comment="when to try (again)"),
    Column("claimed_by", String(64), comment="server that carries a change out"),
    Column("claim_expires", Time),
    not_null("reason", Text, default="", comment="why the newest change is not carried out; ''"),
    defaulted("told", Boolean, False, comment="people were told of the reason"),
    Column("made_at", Time, comment="when its directory was made; null: not yet"),
    not_null("created_at", Time),
    Column("deleted_at", Time, comment="set: deleted, and kept until purge_at"),
    Column("purge_at", Time, comment="when a deleted volume's data is erased"),
    UniqueConstraint("fileserver", "export_id"),
    comment="Directories on file servers that vclusters mount.",
)

volume_attachments = table(
    "volume_attachments",
    Column("id", Id, primary_key=True),
    not_null("volume_id", Id, ForeignKey("volumes.id")),
    not_null("vcluster_id", Id, ForeignKey("vclusters.id"), index=True),
    not_null("mount", String(200), comment="where the nodes mount it"),
    not_null("read_only", Boolean),
    Column(
        "delete_after",
        Time,
        comment="seconds after the vcluster's end for which the volume is kept; null: always",
    ),
    not_null("sequence", BigInteger, comment="the volume's, which exports it so, or withdraws it"),
    defaulted(
        "leaving",
        Boolean,
        False,
        comment="the export is to be withdrawn; the row goes when it has been",
    ),
    not_null("created_at", Time),
    UniqueConstraint("volume_id", "vcluster_id"),
    comment=(
        "Which vclusters mount which volumes. A vcluster keeps its addresses until its last row has"
        " gone."
    ),
)

volume_snapshots = table(
    "volume_snapshots",
    Column("id", Id, primary_key=True),
    not_null("volume_id", Id, ForeignKey("volumes.id")),
    not_null("name", Name),
    not_null("sequence", BigInteger, comment="the volume's, which makes or deletes it"),
    defaulted("leaving", Boolean, False, comment="it is to be deleted"),
    Column("made_at", Time, comment="null: not yet"),
    not_null("created_at", Time),
    UniqueConstraint("volume_id", "name"),
    comment="Snapshots of volumes, on their file servers.",
)
