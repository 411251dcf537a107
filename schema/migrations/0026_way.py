"""An index of the nodes that wait for a part of the site."""

from alembic import op

revision = "0026"
down_revision = "0025"


def upgrade() -> None:
    op.create_index(op.f("ix_nodes_waits_for"), "nodes", ["waits_for"], unique=False)
