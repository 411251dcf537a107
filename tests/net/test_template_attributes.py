"""Templates read no attribute that is not there, in branches that no page takes either."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from jinja2 import DictLoader, Environment
from sqlalchemy import insert

from cod.store import tables as t
from cod.web.portal.registry import PAGES
from tests.net.template_types import faults, recorded
from tests.net.test_rights_pages import Walk, walk

__all__ = ["walk"]


@pytest.mark.slow
def test_each_attribute_of_a_template_is_there(walk: Walk, monkeypatch: pytest.MonkeyPatch) -> None:
    portal = walk.served.server._apis[1].portal
    rendered: dict[str, list[Mapping[str, Any]]] = {}
    monkeypatch.setattr(portal, "_rendered", recorded(portal._rendered, rendered))
    walk.served.tx(lambda tx: tx.execute(insert(t.node_blocks).values(name="rack")))
    for page in PAGES:
        for who in ("admin", "owner"):
            walk.look(page, walk.world.askers[who], walk.world.ours | {"block": "rack"})
    assert {page.template for page in PAGES} <= rendered.keys()
    found, looked_at = faults(
        portal.templates, rendered, {page.template: page.load for page in PAGES}
    )
    assert not found, "\n".join(found)
    assert looked_at > 2000, "most attributes are of values whose types are known"


@dataclass
class Disk:
    """A record of a page."""

    size: int
    parts: tuple[Disk, ...] = ()


def found_spares() -> list[Disk]:
    """There is none now."""
    return []


def load() -> dict[str, Any]:
    """What a page's function is like."""
    disks = found_spares()
    return {"spares": disks}


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("{% for one in found %}{{ one.size }}{% endfor %}", ""),
        ("{% for one in found %}{{ one.sise }}{% endfor %}", "sise"),
        ("{% if no %}{{ found[0].parts[0].sise }}{% endif %}", "sise"),
        ("{% set d = found|first %}{{ d.speed }}", "speed"),
        ("{% macro row(d) %}{{ d.sise }}{% endmacro %}{{ row(found[0]) }}", "sise"),
        ("{% for one in spares %}{{ one.size }}{% endfor %}", ""),
        ("{% for one in spares %}{{ one.sise }}{% endfor %}", "sise"),
        ("{{ found|map(attribute='sise')|join }}", "sise"),
        ("{{ found|selectattr('sise')|list }}", "sise"),
        ("{% for n, d in named.items() %}{{ d.parts|length }}{{ d.none }}{% endfor %}", "none"),
    ],
)
def test_a_planted_attribute_is_refused(text: str, wrong: str) -> None:
    values = {"found": [Disk(1)], "no": False, "named": {"a": Disk(2)}, "spares": []}
    found, _ = faults(
        Environment(loader=DictLoader({"x.html": text})), {"x.html": [values]}, {"x.html": load}
    )
    assert [each.rpartition(" ")[2] for each in found] == ([repr(wrong)] if wrong else [])
