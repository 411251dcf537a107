"""Things that the site's documents have named."""

import sqlalchemy as sa
from alembic import op

revision = "0048"
down_revision = "0047"


def upgrade() -> None:
    op.create_table(
        "site_documents",
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("name", sa.String(length=127), nullable=False, comment="of the thing, in full"),
        sa.PrimaryKeyConstraint("kind", "name", name=op.f("pk_site_documents")),
        comment="Things that the site's documents named when they were applied; a prune may delete "
        "those that they name no more.",
        mysql_charset="utf8mb4",
        mysql_engine="InnoDB",
    )
