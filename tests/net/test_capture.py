"""A whole capture on loopback: the agent's program reads a file as its disk, confd orders, the
image server receives.

Then the image is primed onto another file, and both must hold the same.
"""

from __future__ import annotations

import errno
import hashlib
import http.client
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

import pytest
from sqlalchemy import Engine, update

from cod.core.nodes import transitions
from cod.flows.agents import orders
from cod.flows.nodes import captures
from cod.images import deposit, store
from cod.images.verify import verify
from cod.model import (
    Boot,
    Image,
    ImageRules,
    Node,
    Policy,
    Refused,
    Site,
    SiteRef,
)
from cod.net.bootserver.captures import Captures
from cod.net.bootserver.server import HttpServer
from cod.orders import Deposit, ImageSource, Order
from cod.policy.nodes import lifecycle
from cod.pool import Pool, in_transaction
from cod.states import Fault, NodeEvent, Step
from cod.store import tables as t
from cod.store.images import images, templates
from cod.store.nodes import nodes, sessions
from cod.store.people import groups
from cod.wire import capture as wire
from cod.wire.manifest import CHUNK
from tests import full_disk
from tests.bootsecret import boot_secret
from tests.contexts import flow_context
from tests.hardware import machine, nic
from tests.net.confd_woken import confd_server
from tests.waiting import until
from trampoline import capture, cprime, ctramp, partitions
from trampoline.deposit import Sender
from trampoline.errors import PrimeError, WayError
from trampoline.fetch import Patience
from trampoline.inventory import file_disk
from trampoline.options import parse
from trampoline.target import Target
from trampoline.zstd import Compressor

pytestmark = pytest.mark.slow  # half a minute of processor time and more, together with its like

MAC = "52:54:00:00:00:01"
SECRET = "5e" * 32
QUICK = Patience(stall=60.0, pause=0.05)


class World:
    """An image server, a confd, and one machine of the reserve whose disk is not COD's."""

    def __init__(
        self, folder: Path, engine: Engine, pool: Pool, reactor: Any, in_reactor: Any, site: Site
    ) -> None:
        self.folder, self.engine, self.pool, self.reactor, self.in_reactor = (
            folder,
            engine,
            pool,
            reactor,
            in_reactor,
        )
        self.images = folder / "images"
        self.images.mkdir()
        self.port = 0
        self.site = replace(site, images=ImageRules(open=True))
        self.serve()
        self.site = replace(self.site, boot=Boot(http_port=self.port))
        self.confd = confd_server(reactor, pool, SiteRef(self.site), "one", ["127.0.0.1"], 0)
        in_reactor(self.confd.startService)
        self.running: threading.Thread | None = None
        nic(machine(folder / "root"), "eth0", MAC, driver="e1000")

    @cached_property
    def disk(self) -> Path:
        """The machine's, made when it is needed."""
        return full_disk.make(self.folder / "disk")

    def serve(self) -> None:
        self.captures = Captures(
            self.reactor, self.pool, SiteRef(self.site), self.images, time.time
        )
        self.http = HttpServer(
            self.reactor,
            self.pool,
            SiteRef(self.site),
            self.folder,
            self.images,
            ["127.0.0.1"],
            self.port,
            captures=self.captures,
        )
        for service in (self.captures, self.http):
            self.in_reactor(service.startService)
        self.port = self.http.port

    def stop(self) -> None:
        for service in (self.http, self.captures):
            self.in_reactor(service.stopService)

    def mint(self) -> None:
        secret = boot_secret(self.engine, self.site, MAC, disk="foreign")
        (self.folder / "secret").write_text(str(secret))

    def agent(self) -> None:
        """Start the agent and wait until it idles."""
        self.mint()
        given = parse(
            [
                "--confd",
                f"127.0.0.1:{self.confd.port}",
                "--mac",
                MAC,
                "--secret",
                str(self.folder / "secret"),
                "--root",
                str(self.folder / "root"),
                "--disk",
                str(self.disk),
                "--reboot-command",
                "true",
                "--poweroff-command",
                "true",
                "--once",
            ]
        )
        self.running = threading.Thread(
            target=ctramp.main, args=(ctramp.Options(**given),), daemon=True
        )
        self.running.start()
        self.wait(lambda: self.node().state == "inactive")

    def want(self, image: str = "mine", **more: Any) -> None:
        in_transaction(
            self.engine,
            captures.want,
            flow_context(self.site, time.time(), "user:ann"),
            name="n1",
            image=image,
            secret=SECRET,
            **more,
        )
        self.in_reactor(self.confd.poll)

    def show(self) -> Any:
        return in_transaction(self.engine, captures.show, name="n1")

    def node(self) -> Node:
        node = in_transaction(self.engine, nodes.by_name, "n1")
        assert node is not None
        return node

    def wait(self, condition: Callable[[], Any]) -> None:
        until(
            condition, lambda: (self.node(), self.show() if self.node().state != "new" else ""), 60
        )

    # ------------------------------------------------------------ by hand

    def order(self) -> str:
        return f"{self.node().id}.{self.node().generation}"

    def deposit(self) -> Deposit:
        return Deposit(f"http://127.0.0.1:{self.port}/captures/{self.order()}", SECRET, 0)

    def ask(
        self, method: str, path: str, body: bytes = b"", secret: str = SECRET
    ) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        with suppress(OSError):  # it is refused before it was all sent
            connection.request(
                method, f"/captures/{path}", body, {"Authorization": f"Bearer {secret}"}
            )
        response = connection.getresponse()
        return response.status, response.read()


