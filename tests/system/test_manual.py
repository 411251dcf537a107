"""The manual as `make manual` builds it and a browser shows it, under the portal's policy."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page

from cod.web.http.sessions import PortalSession
from cod.web.portal.answers import SECURITY, PageRequest
from cod.web.portal.manual import Manual
from tests.manual import DOCS, PAGES
from tests.system.browser import Complaints, chromium, context, faults, picture, too_wide

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.in_turn(7)]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The manual. Any warning, a link that leads nowhere for one, ends the build."""
    out = tmp_path_factory.mktemp("manual")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "sphinx", "-q", "-E", "-W", "--keep-going", "-b", "dirhtml"),
            *("-d", out / "trees", DOCS, out / "html"),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return out / "html"


@pytest.fixture
def address(built: Path) -> Iterator[str]:
    """Where the portal's own answers are served."""
    manual = Manual(built)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked = PageRequest(
                "GET", self.path.partition("?")[0], "", self._sent, b"", PortalSession(None, "", "")
            )
            answer = manual.answer(asked)
            self.send_response(answer.status)
            for name, value in (SECURITY | answer.headers | {"Content-Type": answer.kind}).items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(answer.body)))
            self.end_headers()
            self.wfile.write(answer.body)

        def _sent(self, name: str) -> str | None:
            return self.headers.get(name)

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/docs"
        server.shutdown()


def test_every_page_is_built_and_runs_no_script_that_stands_in_it(built: Path) -> None:
    for page in PAGES:
        assert (built / page.relative_to(DOCS).with_suffix("") / "index.html").is_file()
    for html in built.rglob("*.html"):
        assert not re.search(r"<script>|<style|\sstyle=|\son[a-z]+=", html.read_text()), html


def test_what_the_program_knows_is_filled_in(built: Path) -> None:
    for page, said in {
        "commands": "cod vcluster create",
        "routes": "/api/v1/vclusters/{name}",
        "site-file": "keep_history",
        "states": "quarantined",
        "metrics": "cod_dns_answers_total",
    }.items():
        text = (built / "reference" / page / "index.html").read_text()
        assert said in text
        assert "generated:" not in text


@pytest.mark.parametrize("size", ["desktop", "narrow"])
def test_a_browser_shows_it_and_finds_a_word(address: str, size: str) -> None:
    with chromium() as browser:
        page: Page = context(browser, size, color_scheme="dark").new_page()
        complaints = Complaints(page)
        for name in ("", "first-cluster", "power", "site-file"):
            page.goto(f"{address}/{name}")
            assert not too_wide(page)
            picture(page, f"manual-{name or 'index'}", size, whole=False)
        assert page.url == f"{address}/reference/site-file/"
        assert faults(page) == []
        page.goto(f"{address}/search/?q=preemptible")
        found = page.locator("#search-results li a", has_text="Preemptible clusters").first
        found.wait_for()
        assert complaints.found == []
