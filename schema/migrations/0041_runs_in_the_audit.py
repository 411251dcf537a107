"""The key of the run that made a change, by which a commit whose answer was lost is found."""

import sqlalchemy as sa
from alembic import op

revision = "0041"
down_revision = "0040"


def upgrade() -> None:
    op.add_column(
        "audit",
        sa.Column(
            "run",
            sa.String(length=32),
            nullable=True,
            comment="random key of the run of the flow that made the change; null: of none",
        ),
    )
