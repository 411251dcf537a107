"""The signal that a job's script asks for before its end, as sbatch reads it."""

from __future__ import annotations

from pathlib import Path

import pytest

from cod.vcm.batch.commands import CommandFailed
from cod.vcm.batch.system import EndSignals, Job
from cod.vcm.slurm.settings import SlurmTable
from cod.vcm.slurm.signals import EndSignal, end_signal
from cod.vcm.slurm.system import SlurmSystem


def script(*lines: str) -> str:
    return "\n".join(["#!/bin/bash", *lines, "srun work", ""])


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        ("USR1", EndSignal("USR1", 60, False)),
        ("B:USR1@300", EndSignal("USR1", 300, True)),
        ("b:usr1@300", EndSignal("USR1", 300, True)),
        ("BR:SIGTERM@90", EndSignal("SIGTERM", 90, True)),
        ("R:USR2@90", EndSignal("USR2", 90, False)),
        ("10@30", EndSignal("10", 30, False)),
        ("B:USR1@0", None),
        ("@60", None),
        ("B:RTMIN+1@60", None),
        ("USR1@700000", None),
    ],
)
def test_the_forms_of_a_wish(value: str, wanted: EndSignal | None) -> None:
    assert end_signal(script(f"#SBATCH --signal={value}")) == wanted


@pytest.mark.parametrize(
    "lines",
    [
        ("#SBATCH --time=60 --signal=B:USR1@300 # and go on",),
        ("#SBATCH --signal B:USR1@300 -n 1",),
        ("#SBATCH --sig=B:USR1@300",),
        ("#SBATCH --signal='B:USR1@300'",),
        ("", "# a comment", "#SBATCH --signal=USR2@1", "#SBATCH --signal=B:USR1@300"),
        ("#SBATCH --comment='it is", "#SBATCH --signal=B:USR1@300"),
    ],
)
def test_where_it_may_stand(lines: tuple[str, ...]) -> None:
    assert end_signal(script(*lines)) == EndSignal("USR1", 300, True)


@pytest.mark.parametrize(
    "lines",
    [
        (),
        ("echo", "#SBATCH --signal=B:USR1@300"),
        ("##SBATCH --signal=B:USR1@300",),
        ("# SBATCH --signal=B:USR1@300",),
        (" #SBATCH --signal=B:USR1@300",),
        ("#SBATCH --comment=--signal=USR1",),
        ("#SBATCH --signal=B:USR1@300", "#SBATCH --signal=B:USR1@0"),
        ("#SBATCH --signal",),
        ("#SBATCH --switches=1",),
    ],
)
def test_where_none_is(lines: tuple[str, ...]) -> None:
    assert end_signal(script(*lines)) is None


# ---------------------------------------------------------------- as Slurm's commands say it


SCONTROL = """\
case $3 in
    14_2) printf '#!/bin/sh\\n#SBATCH --signal=B:USR1@90\\nsleep 9\\n' ;;
    15) printf '#!/bin/sh\\n#SBATCH --signal=TERM@30\\nsleep 9\\n' ;;
    16) echo 'job script retrieval failed: Job script not specified' >&2 ;;
    17) echo 'job script retrieval failed: Invalid job id specified' >&2 ;;
    *) echo 'job script retrieval failed: Unable to contact slurm controller (connect failure)' >&2; exit 1 ;;
esac
"""


@pytest.fixture
def system(tmp_path: Path) -> SlurmSystem:
    for name, text in (
        ("scontrol", f"echo $* >> {tmp_path}/said\n{SCONTROL}"),
        ("scancel", f"echo scancel $* >> {tmp_path}/said\n"),
    ):
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}")
        (tmp_path / name).chmod(0o755)
    return SlurmSystem(SlurmTable.model_validate({"path": str(tmp_path)}))


def test_a_job_is_sent_what_its_script_asks_for_and_asked_once(
    system: SlurmSystem, tmp_path: Path
) -> None:
    for job, seconds in (("14_2", 90.0), ("15", 30.0), ("16", 0.0), ("17", 0.0)):
        for _ in range(2):
            assert system.notice(Job(job, 1.0)) == seconds
        system.warn(Job(job, 1.0))
    said = (tmp_path / "said").read_text().splitlines()
    assert said == [
        "write batch_script 14_2 -",
        "scancel --signal=USR1 --batch 14_2",
        "write batch_script 15 -",
        "scancel --signal=TERM 15",
        "write batch_script 16 -",
        "write batch_script 17 -",
    ]
    assert isinstance(system, EndSignals)


def test_a_controller_that_does_not_answer_is_no_job_without_a_wish(
    system: SlurmSystem, tmp_path: Path
) -> None:
    for _ in range(2):
        with pytest.raises(CommandFailed, match="slurmctld does not answer"):
            system.notice(Job("18", 1.0))
    assert len((tmp_path / "said").read_text().splitlines()) == 2, "asked again"


def test_a_script_is_read_as_far_as_options_are_likely() -> None:
    asked = "#SBATCH --signal=USR1@300"
    assert end_signal(script(*["#"] * 30_000, asked)) == EndSignal("USR1", 300, False)
    assert end_signal(script(*["#"] * 70_000, asked)) is None
    assert end_signal(script("#SBATCH " + "x " * 100_000, asked)) is None
    assert end_signal(script("#SBATCH " + "x " * 3_000 + "--signal=USR1")) is None
