"""The ingester on a real database, with real files: images become ready, failed, or are begun anew."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine
from twisted.internet.task import Clock

from cod.flows import images
from cod.images.verify import verify
from cod.model import Image
from cod.net import ingest as edge
from cod.pool import Pool, in_transaction


class Loop(Clock):
    """A clock whose `callFromThread` is carried out by `until`, as a reactor would."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._calls: list[Callable[[], object]] = []
        self._lock = threading.Lock()

    def callFromThread(self, call: Callable[..., object], *args: object) -> None:
        with self._lock:
            self._calls.append(lambda: call(*args))

    def until(self, true: Callable[[], bool], seconds: float = 20.0) -> None:
        end = time.monotonic() + seconds
        while not true():
            with self._lock:
                calls, self._calls = self._calls, []
            for call in calls:
                call()
            if not calls:
                self.advance(0.1)  # type: ignore[no-untyped-call]
                time.sleep(0.001)
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
    ingester = edge.Ingester(loop, pool, root, root / "incoming", "server", loop.seconds, largest=lambda: 32 << 20)
    yield ingester
    if ingester.running:
        ended = ingester.stopService()
        loop.until(lambda: ended is None or ended.called)


def add(engine: Engine, name: str, source: Path, **more: object) -> None:
    in_transaction(engine, images.add, name=name, source=str(source), now=1.0, **more)  # type: ignore[arg-type]


def state(engine: Engine, name: str) -> Image:
    return in_transaction(engine, images.show, name=name)


def test_images_become_ready_or_failed(engine: Engine, ingester: edge.Ingester, loop: Loop, tmp_path: Path) -> None:
    upload, kept = tmp_path / "images" / "incoming" / "upload", tmp_path / "kept"
    upload.write_bytes(b"disk" * 1_000_000)
    kept.write_bytes(b"kernel" * 1000)
    add(engine, "good", upload)
    add(engine, "kernel", kept, plain=True)
    add(engine, "wrong", kept, sha256="0" * 64)
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


def test_a_deleted_image_s_files_go(engine: Engine, ingester: edge.Ingester, loop: Loop, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"disk" * 1000)
    add(engine, "image", tmp_path / "file")
    ingester.startService()
    loop.until(lambda: state(engine, "image").state == "ready")
    folder = tmp_path / "images" / state(engine, "image").digest
    assert folder.is_dir()
    in_transaction(engine, images.delete, name="image")
    loop.advance(edge.SWEEP + 1)  # type: ignore[no-untyped-call]
    loop.until(lambda: not folder.exists())


def test_one_that_is_stopped_in_the_middle_is_begun_anew(
    engine: Engine, ingester: edge.Ingester, loop: Loop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(b"disk" * 1000)
    add(engine, "image", tmp_path / "file")
    reached = threading.Event()

    def stop_here(self: edge.Ingester, done: int, total: int) -> None:
        reached.set()
        self._stopping.wait(60)
        raise edge.Stopping

    with monkeypatch.context() as patched:
        patched.setattr(edge.Ingester, "_go_on", stop_here)
        ingester.startService()
        loop.until(reached.is_set)
        ended = ingester.stopService()
        loop.until(lambda: bool(ended and ended.called))
    assert state(engine, "image").state == "ingesting"
    assert [path.name for path in (tmp_path / "images").iterdir()] == ["incoming"]
    ingester.startService()
    loop.until(lambda: state(engine, "image").state == "ready")
