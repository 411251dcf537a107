"""What the portal's doors hold against: each test here fails when its lock is taken out."""

from __future__ import annotations

import json
import logging
import re
import shutil
import socket
import ssl
from collections.abc import Callable, Iterator
from functools import partial
from http.client import HTTPSConnection
from pathlib import Path
from typing import Any

import pytest
from OpenSSL import SSL
from sqlalchemy.exc import OperationalError
from twisted.internet.defer import fail

from cod.core.nodes import transitions
from cod.model import Role, Site, Who
from cod.pool import Pool
from cod.security import webcert
from cod.states import NodeEvent
from cod.store import tables
from cod.store.engine import Tx
from cod.store.nodes import nodes
from cod.store.people import groups, people
from cod.web.http.sessions import PortalSession
from cod.web.http.tls import WebTls
from cod.web.portal.registry import PAGES
from tests.net.apiserver import ADMIN, NOW, Served, add_node, serving
from tests.net.portalclient import ANN, Browser, Shown, member, signed_in
from tests.net.test_portal_signing import PASSWORD, _bob

pytestmark = pytest.mark.slow

UGLY = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>"
FORM = "/account/profile"


@pytest.fixture
def ann(served: Served) -> Browser:
    """An administrator's browser."""
    return signed_in(served)


def headers_of(browser: Browser, method: str, path: str, **more: str) -> Shown:
    return browser.ask(method, path, b"" if method == "POST" else None, more)


# ---------------------------------------------------------------- TLS


@pytest.fixture
def certificate(tmp_path: Path) -> webcert.WebCertificate:
    return webcert.self_signed(tmp_path / "web", ["portal.example", "127.0.0.1"])


@pytest.fixture
def tls(
    pool: Pool,
    reactor: Any,
    in_reactor: Callable[..., Any],
    site: Site,
    certificate: webcert.WebCertificate,
) -> Iterator[Served]:
    """A server over TLS, with a self-signed certificate."""
    more = {"tls": WebTls(lambda: certificate), "names": ("portal.example",)}
    with serving(pool, reactor, in_reactor, site, **more) as served:
        yield served


def trusting(certificate: webcert.WebCertificate) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(certificate.certificate))


def test_pages_come_over_tls_whose_certificate_is_verified(
    tls: Served, certificate: webcert.WebCertificate
) -> None:
    browser = Browser(tls.server.ports[0], trusting(certificate))
    assert browser.get("/sign-in").status == 200
    stranger = Browser(tls.server.ports[0], ssl.create_default_context())
    with pytest.raises(ssl.SSLCertVerificationError):
        stranger.get("/sign-in")


def test_the_api_is_on_the_same_port(tls: Served, certificate: webcert.WebCertificate) -> None:
    browser = Browser(tls.server.ports[0], trusting(certificate))
    reply = browser.ask("GET", "/api/v1/server", headers={"Authorization": f"Bearer {ADMIN}"})
    assert json.loads(reply.text)["name"] == "test"


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion")  # they are old, that is the point
def test_old_tls_and_no_tls_get_nothing(tls: Served, certificate: webcert.WebCertificate) -> None:
    old = trusting(certificate)
    old.set_ciphers("DEFAULT:@SECLEVEL=0")
    old.minimum_version, old.maximum_version = ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1
    with pytest.raises((ssl.SSLError, ConnectionError)):
        Browser(tls.server.ports[0], old).get("/sign-in")
    with socket.create_connection(("127.0.0.1", tls.server.ports[0]), 60) as plain:
        plain.sendall(b"GET /sign-in HTTP/1.1\r\nHost: portal.example\r\n\r\n")
        said = b""
        try:
            while data := plain.recv(4096):
                said += data
        except ConnectionError:
            pass
    assert b"HTTP" not in said
    refused = WebTls(lambda: certificate)._options.getContext().set_options(0)
    assert refused & SSL.OP_NO_TLSv1
    assert refused & SSL.OP_NO_TLSv1_1


