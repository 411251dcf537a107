"""Which disk of a BIOS machine was primed; the sectors that images are for."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    with op.batch_alter_table("nodes", schema=None) as batch_op:
        batch_op.add_column(
            sa.Column(
                "disk_signature",
                sa.BigInteger(),
                nullable=True,
                comment="of the disk that was primed, by which a BIOS boots it; null: none",
            )
        )
    with op.batch_alter_table("images", schema=None) as batch_op:
        batch_op.add_column(
            sa.Column(
                "sector",
                sa.Integer(),
                nullable=False,
                server_default="0",
                comment="bytes of its disks' logical sectors; 0: any will do",
            )
        )
