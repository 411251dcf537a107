"""Uploads over real sockets: pieces, offsets, who comes second, what is refused, what becomes an
image."""

from __future__ import annotations

import base64
import hashlib
import http.client
import json
import os
import shutil
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import select
from twisted.internet.defer import ensureDeferred

from cod.client import ApiError, Client
from cod.client.uploads import Sender
from cod.flows.images import images, uploads
from cod.flows.people import groups
from cod.model import Effect, ImageRules, Refused, Site
from cod.pool import Pool
from cod.security import webcert
from cod.store import tables
from cod.web.http.tls import WebTls
from cod.web.http.uploads import intake, piece
from cod.wire import tus
from tests.net.apiserver import ADMIN, NOW, READER, Served, serving
from tests.net.portalclient import signed_in
from tests.waiting import until

pytestmark = pytest.mark.slow  # half a minute of processor time and more, together with its like

DATA = hashlib.shake_256(b"image").digest(3_000_001)
SHA = hashlib.sha256(DATA).hexdigest()


@dataclass
class Answer:
    """What came back."""

    status: int
    headers: Any
    body: Any

    @property
    def offset(self) -> int:
        return int(self.headers["Upload-Offset"])


def asked(
    served: Served,
    method: str,
    path: str,
    body: bytes | None = None,
    token: str = ADMIN,
    **headers: object,
) -> Answer:
    """One request by TCP; a header that is None is left out."""
    connection = http.client.HTTPConnection("127.0.0.1", served.server.ports[0], timeout=60)
    named = {"Authorization": f"Bearer {token}", "Tus-Resumable": "1.0.0"}
    named |= {
        name.replace("_", "-"): str(value) for name, value in headers.items() if value is not None
    }
    connection.request(
        method, path if path.startswith("/") else f"/api/v1/uploads/{path}", body, named
    )
    reply = connection.getresponse()
    text = reply.read()
    connection.close()
    return Answer(reply.status, reply.headers, json.loads(text) if text else None)


def create(
    served: Served, name: str = "debian", size: int = len(DATA), token: str = ADMIN, **metadata: str
) -> Answer:
    return asked(
        served,
        "POST",
        "/api/v1/uploads",
        token=token,
        Upload_Length=size,
        Upload_Metadata=tus.encode_metadata({"name": name} | metadata),
    )


def begun(served: Served, name: str = "debian", size: int = len(DATA), **metadata: str) -> str:
    made = create(served, name, size, **metadata)
    assert made.status == 201, made.body
    return str(made.headers["Location"]).rpartition("/")[2]


def send(served: Served, upload: str, data: bytes, offset: int, **headers: object) -> Answer:
    headers.setdefault("Content_Type", tus.PIECE_TYPE)
    return asked(served, "PATCH", upload, data, Upload_Offset=offset, **headers)


def where(served: Served, upload: str) -> int:
    answer = asked(served, "HEAD", upload)
    assert answer.status == 200
    return answer.offset


def files(served: Served) -> list[Path]:
    return sorted(served.folder.glob("incoming/*"))


def broken_off(
    served: Served, upload: str, data: bytes, offset: int, length: int = len(DATA)
) -> None:
    """Send the beginning of a piece, and go away; returns when the server has noticed."""
    with sending(served, upload, offset, length) as peer:
        peer.sendall(data)
        received(served)
    until(lambda: not served.server.intake._pieces, "the broken connection is noticed")


def received(served: Served) -> None:
    """Wait until a piece is being received."""
    until(lambda: served.server.intake._pieces, "a piece is being received")


def sending(served: Served, upload: str, offset: int, length: int = len(DATA)) -> socket.socket:
    """A connection on which a piece of `length` bytes has been announced."""
    peer = socket.create_connection(("127.0.0.1", served.server.ports[0]), 60)
    peer.sendall(
        f"PATCH /api/v1/uploads/{upload} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {ADMIN}\r\n"
        f"Tus-Resumable: 1.0.0\r\nContent-Type: {tus.PIECE_TYPE}\r\nUpload-Offset: {offset}\r\n"
        f"Content-Length: {length - offset}\r\n\r\n".encode()
    )
    return peer


