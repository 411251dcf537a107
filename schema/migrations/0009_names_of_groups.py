"""Names of images and templates begin with their group's name: physics/debian."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"

_TABLES = {
    "images": {"name": "GROUP/NAME; the site's: NAME"},
    "uploads": {"name": "of the image to be, in full; the claim on it"},
    "config_templates": {"name": "GROUP/NAME; the site's: NAME"},
    "captures": {
        "image": "full name of the image to be",
        "template": "full name of the template to be; '': none",
    },
}


def upgrade() -> None:
    groups = sa.table("groups", sa.column("id"), sa.column("name"))
    for name, columns in _TABLES.items():
        with op.batch_alter_table(name, schema=None) as batch_op:
            for column, comment in columns.items():
                batch_op.alter_column(
                    column,
                    existing_type=sa.String(length=63),
                    type_=sa.String(length=127),
                    existing_nullable=False,
                    comment=comment,
                )
        table = sa.table(name, sa.column("group_id"), *(sa.column(column) for column in columns))
        owner = sa.select(groups.c.name).where(groups.c.id == table.c.group_id).scalar_subquery()
        for column in columns:
            # No name has a slash before, so no two rows come to have one name. Names that have one
            # are of an upgrade that was broken off: MariaDB commits at each ALTER TABLE.
            own = table.c[column]
            bare = sa.and_(own != "", own.not_like("%/%"))
            op.execute(
                sa.update(table)
                .where(table.c.group_id.is_not(None), bare)
                .values({column: owner.concat("/").concat(own)})
            )
