"""Volumes that NFS protects by Kerberos, and keytabs on their way to nodes."""

import sqlalchemy as sa
from alembic import op

revision = "0071"
down_revision = "0069"

ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.add_column(
        "volumes",
        sa.Column(
            "sec",
            sa.String(8),
            server_default="sys",
            nullable=False,
            comment="how NFS protects it: sys, krb5, krb5i or krb5p",
        ),
    )
    op.create_table(
        "keytabs",
        sa.Column("host", sa.String(255), nullable=False, comment="name with its domain"),
        sa.Column("node_id", ID, nullable=False, comment="that has the name, or had it"),
        sa.Column("vcluster_id", ID, nullable=False, comment="that the node has it in"),
        sa.Column(
            "order_id", sa.String(40), nullable=False, comment="of the installation that writes it"
        ),
        sa.Column(
            "sealed",
            sa.LargeBinary(length=40_000),
            nullable=True,
            comment="the keytab, encrypted; null: not made yet, or written to the node",
        ),
        sa.Column("attempts", sa.Integer(), nullable=False, comment="failed ones"),
        sa.Column("next_at", sa.Double(), nullable=False, comment="when to try again"),
        sa.Column("reason", sa.Text(), nullable=False, comment="why the last attempt failed; ''"),
        sa.Column(
            "made_at", sa.Double(), nullable=True, comment="null: its principals were never made"
        ),
        sa.PrimaryKeyConstraint("host", name=op.f("pk_keytabs")),
        comment="Hosts whose principals are in the site's Kerberos, and keytabs on their way.",
        mysql_charset="utf8mb4",
        mysql_engine="InnoDB",
    )
    op.create_index(op.f("ix_keytabs_node_id"), "keytabs", ["node_id"])
