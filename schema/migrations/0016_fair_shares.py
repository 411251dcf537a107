"""What groups may hold and are sure of: shares, guarantees, limits, and what they have used."""

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"


def upgrade() -> None:
    with op.batch_alter_table("groups", schema=None) as batch_op:
        batch_op.add_column(
            sa.Column(
                "shares",
                sa.Double(),
                nullable=False,
                server_default="1",
                comment="what it is to have of the site, in proportion to the other groups'",
            )
        )
        batch_op.add_column(
            sa.Column(
                "guarantee",
                sa.Integer(),
                nullable=False,
                server_default="0",
                comment="nodes that are not taken from it for others",
            )
        )
        batch_op.add_column(
            sa.Column(
                "node_limit",
                sa.Integer(),
                nullable=True,
                comment="nodes that it may hold at once; null: the site's",
            )
        )
        batch_op.add_column(
            sa.Column(
                "hours_limit",
                sa.Double(),
                nullable=True,
                comment="node-hours that it may use in a month; null: no limit",
            )
        )
        batch_op.add_column(
            sa.Column(
                "parent_id",
                sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
                nullable=True,
                comment="the group that it is a subgroup of; null: of none",
            )
        )
        batch_op.add_column(
            sa.Column(
                "faded_usage",
                sa.Double(),
                nullable=True,
                comment=(
                    "node-seconds, weighted by types' costs, not faded at faded_at; null: "
                    "not counted yet"
                ),
            )
        )
        batch_op.add_column(sa.Column("faded_at", sa.Double(), nullable=True))
        batch_op.create_foreign_key(
            batch_op.f("fk_groups_parent_id"), "groups", ["parent_id"], ["id"]
        )
    op.create_table(
        "group_type_limits",
        sa.Column("group_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("type_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("nodes", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(
            ["group_id"], ["groups.id"], name=op.f("fk_group_type_limits_group_id")
        ),
        sa.ForeignKeyConstraint(
            ["type_id"], ["node_types.id"], name=op.f("fk_group_type_limits_type_id")
        ),
        sa.PrimaryKeyConstraint("group_id", "type_id", name=op.f("pk_group_type_limits")),
        comment="Nodes of a type that a group may hold at once.",
        mysql_charset="utf8mb4",
        mysql_engine="InnoDB",
    )
