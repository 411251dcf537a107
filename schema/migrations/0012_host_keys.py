"""SSH host keys of nodes, known before the first login."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0012"
down_revision = "0011"

_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "host_keys",
        sa.Column("node_id", _ID, nullable=False),
        sa.Column("algorithm", sa.String(length=32), nullable=False, comment="ssh-ed25519"),
        sa.Column("key", sa.String(length=300), nullable=False, comment="the public part, base64"),
        sa.Column(
            "order_id",
            sa.String(length=40),
            nullable=False,
            comment="of the installation that writes it",
        ),
        sa.Column(
            "salt",
            sa.String(length=64),
            nullable=False,
            comment=(
                "of the private part, with the site's secret; '' once that is written: nobody but"
                " the node has it then"
            ),
        ),
        sa.Column("made_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["node_id"], ["nodes.id"], name=op.f("fk_host_keys_node_id")),
        sa.PrimaryKeyConstraint("node_id", "algorithm", name=op.f("pk_host_keys")),
        comment=(
            "SSH host keys of nodes that hold what was installed with them. The private parts are"
            " not kept."
        ),
        mysql_charset="utf8mb4",
        mysql_engine="InnoDB",
    )
