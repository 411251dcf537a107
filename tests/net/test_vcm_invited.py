"""An invitation traded for a certificate over real TLS: by hand, and by a VCM as a process on "its
node" (loopback)."""

from __future__ import annotations

import logging
import os
import signal
import ssl
import stat
import subprocess
import sys
import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from sqlalchemy import Engine, update

from cod.flows.agents import orders
from cod.flows.vcms import vcms
from cod.model import Inviter, Site, ipv4
from cod.net.nmp import tls as nmptls
from cod.net.nmp.server import NmpServer
from cod.pool import Pool, in_transaction
from cod.security.ca import Ca, Issued, serial_text
from cod.store import tables as t
from cod.store.engine import Tx
from cod.vcm import settings
from cod.wire.nmp import bodies as b
from tests.net.nmplab import NOW, Client, port, serving
from tests.ports import free_port
from tests.store.test_vcm_inside import founded, node
from tests.waiting import until

pytestmark = pytest.mark.slow  # half a minute of processor time and more, together with its like

ROOT = Path(__file__).resolve().parents[2]
RUN = """
import sys
from pathlib import Path
from cod.vcm import daemon, settings
from cod.vcm.pool import Demand

class Nothing:
    def __init__(self, config): pass
    def look(self, members, coming, now): return Demand()
    def add(self, member): pass
    def choose(self, reclaim, members, now): return []
    def remove(self, member, lost): pass

sys.exit(daemon.main("nothing 1.0", Nothing, settings.Settings))
"""


@pytest.fixture
def ca(tmp_path: Path) -> Ca:
    return Ca(tmp_path / "ca", "test")


@pytest.fixture
def server(reactor: Any, in_reactor: Any, pool: Pool, site: Site, ca: Ca) -> Iterator[NmpServer]:
    listen = nmptls.listening(reactor, ca, ["127.0.0.1"], 0, free_port())
    yield from serving(reactor, in_reactor, pool, site, listen, time.time, ca)


@pytest.fixture
def seed(engine: Engine, site: Site, ca: Ca) -> dict[str, str]:
    """What n1 of 'pool' finds when it is primed; its address is loopback."""

    def primed(tx: Tx) -> dict[str, str]:
        founded(tx, site)
        head = node(tx)
        tx.execute(
            update(t.bindings)
            .where(t.bindings.c.node_id == head.id)
            .values(address=ipv4("127.0.0.1"))
        )
        inviter = Inviter(ca.certificate.decode(), ca.invitation)
        return dict(
            orders.current(tx, head, site, "10.77.1.1", inviter=inviter, now=time.time()).seed
        )

    return in_transaction(engine, primed)


@pytest.fixture
def bare(server: NmpServer, ca: Ca, tmp_path: Path) -> Iterator[Callable[..., Client]]:
    """Makes clients that show no certificate, or the one given."""
    made: list[Client] = []

    def make(issued: Issued | None = None, *, tls: bool = True) -> Client:
        made.append(Client(server, ca, issued, tmp_path, bare=tls))
        return made[-1]

    yield make
    for one in made:
        one.close()


def asked(key: Any, name: str = "") -> str:
    """A request for a certificate."""
    subject = [x509.NameAttribute(x509.NameOID.COMMON_NAME, name)] if name else []
    made = (
        x509.CertificateSigningRequestBuilder()
        .subject_name(x509.Name(subject))
        .sign(key, hashes.SHA256())
    )
    return b64encode(made.public_bytes(serialization.Encoding.DER)).decode()


def new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def issued(key: ec.EllipticCurvePrivateKey, answer: b.Body) -> Issued:
    assert isinstance(answer, b.Enrolled), answer
    certificate = x509.load_der_x509_certificate(b64decode(answer.certificate))
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return Issued(
        pem,
        certificate.public_bytes(serialization.Encoding.PEM),
        serial_text(certificate.serial_number),
    )


def hello(client: Client) -> b.Body:
    return client.answer(b.Hello("pool", "test 1.0", 0))


# ---------------------------------------------------------------- by hand


def test_the_certificate_opens_what_the_invitation_does_not(
    bare: Callable[..., Client], seed: dict[str, str]
) -> None:
    key, invitation = new_key(), seed["invitation"].strip()
    first = bare()
    own = issued(key, first.answer(b.Enroll("pool", invitation, asked(key, "other"))))
    assert first.hear() is None  # nothing more is said on that connection
    certificate = x509.load_pem_x509_certificate(own.certificate)
    assert certificate.subject.rfc4514_string() == "CN=pool"  # whatever it had asked for
    assert isinstance(hello(bare(own)), b.Welcome)
    said = hello(bare())
    assert isinstance(said, b.Error)
    assert (said.code, said.sentence) == ("identity", "a certificate is wanted")


