"""People choose which kinds of notices come by mail; some wait for a daily mail."""

import sqlalchemy as sa
from alembic import op

revision = "0067"
down_revision = "0066"

ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "notice_choices",
        sa.Column("user_id", ID, nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("mail", sa.String(8), nullable=False, comment="at-once, daily or never"),
        sa.Column(
            "chosen_at",
            sa.Double(),
            nullable=False,
            comment="older notices go by the choice of before",
        ),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name="fk_notice_choices_user_id"),
        sa.PrimaryKeyConstraint("user_id", "kind", name=op.f("pk_notice_choices")),
        comment="Kinds of notices for which people have chosen when they come by mail.",
        mysql_charset="utf8mb4",
        mysql_engine="InnoDB",
    )
    op.create_index(op.f("ix_notice_choices_kind"), "notice_choices", ["kind"])
    op.create_table(
        "notice_digests",
        sa.Column("user_id", ID, nullable=False),
        sa.Column("notice_id", ID, nullable=False),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name="fk_notice_digests_user_id"),
        sa.ForeignKeyConstraint(["notice_id"], ["notices.id"], name="fk_notice_digests_notice_id"),
        sa.PrimaryKeyConstraint("user_id", "notice_id", name=op.f("pk_notice_digests")),
        comment="Notices that wait for their people's daily mail.",
        mysql_charset="utf8mb4",
        mysql_engine="InnoDB",
    )
    op.create_index(op.f("ix_notice_digests_notice_id"), "notice_digests", ["notice_id"])
