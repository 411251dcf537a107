"""Nodes have a position in their rack, and tags."""

import sqlalchemy as sa
from alembic import op

revision = "0054"
down_revision = "0053"


def upgrade() -> None:
    op.add_column("nodes", sa.Column("rack_position", sa.String(16), nullable=True))
    op.add_column("nodes", sa.Column("tags", sa.String(600), nullable=False, server_default=""))
    op.create_index(op.f("ix_nodes_tags"), "nodes", ["tags"])
