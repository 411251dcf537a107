"""Energy of vclusters, and the CO2 that was emitted for it; the curve of price or carbon by the
hour."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0034"
down_revision = "0033"

DOCUMENT = sa.Text().with_variant(mysql.MEDIUMTEXT(), "mysql", "mariadb")
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
    op.create_table(
        "energy_curve",
        sa.Column("source", sa.String(500), nullable=False, comment="a file or an address"),
        sa.Column("content", DOCUMENT, nullable=False, comment="CSV; '': it was never read"),
        sa.Column("read_at", sa.Double(), nullable=False, comment="when the content was read last"),
        sa.Column(
            "good_until", sa.Double(), nullable=False, comment="after that the content is too old"
        ),
        sa.Column("fault", sa.Text(), nullable=False, comment="why it could not be read last; ''"),
        sa.PrimaryKeyConstraint("source", name=op.f("pk_energy_curve")),
        comment="The price of energy or the CO2 emitted for it, by the hour, as read last.",
    )