def test_the_answer_may_be_lost(
    bare: Callable[..., Client], seed: dict[str, str], engine: Engine
) -> None:
    key, invitation = new_key(), seed["invitation"].strip()
    lost = bare()
    lost.send(b.Enroll("pool", invitation, asked(key)))
    until(lambda: in_transaction(engine, vcms.show, "pool").vcm.serial, lambda: "it is admitted")
    lost.close()
    own = issued(key, bare().answer(b.Enroll("pool", invitation, asked(key))))
    assert isinstance(hello(bare(own)), b.Welcome)
    thief = new_key()
    refused = bare().answer(b.Enroll("pool", invitation, asked(thief)))
    assert isinstance(refused, b.Error)
    assert (refused.code, "somebody else" in refused.sentence) == ("identity", True)


@pytest.mark.parametrize(
    ("request_", "says"),
    [
        (b64encode(b"\x30\x82" + b"x" * 200).decode(), "request for a certificate"),
        (asked(rsa.generate_private_key(65537, 2048)), "P-256"),
        (asked(ec.generate_private_key(ec.SECP384R1())), "P-256"),
    ],
    ids=["rubbish", "RSA", "P-384"],
)  # names that are alike in all workers
def test_what_is_no_request(
    bare: Callable[..., Client], seed: dict[str, str], engine: Engine, request_: str, says: str
) -> None:
    refused = bare().answer(b.Enroll("pool", seed["invitation"].strip(), request_))
    assert isinstance(refused, b.Error)
    assert (refused.code, says in refused.sentence) == ("invalid", True), refused.sentence
    assert in_transaction(engine, vcms.show, "pool").vcm.serial == ""


def test_a_request_that_its_key_has_not_signed(
    bare: Callable[..., Client], seed: dict[str, str]
) -> None:
    request = bytearray(b64decode(asked(new_key())))
    request[-1] ^= 1
    refused = bare().answer(
        b.Enroll("pool", seed["invitation"].strip(), b64encode(bytes(request)).decode())
    )
    assert isinstance(refused, b.Error)
    assert "not signed by its own key" in refused.sentence


def test_never_without_tls(bare: Callable[..., Client], seed: dict[str, str]) -> None:
    refused = bare(tls=False).answer(b.Enroll("pool", seed["invitation"].strip(), asked(new_key())))
    assert isinstance(refused, b.Error)
    assert "by TLS only" in refused.sentence


def test_who_shows_no_certificate_says_one_thing_at_most(
    bare: Callable[..., Client], seed: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        wrong = bare()
        assert isinstance(wrong.answer(b.Enroll("pool", "00" * 32, asked(new_key()))), b.Error)
        while (heard := wrong.hear()) is not None:
            assert isinstance(heard[1], b.Bye)
        other = bare()
        other.send(b.Status())
        assert other.error().code == "out-of-state"
    assert "00" * 32 not in caplog.text


def test_a_vcm_known_by_its_address_does_not_come_by_tls_without_a_certificate(
    bare: Callable[..., Client], seed: dict[str, str], engine: Engine
) -> None:
    """The site may have closed the plain port since."""
    in_transaction(engine, vcms.enrol, vcluster="pool", serial="", address="127.0.0.1", now=NOW)
    said = hello(bare())
    assert isinstance(said, b.Error)
    assert said.sentence == "a certificate is wanted"


# ---------------------------------------------------------------- as a process


class Vcm:
    """A VCM that wants nothing, in a folder as its node's seed has it."""

    def __init__(self, folder: Path, server: NmpServer, seed: dict[str, str]) -> None:
        self.folder, self.process = folder, None
        folder.mkdir()
        for name in ("vcm.toml", "ca.crt", "invitation"):
            (folder / name).write_text(
                seed[name].replace("10.77.0.1:8071", f"127.0.0.1:{port(server)}")
            )
        (folder / "run.py").write_text(RUN)

    def start(self) -> None:
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "run.py", "vcm.toml"],
                cwd=self.folder,
                stdout=log,
                stderr=log,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
            )

    def end(self, how: signal.Signals = signal.SIGTERM) -> int:
        assert self.process is not None
        self.process.send_signal(how)
        return self.process.wait(120)

    def log(self) -> str:
        return (self.folder / "log").read_text()

    def connects(self, times: int = 1) -> None:
        until(lambda: self.log().count("connected with cod1, for vcluster pool") >= times, self.log)

    process: subprocess.Popen[bytes] | None


