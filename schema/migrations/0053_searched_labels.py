"""Nodes are found by their host names and by the addresses of their BMCs."""

from alembic import op

revision = "0053"
down_revision = "0048"


def upgrade() -> None:
    op.create_index(op.f("ix_nodes_hostname"), "nodes", ["hostname"])
    op.create_index(op.f("ix_nodes_power_address"), "nodes", ["power_address"])