def test_a_new_certificate_is_taken_over_and_a_spoilt_one_is_not(
    tls: Served, certificate: webcert.WebCertificate, tmp_path: Path, in_reactor: Callable[..., Any]
) -> None:
    old = certificate.certificate.read_bytes()
    other = webcert.self_signed(tmp_path / "other", ["127.0.0.1"])
    certificate.key.write_bytes(b"no key")
    in_reactor(tls.server.reread)
    keeps = ssl.create_default_context(cadata=old.decode())
    assert Browser(tls.server.ports[0], keeps).get("/sign-in").status == 200
    shutil.copy(other.certificate, certificate.certificate)
    shutil.copy(other.key, certificate.key)
    in_reactor(tls.server.reread)
    assert Browser(tls.server.ports[0], trusting(other)).get("/sign-in").status == 200
    with pytest.raises(ssl.SSLCertVerificationError):
        Browser(tls.server.ports[0], keeps).get("/sign-in")


def test_a_connection_is_kept(tls: Served, certificate: webcert.WebCertificate) -> None:
    connection = HTTPSConnection(
        "127.0.0.1", tls.server.ports[0], timeout=60, context=trusting(certificate)
    )
    for _ in range(3):
        connection.request("GET", "/sign-in")
        reply = connection.getresponse()
        assert reply.read()
        first = connection.sock
        assert not reply.will_close
    assert connection.sock is first
    connection.close()


# ---------------------------------------------------------------- headers


ANSWERS = [
    ("GET", "/"),
    ("GET", "/sign-in"),
    ("GET", "/nowhere"),
    ("GET", "/vclusters/none"),
    ("POST", "/sign-in"),
    ("PUT", "/"),
    ("HEAD", "/account"),
    ("GET", "/?part=vclusters"),
    ("GET", "/assets/none.css"),
]


def test_every_answer_has_the_headers(ann: Browser) -> None:
    for method, path in ANSWERS:
        secure(headers_of(ann, method, path).headers)


def secure(headers: Any) -> None:
    policy = dict(
        part.strip().partition(" ")[::2] for part in headers["Content-Security-Policy"].split(";")
    )
    assert (
        policy["default-src"]
        == policy["script-src"]
        == policy["style-src"]
        == policy["form-action"]
        == "'self'"
    )
    assert policy["frame-ancestors"] == policy["base-uri"] == policy["object-src"] == "'none'"
    assert "unsafe" not in headers["Content-Security-Policy"]
    assert headers["Strict-Transport-Security"].startswith("max-age=31536000")
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["X-Frame-Options"] == "DENY"
    assert headers["Referrer-Policy"] in ("no-referrer", "same-origin")
    assert headers["Cross-Origin-Opener-Policy"] == "same-origin"
    assert "camera=()" in headers["Permissions-Policy"]
    assert headers["Cache-Control"] == "no-store"
    assert headers["Server"] is None


def test_assets_are_kept_for_ever_under_the_name_of_their_content(ann: Browser) -> None:
    path = ann.get("/").tree.xpath("//link[@rel='stylesheet']/@href")[0]
    assert re.fullmatch(r"/assets/style\.[0-9a-f]{16}\.css", path)
    asset = Browser(ann.port).ask("GET", path)
    assert asset.status == 200
    assert "immutable" in asset.headers["Cache-Control"]
    again = Browser(ann.port).ask("GET", path, headers={"If-None-Match": asset.headers["ETag"]})
    assert (again.status, again.text) == (304, "")


OUTSIDE = [
    "/assets/../templates/base.html",
    "/assets/%2e%2e/templates/base.html",
    "/assets/..%2ftemplates%2fbase.html",
    "/assets/style.css",
    "/assets/",
    "/assets//etc",
    "/assets/%00",
    "/%2e%2e/%2e%2e/etc/passwd",
    "/templates/base.html",
]


def test_no_path_leads_out_of_the_assets(ann: Browser) -> None:
    for path in OUTSIDE:
        reply = ann.ask("GET", path)
        assert reply.status == 404, path
        assert "{%" not in reply.text


