"""Mutated bodies of the REST API's questions and of NMP's messages, through all that they reach:
the server's code from the connection (NMP: from the frame) to the database, without sockets and
threads. None is answered as the server's own fault, none leaves an error in the log, and neither
memory nor descriptors grow. Nothing that is asked is committed, so that each message finds the same
site.

`COD_ATTACK` says how many (`make attack`: a million of each).
"""

from __future__ import annotations

import json
import logging
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from argon2 import PasswordHasher
from sqlalchemy import Engine
from twisted.internet.address import IPv4Address
from twisted.internet.defer import Deferred, execute
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from twisted.python import log as twisted_log
from twisted.python.failure import Failure

from cod.model import Refused, Site, SiteRef
from cod.net.nmp import verbs
from cod.net.nmp.session import _certified
from cod.pool import Pool, in_transaction
from cod.security import password_hash
from cod.security.ca import Ca
from cod.service import share_preview
from cod.web.api.context import Context
from cod.web.api.events import Hub
from cod.web.api.resources import ROUTES
from cod.web.api.routes import Route
from cod.web.http.uploads.intake import Intake
from cod.web.server import Api
from cod.web.signin.service import SignIn
from cod.wire.nmp import bodies as b
from cod.wire.nmp import xml
from cod.wire.nmp.frames import Fault, Message
from tests.attack.mutants import COUNT, VALUES, changed, descriptors, memory, mutants
from tests.net import nmplab
from tests.net.rights_world import NOW, World, made
from tests.net.test_rights_walk import body_of, name_of, path_of

pytestmark = pytest.mark.slow

GROWTH = 32 << 10  # KiB


