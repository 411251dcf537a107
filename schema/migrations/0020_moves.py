"""Moves of nodes between two vclusters."""

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"


def upgrade() -> None:
    with op.batch_alter_table("node_requests", schema=None) as batch_op:
        batch_op.add_column(
            sa.Column(
                "source_id",
                sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
                nullable=True,
                comment="of a move: from whom; else null",
            )
        )
        batch_op.add_column(
            sa.Column(
                "deadline",
                sa.Double(),
                nullable=True,
                comment="of a move: when nodes that are still held are taken; else null",
            )
        )
        batch_op.add_column(
            sa.Column(
                "granted",
                sa.Integer(),
                nullable=False,
                server_default="0",
                comment="of a move: nodes so far",
            )
        )
        batch_op.alter_column(
            "kind",
            existing_type=sa.String(length=16),
            existing_nullable=False,
            comment="create, grow, replace or move",
        )
        batch_op.create_index(batch_op.f("ix_node_requests_source_id"), ["source_id"], unique=False)
        batch_op.create_foreign_key(
            batch_op.f("fk_node_requests_source_id"), "vclusters", ["source_id"], ["id"]
        )
