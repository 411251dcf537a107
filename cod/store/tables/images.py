"""Images, uploads, templates, and which images nodes are primed with."""

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

from cod.store.tables.base import Document, FullName, Id, Time, table

images = table(
    "images",
    Column("id", Id, primary_key=True),
    Column("name", FullName, nullable=False, unique=True, comment="GROUP/NAME; the site's: NAME"),
    Column("group_id", Id, ForeignKey("groups.id"), comment="owner; null: the site's"),
    Column("state", String(16), nullable=False, comment="ingesting, ready or failed"),
    Column(
        "format", String(16), nullable=False, comment="what was added: raw, gzip, zstd or qcow2"
    ),
    Column("size", BigInteger, nullable=False, default=0, comment="bytes on a disk"),
    Column("used", BigInteger, nullable=False, default=0, comment="bytes in its used chunks"),
    Column("stored", BigInteger, nullable=False, default=0, comment="bytes of the served form"),
    Column(
        "sha256",
        String(64),
        nullable=False,
        default="",
        comment="of the added file; before that: what it must be",
    ),
    Column(
        "digest",
        String(64),
        nullable=False,
        default="",
        comment="BLAKE2b-256 of the manifest; its folder's name",
    ),
    Column("created_at", Time, nullable=False),
    Column("reason", Text, nullable=False, default="", comment="why ingest failed"),
    Column(
        "content",
        String(16),
        nullable=False,
        default="",
        comment="disk, partition or file (served as is)",
    ),
    Column(
        "source",
        Text,
        nullable=False,
        default="",
        comment="while ingesting: the server's file that is taken in",
    ),
    Column(
        "sector",
        Integer,
        nullable=False,
        default=0,
        comment="bytes of its disks' logical sectors; 0: any will do",
    ),
    Column(
        "table",
        String(8),
        nullable=False,
        default="",
        server_default="",
        comment="its partition table: gpt, mbr, full, none; '': not known",
    ),
    Column(
        "ends_at",
        BigInteger,
        nullable=False,
        default=0,
        server_default="0",
        comment="byte behind its last partition; 0: not known",
    ),
    comment="Disk and partition images in their served form.",
)

uploads = table(
    "uploads",
    Column(
        "id",
        String(32),
        primary_key=True,
        comment="random; its file's name in the folder of incoming files",
    ),
    Column(
        "name",
        FullName,
        nullable=False,
        unique=True,
        comment="of the image to be, in full; the claim on it",
    ),
    Column("group_id", Id, ForeignKey("groups.id"), index=True, comment="owner; null: the site's"),
    Column("size", BigInteger, nullable=False, comment="bytes in all"),
    Column("offset", BigInteger, nullable=False, default=0, comment="bytes known to be on disk"),
    Column(
        "boot",
        String(36),
        nullable=False,
        default="",
        comment=(
            "boot id of the host that writes its file; while "
            "that boot lasts, what is in the file beyond `offset` is right, too"
        ),
    ),
    Column(
        "sha256", String(64), nullable=False, default="", comment="what it must be; '': nobody said"
    ),
    Column(
        "plain",
        Boolean,
        nullable=False,
        default=False,
        comment="serve it as it is: a kernel or ramdisk",
    ),
    Column(
        "raw",
        Boolean,
        nullable=False,
        default=False,
        comment="neither partition table nor file system is wanted",
    ),
    Column("actor", String(80), nullable=False),
    Column("created_at", Time, nullable=False),
    Column(
        "expires_at",
        Time,
        nullable=False,
        index=True,
        comment="given up by then unless more of it comes",
    ),
    comment="Files on their way in, piece by piece.",
)

config_templates = table(
    "config_templates",
    Column("id", Id, primary_key=True),
    Column("name", FullName, nullable=False, comment="GROUP/NAME; the site's: NAME"),
    Column("revision", Integer, nullable=False),
    Column("group_id", Id, ForeignKey("groups.id"), comment="owner; null: the site's"),
    Column("document", Document, nullable=False, comment="XML, valid against schema/template.rng"),
    Column("digest", String(64), nullable=False, comment="BLAKE2b-256 of the document, hex"),
    Column("created_at", Time, nullable=False),
    Column("retired_at", Time),
    UniqueConstraint("name", "revision"),
    comment="Configuration templates. A change is a new revision; a row never changes.",
)

install_images = table(
    "install_images",
    Column("node_id", Id, ForeignKey("nodes.id"), primary_key=True),
    Column(
        "generation",
        Integer,
        nullable=False,
        comment="of the node's prime state that this belongs to",
    ),
    Column("template_id", Id, ForeignKey("config_templates.id"), nullable=False),
    Column("state", String(16), nullable=False, comment="pending, running, done or failed"),
    Column("at", Time, nullable=False),
    Column("reason", Text, nullable=False, default=""),
    comment="The image installation that a node is in; cleared when the node leaves its vcluster.",
)