@pytest.fixture
def world(
    tmp_path: Path, engine: Engine, pool: Pool, reactor: Any, in_reactor: Any, site: Site
) -> Iterator[World]:
    subnet = replace(site.subnets[0], server="127.0.0.1", network="127.0.0.0/8")
    site = replace(site, subnets=(subnet,), policy=Policy(auto_approve=True, heartbeat=30.0))
    world = World(tmp_path, engine, pool, reactor, in_reactor, site)
    yield world
    if world.confd.running:
        world.in_reactor(world.confd.stopService)
    if world.http.running:
        world.stop()
    if world.running:
        world.running.join(60)  # it speaks on the standard output, which the next test may read
        assert not world.running.is_alive()


@pytest.fixture
def taking(world: World) -> World:
    """A node that is being captured; its agent is a test's own."""
    world.mint()
    node = world.node()

    def there(tx: Any) -> None:
        report = f'<node><disk size="{world.disk.stat().st_size}"/></node>'
        tx.execute(update(t.nodes).values(state="inactive", attributes=report))
        sessions.open(tx, node.id, "one", "127.0.0.1", time.time())

    in_transaction(world.engine, there)
    in_transaction(
        world.engine,
        captures.want,
        flow_context(world.site, time.time(), "user:ann"),
        name="n1",
        image="mine",
        secret=SECRET,
    )
    return world


def primed(world: World, image: str, **parts: str) -> Path:
    """The image written to another disk by cprime, fetched from the same server; and others into
    partitions, by `p` and their numbers."""
    targets = {name.removeprefix("p"): part for name, part in parts.items()} | {"disk": image}
    rows = in_transaction(world.engine, images.named, list(targets.values()))
    other = world.folder / "other"
    other.write_bytes(b"\xaa" * (48 << 20))
    sources = tuple(
        ImageSource(
            target,
            f"http://127.0.0.1:{world.port}/images/{rows[name].digest}",
            "chunks",
            rows[name].digest,
            rows[name].size,
        )
        for target, name in targets.items()
    )
    order = Order("9.9", "prime", images=sources, verify=True, seed={"meta-data": "of node n2"})
    cprime.prime(order, [file_disk(other)], lambda *_: None, QUICK)
    return other


# ---------------------------------------------------------------- the whole way


