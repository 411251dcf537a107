"""An image is sent by a form, as browsers do without scripts."""
# ruff: noqa: F401, F811 (fixtures)

from __future__ import annotations

import socket
from typing import Any

from cod.store import images, uploads
from tests.net.apiserver import Served
from tests.net.ownersite import browse, engine, furnished_sqlite, there
from tests.net.portalclient import Browser, Shown
from tests.waiting import until

SENT, MARK = "/images/upload", "----file7"
DISK = bytes(range(256)) * 8192  # 2 MiB, more than is kept of any other body


def token(browser: Browser) -> str:
    (found,) = browser.get("/images/new").tree.xpath(f"//form[@action='{SENT}']//input[@name='csrf']/@value")
    return str(found)


def form(fields: dict[str, str], file: bytes) -> bytes:
    parts = [f'--{MARK}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'
             for name, value in fields.items()]
    head = f'--{MARK}\r\nContent-Disposition: form-data; name="file"; filename="d.img"\r\nContent-Type: a/b\r\n\r\n'
    return "".join([*parts, head]).encode() + file + f"\r\n--{MARK}--\r\n".encode()


def kind(browser: Browser) -> dict[str, str]:
    return {"Content-Type": f"multipart/form-data; boundary={MARK}", "Origin": f"https://{browser.host}"}


def send(browser: Browser, file: bytes = DISK, csrf: str | None = None, **fields: str) -> Shown:
    told = {"csrf": token(browser) if csrf is None else csrf, **fields}
    return browser.ask("POST", SENT, form(told, file), kind(browser))


def image(served: Served, name: str) -> Any:
    return served.tx(images.named, [name]).get(name)


def test_a_file_becomes_an_image(there: Served) -> None:
    browser = browse(there, "member")
    answer = send(browser, name="mine", group="physics", sha256="", plain="true")
    assert (answer.status, answer.headers["Location"]) == (303, "/images/mine")
    made = image(there, "mine")
    assert (made.state, made.group_id, made.content, made.stored) == ("ingesting", 2, "file", len(DISK))
    with open(made.source, "rb") as file:
        assert file.read() == DISK
    assert "mine is there, and is taken in." in browser.get("/images/mine").words


def test_what_is_wrong_is_told_at_the_form(there: Served) -> None:
    browser = browse(there)
    for fields, status, sentence in (
            ({"name": "Not a name"}, 422, "name"),
            ({"name": "execd"}, 409, "execd"),
            ({"name": "mine", "sha256": "0" * 64}, 422, "sha256"),
            ({"name": "mine", "sha256": "short"}, 422, "pattern")):
        answer = send(browser, group="physics", **fields)
        assert answer.status == status, answer.words
        assert sentence in "".join(answer.tree.xpath("//*[contains(@class, 'wrong')]//text()"))
        assert dict(answer.fields(SENT))["name"] == fields["name"]
    assert send(browser, b"", name="mine", group="physics").status == 422
    assert send(browser, b"x" * (5 << 20), name="mine", group="physics").status == 413
    assert image(there, "mine") is None


def test_a_form_of_another_site_makes_nothing(there: Served) -> None:
    browser = browse(there)
    assert send(browser, csrf="0" * 128, name="mine", group="physics").status == 403
    theirs = kind(browser) | {"Origin": "https://elsewhere.example"}
    body = form({"csrf": token(browser), "name": "mine", "group": "physics"}, DISK)
    assert browser.ask("POST", SENT, body, theirs).status == 403
    stranger = Browser(browser.port)
    assert stranger.ask("POST", SENT, body, kind(stranger)).status in (303, 403)
    assert there.tx(uploads.every) == []


def test_rights_are_those_of_the_route(there: Served) -> None:
    viewer = browse(there, "viewer")
    (csrf,) = {value for name, value in viewer.get("/images").fields("/sign-out") if name == "csrf"}
    assert send(viewer, csrf=csrf, name="mine", group="physics").status == 403
    owner = browse(there)
    assert send(owner, name="mine", group="").status == 403
    assert send(owner, name="mine", group="web").status in (403, 404)
    assert there.tx(uploads.every) == []


def test_a_body_that_is_no_such_form_is_refused(there: Served) -> None:
    browser = browse(there)
    for body in (b"nothing", form({"name": "x"}, DISK)[:-9] + b"something", b"x" * 100_000):
        assert browser.ask("POST", SENT, body, kind(browser)).status in (400, 403)
    assert browser.ask("POST", SENT, b"", kind(browser) | {"Content-Type": "multipart/form-data"}).status == 400


def test_what_came_before_the_connection_broke_stays(there: Served) -> None:
    browser = browse(there)
    body = form({"csrf": token(browser), "name": "mine", "group": "physics"}, DISK)
    head = "".join(f"{name}: {value}\r\n" for name, value in {
        **kind(browser), "Host": browser.host, "Content-Length": str(len(body)),
        "Cookie": f"__Host-cod={browser.cookies['__Host-cod']}"}.items())
    with socket.create_connection(("127.0.0.1", browser.port)) as connection:
        connection.sendall(f"POST {SENT} HTTP/1.1\r\n{head}\r\n".encode() + body[:len(body) // 2])
        until(lambda: there.tx(uploads.every), "the upload is not there", 20)
    until(lambda: there.tx(uploads.every)[0].offset > 0, "nothing has been kept", 20)
    assert "mine of physics" in browser.get("/images/new").words
