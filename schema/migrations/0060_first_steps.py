"""People may dismiss the checklist of their first steps."""

import sqlalchemy as sa
from alembic import op

revision = "0060"
down_revision = "0059"


def upgrade() -> None:
    op.add_column(
        "users",
        sa.Column(
            "checklist_over_at",
            sa.Double(),
            nullable=True,
            comment="when it dismissed its first steps; null: never",
        ),
    )
