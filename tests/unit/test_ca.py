"""The site's certificate authority, checked by OpenSSL and by a TLS handshake."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import socket
import ssl
import stat
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Thread

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from cod.security.ca import SERVER_NAME, BadAuthority, Ca, Issued, ends_at
from cod.security.webcert import loaded, self_signed
from cod.vcm import credentials

pytestmark = pytest.mark.slow

NOW = datetime.now(UTC)


def written(issued: Issued, folder: Path, name: str) -> tuple[Path, Path]:
    certificate, key = folder / f"{name}.crt", folder / f"{name}.key"
    certificate.write_bytes(issued.certificate)
    key.write_bytes(issued.key)
    return certificate, key


def openssl(*arguments: str | Path) -> str:
    return subprocess.run(
        ["openssl", *map(str, arguments)], capture_output=True, text=True, check=True
    ).stdout


def test_what_it_issues_is_valid_for_its_purpose_only(tmp_path: Path) -> None:
    ca = Ca(tmp_path / "ca", "test")
    vcm, _ = written(ca.vcm("pool", NOW), tmp_path, "vcm")
    server, _ = written(ca.server(["10.77.0.1"], NOW), tmp_path, "server")
    chain = ["-CAfile", tmp_path / "ca/ca.crt"]
    assert "OK" in openssl("verify", *chain, "-purpose", "sslclient", vcm)
    assert "OK" in openssl(
        "verify", *chain, "-purpose", "sslserver", "-verify_ip", "10.77.0.1", server
    )
    for purpose, certificate in (("sslserver", vcm), ("sslclient", server)):
        with pytest.raises(subprocess.CalledProcessError):
            openssl("verify", *chain, "-purpose", purpose, certificate)


def test_it_is_made_once_and_its_key_is_private(tmp_path: Path) -> None:
    first, second = Ca(tmp_path / "ca", "test"), Ca(tmp_path / "ca", "test")
    assert first.certificate == second.certificate
    assert stat.S_IMODE((tmp_path / "ca/ca.key").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "ca").stat().st_mode) == 0o700
    assert first.vcm("a", NOW).serial != second.vcm("a", NOW).serial


def handshake(server: tuple[Path, Path], client: tuple[Path, Path], ca: Path) -> str:
    """The common name that the server sees."""
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(*server)
    serving.load_verify_locations(ca)
    serving.verify_mode = ssl.CERT_REQUIRED
    asking = ssl.create_default_context(cafile=str(ca))
    asking.load_cert_chain(*client)
    asking.verify_flags |= ssl.VERIFY_X509_STRICT
    ours, theirs = socket.socketpair()

    def ask() -> None:
        with asking.wrap_socket(theirs, server_hostname=SERVER_NAME) as stream:
            stream.sendall(b"x")

    asker = Thread(target=ask)
    asker.start()
    try:
        with serving.wrap_socket(ours, server_side=True) as stream:
            stream.recv(1)
            subject: dict[str, str] = dict(
                part[0] for part in (stream.getpeercert() or {})["subject"]
            )
            return subject["commonName"]
    finally:
        asker.join(60)


def test_a_handshake_tells_the_vcluster(tmp_path: Path) -> None:
    ca = Ca(tmp_path / "ca", "test")
    server = written(ca.server(["10.77.0.1"], NOW), tmp_path, "server")
    client = written(ca.vcm("pool", NOW), tmp_path, "vcm")
    assert handshake(server, client, tmp_path / "ca/ca.crt") == "pool"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("kind", ["expired", "not yet", "stranger"])
def test_what_is_not_valid_is_refused(tmp_path: Path, kind: str) -> None:
    ca, other = Ca(tmp_path / "ca", "test"), Ca(tmp_path / "other", "test")
    when = {
        "expired": NOW - timedelta(days=500),
        "not yet": NOW + timedelta(days=2),
        "stranger": NOW,
    }[kind]
    client = written((other if kind == "stranger" else ca).vcm("pool", when), tmp_path, "vcm")
    server = written(ca.server([], NOW), tmp_path, "server")
    with pytest.raises(ssl.SSLError):
        handshake(server, client, tmp_path / "ca/ca.crt")


def test_its_own_end_is_put_off_and_what_it_has_issued_stays_good(tmp_path: Path) -> None:
    """By the old certificate as by the new one: some have this, some have that."""
    ca = Ca(tmp_path / "ca", "test", NOW - timedelta(days=6200))
    assert not ca.renew(NOW - timedelta(days=200))
    vcm, key = written(ca.vcm("pool", NOW), tmp_path, "vcm")
    shutil.copy(tmp_path / "ca/ca.crt", tmp_path / "old.crt")
    before = ca.ends_at
    assert ca.renew(NOW)
    assert not ca.renew(NOW), "once"
    assert ca.ends_at == ends_at(tmp_path / "ca") > before
    again = Ca(tmp_path / "ca", "another name")
    assert (again.certificate, again.invitation("x")) == (ca.certificate, ca.invitation("x"))
    server, server_key = written(again.server([], NOW), tmp_path, "server")
    for authority in (tmp_path / "old.crt", tmp_path / "ca/ca.crt"):
        assert handshake((server, server_key), (vcm, key), authority) == "pool"
    both = tmp_path / "both.crt"
    both.write_bytes((tmp_path / "old.crt").read_bytes() + ca.certificate)
    assert handshake((server, server_key), (vcm, key), both) == "pool"
    begins = [
        x509.load_pem_x509_certificate(each.read_bytes()).not_valid_before_utc
        for each in (tmp_path / "old.crt", tmp_path / "ca/ca.crt")
    ]
    assert begins[0] == begins[1], "a clock that was wrong must not make it begin tomorrow"
    assert stat.S_IMODE((tmp_path / "ca/ca.crt").stat().st_mode) == 0o600
    assert sorted(file.name for file in (tmp_path / "ca").iterdir()) == ["ca.crt", "ca.key"]


def test_nothing_that_it_issues_outlives_it(tmp_path: Path) -> None:
    ca = Ca(tmp_path / "ca", "test", NOW - timedelta(days=7200))
    assert ca.vcm("pool", NOW).ends_at == ca.server([], NOW).ends_at == ca.ends_at
    assert ca.renew(NOW)
    assert ca.vcm("pool", NOW).ends_at == pytest.approx(
        (NOW + timedelta(days=397)).timestamp(), abs=1
    )


@pytest.mark.parametrize("made", ["authority", "web certificate"])
def test_parts_that_start_at_once_make_one_that_fits(
    tmp_path: Path, made: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thirty processes on a new site: all have the same key and certificate, which belong
    together."""
    real = ec.generate_private_key

    def in_turns(curve: ec.EllipticCurve) -> ec.EllipticCurvePrivateKey:
        for _ in range(200):  # to let the others look whether there is a key
            os.sched_yield()
        return real(curve)

    monkeypatch.setattr(ec, "generate_private_key", in_turns)
    fork = multiprocessing.get_context("fork")
    together, results = fork.Barrier(30), fork.Queue()

    def start() -> None:
        together.wait()
        if made == "authority":
            results.put(Ca(tmp_path, "test").certificate)
        else:
            files = self_signed(tmp_path, ["10.77.0.1"])
            loaded(files)
            results.put(files.certificate.read_bytes())

    parts = [fork.Process(target=start) for _ in range(30)]
    for part in parts:
        part.start()
    certificates = {results.get(timeout=60) for _ in parts}
    for part in parts:
        part.join(60)
    assert [part.exitcode for part in parts] == [0] * 30
    assert len(certificates) == 1
    crt, key = sorted(file.name for file in tmp_path.iterdir())
    public = openssl("x509", "-in", tmp_path / crt, "-noout", "-pubkey")
    assert public == openssl("pkey", "-in", tmp_path / key, "-pubout")


