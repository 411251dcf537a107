"""The start of a lab's machine from a snapshot: whether the snapshot may be used, and the server's
answers to the stand-in for the machine's firmware."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from cod.lab import network, program, snapshots
from cod.lab import record as records
from cod.lab.processes import Process
from cod.lab.snapshots import Snapshot
from cod.lab.spec import LabNode, LabSpec
from cod.model import Refused

ARCHITECTURES = {"bios": 0, "uefi": 7}
SECONDS = 60.0  # that the server has for the stand-in's boot


@dataclass(frozen=True, slots=True)
class Restore:
    """A start of the spec's node at `position`. The `snapshot` need not exist; `secret` is the
    secret that the server has issued for this boot."""

    spec: LabSpec
    position: int
    folder: Path
    snapshot: Snapshot
    secret: str

    @classmethod
    def prepared(
        cls, spec: LabSpec, position: int, folder: Path, argv: Sequence[str]
    ) -> Restore | None:
        """Return the start of a machine with that command line; None where the machine has to boot.

        The server is asked only for a new machine on the lab's first network.
        """
        node = spec.nodes[position]
        applicable = (
            not node.nics[node.boot_nic].network
            and node.netboot == "any"
            and all(disk.bus != "nvme" for disk in node.disks)  # QEMU migrates none with these
            and snapshots.available()
            and snapshots.is_new(node, folder)
        )
        reply = _boot(spec.name, position, node) if applicable else {}
        if not reply:
            return None
        key = f"{snapshots.machine_key(node, argv, folder)}-{reply['system']}"
        return cls(spec, position, folder, Snapshot(Path(spec.snapshots), key), reply["secret"])

    def incoming(self) -> list[str]:
        """Return the QEMU options that start the machine from the snapshot."""
        node = self.spec.nodes[self.position]
        return self.snapshot.incoming(self.secret, self.folder / "qmp" / f"{node.name}.sed")

    def record(self, process: Process) -> bool:
        """Write the snapshot while the machine boots; return whether it was written."""
        node = self.spec.nodes[self.position]
        port = network.tap(self.position, node.boot_nic)

        def hold(held: bool) -> None:
            # The lab may be on its way down. Without the hold the machine gets an address, and no
            # snapshot is written.
            with suppress(Refused):
                network.hold(records.namespace(self.spec.name), self.spec, port, held)

        return snapshots.record(self.snapshot, node, self.folder, process, hold)


def _boot(lab: str, position: int, node: LabNode) -> dict[str, str]:
    """Return the server's answers to a machine's firmware; {} if the server does not answer all
    requests."""
    namespace = records.namespace(lab)
    own, port = f"{namespace}.firmware{position}", f"fw{position}"
    environment = program.environment()
    with tempfile.TemporaryDirectory(prefix="cod-firmware-") as folder:
        argv = [sys.executable, "-m", "cod.lab.firmware", "--folder", folder, "--mac", node.mac]
        argv += ["--arch", str(ARCHITECTURES[node.firmware]), "--uuid", node.uuid]
        network.plug(namespace, own, port, node.mac)
        try:
            done = subprocess.run(
                network.inside(own, argv),
                stdout=subprocess.PIPE,
                timeout=SECONDS,
                check=True,
                env=environment,
            )
            return dict(json.loads(done.stdout))
        except (subprocess.SubprocessError, ValueError) as error:
            print(f"{node.name} boots: {error}", flush=True)
            return {}
        finally:
            network.unplug(own)
            network.forget_port(namespace, port)