# ---------------------------------------------------------------- the way it goes


def test_a_file_in_pieces_becomes_an_image(served: Served, in_reactor: Any) -> None:
    upload = begun(served, sha256=SHA)
    assert where(served, upload) == 0
    at = 0
    for count in (1, 99_999, 0, 1_500_000):
        answer = send(served, upload, DATA[at : at + count], at)
        at += count
        assert (answer.status, answer.offset) == (204, at)
        assert "GMT" in answer.headers["Upload-Expires"]
    assert where(served, upload) == at
    assert served.local.get("/images")["items"] == []
    shown = served.local.get(f"/uploads/{upload}")
    assert (shown["offset"], shown["size"], shown["name"], shown["group"]) == (
        at,
        len(DATA),
        "debian",
        "site",
    )
    last = send(served, upload, DATA[at:], at)
    assert (last.status, last.offset) == (204, len(DATA))
    assert (
        last.headers["Repr-Digest"] == f"sha-256=:{base64.b64encode(bytes.fromhex(SHA)).decode()}:"
    )
    image = served.local.get("/images/debian")
    assert (image["state"], image["sha256"], image["format"], image["size"]) == (
        "ingesting",
        SHA,
        "raw",
        len(DATA),
    )
    (file,) = files(served)
    assert file.read_bytes() == DATA
    assert served.tx(images.show, name="debian").source == str(file)
    assert Effect("wake", "images") in served.effects
    assert asked(served, "HEAD", upload).status == 404
    assert served.local.get("/uploads")["items"] == []
    in_reactor(lambda: ensureDeferred(served.server.intake.sweep()))
    assert served.server.intake._sums == {}


def test_a_file_may_come_along_with_its_creation(served: Served) -> None:
    made = asked(
        served,
        "POST",
        "/api/v1/uploads",
        DATA,
        Upload_Length=len(DATA),
        Content_Type=tus.PIECE_TYPE,
        Upload_Metadata=tus.encode_metadata({"name": "debian", "plain": "true"}),
    )
    assert (made.status, made.offset) == (201, len(DATA))
    image = served.local.get("/images/debian")
    assert (image["sha256"], image["content"], image["format"]) == (SHA, "file", "plain")


def test_the_beginning_may_come_along_with_the_creation(served: Served) -> None:
    made = asked(
        served,
        "POST",
        "/api/v1/uploads",
        DATA[:70_000],
        Upload_Length=len(DATA),
        Content_Type=tus.PIECE_TYPE,
        Upload_Metadata=tus.encode_metadata({"name": "debian"}),
    )
    upload = str(made.headers["Location"]).rpartition("/")[2]
    assert (made.status, made.offset, made.body["id"]) == (201, 70_000, upload)
    assert send(served, upload, DATA[70_000:], 70_000).status == 204
    assert served.local.get("/images/debian")["sha256"] == SHA


def test_a_qcow2_file_says_how_large_its_disk_is(served: Served) -> None:
    head = b"QFI\xfb" + struct.pack(">IQIIQI", 3, 0, 0, 16, 5 << 30, 0)
    upload = begun(served, size=100_000)
    assert send(served, upload, head.ljust(100_000, b"\0"), 0).status == 204
    image = served.local.get("/images/debian")
    assert (image["format"], image["size"], image["stored"]) == ("qcow2", 5 << 30, 100_000)


