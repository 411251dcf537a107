"""A VCM renews its certificate, and either side is killed at every step of that; the certificates
are the real ones."""

from __future__ import annotations

import logging
import shutil
import stat
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from sqlalchemy import select
from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.error import ConnectionRefusedError

from cod.flows.vcms import vcms
from cod.model import Refused, Site, SiteRef, VcmView
from cod.net.nmp.server import NmpServer
from cod.net.nmp.session import VcmSession
from cod.net.nmp.tls import PeerIdentity
from cod.pool import in_transaction
from cod.security.ca import Ca, serial_text
from cod.store import tables as t
from cod.store.engine import Tx
from cod.vcm import credentials, renewal
from cod.vcm.link import Link
from cod.vcm.renewal import Renewal
from cod.vcm.retry import Options
from cod.vcm.settings import Settings
from tests.net.vcmlab import (
    NOW,
    Databases,
    End,
    Lab,
    Life,
    MortalService,
    Toy,
    furnish,
    with_death,
)

pytestmark = pytest.mark.slow  # half a minute of processor time and more, together with its like
SETTINGS = Settings(vcluster="pool", servers=("10.77.0.1:8071",))
OLD = datetime.fromtimestamp(NOW, UTC) - timedelta(days=300)  # three quarters of its life


class MortalRenewal(Renewal):
    """Whose writing is a step."""

    life: Life

    def _keep(self, *words: Any) -> None:
        self.life.step("write")
        super()._keep(*words)
        self.life.step("written")


class RenewingLab(Lab):
    """A lab in which certificates count: the one that is shown is the one in the VCM's folder at
    that moment."""

    def __init__(self, database: Path, site: Site, folder: Path, ca: Ca) -> None:
        super().__init__(database, site, folder / "state.json")
        self.folder, self.ca, self.shown = folder, ca, list[str]()
        self.first = self.enrol(OLD)

    def enrol(self, when: datetime) -> str:
        """Enroll as `cod vcm enroll` does; return the serial number."""
        issued = self.ca.vcm("pool", when)
        in_transaction(
            self.engine,
            vcms.enrol,
            vcluster="pool",
            serial=issued.serial,
            address="",
            now=self.now(),
            ends_at=issued.ends_at,
        )
        for name, content in (
            ("vcm.crt", issued.certificate),
            ("vcm.key", issued.key),
            ("ca.crt", self.ca.certificate),
        ):
            (self.folder / name).write_bytes(content)
        return issued.serial

    def start_cod(self, kill_at: int | str = 0) -> None:
        self.cod = Life(self.clock, kill_at)
        self.server = NmpServer(
            self.cod,
            Databases(self.engine, self.cod),
            SiteRef(self.site),
            "cod1",
            lambda factory: (),
            lambda transport: transport.shown,
            self.now,
            self._effects,
            self.ca,
        )
        with_death(self.server.startService)

    def start_vcm(self, kill_at: int | str = 0, **options: Any) -> None:
        life = self.vcm = Life(self.clock, kill_at)
        self._options = options
        renews = MortalRenewal(life, life, SETTINGS, self.folder, self.now)
        renews.life = life
        self.service = MortalService(
            life,
            life,
            Options("pool", "toy 1.0", self.state, 1.0, **options),
            Toy(self.books, life),
            self._connect,
            self.now,
            renews,
        )
        self.service.life = life
        with_death(self.service.startService)

    def _connect(self, link: Link) -> Deferred[Any]:
        if self.cod.dead or not self.connected:
            return fail(ConnectionRefusedError())
        certificate = x509.load_pem_x509_certificate(
            credentials.load(SETTINGS, self.folder).certificate
        )
        self.shown.append(serial_text(certificate.serial_number))
        session = VcmSession(self.server, "10.77.9.9")
        here, there = End(self.vcm, link, "hear", "say"), End(self.cod, session)
        there.shown = PeerIdentity(
            self.shown[-1], "pool", True, certificate.not_valid_after_utc.timestamp()
        )
        here.other, there.other = there, here
        self.cod.callLater(0, session.makeConnection, there)
        self.vcm.callLater(0, link.makeConnection, here)
        return succeed(link)

    def row(self) -> VcmView:
        return in_transaction(self.engine, vcms.show, "pool")

    def has_switched(self) -> bool:
        """Return whether the VCM is connected with a certificate that is not its first, and nothing
        is left of that one."""
        vcm = self.row().vcm
        return bool(
            vcm.server and vcm.serial == self.shown[-1] != self.first and vcm.next_serial is None
        )


@pytest.fixture
def lab(
    tmp_path: Path, empty_sqlite: Path, site: Site, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[], RenewingLab]]:
    """Makes labs, each with a database and a folder of its own."""
    monkeypatch.setattr(renewal, "FIRST_PAUSE", 2.0)
    ca = Ca(tmp_path / "ca", "test", OLD)
    made: list[RenewingLab] = []
    numbers = count()

    def make() -> RenewingLab:
        folder = tmp_path / str(next(numbers))
        folder.mkdir()
        shutil.copy(empty_sqlite, folder / "cod.db")
        first = Lab(folder / "cod.db", site, folder / "state.json")
        in_transaction(first.engine, furnish, site)
        first.close()
        made.append(RenewingLab(folder / "cod.db", site, folder, ca))
        return made[-1]

    yield make
    for one in made:
        one.close()


