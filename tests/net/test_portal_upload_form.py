"""An image is sent by a form, as browsers do without scripts."""

# ruff: noqa: F401, F811 (fixtures)

from __future__ import annotations

import socket
from typing import Any

import pytest
from twisted.internet.defer import ensureDeferred

from cod.store.images import images, uploads
from tests.net.apiserver import NOW, Served
from tests.net.ownersite import browse, engine, furnished_sqlite, there
from tests.net.portalclient import Browser, Shown
from tests.waiting import until

pytestmark = pytest.mark.slow

SENT, MARK = "/images/upload", "----file7"
DISK = bytes(range(256)) * 8192  # 2 MiB, more than is kept of any other body


def token(browser: Browser) -> str:
    (found,) = browser.get("/images/new").tree.xpath(
        f"//form[@action='{SENT}']//input[@name='csrf']/@value"
    )
    return str(found)


def form(fields: dict[str, str], file: bytes) -> bytes:
    parts = [
        f'--{MARK}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'
        for name, value in fields.items()
    ]
    head = (
        f'--{MARK}\r\nContent-Disposition: form-data; name="file";'
        ' filename="d.img"\r\nContent-Type: a/b\r\n\r\n'
    )
    return "".join([*parts, head]).encode() + file + f"\r\n--{MARK}--\r\n".encode()


def kind(browser: Browser) -> dict[str, str]:
    return {
        "Content-Type": f"multipart/form-data; boundary={MARK}",
        "Origin": f"https://{browser.host}",
    }


def send(browser: Browser, file: bytes = DISK, csrf: str | None = None, **fields: str) -> Shown:
    told = {"csrf": token(browser) if csrf is None else csrf, **fields}
    return browser.ask("POST", SENT, form(told, file), kind(browser))


def image(served: Served, name: str) -> Any:
    return served.tx(images.named, [name]).get(name)


def test_a_file_becomes_an_image(there: Served) -> None:
    browser = browse(there, "member")
    answer = send(browser, name="mine", group="physics", sha256="", plain="true")
    assert (answer.status, answer.headers["Location"]) == (303, "/images/physics/mine")
    made = image(there, "physics/mine")
    assert (made.state, made.group_id, made.content, made.stored) == (
        "ingesting",
        2,
        "file",
        len(DISK),
    )
    with open(made.source, "rb") as file:
        assert file.read() == DISK
    assert "physics/mine is there, and is taken in." in browser.get("/images/physics/mine").words


def test_what_is_wrong_is_told_at_the_form(there: Served) -> None:
    browser = browse(there)
    for fields, status, sentence in (
        ({"name": "Not a name"}, 422, "name"),
        ({"name": "execd"}, 409, "execd"),
        ({"name": "mine", "sha256": "0" * 64}, 422, "sha256"),
        ({"name": "mine", "sha256": "short"}, 422, "sha256"),
    ):
        answer = send(browser, group="physics", **fields)
        assert answer.status == status, answer.words
        assert sentence in "".join(answer.tree.xpath("//*[contains(@class, 'wrong')]//text()"))
        assert dict(answer.fields(SENT))["name"] == fields["name"]
    ticked = send(browser, name="Not a name", group="physics", plain="true", raw="true")
    assert {("plain", "true"), ("raw", "true")} <= set(ticked.fields(SENT))
    assert send(browser, b"", name="mine", group="physics").status == 422
    assert send(browser, b"x" * (5 << 20), name="mine", group="physics").status == 413
    assert image(there, "physics/mine") is None


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
    assert (
        browser.ask(
            "POST", SENT, b"", kind(browser) | {"Content-Type": "multipart/form-data"}
        ).status
        == 400
    )


def test_what_came_before_the_connection_broke_stays(there: Served) -> None:
    browser = browse(there)
    body = form({"csrf": token(browser), "name": "mine", "group": "physics"}, DISK)
    head = "".join(
        f"{name}: {value}\r\n"
        for name, value in {
            **kind(browser),
            "Host": browser.host,
            "Content-Length": str(len(body)),
            "Cookie": f"__Host-cod={browser.cookies['__Host-cod']}",
        }.items()
    )
    with socket.create_connection(("127.0.0.1", browser.port)) as connection:
        connection.sendall(f"POST {SENT} HTTP/1.1\r\n{head}\r\n".encode() + body[: len(body) // 2])
        until(lambda: there.tx(uploads.every), "the upload is not there")
    until(lambda: there.tx(uploads.every)[0].offset > 0, "nothing has been kept")
    assert "physics/mine of physics" in browser.get("/images/new").words


# ---------------------------------------------------------------- what is refused when all of it is
# there


def sweep(served: Served, in_reactor: Any) -> None:
    in_reactor(lambda: ensureDeferred(served.server.intake.sweep()))


def test_a_file_that_is_not_the_last_field_leaves_nothing_behind(
    there: Served, in_reactor: Any
) -> None:
    browser = browse(there)
    told = {"csrf": token(browser), "name": "mine", "group": "physics"}
    for body in (
        form(told, DISK)[:-4] + b"!!\r\n",  # all of the file is there, and another end
        form(told, DISK + f"\r\n--{MARK}\r\n\r\nmore".encode()),
    ):
        answer = browser.ask("POST", SENT, body, kind(browser))
        assert (answer.status, there.tx(uploads.every)) == (400, []), answer.words
        sweep(there, in_reactor)
        assert image(there, "physics/mine") is None
    assert list((there.folder / "incoming").glob("*")) == []
    assert send(browser, name="mine", group="physics").status == 303, (
        "it is not in the way of another try"
    )


def test_a_name_that_was_taken_meanwhile_is_not_taken_later(there: Served, in_reactor: Any) -> None:
    browser = browse(there)
    body = form({"csrf": token(browser), "name": "mine", "group": "physics"}, DISK)
    head = "".join(
        f"{name}: {value}\r\n"
        for name, value in {
            **kind(browser),
            "Host": browser.host,
            "Content-Length": str(len(body)),
            "Connection": "close",
            "Cookie": f"__Host-cod={browser.cookies['__Host-cod']}",
        }.items()
    )
    with socket.create_connection(("127.0.0.1", browser.port), 60) as connection:
        connection.sendall(f"POST {SENT} HTTP/1.1\r\n{head}\r\n".encode() + body[: len(body) // 2])
        until(lambda: there.tx(uploads.every), "the upload is not there")
        other = there.tx(
            images.add, name="physics/mine", group_id=2, state="ready", format="raw", created_at=NOW
        )
        connection.sendall(body[len(body) // 2 :])
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    assert answer.startswith(b"HTTP/1.1 409"), answer[:200]
    assert b"there is an image" in answer
    there.tx(images.remove, other.id)
    sweep(there, in_reactor)
    assert (image(there, "physics/mine"), there.tx(uploads.every)) == (None, [])


def test_what_the_server_was_in_the_way_of_stays(
    there: Served, in_reactor: Any, monkeypatch: Any
) -> None:
    """The file is all there: nobody shall send it again because the database was away for a
    moment."""
    browser, own = browse(there), there.server.intake.complete

    async def away(*_args: Any) -> Any:
        raise OSError("no room")

    monkeypatch.setattr(there.server.intake, "complete", away)
    assert send(browser, name="mine", group="physics").status == 507
    monkeypatch.setattr(there.server.intake, "complete", own)
    sweep(there, in_reactor)
    assert image(there, "physics/mine") is not None
