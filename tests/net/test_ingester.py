"""The ingester on a real database, with real files: images become ready, failed, or are begun
anew."""

from __future__ import annotations

import errno
import random
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, update
from twisted.internet.task import Clock

from cod.flows.images import images
from cod.images import ingest
from cod.images.verify import verify
from cod.model import Image, ImageRules, Refused
from cod.pool import Pool, in_transaction
from cod.store import claims
from cod.store import tables as t
from cod.store.people import groups
from cod.workers import ingest as edge
from tests.waiting import until

pytestmark = pytest.mark.slow  # together with its like more than the quick run has time for


class Loop(Clock):
    """A clock whose `callFromThread` is carried out by `until`, as a reactor would."""

    def __init__(self) -> None:
        super().__init__()
        self._calls: list[Callable[[], object]] = []
        self._lock = threading.Lock()

    def callFromThread(self, call: Callable[..., object], *args: object) -> None:
        with self._lock:
            self._calls.append(lambda: call(*args))

    def until(self, true: Callable[[], bool], seconds: float = 60.0) -> None:
        end = time.monotonic() + seconds
        while not true():
            with self._lock:
                calls, self._calls = self._calls, []
            for call in calls:
                call()
            if not calls:
                self.advance(0.1)
                time.sleep(0.001)  # lets the threads work that the clock does not move
            assert time.monotonic() < end, "it takes too long"


@pytest.fixture
def loop() -> Loop:
    return Loop()


@pytest.fixture
def pool(engine: Engine, loop: Loop) -> Iterator[Pool]:
    pool = Pool(engine, loop)
    yield pool
    pool.close()


@pytest.fixture
def ingester(pool: Pool, loop: Loop, tmp_path: Path) -> Iterator[edge.Ingester]:
    root = tmp_path / "images"
    (root / "incoming").mkdir(parents=True)
    ingester = edge.Ingester(
        loop, pool, root, root / "incoming", "server", loop.seconds, rules=lambda: RULES
    )
    yield ingester
    if ingester.running:
        ended = ingester.stopService()
        loop.until(lambda: ended is None or ended.called)


RULES = ImageRules(largest=32 << 20)


def disk(size: int) -> bytes:
    """A disk with a boot sector, which does not compress."""
    return bytes(510) + b"\x55\xaa" + random.Random(1).randbytes(size - 512)


def add(engine: Engine, name: str, source: Path, **more: object) -> None:
    in_transaction(engine, images.add, name=name, source=str(source), now=1.0, **more)


def state(engine: Engine, name: str) -> Image:
    return in_transaction(engine, images.show, name=name)


def test_images_become_ready_or_failed(
    engine: Engine, ingester: edge.Ingester, loop: Loop, tmp_path: Path
) -> None:
    upload, kept = tmp_path / "images" / "incoming" / "upload", tmp_path / "kept"
    upload.write_bytes(disk(4_000_000))
    kept.write_bytes(b"kernel" * 1000)
    add(engine, "good", upload)
    add(engine, "kernel", kept, plain=True)
    add(engine, "wrong", kept, sha256="0" * 64, plain=True)
    add(engine, "gone", tmp_path / "gone")
    ingester.startService()
    loop.until(lambda: state(engine, "gone").state == "failed")
    good, kernel = state(engine, "good"), state(engine, "kernel")
    assert (good.state, good.size, good.content) == ("ready", 4_000_000, "partition")
    assert (kernel.state, kernel.format, kernel.content) == ("ready", "plain", "file")
    assert all(verify(tmp_path / "images", image.digest).bad == () for image in (good, kernel))
    assert "sha256" in state(engine, "wrong").reason
    assert state(engine, "gone").reason == "No such file or directory"
    assert (upload.exists(), kept.exists()) == (False, True)


def test_a_file_that_the_server_fails_on_keeps_no_other_from_being_taken_in(
    engine: Engine,
    ingester: edge.Ingester,
    loop: Loop,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "file").write_bytes(disk(4000))
    add(engine, "first", tmp_path / "file")
    add(engine, "second", tmp_path / "file")
    real = ingest.ingest

    def fails(source: Path, root: Path, **more: Any) -> Any:
        if begun.append(source) or len(begun) == 1:
            raise struct.error("unpack_from requires a buffer of at least 600 bytes")
        return real(source, root, **more)

    begun: list[Path] = []
    monkeypatch.setattr(ingest, "ingest", fails)
    ingester.startService()
    loop.until(lambda: state(engine, "second").state == "ready")
    assert state(engine, "first").state == "failed"
    assert "struct" not in state(engine, "first").reason, "its owner reads it"


