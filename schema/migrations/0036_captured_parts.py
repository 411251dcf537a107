"""What of a node's disk is captured."""

import sqlalchemy as sa
from alembic import op

revision = "0036"
down_revision = "0035"


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
