"""The web server's certificate: made, kept, renewed, checked."""

from __future__ import annotations

import stat
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from cod.security import webcert
from cod.security.webcert import BadWebCertificate, WebCertificate

NOW = datetime(2026, 1, 1, tzinfo=UTC)
NAMES = ["portal.example", "10.77.0.1", "fd00::1"]


def shown(files: WebCertificate) -> x509.Certificate:
    return x509.load_pem_x509_certificate(files.certificate.read_bytes())


def public(files: WebCertificate) -> bytes:
    return (
        shown(files)
        .public_key()
        .public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    )


def test_it_names_the_server_and_its_key_is_its_owners_alone(tmp_path: Path) -> None:
    files = webcert.self_signed(tmp_path / "web", NAMES, NOW)
    webcert.loaded(files)
    own = shown(files).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert own.get_values_for_type(x509.DNSName) == ["portal.example"]
    assert own.get_values_for_type(x509.IPAddress) == [
        ip_address("10.77.0.1"),
        ip_address("fd00::1"),
    ]
    assert stat.S_IMODE(files.key.stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "web").stat().st_mode) == 0o700


def test_it_is_kept_until_shortly_before_its_end_and_then_renewed_with_the_same_key(
    tmp_path: Path,
) -> None:
    first = shown(webcert.self_signed(tmp_path, NAMES, NOW))
    key = public(webcert.self_signed(tmp_path, NAMES, NOW))
    assert shown(webcert.self_signed(tmp_path, NAMES, NOW + timedelta(days=300))) == first
    again = webcert.self_signed(tmp_path, NAMES, NOW + timedelta(days=webcert.DAYS - 30))
    assert shown(again) != first
    assert shown(again).not_valid_after_utc > NOW + timedelta(days=webcert.DAYS + 300)
    assert public(again) == key


def test_one_that_was_made_by_a_clock_that_was_ahead_is_made_anew(tmp_path: Path) -> None:
    ahead = webcert.self_signed(tmp_path, NAMES, NOW + timedelta(days=1500))
    key = public(ahead)
    again = webcert.self_signed(tmp_path, NAMES, NOW)
    assert shown(again).not_valid_before_utc < NOW
    assert public(again) == key


def test_other_names_make_another(tmp_path: Path) -> None:
    first = webcert.self_signed(tmp_path, NAMES, NOW).fingerprint()
    assert webcert.self_signed(tmp_path, NAMES[::-1], NOW).fingerprint() == first
    assert webcert.self_signed(tmp_path, NAMES[1:], NOW).fingerprint() != first


@pytest.mark.parametrize("spoilt", ["web.crt", "web.key"])
@pytest.mark.parametrize("content", [None, b"", b"-----BEGIN NONSENSE-----\n"])
def test_what_is_spoilt_is_made_anew(tmp_path: Path, spoilt: str, content: bytes | None) -> None:
    files = webcert.self_signed(tmp_path, NAMES, NOW)
    if content is None:
        (tmp_path / spoilt).unlink()
    else:
        (tmp_path / spoilt).write_bytes(content)
    webcert.loaded(webcert.self_signed(tmp_path, NAMES, NOW))
    assert files.fingerprint()


def test_a_key_that_belongs_to_another_certificate_is_refused(tmp_path: Path) -> None:
    one, other = (webcert.self_signed(tmp_path / name, NAMES, NOW) for name in "ab")
    with pytest.raises(BadWebCertificate, match="is not the key of"):
        webcert.loaded(WebCertificate(one.certificate, other.key))
    with pytest.raises(BadWebCertificate, match="cannot be read"):
        webcert.loaded(WebCertificate(one.certificate, tmp_path / "none"))
    with pytest.raises(BadWebCertificate, match="as PEM"):
        webcert.loaded(WebCertificate(one.certificate, one.certificate))
