"""The index that counts nodes also has their host names: a grant reads those of its clusters."""

from alembic import op

revision = "0066"
down_revision = "0064"

COUNTED = [
    "vcluster_id",
    "released",
    "state",
    "type_id",
    "block_id",
    "subnet",
    "disk",
    "cached_template_id",
    "cached_group_id",
    "power_driver",
    "since",
    "assigned_at",
]


def upgrade() -> None:
    # before the other goes: MariaDB wants an index for the foreign key on vcluster_id
    op.create_index("ix_nodes_counts", "nodes", [*COUNTED, "hostname"])
    op.drop_index("ix_nodes_census", table_name="nodes")
