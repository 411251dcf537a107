"""How disks are erased at least: as a group says, and as those say that have held a node. How long
it takes until nodes of a type that are given back are free again."""

import sqlalchemy as sa
from alembic import op

revision = "0030"
down_revision = "0029"


def upgrade() -> None:
    op.add_column(
        "groups",
        sa.Column(
            "wipe",
            sa.String(8),
            nullable=True,
            comment=(
                "zero or purge: how the disks of its nodes are erased at least; null: the site's"
            ),
        ),
    )
    op.add_column(
        "nodes",
        sa.Column(
            "wipe",
            sa.String(8),
            nullable=False,
            server_default="",
            comment=(
                "tables, zero or purge: in wipe, how its disks are being erased; else how at least"
                " they are to be next, by those that held it; '': they say nothing"
            ),
        ),
    )
    op.add_column(
        "node_types",
        sa.Column(
            "turnaround",
            sa.Double(),
            nullable=True,
            comment=(
                "seconds until nodes that are given back are free again, as learnt; null: unknown"
            ),
        ),
    )
    nodes = sa.table("nodes", sa.column("wipe"), sa.column("purge"))
    op.execute(nodes.update().where(nodes.c.purge == sa.true()).values(wipe="purge"))
    op.drop_column("nodes", "purge")
