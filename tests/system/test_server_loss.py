"""Two servers on one MariaDB: an upload and a capture whose server is killed go on at the other,
and the killed server has their images when it is back."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cod.client import ApiError, Unreachable
from cod.client.uploads import PIECE_TYPE, Sender
from tests.chaos.site import ChaosServer, ChaosSite, running
from tests.system.site_images import make_image
from tests.waiting import until

pytestmark = [
    pytest.mark.system,
    pytest.mark.nightly,  # tests/net/test_two_portals.py, test_capture.py: in one process
    pytest.mark.slow,
    pytest.mark.xdist_group("chaos"),
    pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root"),
]

DISK = 128 << 20
UPLOAD = 8 << 20


@pytest.fixture(scope="module")
def site() -> Iterator[ChaosSite]:
    with running(hosts=2, machines=1, database="mariadb", disk=DISK) as site:
        yield site


def pulled(site: ChaosSite, name: str) -> None:
    """Wait until each host has the files of the image."""
    with site.servers[1].client() as client:
        image = until(lambda: ready(client, name), every=0.2)
    for server in site.servers:
        folder = server.data / "images" / image["digest"]
        until(folder.is_dir, f"{server.name} has {name}", every=0.2)


def ready(client: Any, name: str) -> Any:
    image = client.get(f"/images/{name}")
    assert image["state"] != "failed", image["reason"]
    return image if image["state"] == "ready" else None


def test_an_upload_whose_server_is_killed_is_made_at_the_other(
    site: ChaosSite, tmp_path: Path
) -> None:
    first, second = site.servers
    file = make_image(tmp_path, "green", UPLOAD)
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    half = file.read_bytes()[: UPLOAD // 2]
    with first.client() as client:
        wanted = {"name": "green", "size": UPLOAD, "sha256": digest}
        upload = client.post("/uploads", wanted)["id"]

        def blocks() -> Iterator[bytes]:
            yield half
            came = first.data / "incoming" / upload
            until(lambda: came.exists() and came.stat().st_size >= len(half) // 2)
            first.kill()
            yield half

        headers = {"Content-Type": PIECE_TYPE, "Content-Length": str(UPLOAD), "Upload-Offset": "0"}
        with pytest.raises(Unreachable):
            client.send("PATCH", f"/uploads/{upload}", blocks(), headers)
    with second.client() as client:
        headers |= {"Content-Length": str(len(half)), "Upload-Offset": str(len(half))}
        with pytest.raises(ApiError) as refused:
            client.send("PATCH", f"/uploads/{upload}", iter([half]), headers)
        assert refused.value.code == "offset"
        assert "this server has 0 bytes of the upload: go on from there" in str(refused.value)
        assert client.get(f"/uploads/{upload}")["offset"] == 0
        with file.open("rb") as data:
            image = Sender(client).add("green", data)
        assert (image["sha256"], image["stored"]) == (digest, UPLOAD)
        until(lambda: ready(client, "green"), every=0.2)
    first.start()
    first.wait()
    pulled(site, "green")


def test_a_capture_whose_server_is_killed_goes_on_at_the_other(site: ChaosSite) -> None:
    machine = site.machines["a1"]
    until(site.is_idle, every=0.2)
    content = make_image(machine.folder, "own", 1 << 20).read_bytes()
    with (machine.folder / "disk").open("r+b") as disk:
        disk.write(content + os.urandom(DISK - len(content)))
    with site.servers[0].client() as client:
        client.post("/nodes/a1/capture", {"image": "mine", "template": ""})
    killed = until(lambda: taking(site))
    killed.kill()
    [other] = (each for each in site.servers if each is not killed)
    with other.client() as client:
        until(
            lambda: client.get("/nodes/a1/capture")["state"] != "running",
            lambda: client.get("/nodes/a1/capture"),
            300,
            every=0.2,
        )
        assert client.get("/nodes/a1/capture")["state"] == "done"
        until(site.is_idle, every=0.2)
        events = [each["event"] for each in client.items("/nodes/a1/history")]
    assert {"capture_ordered", "captured"} <= set(events)
    assert "failed" not in events
    killed.start()
    killed.wait()
    pulled(site, "mine")
    for server in site.servers:
        until(lambda at=server: not list((at.data / "images").glob(".capture-*")), seconds=120)


def taking(site: ChaosSite) -> ChaosServer | None:
    """Return the server that has a part of a captured disk."""
    for server in site.servers:
        for file in (server.data / "images").glob(".capture-*/data.zst"):
            if file.stat().st_size:
                return server
    return None