def test_the_audit_has_its_beginning_and_its_end(served: Served) -> None:
    upload = begun(served)
    send(served, upload, DATA[:10], 0)
    send(served, upload, DATA[10:], 10)
    rows = served.tx(
        lambda tx: tx.execute(
            select(tables.audit.c.actor, tables.audit.c.action, tables.audit.c.thing).order_by(
                tables.audit.c.id
            )
        ).all()
    )
    assert [tuple(row) for row in rows if "upload" in row[1]] == [
        ("token:ci", "upload create", "debian"),
        ("token:ci", "image upload", "debian"),
    ]


def test_creation_as_the_api_has_it(served: Served) -> None:
    served.tx(groups.create, "physics", now=NOW)
    made = served.local.post(
        "/uploads", {"name": "debian", "size": 5, "group": "physics", "sha256": "ab" * 32}
    )
    assert (made["offset"], made["group"], made["expires_at"]) == (0, "physics", NOW + 3 * 86400)
    assert [one["id"] for one in served.local.get("/uploads")["items"]] == [made["id"]]
    assert served.local.delete(f"/uploads/{made['id']}") is None
    assert served.local.get("/uploads")["items"] == []


def test_what_was_said_is_told_again(served: Served) -> None:
    upload = begun(served, sha256=SHA, plain="")
    head = asked(served, "HEAD", upload)
    assert tus.metadata(head.headers["Upload-Metadata"]) == {
        "name": "debian",
        "group": "site",
        "sha256": SHA,
        "plain": "true",
    }
    assert (head.headers["Upload-Length"], head.headers["Tus-Resumable"]) == (
        str(len(DATA)),
        "1.0.0",
    )
    assert head.headers["Cache-Control"] == "no-store"


def test_the_server_says_what_it_can(served: Served) -> None:
    options = asked(served, "OPTIONS", "/api/v1/uploads", Tus_Resumable=None)
    assert options.status == 204
    assert options.headers["Tus-Version"] == "1.0.0"
    assert "creation-with-upload" in options.headers["Tus-Extension"]
    assert options.headers["Tus-Max-Size"] == str(4 * 2**20)
    assert "sha1" in options.headers["Tus-Checksum-Algorithm"]


def test_methods_can_be_said_in_a_header(served: Served) -> None:
    upload = begun(served)
    answer = asked(
        served,
        "POST",
        upload,
        DATA[:10],
        Upload_Offset=0,
        Content_Type=tus.PIECE_TYPE,
        X_HTTP_Method_Override="PATCH",
    )
    assert (answer.status, answer.offset) == (204, 10)
    assert asked(served, "POST", upload, X_HTTP_Method_Override="DELETE").status == 204
    assert (
        asked(served, "POST", "/api/v1/groups/site", X_HTTP_Method_Override="DELETE").status == 405
    )


def test_giving_up_removes_the_file(served: Served) -> None:
    upload = begun(served)
    send(served, upload, DATA[:10], 0)
    assert len(files(served)) == 1
    assert asked(served, "DELETE", upload).status == 204
    assert files(served) == []
    assert asked(served, "DELETE", upload).status == 404
    assert send(served, upload, b"x", 10).status == 404
    begun(served)


# ---------------------------------------------------------------- refusals


def test_a_piece_that_does_not_fit_is_refused(served: Served) -> None:
    upload = begun(served, size=100)
    assert send(served, upload, DATA[:10], 0).status == 204
    for offset, data in ((0, b"x"), (9, b"x"), (11, b"x"), (100, b"")):
        answer = send(served, upload, data, offset)
        assert (answer.status, answer.body["code"]) == (409, "offset")
        assert "has 10 bytes" in answer.body["detail"]
    assert send(served, upload, bytes(91), 10).status == 413
    assert where(served, upload) == 10


