"""Where the image comes from that a node is primed with."""

import sqlalchemy as sa
from alembic import op

revision = "0039"
down_revision = "0038"


def upgrade() -> None:
    op.add_column(
        "nodes",
        sa.Column(
            "progress_source",
            sa.String(length=63),
            server_default="",
            nullable=False,
            comment="where the image comes from: a node's name, or 'the server'; empty: not told",
        ),
    )
