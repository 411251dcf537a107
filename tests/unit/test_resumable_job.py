"""The example of a job that saves itself, and of the program that has it do so, without a batch
system."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.waiting import until

pytestmark = pytest.mark.slow
EXAMPLES = Path(__file__).parents[2] / "docs/examples"


@pytest.fixture
def tools(tmp_path: Path) -> dict[str, str]:
    """Steps that take a fiftieth of a second, and a `scancel` that signals the process of that
    number."""
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    for name, text in (
        ("sleep", "exec /bin/sleep 0.02"),
        ("scancel", 'echo "$@" >> scancelled; kill -USR1 "$3"'),
    ):
        (bin_ / name).write_text(f"#!/bin/sh\n{text}\n")
        (bin_ / name).chmod(0o755)
    return {"PATH": f"{bin_}:{os.environ['PATH']}", "SAVED": str(tmp_path / "saved")}


def start(folder: Path, tools: dict[str, str], steps: int, **job: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [EXAMPLES / "resumable-job.sh", str(steps)],
        cwd=folder,
        env={**tools, **job},
        text=True,
        stdout=subprocess.PIPE,
    )


@pytest.mark.parametrize(
    ("job", "name"),
    [
        ({"SLURM_JOB_ID": "12"}, "12"),
        ({"SLURM_JOB_ID": "15", "SLURM_ARRAY_JOB_ID": "14", "SLURM_ARRAY_TASK_ID": "2"}, "14_2"),
        ({"JOB_ID": "7", "SGE_TASK_ID": "undefined"}, "7"),
        ({"JOB_ID": "7", "SGE_TASK_ID": "3"}, "7.3"),
    ],
)
def test_it_goes_on_where_it_was(
    tmp_path: Path, tools: dict[str, str], job: dict[str, str], name: str
) -> None:
    saved = tmp_path / "saved" / name
    running = start(tmp_path, tools, 1000, **job)
    until(lambda: saved.exists() and saved.read_text() == "0\n", "it can save itself")
    # it has time for steps between two saves, however long those take
    until(
        lambda: _signalled(running, signal.SIGUSR1, saved) >= 5, "it has saved some steps", 120, 0.3
    )
    running.terminate()
    assert running.wait(60) == 143
    done = int(saved.read_text())
    assert 5 <= done < 1000
    again = start(tmp_path, tools, done + 3, **job)
    said, _ = again.communicate(timeout=120)
    assert f"begins with step {done}\n" in said
    assert f"has done all {done + 3} steps\n" in said
    assert not saved.exists(), "a later job of that number begins anew"


def test_it_heeds_a_signal_as_soon_as_its_file_is_there(
    tmp_path: Path, tools: dict[str, str]
) -> None:
    """Programs that have jobs save themselves signal those whose file they find."""
    mv = tmp_path / "bin/mv"
    mv.write_text('#!/bin/sh\n/bin/mv "$@"; mkdir once 2>/dev/null && kill -USR1 $PPID\n')
    mv.chmod(0o755)
    running = start(tmp_path, tools, 3, JOB_ID="7")
    said, _ = running.communicate(timeout=120)
    assert (running.returncode, "has done all 3 steps" in said) == (0, True)


def _signalled(running: subprocess.Popen[str], number: signal.Signals, saved: Path) -> int:
    before = saved.stat().st_ino
    running.send_signal(number)
    until(lambda: saved.stat().st_ino != before, "it has saved itself")
    return int(saved.read_text())


def test_jobs_that_can_are_saved_and_others_left_alone(
    tmp_path: Path, tools: dict[str, str]
) -> None:
    with subprocess.Popen(["/bin/sleep", "60"]) as other:
        shell = subprocess.Popen(
            ["bash", "-c", f"SLURM_JOB_ID=$$ exec {EXAMPLES}/resumable-job.sh 1000"],
            cwd=tmp_path,
            env=tools,
            stdout=subprocess.DEVNULL,
        )
        saved = tmp_path / f"saved/{shell.pid}"
        until(saved.exists, "it can save itself")
        before = saved.stat().st_ino
        try:
            done = subprocess.run(
                [EXAMPLES / "save-jobs.sh", tools["SAVED"], f"{shell.pid},{other.pid},999999"],
                cwd=tmp_path,
                env=tools,
                timeout=120,
                check=False,
            )
            assert done.returncode == 0
            assert saved.stat().st_ino != before, (
                "it ends when the job has saved itself, not earlier"
            )
            assert (tmp_path / "scancelled").read_text() == f"--batch --signal=USR1 {shell.pid}\n"
            assert other.poll() is None
        finally:
            for one in (shell, other):
                one.kill()
            shell.wait()


def test_a_node_mounts_the_folder_once(tmp_path: Path, tools: dict[str, str]) -> None:
    """The command that `restore` runs over ssh, with programs of the test's own in place of `ssh`
    and `mount`."""
    folder = tmp_path / "srv/saved"
    for name, text in (
        ("ssh", 'echo "$1" >> asked; exec sh -c "$2"'),
        ("mount", 'echo "$@" >> mounted; touch done'),
        ("mountpoint", "exec test -e done"),
    ):
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    for _ in range(2):
        subprocess.run(
            [EXAMPLES / "restore-node.sh", "10.77.128.4", "files:/srv/saved", folder],
            cwd=tmp_path,
            env={**tools, "SSH": "ssh"},
            check=True,
        )
    assert folder.is_dir()
    assert (tmp_path / "asked").read_text() == "root@10.77.128.4\n" * 2
    assert (tmp_path / "mounted").read_text() == f"files:/srv/saved {folder}\n"
