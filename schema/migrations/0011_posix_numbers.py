"""Users and groups have POSIX numbers, for accounts on nodes."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"

# as [accounts] of the site file has them where it says nothing else
FIRST_UID, FIRST_GID = 20_000, 50_000


def upgrade() -> None:
    op.create_table(
        "posix_ids",
        sa.Column("number", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("kind", sa.String(length=3), nullable=False, comment="uid or gid"),
        sa.Column(
            "holder",
            sa.String(length=80),
            nullable=False,
            comment="user:NAME or group:NAME; it stays when they are deleted",
        ),
        sa.Column("given_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("number", "kind", name=op.f("pk_posix_ids")),
        comment="Every POSIX number that was ever given, so that none is given to somebody else.",
        mysql_charset="utf8mb4",
        mysql_engine="InnoDB",
    )
    with op.batch_alter_table("users", schema=None) as batch_op:
        batch_op.add_column(
            sa.Column("uid", sa.BigInteger(), nullable=True, comment="its POSIX number on nodes")
        )
        batch_op.add_column(
            sa.Column(
                "gid",
                sa.BigInteger(),
                nullable=True,
                comment="of its primary group: its own where it is the uid",
            )
        )
        batch_op.create_unique_constraint(batch_op.f("uq_users_uid"), ["uid"])
        batch_op.create_index("ix_users_admin", ["admin"], unique=False)
    with op.batch_alter_table("groups", schema=None) as batch_op:
        batch_op.add_column(
            sa.Column("gid", sa.BigInteger(), nullable=True, comment="its POSIX number on nodes")
        )
        batch_op.create_unique_constraint(batch_op.f("uq_groups_gid"), ["gid"])
    connection = op.get_bind()
    ids = sa.table(
        "posix_ids",
        sa.column("number"),
        sa.column("kind"),
        sa.column("holder"),
        sa.column("given_at"),
    )
    for name, first, kinds in (
        ("users", FIRST_UID, ("uid", "gid")),
        ("groups", FIRST_GID, ("gid",)),
    ):
        table = sa.table(
            name,
            sa.column("id"),
            sa.column("name"),
            sa.column("created_at"),
            *(sa.column(kind) for kind in kinds),
        )
        rows = connection.execute(
            sa.select(table.c.id, table.c.name, table.c.created_at).order_by(table.c.id)
        ).all()
        for number, row in enumerate(rows, first):
            connection.execute(
                sa.update(table).where(table.c.id == row.id).values(dict.fromkeys(kinds, number))
            )
            for kind in kinds:
                connection.execute(
                    sa.insert(ids).values(
                        number=number,
                        kind=kind,
                        holder=f"{name[:-1]}:{row.name}",
                        given_at=row.created_at,
                    )
                )
