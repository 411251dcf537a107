"""A small assembler for boot code: hexadecimal machine code with labels becomes bytes. Real mode,
16 bits.

A line is code up to the first two blanks; the rest is a remark. A word of code is hexadecimal
bytes, or one of:

``name:``   defines the label `name` here
``>name``   the label's 16-bit address
``~name``   the 16-bit distance to the label, for call and near jumps
``^name``   the 8-bit distance to the label, for short jumps
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

LOADED = 0x7C00  # where a BIOS puts the boot sector


def assemble(source: str, data: Mapping[str, bytes], origin: int = LOADED) -> bytes:
    """Return the machine code of `source`, followed by `data`, whose names are labels too.

    origin  the address at which the first byte will lie
    """
    words = [word for line in source.splitlines() for word in line.partition("  ")[0].split()]
    places: dict[str, int] = {}
    size = len(_pass(words, places, origin))  # the first pass finds where everything is
    for name, content in data.items():
        places[name] = size
        size += len(content)
    return _pass(words, places, origin) + b"".join(data.values())


def _pass(words: list[str], places: dict[str, int], origin: int) -> bytes:
    code = bytearray()
    for word in words:
        target = places.get(word[1:], 0)
        if word.endswith(":"):
            places[word[:-1]] = len(code)
        elif word.startswith(">"):
            code += struct.pack("<H", origin + target)
        elif word.startswith("~"):
            code += struct.pack("<H", (target - len(code) - 2) & 0xFFFF)
        elif word.startswith("^"):
            code += struct.pack("<B", (target - len(code) - 1) & 0xFF)
        else:
            code += bytes.fromhex(word)
    return bytes(code)
