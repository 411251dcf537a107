"""Wake-ups between the server's processes: they arrive, they may be lost, they never do harm."""

from __future__ import annotations

import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import Deferred

from cod.model import Effect
from cod.net.wake import Wake


@pytest.fixture
def folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="cod-wake-"))
    yield path
    shutil.rmtree(path)


def woken(wake: Wake, what: str) -> Deferred[str]:
    """Fires when somebody wakes `what`."""
    fired: Deferred[str] = Deferred()
    wake.on(what, lambda: fired.called or fired.callback(what))
    return fired


def test_a_wake_up_reaches_every_process_and_only_those_who_wait(
    reactor: Any, in_reactor: Callable[..., Any], folder: Path
) -> None:
    one, two = (
        in_reactor(Wake, reactor, folder, "edge"),
        in_reactor(Wake, reactor, folder, "manager"),
    )
    wrong: list[str] = []
    two.on("orders", lambda: wrong.append("orders"))
    here, there = (
        in_reactor(lambda: [woken(one, "manager")]),
        in_reactor(lambda: [woken(two, "manager")]),
    )
    in_reactor(one.effects, [Effect("wake", "manager"), Effect("other", "orders")])
    assert in_reactor(lambda: here[0]) == "manager"
    assert in_reactor(lambda: there[0]) == "manager"
    assert wrong == []
    in_reactor(one.close)
    in_reactor(two.close)
    assert list(folder.iterdir()) == []


def test_waking_the_dead_and_the_busy_does_no_harm(
    reactor: Any, in_reactor: Callable[..., Any], folder: Path
) -> None:
    dead = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    dead.bind(str(folder / "dead.wake"))
    dead.close()
    busy = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)  # nobody reads: its queue fills up
    busy.bind(str(folder / "busy.wake"))
    wake = in_reactor(Wake, reactor, folder, "web")
    fired = in_reactor(lambda: [woken(wake, "power")])
    in_reactor(lambda: [wake.wake("power") for _ in range(2000)])
    assert in_reactor(lambda: fired[0]) == "power"
    in_reactor(wake.close)
    busy.close()


def test_a_socket_left_behind_is_taken_over_and_noise_is_ignored(
    reactor: Any, in_reactor: Callable[..., Any], folder: Path
) -> None:
    left = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    left.bind(str(folder / "web.wake"))
    left.close()
    wake = in_reactor(Wake, reactor, folder, "web")
    fired = in_reactor(lambda: [woken(wake, "power")])
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as noise:
        for word in (b"", b"\xff" * 5000, b"nobody's word", b"power"):
            noise.sendto(word, str(folder / "web.wake"))
    assert in_reactor(lambda: fired[0]) == "power"
    in_reactor(wake.close)
