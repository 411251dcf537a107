"""The parts of the server that run on each host."""

import sqlalchemy as sa
from alembic import op

revision = "0042"
down_revision = "0041"


def upgrade() -> None:
    op.create_table(
        "server_parts",
        sa.Column(
            "server",
            sa.String(length=64),
            nullable=False,
            comment="the host's name, as in claims",
        ),
        sa.Column(
            "part", sa.String(length=16), nullable=False, comment="edge, images, manager or web"
        ),
        sa.Column(
            "addresses",
            sa.String(length=2000),
            nullable=False,
            comment="by which nodes reach the host",
        ),
        sa.Column("version", sa.String(length=40), nullable=False, comment="of the program"),
        sa.Column(
            "database_schema",
            sa.String(length=16),
            nullable=False,
            comment="that the program was written for",
        ),
        sa.Column("started_at", sa.Double(), nullable=False),
        sa.Column(
            "seen_at",
            sa.Double(),
            nullable=False,
            comment="when the part renewed the row last, by its host's clock",
        ),
        sa.PrimaryKeyConstraint("server", "part", name=op.f("pk_server_parts")),
        comment="The parts of the server on each host, as each says of itself.",
        mysql_charset="utf8mb4",
        mysql_engine="InnoDB",
    )
