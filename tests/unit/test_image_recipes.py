"""The images' recipes without building any: templates that COD accepts, boot code that adds up."""

from __future__ import annotations

from pathlib import Path

import pytest
from lxml import etree

from cod.policy import template
from images import build, opaque
from images.disk import Part, identifier, put, starts

IMAGES = Path(build.__file__).parent


@pytest.mark.parametrize("name", build.NAMES)
def test_every_image_has_a_template_that_is_valid(name: str) -> None:
    text = (IMAGES / f"{name}.xml").read_text()
    schema = etree.RelaxNG(etree.parse(IMAGES.parent / "schema/template.rng"))
    schema.assertValid(etree.fromstring(text))
    read = template.parse(text)
    assert [(image.target, image.name) for image in read.images] == [("disk", name)]
    assert read.diskless is None


def test_boot_code_fits_and_jumps_where_it_should() -> None:
    code = opaque.boot_code(34816)
    assert len(code) <= 440
    packet = code.index(bytes.fromhex("10000100007e0000") + (34816).to_bytes(8, "little"))
    message = code.index(opaque.MESSAGE.encode())
    assert b"\xbe" + (0x7C00 + message).to_bytes(2, "little") + b"\xe8" in code, "mov si, message; call"
    assert b"\xbe" + (0x7C00 + packet).to_bytes(2, "little") + b"\xb4\x42\xcd\x13" in code, "mov si, packet; int 0x13"
    show = code.index(b"\xac\x84\xc0")  # lodsb; test al, al
    calls = [at for at in range(show) if code[at] == 0xE8]
    assert len(calls) == 3
    assert {at + 3 + int.from_bytes(code[at + 1:at + 3], "little", signed=True) for at in calls} == {show}
    halt = code.index(b"\xf4\xeb")
    assert code[halt + 2] == 0xFD, "jmp to the hlt before it"


def test_parts_follow_each_other_from_the_first_mebibyte() -> None:
    assert starts([Part("a", 1, "bios"), Part("b", 24, "esp"), Part("c", 64, "data")]) == [1, 2, 26]


def test_identifiers_depend_on_the_words_alone() -> None:
    assert identifier("a", 1) == identifier("a", 1)
    assert identifier("a", 1) != identifier("a", 2)


def test_zeros_stay_holes(tmp_path: Path) -> None:
    path = tmp_path / "image"
    path.write_bytes(b"")
    path.open("r+b").truncate(1 << 20)
    put(path, bytes(65536) + b"x" + bytes(65536), 8192)
    assert path.read_bytes().index(b"x") == 8192 + 65536
    assert path.stat().st_blocks * 512 <= 8192
