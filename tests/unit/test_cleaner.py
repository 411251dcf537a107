"""What a killed process is known to have made."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cod.lab import cleaner, record


def test_only_what_is_named_after_the_owner_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The owner's process id is 21, as in a process namespace of its own: the number is in the
    names of others, too."""
    names, own = (tmp_path / "netns", tmp_path / "tmp")
    spaces = ("codt21x0", "codt21x0-m1", "cod-lab-rack-21", "codt18438x0-m21", "codt121x0", "c210")
    folders = ("codt21x0", "codt21-test", "cod-elwacz21", "codt18438x21", "other21")
    for folder, each in ((names, spaces), (own, folders)):
        for name in each:
            (folder / name).mkdir(parents=True)
    monkeypatch.setattr(cleaner, "NAMESPACES", names)
    monkeypatch.setattr(cleaner, "inside", lambda name: [])
    monkeypatch.setattr("cod.lab.cleaner.network.remove", lambda name: (names / name).rmdir())
    monkeypatch.setattr("cod.lab.cleaner.tempfile.gettempdir", lambda: str(own))
    monkeypatch.setattr(record, "names", list)
    cleaner.clean("21.0", ())
    assert {path.name for path in names.iterdir()} == {"codt18438x0-m21", "codt121x0", "c210"}
    assert {path.name for path in own.iterdir()} == {"cod-elwacz21", "codt18438x21", "other21"}


@pytest.mark.slow
def test_a_cleaner_ends_nothing_that_was_started_before_it() -> None:
    """A test's stage ends with a cleaner of its own; the database of all tests goes on."""
    owner = """
import subprocess
from cod.lab import cleaner
first = cleaner.start()
before = subprocess.Popen(["sleep", "600"])
second = cleaner.start()
after = subprocess.Popen(["sleep", "600"])
second.communicate(timeout=60)
print(before.poll(), after.wait(60))
before.kill()
first.communicate(timeout=60)
"""
    done = subprocess.run([sys.executable, "-c", owner], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["None", str(-signal.SIGTERM)]
