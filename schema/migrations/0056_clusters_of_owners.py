"""Nodes are installed anew where they are; groups have budgets, clusters descriptions and tags."""

import sqlalchemy as sa
from alembic import op

revision = "0056"
down_revision = "0055"

ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "reinstalls",
        sa.Column("node_id", ID, nullable=False),
        sa.Column("vcluster_id", ID, nullable=False),
        sa.Column("template_id", ID, nullable=False, comment="to be installed"),
        sa.Column(
            "at_once",
            sa.Integer(),
            nullable=False,
            comment="nodes of the vcluster at a time; 0: all",
        ),
        sa.Column("actor", sa.String(80), nullable=False),
        sa.Column("asked_at", sa.Double(), nullable=False),
        sa.Column(
            "begun_at",
            sa.Double(),
            nullable=True,
            comment="when the node left its system; null: not yet",
        ),
        *(
            sa.ForeignKeyConstraint([f"{one}_id"], [f"{table}.id"], name=f"fk_reinstalls_{one}_id")
            for one, table in (
                ("node", "nodes"),
                ("vcluster", "vclusters"),
                ("template", "config_templates"),
            )
        ),
        sa.PrimaryKeyConstraint("node_id", name=op.f("pk_reinstalls")),
        comment="Nodes that their vclusters' owners have installed anew, until they are active "
        "again.",
        mysql_charset="utf8mb4",
        mysql_engine="InnoDB",
    )
    op.create_index(op.f("ix_reinstalls_vcluster_id"), "reinstalls", ["vcluster_id"])
    op.create_index(op.f("ix_reinstalls_template_id"), "reinstalls", ["template_id"])
    op.add_column(
        "groups",
        sa.Column(
            "budget",
            sa.Double(),
            nullable=True,
            comment="money of a month, to be warned by; null: none",
        ),
    )
    for name, length, comment in (
        ("description", 500, "what it is for"),
        ("tags", 200, "words to find it by, with spaces between"),
    ):
        column = sa.Column(
            name, sa.String(length), nullable=False, server_default="", comment=comment
        )
        op.add_column("vclusters", column)
    op.create_table(
        "request_watchers",
        sa.Column("request_id", ID, autoincrement=False, nullable=False),
        sa.Column("user_id", ID, autoincrement=False, nullable=False),
        sa.ForeignKeyConstraint(
            ["request_id"], ["node_requests.id"], name="fk_request_watchers_request_id"
        ),
        sa.PrimaryKeyConstraint("request_id", "user_id", name=op.f("pk_request_watchers")),
        comment="People who are told when a request is decided.",
        mysql_charset="utf8mb4",
        mysql_engine="InnoDB",
    )