class Rehearsal:
    """The pool's promise without its threads, and a pool that takes everything back: no commit
    follows a flow."""

    is_away, is_race = staticmethod(Pool.is_away), staticmethod(Pool.is_race)

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def run(self, flow: Callable[..., Any], *args: Any, **kwargs: Any) -> Deferred[Any]:
        """Run it now."""
        with self.engine.connect() as tx, tx.begin() as transaction:
            made = execute(flow, tx, *args, **kwargs)
            transaction.rollback()
        return made

    def run_once(
        self, _: object, flow: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Deferred[Any]:
        """Run it now: no commit's answer is lost."""
        return self.run(flow, *args, **kwargs)

    read = run


class Reactor(Clock):
    """A clock whose threads are this one."""

    def getThreadPool(self) -> Reactor:
        return self

    def callFromThread(self, function: Callable[..., object], *args: Any, **kwargs: Any) -> None:
        function(*args, **kwargs)

    def callInThreadWithCallback(
        self, done: Callable[..., object], function: Callable[..., Any], *args: Any
    ) -> None:
        try:
            value = function(*args)
        except Exception:
            done(False, Failure())
        else:
            done(True, value)


class Here:
    """The simulator's promise without its process."""

    async def answer(self, question: bytes) -> Any:
        return share_preview.answer(json.loads(question))


class Watch(logging.Handler):
    """What is logged as an error, here or by Twisted."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.errors: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.errors.append(self.format(record))

    def told(self, event: dict[str, Any]) -> None:
        """Twisted's word for it."""
        if event.get("isError"):
            self.errors.append(str(twisted_log.textFromEventDict(event)))


@pytest.fixture
def watch() -> Iterator[Watch]:
    watch = Watch()
    logging.getLogger().addHandler(watch)
    twisted_log.addObserver(watch.told)
    yield watch
    twisted_log.removeObserver(watch.told)
    logging.getLogger().removeHandler(watch)


def attacked(
    messages: Iterator[Any],
    attack: Callable[[Any], str],
    watch: Watch,
    capsys: pytest.CaptureFixture[str],
    name: str,
) -> None:
    """Send all messages; tell what came of them, and fail with the first that was the server's
    fault."""
    outcomes: Counter[str] = Counter()
    before = open_before = 0
    for number, message in enumerate(messages):
        if number == COUNT // 10:
            before, open_before = memory(), descriptors()
        try:
            outcomes[attack(message)] += 1
        except Exception as error:
            raise AssertionError(f"message {number}: {message!r:.3000}") from error
        assert not watch.errors, f"message {number}: {message!r:.3000}: {watch.errors[0]}"
    grown = memory() - before
    with capsys.disabled():
        print(
            f"\n{name}: {outcomes.total():,} messages, {dict(sorted(outcomes.items()))}, {grown}"
            " KiB grown"
        )
    assert grown < GROWTH
    assert descriptors() <= open_before


# ---------------------------------------------------------------- REST


class Line:
    """A connection to the API that has no socket."""

    def __init__(self, engine: Engine, site: Site, folder: Path) -> None:
        self.now, self.reactor = NOW, Reactor()
        pool: Any = Rehearsal(engine)
        simulator: Any = Here()
        intake = Intake(
            self.reactor, pool, SiteRef(site), folder / "incoming", lambda effects: None, self.clock
        )
        self.api = Api(
            Context(
                reactor=self.reactor,
                pool=pool,
                site=SiteRef(site),
                clock=self.clock,
                local=False,
                images=folder,
                intake=intake,
                upload_limit=2**20,
                wake=lambda effects: None,
                metrics=Deferred,
                database=tuple,
                webhook_key=bytes(32),
                authority=None,
                names=frozenset(),
                proxied=False,
                consoles=None,
                settings=None,
                fingerprint=str,
                signin=SignIn(self.reactor, pool, SiteRef(site), self.clock),
                hub=Hub(self.reactor, pool),
                simulator=simulator,
            )
        )

    def clock(self) -> float:
        return self.now

    def ask(self, method: str, path: str, token: str, body: bytes) -> int:
        """The answer's status."""
        self.now += 1  # so that nobody's ration is used up
        self.reactor.advance(1)
        protocol, transport = (
            self.api.buildProtocol(None),
            StringTransport(peerAddress=IPv4Address("TCP", "127.0.0.1", 5)),
        )
        transport.abortConnection = transport.loseConnection  # type: ignore[method-assign]
        protocol.makeConnection(transport)
        head = (
            f"{method} /api/v1{path} HTTP/1.1\r\nHost: h\r\nContent-Type:"
            f" application/json\r\nConnection: close\r\nContent-Length: {len(body)}\r\n"
            + (f"Authorization: Bearer {token}\r\n" if token else "")
        )
        protocol.dataReceived(head.encode() + b"\r\n" + body)
        said: bytes = transport.value()
        protocol.connectionLost(Failure(ConnectionError()))
        status = re.match(rb"HTTP/1.1 (\d+) ", said)
        assert status, f"it is not answered: {said[:200]!r}"
        return int(status[1])


def questions(routes: list[Route], world: World) -> Iterator[tuple[Route, str, bytes]]:
    """Routes, who asks, and a body that is nearly right."""
    rng = random.Random(4)
    askers = [world.askers[name].token for name in ("admin", "admin", "owner", "member", "nobody")]
    for _ in range(COUNT):
        route = rng.choice(routes)
        body = body_of(route, world.ours)
        if rng.randrange(4):
            for _ in range(rng.choice((1, 1, 2, 3))):
                body = changed(body, rng)
            raw = json.dumps(body).encode()
        else:
            raw = next(mutants([json.dumps(body).encode()], rng.getrandbits(32), 1))
        yield route, rng.choice(askers), raw


def test_mutated_bodies_of_the_rest_api(
    engine: Engine,
    site: Site,
    tmp_path: Path,
    watch: Watch,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        password_hash, "_HASHER", PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)
    )
    password_hash._nobodys.cache_clear()
    world = in_transaction(engine, made)
    line = Line(engine, site, tmp_path)
    routes = [
        route for route in ROUTES if route.body is not None and not route.upload and not route.local
    ]

    def attack(question: tuple[Route, str, bytes]) -> str:
        route, token, body = question
        status = line.ask(route.method, path_of(route, world.ours), token, body)
        assert status < 500, f"{name_of(route)}: {status}"
        return str(status)

    right = [
        (route, world.askers["admin"].token, json.dumps(body_of(route, world.ours)).encode())
        for route in routes
    ]
    assert sum(attack(each)[0] == "2" for each in right) > len(routes) // 3, (
        "what is right gets further"
    )
    attacked(questions(routes, world), attack, watch, capsys, "REST bodies")
    password_hash._nobodys.cache_clear()


