"""What a console sends, as text: no byte of it is obeyed, none that can be shown is lost, however
it is cut."""

from __future__ import annotations

import time
import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cod.wire.terminal import LONGEST, from_line, plain, whole

TURNS = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}


@pytest.mark.parametrize(
    ("sent", "shown"),
    [
        (b"Linux version 6.1\r\nlogin: ", "Linux version 6.1\nlogin: "),
        (b"\x1b[1;31mred\x1b[0m\r\n", "red\n"),
        (b"\x1b[?25l\x1b[2Jclear\x1b[K", "clear"),
        (b"a\x1b[5;1Hb\x1b[6;1fc", "a\nb\nc"),
        (b"\x1b]0;title\x07after", "after"),
        (b"\x1b]8;;https://evil.example\x1b\\link\x1b]8;;\x1b\\", "link"),
        (b"\x1bP+q544e\x1b\\dcs", "dcs"),
        (b"\x1b(B\x1b)0\x1b=\x1b>\x1bcshort", "short"),
        (b"\x1b[31", "[31"),
        (b"bell\x07 back\x08space nul\x00", "bell backspace nul"),
        (b"tab\there", "tab\there"),
        (b"10%\r20%\r\n", "10%\n20%\n"),
        (b"a\n\rb\r\r\nc", "a\nb\nc"),
        (b"a\r\n\r\n\r\n\r\nb", "a\n\nb"),
        ("süß €\n".encode(), "süß €\n"),
        (b"\xff\xfebroken\xc3", "\ufffd\ufffdbroken\ufffd"),
        ("abc\u202egpj.exe\u200b\u2066\u2028".encode(), "abcgpj.exe"),
        ("\u009b31mC1".encode(), "31mC1"),
        (b"<script>alert(1)</script>", "<script>alert(1)</script>"),
    ],
)
def test_what_is_shown(sent: bytes, shown: str) -> None:
    assert plain(sent) == shown


@given(
    st.binary(max_size=400)
    | st.lists(
        st.sampled_from(
            [
                b"\x1b",
                b"[",
                b"]",
                b"31m",
                b"\x07",
                b"\r",
                b"\n",
                b"x",
                b"\xc3",
                b"\xa9",
                b"\x9b",
                b"\\",
            ]
        )
    ).map(b"".join)
)
def test_nothing_that_is_shown_can_be_obeyed(sent: bytes) -> None:
    for character in plain(sent):
        assert character in "\n\t" or unicodedata.category(character) not in (
            "Cc",
            "Cs",
            "Zl",
            "Zp",
        )
        assert unicodedata.bidirectional(character) not in TURNS


@given(
    st.lists(
        st.sampled_from(
            [
                b"line\r\n",
                b"\x1b[1;31mred\x1b[0m",
                "süß€🙂".encode(),
                b"\x1b]0;title\x07",
                b"x",
                b"10%\r",
                b"\x1b(B",
            ]
        ),
        max_size=30,
    ).map(b"".join),
    st.data(),
)
def test_whoever_follows_sees_what_a_reader_of_all_sees(sent: bytes, data: st.DataObject) -> None:
    """Wherever the reads end: what is not whole is read with the next."""
    shown, begin = "", 0
    for cut in [*sorted(data.draw(st.lists(st.integers(0, len(sent)), max_size=8))), len(sent)]:
        if cut > begin:
            taken = whole(sent[begin:cut])
            shown += plain(sent[begin : begin + taken])
            begin += taken
    assert (shown + plain(sent[begin:])).replace("\n", "") == plain(sent).replace("\n", "")


@pytest.mark.parametrize(
    ("sent", "left"),
    [
        (b"text", 0),
        (b"", 0),
        (b"text\r", 1),
        (b"text\x1b", 1),
        (b"text\x1b[1;3", 5),
        (b"text\x1b[1;3m", 0),
        (b"text\x1b]0;tit", 7),
        ("ü".encode()[:1], 1),
        ("€".encode()[:2], 2),
        ("🙂".encode()[:3], 3),
        ("🙂".encode(), 0),
        (b"\xff", 0),
        (b"\x80\x80\x80", 0),
        (b"\r\xc3", 1),
        (b"\xc3\x1b[", 3),
    ],
)
def test_the_half_of_something_is_left_for_later(sent: bytes, left: int) -> None:
    assert whole(sent) == len(sent) - left


@given(st.binary(min_size=LONGEST + 8, max_size=2000))
@example(b"\x1b]0;" + b"a" * LONGEST)
@example(b"\x1b[" + b"1" * LONGEST)
def test_what_does_not_end_is_not_waited_for(sent: bytes) -> None:
    assert whole(sent) >= len(sent) - LONGEST - 4


def test_a_tail_begins_with_a_line() -> None:
    assert from_line(b"half a line\r\nwhole\r\n") == 13
    assert from_line(b"no end") == 0
    assert from_line(b"x" * 5000 + b"\n") == 0


@pytest.mark.parametrize(
    "hostile", [b"\x1b]", b"\x1b[", b"\x1b]0;\x1b", b"\r", b"\x1b]" + b"a" * 4095, b"\x1b[1;"]
)
def test_a_megabyte_of_ill_will_takes_no_longer_than_another(hostile: bytes) -> None:
    began = time.process_time()
    plain(hostile * (2**20 // len(hostile)))
    assert time.process_time() - began < 5, "quadratic: it takes minutes"
