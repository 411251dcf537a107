"""The program that finds a BIOS machine's disk by its signature: its form, as loaders check it. It
is run in tests/system/test_disk_order.py."""

from __future__ import annotations

import struct

import pytest

from cod.wire import diskloader, realmode


@pytest.mark.parametrize("lenient", [False, True])
def test_loaders_take_it_for_a_kernel(lenient: bool) -> None:
    """Check the header as iPXE's and SYSLINUX's loaders do: boot.rst of the kernel."""
    program = diskloader.loader(0x1234ABCD, lenient)
    flag, jump, magic, version = struct.unpack_from("<H2s4sH", program, 0x1FE)
    assert (flag, jump[0], magic) == (0xAA55, 0xEB, b"HdrS")
    assert version >= 0x200
    assert program[0x202 + jump[1]] == 0xFA, "the jump leads to the code"
    assert program[0x211] & 1
    assert struct.unpack_from("<I", program, 0x214) == (0x100000,)
    sectors = program[0x1F1]
    assert len(program) > (sectors + 1) * 512, "no protected-mode part"
    assert len(program[: (sectors + 1) * 512].rstrip(b"\0")) < (sectors + 1) * 512
    assert struct.unpack_from("<I", program, program.index(b"\xcd\xab\x34\x12"))[0] == 0x1234ABCD
    assert b"no disk with signature 1234abcd; rebooting" in program


def test_labels_and_distances() -> None:
    code = realmode.assemble(
        "begin: be >text  si = text\n eb ^over e8 ~begin\nover: c3  ret", {"text": b"x"}, 0x7C00
    )
    assert code == bytes.fromhex("be 097c eb03 e8 f8ff c3") + b"x"
