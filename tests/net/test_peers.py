"""Two image servers with folders of their own on one database: each fetches what the other has, and
sends nodes there meanwhile."""

from __future__ import annotations

import fcntl
import http.client
import os
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
from sqlalchemy import Engine, update

from cod.flows import servers as hosts
from cod.flows.images import images
from cod.images import ingest, pull
from cod.images.pull import ImagePeer, PullFailed
from cod.images.verify import verify
from cod.model import Boot, HostPart, Ingested, Site, SiteRef, ipv4
from cod.net.bootserver import peers as edge
from cod.net.bootserver.server import HttpServer
from cod.pool import Pool, in_transaction
from cod.store import tables as t
from cod.wire import chunktoken
from tests.net.test_image_rights import NODE, OTHER, SYSTEM, world
from tests.ports import free_port
from tests.waiting import until
from trampoline import fetch

pytestmark = pytest.mark.slow

NOW = 1_000_000.0
ADDRESSES = {"a": "127.0.0.2", "b": "127.0.0.3"}


class Host:
    """An image server of the site at an address of its own, whose part of images says that it
    runs."""

    def __init__(self, lab: Lab, name: str, site: Site) -> None:
        own = ADDRESSES[name]
        others = tuple(address for address in ADDRESSES.values() if address != own)
        subnets = (replace(site.subnets[0], server=own, others=others),)
        self.lab, self.name, self.address = lab, name, own
        self.root, self.incoming = lab.folder / name / "images", lab.folder / name / "incoming"
        for folder in (self.root, self.incoming):
            folder.mkdir(parents=True)
        self.site = replace(site, subnets=subnets, boot=Boot(http_port=lab.port))
        self.pool = Pool(lab.engine, lab.reactor)
        self.key, self.now, current = name * 64, NOW, SiteRef(self.site)
        self.peers = edge.Peers(
            lab.reactor,
            self.pool,
            current,
            name,
            self.key,
            self.root,
            self.incoming,
            lambda: self.now,
        )
        self.http = HttpServer(
            lab.reactor,
            self.pool,
            current,
            lab.folder,
            self.root,
            [own],
            lab.port,
            lambda: self.now,
            peers=self.peers,
        )
        self.lives(NOW)

    def lives(self, at: float) -> None:
        part = HostPart(self.name, "images", (self.address,), "0.1", "1", NOW, at, self.key)
        in_transaction(self.lab.engine, hosts.renew, part=part)

    def start(self) -> None:
        self.lab.in_reactor(self.http.startService)
        self.lab.in_reactor(self.peers.startService)

    def stop(self) -> None:
        self.lab.in_reactor(self.peers.stopService)
        self.lab.in_reactor(self.http.stopService)
        self.pool.close()

    def look(self) -> None:
        """Look now."""
        self.lab.in_reactor(self.peers.wake)

    def get(
        self, source: str, digest: str, name: str = "data.zst", **headers: str
    ) -> tuple[int, bytes, str]:
        """What whoever is at `source` gets: status, body, and where it is sent."""
        line = http.client.HTTPConnection(
            self.address, self.lab.port, timeout=60, source_address=(source, 0)
        )
        line.request("GET", f"/images/{digest}/{name}", headers=headers)
        reply = line.getresponse()
        found = reply.status, reply.read(), reply.headers.get("Location", "")
        line.close()
        return found


@dataclass
class Lab:
    """Two hosts on one database; `made` is an image that a alone has, and n1 is to run."""

    folder: Path
    engine: Engine
    reactor: Any
    in_reactor: Callable[..., Any]
    port: int

    def begin(self, site: Site) -> None:
        in_transaction(self.engine, world)
        self.a, self.b = Host(self, "a", site), Host(self, "b", site)
        source = self.folder / "disk"
        source.write_bytes(random.Random(1).randbytes(3 << 20) + bytes(2 << 20))
        self.made: Ingested = ingest.ingest(source, self.a.root, raw=True)
        self.digest = self.made.digest
        with self.engine.begin() as tx:
            tx.execute(t.images.delete().where(t.images.c.name.not_like("%mine")))
            tx.execute(update(t.images).values(digest=self.digest))
        for host in (self.a, self.b):
            host.start()
        self.a.look()
        until(lambda: self.holders() >= {"a"}, "a says what it has", 60)

    def holders(self) -> set[str]:
        with self.engine.begin() as tx:
            rows = tx.execute(t.held_files.select()).all()
        return {server for server, name in rows if name == self.digest}

    def token(self, host: Host, source: str, until: float = NOW + 60.0) -> dict[str, str]:
        told = chunktoken.token(host.key, self.digest, source, int(until))
        return {"Authorization": f"Bearer {told}"}


