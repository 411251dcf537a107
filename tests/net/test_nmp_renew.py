"""Renewing a VCM's certificate over real TLS: by hand, and by a VCM as a process."""

from __future__ import annotations

import signal
import ssl
import stat
import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from sqlalchemy import Engine

from cod.flows.vcms import vcms
from cod.model import Site
from cod.net.nmp import limits
from cod.net.nmp import tls as nmptls
from cod.net.nmp.server import NmpServer
from cod.net.servertls import ServerTls
from cod.pool import Pool, in_transaction
from cod.security.ca import SERVER_NAME, Ca, Issued, serial_text
from cod.vcm import credentials
from cod.wire.nmp import bodies as b
from tests.net.nmplab import NOW, Client, founded, port, serving
from tests.net.test_vcm_invited import Vcm
from tests.ports import free_port
from tests.waiting import until

pytestmark = pytest.mark.slow

AGED = timedelta(days=300)  # three quarters of a certificate's life


@pytest.fixture
def ca(tmp_path: Path) -> Ca:
    return Ca(tmp_path / "ca", "test", datetime.now(UTC) - 2 * AGED)


@pytest.fixture
def server(
    reactor: Any, in_reactor: Any, pool: Pool, engine: Engine, site: Site, ca: Ca
) -> Iterator[NmpServer]:
    in_transaction(engine, founded, site)
    listen = nmptls.listening(reactor, ca, ["127.0.0.1"], 0, free_port())
    yield from serving(reactor, in_reactor, pool, site, listen, time.time, ca)


def enrol(engine: Engine, issued: Issued) -> None:
    """From now on this is the certificate that counts."""
    in_transaction(
        engine,
        vcms.enrol,
        vcluster="pool",
        serial=issued.serial,
        address="",
        now=NOW,
        ends_at=issued.ends_at,
    )


@pytest.fixture
def aged(engine: Engine, ca: Ca, server: NmpServer) -> Issued:
    """The certificate that counts, three quarters of its life ago."""
    issued = ca.vcm("pool", datetime.now(UTC) - AGED)
    enrol(engine, issued)
    return issued


@pytest.fixture
def client(server: NmpServer, ca: Ca, tmp_path: Path) -> Iterator[Callable[..., Client]]:
    """Makes clients that show a certificate and say hello."""
    made: list[Client] = []

    def make(issued: Issued | None) -> Client:
        made.append(Client(server, ca, issued, tmp_path))
        made[-1].send(b.Hello("pool", "test 1.0", 0))
        return made[-1]

    yield make
    for one in made:
        one.close()


def welcomed(client: Client) -> Client:
    heard = client.hear()
    assert heard is not None
    assert isinstance(heard[1], b.Welcome), heard
    return client


def asked(key: Any, name: str = "") -> b.Renew:
    subject = [x509.NameAttribute(x509.NameOID.COMMON_NAME, name)] if name else []
    made = (
        x509.CertificateSigningRequestBuilder()
        .subject_name(x509.Name(subject))
        .sign(key, hashes.SHA256())
    )
    return b.Renew(b64encode(made.public_bytes(serialization.Encoding.DER)).decode())


def got(key: ec.EllipticCurvePrivateKey, answer: b.Body) -> Issued:
    assert isinstance(answer, b.Renewed), answer
    certificate = x509.load_der_x509_certificate(b64decode(answer.certificate))
    return Issued(
        credentials.key_pem(key),
        credentials.pem(certificate),
        serial_text(certificate.serial_number),
    )


def serial(engine: Engine) -> str:
    return in_transaction(engine, vcms.show, "pool").vcm.serial


def test_both_count_until_the_new_one_is_shown(
    client: Callable[..., Client], aged: Issued, engine: Engine, ca: Ca
) -> None:
    key = credentials.new_key()
    vcm = welcomed(client(aged))
    answer = vcm.answer(asked(key, "somebody else"))
    new = got(key, answer)
    assert isinstance(answer, b.Renewed)
    assert (
        credentials.pem(x509.load_der_x509_certificate(b64decode(answer.authority)))
        == ca.certificate
    )
    names = x509.load_pem_x509_certificate(new.certificate).subject.rfc4514_string()
    assert names == "CN=pool", "of what is asked the key alone counts"
    assert vcm.answer(b.Ping()) == b.Pong(), "the connection goes on"
    assert serial(engine) == aged.serial
    welcomed(client(aged))
    welcomed(client(new))
    assert serial(engine) == new.serial
    assert client(aged).error().code == "identity"