def test_an_agent_captures_and_another_disk_is_primed_with_it(world: World, tmp_path: Path) -> None:
    before = hashlib.sha256(world.disk.read_bytes()).digest()
    world.agent()
    world.want()
    world.wait(lambda: world.show().state == "done")
    world.wait(lambda: world.node().state == "inactive")
    assert hashlib.sha256(world.disk.read_bytes()).digest() == before
    row = in_transaction(world.engine, images.named, ["mine"])["mine"]
    assert (row.state, row.content, verify(world.images, row.digest).bad) == ("ready", "disk", ())
    assert row.used < 20 << 20
    made = in_transaction(world.engine, templates.find, "mine")
    assert made is not None
    assert "3: ext, 24 MiB root" in made.document
    history = in_transaction(world.engine, nodes.history, world.node().id)
    assert [event["event"] for event in history][-3:] == ["capture_ordered", "captured", "idled"]
    assert history[-2]["bytes_written"] >= row.used
    other = primed(world, "mine")
    assert full_disk.files(other, tmp_path / "a") == full_disk.files(world.disk, tmp_path / "b")
    assert full_disk.SECRET not in other.read_bytes()
    assert b"of node n2" in other.read_bytes()
    assert not list(world.images.glob(".capture-*"))


def captured(world: World, image: str, what: str) -> Image:
    """The image of a part of the disk, once it is there."""
    world.want(image, what=what)
    world.wait(lambda: world.show().image == image and world.show().state == "done")
    world.wait(lambda: world.node().state == "inactive")
    return in_transaction(world.engine, images.named, [image])[image]


def test_the_map_and_its_partitions_are_captured_and_put_back(world: World, tmp_path: Path) -> None:
    world.agent()
    plan = captured(world, "plan", "map")
    assert (plan.content, plan.used) == ("disk", 2 << 20), "the tables at both ends, nothing else"
    for span in full_disk.SPANS:
        row = captured(world, f"part-{span.number}", str(span.number))
        assert (row.content, row.size, row.ends_at) == ("partition", span.size, 0)
        assert verify(world.images, row.digest).bad == ()
    assert in_transaction(world.engine, templates.find, "plan") is None
    parts = {f"p{span.number}": f"part-{span.number}" for span in full_disk.SPANS}
    other = primed(world, "plan", **parts)
    assert full_disk.files(other, tmp_path / "a") == full_disk.files(world.disk, tmp_path / "b")
    assert full_disk.SECRET not in other.read_bytes()
    with Target(str(other)) as copy, Target(str(world.disk)) as disk:
        was, now = partitions.read_gpt(disk), partitions.read_gpt(copy)
        assert was is not None
        assert now is not None
        mine = {number: was.entries[number] for number in (1, 2, 3, 4)}
        assert {number: now.entries[number] for number in mine} == mine
        assert copy.read(9, 0) == b"boot code"
        assert copy.read(9, 1 << 20) == b"stage two"
    # an image of a partition in the place of what the image of the whole disk has there
    world.disk.write_bytes(world.disk.read_bytes().replace(b"stage two", b"stage new"))
    captured(world, "newer", "1")
    assert captured(world, "whole", "").content == "disk"
    world.disk.write_bytes(world.disk.read_bytes().replace(b"stage new", b"stage old"))
    captured(world, "older", "1")
    other = primed(world, "whole", p1="older")
    assert other.read_bytes()[1 << 20 :][:9] == b"stage old"
    assert full_disk.files(other, tmp_path / "c") == full_disk.files(world.disk, tmp_path / "d")
    for target, why in (("9", "has no partition 9"), ("4", "larger than partition 4")):
        with pytest.raises(PrimeError, match=why):
            primed(world, "whole", **{f"p{target}": "part-3"})


@pytest.mark.parametrize("what", ["9", "5"])
def test_a_partition_that_is_not_there_or_a_seed_is_not_captured(taking: World, what: str) -> None:
    order = Order("1.1", "capture", deposit=replace(taking.deposit(), what=what))
    with pytest.raises(PrimeError, match=f"no partition {what} to capture; it has 1, 2, 3, 4"):
        capture.capture(order, [file_disk(taking.disk)], lambda *_: None, QUICK)


