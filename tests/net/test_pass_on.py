"""Nodes that pass an image on to each other while they receive it, over real HTTP on loopback."""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from cod.images.ingest import ingest
from cod.orders import ChunkSource, ImageSource, Order, PassOn
from cod.wire import chunktoken, manifest
from cod.wire.manifest import Manifest
from tests.imageserver import Request, Server, dies_after, serving
from tests.ports import free_port
from tests.waiting import until
from trampoline import chunkserver, cprime
from trampoline.chunkserver import ChunkRing, ChunkServer
from trampoline.chunksources import ChunkSources
from trampoline.errors import PrimeError
from trampoline.fetch import NodePatience, Patience
from trampoline.inventory import file_disk

pytestmark = pytest.mark.slow

MIB = 1 << 20
KEY = "ab" * 32
NOW = 1_700_000_000.0
CHUNKS = 24
SURE = NodePatience(
    start=60.0, worth=1.0, connect=20.0, stall=20.0, idle=60.0, starved=60.0, compare=600.0
)
PATIENT = Patience(stall=60, tries=3, pause=0.02, nodes=SURE)


class Site:
    """An image on a server, and nodes that have some of it."""

    def __init__(self, folder: Path, server: Server) -> None:
        self.server = server
        self.content = b"".join(
            random.Random(number).randbytes(30_000) + bytes(MIB - 30_000)
            for number in range(CHUNKS)
        )
        (folder / "image").write_bytes(self.content)
        made = ingest(folder / "image", server.root, raw=True)
        self.image = ImageSource(
            "disk", f"{server.url}/{made.digest}", "chunks", made.digest, made.size
        )
        here = server.root / made.digest
        self.manifest: Manifest = manifest.decode((here / "manifest.json").read_bytes())
        self.stored = (here / "data.zst").read_bytes()
        self.nodes: list[ChunkServer] = []

    def chunk(self, number: int) -> bytes:
        chunk = self.manifest.chunks[number]
        return self.stored[chunk.offset : chunk.offset + chunk.length]

    def node(
        self, chunks: int = CHUNKS, *, room: int = 64 * MIB, rate: int = 0, linger: int = 60
    ) -> ChunkServer:
        """A node that has received so many chunks."""
        ring = ChunkRing(room)
        ring.expect(self.image.digest, self.manifest)
        ring.begin(self.image.digest, 0)
        node = ChunkServer(PassOn(0, KEY, rate, linger, NOW), ring, "127.0.0.1")
        self.give(node, range(chunks))
        self.nodes.append(node)
        return node

    def give(self, node: ChunkServer, numbers: range) -> None:
        for number in numbers:
            node.ring.put(self.image.digest, number, self.chunk(number))

    def token(self, expires: int = int(NOW) + 3600, address: str = "127.0.0.1") -> str:
        return chunktoken.token(KEY, self.image.digest, address, expires)

    def by(self, *nodes: ChunkServer | int, token: str = "") -> ImageSource:
        """The image, from those nodes (or ports) first."""
        ports = [node if isinstance(node, int) else node.port for node in nodes]
        sources = (
            ChunkSource(f"http://127.0.0.1:{port}", token or self.token(), f"n{number}")
            for number, port in enumerate(ports)
        )
        return replace(self.image, sources=tuple(sources))

    def sent(self) -> int:
        """Requests for chunks that the server answered."""
        return sum(path.endswith("data.zst") for path, _ in self.server.seen)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    (tmp_path / "root").mkdir()
    with serving(tmp_path / "root") as server:
        site = Site(tmp_path, server)
        yield site
        for node in site.nodes:
            node.close()


def fetched(source: ImageSource, site: Site, nodes: NodePatience = SURE) -> list[str]:
    """Fetch all; return from whom, and see that every chunk is right in the end."""
    told: list[str] = []
    sources = ChunkSources(source, site.manifest, replace(PATIENT, nodes=nodes), None, told.append)
    numbers = []
    for packed in sources.chunks():
        data = bytes(packed.data)
        if manifest.digest(data) != packed.chunk.digest:
            data = bytes(sources.again(packed.chunk))
        assert data == site.chunk(packed.number)
        numbers.append(packed.number)
    assert sorted(numbers) == list(range(CHUNKS))
    return told


