"""Making, using and removing labs: `up`, `down`, `status`, `console`, `power`, `run_inside`.

Everything needs root. Labs with different names exist side by side, even with the same addresses,
since each has a network namespace of its own. Errors are `Refused` with a sentence.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from cod.lab import accel, machine, network, processes, record
from cod.lab.record import Record
from cod.lab.servers import hosts
from cod.lab.spec import LabSpec, completed
from cod.model import Refused

START_SECONDS = 60.0
SWITCH_SECONDS = 90.0


def up(spec: LabSpec) -> dict[str, Any]:
    """Make the lab with every node switched off; return its status. A lab that cannot be completed
    is removed again.

    `Refused` (conflict) when a lab, or a namespace, of that name exists.
    """
    spec = completed(spec)
    if os.geteuid() != 0:
        raise Refused("forbidden", "a lab needs root: it makes network namespaces")
    if network.exists(record.namespace(spec.name)):
        raise Refused(
            "conflict",
            f"there is a network namespace {record.namespace(spec.name)} already",
            "name",
        )
    hosts.check(spec)
    accelerator = accel.choose(record.root()) if spec.nodes else "none"
    _claim(spec.name)
    try:
        Record(spec, accelerator).save()
        _make(spec)
        if spec.hosts:
            hosts.LabHosts(spec.name).up()
    except BaseException:
        down(spec.name)
        raise
    return status(spec.name)


def down(name: str) -> None:
    """Remove the lab: its processes, all others in its namespace, the namespace and the folder.
    Parts that do not exist are passed over; a lab that does not exist is no error."""
    folder = record.folder(name)
    if not folder.is_dir():
        return
    # a half-made lab, or a broken record: its parts are found by the lab's name below
    with suppress(Refused):
        processes.end(record.load(name).processes())
    namespace = record.namespace(name)
    while left := [
        process for each in network.all_of(namespace) for process in processes.inside(each)
    ]:
        processes.end(left)
    network.remove(namespace)
    while folder.is_dir():
        with suppress(FileNotFoundError):  # a killed owner's cleaner may remove it, too
            shutil.rmtree(folder)


def down_all() -> list[str]:
    gone = record.names()
    for name in gone:
        down(name)
    return gone


def status(name: str) -> dict[str, Any]:
    """Return a description of the lab: namespace, address, socket, accelerator, whether its daemon
    runs, and its nodes.

    Each node: power ('on', 'off', or 'unknown' without the daemon), pid, and the fields of
    `machine.describe`.
    """
    made = record.load(name)
    running = made.daemon is not None and made.daemon.alive()
    nodes = (
        ask(name, "list")["nodes"]
        if running
        else [
            {"power": "unknown", "pid": None, **machine.describe(node, record.folder(name))}
            for node in made.spec.nodes
        ]
    )
    return {
        "name": name,
        "namespace": record.namespace(name),
        "bridge": network.BRIDGE,
        "address": made.spec.address,
        "accel": made.accel,
        "folder": str(record.folder(name)),
        "socket": str(record.socket_path(name)),
        "daemon": "running" if running else "not running",
        "switch": made.spec.switch,
        "switch_address": (
            network.switch_of(record.namespace(name)).address if made.spec.switch == "ovs" else None
        ),
        "nodes": nodes,
        "hosts": hosts.LabHosts(name).describe(),
    }


def power(name: str, node: str, op: str) -> dict[str, Any]:
    """Turn the power switch of a node, or of a server's or a database's host: `op` is 'on', 'off',
    'reset' or 'status'. Return the node, or the host, as `status` shows it."""
    if node in record.load(name).spec.hosts:
        return hosts.LabHosts(name).power(node, op)
    return ask(name, op, node)


def console(name: str, node: str) -> Path:
    """Return the path of the node's serial console log. The file may not exist before the node was
    first on."""
    record.load(name).spec.node(node)
    return machine.console_path(record.folder(name), node)


def run_inside(name: str, argv: list[str], **options: Any) -> subprocess.Popen[bytes]:
    """Start `argv` in the lab's network namespace and return the process, which is killed when the
    lab ends. `options`: those of `subprocess.Popen`."""
    record.load(name)
    return subprocess.Popen(network.inside(record.namespace(name), argv), **options)


def ask(name: str, op: str, node: str | None = None) -> dict[str, Any]:
    """Send one request to the lab's daemon and return its answer. Raises `Refused` with the
    daemon's sentence."""
    made = record.load(name)
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(SWITCH_SECONDS)
            connection.connect(str(record.socket_path(made.spec.name)))
            connection.sendall(json.dumps({"op": op, "node": node}).encode() + b"\n")
            answer = json.loads(
                connection.makefile().readline() or '{"ok": false, "error": "its daemon ended"}'
            )
    except OSError as error:
        raise Refused(
            "conflict", f"the power switches of lab {name} do not answer: {error}"
        ) from None
    if not answer["ok"]:
        raise Refused("conflict", str(answer["error"]), "node")
    return {key: value for key, value in answer.items() if key != "ok"}


def _claim(name: str) -> None:
    """Make the lab's folder, which only one of several concurrent `up` can do."""
    folder = record.folder(name)
    folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        raise Refused(
            "conflict", f"there is a lab {name!r} already (remove it: cod lab down {name})", "name"
        ) from None
    for part in record.PARTS:
        (folder / part).mkdir()


def _make(spec: LabSpec) -> None:
    for node in spec.nodes:
        machine.prepare(node, record.folder(spec.name))
    network.make(record.namespace(spec.name), spec)
    server = spec.address.partition("/")[0]
    for router in network.routers(record.namespace(spec.name), spec):
        network.start_relay(
            router, server, record.folder(spec.name) / "log" / f"relay.{router.network}.log"
        )
    argv = network.inside(
        record.namespace(spec.name), [sys.executable, "-m", "cod.lab.daemon", spec.name]
    )
    environment = os.environ | {
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "COD_LAB_ROOT": str(record.root()),
    }
    with open(record.folder(spec.name) / "daemon.log", "ab") as log:
        daemon = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env=environment,
        )
    until = time.monotonic() + START_SECONDS
    while not _listens(record.socket_path(spec.name)):
        if daemon.poll() is not None or time.monotonic() > until:
            words = (record.folder(spec.name) / "daemon.log").read_text().strip().splitlines()
            raise Refused(
                "conflict",
                f"the lab's daemon does not start: {words[-1] if words else 'it says nothing'}",
            )
        time.sleep(0.02)


def _listens(path: Path) -> bool:
    """Return whether the socket accepts connections; its file exists a moment earlier."""
    with socket.socket(socket.AF_UNIX) as connection:
        return connection.connect_ex(str(path)) == 0
