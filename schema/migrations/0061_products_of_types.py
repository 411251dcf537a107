"""Types of a product are found by an index, not in their texts."""

import hashlib
from xml.etree import ElementTree

import sqlalchemy as sa
from alembic import op

revision = "0061"
down_revision = "0060"

BATCH = 500  # texts in memory


def upgrade() -> None:
    op.add_column(
        "node_types",
        sa.Column(
            "product",
            sa.String(length=64),
            nullable=True,
            comment="BLAKE2b-256 of its element with vendor and product, hex; null: it names none",
        ),
    )
    op.create_index(op.f("ix_node_types_product"), "node_types", ["product"])
    _fill(op.get_bind())


def _fill(tx: sa.Connection) -> None:
    kinds = sa.table("node_types", *map(sa.column, ("id", "attributes", "product")))
    last = 0
    query = sa.select(kinds.c.id, kinds.c.attributes).order_by(kinds.c.id).limit(BATCH)
    while rows := tx.execute(query.where(kinds.c.id > last)).all():
        for kind, attributes in rows:
            system = ElementTree.fromstring(attributes).find("system")
            if system is not None and system.get("product"):
                text = ElementTree.tostring(system, encoding="unicode")
                digest = hashlib.blake2b(text.encode(), digest_size=32).hexdigest()
                tx.execute(sa.update(kinds).where(kinds.c.id == kind).values(product=digest))
        last = rows[-1][0]
