"""Single rights that a group's owners give members beside their roles."""

import sqlalchemy as sa
from alembic import op

revision = "0033"
down_revision = "0032"


def upgrade() -> None:
    op.add_column(
        "group_permissions",
        sa.Column(
            "rights",
            sa.String(100),
            nullable=False,
            server_default="",
            comment="resize, consoles, capture, invite: single rights beside the role",
        ),
    )
