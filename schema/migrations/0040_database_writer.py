"""Which host of a database cluster is the writer; acts under a claim, which each writes down."""

import sqlalchemy as sa
from alembic import op

revision = "0040"
down_revision = "0039"


def upgrade() -> None:
    op.create_table(
        "database_lease",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False, comment="always 1"),
        sa.Column("host", sa.String(300), nullable=False, comment="the writer, HOST:PORT"),
        sa.Column(
            "epoch", sa.BigInteger(), nullable=False, comment="+1 with each change of the host"
        ),
        sa.Column("beat", sa.BigInteger(), nullable=False, comment="+1 with each renewal"),
        sa.Column(
            "seconds",
            sa.Double(),
            nullable=False,
            comment="unchanged for so long, it may be taken over",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_database_lease")),
        comment="Which host of a database cluster is the writer; no row where there is one host.",
    )
    op.add_column(
        "claims",
        sa.Column(
            "acts",
            sa.BigInteger(),
            server_default="0",
            nullable=False,
            comment="+1 with each act under it, so that an act and a take-over write the same row",
        ),
    )
