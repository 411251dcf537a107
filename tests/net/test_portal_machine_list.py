"""Nodes as a table: out of the portal, and into it, with what would change first."""

from __future__ import annotations

from typing import Any

import pytest

from cod.store.nodes import nodes
from tests.net.apiserver import NOW, Served, add_node, run
from tests.net.portalclient import Browser, Shown, signed_in

pytestmark = pytest.mark.slow
PAGE, LOOK = "/machine-list", "/machine-list/check"
TABLE = """\
name,serial,block,position,tags,colour
n1,,r12,7,gpu loan,red
n2,,r12,top shelf,,
n3,,,,,
n9,,r12,,,
,SN1,,,,
n3,{long},,,,
"""


@pytest.fixture
def browser(served: Served) -> Browser:
    """An administrator's browser, and three nodes."""
    for number in range(1, 4):
        add_node(served, f"n{number}", number, reported_at=NOW, state="inactive")
    return signed_in(served)


def rows(page: Shown, label: str) -> list[list[str]]:
    """The cells of a table of the page."""
    found: list[Any] = page.tree.xpath(f"//table[@aria-label='{label}']//tbody/tr")
    found = found or page.tree.xpath(f"//*[@aria-label='{label}']//tbody/tr")
    return [[" ".join(cell.text_content().split()) for cell in row] for row in found]


def test_a_table_changes_known_nodes_after_a_look(served: Served, browser: Browser) -> None:
    page = browser.get(PAGE).send(LOOK, list=TABLE.format(long="S" * 65))
    assert rows(page, "Changes") == [
        ["n1", "line 2", "changed", "block r12, position 7, tags gpu loan"]
    ]
    assert [row[:2] for row in rows(page, "Not taken")] == [
        ["line 3", "n2"],
        ["line 5", "n9"],
        ["line 1", "colour"],
        ["line 6", "SN1"],
        ["line 7", "serial"],
    ]
    assert "nothing tells which machine it is" in page.words
    assert served.tx(nodes.by_name, "n1").tags == "", "a look changes nothing"
    done = page.send(PAGE)
    assert done.path == "/nodes"
    assert "Machines of the table: 1 changed, 1 unchanged, 2 refused: n2 (" in done.words
    assert served.tx(nodes.by_name, "n1").tags == " gpu loan "


def test_what_was_shown_is_done_or_nothing(served: Served, browser: Browser) -> None:
    table = "name,block,tags\nn1,r12,gpu\nn3,r12,\n"
    page = browser.get(PAGE).send(LOOK, list=table)
    run(served, "node", "set", "n1", "--tags", "gpu")
    told = page.send(PAGE)
    assert told.status == 409
    assert "the machines have changed since you looked" in told.words
    assert served.tx(nodes.by_name, "n3").block_id is None, "not even what is as it was shown"
    again = told.send(LOOK)  # the table is still there
    assert rows(again, "Changes")[0] == ["n1", "line 2", "changed", "block r12"]
    assert "Machines of the table: 2 changed" in again.send(PAGE).words


def test_a_file_is_sent_without_scripts(served: Served, browser: Browser) -> None:
    page = browser.get(PAGE)
    fields = dict(page.fields(LOOK)) | {"list": "name\nother"}
    parts = [
        f'--x\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'
        for name, value in fields.items()
        if name != "file"
    ]
    head = '--x\r\nContent-Disposition: form-data; name="file"; filename="a.csv"\r\n\r\n'
    kind = browser.form | {"Content-Type": "multipart/form-data; boundary=x"}
    for text, status in ((b"\xef\xbb\xbfname;block\nn2;r7\n", 200), (b"\xff\xfe", 400)):
        body = "".join([*parts, head]).encode() + text + b"\r\n--x--\r\n"
        shown = browser.ask("POST", LOOK, body, kind)
        assert shown.status == status
    shown = browser.ask(
        "POST", LOOK, "".join([*parts, head]).encode() + b"name;block\nn2;r7\n\r\n--x--\r\n", kind
    )
    assert rows(shown, "Changes") == [["n2", "line 2", "changed", "block r7"]]
    assert "Machines of the table: 1 changed" in shown.send(PAGE).words


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "the table names no machine"),
        ("colour\nred\n", "the table names no machine: line 1, colour: no column of this name"),
        ('name\n"' + "x" * 140_000, "is no table"),
        ("name\n" + "".join(f"m{n}\n" for n in range(501)), "more than 500 machines"),
    ],
)
def test_what_is_no_table_is_said_at_the_form(browser: Browser, text: str, sentence: str) -> None:
    wrong = browser.get(PAGE).send(LOOK, list=text)
    assert wrong.status == 422
    assert sentence in wrong.words
    assert dict(wrong.fields(LOOK))["list"].strip() == text.strip()


def test_what_the_filter_shows_is_downloaded(served: Served, browser: Browser) -> None:
    run(served, "node", "set", "n[1-2]", "--block", "r12", "--yes")
    page = browser.get("/nodes", where="rack = r12", state="inactive")
    [link] = page.tree.xpath("//a[@download='nodes.csv']/@href")
    file = browser.get(str(link))
    assert file.headers["Content-Type"].startswith("text/csv")
    assert [line.split(",")[0] for line in file.text.splitlines()] == ["name", "n1", "n2"]
    assert "unchanged" not in browser.get(PAGE).send(LOOK, list=file.text).words
    assert "0 machines of 2" in browser.get(PAGE).send(LOOK, list=file.text).words


def test_no_cell_is_computed_by_a_spreadsheet(served: Served, browser: Browser) -> None:
    """A serial number is the word of a machine that nobody has approved."""
    add_node(served, "n4", 4, reported_at=NOW, state="registering", serial="=HYPERLINK(0)")
    table = run(served, "node", "export", "n4").stdout
    assert "'=HYPERLINK(0)" in table
    assert "0 machines of 1" in browser.get(PAGE).send(LOOK, list=table).words
