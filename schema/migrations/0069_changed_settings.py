"""Settings that were changed while the servers ran."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0069"
down_revision = "0067"

ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
DOCUMENT = sa.Text().with_variant(mysql.MEDIUMTEXT(), "mysql", "mariadb")


def upgrade() -> None:
    op.create_table(
        "setting_changes",
        sa.Column("id", ID, nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("actor", sa.String(80), nullable=False, comment="as in the audit"),
        sa.Column("name", sa.String(100), nullable=False, comment="'policy.inertia'"),
        sa.Column("value", DOCUMENT, comment="JSON, as the site file has it; null: what that says"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_setting_changes")),
        comment="Settings that were changed while the servers ran: of each, its newest row holds.",
        mysql_charset="utf8mb4",
        mysql_engine="InnoDB",
    )
    op.create_index(op.f("ix_setting_changes_name"), "setting_changes", ["name"])
