"""The signer: what the part web gets of an authority whose key it cannot read."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from cod.client import ApiError
from cod.model import Site
from cod.net.signer import Signer
from cod.pool import Pool
from cod.security import partusers
from cod.security.ca import Ca
from cod.security.signer import RemoteAuthority, SignerAway
from tests.net.apiserver import NOW, serving
from tests.net.test_vcm_api import furnish


@pytest.fixture
def ca(tmp_path: Path) -> Ca:
    return Ca(tmp_path / "ca", "test")


@pytest.fixture
def path(ca: Ca, reactor: Any, in_reactor: Callable[..., Any]) -> Iterator[Path]:
    """The signer's socket, by a short name."""
    with TemporaryDirectory(prefix="cod-") as folder:
        path = Path(folder, "signer.sock")
        path.write_text("")  # what a server that was killed has left
        signer = Signer(reactor, path, ca, lambda: NOW)
        in_reactor(signer.startService)
        yield path
        in_reactor(signer.stopService)


def asked(path: Path, line: bytes) -> dict[str, Any]:
    with socket.socket(socket.AF_UNIX) as peer:
        peer.settimeout(60)
        peer.connect(str(path))
        peer.sendall(line)
        with peer.makefile("rb") as file:
            answer: dict[str, Any] = json.loads(file.readline())
            return answer


def test_web_enrols_a_vcm_without_the_key(
    tmp_path: Path,
    path: Path,
    ca: Ca,
    pool: Pool,
    reactor: Any,
    in_reactor: Callable[..., Any],
    site: Site,
) -> None:
    (tmp_path / "ca" / "ca.key").unlink()  # web reads the certificate alone
    remote = RemoteAuthority(tmp_path / "ca", path)
    with serving(pool, reactor, in_reactor, site, remote) as served:
        furnish(served, site)
        made = served.local.post("/vclusters/pool/vcm", {})
        certificate = x509.load_pem_x509_certificate(made["certificate"].encode())
        certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(ca.certificate))
        assert certificate.subject.rfc4514_string() == "CN=pool"
        key: Any = load_pem_private_key(made["key"].encode(), None)
        assert key.public_key() == certificate.public_key()
        assert made["authority"] == ca.certificate.decode()
        assert served.local.get("/vclusters/pool/vcm")["serial"] == made["serial"]

        away = path.rename(path.with_name("away"))
        with pytest.raises(ApiError, match="does edge run on this host") as refused:
            served.local.post("/vclusters/pool/vcm", {})
        away.rename(path)
        assert refused.value.status == 409
        assert served.local.get("/vclusters/pool/vcm")["serial"] == made["serial"]


def test_a_user_that_is_no_part_s_is_refused(
    tmp_path: Path, path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(partusers, "signer_clients", lambda: {4242})
    with pytest.raises(SignerAway, match="may not ask"):
        RemoteAuthority(tmp_path / "ca", path).vcm("pool", None)  # unused
    assert "may not ask the signer" in caplog.text


def test_a_socket_that_is_not_the_signers_is_not_believed(
    tmp_path: Path, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partusers, "signers", lambda: {4242})
    with pytest.raises(SignerAway, match="is no signer's"):
        RemoteAuthority(tmp_path / "ca", path).vcm("pool", None)  # unused


@pytest.mark.parametrize(
    "line", [b"\n", b"[]\n", b'{"vcluster": "a"}\n', b'{"vcluster": "a", "request": "AAAA"}\n']
)
def test_a_question_that_cannot_be_read_gets_an_error(path: Path, line: bytes) -> None:
    assert "cannot be read" in asked(path, line)["error"]


def test_a_question_without_end_is_refused(path: Path) -> None:
    assert asked(path, b"x" * 20000) == {"error": "the question is too long"}
