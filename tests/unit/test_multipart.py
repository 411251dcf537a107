"""Forms with a file, read as they come."""

from __future__ import annotations

import pytest

from cod.wire.multipart import MOST, MOST_FIELDS, BadForm, FileForm, boundary

MARK = b"----x7"


def body(file: bytes, fields: dict[str, str], end: bytes = b"", name: bytes = b"disk.img") -> bytes:
    parts = [
        b'--%s\r\nContent-Disposition: form-data; name="%s"\r\n\r\n%s\r\n'
        % (MARK, key.encode(), value.encode())
        for key, value in fields.items()
    ]
    head = (
        b'--%s\r\nContent-Disposition: form-data; name="file"; filename="%s"\r\nContent-Type:'
        b" x/y\r\n\r\n" % (MARK, name)
    )
    return b"".join([*parts, head, file, end or b"\r\n--%s--\r\n" % MARK])


def read(text: bytes, step: int) -> tuple[FileForm, bytes]:
    form, got = FileForm(MARK, len(text)), b""
    for start in range(0, len(text), step):
        got += form.feed(text[start : start + step])
    return form, got


@pytest.mark.parametrize("step", [1, 2, 7, 64, 10_000])
@pytest.mark.parametrize(
    "file", [b"", b"x", b"\r\n--" + MARK[:-1] + b"--\r\n" * 3, bytes(range(256)) * 9]
)
def test_the_file_comes_out_as_it_was_however_it_is_cut(file: bytes, step: int) -> None:
    form, got = read(body(file, {"name": "a b", "csrf": "é"}), step)
    form.close()
    assert got == file
    assert form.size == len(file)
    assert form.fields == {"name": "a b", "csrf": "é"}


def test_its_length_is_known_before_its_bytes() -> None:
    text = body(b"x" * 5000, {"name": "a"})
    form = FileForm(MARK, len(text))
    form.feed(text[: text.index(b"xxx")])
    assert form.size == 5000


LATER = b'\r\n--%s\r\nContent-Disposition: form-data; name="z"\r\n\r\nlater\r\n--%s--\r\n' % (
    MARK,
    MARK,
)


@pytest.mark.parametrize(
    "text",
    [
        body(b"x" * 100, {}, LATER),
        body(b"x" * 100, {}, b"\r\n--%s-X\r\n" % MARK),
        b"--"
        + MARK
        + b'\r\nContent-Disposition: form-data; name="a"\r\n\r\nb\r\n--'
        + MARK
        + b"--\r\n",
        b'--other\r\nContent-Disposition: form-data; name="a"\r\n\r\nb',
        b"--" + MARK + b"\r\nContent-Type: text/plain\r\n\r\nb",
        b"--" + MARK + b'\r\nContent-Disposition: form-data; name="a"\r\n\r\n' + b"b" * (MOST + 1),
        b"nothing",
    ],
)
def test_what_is_no_such_form(text: bytes) -> None:
    def whole() -> None:
        read(text, 50)[0].close()

    with pytest.raises(BadForm):
        whole()


def test_boundaries() -> None:
    assert boundary('multipart/form-data; boundary="----x7"') == MARK
    form = "multipart/form-data; boundary"
    coded = (f"{form}*={charset}''x" for charset in ("idna", "undefined", "a\0b"))
    for wrong in ("text/plain", "multipart/form-data", f"{form}=" + "x" * 71, *coded):
        with pytest.raises(BadForm):
            boundary(wrong)


def test_a_form_of_very_many_fields_is_not_read_to_its_end() -> None:
    """A body in memory may have twenty thousand, of which each copies the rest."""
    form, fields = FileForm(MARK, 10**6), {str(number): "" for number in range(MOST_FIELDS + 1)}
    with pytest.raises(BadForm, match="more than 50 fields"):
        form.feed(body(b"", fields))