def test_a_body_without_a_length_is_cut_at_the_upload_s(served: Served) -> None:
    upload = begun(served, size=100)
    with socket.create_connection(("127.0.0.1", served.server.ports[0]), 60) as peer:
        peer.sendall(
            f"PATCH /api/v1/uploads/{upload} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer"
            f" {ADMIN}\r\nContent-Type: {tus.PIECE_TYPE}\r\nUpload-Offset: 0\r\nTransfer-Encoding:"
            " chunked\r\n\r\n".encode()
            + b"40\r\n"
            + bytes(64)
            + b"\r\n40\r\n"
            + bytes(64)
            + b"\r\n0\r\n\r\n"
        )
        assert peer.recv(100).startswith(b"HTTP/1.1 413 ")
    assert where(served, upload) in (0, 64)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Upload_Offset": None}, 400),
        ({"Upload_Offset": "x"}, 400),
        ({"Upload_Offset": "-1"}, 400),
        ({"Content_Type": "application/json"}, 415),
        ({"Tus_Resumable": "0.2.2"}, 412),
        ({"Upload_Checksum": "crc32 AAAA"}, 400),
        ({"Upload_Checksum": "sha1 %%%"}, 400),
    ],
)
def test_headers_that_cannot_be(served: Served, headers: dict[str, Any], status: int) -> None:
    upload = begun(served)
    named: dict[str, Any] = {"Upload_Offset": 0, "Content_Type": tus.PIECE_TYPE} | headers
    answer = asked(served, "PATCH", upload, b"x", **named)
    assert answer.status == status, answer.body
    if status == 412:
        assert answer.headers["Tus-Version"] == "1.0.0"
    assert where(served, upload) == 0


def test_a_creation_that_is_repeated_is_the_same_upload_and_another_is_no_repetition(
    served: Served,
) -> None:
    def ask(name: str) -> Answer:
        return asked(
            served,
            "POST",
            "/api/v1/uploads",
            Idempotency_Key="k",
            Upload_Length=5,
            Upload_Metadata=tus.encode_metadata({"name": name}),
        )

    first, again = ask("debian"), ask("debian")
    assert (first.status, again.status, again.headers["Idempotency-Replayed"]) == (201, 201, "true")
    assert first.headers["Location"] == again.headers["Location"]
    assert ask("other").status == 422


@pytest.mark.parametrize(
    ("length", "metadata", "status"),
    [
        (None, "name YQ==", 400),
        ("x", "name YQ==", 400),
        (str(2**64), "name YQ==", 400),
        ("10", "name *", 400),
        ("10", None, 422),
        ("10", "name Li4vYQ==", 422),
        ("0", "name YQ==", 422),
        ("10", "name YQ==,sha256 YWI=", 422),
        ("10", "name YQ==,group bm9uZQ==", 404),
        (str(5 * 2**20), "name YQ==", 413),
    ],
)
def test_creations_that_cannot_be(
    served: Served, length: str | None, metadata: str | None, status: int
) -> None:
    answer = asked(
        served, "POST", "/api/v1/uploads", Upload_Length=length, Upload_Metadata=metadata
    )
    assert answer.status == status, answer.body
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert served.local.get("/uploads")["items"] == []


def test_a_disk_without_room_is_told_at_once(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: type("Usage", (), {"free": 1_000_000}))
    answer = create(served)
    assert (answer.status, answer.body["code"]) == (507, "no_space")
    begun(served, size=1_000_000)