# ---------------------------------------------------------------- one node asks others


def test_chunks_come_from_the_first_node_and_not_from_the_server(site: Site) -> None:
    node = site.node()
    assert fetched(site.by(node, site.node()), site) == ["n0"]
    assert site.sent() == 0
    stored = sum(chunk.length for chunk in site.manifest.chunks)
    until(lambda: node.sent == stored, "the node's count, which follows what it sends")


def test_chunks_are_passed_on_while_they_are_received(site: Site) -> None:
    node = site.node(0)
    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(fetched, site.by(node), site)
        for number in range(CHUNKS):
            site.give(node, range(number, number + 1))
        assert asking.result() == ["n0"]
    assert site.sent() == 0


def test_a_dead_node_costs_its_child_a_step_up(site: Site) -> None:
    above = site.node()
    hasty = replace(SURE, start=0.0)
    assert fetched(site.by(free_port(), above), site, hasty) == ["n1"]
    assert fetched(site.by(free_port()), site, hasty) == [""]


def test_a_node_that_begins_later_is_waited_for(site: Site) -> None:
    port = free_port()
    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(fetched, site.by(port, site.node()), site)
        ring = ChunkRing(64 * MIB)
        ring.expect(site.image.digest, site.manifest)
        ring.begin(site.image.digest, 0)
        late = ChunkServer(PassOn(port, KEY, 0, 60, NOW), ring, "127.0.0.1")
        site.nodes.append(late)
        site.give(late, range(CHUNKS))
        assert asking.result() == ["n0"]


def test_a_small_image_is_not_worth_waiting(site: Site) -> None:
    soon = replace(SURE, worth=1e12)
    assert fetched(site.by(free_port(), site.node()), site, soon) == ["n1"]


def test_a_node_that_dies_while_it_sends_is_left_and_the_next_goes_on(site: Site) -> None:
    dying, above = site.node(5), site.node()
    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(fetched, site.by(dying, above), site)
        until(lambda: dying.sent)
        dying.close()
        assert asking.result() == ["n0", "n1"]
    assert site.sent() == 0


def test_a_lying_node_is_asked_no_more_and_no_wrong_chunk_is_kept(site: Site) -> None:
    liar, above = site.node(0), site.node()
    for number in range(CHUNKS):
        liar.ring.put(site.image.digest, number, bytes(len(site.chunk(number))))
    assert fetched(site.by(liar, above), site) == ["n0", "n1"]
    assert site.sent() == 1  # the first chunk, once more


@pytest.mark.parametrize(
    "token",
    [
        "nonsense",
        chunktoken.token(KEY, "0" * 64, "127.0.0.1", int(NOW) + 3600),
        f"{int(NOW) + 3600}.{'0' * 64}",
    ],
)
def test_a_node_gives_nothing_without_a_token_for_it(site: Site, token: str) -> None:
    node = site.node()
    assert fetched(site.by(node, token=token), site, replace(SURE, start=0.0)) == [""]
    assert node.sent == 0


def test_a_token_is_for_one_address_and_one_time(site: Site) -> None:
    node, hasty = site.node(), replace(SURE, start=0.0)
    others = [site.token(address="127.0.0.2"), site.token(expires=int(NOW))]
    for token in others:
        assert fetched(site.by(node, token=token), site, hasty) == [""]
    assert node.sent == 0
    assert fetched(site.by(node), site, hasty) == ["n0"]


def test_a_node_that_keeps_only_the_last_chunks_sends_a_late_one_further_up(site: Site) -> None:
    little = site.node(room=5 * len(site.chunk(0)))
    assert little.ring.is_gone(site.image.digest, 0)
    hasty = replace(SURE, start=0.0)
    assert fetched(site.by(little, site.node()), site, hasty) == ["n0", "n1"]
    assert fetched(site.by(little), site, hasty) == ["n0", ""]


