"""Finds out whether this host can run machines on KVM. Where /dev/kvm exists, it may still hang on
anything larger than a boot sector.

The probe runs real firmware: OVMF goes through real, protected and long mode before its first
character on the serial port. (SeaBIOS runs on hosts where OVMF and Linux hang, so it would prove
nothing.) The result is kept until the host boots again. ``COD_LAB_ACCEL=kvm`` or ``=tcg`` decides
without a probe.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

from cod.lab.machine import ACCELERATORS, OVMF_CODE, OVMF_VARS, QEMU, flash

KVM = Path("/dev/kvm")
PROBE_SECONDS = 15.0


def choose(root: Path) -> str:
    """Return 'kvm' if KVM works on this host, else 'tcg'. The answer is cached in `root`."""
    preset = os.environ.get("COD_LAB_ACCEL", "")
    if preset in ACCELERATORS:
        return preset
    cache, boot = root / ".accel.json", Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    known = _cached(cache)
    if known.get("boot") != boot:
        known = {"boot": boot, "accel": "kvm" if kvm_works() else "tcg"}
        root.mkdir(parents=True, exist_ok=True)
        cache.write_text(json.dumps(known))
    return known["accel"]


def kvm_works() -> bool:
    """Return whether firmware on KVM reaches its console within `PROBE_SECONDS`."""
    return KVM.exists() and os.access(KVM, os.R_OK | os.W_OK) and speaks("kvm", PROBE_SECONDS)


def speaks(accel: str, seconds: float) -> bool:
    """Start OVMF with `accel`, without disk or network; return whether it writes to its serial port
    in time."""
    with tempfile.TemporaryDirectory(prefix="cod-probe-") as name:
        serial, variables = Path(name) / "serial", Path(name) / "vars.fd"
        shutil.copyfile(OVMF_VARS, variables)
        argv = [
            QEMU,
            "-machine",
            "q35",
            *ACCELERATORS[accel],
            "-m",
            "256",
            "-nodefaults",
            "-display",
            "none",
            "-net",
            "none",
            "-serial",
            f"file:{serial}",
            *flash(OVMF_CODE, variables),
        ]
        probe = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            until = time.monotonic() + seconds
            while time.monotonic() < until and probe.poll() is None:
                if serial.exists() and serial.stat().st_size > 0:
                    return True
                time.sleep(0.1)
            return False
        finally:
            probe.kill()
            probe.wait()


def _cached(cache: Path) -> dict[str, str]:
    try:
        known = json.loads(cache.read_text())
    except (FileNotFoundError, ValueError):
        return {}
    return known if isinstance(known, dict) and known.get("accel") in ACCELERATORS else {}
