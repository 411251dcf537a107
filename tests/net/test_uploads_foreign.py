"""A foreign client of the tus protocol (tuspy) against the server; and a server that is killed
while it receives."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tusclient.client import TusClient
from tusclient.exceptions import TusCommunicationError, TusUploadFailed
from tusclient.storage.filestorage import FileStorage

from cod.client.uploads import Sender
from cod.flows.images import images
from tests.net.apiserver import ADMIN, Served
from tests.net.server_process import Serving

pytestmark = pytest.mark.slow  # its client is a tenth of all imports
DATA = hashlib.shake_256(b"foreign").digest(1_234_567)
SHA = hashlib.sha256(DATA).hexdigest()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """The file to send."""
    path = tmp_path / "file"
    path.write_bytes(DATA)
    return path


@pytest.fixture
def client(served: Served) -> TusClient:
    """Return a client of another project for the server."""
    return TusClient(
        f"http://127.0.0.1:{served.server.ports[0]}/api/v1/uploads",
        headers={"Authorization": f"Bearer {ADMIN}"},
    )


@pytest.mark.parametrize("checksum", [False, True])
def test_a_foreign_client_sends_a_file(
    served: Served, client: TusClient, file: Path, checksum: bool
) -> None:
    uploader = client.uploader(
        str(file),
        chunk_size=500_000,
        metadata={"name": "debian", "filename": "x.img"},
        upload_checksum=checksum,
    )
    uploader.upload_chunk()
    assert (
        served.local.get("/uploads")["items"][0]["offset"]
        == uploader.offset
        == uploader.get_offset()
        == 500_000
    )
    uploader.upload()
    assert served.local.get("/images/debian")["sha256"] == SHA
    assert Path(served.tx(images.show, name="debian").source).read_bytes() == DATA


def test_a_foreign_client_goes_on_where_it_was(
    served: Served, client: TusClient, file: Path, tmp_path: Path
) -> None:
    storage = FileStorage(str(tmp_path / "urls"))
    said: Any = dict(
        chunk_size=300_000, metadata={"name": "debian"}, store_url=True, url_storage=storage
    )
    client.uploader(str(file), **said).upload_chunk()
    again = client.uploader(str(file), **said)
    assert again.offset == 300_000
    again.upload()
    assert served.local.get("/images/debian")["sha256"] == SHA
    storage.close()


def test_a_foreign_client_hears_what_is_refused(
    served: Served, client: TusClient, file: Path
) -> None:
    with pytest.raises(TusCommunicationError, match="422"):
        client.uploader(str(file), metadata={"name": "../debian"}).upload()
    file.write_bytes(b"PK\x03\x04" + DATA)
    with pytest.raises(TusUploadFailed) as caught:
        client.uploader(str(file), metadata={"name": "debian"}).upload()
    assert caught.value.status_code == 422
    assert served.local.get("/uploads")["items"] == []


def test_curl_sends_a_file_in_one_request(served: Served, file: Path) -> None:
    """Send the file as docs/uploads says."""
    said = subprocess.run(
        [
            "curl",
            "-sS",
            "-m",
            "120",
            "--fail-with-body",
            "-X",
            "POST",
            f"http://127.0.0.1:{served.server.ports[0]}/api/v1/uploads",
            "-H",
            f"Authorization: Bearer {ADMIN}",
            "-H",
            "Tus-Resumable: 1.0.0",
            "-H",
            f"Upload-Length: {len(DATA)}",
            "-H",
            "Upload-Metadata: name ZGViaWFu",
            "-H",
            "Content-Type: application/offset+octet-stream",
            "-T",
            str(file),
        ],
        capture_output=True,
        text=True,
    )
    assert said.returncode == 0, said.stderr
    assert json.loads(said.stdout)["offset"] == len(DATA)
    assert served.local.get("/images/debian")["sha256"] == SHA


# ---------------------------------------------------------------- killed in the middle


@pytest.fixture
def serving() -> Iterator[Serving]:
    """A site whose web server runs as it does for users: a process of its own, started again when
    it dies."""
    with tempfile.TemporaryDirectory(prefix="cod-kill-") as folder:
        serving = Serving(Path(folder))
        serving.start()
        serving.until(serving.answers, "it answers")
        yield serving
        serving.clean_up()


def test_a_server_killed_in_the_middle_goes_on_where_it_was(
    serving: Serving, tmp_path: Path
) -> None:
    data = hashlib.shake_256(b"killed").digest(60 << 20)
    file, kills, offsets = tmp_path / "file", [10 << 20, 30 << 20, 50 << 20], []
    file.write_bytes(data)

    def progress(what: str, done: int, _total: int) -> None:
        if what == "sending" and kills and done >= kills[0]:
            kills.pop(0)
            os.kill(serving.parts()["web"], signal.SIGKILL)

    class Watched(Sender):
        def _piece(self, upload: str, offset: int, *rest: Any) -> int | None:
            offsets.append(offset)
            return super()._piece(upload, offset, *rest)

    with file.open("rb") as content:
        image = Watched(
            serving.client, progress, lambda _: serving.until(serving.answers, "it answers again")
        ).add("debian", content)
    assert image["sha256"] == hashlib.sha256(data).hexdigest()
    (taken,) = (serving.folder / "incoming").iterdir()
    assert taken.read_bytes() == data
    began = sorted(set(offsets))
    assert began[0] == 0
    assert len(began) == 4  # after each kill it went on from where the file ended
    assert serving.stop() == 0
