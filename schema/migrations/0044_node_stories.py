"""What machines say of themselves while a site is held, and why it is held."""

import sqlalchemy as sa
from alembic import op

revision = "0044"
down_revision = "0043"


def upgrade() -> None:
    op.add_column(
        "marks",
        sa.Column(
            "about",
            sa.String(length=300),
            server_default="",
            nullable=False,
            comment="of 'hold': why the site is held",
        ),
    )
    op.create_table(
        "node_stories",
        sa.Column(
            "node_id",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            nullable=False,
        ),
        sa.Column(
            "known",
            sa.Integer(),
            nullable=False,
            comment="newest generation in which the database can have had it installed",
        ),
        sa.Column(
            "verdict", sa.String(length=8), nullable=False, comment="silent, agrees or differs"
        ),
        sa.Column(
            "source",
            sa.String(length=8),
            server_default="",
            nullable=False,
            comment="agent, dhcp or switch; '': nothing was said",
        ),
        sa.Column("at", sa.Double(), nullable=True, comment="when it was said"),
        sa.Column("said", sa.String(length=300), server_default="", nullable=False),
        sa.ForeignKeyConstraint(["node_id"], ["nodes.id"], name=op.f("fk_node_stories_node_id")),
        sa.PrimaryKeyConstraint("node_id", name=op.f("pk_node_stories")),
        comment="Nodes that are held until their machines and the database agree.",
        mysql_charset="utf8mb4",
        mysql_engine="InnoDB",
    )