@pytest.fixture
def lab(
    engine: Engine, reactor: Any, in_reactor: Callable[..., Any], site: Site, tmp_path: Path
) -> Iterator[Lab]:
    lab = Lab(tmp_path, engine, reactor, in_reactor, free_port())
    lab.begin(site)
    yield lab
    lab.b.stop()
    lab.a.stop()


def test_a_host_fetches_what_it_lacks(lab: Lab) -> None:
    folder = lab.b.root / f".pull-{lab.digest}"
    until(lambda: lab.holders() == {"a", "b"}, "b fetches the image, and says so", 60)
    until(lambda: not folder.exists(), "nothing else is left", 60)
    assert verify(lab.b.root, lab.digest).bad == ()
    whole = lab.a.get(NODE, lab.digest)
    assert (whole[0], lab.b.get(NODE, lab.digest)) == (200, whole)


def test_while_it_fetches_a_node_is_sent_to_the_host_that_has_it(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(edge, "AGAIN", 0.1)
    until(lambda: lab.holders() == {"a", "b"} and not lab.b.peers._pulling, "b has it", 60)
    busy = lab.b.root / f".pull-{lab.digest}"
    busy.mkdir()
    lock = os.open(busy, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)  # a fetch that goes on
    (lab.b.root / lab.digest).rename(tmp_path / "gone")
    place = f"http://127.0.0.2:{lab.port}/images/{lab.digest}/manifest.json"
    assert lab.b.get(NODE, lab.digest, "manifest.json") == (307, b"", place)
    status, whole, _ = lab.a.get(NODE, lab.digest, "manifest.json")
    with lab.engine.begin() as tx:  # the agent below asks from there
        own = t.bindings.c.address == ipv4(SYSTEM)
        tx.execute(update(t.bindings).where(own).values(address=ipv4("127.0.0.1")))
    asked = f"http://127.0.0.3:{lab.port}/images/{lab.digest}/manifest.json"
    assert (status, fetch.get(asked, 1 << 20, fetch.PATIENT)) == (200, whole)
    assert lab.b.get(OTHER, lab.digest, "manifest.json")[0] == 404  # nothing it is to run names it
    os.close(lock)
    lab.a.now = lab.b.now = NOW - 3600.0  # the clock is set, which is no reason to wait
    lab.b.look()
    until(lambda: lab.b.get(NODE, lab.digest, "manifest.json")[0] == 200, "b fetches it again", 60)


def test_only_servers_with_a_token_get_images_that_nothing_of_theirs_names(lab: Lab) -> None:
    a, there = lab.a, ADDRESSES["b"]
    assert a.get(there, lab.digest, **lab.token(a, there))[0] == 200
    for source, headers in (
        (there, {}),
        (there, {"Authorization": "Bearer 1.ü"}),
        (there, lab.token(a, there, NOW - 1.0)),  # expired
        (there, lab.token(a, OTHER)),  # another's
        (there, lab.token(lab.b, there)),  # of another key
        (OTHER, lab.token(a, OTHER)),  # no server of the site
    ):
        assert a.get(source, lab.digest, **headers)[0] == 404, (source, headers)
    assert a.get(there, "9" * 64, **lab.token(a, there))[0] == 404


def test_an_image_whose_only_holder_is_gone_says_who_held_it(lab: Lab) -> None:
    until(lambda: lab.holders() == {"a", "b"}, "both have it", 60)
    later = lab.b.now = NOW + 60.0
    lab.b.lives(later)

    def reason() -> str:
        [view] = in_transaction(lab.engine, images.every, now=later)
        return str(view.reason)

    assert reason() == ""
    (lab.b.root / lab.digest).rename(lab.folder / "lost")
    lab.b.look()
    until(lambda: lab.holders() == {"a"}, "b says that it has it no more", 60)
    assert reason() == "Its files are only on a, which does not run."
    status, body, _ = lab.b.get(NODE, lab.digest)
    assert (status, body) == (503, b"no server that runs has this image\n")


def test_a_fetch_goes_on_where_it_was_and_what_is_damaged_is_not_served(
    lab: Lab, tmp_path: Path
) -> None:
    a, root, digest = lab.a, tmp_path / "third", lab.digest
    there = a.root / digest / "data.zst"
    folder = root / f".pull-{digest}"
    peer = ImagePeer(
        a.address, lab.port, ADDRESSES["b"], lab.token(a, ADDRESSES["b"])["Authorization"][7:]
    )

    def left(begin: bytes) -> None:
        folder.mkdir(parents=True)
        (folder / "data.zst").write_bytes(begin)
        pull.pull(root, digest, peer, lambda: None)

    with pytest.raises(PullFailed, match="damaged"):
        left(bytes(1 << 20))  # kept: the rest alone was fetched
    assert not folder.exists()
    assert not (root / digest).exists()
    left(there.read_bytes()[: 1 << 20])
    assert (root / digest / "data.zst").read_bytes() == there.read_bytes()
    assert list(root.iterdir()) == [root / digest]
    with pytest.raises(PullFailed, match=r"127\.0\.0\.2 does not have it"):
        pull.pull(root, "9" * 64, peer, lambda: None)
    pull.forget(root, {digest})
    assert list(root.iterdir()) == [root / digest]


def test_one_process_fetches_an_image_at_a_time(tmp_path: Path) -> None:
    peer = ImagePeer("127.0.0.1", 1, "127.0.0.1", "")
    folder = tmp_path / f".pull-{'1' * 64}"
    folder.mkdir()
    lock = os.open(folder, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    with pytest.raises(PullFailed, match="another process fetches it"):
        pull.pull(tmp_path, "1" * 64, peer, lambda: None)
    pull.forget(tmp_path, ())
    assert folder.is_dir()
    os.close(lock)
    pull.forget(tmp_path, ())
    assert not folder.exists()


class Impostor(BaseHTTPRequestHandler):
    """Answers each request with `answers[its file]`: a length, and bytes until the client goes."""

    answers: ClassVar[dict[str, tuple[int, bytes]]] = {}
    asked: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        name = self.path.rpartition("/")[2]
        self.asked.append(name)
        length, data = self.answers[name]
        self.send_response(200)
        self.send_header("Content-Length", str(length))
        self.end_headers()
        with suppress(OSError):
            self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.parametrize(
    ("answers", "asked", "sentence"),
    [
        ({"manifest.json": (2, b"{}")}, ["manifest.json"], "its manifest's digest is not its name"),
        ({"manifest.json": (-1, bytes(8 << 20))}, ["manifest.json"], "-1 bytes"),
        (
            {"manifest.json": (0, b""), "data.zst": (1 << 30, b"")},
            ["manifest.json", "data.zst"],
            "1073741824 bytes, not",
        ),
    ],
)
def test_a_peer_that_lies_fills_no_disk(
    tmp_path: Path, answers: dict[str, tuple[int, bytes]], asked: list[str], sentence: str
) -> None:
    source, root = tmp_path / "disk", tmp_path / "root"
    source.write_bytes(random.Random(1).randbytes(1 << 20))
    made = ingest.ingest(source, tmp_path / "images", raw=True)
    honest = (tmp_path / "images" / made.digest / "manifest.json").read_bytes()
    if not answers["manifest.json"][0]:
        answers["manifest.json"] = len(honest), honest
    Impostor.answers, Impostor.asked = answers, []
    with ThreadingHTTPServer(("127.0.0.1", 0), Impostor) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        peer = ImagePeer("127.0.0.1", server.server_port, "127.0.0.1", "")
        with pytest.raises(PullFailed, match=sentence):
            pull.pull(root, made.digest, peer, lambda: None)
        server.shutdown()
    assert Impostor.asked == asked
    assert list(root.iterdir()) == []


def test_what_a_host_has_is_said_again(lab: Lab) -> None:
    """The database may have lost it."""
    until(lambda: lab.holders() == {"a", "b"}, "both have it", 60)
    with lab.engine.begin() as tx:
        tx.execute(t.held_files.delete())
    lab.a.peers._noted_at -= edge.NOTED
    lab.a.look()
    until(lambda: "a" in lab.holders(), "a says it again", 60)
