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

from cod.store.tables.base import Document, FullName, Id, Time, defaulted, not_null, table

images = table(
    "images",
    Column("id", Id, primary_key=True),
    not_null("name", FullName, unique=True, comment="GROUP/NAME; the site's: NAME"),
    Column("group_id", Id, ForeignKey("groups.id"), comment="owner; null: the site's"),
    not_null("state", String(16), comment="ingesting, ready or failed"),
    not_null("format", String(16), comment="what was added: raw, gzip, zstd or qcow2"),
    not_null("size", BigInteger, default=0, comment="bytes on a disk"),
    not_null("used", BigInteger, default=0, comment="bytes in its used chunks"),
    not_null("stored", BigInteger, default=0, comment="bytes of the served form"),
    not_null(
        "sha256", String(64), default="", comment="of the added file; before that: what it must be"
    ),
    not_null(
        "digest", String(64), default="", comment="BLAKE2b-256 of the manifest; its folder's name"
    ),
    not_null("created_at", Time),
    not_null("reason", Text, default="", comment="why ingest failed"),
    not_null("content", String(16), default="", comment="disk, partition or file (served as is)"),
    not_null(
        "source", Text, default="", comment="while ingesting: the server's file that is taken in"
    ),
    defaulted("sector", Integer, 0, comment="bytes of its disks' logical sectors; 0: any will do"),
    defaulted(
        "table", String(8), "", comment="its partition table: gpt, mbr, full, none; '': not known"
    ),
    defaulted("ends_at", BigInteger, 0, comment="byte behind its last partition; 0: not known"),
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
    not_null("name", FullName, unique=True, comment="of the image to be, in full; the claim on it"),
    Column("group_id", Id, ForeignKey("groups.id"), index=True, comment="owner; null: the site's"),
    not_null("size", BigInteger, comment="bytes in all"),
    not_null("offset", BigInteger, default=0, comment="bytes known to be on disk"),
    not_null(
        "boot",
        String(36),
        default="",
        comment=(
            "boot id of the host that writes its file; while "
            "that boot lasts, what is in the file beyond `offset` is right, too"
        ),
    ),
    not_null("sha256", String(64), default="", comment="what it must be; '': nobody said"),
    not_null("plain", Boolean, default=False, comment="serve it as it is: a kernel or ramdisk"),
    defaulted("raw", Boolean, False, comment="neither partition table nor file system is wanted"),
    not_null("actor", String(80)),
    not_null("created_at", Time),
    not_null("expires_at", Time, index=True, comment="given up by then unless more of it comes"),
    comment="Files on their way in, piece by piece.",
)

held_files = table(
    "held_files",
    Column("server", String(64), primary_key=True, comment="the host, as in server_parts"),
    Column(
        "name", String(64), primary_key=True, comment="digest of an image, or name of an upload"
    ),
    comment="Which host has which files of images; empty where the site has one server.",
)

config_templates = table(
    "config_templates",
    Column("id", Id, primary_key=True),
    not_null("name", FullName, comment="GROUP/NAME; the site's: NAME"),
    not_null("revision", Integer),
    Column("group_id", Id, ForeignKey("groups.id"), comment="owner; null: the site's"),
    not_null("document", Document, comment="XML, valid against schema/template.rng"),
    not_null("digest", String(64), comment="BLAKE2b-256 of the document, hex"),
    not_null("created_at", Time),
    Column("retired_at", Time),
    UniqueConstraint("name", "revision"),
    comment="Configuration templates. A change is a new revision; a row never changes.",
)

install_images = table(
    "install_images",
    Column("node_id", Id, ForeignKey("nodes.id"), primary_key=True),
    not_null("generation", Integer, comment="of the node's prime state that this belongs to"),
    not_null("template_id", Id, ForeignKey("config_templates.id")),
    not_null("state", String(16), comment="pending, running, done or failed"),
    not_null("at", Time),
    not_null("reason", Text, default=""),
    comment="The image installation that a node is in; cleared when the node leaves its vcluster.",
)
