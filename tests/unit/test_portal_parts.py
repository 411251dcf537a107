"""A live part of a page is one block of its template, with its headings: when the block is fetched
again, it takes the place of all that is in the part's element."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from cod import data
from cod.web.portal import nav

TEMPLATES = sorted(Path(data.path("web")).glob("templates/*.html"))
_PART = re.compile(r'<(\w+)[^>]* data-part="(\w+)"[^>]*>\s*')
_BLOCK = re.compile(r"{% (?:block (\w+)|(endblock))[^%]*%}")


def outside(text: str) -> list[str]:
    """Return the live parts in the text of a template that hold more than their block, or less."""
    wrong = []
    for part in _PART.finditer(text):
        element, name = part.groups()
        rest = text[part.end() :]
        if rest.startswith("{{ self." + name + "() }}"):
            continue  # the block, a second time
        if name == nav.COUNTS and rest.startswith(f"</{element}>"):
            continue  # no block: `live.js` shows the numbers elsewhere
        if not rest.startswith(f"{{% block {name} "):
            wrong.append(f"{name}: something comes before the block")
            continue
        deep = 0
        for edge in _BLOCK.finditer(rest):
            deep += 1 if edge[1] else -1
            if not deep:
                if not rest[edge.end() :].lstrip().startswith(f"</{element}>"):
                    wrong.append(f"{name}: something comes after the block")
                break
    return wrong


def test_a_part_is_its_block() -> None:
    assert not {path.name: out for path in TEMPLATES if (out := outside(path.read_text()))}


def test_the_parts_are_found() -> None:
    found = Counter(name for path in TEMPLATES for _, name in _PART.findall(path.read_text()))
    assert found["history"] >= 2
    assert outside('<b data-part="x"><h2>X</h2>{% block x %}{% endblock %}</b>')
    assert outside('<b data-part="x">{% block x %}{% endblock %}<p></p></b>')


@pytest.mark.parametrize("name", ["overview", "vcluster", "group", "request", "requests"])
def test_what_a_notice_tells_is_fetched_with_it(name: str) -> None:
    """Only transitions of nodes change a history."""
    text = Path(data.path("web"), "templates", f"{name}.html").read_text()
    parts = dict(re.findall(r'data-part="(\w+)" data-on="([^"]+)"', text))
    assert parts
    assert [part for part, on in parts.items() if "notice" not in on] in ([], ["history"])
