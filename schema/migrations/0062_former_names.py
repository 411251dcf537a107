"""Vclusters can be renamed, and keep their former names; maintenance windows have revisions."""

import sqlalchemy as sa
from alembic import op

revision = "0062"
down_revision = "0060"

ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "vcluster_former_names",
        sa.Column(
            "name",
            sa.String(63),
            nullable=False,
            comment="no other vcluster gets it meanwhile",
        ),
        sa.Column("vcluster_id", ID, nullable=False),
        sa.ForeignKeyConstraint(
            ["vcluster_id"], ["vclusters.id"], name="fk_vcluster_former_names_vcluster_id"
        ),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_vcluster_former_names")),
        comment="Names that vclusters had before they were renamed, until they end.",
        mysql_charset="utf8mb4",
        mysql_engine="InnoDB",
    )
    op.create_index(
        op.f("ix_vcluster_former_names_vcluster_id"), "vcluster_former_names", ["vcluster_id"]
    )
    op.add_column(
        "maintenance_windows",
        sa.Column(
            "revision",
            sa.Integer(),
            nullable=False,
            server_default="0",
            comment="how often its times were changed: a calendar program goes by it",
        ),
    )
