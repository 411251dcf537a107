"""Wake-ups between the server's processes on one host: a datagram socket for each process, below
the run folder.

A wake-up tells a process that polls certain rows ('manager', 'orders', 'power') to read them now.
It carries that word only. It may be lost: every poll is also repeated periodically, so a lost
wake-up costs a delay, nothing else.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from twisted.internet.abstract import FileDescriptor

from cod.model import Effect


class Wake(FileDescriptor):
    """This process's socket `<folder>/<name>.wake`, and the sender to those of all processes."""

    def __init__(self, reactor: Any, folder: Path, name: str) -> None:
        super().__init__(reactor)
        self._folder = folder
        self._path = folder / f"{name}.wake"
        self._callbacks: dict[str, list[Callable[[], object]]] = {}
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._path.unlink(missing_ok=True)
        self._socket.bind(str(self._path))
        os.chmod(self._path, 0o660)  # the other parts may be other users, of the same group
        self.startReading()  # type: ignore[no-untyped-call]

    def on(self, what: str, call: Callable[[], object]) -> None:
        """Call `call` whenever a process of this host wakes `what`."""
        self._callbacks.setdefault(what, []).append(call)

    def effects(self, effects: Iterable[Effect]) -> None:
        """Carry out the wake-ups among a flow's effects."""
        for effect in effects:
            if effect.kind == "wake":
                self.wake(effect.what)

    def wake(self, what: str) -> None:
        """Wake `what` in every process of this host, this one included."""
        try:
            names = os.listdir(self._folder)
        except FileNotFoundError:  # the server is being stopped
            return
        for name in names:
            # nobody there any more, or its queue is full: it will look by itself
            if name.endswith(".wake"):
                with contextlib.suppress(OSError):
                    self._socket.sendto(what.encode(), f"{self._folder}/{name}")

    def fileno(self) -> int:
        return self._socket.fileno()

    def doRead(self) -> None:
        """Read all wake-ups that wait, and run the callbacks of each word once."""
        words: dict[str, None] = {}
        with contextlib.suppress(BlockingIOError):
            for _ in range(64):
                words[self._socket.recv(64).decode(errors="replace")] = None
        for word in words:
            for call in self._callbacks.get(word, ()):
                call()

    def close(self) -> None:
        """Stop listening and remove the socket."""
        self.stopReading()  # type: ignore[no-untyped-call]
        self._socket.close()
        self._path.unlink(missing_ok=True)
