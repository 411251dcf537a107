"""The maker of keytabs with commands that succeed, fail, hang and write nonsense."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import Engine
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from cod.flows.nodes import keytabs as flows
from cod.model import Effect, KerberosRules, Keytab, KeytabTask, Site, SiteRef
from cod.policy.people import kerberos
from cod.pool import Pool, in_transaction
from cod.security.sealed import Sealer
from cod.store.engine import Tx
from cod.store.nodes import holding, host_keys
from cod.workers import keytabs
from cod.workers.keytabs import KeytabMaker
from tests.store.agentlab import TEMPLATE, Lab
from tests.waiting import until

pytestmark = pytest.mark.slow

KEYED = TEMPLATE.replace('seed="nocloud"', 'seed="nocloud" kerberos="yes"')
SEALER = Sealer(b"k" * 32)


class Stand:
    """A node that is being primed, a command, and the maker that runs it."""

    def __init__(self, engine: Engine, site: Site, folder: Path) -> None:
        self.engine, self.command, self.said = engine, folder / "keytab", folder / "said"
        rules = KerberosRules("EXAMPLE.ORG", keytab_command=str(self.command))
        self.site = replace(site, kerberos=rules)
        self.effects: list[Effect] = []
        in_transaction(engine, self._furnish)

    def _furnish(self, tx: Tx) -> None:
        lab = Lab(tx, self.site)
        lab.machine(1, "trampoline")
        lab.boots(1)
        lab.assign(1, lab.vcluster(lab.template(document=KEYED)))

    def runs(self, script: str) -> None:
        """Have the command do this, after it has written down what it was asked."""
        self.command.with_suffix(".new").write_text(
            f'#!/bin/sh\necho "$@" >>{self.said}\n{script}\n'
        )
        self.command.with_suffix(".new").chmod(0o755)
        self.command.with_suffix(".new").replace(self.command)

    def rows(self) -> list[Keytab]:
        return in_transaction(self.engine, host_keys.keytabs, ["n1.vc.cod.test"])

    def reason(self) -> str:
        return "".join(one.reason for one in self.rows())

    def leave(self, tx: Tx) -> None:
        holding.give_back(tx, Lab(tx, self.site).node(1), up_until=0.0)


@pytest.fixture
def stand(
    engine: Engine,
    site: Site,
    tmp_path: Path,
    reactor: Any,
    in_reactor: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Stand]:
    monkeypatch.setattr(keytabs, "POLL", 0.05)
    stand = Stand(engine, site, tmp_path)
    pool = Pool(engine, reactor)
    maker = KeytabMaker(
        reactor,
        pool,
        "a",
        time.time,
        SiteRef(stand.site),
        kerberos.keytab_trouble,
        SEALER.seal,
        stand.effects.extend,
    )
    reactor.callFromThread(maker.startService)
    yield stand
    in_reactor(maker.stopService)
    pool.close()


def test_a_keytab_is_made_stored_sealed_and_its_host_removed(stand: Stand) -> None:
    stand.runs("printf '\\005\\002keys'")
    (row,) = until(lambda: [one for one in stand.rows() if one.sealed], stand.reason)
    assert SEALER.open(row.sealed, row.order_id) == b"\x05\x02keys"
    assert stand.said.read_text() == "make n1.vc.cod.test EXAMPLE.ORG\n"
    until(lambda: Effect("wake", "orders") in stand.effects)
    in_transaction(stand.engine, stand.leave)
    until(lambda: not stand.rows(), stand.reason)
    assert stand.said.read_text().splitlines()[-1] == "remove n1.vc.cod.test EXAMPLE.ORG"


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("echo first >&2; echo 'kadmin: no KDC' >&2; exit 1", "make failed: kadmin: no KDC"),
        ("exit 3", "make failed: status 3"),
        ("echo hello", "is no keytab"),
        ("head -c 70000 /dev/zero", "more than 32768 bytes"),
    ],
)
def test_what_fails_is_said_and_tried_again(stand: Stand, script: str, words: str) -> None:
    stand.runs(script)
    until(lambda: words in stand.reason(), stand.reason)
    stand.runs("printf '\\005\\002keys'")
    until(lambda: [one for one in stand.rows() if one.sealed], stand.reason)


def test_a_command_that_is_missing_is_said(stand: Stand) -> None:
    until(lambda: "No such file or directory" in stand.reason(), stand.rows)


def test_what_a_command_began_ends_with_its_time(
    stand: Stand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = tmp_path / "begun"
    with monkeypatch.context() as hurried:
        hurried.setattr(keytabs, "ATTEMPT", 1.0)  # one that had no time to begin is tried again
        stand.runs(f"sleep 600 & echo $! >{begun}; wait")
        until(lambda: begun.exists() and begun.read_text().endswith("\n"), stand.reason)
        until(lambda: "did not end within 1 s" in stand.reason(), stand.reason)
        stand.runs("printf '\\005\\002keys'")
    until(lambda: [one for one in stand.rows() if one.sealed], stand.reason)
    process = Path("/proc", begun.read_text().strip(), "comm")
    until(lambda: not process.exists() or process.read_text() != "sleep\n")


class Linked(Clock):
    """A server's clock, its link to the database, and its commands, which hang. `cut`: the database
    answers only after the link is restored. `begun`, `ended`: times when commands began and
    ended."""

    is_away, is_race = staticmethod(Pool.is_away), staticmethod(Pool.is_race)

    def __init__(self, engine: Engine) -> None:
        super().__init__()
        self._engine, self._asked, self.cut = engine, list[Deferred[None]](), False
        self.begun, self.ended = list[float](), list[float]()

    def run(self, flow: Callable[..., Any], *args: Any) -> Deferred[Any]:
        asked: Deferred[Any] = Deferred()
        asked.addCallback(lambda _: in_transaction(self._engine, flow, *args))
        self._asked.append(asked)
        if not self.cut:
            self.answer()
        return asked

    read = run

    def answer(self) -> None:
        self.cut = False
        while self._asked:
            self._asked.pop(0).callback(None)

    def spawnProcess(self, child: Any, *_: object) -> None:
        child.transport = SimpleNamespace(pid=None, signalProcess=self.end)
        self.begun.append(self.seconds())

    def end(self, _signal: str) -> None:
        self.ended.append(self.seconds())


@pytest.mark.parametrize("cut", ["as it begins", "before it begins"])
def test_two_servers_commands_for_a_host_never_run_at_once(
    engine: Engine, site: Site, monkeypatch: pytest.MonkeyPatch, cut: str
) -> None:
    """The first server's link to the database stalls just before its claim is to be renewed."""
    due: list[KeytabTask] = []
    monkeypatch.setattr(flows, "due", lambda *_: due)
    rules = KerberosRules("EXAMPLE.ORG", keytab_command="/bin/keytab")
    sites = SiteRef(replace(site, kerberos=rules))
    first, second = servers = Linked(engine), Linked(engine)
    pools: list[Any] = list(servers)
    makers = [
        KeytabMaker(pool, pool, name, pool.seconds, sites, str, lambda *_: b"", list)
        for pool, name in zip(pools, "ab", strict=True)
    ]

    def after(seconds: float) -> None:
        for _ in range(int(seconds)):
            for server, maker in zip(servers, makers, strict=True):
                server.advance(1.0)
                maker.begin(maker.look())

    after(1)
    after(keytabs.LEASE / 2 - 1.5)
    due.append(KeytabTask("n1.vc.cod.test", "1.1", 1, 1))
    if cut == "before it begins":
        first.cut = True
    after(1)
    first.cut = True
    assert len(first.begun) == (cut == "as it begins")
    after(keytabs.LEASE)
    assert second.begun
    first.answer()
    assert not first.begun or second.begun[0] >= first.ended[0]
    assert len(first.begun) == (cut == "as it begins")
