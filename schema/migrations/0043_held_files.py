"""Which host has which files of images, and the key by which other hosts fetch them."""

import sqlalchemy as sa
from alembic import op

revision = "0043"
down_revision = "0042"


def upgrade() -> None:
    op.add_column(
        "server_parts",
        sa.Column(
            "key",
            sa.String(length=64),
            server_default="",
            nullable=False,
            comment=(
                "of the tokens by which other hosts fetch images here; of images alone, else ''"
            ),
        ),
    )
    op.create_table(
        "held_files",
        sa.Column(
            "server",
            sa.String(length=64),
            nullable=False,
            comment="the host, as in server_parts",
        ),
        sa.Column(
            "name",
            sa.String(length=64),
            nullable=False,
            comment="digest of an image, or name of an upload",
        ),
        sa.PrimaryKeyConstraint("server", "name", name=op.f("pk_held_files")),
        comment="Which host has which files of images; empty where the site has one server.",
        mysql_charset="utf8mb4",
        mysql_engine="InnoDB",
    )
