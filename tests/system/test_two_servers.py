"""Two hosts, each with `cod serve` and folders of its own, on one database: an image that one takes
in is soon at the other, which manages once the first is gone."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cod import init
from cod.client import ApiError, Client, Unreachable
from tests.system.test_doctor import ROOT, ip
from tests.waiting import until

# the parts: tests/net/test_peers.py, tests/net/test_servers.py
pytestmark = [pytest.mark.slow, pytest.mark.nightly]

SITE = """\
[server]
name = "{name}"
data_dir = "{folder}/{name}"
database = "sqlite:///{folder}/shared.db"

[[subnet]]
name = "rack"
network = "10.77.0.0/16"
server = ["10.77.0.1", "10.77.0.2"]
interface = "site0"
boot_pool = ["10.77.1.0", "10.77.4.255"]
block_pool = ["10.77.128.0", "10.77.255.254"]
"""
PARTS = "images,web,manager"


class Server:
    """A host in a namespace of its own."""

    def __init__(self, folder: Path, name: str) -> None:
        self.name, self.data = name, folder / name
        self.namespace = f"codtwo{os.getpid()}{name}"
        self.site, self.log = folder / f"{name}.toml", folder / f"{name}.log"
        self.site.write_text(SITE.format(name=name, folder=folder))
        self.client = Client(str(self.data / "run/api.sock"), timeout=60)
        self.running: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        argv = [sys.executable, "-m", "cod", "--site", str(self.site), "serve", "--only", PARTS]
        with self.log.open("wb") as log:
            self.running = subprocess.Popen(
                ["ip", "netns", "exec", self.namespace, *argv],
                cwd=ROOT,
                stderr=log,
                start_new_session=True,
            )

    def stop(self) -> None:
        if self.running is not None:
            self.running.terminate()
            self.running.wait(60)
            self.running = None

    def listed(self) -> dict[str, dict[str, Any]]:
        """The site's servers as this one lists them, by name."""
        try:
            return {each["name"]: each for each in self.client.get("/servers")["items"]}
        except (Unreachable, ApiError):
            return {}


@pytest.fixture
def two(short_folder: Path) -> Iterator[list[Server]]:
    servers = [Server(short_folder, name) for name in "ab"]
    for server in servers:
        ip("netns", "add", server.namespace)
    try:
        first, second = (server.namespace for server in servers)
        veth = ("site0", "type", "veth", "peer", "name", "site0", "netns", second)
        ip("-n", first, "link", "add", *veth)
        for server, address in zip(servers, ("10.77.0.1/16", "10.77.0.2/16"), strict=True):
            ip("-n", server.namespace, "addr", "add", address, "dev", "site0")
            for name in ("site0", "lo"):
                ip("-n", server.namespace, "link", "set", name, "up")
            init.found(server.data, server.site, {}, 1.0)
        shutil.rmtree(servers[1].data / "ca")
        shutil.copytree(servers[0].data / "ca", servers[1].data / "ca")
        shutil.copy(servers[0].data / "webhook.key", servers[1].data)
        for server in servers:
            server.start()
        yield servers
    finally:
        for server in servers:
            server.stop()
            ip("netns", "delete", server.namespace)


def test_an_image_and_the_manager_outlive_a_host(two: list[Server], tmp_path: Path) -> None:
    first, second = two

    def logs() -> str:
        return "".join(server.log.read_text() for server in two)

    everything = {"a": set(PARTS.split(",")), "b": set(PARTS.split(","))}
    until(
        lambda: {name: set(one["parts"]) for name, one in second.listed().items()} == everything,
        logs,
        240,
    )
    kernel = tmp_path / "kernel"
    kernel.write_bytes(os.urandom(3_000_000))
    first.client.post("/images", {"name": "kernel", "path": str(kernel), "plain": True})
    until(lambda: first.client.get("/images/kernel")["state"] == "ready", logs, 240)
    digest = first.client.get("/images/kernel")["digest"]
    for server in two:
        there = server.data / "images" / digest / "file"
        until(there.exists, logs, 240)
        assert there.read_bytes() == kernel.read_bytes()
    [manager] = [name for name, one in second.listed().items() if one["manages"]]
    leaving = next(server for server in two if server.name == manager)
    staying = next(server for server in two if server is not leaving)
    assert leaving.running is not None
    leaving.running.kill()  # its parts notice, and end
    until(lambda: staying.listed().get(staying.name, {}).get("manages"), logs, 240)
    assert staying.client.get("/images/kernel")["reason"] == ""
