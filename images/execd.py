"""The host of a Grid Engine pool: a Debian system with `sge_execd` (docs/gridengine-image)."""

from __future__ import annotations

from pathlib import Path

from images import batch

HOST = batch.BatchHost(
    name="execd",
    version="3",
    packages=(
        *batch.PACKAGES,
        "gridengine-common",
        "gridengine-exec",
        "libcom-err2",
        "libgssapi-krb5-2",
        "libhwloc15",
        "libjemalloc2",
        "libk5crypto3",
        "libkeyutils1",
        "libkrb5-3",
        "libkrb5support0",
        "libmunge2",
        "libssl3",
        "libstdc++6",
        "libtirpc-common",
        "libtirpc3",
    ),
    rootfs=Path(__file__).resolve().parent / "exechost",
    daemons=("execd",),
    left_out=(
        "usr/share/gridengine/pvm/",
        "usr/share/gridengine/mpi/",
        "usr/share/gridengine/Qmon",
    ),
    folders={"var/lib/gridengine": 0o755, "var/spool/gridengine/execd": 0o755},
    links={"var/lib/gridengine/util": "/usr/share/gridengine/util"},
)
