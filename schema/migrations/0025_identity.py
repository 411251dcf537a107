"""Identity: when an address was acknowledged, boots that nobody ordered, and places."""

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
        for name, kind, comment in (
            ("home_at", sa.Double(), "when the place below was remembered; null: it was not yet"),
            ("home_subnet", sa.String(63), "where it boots: subnet, which its relay stands for"),
            ("home_circuit", sa.String(160), "where it boots: circuit id; null: not told"),
            ("home_remote", sa.String(160), "where it boots: remote id; null: not told"),
            ("home_port", sa.String(200), "where it boots: SWITCH PORT by LLDP; null: not told"),
        ):
            batch_op.add_column(sa.Column(name, kind, nullable=True, comment=comment))
