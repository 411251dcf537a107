"""Reservations that recur."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0037"
down_revision = "0036"

ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
DOCUMENT = sa.Text().with_variant(mysql.MEDIUMTEXT(), "mysql", "mariadb")


def upgrade() -> None:
    op.create_table(
        "reservation_series",
        sa.Column("id", ID, nullable=False),
        sa.Column(
            "name", sa.String(63), nullable=False, comment="its clusters' names begin with it"
        ),
        sa.Column("group_id", ID, nullable=False),
        sa.Column("asked", DOCUMENT, nullable=False, comment="what each is created with (JSON)"),
        sa.Column("starts_at", sa.Double(), nullable=False, comment="the first start"),
        sa.Column("duration", sa.Double(), nullable=False, comment="seconds of each lease"),
        sa.Column(
            "zone", sa.String(64), nullable=False, comment="time zone whose clock the starts keep"
        ),
        sa.Column("days", sa.String(32), nullable=False, comment="of the week: 'mon,wed'"),
        sa.Column("count", sa.Integer(), nullable=True, comment="starts in all; null: no limit"),
        sa.Column(
            "ends_at", sa.Double(), nullable=True, comment="no start is later; null: no limit"
        ),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["group_id"], ["groups.id"], name=op.f("fk_reservation_series_group_id")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_reservation_series")),
        sa.UniqueConstraint("name", name=op.f("uq_reservation_series_name")),
        comment="Reservations that recur: a virtual cluster for each start.",
    )
    op.create_index(op.f("ix_reservation_series_group_id"), "reservation_series", ["group_id"])
    op.create_table(
        "series_occurrences",
        sa.Column("series_id", ID, autoincrement=False, nullable=False),
        sa.Column("starts_at", sa.Double(), autoincrement=False, nullable=False),
        sa.Column("vcluster", sa.String(63), nullable=False, comment="name of its virtual cluster"),
        sa.Column(
            "refused",
            sa.Text(),
            nullable=False,
            comment="why it could not be reserved; '': it was",
        ),
        sa.ForeignKeyConstraint(
            ["series_id"],
            ["reservation_series.id"],
            name=op.f("fk_series_occurrences_series_id"),
        ),
        sa.PrimaryKeyConstraint("series_id", "starts_at", name=op.f("pk_series_occurrences")),
        comment="Starts of series that were decided: each is, once.",
    )
