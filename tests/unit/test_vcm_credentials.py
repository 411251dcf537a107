"""Which of a VCM's files count: those that it was enrolled with, or the one of its renewed
certificate."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509

from cod.security.ca import Ca, Issued
from cod.vcm import credentials, daemon
from cod.vcm.connect import over_tls
from cod.vcm.settings import Settings

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SETTINGS = Settings(vcluster="pool", servers=("10.77.0.1:8071",))


@pytest.fixture
def ca(tmp_path: Path) -> Ca:
    return Ca(tmp_path / "ca", "test", NOW)


@pytest.fixture
def folder(tmp_path: Path, ca: Ca) -> Path:
    """Write the folder as `cod vcm enroll` does."""
    put(tmp_path, ca, ca.vcm("pool", NOW))
    return tmp_path


def put(folder: Path, ca: Ca, issued: Issued) -> None:
    for name, content in (
        ("vcm.crt", issued.certificate),
        ("vcm.key", issued.key),
        ("ca.crt", ca.certificate),
    ):
        (folder / name).write_bytes(content)


def renew(folder: Path, ca: Ca, when: datetime) -> credentials.Credentials:
    key = credentials.new_key()
    issued = ca.certify("pool", credentials.request(key), when)
    return credentials.keep_renewed(SETTINGS, folder, key, issued.der(), ca.der())


def test_what_was_renewed_counts_until_there_is_something_younger(folder: Path, ca: Ca) -> None:
    first = credentials.load(SETTINGS, folder)
    assert first.certificate == (folder / "vcm.crt").read_bytes()
    second = renew(folder, ca, NOW + timedelta(days=300))
    assert credentials.load(SETTINGS, folder) == second != first
    assert renew(folder, ca, NOW + timedelta(days=600)) not in (first, second)
    put(folder, ca, ca.vcm("pool", NOW + timedelta(days=601)))
    assert credentials.load(SETTINGS, folder).certificate == (folder / "vcm.crt").read_bytes()


def test_it_can_be_connected_with(folder: Path, ca: Ca) -> None:
    """Connect with the certificate, whose key is in the same file."""
    got = renew(folder, ca, NOW + timedelta(days=300))
    over_tls(None, [("127.0.0.1", 1)], got.certificate, got.key, got.authority)
    with pytest.raises(ValueError, match="another certificate"):
        over_tls(
            None, [("127.0.0.1", 1)], (folder / "vcm.crt").read_bytes(), got.key, got.authority
        )


@pytest.mark.parametrize(
    "content", [b"", b"rubbish", b"-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n"]
)
def test_a_file_that_is_of_no_use_is_left_alone(
    folder: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    (folder / "vcm.crt.renewed").write_bytes(content)
    assert credentials.load(SETTINGS, folder).certificate == (folder / "vcm.crt").read_bytes()
    assert "vcm.crt.renewed is of no use" in caplog.text


def test_a_key_of_another_certificate_is_of_no_use(folder: Path, ca: Ca) -> None:
    first = renew(folder, ca, NOW + timedelta(days=300))
    second = renew(folder, ca, NOW + timedelta(days=301))
    other = credentials.key_pem(credentials.new_key())
    (folder / "vcm.crt.renewed").write_bytes(first.certificate + first.authority + other)
    assert credentials.load(SETTINGS, folder).certificate == (folder / "vcm.crt").read_bytes()
    (folder / "vcm.crt.renewed").write_bytes(second.key)
    assert credentials.load(SETTINGS, folder) == second


def test_without_its_first_files_it_goes_on_with_what_was_renewed(folder: Path, ca: Ca) -> None:
    got = renew(folder, ca, NOW + timedelta(days=300))
    (folder / "vcm.key").unlink()
    assert credentials.load(SETTINGS, folder) == got
    (folder / "vcm.crt.renewed").unlink()
    with pytest.raises(FileNotFoundError):
        credentials.load(SETTINGS, folder)


def test_what_was_not_asked_for_is_not_kept(folder: Path, ca: Ca, tmp_path: Path) -> None:
    key, other = credentials.new_key(), Ca(tmp_path / "other", "other", NOW)
    issued = ca.certify("pool", credentials.request(key), NOW)
    with pytest.raises(ValueError, match="another key"):
        credentials.keep_renewed(SETTINGS, folder, credentials.new_key(), issued.der(), ca.der())
    with pytest.raises(ValueError, match="subject"):
        credentials.keep_renewed(SETTINGS, folder, key, issued.der(), other.der())
    assert not (folder / "vcm.crt.renewed").exists()


def test_its_life(folder: Path) -> None:
    begin, end = credentials.load(SETTINGS, folder).life()
    certificate = x509.load_pem_x509_certificate((folder / "vcm.crt").read_bytes())
    assert (begin, end) == (
        certificate.not_valid_before_utc.timestamp(),
        certificate.not_valid_after_utc.timestamp(),
    )
    (folder / "vcm.crt").write_text("x")
    with pytest.raises(ValueError, match="the certificate cannot be read"):
        credentials.load(SETTINGS, folder).life()


def test_the_metric_counts_the_days_of_the_one_that_counts(folder: Path, ca: Ca) -> None:
    before = daemon._expiry(SETTINGS, folder)
    renew(folder, ca, NOW + timedelta(days=300))
    after = daemon._expiry(SETTINGS, folder)
    days = [float(text.split()[-1]) for text in (before, after)]
    assert days[1] - days[0] == pytest.approx(300, abs=0.2)


def test_a_new_authority_is_believed_after_a_renewal(folder: Path, ca: Ca) -> None:
    """Believe a server's certificate of an authority whose own was made anew meanwhile."""
    assert ca.renew(NOW + timedelta(days=7000))
    got = renew(folder, ca, NOW + timedelta(days=7000))
    assert got.authority == ca.certificate != (folder / "ca.crt").read_bytes()
