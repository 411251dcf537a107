"""Maintenance windows, and the nodes that are in them."""

import sqlalchemy as sa
from alembic import op

revision = "0055"
down_revision = "0054"

_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "maintenance_windows",
        sa.Column("id", _ID, nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False, comment="see cod/states.py"),
        sa.Column(
            "begins_at",
            sa.Double(),
            nullable=True,
            comment="when nodes that are still held are taken; null: never",
        ),
        sa.Column(
            "ends_at",
            sa.Double(),
            nullable=True,
            comment="when nodes come back; null: when an administrator ends it",
        ),
        sa.Column("reason", sa.String(length=300), nullable=False),
        sa.Column(
            "names",
            sa.Text(),
            nullable=False,
            comment="nodes as they were named; '' with `filter` '': all of the site",
        ),
        sa.Column(
            "filter", sa.Text(), nullable=False, comment="the filter that they were meant by"
        ),
        sa.Column(
            "drain",
            sa.Boolean(),
            nullable=False,
            comment="its nodes are given to nobody from now on, and go as they come free",
        ),
        sa.Column(
            "stay_out", sa.Boolean(), nullable=False, comment="nodes do not come back at the end"
        ),
        sa.Column(
            "bit", sa.Integer(), nullable=False, comment="1, 2, 4 … while it is open, then -id"
        ),
        sa.Column(
            "warned",
            sa.Double(),
            nullable=True,
            comment="owners were told so many seconds before; null: when it was planned",
        ),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("created_by", sa.String(length=80), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_maintenance_windows")),
        sa.UniqueConstraint("bit", name=op.f("uq_maintenance_windows_bit")),
        comment="Times in which nodes are out of service.",
        mysql_charset="utf8mb4",
        mysql_engine="InnoDB",
    )
    op.create_table(
        "maintenance_nodes",
        sa.Column("node_id", _ID, nullable=False),
        sa.Column("window_id", _ID, nullable=False),
        sa.Column("bit", sa.Integer(), nullable=False, comment="of the window"),
        sa.Column(
            "taken",
            sa.Boolean(),
            nullable=False,
            comment="the window has put it out of service, and brings it back",
        ),
        sa.ForeignKeyConstraint(
            ["node_id"], ["nodes.id"], name=op.f("fk_maintenance_nodes_node_id")
        ),
        sa.ForeignKeyConstraint(
            ["window_id"],
            ["maintenance_windows.id"],
            name=op.f("fk_maintenance_nodes_window_id"),
        ),
        sa.PrimaryKeyConstraint("node_id", "window_id", name=op.f("pk_maintenance_nodes")),
        comment="Nodes of windows that are not over.",
        mysql_charset="utf8mb4",
        mysql_engine="InnoDB",
    )
    op.create_index(op.f("ix_maintenance_nodes_window_id"), "maintenance_nodes", ["window_id"])