def test_an_agent_that_knows_of_no_parts_is_refused(taking: World) -> None:
    """The whole disk would become the image of a partition."""
    in_transaction(taking.engine, lambda tx: tx.execute(update(t.captures).values(what="3")))
    order = Order("1.1", "capture", deposit=taking.deposit())
    with pytest.raises(PrimeError, match="captures whole disks only"):
        capture.capture(order, [file_disk(taking.disk)], lambda *_: None, QUICK)
    assert in_transaction(taking.engine, images.named, ["mine"]) == {}


def test_a_server_that_is_started_again_in_the_middle_goes_on(
    taking: World, tmp_path: Path
) -> None:
    world, told = taking, []

    def progress(phase: str, done: int, total: int, rate: float) -> None:
        told.append(done)

    body = wire.pack(0, CHUNK, Compressor(3).frame(bytearray(b"x" * CHUNK)))
    assert world.ask("PUT", f"{world.order()}/0", body) == (200, json.dumps({"at": CHUNK}).encode())
    world.stop()
    world.serve()
    assert world.ask("GET", world.order()) == (200, json.dumps({"at": CHUNK}).encode())
    assert world.ask("PUT", f"{world.order()}/0", body)[0] == 409
    done = capture.capture(
        Order(world.order(), "capture", deposit=world.deposit()),
        [file_disk(world.disk)],
        progress,
        QUICK,
    )
    assert world.show().state == "done"
    assert told[-1] == done.bytes_written
    row = in_transaction(world.engine, images.named, ["mine"])["mine"]
    assert verify(world.images, row.digest).bad == ()


