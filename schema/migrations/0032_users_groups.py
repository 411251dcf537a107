"""Groups that users create by the site's rule: who created each."""

import sqlalchemy as sa
from alembic import op

revision = "0032"
down_revision = "0031"


def upgrade() -> None:
    op.add_column(
        "groups",
        sa.Column(
            "created_by",
            sa.String(63),
            nullable=True,
            comment="the user who created it by the site's rule; null: an administrator did",
        ),
    )
