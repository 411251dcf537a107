"""Identity: when an address was acknowledged."""

import sqlalchemy as sa
from alembic import op

revision = "0024"
down_revision = "0023"


def upgrade() -> None:
    with op.batch_alter_table("bindings") as batch_op:
        batch_op.add_column(
            sa.Column(
                "acked_at",
                sa.Double(),
                nullable=True,
                comment="when that was acknowledged: a DHCPDECLINE counts just after",
            )
        )