def test_an_agent_sends_again_what_a_server_has_lost(
    taking: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = taking
    put = Sender.put
    calls = []

    def lossy(self: Any, piece: bytes, at: int, end: int) -> None:
        calls.append(at)
        if len(calls) == 2:
            world.stop()
            for path in world.images.glob(".capture-*/chunks"):
                # the machine went down before more of it was on the disk
                os.truncate(path, wire.HEAD.size)
            world.serve()
        put(self, piece, at, end)

    monkeypatch.setattr(Sender, "put", lossy)
    capture.capture(
        Order(world.order(), "capture", deposit=world.deposit()),
        [file_disk(world.disk)],
        lambda *_: None,
        QUICK,
    )
    assert calls.count(CHUNK) == 1  # the second time it began where the server was
    row = in_transaction(world.engine, images.named, ["mine"])["mine"]
    assert verify(world.images, row.digest).bad == ()


def test_another_server_takes_it_in_anew_when_the_first_stays_away(
    taking: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, put = taking, Sender.put
    second = tmp_path / "second"
    second.mkdir()
    other = Captures(world.reactor, world.pool, SiteRef(world.site), second, time.time)
    server = HttpServer(
        world.reactor,
        world.pool,
        SiteRef(world.site),
        tmp_path,
        second,
        ["127.0.0.1"],
        0,
        captures=other,
    )
    for service in (other, server):
        world.in_reactor(service.startService)
    calls: list[int] = []

    def killing(self: Sender, piece: bytes, at: int, end: int) -> None:
        calls.append(at)
        if len(calls) == 3:
            world.stop()
        put(self, piece, at, end)

    monkeypatch.setattr(capture, "CHUNKS", 4)
    monkeypatch.setattr(Sender, "put", killing)
    path = world.deposit().url.rpartition("/captures/")[2]
    others = f"http://127.0.0.1:{server.port}/captures/{path}"
    order = Order(path, "capture", deposit=replace(world.deposit(), patience=8, others=others))
    told: dict[str, str] = {}

    def tell(phase: str, *_: object) -> None:
        in_transaction(world.engine, nodes.change, world.node(), progress_phase=phase)
        told.setdefault(phase, world.show().reason)

    try:
        capture.capture(order, [file_disk(world.disk)], tell, QUICK)
    finally:
        for service in (server, other):
            world.in_reactor(service.stopService)
    assert told == {"capture": "", "capture anew": captures.ANEW}
    row = in_transaction(world.engine, images.named, ["mine"])["mine"]
    assert verify(second, row.digest).bad == ()
    assert deposit.orders(second) == set()
    assert deposit.orders(world.images) == {path}, "until that server runs again"


def test_the_order_names_the_captures_at_all_servers(taking: World) -> None:
    world = taking
    subnet = replace(world.site.subnets[0], others=("127.0.0.2",))
    site = replace(world.site, subnets=(subnet,))
    order = in_transaction(world.engine, orders.current, world.node(), site, "127.0.0.1")
    assert order.deposit is not None
    assert (order.deposit.url, order.deposit.others) == (
        f"http://127.0.0.1:{world.port}/captures/{order.id}",
        f"http://127.0.0.2:{world.port}/captures/{order.id}",
    )


def broken_off(world: World, monkeypatch: pytest.MonkeyPatch) -> str:
    """Begin a capture whose server is away after two pieces. Return its order, which has sent them;
    the capture waits for the next one."""
    put = Sender.put
    calls: list[int] = []

    def away(self: Sender, piece: bytes, at: int, end: int) -> None:
        calls.append(at)
        if len(calls) > 2:
            raise WayError("no answer")
        put(self, piece, at, end)

    first = world.order()
    with monkeypatch.context() as patched:
        patched.setattr(capture, "CHUNKS", 4)  # pieces of 4 MiB: the disk has about 20 in use
        patched.setattr(Sender, "put", away)
        with pytest.raises(WayError):
            taken(world)
    row = world.node()
    step = lifecycle.on_trouble(row, NodeEvent.FAILED, "away", world.site.policy, Fault.WAY)
    for each in (step, Step(NodeEvent.CAPTURE_ORDERED, "again")):
        in_transaction(
            world.engine,
            transitions.apply,
            world.node(),
            each,
            now=time.time(),
            actor="test",
            policy=world.site.policy,
        )
        world.in_reactor(world.captures.sweep)
    assert world.order() != first
    assert deposit.orders(world.images) == {first}, "what has come is kept for the next order"
    return first


def taken(world: World, told: Callable[..., None] = lambda *_: None) -> capture.Captured:
    order = Order(world.order(), "capture", deposit=world.deposit())
    return capture.capture(order, [file_disk(world.disk)], told, QUICK)


def test_a_later_order_sends_only_what_an_earlier_one_has_not(
    taking: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = taking
    first = broken_off(world, monkeypatch)
    at = world.captures._open[first].at
    assert at >= 4 << 20
    put, began = Sender.put, []

    def noted(self: Sender, piece: bytes, at: int, end: int) -> None:
        began.append(at)
        put(self, piece, at, end)

    monkeypatch.setattr(Sender, "put", noted)
    phases: list[str] = []
    done = taken(world, lambda phase, *_: phases.append(phase))
    assert min(began) == at, "where the order before has ended"
    assert list(dict.fromkeys(phases)) == ["compare", "capture"]
    row = in_transaction(world.engine, images.named, ["mine"])["mine"]
    assert verify(world.images, row.digest).bad == ()
    assert done.bytes_sent < row.stored
    assert [path.name for path in world.images.iterdir()] == [row.digest]


def test_a_disk_that_has_changed_since_is_sent_anew(
    taking: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = taking
    broken_off(world, monkeypatch)
    world.stop()
    world.serve()
    world.disk.write_bytes(world.disk.read_bytes().replace(b"boot code", b"boot CODE"))
    taken(world)
    row = in_transaction(world.engine, images.named, ["mine"])["mine"]
    assert verify(world.images, row.digest).bad == ()
    assert primed(world, "mine").read_bytes()[:9] == b"boot CODE"
    assert [path.name for path in world.images.iterdir()] == [row.digest]


def test_an_agent_that_does_not_compare_begins_anew(
    taking: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An agent that is older than the server does not: its machine may have run meanwhile."""
    world = taking
    first = broken_off(world, monkeypatch)
    later = world.order()
    assert world.ask("POST", f"{later}/before", b'{"heads": "%s"}' % (b"0" * 64)) == (
        409,
        b'{"at": 0}',
    )
    assert deposit.orders(world.images) == {later}
    assert world.ask("GET", f"{later}/before") == (200, b'{"at": 0, "heads": ""}')
    assert world.ask("GET", f"{first}/before")[0] == 403


def test_cancelling_ends_the_agents_work_and_leaves_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = threading.Event()
    put = Sender.put
    monkeypatch.setattr(Sender, "put", lambda *args: (go.wait(120), put(*args))[-1])
    world.agent()
    world.want()
    world.wait(lambda: world.show().state == "running" and world.show().total)
    in_transaction(
        world.engine, captures.cancel, flow_context(world.site, time.time(), "user:ann"), name="n1"
    )
    world.in_reactor(world.confd.poll)
    go.set()
    world.wait(lambda: world.node().state == "inactive")
    assert world.show().state == "cancelled"
    until(lambda: not any(thread.name.startswith("order") for thread in threading.enumerate()))
    world.in_reactor(world.captures.sweep)
    assert not list(world.images.iterdir())
    assert not in_transaction(world.engine, images.every)


# ---------------------------------------------------------------- what the door refuses


def test_strangers_are_refused_before_their_bodies_are_read(taking: World) -> None:
    world = taking
    body = os.urandom(wire.LARGEST - 100)
    for order, secret in (
        (world.order(), "00" * 32),
        (world.order(), ""),
        ("1.99", SECRET),
        ("9.1", SECRET),
        ("..", SECRET),
        ("", SECRET),
        ("%2e%2e", SECRET),
    ):
        for method, path in (("GET", order), ("PUT", f"{order}/0"), ("POST", order)):
            status = world.ask(method, path, b"" if method == "GET" else body, secret)[0]
            assert status in (403, 404, 405), (method, path)
    assert not list(world.images.iterdir())


NONSENSE = [
    ("PUT", "{}/0", b"rubbish", 400),
    ("PUT", "{}/x", b"", 409),
    ("PUT", "{}/1048576", b"", 409),
    ("PUT", "{}", b"", 404),
    ("PUT", "{}/0/1", b"", 404),
    ("DELETE", "{}", b"", 404),
    ("PUT", "{}/before", b"", 409),
    ("POST", "{}/before", b"", 400),
    ("POST", "{}/before", b'{"heads": "x"}', 400),
    ("POST", "{}/before/0", b"", 404),
    ("DELETE", "{}/before", b"", 404),
    ("POST", "{}", b"", 400),
    ("PUT", "{}/0", bytes(wire.LARGEST + 1), 400),
    ("POST", "{}", b"[]", 400),
    ("POST", "{}", b'{"size": 1, "at": 0, "partitions": [{}]}', 400),
    ("POST", "{}", b'{"size": 0, "at": 0, "partitions": []}', 400),
    ("POST", "{}", b'{"size": 5, "at": 7, "partitions": []}', 409),
]


def test_what_makes_no_sense_is_refused(taking: World) -> None:
    for method, path, body, status in NONSENSE:
        assert taking.ask(method, path.format(taking.order()), body)[0] == status, (
            method,
            path,
            body[:40],
        )
        assert store.digests(taking.images) == frozenset()
        assert taking.ask("GET", taking.order())[0] == 200


def test_a_quota_ends_it_also_one_that_is_set_meanwhile(taking: World) -> None:
    world = taking
    group = in_transaction(world.engine, groups.ensure, "physics", time.time())

    def owned(tx: Any) -> None:
        tx.execute(update(t.captures).values(group_id=group.id))

    in_transaction(world.engine, owned)
    frame = Compressor(3).frame(bytearray(b"x" * CHUNK))
    assert world.ask("PUT", f"{world.order()}/0", wire.pack(0, CHUNK, frame))[0] == 200
    in_transaction(world.engine, groups.change, group.id, image_quota=1000)
    with pytest.raises(PrimeError, match="may have 1000 bytes more"):
        capture.capture(
            Order(world.order(), "capture", deposit=world.deposit()),
            [file_disk(world.disk)],
            lambda *_: None,
            QUICK,
        )


@pytest.mark.parametrize("full", [False, True])
def test_a_capture_that_would_take_what_is_left_for_others_ends_and_leaves_nothing(
    taking: World, monkeypatch: pytest.MonkeyPatch, full: bool
) -> None:
    world = taking
    other = deposit.Deposit(world.images, "77.1")
    other.close()
    frame = Compressor(3).frame(bytearray(b"x" * CHUNK))
    assert world.ask("PUT", f"{world.order()}/0", wire.pack(0, CHUNK, frame))[0] == 200

    def fails(*_: object) -> NoReturn:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        if full:  # somebody else was quicker
            patch.setattr(deposit.Deposit, "_fill", fails)
        else:
            patch.setattr(deposit, "ROOM", 1 << 60)
        piece = wire.pack(CHUNK, CHUNK, frame)
        status, told = world.ask("PUT", f"{world.order()}/{CHUNK}", piece)
    assert status == 507
    assert ("disk is full" if full else "are left for others") in told.decode()
    assert deposit.orders(world.images) == {"77.1"}
    assert world.ask("GET", world.order()) == (200, b'{"at": 0}')


def test_nothing_is_written_for_what_no_disk_of_the_node_has(taking: World) -> None:
    frame = Compressor(3).frame(bytearray(b"x" * CHUNK))
    end = taking.disk.stat().st_size
    for at in (end, 1 << 40):
        status, told = taking.ask("PUT", f"{taking.order()}/0", wire.pack(at, CHUNK, frame))
        assert (status, f"largest has {end} bytes" in told.decode()) == (400, True)
    word = json.dumps({"size": 1 << 40, "at": 0, "partitions": []}).encode()
    assert taking.ask("POST", taking.order(), word)[0] == 400
    data = taking.images / f".capture-{taking.order()}" / "data.zst"
    assert data.stat().st_size == 0


def test_what_is_left_of_other_orders_is_swept(taking: World) -> None:
    world = taking
    other = deposit.Deposit(world.images, "77.1")
    other.close()
    world.ask("GET", world.order())
    world.in_reactor(world.captures.sweep)
    assert deposit.orders(world.images) == {world.order()}
    with pytest.raises(Refused):
        deposit.folder_of(world.images, "../77.1")


def test_an_agent_that_reads_an_unreadable_disk_says_so(taking: World) -> None:
    with pytest.raises(PrimeError, match="no suitable disk"):
        capture.capture(
            Order("1.1", "capture", disk="serial:X", deposit=taking.deposit()),
            [file_disk(taking.disk)],
            lambda *_: None,
            QUICK,
        )
    with pytest.raises(PrimeError, match="does not say where"):
        capture.capture(Order("1.1", "capture"), [file_disk(taking.disk)], lambda *_: None, QUICK)


def test_the_first_disk_that_is_not_empty_is_read_where_nobody_knows(taking: World) -> None:
    empty = taking.folder / "empty"
    empty.write_bytes(bytes(1 << 20))
    disks = [file_disk(empty), file_disk(taking.disk)]
    done = capture.capture(
        Order("1.1", "capture", deposit=taking.deposit()), disks, lambda *_: None, QUICK
    )
    assert done.path == str(taking.disk)


def test_a_server_that_is_not_there_is_given_up(taking: World) -> None:
    taking.stop()
    with pytest.raises(WayError, match=r"gave up after \d+ tries in 1 seconds"):
        capture.capture(
            Order("1.1", "capture", deposit=replace(taking.deposit(), patience=1)),
            [file_disk(taking.disk)],
            lambda *_: None,
            Patience(stall=1.0, pause=0.2),
        )
