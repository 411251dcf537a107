"""A serial console's output as text that can be shown: bytes from a machine that may be hostile ->
str.

A terminal would obey control sequences (ECMA-48): move the cursor, hide text, send answers. They
are removed here. A sequence that moves the cursor, as firmware uses to draw its screens, begins a
new line. Characters that change the direction or the look of others are removed, too. Bytes that
are not UTF-8 become U+FFFD.
"""

from __future__ import annotations

import re

LONGEST = 256  # bytes of a control sequence that is waited for to end

_SEQUENCE = re.compile(
    "\x1b(?:"
    r"\[[0-?]*[ -/]*([@-~])"  # CSI … final byte
    # OSC, DCS, SOS, PM, APC: strings, up to their end
    "|[\\]PX^_][^\x1b\x07]{0,4096}(?:\x07|\x1b\\\\)"
    r"|[ -/]*[0-OQ-WYZ\\`-~]"  # the short ones
    ")"
)
_HIDDEN = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\U000e0000-\U000e007f]"
)
_END_OF_LINE = re.compile(r"\r*\n\r*|\r+")
_EMPTY_LINES = re.compile(r"\n{3,}")


def plain(data: bytes) -> str:
    """Return the text in the bytes: lines that end with '\\n', without control characters other
    than tabs."""
    text = _SEQUENCE.sub(_moved, data.decode(errors="replace"))
    text = _HIDDEN.sub("", text)
    return _EMPTY_LINES.sub("\n\n", _END_OF_LINE.sub("\n", text))


def _moved(sequence: re.Match[str]) -> str:
    return "\n" if sequence[1] in ("H", "f") else ""


def whole(data: bytes) -> int:
    """Return how many of the bytes can be shown now. The rest is the beginning of a character, of a
    control sequence or of a line's end whose other half is still to come. A sequence that is too
    long is not waited for."""
    end = len(data)
    begin = data.rfind(b"\x1b", max(0, end - LONGEST))
    if begin >= 0 and _SEQUENCE.match(data[begin:].decode(errors="replace")) is None:
        end = begin
    end -= _cut(data[max(0, end - 3) : end])
    return end - 1 if data[end - 1 : end] == b"\r" and end == len(data) else end


def _cut(tail: bytes) -> int:
    """Return how many bytes at the end are the beginning of a UTF-8 character."""
    for back in range(1, len(tail) + 1):
        byte = tail[-back]
        if byte & 0xC0 != 0x80:  # no continuation: does it want more of them than there are?
            wanted = (
                2
                if 0xC2 <= byte < 0xE0
                else 3
                if 0xE0 <= byte < 0xF0
                else 4
                if 0xF0 <= byte < 0xF5
                else 1
            )
            return back if wanted > back else 0
    return 0


def from_line(data: bytes) -> int:
    """Return where the first whole line begins in bytes from the middle of an output; 0 if no line
    begins near."""
    return data.find(b"\n", 0, 4096) + 1
