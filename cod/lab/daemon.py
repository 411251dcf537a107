"""The lab's power switches: ``python -m cod.lab.daemon NAME``, started by `cod.lab.control.up`
inside the namespace.

The daemon listens on a UNIX socket. A request is one line of JSON, and so is an answer; a
connection may carry many of them::

    {"op": "on", "node": "n1"}       -> {"ok": true, "power": "on"}
    {"op": "off" | "reset" | "status" | "console-path", "node": "n1"}
    {"op": "list"}                   -> {"ok": true,
                                         "nodes": [{"name": "n1", "power": "off", ...}, ...]}
    anything wrong                   -> {"ok": false, "error": "a sentence"}

A request names a node by its name or by its MAC.

"off" acts like a switched outlet: QEMU is killed, and the guest cannot object. "reset" is off, then
on. A machine whose QEMU has ended by itself (the guest shut down, QEMU crashed) is off. A node is
on once QEMU's control socket has sent its greeting: from then on the machine runs.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections import defaultdict
from contextlib import suppress
from typing import Any

from cod.lab import machine, network, record, snapshots
from cod.lab.processes import Process, identify
from cod.lab.record import Record
from cod.lab.restore import Restore
from cod.model import Refused

START_SECONDS = 60.0
LINE_LIMIT = 1 << 16


class Switches:
    """The power switches of one lab and the QEMU processes behind them."""

    def __init__(self, made: Record) -> None:
        self._record = made
        self._folder = record.folder(made.spec.name)
        self._running: dict[str, asyncio.subprocess.Process] = {}
        self._recorders: dict[str, asyncio.Task[bool]] = {}
        self._watchers: set[asyncio.Task[None]] = set()
        self._locks: dict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def answer(self, request: Any) -> dict[str, Any]:
        """Carry out one request and return the answer. Raises `Refused` for an invalid request."""
        if not isinstance(request, dict):
            raise Refused("invalid", "a request is a JSON object")
        op = request.get("op")
        if op == "list":
            return {"nodes": [self._describe(node.name) for node in self._record.spec.nodes]}
        name = self._record.spec.node(str(request.get("node"))).name
        if op == "on":
            await self.on(name)
        elif op == "off":
            await self.off(name)
        elif op == "reset":
            await self.off(name)
            await self.on(name)
        elif op not in ("status", "console-path"):
            raise Refused("invalid", f"unknown op {op!r}", "op")
        return self._describe(name)

    async def on(self, name: str) -> None:
        """Switch the node on; has no effect if it is on."""
        async with self._locks[name]:
            if name in self._running:
                return
            spec = self._record.spec
            position = next(n for n, node in enumerate(spec.nodes) if node.name == name)
            argv = machine.command(
                spec.nodes[position], position, self._folder, self._record.accel, spec.switch
            )
            restore = None
            await self._recorded(name)
            if spec.snapshots:
                restore = await asyncio.to_thread(
                    Restore.prepared, spec, position, self._folder, argv
                )
            if restore is None or not await self._restored(name, argv, restore):
                process = await self._start(name, argv)
                snapshots.write_ledger("cold", name)
                if restore is not None:
                    self._recorders[name] = asyncio.create_task(
                        asyncio.to_thread(restore.record, process)
                    )

    async def _restored(self, name: str, argv: list[str], restore: Restore) -> bool:
        """Switch the node on from a snapshot; return whether that worked."""
        if not restore.snapshot.exists():
            return False
        try:
            await self._start(name, argv + restore.incoming())
            await asyncio.to_thread(snapshots.resume, machine.qmp_path(self._folder, name))
        except (Refused, snapshots.NotRestored, OSError, ValueError) as error:
            print(f"{name} starts cold: {error}", flush=True)
            restore.snapshot.remove()
            await self._kill(name)
            return False
        snapshots.write_ledger("restored", name)
        return True

    async def _start(self, name: str, argv: list[str]) -> Process:
        """Start QEMU and wait for its greeting. Raises `Refused` when the greeting does not
        come."""
        spec = self._record.spec
        if spec.switch == "ovs":
            argv = network.inside(network.ports_namespace(record.namespace(spec.name), spec), argv)
        machine.qmp_path(self._folder, name).unlink(missing_ok=True)
        log_path = self._folder / "log" / f"{name}.log"
        with open(log_path, "ab") as log:
            process = await asyncio.create_subprocess_exec(
                *argv, stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log
            )
        self._running[name] = process
        identity = identify(process.pid)
        if identity:
            self._record.nodes[name] = identity
            self._record.save()
        watcher = asyncio.create_task(self._watch(name, process))
        self._watchers.add(watcher)
        watcher.add_done_callback(self._watchers.discard)
        try:
            await asyncio.wait_for(self._greeted(name, process), START_SECONDS)
        except (TimeoutError, ConnectionError):
            await self._kill(name)
            lines = log_path.read_text(errors="replace").strip().splitlines()
            why = lines[-1] if lines else "QEMU says nothing"
            raise Refused("conflict", f"{name} does not start: {why}", "node") from None
        return identity or Process(process.pid, 0)

    async def off(self, name: str) -> None:
        """Switch the node off and wait until its QEMU has ended; has no effect if it is off."""
        async with self._locks[name]:
            await self._kill(name)
            await self._recorded(name)

    async def _recorded(self, name: str) -> None:
        """Wait for the snapshot recorder of a machine that is off: the recorder connects the
        machine's port again."""
        if recorder := self._recorders.pop(name, None):
            await recorder

    async def _kill(self, name: str) -> None:
        process = self._running.get(name)
        if process is not None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
            self._ended(name, process)

    async def all_off(self) -> None:
        """Switch all nodes off, for the end of the lab."""
        await asyncio.gather(*(self.off(name) for name in list(self._running)))

    def _describe(self, name: str) -> dict[str, Any]:
        node, process = self._record.spec.node(name), self._running.get(name)
        return {
            "power": "on" if process else "off",
            "pid": process.pid if process else None,
            **machine.describe(node, self._folder),
        }

    async def _watch(self, name: str, process: asyncio.subprocess.Process) -> None:
        await process.wait()
        self._ended(name, process)

    def _ended(self, name: str, process: asyncio.subprocess.Process) -> None:
        if self._running.get(name) is process:
            del self._running[name]
            self._record.nodes.pop(name, None)
            self._record.save()

    async def _greeted(self, name: str, process: asyncio.subprocess.Process) -> None:
        """Wait for QEMU's greeting. QEMU sends it when all parts of the machine have been made."""
        path = machine.qmp_path(self._folder, name)
        while process.returncode is None:
            with suppress(FileNotFoundError, ConnectionRefusedError):
                reader, writer = await asyncio.open_unix_connection(str(path))
                try:
                    if await reader.readline():
                        return
                finally:
                    writer.close()
            await asyncio.sleep(0.02)
        raise ConnectionError


async def serve(name: str) -> None:
    """Run the switches of lab `name` until SIGTERM."""
    made = record.load(name)
    made.daemon = identify(os.getpid())
    made.save()
    switches, ending, loop = Switches(made), asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ending.set)

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, ValueError):  # ValueError: a line longer than the limit
            while line := await reader.readline():
                writer.write(json.dumps(await reply(switches, line)).encode() + b"\n")
                await writer.drain()
        writer.close()

    server = await asyncio.start_unix_server(talk, str(record.socket_path(name)), limit=LINE_LIMIT)
    await ending.wait()
    server.close()
    await switches.all_off()


async def reply(switches: Switches, line: bytes) -> dict[str, Any]:
    """Carry out the request in one line and return the answer."""
    try:
        return {"ok": True} | await switches.answer(json.loads(line))
    except Refused as refusal:
        return {"ok": False, "error": refusal.sentence}
    except ValueError:
        return {"ok": False, "error": "a request is one line of JSON"}


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1]))