# ---------------------------------------------------------------- forms


def test_a_form_needs_the_token_of_its_own_session(served: Served, ann: Browser) -> None:
    eve = Browser(ann.port)
    token = dict(eve.get("/sign-in").fields("/sign-in"))["csrf"]
    own = dict(ann.get("/account").fields(FORM))["csrf"]
    for shown in (
        None,
        "",
        "00" * 64,
        "zz",
        token,
        own[:-2] + ("00" if own[-2:] != "00" else "01"),
        own[:64],
    ):
        fields = {"full_name": "Eve"} | ({} if shown is None else {"csrf": shown})
        assert ann.post(FORM, fields).status == 403, shown
    assert served.tx(people.by_name, "ann").full_name == ""
    assert ann.post(FORM, {"full_name": "Ann", "csrf": own}).status == 200


def test_a_token_looks_different_each_time_and_works_each_time() -> None:
    visit = PortalSession(None, "", "secret")
    shown = {visit.csrf() for _ in range(50)}
    assert len(shown) == 50
    assert all(visit.proves(each) for each in shown)
    assert not any(PortalSession(None, "", "other").proves(each) for each in shown)
    halves = [bytes.fromhex(each)[32:] for each in shown]
    assert len(set(halves)) == 50  # nothing of it stays the same under compression


def test_a_form_comes_from_a_page_of_this_site(ann: Browser) -> None:
    fields = ann.get("/account").filled(FORM, full_name="Eve")
    for origin in (
        "https://evil.example",
        "null",
        "http://127.0.0.1",
        "https://127.0.0.1.evil.example",
    ):
        assert (
            ann.ask("POST", FORM, ann.body(fields), ann.form | {"Origin": origin}).status == 403
        ), origin
    bare = {"Content-Type": ann.form["Content-Type"]}
    assert (
        ann.ask("POST", FORM, ann.body(fields), bare | {"Sec-Fetch-Site": "cross-site"}).status
        == 403
    )
    assert (
        ann.ask("POST", FORM, ann.body(fields), bare | {"Sec-Fetch-Site": "same-site"}).status
        == 403
    )
    assert ann.ask("POST", FORM, ann.body(fields), bare).status == 303


def test_a_script_of_ours_changes_things_only_with_the_token(served: Served, ann: Browser) -> None:
    own = dict(ann.get("/account").fields(FORM))["csrf"]
    body, kind = b'{"name": "eves"}', {"Content-Type": "application/json"}
    assert ann.ask("GET", "/api/v1/groups").status == 200
    assert ann.ask("POST", "/api/v1/groups", body, kind).status == 403
    assert ann.ask("POST", "/api/v1/groups", body, kind | {"X-CSRF-Token": "00" * 64}).status == 403
    evil = {"X-CSRF-Token": own, "Origin": "https://evil.example"}
    assert ann.ask("POST", "/api/v1/groups", body, kind | evil).status == 403
    assert served.tx(groups.by_name, "eves") is None
    assert ann.ask("POST", "/api/v1/groups", body, kind | {"X-CSRF-Token": own}).status == 201


def test_a_form_that_is_sent_twice_does_it_once(served: Served, ann: Browser) -> None:
    fields = ann.get("/account").filled("/account/tokens", name="laptop")
    assert ann.post("/account/tokens", fields).status == 200
    assert "shown once" in ann.post("/account/tokens", fields).words
    assert (
        len(
            served.tx(
                lambda tx: tx.execute(
                    tables.api_tokens.select().where(tables.api_tokens.c.user_id.is_not(None))
                ).all()
            )
        )
        == 1
    )


UNREADABLE = [
    (b"x=" + b"a" * 2**20, "application/x-www-form-urlencoded", 413),
    (b'{"csrf": 1}', "application/json", 415),
    (b"x", "text/plain", 415),
    (b"x", "", 415),
    (b"full_name=%ff%fe", "application/x-www-form-urlencoded", 400),
    (b"full_name=\xff", "application/x-www-form-urlencoded", 400),
    (b"&".join(b"f%d=1" % n for n in range(3000)), "application/x-www-form-urlencoded", 400),
]