def test_the_last_one_that_was_asked_for_is_the_one_that_counts(
    client: Callable[..., Client], aged: Issued
) -> None:
    vcm, keys = welcomed(client(aged)), [credentials.new_key(), credentials.new_key()]
    first, second = (got(key, vcm.answer(asked(key))) for key in keys)
    assert client(first).error().code == "identity"
    welcomed(client(second))


def test_what_is_no_request_is_refused_and_the_connection_goes_on(
    client: Callable[..., Client], aged: Issued
) -> None:
    vcm = welcomed(client(aged))
    rightly = b64decode(asked(credentials.new_key()).request)
    forged = b64encode(rightly[:-4] + bytes(each ^ 1 for each in rightly[-4:])).decode()
    wrong = [
        (asked(rsa.generate_private_key(65537, 2048)), "should be of the elliptic curve P-256"),
        (asked(ec.generate_private_key(ec.SECP384R1())), "should be of the elliptic curve P-256"),
        (b.Renew("MIHm" * 20), "it should be a request by PKCS #10 (RFC 2986), in DER"),
        (b.Renew(forged), "it is not signed by its own key"),
    ]
    for each, words in wrong:
        answer = vcm.answer(each)
        assert isinstance(answer, b.Error)
        assert answer.code == "invalid"
        assert answer.sentence.startswith("the request for a certificate: ")
        assert answer.sentence.endswith(words)
    assert vcm.answer(b.Ping()) == b.Pong()


def test_a_young_certificate_is_not_renewed(
    client: Callable[..., Client], engine: Engine, ca: Ca, aged: Issued
) -> None:
    issued = ca.vcm("pool", datetime.now(UTC))
    enrol(engine, issued)
    answer = welcomed(client(issued)).answer(asked(credentials.new_key()))
    assert isinstance(answer, b.Error)
    assert (answer.code, "would last no longer" in answer.sentence) == ("refused", True)


def test_who_is_known_by_address_has_nothing_to_renew(
    client: Callable[..., Client], engine: Engine, aged: Issued
) -> None:
    in_transaction(engine, vcms.enrol, vcluster="pool", serial="", address="127.0.0.1", now=NOW)
    answer = welcomed(client(None)).answer(asked(credentials.new_key()))
    assert isinstance(answer, b.Error)
    assert (answer.code, "no certificate to renew" in answer.sentence) == ("refused", True)


@pytest.mark.parametrize("what", ["revoked", "enrolled anew"])
def test_who_may_not_speak_any_more_renews_nothing(
    client: Callable[..., Client], engine: Engine, aged: Issued, what: str
) -> None:
    """Tell such a VCM so, or disconnect it before it could ask."""
    vcm = welcomed(client(aged))
    if what == "revoked":
        in_transaction(engine, vcms.revoke, vcluster="pool")
    else:
        in_transaction(engine, vcms.enrol, vcluster="pool", serial="77", address="", now=NOW)
    with suppress(OSError):
        vcm.send(asked(credentials.new_key()))
    with suppress(ConnectionError):
        while (heard := vcm.hear()) is not None:
            assert isinstance(heard[1], b.Bye) or getattr(heard[1], "code", "") == "identity", heard
    if what == "enrolled anew":
        assert in_transaction(engine, vcms.show, "pool").vcm.next_serial is None


