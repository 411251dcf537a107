"""Energy of vclusters, and the CO2 that was emitted for it."""

import sqlalchemy as sa
from alembic import op

revision = "0031"
down_revision = "0030"

ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.add_column(
        "energy_use",
        sa.Column(
            "grams", sa.Double(), nullable=False, server_default="0", comment="of CO2 emitted"
        ),
    )
    op.create_table(
        "vcluster_energy",
        sa.Column(
            "day",
            sa.Integer(),
            autoincrement=False,
            nullable=False,
            comment="days since the epoch, UTC",
        ),
        sa.Column("vcluster_id", ID, autoincrement=False, nullable=False),
        sa.Column("seconds", sa.Double(), nullable=False, comment="node-seconds"),
        sa.Column("joules", sa.Double(), nullable=False, comment="used"),
        sa.Column(
            "always_on", sa.Double(), nullable=False, comment="joules had no node ever slept"
        ),
        sa.Column("grams", sa.Double(), nullable=False, comment="of CO2 emitted"),
        sa.PrimaryKeyConstraint("day", "vcluster_id", name=op.f("pk_vcluster_energy")),
        comment="Energy by day and vcluster.",
    )
