"""An index of the nodes that wait for a part of the site, where images' partitions end, and the
size of networks that isolated vclusters wait for."""

import sqlalchemy as sa
from alembic import op

revision = "0027"
down_revision = "0026"


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
    op.add_column(
        "vclusters",
        sa.Column(
            "network_prefix",
            sa.Integer(),
            nullable=True,
            comment="prefix length of the subnet that it gets with its nodes; null: not isolated",
        ),
    )
