"""Reservations in advance: requests with a start."""

import sqlalchemy as sa
from alembic import op

revision = "0023"
down_revision = "0022"


def upgrade() -> None:
    with op.batch_alter_table("node_requests") as batch_op:
        batch_op.add_column(
            sa.Column(
                "starts_at",
                sa.Double(),
                nullable=True,
                comment="when a reservation in advance begins; null: the request is none",
            )
        )
        batch_op.add_column(
            sa.Column("duration", sa.Double(), nullable=True, comment="seconds for which it is")
        )