@pytest.fixture
def vcm(tmp_path: Path, server: NmpServer, seed: dict[str, str]) -> Iterator[Vcm]:
    vcm = Vcm(tmp_path / "vcm", server, seed)
    yield vcm
    if vcm.process is not None and vcm.process.poll() is None:
        vcm.end(signal.SIGKILL)


def test_a_vcm_on_its_node_lets_itself_in(vcm: Vcm, seed: dict[str, str]) -> None:
    vcm.start()
    vcm.connects()
    assert not (vcm.folder / "invitation").exists()
    for name in ("vcm.key", "vcm.crt"):
        assert stat.S_IMODE((vcm.folder / name).stat().st_mode) == 0o600
    assert "traded the invitation for a certificate" in vcm.log()
    assert seed["invitation"].strip() not in vcm.log()
    assert vcm.end() == 0
    vcm.start()  # from now on as any other
    vcm.connects(2)
    assert "Traceback" not in vcm.log()


def test_killed_after_the_trade_it_trades_again(vcm: Vcm, seed: dict[str, str]) -> None:
    """Between the certificate's writing and the invitation's end; and before the certificate's."""
    vcm.start()
    vcm.connects()
    vcm.end(signal.SIGKILL)
    (vcm.folder / "invitation").write_text(seed["invitation"])
    vcm.start()
    vcm.connects(2)
    vcm.end(signal.SIGKILL)
    (vcm.folder / "invitation").write_text(seed["invitation"])
    (vcm.folder / "vcm.crt").unlink()
    vcm.start()
    vcm.connects(3)
    assert not (vcm.folder / "invitation").exists()


def test_an_old_invitation_keeps_nobody_out(vcm: Vcm) -> None:
    """Copy the seed at each boot, as some images do."""
    vcm.start()
    vcm.connects()
    vcm.end()
    (vcm.folder / "invitation").write_text("00" * 32 + "\n")
    vcm.start()
    vcm.connects(2)
    assert "going on with the certificate that is there" in vcm.log()


def test_a_head_that_somebody_else_was_quicker_than_says_so_and_goes_on_asking(
    vcm: Vcm, bare: Callable[..., Client], seed: dict[str, str]
) -> None:
    thief = new_key()
    issued(thief, bare().answer(b.Enroll("pool", seed["invitation"].strip(), asked(thief))))
    vcm.start()
    until(
        lambda: vcm.log().count("somebody else has used the invitation: enrol the VCM anew") >= 2,
        vcm.log,
    )
    assert (vcm.folder / "invitation").exists()
    assert vcm.end() == 0


def test_it_trusts_the_site_s_authority_only(
    vcm: Vcm, tmp_path: Path, seed: dict[str, str]
) -> None:
    (vcm.folder / "ca.crt").write_bytes(Ca(tmp_path / "other", "other").certificate)
    vcm.start()
    until(lambda: "certificate verify failed" in vcm.log(), vcm.log)
    assert "connected with" not in vcm.log()


def test_more_keys_beside_the_file_that_cod_writes(tmp_path: Path) -> None:
    (tmp_path / "vcm.toml").write_text(
        'vcluster = "a"\nservers = ["10.0.0.1:1"]\nmore = "pool.toml"\ninterval = 9\n'
    )
    assert settings.load(tmp_path / "vcm.toml", settings.Settings).interval == 9
    (tmp_path / "pool.toml").write_text("interval = 3\n")
    assert settings.load(tmp_path / "vcm.toml", settings.Settings).interval == 3
    (tmp_path / "pool.toml").write_text("intervall = 3\n")
    with pytest.raises(settings.BadSettings, match="no such key"):
        settings.load(tmp_path / "vcm.toml", settings.Settings)


def test_a_handshake_with_a_foreign_certificate_still_ends(
    bare: Callable[..., Client], seed: dict[str, str], tmp_path: Path
) -> None:
    """To show none is better than to show a wrong one."""
    foreign = Ca(tmp_path / "foreign", "x").vcm("pool", datetime.now(UTC))
    with pytest.raises((ssl.SSLError, ConnectionError, AssertionError)):  # noqa: PT012
        client = bare(foreign)
        with suppress(AssertionError):
            hello(client)
        client.socket.recv(1)
        raise AssertionError