def test_forms_that_cannot_be_read(ann: Browser) -> None:
    for body, kind, status in UNREADABLE:
        reply = ann.ask("POST", FORM, body, {"Content-Type": kind})
        assert (reply.status, body[:20]) == (status, body[:20])
        assert reply.tree.findtext(".//h1")


NONSENSE = [
    ("GET", "/sign-out", 404),
    ("POST", "/", 405),
    ("DELETE", "/", 405),
    ("POST", "/nowhere", 404),
    ("GET", "/?part=nothing", 404),
    ("GET", "/sign-in?back=x&unknown=1", 422),
    ("GET", "/sign-in?back=%ff", 400),
    ("GET", "/?" + "&".join(f"a{n}=1" for n in range(99)), 400),
    ("GET", "//", 404),
    ("GET", "/vclusters/%00", 404),
]


def test_questions_that_make_no_sense(ann: Browser) -> None:
    for method, path, status in NONSENSE:
        reply = headers_of(ann, method, path)
        assert (reply.status, path) == (status, path)
        assert "To the overview" in reply.words


# ---------------------------------------------------------------- names of the server


HOSTS = [
    ("127.0.0.1:1", 200),
    ("localhost", 200),
    ("[::1]:8443", 200),
    ("10.77.0.1", 200),
    ("portal.example:8443", 200),
    ("PORTAL.example", 200),
    ("evil.example", 421),
    ("portal.example.evil.example", 421),
    ("", 421),
    ("127.0.0.1.x", 421),
]


def test_pages_are_for_those_who_ask_for_this_server(
    tls: Served, certificate: webcert.WebCertificate
) -> None:
    browser, signed = Browser(tls.server.ports[0], trusting(certificate)), signed_in(tls)
    for host, status in HOSTS:
        browser.cookies = {}
        assert (browser.ask("GET", "/sign-in", headers={"Host": host}).status, host) == (
            status,
            host,
        )
        browser.cookies = signed.cookies
        assert (browser.ask("GET", "/api/v1/groups", headers={"Host": host}).status, host) == (
            status,
            host,
        )


# ---------------------------------------------------------------- what is shown


def _ugly(tx: Tx) -> None:
    """A site in which every text that people can choose is ugly."""
    node = nodes.by_name(tx, "n1")
    transitions.move(
        tx, node, NodeEvent.QUARANTINED, now=NOW, cause=UGLY, actor=f"user:{UGLY}", reason=UGLY
    )
    user = people.add(tx, "eve", NOW, full_name=UGLY, email=UGLY)
    group = groups.ensure(tx, "ugly", NOW)
    people.set_role(tx, group.id, user.id, Role.OWNER)
    tx.execute(
        tables.notices.insert().values(
            at=NOW, kind="test", group_id=group.id, subject=UGLY, about=UGLY
        )
    )
    tx.execute(tables.groups.update().values(email=UGLY))


def _shown_paths() -> list[str]:
    return [page.path for page in PAGES if "{" not in page.path] + [
        "/nodes/n1",
        "/groups/ugly",
        "/notices/1",
        f"/vclusters/{'%3Cscript%3Ealert(1)%3C'}",
    ]


def test_whatever_people_write_is_text(served: Served, ann: Browser) -> None:
    add_node(served, "n1", 1)
    served.tx(_ugly)
    seen = 0
    for path in _shown_paths():
        page = ann.get(path)
        assert page.status in (200, 404), (path, page.words)
        assert "<script>alert" not in page.text, path
        assert "<img src=x" not in page.text, path
        seen += "alert(1)" in page.text
    assert seen >= 4  # it was there to be seen