# ---------------------------------------------------------------- NMP

REQUIRES = '<requires><attr name="cpu/cores" op="ge" value="1"/></requires>'
# a request for a certificate, as cod.vcm.credentials.request makes them: the same at every run
CERTIFIED = (
    "MIG5MGICAQAwADBZMBMGByqGSM49AgEGCCqGSM49AwEHA0IABNTKlGc2CmUdayi1aEAM4pA+eTyBTtV7tY+gWgt51dyzB2K2ec4zd1+GD3tQhfMN/8"
    "LrEA7IfO8nWj0xi1ri+vKgADAKBggqhkjOPQQDAgNHADBEAiBthR4RmR9YqE0CfZK6D0k1DyOMSqfnC7o/avBGniFgagIgSIuFzAKTPo5DdFXr/VJO"
    "3NudUKYcKTkqmhtxTMIGKV4="
)
BODIES: list[b.Body] = [
    b.Hello("pool", "cod-vcm-test 1.0", 3),
    b.Enroll("pool", "0f" * 32, CERTIFIED),
    b.Renew(CERTIFIED),
    b.RequestNodes("k1", (b.Wanted(1), b.Wanted(2, "debian", REQUIRES)), True, True, "jobs wait"),
    b.RequestStatus(1),
    b.Withdraw(1),
    b.ReleaseNodes((b.Named("node1"), b.Named("node2", 5.0)), "idle"),
    b.ParkNodes((b.Named("node1"), b.Named("node2"))),
    b.MaintenanceStatus(),
    b.ReclaimAnswer(1, (b.Named("node1"), b.Named("node2", 30.0)), "jobs end soon"),
    b.Extend(3600.0),
    b.Status(),
    b.Ack(1),
    b.Ping(),
    b.Pong(),
    b.Bye("done"),
    b.Error("invalid", "no", 3),
]


def telegrams() -> Iterator[Message]:
    """Messages whose body is nearly right."""
    rng = random.Random(5)
    bodies = [(xml.verb(body), xml.write(body)) for body in BODIES]
    plausible = [value for _, body in bodies for value in re.findall(rb'"([^"]{0,20})"', body)]
    for number in range(COUNT):
        verb, body = rng.choice(bodies)
        if rng.randrange(3):
            places = list(re.finditer(rb'"[^"]*"|(?<=<)[a-z-]+', body))
            start, end = rng.choice(places).span()
            value = rng.choice(
                (rng.choice(plausible), str(rng.choice(VALUES)).encode(errors="replace"))
            )
            body = (
                body[:start]
                + (b'"%s"' % value if body[start : start + 1] == b'"' else value)
                + body[end:]
            )
        else:
            body = next(mutants([body], rng.getrandbits(32), 1))
        yield Message(verb, str(number), body)


def _refused(why: Exception) -> str:
    assert 0 < len(str(why)) < 1000, "a refusal does not repeat what came"
    return "refused"


def test_mutated_bodies_of_nmp(
    engine: Engine, site: Site, tmp_path: Path, watch: Watch, capsys: pytest.CaptureFixture[str]
) -> None:
    in_transaction(engine, nmplab.founded, site)
    authority = Ca(tmp_path / "ca", "test")
    pool = Rehearsal(engine)
    speaker = verbs.VcmPeer("pool", 1)
    asked = tuple(verbs._FLOWS)

    def attack(message: Message) -> str:
        try:
            body = xml.read(message)
            if isinstance(body, b.Enroll | b.Renew):
                return "certified" if _certified(authority, "pool", body.request, NOW) else ""
            if not isinstance(body, asked):
                return "read"
            found: list[Any] = []
            pool.run(verbs.answer, body, speaker, site, NOW).addBoth(found.append)
            if isinstance(found[0], Failure):
                found[0].raiseException()
            answer = found[0].value
            xml.read(Message(xml.verb(answer), "1", xml.write(answer)))
        except (Fault, Refused) as refused:
            return _refused(refused)
        return "answered"

    came = Counter(attack(Message(xml.verb(body), "1", xml.write(body))) for body in BODIES)
    assert came["answered"] >= 3
    assert (came["read"], came["certified"]) == (6, 2)
    attacked(telegrams(), attack, watch, capsys, "NMP bodies")