def test_late_nodes_begin_with_what_comes_now_and_share_what_they_missed(site: Site) -> None:
    """The server sends the image's beginning once more, and not all of it."""
    half = CHUNKS // 2
    first = site.node(half, room=5 * len(site.chunk(0)) + 1000)
    late = site.node(0)
    begun = threading.Semaphore(0)

    def receive(source: ImageSource, ring: ChunkRing | None) -> list[int]:
        numbers = []
        sources = ChunkSources(source, site.manifest, PATIENT, ring, lambda name: begun.release())
        for packed in sources.chunks():
            if ring:
                ring.put(site.image.digest, packed.number, packed.data)
            assert packed.data == site.chunk(packed.number)
            numbers.append(packed.number)
        return numbers

    late.ring._images[site.image.digest].begins = -1
    with ThreadPoolExecutor(2) as pool:
        one = pool.submit(receive, site.by(first), late.ring)
        other = pool.submit(receive, site.by(late, first), None)
        for _ in range(2):
            begun.acquire(timeout=60)
        for number in range(half, CHUNKS):  # no faster than they can take it
            until(lambda last=number - 1: late.ring.is_kept(site.image.digest, last))
            first.ring.put(site.image.digest, number, site.chunk(number))
        numbers = one.result()
    missed = numbers[-1] + 1
    assert 0 < missed < half
    assert numbers == [*range(missed, CHUNKS), *range(missed)]
    assert other.result() == numbers
    [wanted] = [headers for path, headers in site.server.seen if path.endswith("data.zst")]
    last = site.manifest.chunks[missed - 1]
    assert wanted == f"bytes=0-{last.offset + last.length - 1}"


def test_a_node_that_gets_nothing_is_left_for_the_next_that_has_more(site: Site) -> None:
    stuck, above = site.node(4), site.node()
    assert fetched(site.by(stuck, above), site, replace(SURE, idle=0.1)) == ["n0", "n1"]
    assert site.sent() == 0


