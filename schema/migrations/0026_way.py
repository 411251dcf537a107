"""An index of the nodes that wait for a part of the site, and where images' partitions end."""

import sqlalchemy as sa
from alembic import op

revision = "0026"
down_revision = "0025"


def upgrade() -> None:
    op.create_index(op.f("ix_nodes_waits_for"), "nodes", ["waits_for"], unique=False)
    op.add_column(
        "images",
        sa.Column(
            "ends_at",
            sa.BigInteger(),
            server_default="0",
            nullable=False,
            comment="byte behind its last partition; 0: not known",
        ),
    )
