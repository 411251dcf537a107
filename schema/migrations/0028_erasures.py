"""How disks were erased, with the transitions of nodes, and how they are to be."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0028"
down_revision = "0027"


def upgrade() -> None:
    op.add_column(
        "node_history",
        sa.Column(
            "erased",
            sa.Text().with_variant(mysql.MEDIUMTEXT(), "mysql", "mariadb"),
            nullable=True,
            comment=(
                "leaving wipe, prime: how disks were erased (JSON, orders.Erasure); null: none were"
            ),
        ),
    )
    with op.batch_alter_table("nodes") as batch_op:
        batch_op.add_column(
            sa.Column(
                "purge",
                sa.Boolean(),
                nullable=False,
                server_default=sa.false(),
                comment="its next wipe purges its disks: a template that it ran says so",
            )
        )
