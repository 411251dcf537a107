"""People type on consoles: what they typed waits for the server that has the line."""

import sqlalchemy as sa
from alembic import op

revision = "0063"
down_revision = "0062"

_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "console_input",
        sa.Column("id", _ID, nullable=False),
        sa.Column("node_id", _ID, nullable=False),
        sa.Column(
            "tenure",
            sa.String(length=48),
            nullable=False,
            comment="whose the node was then; dropped where it is another's",
        ),
        sa.Column(
            "administrator",
            sa.Boolean(),
            nullable=False,
            comment="who typed is one; what others typed is for the node's own system alone",
        ),
        sa.Column("typed", sa.Text(), nullable=False, comment="may be a password"),
        sa.Column("at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["node_id"], ["nodes.id"], name=op.f("fk_console_input_node_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_console_input")),
        comment="What people typed on consoles, for the seconds until it is there.",
        mysql_charset="utf8mb4",
        mysql_engine="InnoDB",
    )
    op.create_index(op.f("ix_console_input_node_id"), "console_input", ["node_id"])
