"""The starts of waiting requests, as they were told, and when they began."""

import sqlalchemy as sa
from alembic import op

revision = "0035"
down_revision = "0034"

ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "request_starts",
        sa.Column("request_id", ID, autoincrement=False, nullable=False),
        sa.Column("told_at", sa.Double(), nullable=False, comment="when this was told first"),
        sa.Column(
            "starts_at", sa.Double(), nullable=True, comment="as expected; null: nobody can tell"
        ),
        sa.Column("why", sa.Text(), nullable=False, comment="why nobody can tell"),
        sa.Column(
            "sooner_nodes",
            sa.Integer(),
            nullable=True,
            comment="with so many nodes it would start at `sooner_at`; null: nothing is known",
        ),
        sa.Column("sooner_at", sa.Double(), nullable=True),
        sa.Column(
            "first_at", sa.Double(), nullable=True, comment="the start that was told first of all"
        ),
        sa.Column("first_told_at", sa.Double(), nullable=True, comment="when that was told"),
        sa.Column("began_at", sa.Double(), nullable=True, comment="null: it waits"),
        sa.PrimaryKeyConstraint("request_id", name=op.f("pk_request_starts")),
        comment="When waiting requests are expected to start, and what became of that.",
    )
    op.create_index(op.f("ix_request_starts_began_at"), "request_starts", ["began_at"])
