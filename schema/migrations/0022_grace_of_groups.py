"""The grace of a reclaim that a group has of its own."""

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"


def upgrade() -> None:
    with op.batch_alter_table("groups", schema=None) as batch_op:
        batch_op.add_column(
            sa.Column(
                "grace",
                sa.Double(),
                nullable=True,
                comment="seconds to give nodes back after a reclaim; null: the site's",
            )
        )
