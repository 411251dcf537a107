"""Which step of its order a node's progress is of."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    with op.batch_alter_table("nodes", schema=None) as batch_op:
        batch_op.add_column(
            sa.Column(
                "progress_phase",
                sa.String(length=16),
                server_default="",
                nullable=False,
                comment="of which step these are, as its agent calls it: wipe, write, verify …",
            )
        )