@pytest.mark.parametrize("fault", ["another's", "missing", "empty"])
def test_files_that_do_not_belong_together_are_refused_with_what_to_do(
    tmp_path: Path, fault: str
) -> None:
    Ca(tmp_path / "ca", "test")
    Ca(tmp_path / "other", "test")
    match fault:
        case "another's":
            shutil.copy(tmp_path / "other/ca.crt", tmp_path / "ca/ca.crt")
        case "missing":
            (tmp_path / "ca/ca.crt").unlink()
        case _:
            (tmp_path / "ca/ca.crt").write_bytes(b"")
    with pytest.raises(BadAuthority, match="restore both files in"):
        Ca(tmp_path / "ca", "test")


def test_a_crash_while_it_is_made_is_healed_at_the_next_start(tmp_path: Path) -> None:
    Ca(tmp_path, "test")
    (tmp_path / "ca.key").unlink()  # written last
    assert Ca(tmp_path, "test").certificate == Ca(tmp_path, "test").certificate


def test_two_processes_renew_it_once(tmp_path: Path) -> None:
    one, other = (Ca(tmp_path, "test", NOW - timedelta(days=6200)) for _ in range(2))
    assert one.renew(NOW)
    assert not other.renew(NOW)
    assert one.certificate == other.certificate


@pytest.mark.parametrize(
    ("there", "instead"),
    [
        ("2a8648ce3d0201", "2a8748ce3d0201"),  # what kind of a key it is
        ("2a8648ce3d030107", "2a8648ce3d030177"),  # the curve
        ("02010030", "02010930"),  # the version
        ("2a8648ce3d040302", "2a8648ce3d040399"),  # by what it is signed
    ],
    ids=str,
)
def test_a_request_for_a_certificate_that_nobody_knows_how_to_read_is_refused(
    tmp_path: Path, there: str, instead: str
) -> None:
    asked = credentials.request(credentials.new_key())
    assert bytes.fromhex(there) in asked
    with pytest.raises(ValueError, match=r"\w"):
        Ca(tmp_path, "test").certify(
            "pool", asked.replace(bytes.fromhex(there), bytes.fromhex(instead)), datetime.now(UTC)
        )
