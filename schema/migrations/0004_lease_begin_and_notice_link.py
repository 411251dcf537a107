"""When leases began, and where a notice leads."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    with op.batch_alter_table("groups", schema=None) as batch_op:
        batch_op.alter_column(
            "max_lease",
            existing_type=sa.Double(),
            existing_nullable=True,
            comment="seconds of a whole lease, with all extensions; null: no limit",
        )
    with op.batch_alter_table("notices", schema=None) as batch_op:
        batch_op.add_column(
            sa.Column(
                "link",
                sa.String(length=300),
                server_default="",
                nullable=False,
                comment="path of the portal's page where something can be done about it; ''",
            )
        )
    with op.batch_alter_table("vclusters", schema=None) as batch_op:
        batch_op.add_column(
            sa.Column(
                "leased_at",
                sa.Double(),
                nullable=True,
                comment="when its lease began, from which max_lease counts; null while pending",
            )
        )
    # The history's first row with an end is the lease's beginning, where the history is kept for so
    # long.
    op.execute(
        "UPDATE vclusters SET leased_at = COALESCE((SELECT MIN(h.at) FROM vcluster_history h WHERE"
        " h.vcluster_id = vclusters.id AND h.expires_at IS NOT NULL), created_at) WHERE expires_at"
        " IS NOT NULL"
    )
