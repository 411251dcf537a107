"""Shares of users inside their groups."""

import sqlalchemy as sa
from alembic import op

revision = "0038"
down_revision = "0037"

ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.add_column(
        "groups",
        sa.Column(
            "user_shares",
            sa.Boolean(),
            server_default=sa.false(),
            nullable=False,
            comment="its requests are ranked by what their users have used",
        ),
    )
    op.add_column(
        "group_permissions",
        sa.Column(
            "shares",
            sa.Double(),
            server_default="1",
            nullable=False,
            comment="in proportion to the other users' of the group, where it has users' shares",
        ),
    )
    op.add_column(
        "vclusters",
        sa.Column("user_id", ID, nullable=True, comment="who created it; null: not known"),
    )
    op.create_table(
        "user_usage",
        sa.Column("group_id", ID, autoincrement=False, nullable=False),
        sa.Column(
            "user_id",
            ID,
            autoincrement=False,
            nullable=False,
            comment="0: of vclusters whose creator is not known",
        ),
        sa.Column(
            "faded_usage",
            sa.Double(),
            nullable=False,
            comment="node-seconds, weighted by types' costs, not faded at faded_at",
        ),
        sa.Column("faded_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["group_id"], ["groups.id"], name=op.f("fk_user_usage_group_id")),
        sa.PrimaryKeyConstraint("group_id", "user_id", name=op.f("pk_user_usage")),
        comment="What users have used in groups that have users' shares.",
    )
