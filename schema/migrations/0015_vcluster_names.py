"""Names (CNAME) that owners add to their vclusters."""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"

_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "vcluster_names",
        sa.Column("vcluster_id", _ID, nullable=False),
        sa.Column("name", sa.String(length=63), nullable=False, comment="a DNS label"),
        sa.Column(
            "target",
            sa.String(length=253),
            nullable=False,
            comment="a host or a name of the vcluster; external: a full name",
        ),
        sa.Column("external", sa.Boolean(), server_default=sa.text("0"), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column(
            "actor", sa.String(length=80), nullable=False, comment="who added or changed it last"
        ),
        sa.ForeignKeyConstraint(
            ["vcluster_id"], ["vclusters.id"], name=op.f("fk_vcluster_names_vcluster_id")
        ),
        sa.PrimaryKeyConstraint("vcluster_id", "name", name=op.f("pk_vcluster_names")),
        comment=(
            "Names beside nodes' host names (CNAME), by vclusters' owners. Those of a vcluster that"
            " ends are deleted."
        ),
        mysql_charset="utf8mb4",
        mysql_engine="InnoDB",
    )
