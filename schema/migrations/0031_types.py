"""Groups remember the turn for which they have an odd node of their share."""

import sqlalchemy as sa
from alembic import op

revision = "0031"
down_revision = "0030"


def upgrade() -> None:
    op.add_column(
        "groups",
        sa.Column(
            "odd_turn",
            sa.Integer(),
            nullable=True,
            comment="the last turn for which it has an odd node of its share",
        ),
    )
