"""Vclusters have former names, maintenance windows revisions, and people what they have read."""

import sqlalchemy as sa
from alembic import op

revision = "0062"
down_revision = "0061"

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
    op.add_column(
        "users",
        sa.Column(
            "notices_read",
            ID,
            nullable=False,
            server_default="0",
            comment="notices up to this id are read, beside those in notice_reads",
        ),
    )
    # what was told before anybody could read it counts as read
    op.execute("UPDATE users SET notices_read = (SELECT COALESCE(MAX(id), 0) FROM notices)")
    op.create_table(
        "notice_reads",
        sa.Column("user_id", ID, nullable=False),
        sa.Column("notice_id", ID, nullable=False),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name="fk_notice_reads_user_id"),
        sa.ForeignKeyConstraint(["notice_id"], ["notices.id"], name="fk_notice_reads_notice_id"),
        sa.PrimaryKeyConstraint("user_id", "notice_id", name=op.f("pk_notice_reads")),
        comment="Single notices that people have read, later than their users.notices_read.",
        mysql_charset="utf8mb4",
        mysql_engine="InnoDB",
    )
    op.create_index(op.f("ix_notice_reads_notice_id"), "notice_reads", ["notice_id"])
