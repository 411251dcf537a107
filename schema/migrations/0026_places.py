"""Places where a node may boot besides the one that is remembered."""

import sqlalchemy as sa
from alembic import op

revision = "0026"
down_revision = "0025"

ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "node_places",
        sa.Column("id", ID, nullable=False),
        sa.Column("node_id", ID, nullable=False),
        sa.Column("subnet", sa.String(63), nullable=True),
        sa.Column(
            "circuit",
            sa.String(160),
            nullable=True,
            comment="circuit id of option 82; null: none",
        ),
        sa.Column(
            "remote", sa.String(160), nullable=True, comment="remote id of option 82; null: none"
        ),
        sa.Column(
            "port", sa.String(200), nullable=True, comment="SWITCH PORT by LLDP; null: not told"
        ),
        sa.Column("heard_at", sa.Double(), nullable=False),
        sa.Column("approved", sa.Boolean(), nullable=False, comment="the node may boot there, too"),
        sa.ForeignKeyConstraint(["node_id"], ["nodes.id"], name=op.f("fk_node_places_node_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_node_places")),
        comment=(
            "Places where a node's MAC was heard, besides the one that is remembered as its own."
        ),
    )
    op.create_index(op.f("ix_node_places_node_id"), "node_places", ["node_id"], unique=False)
