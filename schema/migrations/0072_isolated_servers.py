"""Networks of isolated vclusters with an address of each server."""

import sqlalchemy as sa
from alembic import op

revision = "0072"
down_revision = "0071"


def upgrade() -> None:
    op.add_column(
        "vcluster_networks",
        sa.Column(
            "servers",
            sa.Integer(),
            server_default="1",
            nullable=False,
            comment="addresses from server_address on that are COD's, one of each of its hosts",
        ),
    )
