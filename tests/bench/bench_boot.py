"""From power-on to the agent's report: one machine behind COD, and behind dnsmasq with its
defaults.

The same trampoline is booted both times. The peer is what a site would set up by hand: dnsmasq with
its ping check, iPXE's own waits (no option 175, no router advertisement), kernel and ramdisk from a
plain HTTP server. The peer's time ends when the agent connects, COD's when the report has been
stored, which is a little later.
"""

from __future__ import annotations

import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cod.lab import control
from cod.lab.spec import LabDisk, LabNode
from cod.model import BootPlan
from cod.wire import bootscript
from cod.wire.confd import protocol
from tests.bench.arena import ROOT, Measure, Smoke, write
from tests.system.qemu import Rack, build_all, rack
from trampoline.recipe import cpio

ROUNDS = 5
MACHINES = tuple(
    LabNode(firmware, firmware, disks=(LabDisk(64 << 20),)) for firmware in ("bios", "uefi")
)
HTTP, CONFD = 8080, 8081
# seconds that servers are given before the machine is switched on: a site's run for months
SETTLED = 5.0
LISTEN = f"""import socket, time
server = socket.create_server(("10.77.0.1", {CONFD}))
print("ready", flush=True)
server.accept()
print(time.time(), flush=True)"""
DNSMASQ = f"""
port=0
interface=br0
bind-interfaces
dhcp-range=10.77.1.0,10.77.1.199,1h
dhcp-leasefile={{folder}}/leases
enable-tftp
tftp-root={{folder}}
dhcp-userclass=set:ipxe,iPXE
dhcp-match=set:efi64,option:client-arch,7
dhcp-boot=tag:ipxe,http://10.77.0.1:{HTTP}/boot.ipxe
dhcp-boot=tag:!ipxe,tag:efi64,snponly.efi
dhcp-boot=tag:!ipxe,tag:!efi64,undionly.kpxe
user=root
"""
SMOKE = Smoke(
    rows=("power-on to report, BIOS",),
    sizes={"ROUNDS": 1, "MACHINES": MACHINES[:1], "SETTLED": 1.0},
    system=True,
    slow=True,
)


def main() -> None:
    build_all()
    times: dict[tuple[str, str], list[float]] = {}
    with rack(MACHINES) as stand:
        folder = stand.folder / "peer"
        prepare(folder)
        contenders: dict[str, Callable[[str], float]] = {
            "COD": lambda machine: behind_cod(stand, machine),
            "dnsmasq": lambda machine: behind_dnsmasq(stand, folder, machine),
        }
        stand.kill()
        for _ in range(ROUNDS):
            for machine in MACHINES:
                for name, contender in contenders.items():
                    seconds = contender(machine.name)
                    times.setdefault((name, machine.name), []).append(round(seconds, 2))
                    print(f"  {machine.name} {name:8} {seconds:6.2f} s", flush=True)
    write("boot", [measure(machine.name, times) for machine in MACHINES])


def measure(machine: str, times: dict[tuple[str, str], list[float]]) -> Measure:
    """The ratio of medians."""
    ours, peer = (statistics.median(times[name, machine]) for name in ("COD", "dnsmasq"))
    return Measure(
        f"power-on to report, {machine.upper()}",
        round(ours, 2),
        "s",
        "dnsmasq",
        round(peer, 2),
        round(ours / peer, 3),
        "<= 0.4",
        times["COD", machine],
    )


def behind_cod(stand: Rack, machine: str) -> float:
    """Seconds from power-on until COD has stored the report."""
    stand.serve()
    time.sleep(SETTLED)
    began = time.time()
    stand.power(machine, "on")

    def reported() -> float:
        rows = stand.history(machine) if stand.node(machine) else []
        return next(
            (
                row["at"]
                for row in rows
                if row["at"] > began and row["to_state"] in ("registering", "inactive")
            ),
            0.0,
        )

    seconds = float(stand.wait(reported, f"{machine} has reported")) - began
    stand.power(machine, "off")
    stand.kill()
    return seconds


def behind_dnsmasq(stand: Rack, folder: Path, machine: str) -> float:
    """Seconds from power-on until the agent connects to where its server would be."""
    script(folder, next(mac for mac, node in stand.machines.items() if node["name"] == machine))
    (folder / "leases").unlink(missing_ok=True)
    with (
        peer(stand, folder),
        running(stand, [sys.executable, "-c", LISTEN], stdout=subprocess.PIPE) as listener,
    ):
        assert listener.stdout
        listener.stdout.readline()
        began = time.time()
        stand.power(machine, "on")
        seconds = float(listener.stdout.readline()) - began
        stand.power(machine, "off")
    return seconds


def prepare(folder: Path) -> None:
    """What dnsmasq and the HTTP server serve."""
    folder.mkdir()
    for name in ("vmlinuz", "ramdisk"):
        shutil.copy(ROOT / "build/trampoline/lab" / name, folder / name)
    for name in ("undionly.kpxe", "snponly.efi"):
        shutil.copy(Path("/usr/lib/ipxe") / name, folder / name)
    secret = str(protocol.Secret("boot", bytes(range(32)))).encode()
    (folder / "secret.cpio").write_bytes(cpio.archive({"cod/secret": cpio.file(secret, 0o600)}))
    (folder / "dnsmasq.conf").write_text(DNSMASQ.format(folder=folder))


def script(folder: Path, mac: str) -> None:
    """The boot script, as COD would write it."""
    base = f"http://10.77.0.1:{HTTP}"
    words = f"cod.confd=10.77.0.1:{CONFD} cod.mac={mac} quiet panic=10 console=ttyS0,115200"
    plan = BootPlan(
        "trampoline",
        "by hand",
        f"{base}/vmlinuz",
        (f"{base}/ramdisk", f"{base}/secret.cpio"),
        words,
    )
    (folder / "boot.ipxe").write_text(bootscript.ipxe(plan))


@contextmanager
def peer(stand: Rack, folder: Path) -> Iterator[None]:
    """dnsmasq and the HTTP server while they run."""
    files = [
        sys.executable,
        "-m",
        "http.server",
        str(HTTP),
        "--bind",
        "10.77.0.1",
        "-d",
        str(folder),
    ]
    with open(folder / "log", "wb") as log:
        quiet: Any = {"stdout": log, "stderr": log}
        with (
            running(
                stand, ["dnsmasq", "-k", "-C", str(folder / "dnsmasq.conf")], **quiet
            ) as server,
            running(stand, files, **quiet) as web,
        ):
            time.sleep(SETTLED)
            if server.poll() is not None or web.poll() is not None:
                raise RuntimeError((folder / "log").read_text())
            yield


@contextmanager
def running(stand: Rack, argv: list[str], **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """A program in the machines' network."""
    process = control.run_inside(stand.lab, argv, **options)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


if __name__ == "__main__":
    main()
