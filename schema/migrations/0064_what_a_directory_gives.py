"""A directory gives roles, keys, shells, home directories and primary groups."""

import sqlalchemy as sa
from alembic import op

revision = "0064"
down_revision = "0063"


def upgrade() -> None:
    for name, length, comment in (
        ("shell", 100, "login shell on nodes, from its directory; '': the site's"),
        ("home", 255, "home directory on nodes, from its directory; '': the site's"),
        ("primary_group", 63, "name of the group `gid`, from its directory; '': not known"),
    ):
        op.add_column(
            "users",
            sa.Column(name, sa.String(length), server_default="", nullable=False, comment=comment),
        )
    for table, name, comment in (
        ("users", "admin_given", "`admin` comes from a group of its directory"),
        ("group_permissions", "given", "the role comes from a group of the user's directory"),
        ("ssh_keys", "given", "it comes from the user's directory"),
    ):
        op.add_column(
            table,
            sa.Column(
                name, sa.Boolean(), server_default=sa.false(), nullable=False, comment=comment
            ),
        )
