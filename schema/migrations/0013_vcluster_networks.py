"""Several blocks of addresses a vcluster; networks of isolated vclusters."""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    # MariaDB commits at each statement: an upgrade that was broken off begins again, where it was.
    found = sa.inspect(op.get_bind())
    if not found.has_table("vcluster_blocks"):
        op.create_table(
            "vcluster_blocks",
            sa.Column(
                "first_address",
                sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
                autoincrement=False,
                nullable=False,
                comment="the unique claim on the block",
            ),
            sa.Column("last_address", sa.BigInteger(), nullable=False),
            sa.Column(
                "vcluster_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False
            ),
            sa.Column("subnet", sa.String(length=63), nullable=False, comment="as in bindings"),
            sa.ForeignKeyConstraint(
                ["vcluster_id"], ["vclusters.id"], name=op.f("fk_vcluster_blocks_vcluster_id")
            ),
            sa.PrimaryKeyConstraint("first_address", name=op.f("pk_vcluster_blocks")),
            comment="Private blocks of addresses of vclusters that have not ended.",
            mysql_charset="utf8mb4",
            mysql_engine="InnoDB",
        )
        op.create_index(
            op.f("ix_vcluster_blocks_vcluster_id"), "vcluster_blocks", ["vcluster_id"], unique=False
        )
    if not found.has_table("vcluster_networks"):
        op.create_table(
            "vcluster_networks",
            sa.Column(
                "vlan",
                sa.Integer(),
                autoincrement=False,
                nullable=False,
                comment="the unique claim on the VLAN",
            ),
            sa.Column(
                "vcluster_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False
            ),
            sa.Column(
                "first_address",
                sa.BigInteger(),
                nullable=False,
                comment="the unique claim on the subnet",
            ),
            sa.Column("prefix", sa.Integer(), nullable=False, comment="the subnet's prefix length"),
            sa.Column(
                "server_address",
                sa.BigInteger(),
                nullable=False,
                comment="by which its nodes reach COD",
            ),
            sa.Column(
                "router_address",
                sa.BigInteger(),
                nullable=True,
                comment="their default router; null: none",
            ),
            sa.ForeignKeyConstraint(
                ["vcluster_id"], ["vclusters.id"], name=op.f("fk_vcluster_networks_vcluster_id")
            ),
            sa.PrimaryKeyConstraint("vlan", name=op.f("pk_vcluster_networks")),
            sa.UniqueConstraint("first_address", name=op.f("uq_vcluster_networks_first_address")),
            sa.UniqueConstraint("vcluster_id", name=op.f("uq_vcluster_networks_vcluster_id")),
            comment=(
                "VLANs and subnets of isolated vclusters, kept until no switch port is in the VLAN"
                " any more."
            ),
            mysql_charset="utf8mb4",
            mysql_engine="InnoDB",
        )
    columns = {column["name"] for column in found.get_columns("vclusters")}
    if "isolated" not in columns:
        with op.batch_alter_table("vclusters", schema=None) as batch_op:
            batch_op.add_column(
                sa.Column(
                    "isolated",
                    sa.Boolean(),
                    server_default=sa.false(),
                    nullable=False,
                    comment="its nodes are in a VLAN of their own",
                )
            )
    if "first_address" not in columns:
        return
    names = ("id", "subnet", "first_address", "last_address")
    old = sa.table("vclusters", *(sa.column(name) for name in names))
    new = sa.table("vcluster_blocks", *(sa.column(name) for name in ("vcluster_id", *names[1:])))
    there = sa.select(new.c.first_address)
    op.execute(
        new.insert().from_select(
            ["vcluster_id", *names[1:]],
            sa.select(*(old.c[name] for name in names)).where(
                old.c.first_address.is_not(None),
                old.c.last_address.is_not(None),
                old.c.subnet.is_not(None),
                old.c.first_address.not_in(there),
            ),
        )
    )
    with op.batch_alter_table("vclusters", schema=None) as batch_op:
        batch_op.drop_constraint(op.f("uq_vclusters_first_address"), type_="unique")
        batch_op.alter_column(
            "subnet",
            existing_type=sa.String(length=63),
            existing_nullable=True,
            comment="the site's subnet that its blocks are in",
        )
        batch_op.drop_column("last_address")
        batch_op.drop_column("first_address")
