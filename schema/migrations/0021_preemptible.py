"""Preemptible vclusters."""

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"


def upgrade() -> None:
    op.add_column(
        "vclusters",
        sa.Column(
            "preemptible",
            sa.Boolean(),
            server_default=sa.false(),
            nullable=False,
            comment="any other request may take its nodes, down to none",
        ),
    )
