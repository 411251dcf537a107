"""How disks were erased, with the transitions of nodes."""

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
