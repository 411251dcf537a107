"""Disks marked keep."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    with op.batch_alter_table("nodes", schema=None) as batch_op:
        batch_op.add_column(
            sa.Column(
                "keep",
                sa.String(length=1000),
                server_default="",
                nullable=False,
                comment=(
                    "its disks that are never written, as marks with newlines between: see"
                    " policy/keep.py"
                ),
            )
        )
