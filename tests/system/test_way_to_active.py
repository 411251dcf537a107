"""A machine's whole way with the real server and the real agent, on a stand-in machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.system.machine import MARK
from tests.system.stand import Stand

pytestmark = pytest.mark.system


def make_image(folder: Path, name: str, size: int = 8 << 20) -> Path:
    """A raw disk image that a stand-in machine "boots": the mark, its name, and something of its own further on."""
    path = folder / f"{name}.img"
    with open(path, "wb") as image:
        image.write(MARK + name.encode() + b"\0")
        image.seek(size // 2)
        image.write(f"data of {name} ".encode() * 4096)
        image.truncate(size)
    return path


def offer(stand: Stand, name: str, **attributes: str) -> None:
    """Add an image and a template of the same name that writes it."""
    stand.cod("image", "add", name, str(make_image(stand.folder, name)), "--wait")
    words = "".join(f' {key}="{value}"' for key, value in attributes.items())
    template = stand.folder / f"{name}.xml"
    template.write_text(f'<template name="{name}"{words}><image target="disk" name="{name}"/></template>')
    stand.cod("template", "add", str(template))


def test_powered_on_primed_active_released_wiped(tmp_path: Path) -> None:
    with Stand(tmp_path, machines=1) as stand:
        stand.serve()
        stand["m1"].on()
        stand.reaches("m1", "inactive")
        offer(stand, "red")
        stand.cod("vcluster", "create", "web", "--size", "1", "--template", "red")
        stand.reaches("m1", "active")
        assert stand.wait(stand["m1"].running).split() == ["red", "10.77.128.1", "n1", "web.cod.test"]
        stand.cod("vcluster", "delete", "web")
        stand.reaches("m1", "inactive")
        assert stand.node("m1").disk == "clean"
        assert not any(Path(stand["m1"].folder / "disk").read_bytes())
        assert [row["to_state"] for row in stand.history("m1")] == [
            "new", "registering", "trampoline", "inactive", "prime", "boot", "active", "trampoline", "wipe",
            "trampoline", "inactive"]
