"""Machines that are expected by UUID or serial number, and found by either."""

import sqlalchemy as sa
from alembic import op

revision = "0047"
down_revision = "0044"


def upgrade() -> None:
    op.add_column(
        "nodes",
        sa.Column(
            "serial",
            sa.String(length=64),
            nullable=True,
            comment="of the system, as reported or as an administrator expects it; null: not known",
        ),
    )
    op.create_index(op.f("ix_nodes_serial"), "nodes", ["serial"])
    op.create_index(op.f("ix_nodes_uuid"), "nodes", ["uuid"])
