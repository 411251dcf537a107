"""A disk that is marked keep, on a machine with the real agent: what is on it survives until the
mark is removed. It has a name of the image's, which is told."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from tests.system.site_images import add_template, make_image
from tests.system.stand import Stand

pytestmark = [pytest.mark.system, pytest.mark.slow]

SIZE = 32 << 20
# larger than the first disk is small: a template that takes the largest would take it
SERIAL = "disk-of-data"


def label(disk: Path) -> None:
    """Make a swap area of the disk's first page, as far as names go."""
    with disk.open("r+b") as file:
        for at, words in ((0x41C, b"scratch\0"), (4086, b"SWAPSPACE2")):
            file.seek(at)
            file.write(words)


def test_a_kept_disk_survives_a_whole_life_and_not_the_end_of_its_mark(tmp_path: Path) -> None:
    content = hashlib.shake_256(b"somebody's data").digest(SIZE)
    with Stand(tmp_path, machines=1, disk_size=16 << 20) as stand:
        data = stand["m1"].folder / SERIAL
        data.write_bytes(content)
        label(data)
        content = data.read_bytes()
        stand.serve()
        assert stand.cod("node", "keep", "m1", f"serial:{SERIAL}")["keep"] == [f"serial:{SERIAL}"]
        stand["m1"].on()
        stand.reaches("m1", "inactive")
        assert stand.cod("node", "keep", "m1")["kept"] == [f"{SERIAL} (serial {SERIAL})"]
        image = make_image(stand.folder, "red")
        label(image)
        stand.cod("image", "add", "red", str(image), "--wait")
        add_template(stand, "red", '<image target="disk" name="red"/>')
        stand.cod("vcluster", "create", "web", "--size", "1", "--template", "red")
        stand.reaches("m1", "active")
        assert data.read_bytes() == content
        [told] = stand.cod("node", "show", "m1")["conflicts"]
        assert (told["kind"], f"label scratch of {SERIAL}" in told["about"]) == ("namesake", True)
        stand.cod("vcluster", "delete", "web")
        stand.wait(
            lambda: (
                [row["to_state"] for row in stand.history("m1")][-1] == "inactive"
                and stand.node("m1").disk == "clean"
            ),
            180,
            "it is wiped and free",
        )
        assert "wipe" in [row["to_state"] for row in stand.history("m1")]
        assert data.read_bytes() == content
        assert stand["m1"].folder.joinpath("disk").read_bytes() == bytes(16 << 20)
        stand.cod("node", "keep", "m1", f"serial:{SERIAL}", "--remove")
        stand.wait(
            lambda: stand.state("m1") == "inactive" and stand.node("m1").disk == "clean",
            180,
            "it is wiped",
        )
        assert data.read_bytes() == bytes(SIZE)
