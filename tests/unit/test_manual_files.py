"""The manual as the portal serves it: its files alone, and no other of the computer's."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from cod.web.http.errors import HttpProblem
from cod.web.http.sessions import PortalSession
from cod.web.portal.answers import PageRequest
from cod.web.portal.manual import Manual
from cod.web.portal.page_body import packed


@pytest.fixture
def manual(tmp_path: Path) -> Manual:
    files = {
        "index.html": "start",
        "howto/admin/power/index.html": "power " * 500,
        "start/index.html": "first",
        "howto/owner/twice/index.html": "",
        "reference/twice/index.html": "",
        "_static/furo.css": "body{}",
        "_static/notes.bak": "secret",
    }
    for name, text in files.items():
        path = tmp_path / "manual" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "secret.html").write_text("secret")
    return Manual(tmp_path / "manual")


def asked(path: str, **headers: str) -> PageRequest:
    return PageRequest("GET", path, "", headers.get, b"", PortalSession(None, "", ""))


def test_pages_and_files_are_served(manual: Manual) -> None:
    front, style = manual.answer(asked("/docs/")), manual.answer(asked("/docs/_static/furo.css"))
    assert (front.status, front.body) == (200, b"start")
    assert style.kind.startswith("text/css")
    policy = front.headers["Content-Security-Policy"]
    assert "img-src 'self' data:;" in policy
    assert "unsafe" not in policy
    assert manual.answer(asked("/docs/", **{"if-none-match": front.headers["ETag"]})).status == 304


def test_a_page_is_compressed_once(manual: Manual) -> None:
    page = asked("/docs/howto/admin/power/", **{"accept-encoding": "gzip"})
    answer = packed(manual.answer(page), "gzip")
    assert answer.headers["Content-Encoding"] == "gzip"
    assert gzip.decompress(answer.body) == b"power " * 500


@pytest.mark.parametrize(
    ("path", "leads_to"),
    [
        ("/docs", "/docs/"),
        ("/docs/start", "/docs/start/"),
        ("/docs/howto/admin/power", "/docs/howto/admin/power/"),
        ("/docs/power", "/docs/howto/admin/power/"),
        ("/docs/power/", "/docs/howto/admin/power/"),
    ],
)
def test_a_page_is_found_by_its_name(manual: Manual, path: str, leads_to: str) -> None:
    answer = manual.answer(asked(path))
    assert (answer.status, answer.headers["Location"]) == (303, leads_to)


@pytest.mark.parametrize(
    "path",
    [
        "/docs/../secret.html",
        "/docs/start/../../../secret.html",
        "/docs//etc/passwd",
        "/docs/_static/notes.bak",
        "/docs/_static",
        "/docs/twice",
        "/docs/admin/power",
        "/docs/\0",
    ],
)
def test_nothing_else_is(manual: Manual, path: str) -> None:
    with pytest.raises(HttpProblem, match="no such page"):
        manual.answer(asked(path))


@pytest.mark.parametrize("path", ["/docs/", "/docs/power", "/docs/_static/furo.css"])
def test_a_server_without_it_says_so(path: str) -> None:
    with pytest.raises(HttpProblem, match="make manual") as raised:
        Manual(None).answer(asked(path))
    assert raised.value.status == 404
