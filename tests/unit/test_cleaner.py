"""What a killed process is known to have made."""

from __future__ import annotations

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
    monkeypatch.setattr(cleaner.network, "remove", lambda name: (names / name).rmdir())
    monkeypatch.setattr(cleaner.tempfile, "gettempdir", lambda: str(own))
    monkeypatch.setattr(record, "names", list)
    cleaner.clean("21.0", ())
    assert {path.name for path in names.iterdir()} == {"codt18438x0-m21", "codt121x0", "c210"}
    assert {path.name for path in own.iterdir()} == {"cod-elwacz21", "codt18438x21", "other21"}
