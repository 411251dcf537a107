"""Guarantees and shares of nodes of single types. Groups remember the turn for which they have an
odd node of their share."""

import sqlalchemy as sa
from alembic import op

revision = "0031"
down_revision = "0030"


def upgrade() -> None:
    op.add_column(
        "groups",
        sa.Column(
            "odd_turn",
            sa.Integer(),
            nullable=True,
            comment="the last turn for which it has an odd node of its share",
        ),
    )
    op.create_table(
        "group_type_terms",
        sa.Column("group_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("type_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column(
            "guarantee", sa.Integer(), nullable=False, comment="nodes that are not taken for others"
        ),
        sa.Column(
            "shares",
            sa.Double(),
            nullable=True,
            comment="as of the group, of nodes of the type; null: the group's",
        ),
        sa.ForeignKeyConstraint(
            ["group_id"], ["groups.id"], name=op.f("fk_group_type_terms_group_id")
        ),
        sa.ForeignKeyConstraint(
            ["type_id"], ["node_types.id"], name=op.f("fk_group_type_terms_type_id")
        ),
        sa.PrimaryKeyConstraint("group_id", "type_id", name=op.f("pk_group_type_terms")),
        comment=(
            "Guarantees and shares of nodes of a type, which are apart from those of all others."
        ),
        mysql_charset="utf8mb4",
        mysql_engine="InnoDB",
    )