def test_a_node_whose_next_chunk_may_be_on_its_way_is_waited_for(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the end of a long chain the first chunk comes late."""
    node, above = site.node(0), site.node(1)
    answered = threading.Semaphore(0)
    is_kept = above.ring.is_kept

    def kept(digest: str, number: int) -> bool:
        answered.release()
        return is_kept(digest, number)

    monkeypatch.setattr(above.ring, "is_kept", kept)
    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(fetched, site.by(node, above), site, replace(SURE, idle=0.1))
        for _ in range(2):
            answered.acquire(timeout=60)
        site.give(node, range(CHUNKS))
        assert asking.result() == ["n0"]


def test_a_late_node_begins_with_one_of_the_chunks_that_came_last(site: Site) -> None:
    """So that nobody has to stay for it long."""
    node = site.node(room=20 * len(site.chunk(0)))
    first = node.ring.first(site.image.digest, 0.0)
    assert CHUNKS - 4 <= first < CHUNKS


def test_nodes_that_all_get_nothing_are_waited_for_and_then_the_server_is_asked(site: Site) -> None:
    stuck = replace(SURE, idle=0.1, starved=2.5)
    assert fetched(site.by(site.node(4), site.node(4)), site, stuck) == ["n0", ""]
    assert site.sent() == 1


def test_a_node_that_was_left_is_asked_again_after_a_while(site: Site) -> None:
    node = site.node()
    steps = replace(SURE, aside=0.0)
    told: list[str] = []
    sources = ChunkSources(
        site.by(node), site.manifest, replace(PATIENT, nodes=steps), None, told.append
    )
    for packed in sources.chunks():
        if packed.number == 3:
            sources._nodes[0].put_aside()
    assert told == ["n0"]
    assert site.sent() == 0


@pytest.mark.parametrize("others", [1, 0])
def test_a_slow_node_holds_up_only_itself(site: Site, others: int) -> None:
    slow, fast = site.node(1), [site.node() for _ in range(others)]
    steps = replace(SURE, compare=0.0, ahead=8)
    done = threading.Event()

    def trickle() -> None:
        for number in range(1, CHUNKS):
            if done.wait(1.0):  # the server is much faster, on a busy machine too
                return
            site.give(slow, range(number, number + 1))

    with ThreadPoolExecutor(1) as pool:
        pool.submit(trickle)
        told = fetched(site.by(slow, *fast), site, steps)
        done.set()
    assert told == ["n0", "n1" if others else ""]
    assert (site.sent() == 0) == bool(others)


def follow(site: Site, node: ChunkServer, tried: Callable[[], object]) -> None:
    """Let a node with one chunk have what it sends, and no more; the last ones once another source
    has been tried."""

    def has_sent(count: int) -> bool:
        return node.sent >= count

    for number in range(1, CHUNKS):
        sent = sum(chunk.length for chunk in site.manifest.chunks[:number])
        until(partial(has_sent, sent))
        if number == CHUNKS // 2:
            until(tried)
        site.give(node, range(number, number + 1))


def test_a_server_that_fails_is_not_taken_for_a_node_that_works(site: Site) -> None:
    slow = site.node(1)
    site.server.faults = [dies_after(0)] * 999
    with ThreadPoolExecutor(1) as pool:
        giving = pool.submit(follow, site, slow, site.sent)
        assert fetched(site.by(slow), site, replace(SURE, compare=0.0, ahead=8)) == ["n0"]
        giving.result()


def test_a_server_that_is_tried_and_does_not_answer_holds_nobody_up(site: Site) -> None:
    node, all_came, held_up = site.node(1), threading.Event(), []

    def waits(request: Request) -> None:
        held_up.append(not all_came.wait(20))

    site.server.faults = [waits]
    with ThreadPoolExecutor(1) as pool:
        giving = pool.submit(follow, site, node, site.sent)
        assert fetched(site.by(node), site, replace(SURE, compare=0.0, ahead=8)) == ["n0"]
        all_came.set()
        giving.result()
    until(lambda: held_up)
    assert held_up == [False]


def test_a_node_behind_the_next_is_not_left_for_one_that_is_no_faster(site: Site) -> None:
    """Two nodes that ask the same one share its link."""
    node, above = site.node(1), site.node(rate=3000)
    with ThreadPoolExecutor(1) as pool:
        giving = pool.submit(follow, site, node, lambda: above._children)
        assert fetched(site.by(node, above), site, replace(SURE, compare=0.0, ahead=8)) == ["n0"]
        giving.result()
    assert site.sent() == 0


def test_a_node_that_never_ends_its_answers_head_is_left(site: Site) -> None:
    def drip(listening: socket.socket) -> bool:
        """Return whether the one that asks has left."""
        connection, _ = listening.accept()
        done = threading.Event()
        with connection:
            connection.sendall(b"HTTP/1.1 200 OK\r\n")
            for _ in range(900):
                try:
                    connection.sendall(b"x")
                except OSError:
                    return True
                done.wait(0.02)
        return False

    with socket.create_server(("127.0.0.1", 0)) as listening, ThreadPoolExecutor(1) as pool:
        dripping = pool.submit(drip, listening)
        source = site.by(listening.getsockname()[1])
        assert fetched(source, site, replace(SURE, start=0.0, stall=0.2)) == [""]
        assert dripping.result()


def test_a_mirror_without_the_image_is_asked_once(site: Site, tmp_path: Path) -> None:
    node = site.node()
    (tmp_path / "mirror").mkdir()
    with serving(tmp_path / "mirror") as mirror:
        source = replace(site.by(node), mirror=f"{mirror.url}/{site.image.digest}")
        told: list[str] = []
        sources = ChunkSources(source, site.manifest, PATIENT, None, told.append)
        for packed in sources.chunks():
            if packed.number in (3, 9):
                sources._nodes[0].put_aside(longer=True)
            elif packed.number == 6:
                sources._nodes[0].asked_again_at = 0.0
        assert told == ["n0", "", "n0", ""]
        assert len(mirror.seen) == 1
    assert site.sent() == 2


def test_what_a_node_sends_is_limited(site: Site) -> None:
    node = site.node(rate=1 << 20)
    total = sum(chunk.length for chunk in site.manifest.chunks)
    began = time.monotonic()
    fetched(site.by(node), site)
    assert time.monotonic() - began > 0.8 * (total / (1 << 20) - 0.1)


def test_a_node_stays_until_its_children_have_all(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunkserver, "_STAY", 60.0)
    node = site.node(CHUNKS - 1)
    told: list[str] = []

    def tell(phase: str, *_: object) -> None:
        told.append(phase)
        site.give(node, range(CHUNKS - 1, CHUNKS))  # without it no child has all

    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(fetched, site.by(node), site)
        until(lambda: node.sent)
        node.linger(tell)
        node.close()  # as a machine that is reset
        assert asking.result() == ["n0"]
    assert set(told) == {"pass on"}
    assert site.sent() == 0


def test_a_child_that_takes_nothing_keeps_a_node_for_a_bounded_time(site: Site) -> None:
    node = site.node(linger=1)
    told: list[str] = []
    with socket.create_connection(("127.0.0.1", node.port)) as child:
        question = f"GET /{site.image.digest}/0 HTTP/1.1\r\n"
        child.sendall(f"{question}Authorization: Bearer {site.token()}\r\n\r\n".encode())
        until(lambda: node.sent)
        node.linger(lambda phase, *_: told.append(phase))
    assert set(told) == {"pass on"}


def test_a_node_that_serves_nobody_does_not_stay(site: Site) -> None:
    told: list[str] = []
    site.node().linger(lambda phase, *_: told.append(phase))
    assert not told


# ---------------------------------------------------------------- many nodes are primed


def chain(site: Site, folder: Path, nodes: int) -> list[tuple[Order, cprime.ChunkRoom, Path]]:
    """Orders of nodes of which each is to ask the two before it."""
    port, made = free_port(), []
    for number in range(nodes):
        above = [number - step for step in (1, 2) if number >= step]
        sources = tuple(
            ChunkSource(f"http://127.0.0.{10 + each}:{port}", site.token(), f"n{each}")
            for each in above
        )
        order = Order(
            f"{number}.1",
            "prime",
            images=(replace(site.image, sources=sources),),
            pass_on=PassOn(port, KEY, 0, 60, NOW),
        )
        disk = folder / f"disk{number}"
        disk.write_bytes(b"\xaa" * len(site.content))
        made.append((order, cprime.ChunkRoom(64 * MIB, f"127.0.0.{10 + number}"), disk))
    return made


def together(site: Site, nodes: int) -> Callable[[str], None]:
    """Let the server send nothing before so many nodes have begun to receive from another, which
    is told as it is to `ChunkSources`."""
    begun = threading.Semaphore(0)

    def waits(request: Request) -> None:
        for _ in range(nodes):
            begun.acquire(timeout=60)
        request.wfile.write(request.body)

    site.server.faults = [waits]

    def took(name: str) -> None:
        if name:
            begun.release()

    return took


def primed(
    order: Order,
    room: cprime.ChunkRoom,
    disk: Path,
    took: Callable[[str], None],
    tell: cprime.Progress = lambda *_: None,
) -> cprime.Written:
    return cprime.prime(order, [file_disk(disk)], tell, PATIENT, room=room, took=took)


def test_a_chain_of_nodes_costs_the_server_one_image(site: Site, tmp_path: Path) -> None:
    orders, took = chain(site, tmp_path, 5), together(site, 4)
    with ThreadPoolExecutor(5) as pool:
        written = list(pool.map(lambda each: primed(*each, took=took), orders))
    stored = sum(chunk.length for chunk in site.manifest.chunks)
    assert [each.bytes_from_nodes for each in written] == [0, *[stored] * 4]
    assert sum(each.bytes_passed_on for each in written) == 4 * stored
    assert site.sent() == 1
    for _, _, disk in orders:
        assert disk.read_bytes() == site.content


def test_tokens_grow_old_while_disks_are_erased(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Begun(Exception):
        """The disks are erased."""

    def begin(order: PassOn, *_: object) -> None:
        raise Begun(order.now)

    now = [0.0]
    monkeypatch.setattr(cprime, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(cprime, "wipe_all", lambda *_: now.append(now.pop() + 3600.0))
    monkeypatch.setattr(cprime, "ChunkServer", begin)
    with pytest.raises(Begun) as begun:
        primed(*chain(site, tmp_path, 1)[0], lambda name: None)
    assert begun.value.args == (NOW + 3600.0,)


def test_the_others_are_primed_when_a_node_of_the_chain_fails(site: Site, tmp_path: Path) -> None:
    orders, took = chain(site, tmp_path, 4), together(site, 3)

    def dies(phase: str, done: int, *_: object) -> None:
        if phase == "write" and done:
            raise PrimeError("the power is off")

    def run(number: int) -> None:
        if number == 1:
            with pytest.raises(PrimeError, match="power"):
                primed(*orders[number], took, dies)
        else:
            primed(*orders[number], took)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(run, range(4)))
    for number in (0, 2, 3):
        assert orders[number][2].read_bytes() == site.content
