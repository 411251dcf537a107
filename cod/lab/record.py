"""A lab's folder, and in it the record of everything that was made.

An entry is recorded *before* the thing is made, so that everything is found again after a crash.
One lab is one folder under the root (``$COD_LAB_ROOT``, else /var/lib/cod-lab)::

    lab.json           the record: spec, namespace, processes with their start times
    lab.sock           the daemon's socket: the power switches
    daemon.log
    console/NODE.log   serial console, appended
    log/NODE.log       output of QEMU itself; log/relay.NETWORK.log: of a relay
    disks/NODE-N.img   sparse
    vars/NODE.fd       UEFI variables
    qmp/NODE.sock
    switch/            database, sockets and logs of an Open vSwitch

`up` writes the record until it starts the daemon; from then on the daemon writes it.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path

from cod.lab.processes import Process
from cod.lab.spec import LabSpec, as_dict, from_dict
from cod.model import Refused

PARTS = ("console", "log", "disks", "vars", "qmp")


def root() -> Path:
    return Path(os.environ.get("COD_LAB_ROOT", "/var/lib/cod-lab"))


def folder(name: str) -> Path:
    return root() / name


def namespace(name: str) -> str:
    return f"cod-lab-{name}"


def socket_path(name: str) -> Path:
    return folder(name) / "lab.sock"


@dataclass(slots=True)
class Record:
    """The processes and files of a lab. `nodes` holds the QEMU process of each node that is on."""

    spec: LabSpec
    accel: str
    daemon: Process | None = None
    nodes: dict[str, Process] = field(default_factory=dict)

    def save(self) -> None:
        """Replace the record on disk atomically."""
        path = folder(self.spec.name) / "lab.json"
        document = {
            "spec": as_dict(self.spec),
            "namespace": namespace(self.spec.name),
            "accel": self.accel,
            "daemon": asdict(self.daemon) if self.daemon else None,
            "nodes": {name: asdict(process) for name, process in self.nodes.items()},
        }
        draft = path.with_suffix(".new")
        draft.write_text(json.dumps(document, indent=1))
        draft.replace(path)

    def processes(self) -> list[Process]:
        """Return the recorded processes. The daemon is the first, so that it ends before it can
        switch a node on while the lab is taken down."""
        return [*filter(None, [self.daemon]), *self.nodes.values()]


def load(name: str) -> Record:
    """Return the record of the lab `name`. Raises `Refused` when there is none, or it cannot be
    read."""
    try:
        document = json.loads((folder(name) / "lab.json").read_text())
    except FileNotFoundError:
        raise Refused("not_found", f"there is no lab {name!r}", "name") from None
    except ValueError as error:
        raise Refused(
            "conflict", f"the record of lab {name!r} cannot be read: {error}", "name"
        ) from None
    nodes = {node: Process(**process) for node, process in document["nodes"].items()}
    daemon = Process(**document["daemon"]) if document["daemon"] else None
    return Record(from_dict(document["spec"]), document["accel"], daemon, nodes)


def names() -> list[str]:
    return (
        sorted(path.name for path in root().iterdir() if path.is_dir()) if root().is_dir() else []
    )
