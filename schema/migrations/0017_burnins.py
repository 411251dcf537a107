"""Tests of nodes."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0017"
down_revision = "0016"
ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
DOCUMENT = (
    sa.Text().with_variant(mysql.MEDIUMTEXT(), "mariadb").with_variant(mysql.MEDIUMTEXT(), "mysql")
)


def upgrade() -> None:
    op.create_table(
        "burnins",
        sa.Column("id", ID, nullable=False),
        sa.Column("node_id", ID, nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False, comment="see states.BurninState"),
        sa.Column(
            "cause",
            sa.String(length=200),
            nullable=False,
            comment="why it was asked for: on demand, new machine …",
        ),
        sa.Column(
            "tests",
            sa.String(length=40),
            nullable=False,
            comment="memory, disk, network, with commas between",
        ),
        sa.Column("seconds", sa.Integer(), nullable=False, comment="for all tests together"),
        sa.Column(
            "erase",
            sa.Boolean(),
            nullable=False,
            comment="disks that are not clean are erased before, and so tested by writing",
        ),
        sa.Column(
            "secret",
            sa.String(length=64),
            nullable=False,
            comment="hex; opens its agent's port for a neighbour",
        ),
        sa.Column(
            "generation",
            sa.Integer(),
            nullable=False,
            comment="of the node's burnin state; 0: not there yet",
        ),
        sa.Column("actor", sa.String(length=80), nullable=False),
        sa.Column("asked_at", sa.Double(), nullable=False),
        sa.Column("started_at", sa.Double(), nullable=True, comment="of the newest attempt"),
        sa.Column("ended_at", sa.Double(), nullable=True),
        sa.Column(
            "reason",
            sa.Text(),
            nullable=False,
            comment="why it failed, or what went wrong on the way",
        ),
        sa.Column(
            "results",
            DOCUMENT,
            nullable=False,
            comment="JSON: the tests' results, see orders.TestResult",
        ),
        sa.ForeignKeyConstraint(["node_id"], ["nodes.id"], name=op.f("fk_burnins_node_id_nodes")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_burnins")),
        comment="Tests of nodes: the one that is open, and those that are over.",
        mysql_charset="utf8mb4",
        mysql_engine="InnoDB",
    )
    op.create_index("ix_burnins_node_id_id", "burnins", ["node_id", "id"])
    op.create_index("ix_burnins_state", "burnins", ["state"])