def test_nobody_signs_without_end(
    client: Callable[..., Client], aged: Issued, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = limits.COSTLY["renew"][1]
    monkeypatch.setitem(limits.COSTLY, "renew", (0.0, most))  # however long they take
    vcm = welcomed(client(aged))
    answers = [vcm.answer(asked(credentials.new_key())) for _ in range(12)]
    codes = [answer.code if isinstance(answer, b.Error) else "" for answer in answers]
    assert codes == [""] * 10 + ["too-many"] * 2


# ---------------------------------------------------------------- the server's own certificate


def test_a_server_that_runs_for_years_shows_one_that_has_not_ended(ca: Ca) -> None:
    days = [0]
    tls = ServerTls(ca, ["127.0.0.1"], lambda: time.time() + days[0] * 86400)
    shown = []
    for days[0] in (0, 400, 420, 900):
        assert (
            tls.serverConnectionForTLS(
                SimpleNamespace(factory=SimpleNamespace(wrappedFactory=None))
            )
            is not None
        )
        shown.append(tls._options.certificate.serial_number)
    assert shown[0] == shown[1] != shown[2] != shown[3] != shown[0]


def test_a_certificate_made_by_a_clock_that_was_ahead_is_not_shown_for_long(ca: Ca) -> None:
    ahead = [0.0]
    tls = ServerTls(ca, ["127.0.0.1"], lambda: time.time() + ahead[0])
    begins = []
    for ahead[0] in (86400.0, 0.0, -60.0):
        assert (
            tls.serverConnectionForTLS(
                SimpleNamespace(factory=SimpleNamespace(wrappedFactory=None))
            )
            is not None
        )
        begins.append(tls._options.certificate.not_valid_before_utc.timestamp() - time.time())
    assert begins[0] > 0 > begins[1] == pytest.approx(begins[2], abs=60.0)


# ---------------------------------------------------------------- as a process


@pytest.fixture
def vcm(tmp_path: Path, server: NmpServer, aged: Issued, ca: Ca) -> Iterator[Vcm]:
    configuration = f'vcluster = "pool"\nservers = ["127.0.0.1:{port(server)}"]\n'
    files = {"vcm.toml": configuration, "ca.crt": ca.certificate.decode(), "invitation": ""}
    made = Vcm(tmp_path / "vcm", server, files)
    (made.folder / "invitation").unlink()
    for name, content in (("vcm.crt", aged.certificate), ("vcm.key", aged.key)):
        (made.folder / name).write_bytes(content)
    yield made
    if made.process is not None and made.process.poll() is None:
        made.end(signal.SIGKILL)


@pytest.mark.slow
def test_a_vcm_renews_and_comes_again_by_itself_and_after_a_kill(
    vcm: Vcm, engine: Engine, aged: Issued
) -> None:
    vcm.start()
    vcm.connects(2)
    assert "the certificate is renewed, until" in vcm.log()
    file = vcm.folder / "vcm.crt.renewed"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    new = x509.load_pem_x509_certificate(file.read_bytes())
    until(lambda: serial(engine) == serial_text(new.serial_number) != aged.serial, vcm.log)
    vcm.end(signal.SIGKILL)
    vcm.start()
    vcm.connects(3)
    assert vcm.end() == 0
    assert vcm.log().count("the certificate is renewed") == 1
    assert "Traceback" not in vcm.log()


@pytest.mark.slow
def test_killed_before_it_could_write_it_goes_on_with_the_old_one(
    vcm: Vcm, engine: Engine, aged: Issued
) -> None:
    """Go on as if the VCM had never asked: what COD has signed is worth nothing."""
    vcm.start()
    vcm.connects(2)
    vcm.end(signal.SIGKILL)
    (vcm.folder / "vcm.crt.renewed").unlink()
    enrol(engine, aged)
    vcm.start()
    vcm.connects(4)
    until(lambda: serial(engine) != aged.serial, vcm.log)


def test_it_knows_the_site_by_the_authority_that_it_was_told_of(
    server: NmpServer, aged: Issued, client: Callable[..., Client], ca: Ca
) -> None:
    """The authority's own certificate is made anew while the VCM is connected."""
    vcm, key = welcomed(client(aged)), credentials.new_key()
    before = ca.certificate
    assert ca.renew(datetime.now(UTC) + timedelta(days=6000))
    answer = vcm.answer(asked(key))
    assert isinstance(answer, b.Renewed)
    told = credentials.pem(x509.load_der_x509_certificate(b64decode(answer.authority)))
    assert told == ca.certificate != before
    context = ssl.create_default_context(cadata=told.decode())
    with suppress(ConnectionError):
        context.wrap_socket(_connected(server), server_hostname=SERVER_NAME).close()


def _connected(server: NmpServer) -> Any:
    import socket

    return socket.create_connection(("127.0.0.1", port(server)), 30)