def test_a_disk_that_fills_up_keeps_what_went_in(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload, real, room = begun(served), os.pwrite, 1_200_000

    def full(file: int, data: Any, at: int) -> int:
        if at >= room:
            raise OSError(28, "No space left on device")
        return real(file, data[: room - at], at)

    monkeypatch.setattr(os, "pwrite", full)
    answer = send(served, upload, DATA, 0)
    assert (answer.status, answer.body["code"]) == (507, "no_space")
    assert "No space left" in answer.body["detail"]
    monkeypatch.undo()
    assert where(served, upload) == room
    assert send(served, upload, DATA[room:], room).status == 204
    assert served.local.get("/images/debian")["sha256"] == SHA


def test_a_quota_is_told_up_front(served: Served) -> None:
    served.tx(groups.create, "physics", image_quota=1000, now=NOW)
    answer = create(served, size=1001, group="physics")
    assert (answer.status, answer.body["code"]) == (413, "quota")
    assert "may have 1000 bytes and have 0" in answer.body["detail"]
    assert create(served, size=1000, group="physics").status == 201


@pytest.mark.parametrize(
    ("head", "why"),
    [
        (b"\xfd7zXZ\0", "this is a xz file"),
        (b"PK\x03\x04", "zip"),
        (
            b"QFI\xfb" + (3).to_bytes(4, "big") + (512).to_bytes(8, "big") + bytes(100),
            "backing file",
        ),
    ],
)
def test_a_file_that_is_not_taken_in_is_refused_at_its_first_bytes(
    served: Served, head: bytes, why: str
) -> None:
    upload = begun(served)
    answer = send(served, upload, (head + DATA)[: len(DATA)], 0)
    assert (answer.status, answer.body["code"]) == (422, "invalid")
    assert why in answer.body["detail"]
    assert asked(served, "HEAD", upload).status == 404
    assert files(served) == []
    small = begun(served, "small", len(head))
    assert why in send(served, small, head, 0).body["detail"]
    assert served.local.get("/images")["items"] == []
    plain = begun(served, "kernel", len(head), plain="true")
    assert send(served, plain, head, 0).status == 204


def test_a_file_with_another_sha256_is_refused(served: Served) -> None:
    upload = begun(served, sha256="ab" * 32)
    answer = send(served, upload, DATA, 0)
    assert (answer.status, answer.body["field"]) == (422, "sha256")
    assert asked(served, "HEAD", upload).status == 404
    assert files(served) == []


def test_a_piece_with_a_wrong_checksum_counts_for_nothing(served: Served) -> None:
    upload = begun(served)
    good = base64.b64encode(hashlib.sha1(DATA[:1_500_000]).digest()).decode()
    answer = send(served, upload, DATA[1:1_500_001], 0, Upload_Checksum=f"sha1 {good}")
    assert (answer.status, answer.body["code"]) == (460, "checksum")
    assert where(served, upload) == 0
    assert send(served, upload, DATA[:1_500_000], 0, Upload_Checksum=f"sha1 {good}").status == 204
    rest = base64.b64encode(hashlib.sha256(DATA[1_500_000:]).digest()).decode()
    assert (
        send(served, upload, DATA[1_500_000:], 1_500_000, Upload_Checksum=f"sha256 {rest}").status
        == 204
    )
    assert served.local.get("/images/debian")["sha256"] == SHA


def test_half_a_piece_with_a_checksum_counts_for_nothing(served: Served) -> None:
    upload = begun(served)
    broken_off(served, upload, DATA[:2_000_000], 0)
    before = where(served, upload)
    assert before == 2_000_000
    with socket.create_connection(("127.0.0.1", served.server.ports[0]), 60) as peer:
        peer.sendall(
            f"PATCH /api/v1/uploads/{upload} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer"
            f" {ADMIN}\r\nContent-Type: {tus.PIECE_TYPE}\r\nUpload-Offset:"
            f" {before}\r\nUpload-Checksum: sha1 AAAA\r\nContent-Length: 900000\r\n\r\n".encode()
            + bytes(100_000)
        )
        received(served)
    until(lambda: not served.server.intake._pieces, "the broken connection is noticed")
    assert where(served, upload) == before
    assert send(served, upload, DATA[before:], before).status == 204
    assert served.local.get("/images/debian")["sha256"] == SHA


# ---------------------------------------------------------------- who may


def test_a_reading_token_sends_nothing(served: Served) -> None:
    assert create(served, token=READER).status == 403
    upload = begun(served)
    assert send(served, upload, b"x", 0, token=READER).status == 403
    assert send(served, upload, b"x", 0, token="nobody").status == 401
    assert asked(served, "DELETE", upload, token=READER).status == 403
    assert asked(served, "HEAD", upload, token=READER).status == 200
    assert files(served) == []


def test_nothing_is_kept_of_what_an_unknown_client_sends(served: Served) -> None:
    answer = asked(
        served,
        "POST",
        "/api/v1/uploads",
        DATA,
        token="nobody",
        Upload_Length=len(DATA),
        Content_Type=tus.PIECE_TYPE,
        Upload_Metadata=tus.encode_metadata({"name": "debian"}),
    )
    assert answer.status == 401
    assert send(served, "0" * 32, DATA, 0).status == 404
    assert files(served) == []


def test_a_browser_s_piece_needs_the_token_of_a_page(served: Served) -> None:
    browser = signed_in(served)
    upload = begun(served)
    (csrf,) = set(
        browser.get("/images/new").tree.xpath("//form[@data-upload-to]//input[@name='csrf']/@value")
    )
    told = {
        "Content-Type": tus.PIECE_TYPE,
        "Upload-Offset": "0",
        "Origin": f"https://{browser.host}",
    }
    for headers in (
        told,
        told | {"X-CSRF-Token": "guessed"},
        told | {"X-CSRF-Token": csrf, "Origin": "https://elsewhere.example"},
    ):
        assert browser.ask("PATCH", f"/api/v1/uploads/{upload}", DATA, headers).status == 403
    assert where(served, upload) == 0
    assert (
        browser.ask(
            "PATCH", f"/api/v1/uploads/{upload}", DATA, told | {"X-CSRF-Token": csrf}
        ).status
        == 204
    )
    assert served.local.get("/images/debian")["sha256"] == SHA


def test_an_upload_over_tls(
    pool: Pool, reactor: Any, in_reactor: Callable[..., Any], site: Site, tmp_path: Path
) -> None:
    certificate = webcert.self_signed(tmp_path / "web", ["127.0.0.1"])
    (tmp_path / "file").write_bytes(DATA)
    with (
        serving(pool, reactor, in_reactor, site, tls=WebTls(lambda: certificate)) as served,
        (tmp_path / "file").open("rb") as file,
    ):
        url = f"https://127.0.0.1:{served.server.ports[0]}"
        client = Client(url, ADMIN, ca_file=str(certificate.certificate))
        assert Sender(client).add("debian", file)["sha256"] == SHA
        assert files(served)[0].read_bytes() == DATA


# ---------------------------------------------------------------- broken connections, two at once


def test_what_came_before_a_connection_broke_stays(served: Served) -> None:
    upload = begun(served)
    broken_off(served, upload, DATA[:1_234_567], 0)
    assert where(served, upload) == 1_234_567
    broken_off(served, upload, DATA[1_234_567:1_234_570], 1_234_567)
    assert where(served, upload) == 1_234_570
    assert send(served, upload, DATA[1_234_570:], 1_234_570).status == 204
    assert served.local.get("/images/debian")["sha256"] == SHA


def test_of_two_senders_one_wins(served: Served) -> None:
    upload = begun(served)
    with sending(served, upload, 0) as peer:
        peer.sendall(DATA[:1_000])
        received(served)
        answer = send(served, upload, b"y" * 1_000, 0)
        assert (answer.status, answer.body["code"]) == (423, "locked")
        peer.sendall(DATA[1_000:])
        assert peer.recv(100).startswith(b"HTTP/1.1 204 ")
    assert served.local.get("/images/debian")["sha256"] == SHA


def test_a_sender_that_has_gone_silent_makes_way(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload = begun(served)
    with sending(served, upload, 0) as peer:
        peer.sendall(DATA[:1_000])
        received(served)
        monkeypatch.setattr(intake, "SILENT", 0.0)
        answer = send(served, upload, DATA, 0)
        # what the first had sent is not lost
        assert (answer.status, answer.body["code"]) == (409, "offset")
        with suppress(ConnectionResetError):
            assert peer.recv(100) == b""
    assert where(served, upload) == 1_000
    assert send(served, upload, DATA[1_000:], 1_000).status == 204


def test_another_process_at_it_is_left_alone(served: Served) -> None:
    from cod.images.incoming import Incoming

    upload = begun(served)
    other = Incoming(served.folder / "incoming" / upload)
    assert send(served, upload, DATA, 0).status == 423
    assert where(served, upload) == 0
    other.close()
    assert send(served, upload, DATA, 0).status == 204


def test_a_piece_that_comes_too_late_leaves_the_image_s_file_alone(
    served: Served, in_reactor: Any
) -> None:
    """Ask about the upload before its last piece has ended, and open the file after that."""
    from twisted.internet.defer import ensureDeferred

    upload = begun(served)
    row = served.tx(uploads.one, upload_id=upload, now=NOW)
    send(served, upload, DATA, 0)
    with pytest.raises(Refused, match="it is complete"):
        in_reactor(
            lambda: ensureDeferred(served.server.intake.begin(row, None, piece.Connection()))
        )
    assert files(served)[0].read_bytes() == DATA


def test_whatever_goes_wrong_with_an_answer_the_file_is_free_again(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: object) -> None:
        raise RuntimeError("a bug")

    upload = begun(served)
    with monkeypatch.context() as patch:
        patch.setattr(piece.Piece, "finish", broken)
        assert send(served, upload, DATA[:1_000], 0).status == 500
    until(lambda: not served.server.intake._pieces, "the piece is let go of")
    assert where(served, upload) == 1_000
    assert send(served, upload, DATA[1_000:], 1_000).status == 204


def test_giving_up_ends_who_is_sending(served: Served) -> None:
    upload = begun(served)
    with sending(served, upload, 0) as peer:
        peer.sendall(DATA[:1_000])
        received(served)
        assert asked(served, "DELETE", upload).status == 204
        with suppress(ConnectionError):
            assert peer.recv(100) == b""
    assert files(served) == []


def test_a_slow_disk_holds_the_sender(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """While nothing can be written little is taken from the network."""
    import threading

    gate, real = threading.Event(), os.pwrite
    upload = begun(served)

    def slow(file: int, data: Any, at: int) -> int:
        gate.wait(120)
        return real(file, data, at)

    monkeypatch.setattr(os, "pwrite", slow)
    monkeypatch.setattr(piece, "GATHER", 1 << 16)
    with sending(served, upload, 0) as peer:
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 16)
        sender = threading.Thread(target=peer.sendall, args=(DATA,))
        sender.start()
        here = until(
            lambda: next((one for one in served.server.intake._pieces.values() if one._held), None),
            "the connection is held",
        )
        assert here._count < 1 << 20
        gate.set()
        sender.join(60)
        assert peer.recv(100).startswith(b"HTTP/1.1 204 ")
    assert served.local.get("/images/debian")["sha256"] == SHA


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything happens after few bytes already."""
    monkeypatch.setattr(piece, "GATHER", 1000)
    monkeypatch.setattr(piece, "PUT_DOWN", 3000)


CUT = st.tuples(st.integers(0, 9_000), st.sampled_from(["whole", "broken", "wrong"]))


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cuts=st.lists(CUT, max_size=6))
def test_any_sequence_of_cut_pieces_gives_the_file(
    served: Served, small_pieces: None, cuts: list[tuple[int, str]]
) -> None:
    data = DATA[:20_011]
    upload = begun(served, size=len(data))
    for count, how in cuts:
        at = where(served, upload)
        count = min(count, len(data) - at - 1)
        if how == "whole":
            assert send(served, upload, data[at : at + count], at).offset == at + count
        elif how == "wrong":
            assert send(served, upload, data[at : at + count], at + 1).status == 409
        else:
            broken_off(served, upload, data[at : at + count], at, len(data))
            assert where(served, upload) == at + count
    at = where(served, upload)
    assert send(served, upload, data[at:], at).status == 204
    assert served.local.get("/images/debian")["sha256"] == hashlib.sha256(data).hexdigest()
    assert Path(served.tx(images.show, name="debian").source).read_bytes() == data
    served.local.delete("/images/debian")
    for file in files(served):
        file.unlink()


# ---------------------------------------------------------------- after a crash, and sweeping


def test_after_a_crash_the_file_tells_how_far_it_was(served: Served) -> None:
    upload = begun(served)
    send(served, upload, DATA[:1000], 0)
    with (served.folder / "incoming" / upload).open("ab") as file:
        file.write(DATA[1000:5000])  # a process wrote that, and died
    assert where(served, upload) == 5000
    assert send(served, upload, DATA[5000:], 5000).status == 204
    assert served.local.get("/images/debian")["sha256"] == SHA


def test_after_a_power_cut_the_row_tells_it(served: Served) -> None:
    upload = begun(served)
    send(served, upload, DATA[:1000], 0)
    served.server.intake._boot = "another boot"
    with (served.folder / "incoming" / upload).open("ab") as file:
        file.write(bytes(4000))
    assert where(served, upload) == 1000
    assert send(served, upload, DATA[1000:], 1000).status == 204
    assert served.local.get("/images/debian")["sha256"] == SHA


def test_an_upload_whose_last_step_is_missing_is_completed(
    served: Served, in_reactor: Callable[..., Any]
) -> None:
    from twisted.internet.defer import ensureDeferred

    for name, finish in (
        ("head", lambda upload: where(served, upload)),
        ("sweep", lambda upload: in_reactor(lambda: ensureDeferred(served.server.intake.sweep()))),
    ):
        upload = begun(served, name)
        send(served, upload, DATA[:1000], 0)
        with (served.folder / "incoming" / upload).open("ab") as file:
            file.write(DATA[1000:])
        served.tx(
            uploads.grown,
            upload_id=upload,
            offset=len(DATA),
            rules=served.server.intake.site.current.images,
            now=NOW,
        )
        finish(upload)
        assert served.local.get(f"/images/{name}")["sha256"] == SHA


def test_uploads_that_nothing_more_comes_of_are_swept_up(
    served: Served, in_reactor: Callable[..., Any]
) -> None:
    from twisted.internet.defer import ensureDeferred

    old = begun(served, "old")
    send(served, old, DATA[:1000], 0)
    served.clock.now += 3 * 86400 - 1
    young = begun(served, "young")
    send(served, young, DATA[:1000], 0)
    done = begun(served, "done")
    send(served, done, DATA, 0)
    (served.folder / "incoming" / "left-over").write_bytes(b"x")
    served.clock.now += 1
    assert asked(served, "HEAD", old).status == 404
    in_reactor(lambda: ensureDeferred(served.server.intake.sweep()))
    assert {file.name for file in files(served)} == {young, done}
    assert [one["name"] for one in served.local.get("/uploads")["items"]] == ["young"]


def test_a_qcow2_file_that_is_larger_than_the_site_wants_is_given_up_at_once(
    served: Served, tmp_path: Path
) -> None:
    """By its header, before the rest of it is sent."""
    object.__setattr__(served.server.intake.site.current, "images", ImageRules(largest=1 << 20))
    header = bytearray(8192)
    header[:32] = struct.pack(">4sIQIIQ", b"QFI\xfb", 3, 0, 0, 16, 2 << 20)
    (tmp_path / "large").write_bytes(bytes(header) + bytes(100_000))
    with (tmp_path / "large").open("rb") as file, pytest.raises(ApiError) as caught:
        Sender(served.local).add("large", file, group="site")
    assert caught.value.status == 422
    assert served.local.get("/uploads")["items"] == []
