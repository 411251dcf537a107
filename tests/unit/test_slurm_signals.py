"""The signal that a job's script asks for before its end, as sbatch reads it."""

from __future__ import annotations

import pytest

from cod.vcm.slurm.signals import EndSignal, end_signal


def script(*lines: str) -> str:
    return "\n".join(["#!/bin/bash", *lines, "srun work", ""])


@pytest.mark.parametrize(("value", "wanted"), [
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
])
def test_the_forms_of_a_wish(value: str, wanted: EndSignal | None) -> None:
    assert end_signal(script(f"#SBATCH --signal={value}")) == wanted


@pytest.mark.parametrize("lines", [
    ("#SBATCH --time=60 --signal=B:USR1@300 # and go on",),
    ("#SBATCH --signal B:USR1@300 -n 1",),
    ("#SBATCH --sig=B:USR1@300",),
    ("#SBATCH --signal='B:USR1@300'",),
    ("", "# a comment", "#SBATCH --signal=USR2@1", "#SBATCH --signal=B:USR1@300"),
    ("#SBATCH --comment='it is", "#SBATCH --signal=B:USR1@300"),
])
def test_where_it_may_stand(lines: tuple[str, ...]) -> None:
    assert end_signal(script(*lines)) == EndSignal("USR1", 300, True)


@pytest.mark.parametrize("lines", [
    (),
    ("echo", "#SBATCH --signal=B:USR1@300"),
    ("##SBATCH --signal=B:USR1@300",),
    ("# SBATCH --signal=B:USR1@300",),
    (" #SBATCH --signal=B:USR1@300",),
    ("#SBATCH --comment=--signal=USR1",),
    ("#SBATCH --signal=B:USR1@300", "#SBATCH --signal=B:USR1@0"),
    ("#SBATCH --signal",),
    ("#SBATCH --switches=1",),
])
def test_where_none_is(lines: tuple[str, ...]) -> None:
    assert end_signal(script(*lines)) is None