@pytest.mark.parametrize(
    "short",
    [
        MemoryError(),
        RuntimeError("can't start new thread"),
        OSError(errno.EAGAIN, "no process"),
    ],
)
def test_a_file_that_the_server_had_no_room_for_waits_and_is_taken_in_later(
    engine: Engine,
    ingester: edge.Ingester,
    loop: Loop,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    short: Exception,
) -> None:
    upload = tmp_path / "images" / "incoming" / "upload"
    for path in (upload, tmp_path / "file"):
        path.write_bytes(disk(4000))
    add(engine, "first", upload)
    add(engine, "second", tmp_path / "file")
    begun: list[Path] = []
    real = ingest.ingest

    def fails(source: Path, root: Path, **more: Any) -> Any:
        if begun.append(source) or len(begun) == 1:
            raise short
        return real(source, root, **more)

    monkeypatch.setattr(ingest, "ingest", fails)
    ingester.startService()
    loop.until(lambda: state(engine, "second").state == "ready")
    assert (state(engine, "first").state, upload.exists()) == ("ingesting", True)
    loop.advance(edge.PAUSE)
    loop.until(lambda: state(engine, "first").state == "ready")
    assert begun == [upload, tmp_path / "file", upload]


def test_a_file_that_always_takes_too_much_memory_fails_in_the_end(
    engine: Engine,
    ingester: edge.Ingester,
    loop: Loop,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "file").write_bytes(disk(4000))
    add(engine, "image", tmp_path / "file")
    begun: list[Path] = []

    def fails(source: Path, root: Path, **more: Any) -> Any:
        begun.append(source)
        raise MemoryError

    monkeypatch.setattr(ingest, "ingest", fails)
    monkeypatch.setattr(edge, "MOST_PAUSES", 2)
    ingester.startService()
    for tries in (1, 2):
        loop.until(lambda expected=tries: len(begun) == expected)
        assert state(engine, "image").state == "ingesting"
        loop.advance(edge.PAUSE + edge.PERIOD)
    loop.until(lambda: state(engine, "image").state == "failed")


def test_a_deleted_image_s_files_go(
    engine: Engine, ingester: edge.Ingester, loop: Loop, tmp_path: Path
) -> None:
    (tmp_path / "file").write_bytes(disk(4000))
    add(engine, "image", tmp_path / "file")
    ingester.startService()
    loop.until(lambda: state(engine, "image").state == "ready")
    folder = tmp_path / "images" / state(engine, "image").digest
    assert folder.is_dir()
    in_transaction(engine, images.delete, name="image")
    loop.advance(edge.SWEEP + 1)
    loop.until(lambda: not folder.exists())


def test_one_that_is_stopped_in_the_middle_is_begun_anew(
    engine: Engine,
    ingester: edge.Ingester,
    loop: Loop,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "file").write_bytes(disk(4000))
    add(engine, "image", tmp_path / "file")
    reached = threading.Event()

    def stop_here(stopping: threading.Event, done: int, total: int) -> None:
        reached.set()
        stopping.wait(60)
        raise edge.Stopping

    with monkeypatch.context() as patched:
        patched.setattr(edge, "_go_on", stop_here)
        ingester.startService()
        loop.until(reached.is_set)
        ended = ingester.stopService()
        loop.until(lambda: bool(ended and ended.called))
    assert state(engine, "image").state == "ingesting"
    until(lambda: [path.name for path in (tmp_path / "images").iterdir()] == ["incoming"])
    ingester.startService()
    loop.until(lambda: state(engine, "image").state == "ready")


def group(engine: Engine, name: str, quota: int | None = None) -> int:
    made = in_transaction(engine, groups.ensure, name, 0.0)
    in_transaction(engine, groups.change, made.id, image_quota=quota)
    return made.id


