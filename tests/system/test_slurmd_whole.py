"""Two machines, BIOS and UEFI, become nodes of a Slurm cluster: unmodified firmware, the image as
it is shipped, a real slurmctld that knows nothing of them before."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest

from cod.lab import record
from cod.lab.spec import LabDisk, LabNode
from images import build, releases
from tests.system.batch_image import CACHE
from tests.system.installation import USER
from tests.system.qemu import TEMPLATES, build_all, rack
from tests.system.slurmhead import slurm_head
from tests.system.slurmroot import unpack

pytestmark = [
    pytest.mark.system,
    pytest.mark.nightly,
    pytest.mark.slow,
    pytest.mark.xdist_group("slurmd"),
    pytest.mark.timeout(1800),
]

SERVER = "10.77.0.1"
# What a job sees, the control group of its processes and the clock among it; and whether it gets
# the munge key.
JOB = f"""\
hostname
cut -d: -f3 /proc/self/cgroup | grep -m1 -o "job_[0-9]*/step_[0-9]*"
date +%s
wget -q -O - http://{SERVER}:8069/latest/meta-data/local-ipv4; echo
for path in latest/user-data nocloud/user-data latest/; do wget -q -O - http://{SERVER}:8069/$path; done |
    grep -cE "MUNGE_KEY|user-data"
cat /run/munge/munge.key /run/seed/user-data | wc -c
"""


@pytest.fixture
def trixie(tmp_path: Path) -> Iterator[Path]:
    """The files of a head of Debian 13."""
    root = tmp_path / "trixie"
    try:
        unpack(releases.TRIXIE, root)
        yield root
    finally:
        shutil.rmtree(root, ignore_errors=True)


def test_machines_of_both_firmwares_run_jobs(tmp_path: Path) -> None:
    machines_run_jobs("slurmd", ("bios", "uefi"), tmp_path)


def test_machines_of_both_firmwares_run_jobs_of_debian_13(tmp_path: Path, trixie: Path) -> None:
    machines_run_jobs("slurmd-debian13", ("bios", "uefi"), tmp_path, trixie)


def machines_run_jobs(
    image: str, kinds: Sequence[str], tmp_path: Path, root: Path | None = None
) -> None:
    """Let machines of these kinds boot the image, with the drivers for servers, and run a job each,
    for a head with the files in `root`, or this system's."""
    build_all()
    build.build(image, tmp_path / "made", CACHE, "generic")
    machines = [LabNode(kind, kind, memory=512, disks=(LabDisk(640 << 20),)) for kind in kinds]
    with (
        rack(machines) as stand,
        slurm_head(record.namespace(stand.lab), SERVER, "proctrack/cgroup", root) as head,
    ):
        head.start()
        for machine in machines:
            stand.power(machine.name, "on")
        stand.cod("image", "add", image, str(tmp_path / f"made/{image}.img"), "--wait")
        stand.cod("group", "create", "physics")
        template = tmp_path / f"{image}.xml"
        template.write_text(
            (TEMPLATES / f"{image}.xml")
            .read_text()
            .replace(
                '<personalise seed="nocloud"/>',
                '<personalise seed="nocloud"><user-data secret="yes">'
                f"SLURM_CONTROLLER=head\nSLURM_CONTROLLER_ADDRESS={SERVER}\nMUNGE_KEY={head.key}\nUSERS=alice:{USER}\n"
                "</user-data></personalise>",
            )
        )
        stand.cod("template", "add", str(template), "--group", "physics")
        for machine in machines:
            stand.reaches(machine.name, "inactive")
        stand.cod(
            "vcluster",
            "create",
            "slurm",
            "--size",
            str(len(machines)),
            "--template",
            image,
            "--group",
            "physics",
            "--spread",
        )
        for number, machine in enumerate(machines, 1):
            found = stand.reaches(machine.name, "active")
            name, address = found["hostname"], found["address"]
            stand.wait(partial(head.is_ready, name, address), f"slurmctld knows {name}")
            done = head.run("srun", "-w", name, "sh", "-c", JOB, user=USER, check=False)
            words = done.stdout.split()
            assert len(words) == 6, done
            assert words[:2] == [name, f"job_{number}/step_0"], "Slurm has it in a control group"
            assert abs(int(words[2]) - time.time()) < 60
            assert words[3:] == [
                address,
                "0",
                "0",
            ], "neither COD nor a file tells a job the munge key"
        stand.wait(
            lambda: all(
                "slurmd: registered as" in stand.console(machine.name) for machine in machines
            ),
            "the consoles say so",
            60,
        )
