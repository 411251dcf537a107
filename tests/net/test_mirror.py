"""A rack's cache, Debian's nginx with the configuration of docs/mirrors: who gets what of it,
and how often the server is asked."""

from __future__ import annotations

import http.client
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from sqlalchemy import Engine

from cod.flows.agents import orders
from cod.model import ImageMirror, Site
from cod.net.bootfiles import OpenFile
from cod.pool import in_transaction
from cod.store.nodes import blocks, nodes
from cod.wire import manifest
from tests.conftest import SUBNET
from tests.imageserver import Server, dies_after, flips, serving
from tests.manual import page
from tests.net.test_image_rights import DATA, MINE, NODE, OTHER, STRANGER, THEIRS, Lab, lab, world
from tests.net.test_prime import MIB, QUICK, added, dirty, image_file, one, run
from tests.ports import free_port
from tests.store.agentlab import hardware
from tests.waiting import until
from trampoline import images

__all__ = ["lab"]
NGINX = shutil.which("nginx", path="/usr/sbin:/usr/bin")
MIRROR = "127.0.0.31"
PAGE = page("mirrors")
MAIN = """user root; daemon off; worker_processes 1; pid {0}/pid; error_log {0}/log;
events {{ worker_connections 64; }}
http {{ access_log off; client_body_temp_path {0}/b; proxy_temp_path {0}/p;
fastcgi_temp_path {0}/f; uwsgi_temp_path {0}/u; scgi_temp_path {0}/s;
{1}}}
"""
pytestmark = pytest.mark.slow


@dataclass
class Cache:
    """The mirror in front of a lab's server: its port, and the file of its errors."""

    lab: Lab
    port: int
    log: Path

    def get(self, source: str, digest: str, **headers: str) -> tuple[int, bytes]:
        """Return what whoever is at `source` gets of an image's data."""
        line = http.client.HTTPConnection(MIRROR, self.port, timeout=60, source_address=(source, 0))
        line.request("GET", f"/images/{digest}/data.zst", headers=headers)
        reply = line.getresponse()
        body = reply.read()
        line.close()
        return reply.status, body


@pytest.fixture
def cache(lab: Lab, tmp_path: Path) -> Iterator[Cache]:
    if NGINX is None:
        pytest.skip("not installed: nginx-light")
    name_mirror(lab)
    folder, port = tmp_path / "nginx", free_port()
    folder.mkdir()
    (found,) = re.findall(r"```nginx\n(.*?)```", PAGE.read_text(), re.S)
    for old, new in (
        ("/var/cache/nginx/cod", f"{folder}/cache"),
        ("10.0.0.1:8069", f"127.0.0.1:{lab.server.port}"),
        ("10.0.1.5:8069", f"{MIRROR}:{port}"),
        ("10.0.1.5", MIRROR),
    ):
        assert old in found
        found = found.replace(old, new)
    (folder / "conf").write_text(MAIN.format(folder, found))
    with subprocess.Popen(
        [NGINX, "-c", folder / "conf", "-e", folder / "log"], stderr=subprocess.DEVNULL
    ) as nginx:
        made = Cache(lab, port, folder / "log")

        def answers() -> bool:
            try:
                return made.get(STRANGER, MINE)[0] == 500
            except OSError:
                return False

        try:
            until(answers, made.log.read_text)
            yield made
        finally:
            nginx.terminate()


def name_mirror(lab: Lab) -> None:
    """Have the site name the mirror."""
    object.__setattr__(lab.server._site.current, "mirrors", (ImageMirror(MIRROR),))


