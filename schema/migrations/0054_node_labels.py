"""Nodes have a position in their rack, tags, and what their reports name as rows."""

from itertools import pairwise
from xml.etree import ElementTree

import sqlalchemy as sa
from alembic import op

revision = "0054"
down_revision = "0053"

BATCH = 500  # reports in memory
LONGEST = 64


def upgrade() -> None:
    op.add_column(
        "nodes",
        sa.Column(
            "rack_position",
            sa.String(length=16),
            nullable=True,
            comment="in its rack: '17'; null: not known",
        ),
    )
    op.add_column(
        "nodes",
        sa.Column(
            "tags",
            sa.String(length=600),
            nullable=False,
            server_default="",
            comment="an administrator's words for it, each between spaces: ' gpu old '; '': none",
        ),
    )
    op.create_index(op.f("ix_nodes_tags"), "nodes", ["tags"])
    labels = op.create_table(
        "node_labels",
        sa.Column("kind", sa.String(length=16), nullable=False, comment="see choices.NodeLabel"),
        sa.Column("label", sa.String(length=64), nullable=False),
        sa.Column("node_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.ForeignKeyConstraint(["node_id"], ["nodes.id"], name=op.f("fk_node_labels_node_id")),
        sa.PrimaryKeyConstraint("kind", "label", "node_id", name=op.f("pk_node_labels")),
        comment="What nodes' last reports name and people look for, so that no report is searched.",
        mysql_charset="utf8mb4",
        mysql_engine="InnoDB",
    )
    op.create_index(op.f("ix_node_labels_node_id"), "node_labels", ["node_id"])
    _fill(op.get_bind(), labels)


def _fill(tx: sa.Connection, labels: sa.Table) -> None:
    """Write what the reports name that are there. A later report writes its own."""
    reports = sa.table("nodes", sa.column("id"), sa.column("attributes"))
    known = reports.c.attributes.is_not(None)
    ids = list(tx.scalars(sa.select(reports.c.id).where(known).order_by(reports.c.id)))
    for first, last in pairwise([*ids[::BATCH], *([ids[-1] + 1] if ids else [])]):
        inside = reports.c.id >= first, reports.c.id < last
        found = {
            (kind, label.strip().lower(), node_id)
            for node_id, report in tx.execute(sa.select(*reports.c).where(known, *inside))
            for kind, label in _named(ElementTree.fromstring(report))
            if label and label.isascii() and len(label.strip()) in range(2, LONGEST + 1)
        }
        if found:
            rows = [dict(zip(("kind", "label", "node_id"), row, strict=True)) for row in found]
            tx.execute(labels.insert(), rows)


def _named(report: ElementTree.Element) -> list[tuple[str, str | None]]:
    parts = [("part", disk.get("serial")) for disk in report.iterfind("disk")]
    bmcs = list(report.iterfind("bmc"))
    parts += [("reported_bmc", bmc.get("address")) for bmc in bmcs]
    parts += [("reported_bmc", bmc.get("mac")) for bmc in bmcs]
    nics = sorted(report.iterfind("nic"), key=lambda nic: nic.get("boot") != "yes")
    near = [each.get("switch") for nic in nics for each in nic.iterfind("neighbour")]
    return parts + [("switch", each) for each in near[:1]]
