"""Identity: when an address was acknowledged, and boots that nobody ordered."""

import sqlalchemy as sa
from alembic import op

revision = "0025"
down_revision = "0024"


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
    with op.batch_alter_table("nodes") as batch_op:
        batch_op.add_column(
            sa.Column(
                "boot_unordered",
                sa.Boolean(),
                nullable=False,
                server_default=sa.false(),
                comment=(
                    "it was reset or switched on by nobody's order, which nothing has confirmed yet"
                ),
            )
        )
