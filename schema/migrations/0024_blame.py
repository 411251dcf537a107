"""Failures that count against templates and groups, what nodes wait for, and images' tables."""

import sqlalchemy as sa
from alembic import op

revision = "0024"
down_revision = "0023"

ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.add_column(
        "nodes",
        sa.Column(
            "waits_for",
            sa.String(length=80),
            server_default="",
            nullable=False,
            comment="part of the site that is down and that it needs to go on; '': none",
        ),
    )
    op.add_column(
        "nodes", sa.Column("waits_since", sa.Double(), nullable=True, comment="null: it does not")
    )
    op.add_column(
        "images",
        sa.Column(
            "table",
            sa.String(length=8),
            server_default="",
            nullable=False,
            comment="its partition table: gpt, mbr, full, none; '': not known",
        ),
    )
    op.create_table(
        "node_failures",
        sa.Column("id", ID, nullable=False),
        sa.Column("node_id", ID, nullable=False),
        sa.Column(
            "template_id",
            ID,
            nullable=True,
            comment="that its holder wanted on it; null: the revision has had a success since",
        ),
        sa.Column("group_id", ID, nullable=False),
        sa.Column(
            "set_aside",
            sa.Boolean(),
            nullable=False,
            comment="it is in quarantine for it, and no administrator has looked at it",
        ),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["node_id"], ["nodes.id"], name=op.f("fk_node_failures_node_id")),
        sa.ForeignKeyConstraint(
            ["template_id"], ["config_templates.id"], name=op.f("fk_node_failures_template_id")
        ),
        sa.ForeignKeyConstraint(
            ["group_id"], ["groups.id"], name=op.f("fk_node_failures_group_id")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_node_failures")),
        comment="Failures on the way to a holder that count against a template or a group.",
    )
    for column in ("node_id", "template_id", "group_id"):
        op.create_index(op.f(f"ix_node_failures_{column}"), "node_failures", [column], unique=False)
