"""docs/site-documents names each kind of documents with all its fields; the command line and
the example do, too."""

from __future__ import annotations

import re
from pathlib import Path

from cod.cli.documents import _lines, get
from cod.cli.site_files import read
from cod.web.api.resources.documents.kinds import KINDS
from cod.web.api.resources.documents.put import PUTS
from tests.manual import page

ROOT = Path(__file__).parents[2]
PAGE = page("site-documents").read_text()


def test_the_page_has_each_kind_with_its_fields() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \|[^|]*\| (.*) \|$", PAGE, re.MULTILINE))
    assert rows.keys() - {"kind"} == KINDS.keys()
    for name, kind in KINDS.items():
        assert set(kind.known) <= set(re.findall(r"`(\w+)`", rows[name])), name


def test_the_command_names_each_kind() -> None:
    text = " ".join((get.help or "").split())
    assert f"KIND is {', '.join(list(KINDS)[:-1])} or {list(KINDS)[-1]}, several" in text


def test_the_example_has_most_kinds() -> None:
    found = {each.values["kind"] for each in read([str(ROOT / "docs/examples/site.d")])}
    assert found == KINDS.keys() - {"port", "vcm"}


def test_a_difference_is_told_by_lines() -> None:
    assert list(_lines("priority", 1, 2)) == ["-priority: 1", "+priority: 2"]
    assert list(_lines("max_lease", "7 d", None)) == ["-max_lease: 7 d", "+max_lease: null"]
    assert list(_lines("priority", None, 2)) == ["+priority: 2"]
    assert list(_lines("document", "a\n-- b\nc\n", "a\nc\n")) == [
        " document: |",
        "   a",
        "-  -- b",
        "   c",
    ]
    long = [f"n{number}" for number in range(9)]
    assert list(_lines("nodes", long, long[:-1])) == ["@@ -8,3 +8,2 @@", " - n6", " - n7", "-- n8"]


def test_the_page_has_the_path_by_which_each_kind_is_put() -> None:
    rows = PAGE.partition("| Kind | Path of `PUT` |")[2].partition("\n\n")[0]
    named = {
        re.sub(r"\b[A-Z]{2,}\b", "*", path).replace("/*/*", "/*")
        for path in re.findall(r"`(/\S+?)`", rows)
    }
    put = {re.sub(r"\{\w+\}", "*", one.path) for one in PUTS}
    assert {name for name in KINDS if f"`{name}`" in rows} == KINDS.keys()
    assert named == put | {"/groups/*/members/*", "/nodes/*/port"}
