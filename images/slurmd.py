"""The compute node of a Slurm pool: a Debian system with `munged` and `slurmd`, of Debian 12 or 13
(docs/slurm-image)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from images import batch, releases

HOST = batch.BatchHost(
    name="slurmd",
    version="1",
    packages=(
        *batch.PACKAGES,
        "libaudit1",
        "libbz2-1.0",
        "libcap-ng0",
        "libcap2",
        "libdbus-1-3",
        "libgcrypt20",
        "libgpg-error0",
        "libhwloc15",
        "libjson-c5",
        "liblua5.1-0",
        "liblz4-1",
        "liblzma5",
        "libmunge2",
        "libnuma1",
        "libpam0g",
        "libreadline8",
        "libstdc++6",
        "libsystemd0",
        "libyaml-0-2",
        "libzstd1",
        "munge",
        "slurm-client",
        "slurm-wlm-basic-plugins",
        "slurmd",
    ),
    rootfs=Path(__file__).resolve().parent / "slurmhost",
    daemons=("clock", "munged", "slurmd"),
    # slurmd tries every MPI plugin that is there; those of PMIx want its libraries
    left_out=(
        "etc/init.d/",
        "etc/logrotate.d/",
        "usr/lib/x86_64-linux-gnu/slurm-wlm/openapi_",
        "usr/lib/x86_64-linux-gnu/slurm-wlm/mpi_pmix",
    ),
    folders={"etc/slurm": 0o755},
    links={"usr/sbin/slurmd": "slurmd-wlm", "usr/sbin/slurmstepd": "slurmstepd-wlm"},
    # Debian's number of slurm; munge's is nobody else's business
    users={"munge": 64031, "slurm": 64030},
)

# What it is linked with has other names there, or is new.
DEBIAN_13 = replace(
    HOST,
    name="slurmd-debian13",
    packages=(
        *(name for name in HOST.packages if name != "libreadline8"),
        "libb64-0d",
        "libjansson4",
        "libjwt2",
        "libreadline8t64",
        "libssl3t64",
        "libxxhash0",
    ),
    suite=releases.TRIXIE,
)
