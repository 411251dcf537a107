"""Power: when the power driver was last seen to tell a node's power."""

import sqlalchemy as sa
from alembic import op

revision = "0029"
down_revision = "0028"


def upgrade() -> None:
    with op.batch_alter_table("nodes") as batch_op:
        batch_op.add_column(
            sa.Column(
                "power_seen_at",
                sa.Double(),
                nullable=True,
                comment="when its power driver last told `power`; null: never",
            )
        )
