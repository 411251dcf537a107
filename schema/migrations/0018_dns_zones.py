"""Serials of DNS zones."""

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"


def upgrade() -> None:
    op.create_table(
        "dns_zones",
        sa.Column("kind", sa.String(length=8), nullable=False, comment="site, vcluster or subnet"),
        sa.Column(
            "key",
            sa.String(length=63),
            nullable=False,
            comment="name of the vcluster or the subnet; '' for the site",
        ),
        sa.Column(
            "serial",
            sa.BigInteger(),
            nullable=False,
            comment="of the SOA: rises with each change, never falls",
        ),
        sa.Column(
            "digest",
            sa.String(length=64),
            nullable=False,
            comment="of the site file's share; the site's row only",
        ),
        sa.PrimaryKeyConstraint("kind", "key", name=op.f("pk_dns_zones")),
        comment=(
            "Serials of the DNS zones. A zone that has ended keeps its row: its name may come back."
        ),
        mysql_charset="utf8mb4",
        mysql_engine="InnoDB",
    )