def test_no_page_has_scripts_styles_or_strangers_in_it(served: Served, ann: Browser) -> None:
    add_node(served, "n1", 1)
    for path in _shown_paths():
        tree = ann.get(path).tree
        assert not tree.xpath(
            "//style | //script[not(@src)] | //*[@style] | //iframe | //object | //embed"
        ), path
        assert not [
            name
            for each in tree.iter()
            if isinstance(each.tag, str)
            for name in each.attrib
            if name.startswith("on")
        ], path
        links = tree.xpath("//@src | //link/@href | //form/@action | //a/@href")
        assert not [
            each for each in links if each.startswith(("http:", "//", "javascript:", "data:"))
        ], path


def test_a_bug_leaks_nothing(served: Served, ann: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_args: Any, **_named: Any) -> Any:
        raise RuntimeError("the secret is 42 in /srv/cod")

    portal = served.server._apis[1].portal
    assert portal is not None
    blocks = portal.templates.get_template("overview.html").blocks
    monkeypatch.setitem(blocks, "vclusters", broken)
    page = ann.get("/", part="vclusters")
    assert page.status == 500
    assert "42" not in page.words.replace("127.0.0.1", "")
    assert "RuntimeError" not in page.text


def test_a_database_that_is_away_is_said_so(
    served: Served, ann: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = served.pool.read

    def away(flow: Any, *args: Any, **named: Any) -> Any:
        return (
            fail(OperationalError("select", {}, Exception("database is locked: /srv/db")))
            if isinstance(flow, partial)
            else real(flow, *args, **named)
        )

    monkeypatch.setattr(served.pool, "read", away)
    page = ann.get("/")
    assert page.status == 503
    assert "try again" in page.words
    assert "/srv/db" not in page.text


@pytest.mark.usefixtures("quick_passwords")
def test_secrets_are_in_no_log_and_no_address(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    served.tx(_bob)
    caplog.set_level(logging.DEBUG)
    browser = Browser(served.server.ports[0])
    browser.get("/sign-in", back="/account").send("/sign-in", name="bob", password="a wrong guess")
    served.clock.now += 10
    browser.get("/sign-in").send("/sign-in", name="bob", password=PASSWORD)
    page = browser.get("/account").send("/account/tokens", name="laptop")
    token = page.tree.findtext(".//pre")
    browser.get("/invitation").send("/invitation", code="a-secret-code")
    secrets = [PASSWORD, "a wrong guess", browser.cookies["__Host-cod"], token, "a-secret-code"]
    said = caplog.text + "".join(path for _, path, _ in browser.seen)
    assert caplog.text
    assert [each for each in secrets if each in said] == []


def test_pages_are_small_and_those_with_a_secret_are_not_compressed(ann: Browser) -> None:
    page = ann.ask("GET", "/account")
    assert page.headers["Content-Encoding"] == "gzip"
    assert int(page.headers["Content-Length"]) < len(page.text) / 2
    style = re.findall(r"/assets/style[^\"]*", page.text)[0]
    for path in ("/account", style):
        for others in ("identity", "gzip;q=0, *"):
            plain = ann.ask("GET", path, headers={"Accept-Encoding": others})
            assert plain.headers["Content-Encoding"] is None
    shown = ann.get("/account").send("/account/tokens", name="laptop")
    assert shown.headers["Content-Encoding"] is None


def test_nobody_sees_a_page_without_signing_in(served: Served) -> None:
    stranger = Browser(served.server.ports[0])
    for page in PAGES:
        path = re.sub(r"\{\w+\}", "x", page.path)
        reply = stranger.ask("GET", path)
        if page.public:
            assert reply.status in (200, 422), path
        else:
            assert (reply.status, reply.headers["Location"].partition("?")[0]) == (
                303,
                "/sign-in",
            ), path
            assert reply.text == ""


def test_what_the_navigation_offers_can_be_seen(served: Served) -> None:
    for who in (ANN, member("bob", g1="viewer"), Who("user:carl", user_id=3)):
        browser = signed_in(served, who)
        paths = browser.get("/").tree.xpath("//nav[@aria-label='Main']//a/@href")
        assert ("/nodes" in paths) == who.admin
        assert {path: status for path in paths if (status := browser.get(path).status) != 200} == {}
