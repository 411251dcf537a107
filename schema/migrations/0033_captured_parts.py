"""What of a node's disk is captured."""

import sqlalchemy as sa
from alembic import op

revision = "0033"
down_revision = "0032"


def upgrade() -> None:
    op.add_column(
        "captures",
        sa.Column(
            "what",
            sa.String(8),
            nullable=False,
            server_default="",
            comment="map, or a partition's number; '': the whole disk",
        ),
    )
