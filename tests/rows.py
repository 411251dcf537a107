"""Templates and vclusters of tests, as rows."""

from __future__ import annotations

from cod.model import Subnet, Template, Vcluster
from cod.store.engine import Tx
from cod.store.images import templates
from cod.store.scheduler import vclusters


def add_template(
    tx: Tx,
    name: str,
    document: str = "<template/>",
    *,
    now: float,
    revision: int = 1,
    group_id: int | None = None,
) -> Template:
    """Add a template whose digest nobody looks at."""
    return templates.add(
        tx,
        name=name,
        revision=revision,
        group_id=group_id,
        document=document,
        digest="0" * 64,
        created_at=now,
    )


def add_vcluster(
    tx: Tx,
    name: str,
    group_id: int,
    template_id: int,
    subnet: Subnet,
    *,
    now: float,
    size: int = 1,
    lease_time: float = 60.0,
    attributes: str = "",
) -> Vcluster:
    """Add a vcluster, whose name nobody has."""
    made = vclusters.add(
        tx,
        name=name,
        group_id=group_id,
        template_id=template_id,
        size=size,
        attributes=attributes,
        lease_time=lease_time,
        subnet=subnet,
        now=now,
    )
    assert made is not None
    return made