def renewed(lab: RenewingLab) -> None:
    lab.until(lab.has_switched, "it comes with a new certificate")
    lab.ticks(5)
    assert lab.has_switched()
    assert not (lab.folder / "vcm.crt.renewed.new").exists()
    refused = {
        "vcluster": "pool",
        "address": "10.77.9.9",
        "about": "",
        "seen": 0,
        "server": "x",
        "now": lab.now(),
    }
    with pytest.raises(Refused, match="replaced or revoked"):
        in_transaction(lab.engine, vcms.greet, serial=lab.first, **refused)


def test_it_renews_its_certificate_once_and_comes_again_with_it(
    lab: Callable[[], RenewingLab], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    one = lab()
    one.start_cod()
    one.start_vcm()
    renewed(one)
    assert len(one.shown) == 2
    assert {"say renew", "hear renewed", "write", "written"} <= set(one.vcm.steps)
    file = one.folder / "vcm.crt.renewed"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    end = one.row().vcm.ends_at
    assert end == credentials.load(SETTINGS, one.folder).life()[1]
    assert end == pytest.approx(NOW + 397 * 86400, abs=60)
    assert "the certificate is renewed, until 1971-02-13" in caplog.text
    assert "the VCM of pool has renewed its certificate" in caplog.text
    assert in_transaction(one.engine, changes) == [("vcm:pool", "pool")]
    one.clock.advance(renewal.PAUSE)
    one.ticks(5)
    assert one.vcm.steps.count("say renew") == 1, "it is young now"


def changes(tx: Tx) -> list[Any]:
    asked = select(t.audit.c.actor, t.audit.c.thing).where(t.audit.c.action == "vcm renew")
    return [*tx.execute(asked)]


@pytest.mark.parametrize("who", ["vcm", "cod"])
def test_killed_at_every_step_it_comes_to_the_same_end(
    lab: Callable[[], RenewingLab], who: str
) -> None:
    whole = lab()
    whole.start_cod()
    whole.start_vcm()
    renewed(whole)
    steps = list(getattr(whole, who).steps)
    if who == "vcm":  # until it has come anew
        steps = steps[: [at for at, step in enumerate(steps) if step == "hear welcome"][1] + 3]
    for k in range(1, len(steps) + 1):
        one = lab()
        one.start_cod(k if who == "cod" else 0)
        one.start_vcm(k if who == "vcm" else 0)
        try:
            renewed(one)
        except AssertionError as error:
            raise AssertionError(f"{who} killed at step {k} ({steps[k - 1]})") from error


@pytest.mark.parametrize("step", ["say renew", "has say renew", "write", "written"])
def test_killed_at_the_steps_that_matter_most(lab: Callable[[], RenewingLab], step: str) -> None:
    one = lab()
    one.start_cod()
    one.start_vcm(step)
    one.until(lambda: one.vcm.dead, "it is killed")
    before = one.row().vcm
    assert before.serial == one.first, "until the new one is shown the old one counts"
    assert (before.next_serial is None) == (step == "say renew")
    one.start_vcm()
    renewed(one)
    assert one.shown[1:] == [one.first, one.row().vcm.serial][1 if step == "written" else 0 :]


def test_an_answer_that_is_lost(lab: Callable[[], RenewingLab]) -> None:
    """COD has signed, the network is gone: the VCM comes with the old one, and asks again."""
    one = lab()
    one.start_cod()
    one.start_vcm("say renew")
    one.until(lambda: one.vcm.dead, "it is killed")
    one.reviving = False
    one.start_vcm("hear renewed")
    one.until(lambda: one.vcm.dead, "its answer is lost")
    lost = one.row().vcm.next_serial
    assert lost
    one.start_vcm()
    renewed(one)
    assert lost not in one.shown
    assert one.shown[:3] == [one.first] * 3


def test_a_folder_that_cannot_be_written_changes_nothing(
    lab: Callable[[], RenewingLab],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    one = lab()
    one.start_cod()
    with monkeypatch.context() as full:
        full.setattr(credentials, "put", broken)
        one.start_vcm()
        one.ticks(20)
        assert one.row().vcm.serial == one.first
        assert one.vcm.steps.count("write") in range(2, 6), "it is tried again, ever more seldom"
        assert (
            caplog.text.count(
                "not so: the certificate is renewed: OSError: no space left; this is tried again"
            )
            == 1
        )
        assert one.row().vcm.server == "cod1"
    renewed(one)


def broken(path: Path, content: bytes) -> None:
    raise OSError("no space left")


@pytest.mark.parametrize("age", [264, 266])
def test_it_begins_when_two_thirds_of_its_life_are_over(
    lab: Callable[[], RenewingLab], age: int
) -> None:
    one = lab()
    one.first = one.enrol(datetime.fromtimestamp(NOW, UTC) - timedelta(days=age))
    one.start_cod()
    one.start_vcm()
    one.until(lambda: one.row().vcm.server, "it is connected")
    one.ticks(10)
    assert one.has_switched() == (age == 266)


def test_a_dry_run_renews_nothing(lab: Callable[[], RenewingLab]) -> None:
    one = lab()
    one.start_cod()
    one.start_vcm(dry_run=True)
    one.until(lambda: "look" in one.vcm.steps, "it looks")
    one.ticks(5)
    assert "say renew" not in one.vcm.steps


def test_enrolled_anew_goes_before_what_was_renewed(lab: Callable[[], RenewingLab]) -> None:
    one = lab()
    one.start_cod()
    one.start_vcm()
    renewed(one)
    anew = one.enrol(datetime.fromtimestamp(one.now(), UTC) + timedelta(minutes=1))
    one.until(
        lambda: one.shown[-1] == anew and one.row().vcm.server,
        "it comes with the one in the folder",
    )