def test_an_image_crosses_the_link_once_and_goes_to_those_who_may_have_it(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    opened = cache.lab.server._images.open

    def counted(path: str) -> OpenFile:
        asked.append(path)
        return opened(path)

    monkeypatch.setattr(cache.lab.server._images, "open", counted)
    assert cache.get(NODE, MINE) == (200, DATA)
    before = len(asked)
    for _ in range(3):
        assert cache.get(NODE, MINE, Range="bytes=5-99") == (206, DATA[5:100])
    assert len(asked) == before + 3, "one question about the right each, and no data"
    for source, digest in ((OTHER, MINE), (STRANGER, MINE), (NODE, THEIRS)):
        assert cache.get(source, digest)[0] == 500


def test_a_mirror_is_answered_for_the_node_that_it_names(lab: Lab) -> None:
    name_mirror(lab)
    assert lab.get(MIRROR, MINE, **{"x-forwarded-for": NODE}) == (200, DATA)
    for asker in (OTHER, STRANGER, MIRROR, "nobody", f"{NODE}, {OTHER}", ""):
        assert lab.get(MIRROR, MINE, **{"x-forwarded-for": asker})[0] == 404
    assert lab.get(MIRROR, MINE)[0] == 404
    assert lab.get(STRANGER, MINE, **{"x-forwarded-for": NODE})[0] == 404, "it is no mirror"


# ---------------------------------------------------------------- a node with a mirror


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[tuple[Server, Server]]:
    for name in ("server", "mirror"):
        (tmp_path / name).mkdir()
    with serving(tmp_path / "server") as server, serving(tmp_path / "mirror") as mirror:
        yield server, mirror


def prime(servers: tuple[Server, Server], tmp_path: Path, url: str = "") -> list[str]:
    """Prime a file from the mirror (or `url` in its place) and the server, and check it; return
    what the server was asked for."""
    server, mirror = servers
    content = image_file(tmp_path / "image", 6 * MIB)
    source = added(server, tmp_path / "image")
    shutil.copytree(server.root / source.digest, mirror.root / source.digest, dirs_exist_ok=True)
    source = replace(source, mirror=f"{url or mirror.url}/{source.digest}")
    run(one(source), dirty(tmp_path / "disk", 6 * MIB), patience=QUICK)
    assert (tmp_path / "disk").read_bytes() == content
    return [path.rpartition("/")[2] + asked for path, asked in server.seen]


def test_a_node_needs_the_server_for_nothing_that_the_mirror_has(
    servers: tuple[Server, Server], tmp_path: Path
) -> None:
    assert prime(servers, tmp_path) == []


def test_a_mirror_that_is_switched_off_costs_nothing_but_time(
    servers: tuple[Server, Server], tmp_path: Path
) -> None:
    nobody = f"http://127.0.0.1:{free_port()}"
    assert [each[:5] for each in prime(servers, tmp_path, nobody)] == ["manif", "data."]


def test_a_mirror_without_the_image_is_left(servers: tuple[Server, Server], tmp_path: Path) -> None:
    url = f"{servers[1].url}/elsewhere"
    assert [each[:5] for each in prime(servers, tmp_path, url)] == ["manif", "data."]


def test_the_server_goes_on_where_a_mirror_fails(
    servers: tuple[Server, Server], tmp_path: Path
) -> None:
    servers[1].faults = [dies_after(100_000), dies_after(0)]
    (asked,) = prime(servers, tmp_path)
    assert asked.startswith("data.zstbytes=100000-")


def test_what_a_mirror_has_damaged_comes_from_the_server(
    servers: tuple[Server, Server], tmp_path: Path
) -> None:
    servers[1].faults = [flips(1000)]
    (asked,) = prime(servers, tmp_path)
    assert asked.startswith("data.zstbytes=0-"), "one chunk alone"
    servers[0].seen.clear()
    servers[1].on, servers[1].faults = "manifest.json", [flips(100)]
    assert prime(servers, tmp_path) == ["manifest.json"]


def test_a_mirrors_manifest_that_is_too_long_is_not_taken(
    servers: tuple[Server, Server], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifest, "LIMIT", MIB)
    server, mirror = servers
    image_file(tmp_path / "image", 6 * MIB)
    source = added(server, tmp_path / "image")
    (mirror.root / "manifest.json").write_bytes(bytes(2 * MIB))
    assert images.load_manifest(replace(source, mirror=mirror.url), QUICK).size == 6 * MIB
    assert [len(each.seen) for each in servers] == [1, 1]


@pytest.mark.parametrize(
    ("mirrors", "expected"),
    [
        ((), ""),
        (
            (ImageMirror("10.0.1.4", blocks=("rack9",)), ImageMirror(MIRROR, blocks=("rack1",))),
            MIRROR,
        ),
        ((ImageMirror(MIRROR, subnets=("lab",)), ImageMirror("10.0.1.4")), MIRROR),
        (
            (
                ImageMirror(MIRROR, subnets=("elsewhere",)),
                ImageMirror("10.0.1.4", blocks=("rack9",)),
            ),
            "",
        ),
    ],
)
def test_an_order_names_the_first_mirror_that_is_for_the_node(
    engine: Engine, site: Site, mirrors: tuple[ImageMirror, ...], expected: str
) -> None:
    in_transaction(engine, world)
    with engine.begin() as tx:
        block = blocks.ensure(tx, "rack1")
        found = nodes.by_mac(tx, "52:54:00:00:00:01")
        assert found is not None
        node = replace(found, block_id=block, attributes=hardware(found.boot_mac))
        order = orders.current(tx, node, replace(site, mirrors=mirrors), SUBNET.server)
    (image,) = order.images
    assert image.mirror == (f"http://{expected}:8069/images/{MINE}" if expected else "")
    assert image.url == f"http://{SUBNET.server}:8069/images/{MINE}"


def test_without_a_mirror_another_server_goes_on_where_this_one_fails(
    engine: Engine, site: Site
) -> None:
    in_transaction(engine, world)
    subnet = replace(SUBNET, others=("10.77.0.2", "10.77.0.3"))
    with engine.begin() as tx:
        found = nodes.by_mac(tx, "52:54:00:00:00:01")
        assert found is not None
        node = replace(found, attributes=hardware(found.boot_mac))
        order = orders.current(tx, node, replace(site, subnets=(subnet,)), SUBNET.server)
    (image,) = order.images
    assert image.mirror == f"http://{SUBNET.server}:8069/images/{MINE}"
    assert image.url == f"http://10.77.0.2:8069/images/{MINE}"
