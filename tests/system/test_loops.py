"""Loop devices of a killed process end with it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import until

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(os.geteuid() != 0, reason="loop devices need root"),
]

USES = """\
import sys, time
from tests.loops import loop_device
with loop_device(sys.argv[1]) as path:
    with open(path, "r+b") as disk:
        disk.write(b"written")
    print(path, flush=True)
    time.sleep(600)
"""


def devices_of(file: Path) -> str:
    listed = subprocess.run(
        ["losetup", "--associated", file], check=True, capture_output=True, text=True
    )
    return listed.stdout


def test_a_killed_process_leaves_no_loop_device(tmp_path: Path) -> None:
    file = tmp_path / "disk"
    file.write_bytes(bytes(1 << 20))
    with subprocess.Popen(
        [sys.executable, "-c", USES, file], stdout=subprocess.PIPE, text=True
    ) as user:
        assert user.stdout is not None
        path = user.stdout.readline().strip()
        assert path in devices_of(file)
        user.kill()
    until(lambda: not devices_of(file))
    assert file.read_bytes().startswith(b"written")
