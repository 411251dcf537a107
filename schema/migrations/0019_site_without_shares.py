"""The group `site` has no shares unless an administrator gives it some."""

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"


def upgrade() -> None:
    groups = sa.table("groups", sa.column("name", sa.String), sa.column("shares", sa.Double))
    op.execute(
        sa.update(groups).where(groups.c.name == "site", groups.c.shares == 1).values(shares=0.0)
    )
