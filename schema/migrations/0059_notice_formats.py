"""A group's webhook may expect a chat service's message."""

import sqlalchemy as sa
from alembic import op

revision = "0059"
down_revision = "0056"


def upgrade() -> None:
    op.add_column(
        "groups",
        sa.Column(
            "webhook_format",
            sa.String(16),
            server_default="json",
            nullable=False,
            comment="json, slack, mattermost, teams, matrix: what the webhook expects",
        ),
    )
