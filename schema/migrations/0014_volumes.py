"""Volumes."""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"


def upgrade() -> None:
    op.create_table(
        "volumes",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("name", sa.String(length=127), nullable=False, comment="GROUP/NAME"),
        sa.Column("group_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column(
            "kind",
            sa.String(length=8),
            nullable=False,
            comment="data, or home: a directory for each member of the group",
        ),
        sa.Column(
            "fileserver",
            sa.String(length=63),
            nullable=False,
            comment="the [[fileserver]] of the site file",
        ),
        sa.Column(
            "path",
            sa.String(length=300),
            nullable=False,
            comment="its directory on the file server",
        ),
        sa.Column(
            "export_id",
            sa.Integer(),
            nullable=False,
            comment="number of its export on the file server",
        ),
        sa.Column("size", sa.BigInteger(), nullable=False, comment="bytes that it may hold"),
        sa.Column(
            "enforced",
            sa.String(length=8),
            nullable=False,
            comment="what holds it to its size: project, btrfs, zfs or none; '': not known yet",
        ),
        sa.Column(
            "source",
            sa.String(length=127),
            nullable=False,
            comment=(
                "what it is copied from when it is made, below the file server's root; '': it"
                " begins empty"
            ),
        ),
        sa.Column(
            "sequence",
            sa.BigInteger(),
            nullable=False,
            comment="grows with each change that the file server has to make",
        ),
        sa.Column(
            "applied",
            sa.BigInteger(),
            nullable=False,
            comment="sequence that the file server has carried out",
        ),
        sa.Column(
            "attempts",
            sa.Integer(),
            nullable=False,
            comment="failed attempts to carry out the newest change",
        ),
        sa.Column("next_at", sa.Double(), nullable=False, comment="when to try (again)"),
        sa.Column(
            "claimed_by",
            sa.String(length=64),
            nullable=True,
            comment="server that carries a change out",
        ),
        sa.Column("claim_expires", sa.Double(), nullable=True),
        sa.Column(
            "reason",
            sa.Text(),
            nullable=False,
            comment="why the newest change is not carried out; ''",
        ),
        sa.Column(
            "told",
            sa.Boolean(),
            server_default=sa.text("0"),
            nullable=False,
            comment="people were told of the reason",
        ),
        sa.Column(
            "made_at",
            sa.Double(),
            nullable=True,
            comment="when its directory was made; null: not yet",
        ),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column(
            "deleted_at",
            sa.Double(),
            nullable=True,
            comment="set: deleted, and kept until purge_at",
        ),
        sa.Column(
            "purge_at", sa.Double(), nullable=True, comment="when a deleted volume's data is erased"
        ),
        sa.ForeignKeyConstraint(["group_id"], ["groups.id"], name=op.f("fk_volumes_group_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_volumes")),
        sa.UniqueConstraint(
            "fileserver", "export_id", name=op.f("uq_volumes_fileserver_export_id")
        ),
        sa.UniqueConstraint("name", name=op.f("uq_volumes_name")),
        comment="Directories on file servers that vclusters mount.",
        mysql_charset="utf8mb4",
        mysql_engine="InnoDB",
    )
    with op.batch_alter_table("volumes", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_volumes_fileserver"), ["fileserver"], unique=False)
        batch_op.create_index(batch_op.f("ix_volumes_group_id"), ["group_id"], unique=False)

    op.create_table(
        "volume_snapshots",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column(
            "volume_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False
        ),
        sa.Column("name", sa.String(length=63), nullable=False),
        sa.Column(
            "sequence",
            sa.BigInteger(),
            nullable=False,
            comment="the volume's, which makes or deletes it",
        ),
        sa.Column(
            "leaving",
            sa.Boolean(),
            server_default=sa.text("0"),
            nullable=False,
            comment="it is to be deleted",
        ),
        sa.Column("made_at", sa.Double(), nullable=True, comment="null: not yet"),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["volume_id"], ["volumes.id"], name=op.f("fk_volume_snapshots_volume_id")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_volume_snapshots")),
        sa.UniqueConstraint("volume_id", "name", name=op.f("uq_volume_snapshots_volume_id_name")),
        comment="Snapshots of volumes, on their file servers.",
        mysql_charset="utf8mb4",
        mysql_engine="InnoDB",
    )
    op.create_table(
        "volume_attachments",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column(
            "volume_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False
        ),
        sa.Column(
            "vcluster_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False
        ),
        sa.Column(
            "mount", sa.String(length=200), nullable=False, comment="where the nodes mount it"
        ),
        sa.Column("read_only", sa.Boolean(), nullable=False),
        sa.Column(
            "delete_after",
            sa.Double(),
            nullable=True,
            comment="seconds after the vcluster's end for which the volume is kept; null: always",
        ),
        sa.Column(
            "sequence",
            sa.BigInteger(),
            nullable=False,
            comment="the volume's, which exports it so, or withdraws it",
        ),
        sa.Column(
            "leaving",
            sa.Boolean(),
            server_default=sa.text("0"),
            nullable=False,
            comment="the export is to be withdrawn; the row goes when it has been",
        ),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["vcluster_id"], ["vclusters.id"], name=op.f("fk_volume_attachments_vcluster_id")
        ),
        sa.ForeignKeyConstraint(
            ["volume_id"], ["volumes.id"], name=op.f("fk_volume_attachments_volume_id")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_volume_attachments")),
        sa.UniqueConstraint(
            "volume_id", "vcluster_id", name=op.f("uq_volume_attachments_volume_id_vcluster_id")
        ),
        comment=(
            "Which vclusters mount which volumes. A vcluster keeps its addresses until its last row"
            " has gone."
        ),
        mysql_charset="utf8mb4",
        mysql_engine="InnoDB",
    )
    with op.batch_alter_table("volume_attachments", schema=None) as batch_op:
        batch_op.create_index(
            batch_op.f("ix_volume_attachments_vcluster_id"), ["vcluster_id"], unique=False
        )

    with op.batch_alter_table("groups", schema=None) as batch_op:
        batch_op.add_column(
            sa.Column(
                "volume_quota",
                sa.BigInteger(),
                nullable=True,
                comment="bytes that its volumes may have together; null: the site's",
            )
        )
