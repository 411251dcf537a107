"""A VCM's process under test, its folder, and what a clause may do with both."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cod.wire.nmp import bodies as b
from tests.conformance.cod import VCLUSTER, Cod, Line, member


class Failed(Exception):
    """A clause does not hold; the sentence says what happened instead."""


class NotTried(Exception):
    """A clause cannot be tried; the sentence says what it wants."""


@dataclass
class Kit:
    """Starts the VCM, and a COD for it, anew where the clause before has left neither in order.

    command   the VCM's; `{config}` and `{folder}` are filled in, else the configuration file comes
              last
    wants     shell command, run in the folder, after which `{count}` nodes are wanted in all; '':
              there is none
    more      text that is added to the configuration file
    patience  seconds that a VCM has for what it should do
    """

    command: Sequence[str]
    wants: str = ""
    more: str = ""
    patience: float = 30.0
    cod: Cod = field(init=False)
    folder: Path = field(init=False)
    process: subprocess.Popen[bytes] | None = field(default=None, init=False)
    faults: list[str] = field(default_factory=list, init=False)
    _used: list[tempfile.TemporaryDirectory[str]] = field(default_factory=list, init=False)
    _number: int = field(default=1, init=False)

    # ------------------------------------------------------------ its life

    def fresh(self, seconds: float | None = None) -> Line:
        """A VCM that starts without a memory, with a COD that has one active node; its connection,
        welcomed."""
        self.end()
        self._used.append(tempfile.TemporaryDirectory(prefix="nmp-kit-"))
        root = Path(self._used[-1].name)
        self.folder = root / "vcm"
        self.folder.mkdir()
        (root / "cod").mkdir()
        self.cod, self._number = Cod(root / "cod"), 1
        self.cod.members = {one.node: one for one in (member(1),)}
        issued = self.cod.ca.vcm(VCLUSTER, datetime.now(UTC))
        for name, content in (
            ("vcm.key", issued.key),
            ("vcm.crt", issued.certificate),
            ("ca.crt", self.cod.ca.certificate),
        ):
            (self.folder / name).write_bytes(content)
            (self.folder / name).chmod(0o600)
        servers = json.dumps([f"127.0.0.1:{self.cod.port}"])
        more = self.more.replace("{folder}", str(self.folder))
        (self.folder / "vcm.toml").write_text(
            f'vcluster = "{VCLUSTER}"\nservers = {servers}\n{more}'
        )
        if self.wants:
            self.want(1)
        self.start()
        return self.welcomed(seconds)

    def start(self) -> None:
        """Run its command."""
        filled = [
            word.replace("{config}", str(self.folder / "vcm.toml")).replace(
                "{folder}", str(self.folder)
            )
            for word in self.command
        ]
        if filled == list(self.command):
            filled.append(str(self.folder / "vcm.toml"))
        with open(self.folder / "log", "ab") as log:
            self.process = subprocess.Popen(
                filled, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        """Send it a signal and wait until it has ended; what it has started and left behind is
        killed."""
        if self.process is None:
            return
        process, self.process = self.process, None
        process.send_signal(number)
        try:
            # COD goes on meanwhile
            if not self.cod.run(self.patience, lambda: process.poll() is not None):
                raise Failed(f"it does not end within {self.patience:.0f} s of {number.name}")
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def end(self) -> None:
        """End both; what the VCM did against the page stays known."""
        self.kill()
        if self._used:
            self.faults += self.cod.faults
            self.cod.close()
            self._used.pop().cleanup()

    # ------------------------------------------------------------ what clauses say

    def connected(self) -> Line:
        """The VCM's connection; a fresh VCM's where there is none."""
        if self._used and self.process is not None and self.process.poll() is None:
            self.cod.instead.clear()
            self.cod.greets = True
            if self.cod.run(self.patience, lambda: self.cod.line):
                return self.welcomed()
        return self.fresh()

    def welcomed(self, seconds: float | None = None) -> Line:
        """Wait for a connection that is open."""
        self.within(lambda: self.cod.line, "it does not connect and say hello", seconds)
        assert self.cod.line is not None
        return self.cod.line

    def within(
        self, truth: Callable[[], Any], otherwise: str, seconds: float | None = None
    ) -> None:
        """Raise `Failed` unless that comes true in time, with the end of the VCM's log."""
        if not self.cod.run(self.patience if seconds is None else seconds, truth):
            log = (self.folder / "log").read_text(errors="replace").strip().splitlines()[-3:]
            raise Failed(otherwise + (f"; its log ends: {' / '.join(log)}" if log else ""))

    def dealt_with(self, number: int, what: str) -> None:
        """Raise `Failed` unless that message is acknowledged."""
        self.within(lambda: self.cod.acked >= number, f"{what} is not acknowledged")

    def want(self, count: int) -> None:
        """Let it want so many nodes in all. Raises `NotTried` where nobody has said how."""
        if not self.wants:
            raise NotTried("--wants says how it is made to want nodes")
        subprocess.run(
            self.wants.replace("{count}", str(count)), shell=True, cwd=self.folder, check=True
        )

    def request(self) -> b.RequestNodes:
        """Let it want one node more than it has; the request that comes of it."""
        since = len(self.cod.said)
        self.want(len(self.cod.members) + 1)
        self.within(
            lambda: self.cod.bodies(b.RequestNodes, since),
            "it asks for no node, though it wants one",
        )
        asked: b.RequestNodes = self.cod.bodies(b.RequestNodes, since)[0]
        return asked

    def grown(self) -> str:
        """Let it have one node more; its host name."""
        asked = self.request()
        self._number += 1
        self.dealt_with(self.cod.grant(asked.key, self._number), "the node-state of a granted node")
        return f"n{self._number}"
