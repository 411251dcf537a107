"""What HTTP requests for files mean."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cod.wire.http import Answer, BadTarget, answer, path_parts

TAG = '"a-1"'


def asked(size: int = 100, **headers: str) -> Answer:
    return answer(
        {name.replace("_", "-").encode(): value.encode() for name, value in headers.items()},
        size,
        TAG,
    )


@pytest.mark.parametrize(
    ("target", "parts"),
    [
        (b"/", [""]),
        (b"/files/a/b.c", ["files", "a", "b.c"]),
        (b"/files/a%20b?x=../y", ["files", "a b"]),
        (b"/files/%252e%252e/x", ["files", "%2e%2e", "x"]),
        (b"http://10.0.0.1:8069/files/a", ["files", "a"]),
        (b"/boot/52:54:00:00:00:01/script.ipxe", ["boot", "52:54:00:00:00:01", "script.ipxe"]),
        (b"//files//a", ["", "files", "", "a"]),
    ],
)
def test_paths(target: bytes, parts: list[str]) -> None:
    assert path_parts(target) == parts


@pytest.mark.parametrize(
    "target",
    [
        b"*",
        b"",
        b"files/a",
        b"/files/../x",
        b"/files/%2e%2e/x",
        b"/files/.%2E/x",
        b"/files/..%2fx",
        b"/files/%2fetc",
        b"/files/a%5cb",
        b"/files/a\\..\\b",
        b"/files/a%00",
        b"/files/%0d%0aX:",
        b"/files/%ff",
        b"/./a",
        b"ftp://h/files/a",
        b"http://h",
    ],
)
def test_targets_that_name_nothing(target: bytes) -> None:
    with pytest.raises(BadTarget):
        path_parts(target)


@pytest.mark.parametrize(
    ("wanted", "start", "length"),
    [
        ("bytes=0-0", 0, 1),
        ("bytes=0-99", 0, 100),
        ("bytes=10-19", 10, 10),
        ("bytes=90-", 90, 10),
        ("bytes=-5", 95, 5),
        ("bytes=-500", 0, 100),
        ("bytes=50-5000", 50, 50),
    ],
)
def test_ranges(wanted: str, start: int, length: int) -> None:
    what = asked(range=wanted)
    assert (what.status, what.start, what.length) == (206, start, length)
    assert ("Content-Range", f"bytes {start}-{start + length - 1}/100") in what.headers


@pytest.mark.parametrize("wanted", ["bytes=100-", "bytes=100-200", "bytes=-0"])
def test_ranges_behind_the_end(wanted: str) -> None:
    what = asked(range=wanted)
    assert (what.status, what.length) == (416, 0)
    assert ("Content-Range", "bytes */100") in what.headers


def test_no_range_of_an_empty_file_can_be_satisfied() -> None:
    assert asked(0, range="bytes=0-").status == 416
    assert asked(0).status == 200


@pytest.mark.parametrize(
    "wanted",
    [
        "bytes=5-4",
        "bytes=-",
        "bytes=a-b",
        "lines=0-1",
        "bytes=0-1,3-4",
        "bytes 0-1",
        "bytes=0-1x",
        "bytes=" + "9" * 99 + "-",
    ],
)
def test_ranges_that_are_ignored(wanted: str) -> None:
    assert asked(range=wanted) == asked()


def test_conditions() -> None:
    assert asked(if_none_match=TAG).status == 304
    assert asked(if_none_match=f'"x", W/{TAG}').status == 304
    assert asked(if_none_match="*").status == 304
    assert asked(if_none_match='"x"').status == 200
    assert asked(range="bytes=0-1", if_range=TAG).status == 206
    assert asked(range="bytes=0-1", if_range='"old"').status == 200
    assert asked(range="bytes=0-1", if_range="W/" + TAG).status == 200
    assert asked(range="bytes=0-1", if_none_match=TAG).status == 304


RANGES = st.text("bytes=-0123456789, ", max_size=20) | st.from_regex(
    r"bytes=[0-9]{0,4}-[0-9]{0,4}", fullmatch=True
)


@given(st.integers(0, 1000), RANGES)
def test_an_answer_never_leaves_the_file(size: int, wanted: str) -> None:
    what = asked(size, range=wanted)
    assert 0 <= what.start <= what.start + what.length <= size
    assert what.status in (200, 206, 416)
    assert (what.length > 0) or what.status == 416 or size == 0
