"""`cod.client.uploads` and `cod image add` against a real server: what breaks off goes on where it
was."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from cod.cli.root import cod
from cod.client import ApiError, Client, Unreachable, uploads
from cod.client.uploads import Sender
from cod.flows.images import images
from cod.flows.people import groups
from tests.net.apiserver import ADMIN, NOW, Served, as_json, run
from tests.waiting import until

pytestmark = pytest.mark.slow

DATA = hashlib.shake_256(b"sent").digest(1_000_001)
SHA = hashlib.sha256(DATA).hexdigest()


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "PIECE", 300_000)
    monkeypatch.setattr(uploads, "_BLOCK", 50_000)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """The file to send."""
    path = tmp_path / "file"
    path.write_bytes(DATA)
    return path


class Breaking(Client):
    """A client whose connection breaks before, in the middle of, or after those of its pieces."""

    def __init__(self, served: Served, breaks: dict[int, str]) -> None:
        super().__init__(f"http://127.0.0.1:{served.server.ports[0]}", ADMIN, timeout=60)
        self.pieces = served.server.intake._pieces
        self.breaks, self.sent, self.offsets = breaks, 0, []  # type: dict[int, str], int, list[int]

    def send(self, method: str, path: str, body: Any, headers: dict[str, str]) -> Any:
        self.offsets.append(int(headers["Upload-Offset"]))
        how = self.breaks.get(self.sent, "")
        self.sent += 1
        if how == "before":
            raise Unreachable("broken before")
        told = super().send(method, path, _cut(body) if how == "middle" else body, headers)
        if how == "after":
            raise Unreachable("broken after")
        return told


def _cut(body: Iterator[bytes]) -> Iterator[bytes]:
    yield next(body)
    yield next(body)
    raise ConnectionResetError("broken in the middle")


def sent(client: Breaking, file: Path, **said: Any) -> tuple[Any, list[float]]:
    """The image, and the pauses that were made; each is long enough for the server to notice a
    broken connection."""
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        until(lambda: not client.pieces, "the broken connection is noticed")

    with file.open("rb") as content:
        return Sender(client, sleep=pause).add("debian", content, **said), pauses


def content(served: Served, name: str = "debian") -> bytes:
    return Path(served.tx(images.show, name=name).source).read_bytes()


def test_a_file_is_sent_in_pieces(served: Served, file: Path) -> None:
    client, told = Breaking(served, {}), []
    with file.open("rb") as data:
        image = Sender(client, lambda *step: told.append(step)).add("debian", data, plain=True)
    assert (image["state"], image["sha256"], image["content"]) == ("ingesting", SHA, "file")
    assert content(served) == DATA
    assert client.offsets == [0, 300_000, 600_000, 900_000]
    assert told[19:23] == [
        ("reading", 1_000_000, 1_000_001),
        ("reading", 1_000_001, 1_000_001),
        ("sending", 50_000, 1_000_001),
        ("sending", 100_000, 1_000_001),
    ]
    assert told[-1] == ("sending", 1_000_001, 1_000_001)


@pytest.mark.parametrize(
    "breaks",
    [
        {0: "before"},
        {0: "middle"},
        {0: "after"},
        {1: "middle", 2: "middle", 3: "before"},
        {3: "after"},
        {3: "middle"},
        dict.fromkeys(range(8), "before"),
    ],
)
def test_broken_connections_are_made_again(
    served: Served, file: Path, breaks: dict[int, str]
) -> None:
    image, pauses = sent(Breaking(served, breaks), file)
    assert image["sha256"] == SHA
    assert content(served) == DATA
    assert pauses
    assert served.local.get("/uploads")["items"] == []


def test_who_gets_nothing_through_gives_up_and_can_go_on_later(served: Served, file: Path) -> None:
    with pytest.raises(Unreachable, match="broken before"):
        sent(Breaking(served, dict.fromkeys(range(1, 99), "before")), file)
    (upload,) = served.local.get("/uploads")["items"]
    assert (upload["offset"], upload["sha256"]) == (300_000, SHA)
    again = Breaking(served, {})
    assert sent(again, file)[0]["sha256"] == SHA
    assert again.offsets == [300_000, 600_000, 900_000]


def test_sending_what_is_there_already_sends_nothing(served: Served, file: Path) -> None:
    sent(Breaking(served, {}), file)
    again = Breaking(served, {})
    assert sent(again, file)[0]["sha256"] == SHA
    assert again.sent == 0
    file.write_bytes(DATA[::-1])
    with pytest.raises(ApiError, match="there is an image 'debian' already"):
        sent(again, file)


def test_another_file_does_not_go_on_where_this_one_was(served: Served, file: Path) -> None:
    with pytest.raises(Unreachable):
        sent(Breaking(served, dict.fromkeys(range(1, 99), "before")), file)
    file.write_bytes(DATA[:-1])
    with pytest.raises(ApiError, match="under way already: go on with"):
        sent(Breaking(served, {}), file)


def test_what_the_server_says_for_good_is_not_tried_again(served: Served, file: Path) -> None:
    file.write_bytes(b"PK\x03\x04" + DATA)
    client = Breaking(served, {})
    with pytest.raises(ApiError, match="zip file"):
        sent(client, file)
    assert client.sent == 1
    with pytest.raises(ApiError, match="sha256"):
        sent(client, file, plain=True, sha256="ab" * 32)


def test_an_upload_that_is_given_up_meanwhile_is_told(served: Served, file: Path) -> None:
    class GivenUp(Breaking):
        def send(self, method: str, path: str, body: Any, headers: dict[str, str]) -> Any:
            served.local.delete(path)
            return super().send(method, path, body, headers)

    with pytest.raises(ApiError) as caught:
        sent(GivenUp(served, {}), file)
    assert caught.value.status == 404


def test_a_file_that_shrinks_is_noticed(served: Served) -> None:
    class Shrinking(io.BytesIO):
        def fileno(self) -> int:
            return self.real.fileno()

        real: Any

    file = Shrinking(DATA[:10])
    with pytest.raises(OSError, match="shorter"):
        list(Sender(served.local)._blocks(file, 0, 11, 11))


# ---------------------------------------------------------------- the command


def command(served: Served, *words: object, code: int = 0) -> Any:
    server = f"http://127.0.0.1:{served.server.ports[0]}"
    result = CliRunner().invoke(cod, ["--server", server, "--token", ADMIN, *map(str, words)])
    assert result.exit_code == code, result.output
    return result


def test_image_add_sends_and_goes_on(
    served: Served, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served.tx(groups.create, "physics", now=NOW)
    real: Callable[..., Any] = Client.send

    def interrupted(self: Client, *arguments: Any) -> Any:
        told = real(self, *arguments)
        if told["Upload-Offset"] == "600000":
            raise KeyboardInterrupt
        return told

    monkeypatch.setattr(Client, "send", interrupted)
    words = ("image", "add", "debian", file, "--group", "physics")
    assert "the same command goes on where it was" in command(served, *words, code=1).stderr
    (listed,) = as_json(served, "image", "uploads")
    assert (listed["offset"], listed["group"], listed["actor"]) == (600_000, "physics", "token:ci")
    assert "585.9 KiB" in run(served, "image", "uploads").stdout
    monkeypatch.setattr(Client, "send", real)
    assert "physics" in command(served, *words).stdout
    assert content(served, "physics/debian") == DATA


def test_an_upload_is_cancelled(served: Served) -> None:
    served.local.post("/uploads", {"name": "debian", "size": 10})
    assert run(served, "image", "cancel", "debian").stdout == "debian: its upload is given up\n"
    assert served.local.get("/uploads")["items"] == []
    assert (
        run(served, "image", "cancel", "debian", code=1).stderr
        == "Error: no upload of debian is under way\n"
    )


def test_a_group_s_quota_is_set_and_shown(served: Served, file: Path) -> None:
    made = as_json(served, "group", "create", "physics", "--image-quota", "500K")
    assert made["image_quota"] == 500 * 1024
    assert "500.0 KiB" in run(served, "group", "list").stdout
    assert (
        "may have 512000 bytes"
        in command(served, "image", "add", "a", file, "--group", "physics", code=1).stderr
    )
    assert (
        as_json(served, "group", "set", "physics", "--image-quota", "none")["image_quota"] is None
    )
    assert (
        as_json(served, "group", "set", "physics", "--image-quota", "1.5G")["image_quota"]
        == 3 * 2**29
    )
    assert (
        "should be an amount"
        in run(served, "group", "set", "physics", "--image-quota", "x", code=2).stderr
    )
