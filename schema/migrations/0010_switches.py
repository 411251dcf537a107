"""Switches and their ports."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0010"
down_revision = "0009"

_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_EXACT = sa.String(300).with_variant(
    mysql.VARCHAR(300, collation="utf8mb4_bin"), "mysql", "mariadb"
)


def upgrade() -> None:
    op.create_table(
        "switches",
        sa.Column(
            "name", sa.String(length=63), nullable=False, comment="of the site file's [[switch]]"
        ),
        sa.Column(
            "epoch",
            sa.Integer(),
            nullable=False,
            comment="+1 with each claim; fences sessions that are late",
        ),
        sa.Column(
            "claimed_by",
            sa.String(length=64),
            nullable=True,
            comment="the server that has a session with it",
        ),
        sa.Column("claim_expires", sa.Double(), nullable=True),
        sa.Column("next_at", sa.Double(), nullable=False, comment="no session before"),
        sa.Column(
            "failures",
            sa.Integer(),
            nullable=False,
            comment="sessions that failed since one succeeded",
        ),
        sa.Column(
            "reason",
            sa.Text(),
            nullable=False,
            comment="why the last session failed; '': it did not",
        ),
        sa.Column(
            "about", sa.String(length=200), nullable=False, comment="what the switch says of itself"
        ),
        sa.Column("tried_at", sa.Double(), nullable=True, comment="when the last session ended"),
        sa.Column(
            "answered_at",
            sa.Double(),
            nullable=True,
            comment="when the last session that succeeded ended",
        ),
        sa.Column(
            "check_wanted",
            sa.Boolean(),
            nullable=False,
            comment="a session is wanted, ports due or not",
        ),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_switches")),
        comment=(
            "Sessions with switches: one at a time with each, by whichever server has the claim."
        ),
        mysql_charset="utf8mb4",
        mysql_engine="InnoDB",
    )
    op.create_table(
        "switch_ports",
        sa.Column("id", _ID, nullable=False),
        sa.Column(
            "switch", sa.String(length=63), nullable=False, comment="of the site file's [[switch]]"
        ),
        sa.Column("port", _EXACT, nullable=False, comment="as its driver calls it"),
        sa.Column("node_id", _ID, nullable=True, comment="null: no known NIC is on it (any more)"),
        sa.Column("mac", sa.String(length=17), nullable=True, comment="of the NIC"),
        sa.Column(
            "source",
            sa.String(length=8),
            nullable=False,
            comment="lldp, or manual: a manual entry stays",
        ),
        sa.Column("seen_at", sa.Double(), nullable=False, comment="when that was last said"),
        sa.Column(
            "wanted_vlan",
            sa.Integer(),
            nullable=True,
            comment="null: the switch's provisioning VLAN",
        ),
        sa.Column(
            "seq",
            sa.Integer(),
            nullable=False,
            comment="+1 with each wish; 0: COD has never changed the port",
        ),
        sa.Column("wished_at", sa.Double(), nullable=False),
        sa.Column(
            "applied_vlan",
            sa.Integer(),
            nullable=True,
            comment="as last read from the switch; null: not known",
        ),
        sa.Column(
            "applied_seq",
            sa.Integer(),
            nullable=False,
            comment="the newest wish that was read back",
        ),
        sa.Column("verified_at", sa.Double(), nullable=True, comment="when it was last read"),
        sa.Column(
            "attempts",
            sa.Integer(),
            nullable=False,
            comment="failed attempts since the wish, or verification",
        ),
        sa.Column(
            "next_at",
            sa.Double(),
            nullable=True,
            comment="when to change or to verify it; null: nothing is due",
        ),
        sa.Column(
            "reason",
            sa.Text(),
            nullable=False,
            comment="why the last attempt failed; '': it did not",
        ),
        sa.Column(
            "given_up",
            sa.Boolean(),
            nullable=False,
            comment="the wish is not tried any more (see reason)",
        ),
        sa.Column(
            "corrected_at",
            sa.Double(),
            nullable=True,
            comment="when it was last found in another VLAN than COD had put it in",
        ),
        sa.ForeignKeyConstraint(["node_id"], ["nodes.id"], name=op.f("fk_switch_ports_node_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_switch_ports")),
        sa.UniqueConstraint("mac", name=op.f("uq_switch_ports_mac")),
        sa.UniqueConstraint("switch", "port", name=op.f("uq_switch_ports_switch_port")),
        comment=(
            "Switch ports as desired state. The newest wish has the last word; outcomes of older"
            " ones are dropped."
        ),
        mysql_charset="utf8mb4",
        mysql_engine="InnoDB",
    )
    with op.batch_alter_table("switch_ports", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_switch_ports_node_id"), ["node_id"], unique=False)
        batch_op.create_index(
            batch_op.f("ix_switch_ports_switch_next_at"), ["switch", "next_at"], unique=False
        )
