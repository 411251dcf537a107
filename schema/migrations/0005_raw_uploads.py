"""Images that hold nothing known, on purpose."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    with op.batch_alter_table("uploads", schema=None) as batch_op:
        batch_op.add_column(
            sa.Column(
                "raw",
                sa.Boolean(),
                server_default=sa.text("0"),
                nullable=False,
                comment="neither partition table nor file system is wanted",
            )
        )
