"""Quotas, what is believed of a file after a crash, and the headers of tus."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cod.model import Refused
from cod.policy.image_uploads import believed, check_quota
from cod.wire import tus

# ---------------------------------------------------------------- quotas


@pytest.mark.parametrize(
    ("quota", "taken", "size", "fits"),
    [
        (None, 10**15, 10**15, True),
        (100, 0, 100, True),
        (100, 0, 101, False),
        (100, 60, 40, True),
        (100, 60, 41, False),
        (0, 0, 1, False),
        (50, 60, 1, False),
    ],
)
def test_what_fits_into_a_quota(quota: int | None, taken: int, size: int, fits: bool) -> None:
    if fits:
        check_quota(quota, taken, size, "physics")
        return
    with pytest.raises(
        Refused, match=f"group physics: .* may have {quota} bytes and have {taken}"
    ) as caught:
        check_quota(quota, taken, size, "physics")
    assert (caught.value.code, caught.value.field) == ("quota", "size")


@given(st.integers(0, 10**6), st.integers(0, 10**6), st.integers(1, 10**6))
def test_a_quota_is_never_exceeded(quota: int, taken: int, size: int) -> None:
    try:
        check_quota(quota, taken, size, "g")
    except Refused:
        assert taken + size > quota
    else:
        assert taken + size <= quota


# ---------------------------------------------------------------- after a crash


@pytest.mark.parametrize(
    ("offset", "boot", "length", "whole"),
    [
        (0, "", 0, 0),
        (100, "A", 100, 100),
        (100, "A", 150, 150),  # only the process died
        (100, "B", 150, 100),  # the host was started anew, or it was another one
        (100, "", 150, 100),  # a piece with a checksum that nobody has compared
        (100, "A", 70, 70),  # the file was lost, or comes from a backup
        (100, "B", 70, 70),
    ],
)
def test_what_is_believed_of_a_file(offset: int, boot: str, length: int, whole: int) -> None:
    assert believed(offset, boot, "A", length) == whole


def test_a_host_without_a_boot_id_believes_the_row() -> None:
    assert believed(100, "", "", 150) == 100


@given(st.integers(0, 1000), st.sampled_from(["", "A", "B"]), st.integers(0, 1000))
def test_never_more_is_believed_than_is_there_and_flushed_bytes_are_never_dropped(
    offset: int, boot: str, length: int
) -> None:
    whole = believed(offset, boot, "A", length)
    assert min(offset, length) <= whole <= length


# ---------------------------------------------------------------- the protocol's headers


@given(st.dictionaries(st.from_regex(r"\A[!-+\--~]+\Z"), st.text()))
@pytest.mark.slow
def test_metadata_there_and_back(values: dict[str, str]) -> None:
    assert tus.metadata(tus.encode_metadata(values)) == values


def test_metadata_as_clients_write_it() -> None:
    assert tus.metadata("name ZGViaWFu, plain,sha256  YWI=,") == {
        "name": "debian",
        "plain": "",
        "sha256": "ab",
    }


@pytest.mark.parametrize(
    "text", ["name ZGViaWF", "name Z*", "name /w==", "näme YQ==", "a YQ==,a YQ=="]
)
def test_bad_metadata(text: str) -> None:
    with pytest.raises(tus.BadHeader, match="Upload-Metadata: "):
        tus.metadata(text)


@given(st.text())
def test_any_metadata_is_read_or_refused(text: str) -> None:
    with suppress(tus.BadHeader):
        assert isinstance(tus.metadata(text), dict)


@pytest.mark.parametrize(("text", "value"), [("0", 0), ("12", 12), (str(2**63 - 1), 2**63 - 1)])
def test_lengths(text: str, value: int) -> None:
    assert tus.number("Upload-Length", text) == value


@pytest.mark.parametrize(
    "text", ["", "-1", "+1", "1.0", "0x1", "1e3", str(2**63), "9" * 30, "٣", " 1", "²"]
)
def test_bad_lengths(text: str) -> None:
    with pytest.raises(tus.BadHeader, match="Upload-Length: should be a number"):
        tus.number("Upload-Length", text)


def test_checksums() -> None:
    assert tus.checksum("sha1 qUqP5cyxm6YcTAhz05Hph5gvu9M=") == (
        "sha1",
        bytes.fromhex("a94a8fe5ccb19ba61c4c0873d391e987982fbbd3"),
    )
    for bad in ("", "crc32 AAAA", "sha1 ***", "sha1 \xff", "SHA1 AAAA"):
        with pytest.raises(tus.BadHeader, match="Upload-Checksum: "):
            tus.checksum(bad)


def test_digests_and_times_as_headers_show_them() -> None:
    assert tus.encode_digest("00" * 32) == "sha-256=:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=:"
    assert tus.expires(0) == "Thu, 01 Jan 1970 00:00:00 GMT"