def test_what_is_stored_has_to_fit_into_the_quota(
    engine: Engine, ingester: edge.Ingester, loop: Loop, tmp_path: Path
) -> None:
    """A packed file is small while it is sent, and may be large when it is taken in."""
    group(engine, "physics", 3 << 20)
    (tmp_path / "large").write_bytes(disk(4 << 20))
    (tmp_path / "small").write_bytes(disk(2 << 20))
    for name in ("large", "small"):
        add(engine, name, tmp_path / name, group="physics")
    ingester.startService()
    loop.until(
        lambda: (
            {state(engine, f"physics/{name}").state for name in ("large", "small")}
            == {"failed", "ready"}
        )
    )
    assert state(engine, "physics/large").state == "failed"
    assert "its group has left" in state(engine, "physics/large").reason
    # the small one, and the incoming files
    loop.until(lambda: len(list((tmp_path / "images").iterdir())) == 2)


def test_a_quota_that_shrank_meanwhile_counts_at_the_end(
    engine: Engine,
    ingester: edge.Ingester,
    loop: Loop,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    owner = group(engine, "physics", 8 << 20)
    (tmp_path / "file").write_bytes(disk(2 << 20))
    add(engine, "image", tmp_path / "file", group="physics")
    go_on = threading.Event()
    real = ingest.ingest

    def waits(*args: Any, **more: Any) -> Any:
        made = real(*args, **more)
        go_on.wait(60)
        return made

    monkeypatch.setattr(ingest, "ingest", waits)
    ingester.startService()
    loop.until(lambda: any(len(path.name) == 64 for path in (tmp_path / "images").iterdir()))
    in_transaction(engine, groups.change, owner, image_quota=1 << 20)
    go_on.set()
    loop.until(lambda: state(engine, "physics/image").state == "failed")
    assert "too much for group physics" in state(engine, "physics/image").reason
    loop.advance(edge.SWEEP + 1)
    loop.until(lambda: [path.name for path in (tmp_path / "images").iterdir()] == ["incoming"])


def test_groups_take_turns_two_at_a_time(
    engine: Engine,
    ingester: edge.Ingester,
    loop: Loop,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("a", "b", "c"):
        group(engine, name)
    (tmp_path / "file").write_bytes(disk(4000))
    for name in ("a1", "a2", "a3", "b1", "c1"):  # group a has come first, with three
        add(engine, name, tmp_path / "file", group=name[0])
    begun: list[str] = []
    ends = {name: threading.Event() for name in ("a1", "a2", "a3", "b1", "c1")}

    def slow(self: edge.Ingester, image: Image, *rest: Any) -> Any:
        begun.append(own := image.name.rpartition("/")[2])
        ends[own].wait(60)
        raise Refused("invalid", "not today", "file")

    monkeypatch.setattr(edge.Ingester, "_ingest", slow)
    ingester.startService()
    loop.until(lambda: len(begun) == 2)
    for name, then in (("a1", ["a1", "b1", "c1"]), ("c1", ["a1", "b1", "c1", "a2"])):
        loop.advance(edge.PERIOD)
        ends[name].set()
        loop.until(lambda then=then: begun == then)
    for end in ends.values():
        end.set()
    loop.until(lambda: len(begun) == 5 and state(engine, "a/a3").state == "failed")
    assert begun[:2] == ["a1", "b1"]


def test_a_stop_waits_for_no_disk(
    engine: Engine,
    ingester: edge.Ingester,
    loop: Loop,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "file").write_bytes(disk(4000))
    add(engine, "image", tmp_path / "file")
    reached, let_go = threading.Event(), threading.Event()

    def stuck(self: edge.Ingester, *rest: Any) -> Any:
        reached.set()
        let_go.wait(60)
        raise edge.Stopping

    monkeypatch.setattr(edge.Ingester, "_ingest", stuck)
    ingester.startService()
    loop.until(reached.is_set)
    ended = ingester.stopService()
    loop.until(lambda: ended is None or ended.called)
    assert state(engine, "image").state == "ingesting"
    let_go.set()


@pytest.fixture
def several(pool: Pool, loop: Loop, tmp_path: Path) -> Iterator[list[Path]]:
    """The image stores of two servers, whose ingesters run."""
    roots = [tmp_path / "a", tmp_path / "b"]
    for root in roots:
        (root / ("9" * 64)).mkdir(parents=True)  # of a deleted image
    ingesters = [
        edge.Ingester(loop, pool, root, root, root.name, loop.seconds, lambda: RULES, several=True)
        for root in roots
    ]
    for each in ingesters:
        each.startService()
    yield roots
    for each in ingesters:
        ended = each.stopService()
        loop.until(lambda ended=ended: ended is None or ended.called)


def taken_over(engine: Engine) -> None:
    """Another server has found the claim to be over."""
    held = in_transaction(engine, claims.find, "ingest")
    assert in_transaction(engine, claims.hold, "ingest", "other", 1.0, edge.CLAIM, over=held)


def test_a_server_that_has_lost_the_claim_ends_and_leaves_the_image_to_the_next(
    engine: Engine,
    ingester: edge.Ingester,
    loop: Loop,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    upload = tmp_path / "images" / "incoming" / "upload"
    upload.write_bytes(disk(4000))
    add(engine, "image", upload)
    begun: list[threading.Event] = []

    def works(self: edge.Ingester, *rest: Any) -> Any:
        begun.append(rest[-1])
        rest[-1].wait(60)
        raise edge.Stopping

    with monkeypatch.context() as patched:
        patched.setattr(edge.Ingester, "_ingest", works)
        ingester.startService()
        loop.until(lambda: len(begun) == 1)
        taken_over(engine)
        loop.until(begun[0].is_set)
    assert state(engine, "image").state == "ingesting"
    in_transaction(engine, claims.give_up, in_transaction(engine, claims.find, "ingest"))
    loop.until(lambda: state(engine, "image").state == "ready")


@pytest.mark.parametrize("ends", ["ready", "full"])
def test_a_server_that_lost_the_claim_unseen_writes_nothing(
    engine: Engine,
    ingester: edge.Ingester,
    loop: Loop,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    ends: str,
) -> None:
    """The link to the database stalls, and the disk answers before the ingester looks again."""
    upload = tmp_path / "images" / "incoming" / "upload"
    upload.write_bytes(disk(4000))
    add(engine, "image", upload)
    real, others = edge.Ingester._ingest, [1]

    def late(self: edge.Ingester, *rest: Any) -> Any:
        made = real(self, *rest)
        if others:
            others.pop()
            taken_over(engine)
            if ends == "full":
                raise OSError(errno.ENOSPC, "No space left on device")
        return made

    monkeypatch.setattr(edge.Ingester, "_ingest", late)
    ingester.startService()
    loop.until(lambda: not others and not ingester._busy)
    assert (state(engine, "image").state, upload.exists()) == ("ingesting", True)


def test_each_of_several_servers_takes_in_the_files_that_it_has(
    engine: Engine, several: list[Path], loop: Loop, tmp_path: Path
) -> None:
    there, elsewhere = tmp_path / "there", tmp_path / "elsewhere"
    there.write_bytes(disk(1_000_000))
    add(engine, "elsewhere", elsewhere)
    begun = several[1] / "begun"  # an upload that came to its end at another server
    begun.write_bytes(disk(1000))
    add(engine, "begun", begun)
    with engine.begin() as tx:
        named = t.images.c.name == "begun"
        tx.execute(update(t.images).where(named).values(stored=1_000_000))
    add(engine, "there", there)
    loop.until(lambda: state(engine, "there").state == "ready")
    assert {state(engine, name).state for name in ("elsewhere", "begun")} == {"ingesting"}
    # whoever has its file can have the claim
    loop.until(lambda: in_transaction(engine, claims.find, "ingest").is_given_up(), 60.0)
    there.rename(elsewhere)  # a server sees it after all
    loop.until(lambda: state(engine, "elsewhere").state == "ready")


def test_each_of_several_servers_removes_its_files_of_deleted_images(
    several: list[Path], loop: Loop
) -> None:
    loop.until(lambda: not any((root / ("9" * 64)).exists() for root in several))


def test_a_server_takes_images_in_after_one_whose_clock_was_ahead(
    engine: Engine, several: list[Path], loop: Loop, tmp_path: Path
) -> None:
    in_transaction(engine, claims.hold, "ingest", "dead", loop.seconds() + 3600.0, 30.0)
    there = tmp_path / "there"
    there.write_bytes(disk(1_000_000))
    add(engine, "there", there)
    loop.until(lambda: state(engine, "there").state == "ready", 60.0)
