"""Fixtures shared by all tests: a database with the current schema, a transaction in it, a site, a
running reactor."""

from __future__ import annotations

import gc
import logging
import re
import shutil
import signal
import sqlite3
import subprocess
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from sqlalchemy import Engine, event
from twisted.internet.threads import blockingCallFromThread

from cod.lab import cleaner
from cod.model import Policy, Site, Subnet
from cod.store import schema, tables
from cod.store.database import connect
from cod.store.engine import Tx
from tests import upkeep
from tests.leftovers import Before, process

pytest_plugins = ("tests.sampling", "tests.ledger", "tests.schedule")

# How long an example takes, and how long to think of one, is the machine's affair. A change is
# judged by the same examples as the last one was; who looks for others says --hypothesis-profile
# search.
_STEADY: dict[str, Any] = {
    "deadline": None,
    "suppress_health_check": [HealthCheck.too_slow],
    "derandomize": True,
}
settings.register_profile("cod", **_STEADY)
# of `make test-fast`: see `pytest_itemcollected`
settings.register_profile("fast", **_STEADY, max_examples=20)
settings.register_profile("search", **_STEADY | {"derandomize": False})
settings.load_profile("cod")

LONGEST_NAME = 80  # characters of a parameter in its test's name


def pytest_make_parametrize_id(config: pytest.Config, val: object, argname: str) -> str | None:
    """Megabytes that are fed to a parser shall not be its test's name, which is written, sent and
    shown many times."""
    if isinstance(val, str | bytes) and len(val) > LONGEST_NAME:
        return f"{argname}-of-{len(val)}"
    return None


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not even import a module that is left out as a whole: `-m "not system and not slow"` costs
    what it runs."""
    terms = (config.option.markexpr or "").split(" and ")
    unwanted = {term.removeprefix("not ") for term in terms if re.fullmatch(r"not \w+", term)}
    if not unwanted or collection_path.suffix != ".py":
        return None
    marks = re.search(r"^pytestmark = (\[[^\]]*|.*)", collection_path.read_text(), re.MULTILINE)
    return bool(marks and unwanted & set(re.findall(r"pytest\.mark\.(\w+)", marks[1]))) or None


def pytest_configure(config: pytest.Config) -> None:
    """Leave nothing behind when this process is killed: no server, no machine, no namespace. What a
    shell runs in the background ignores SIGINT, and so would all that is started here; tests send
    it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    config.stash[_cleaner] = cleaner.start()
    gc.disable()  # until everything is collected: nearly all that is made until then stays


def pytest_unconfigure(config: pytest.Config) -> None:
    """Let the cleaner end."""
    config.stash[_cleaner].communicate(timeout=120)


_cleaner = pytest.StashKey[subprocess.Popen[bytes]]()


def pytest_itemcollected(item: pytest.Item) -> None:
    """What holds for all examples also holds for those tests that have settings of their own; and a
    quick answer comes from an eighth of their examples, and from twenty of all others."""
    fast = item.config.getoption("--hypothesis-profile", None) == "fast"
    for of, name in (
        (getattr(item, "obj", None), "_hypothesis_internal_use_settings"),
        (getattr(item, "cls", None), "settings"),
    ):
        wanted = getattr(of, name, None)
        if isinstance(wanted, settings) and of not in _settled:
            fewer = 8 if fast and wanted.max_examples != settings().max_examples else 1
            setattr(
                of,
                name,
                settings(
                    wanted,
                    max_examples=-(-wanted.max_examples // fewer),
                    derandomize=settings().derandomize,
                    suppress_health_check={*wanted.suppress_health_check, HealthCheck.too_slow},
                ),
            )
            _settled.add(of)


_settled = set[object]()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Take modules and thousands of collected tests, which stay to the end, out of every later
    garbage collection. Nearly nothing of it is garbage: to look for that costs each worker more."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_runtest_logfinish(nodeid: str) -> None:
    """Remember which test was the last."""
    _last[:] = [nodeid]


_last: list[str] = []


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """See `tests.upkeep`."""
    upkeep.tend(item.nodeid, *(_last or ["a test"]))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """See `tests.leftovers`; what starts foreign programs and machines is left out."""
    if item.get_closest_marker("system"):
        return (yield)
    before = item.stash[_before] = Before()
    try:
        return (yield)
    finally:
        before.ended = process()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, object, object]:
    """A test that leaves something behind fails itself, and not one after it, now and then."""
    result = yield
    before = item.stash.get(_before, None)
    if before is not None and (left := before.left()):
        pytest.fail(f"it leaves behind: {', '.join(left)}", pytrace=False)
    return result


_before = pytest.StashKey[Before]()

SUBNET = Subnet(
    name="lab",
    network="10.77.0.0/16",
    server="10.77.0.1",
    boot_pool=("10.77.1.0", "10.77.4.255"),
    block_pool=("10.77.128.0", "10.77.255.255"),
    block_size=64,
    router="10.77.0.1",
    interface="br0",
)


@pytest.fixture
def site() -> Site:
    """A site with one subnet, open to new machines, approving them by itself."""
    return Site(name="test", domain="cod.test", subnets=(SUBNET,), policy=Policy(auto_approve=True))


@pytest.fixture(scope="session")
def empty_sqlite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SQLite file with every table, to be copied: making tables costs more than most tests."""
    path = tmp_path_factory.mktemp("empty") / "cod.db"
    engine = connect(f"sqlite:///{path}")
    tables.metadata.create_all(engine)
    engine.dispose()  # the last connection folds the write-ahead log into the file
    return path


@pytest.fixture
def engine(tmp_path: Path, empty_sqlite: Path) -> Iterator[Engine]:
    """A fresh SQLite database with every table."""
    shutil.copy(empty_sqlite, tmp_path / "cod.db")
    engine = quickened(connect(f"sqlite:///{tmp_path}/cod.db"))
    yield engine
    engine.dispose()


def quickened(engine: Engine) -> Engine:
    """A test's own engine on SQLite, which waits for no disk and takes over statements that were
    compiled for others before it: compiling them costs more than running them."""
    first = _engines.setdefault("first", engine)
    engine.dialect, engine._compiled_cache = first.dialect, first._compiled_cache
    event.listen(
        engine, "connect", lambda connection, _: connection.execute("PRAGMA synchronous=OFF")
    )
    return engine


_engines: dict[str, Engine] = {}


def ready(engine: Engine, name: str, make: Callable[[Tx], object]) -> None:
    """Let the database hold what `make` adds to an empty one: see `once`."""

    def added() -> None:
        with engine.begin() as tx:
            make(tx)

    once(engine, name, added)


def in_memory() -> Engine:
    """Return an engine on an empty database in memory, with every table."""
    engine = quickened(connect("sqlite://"))
    once(engine, "tables", lambda: tables.metadata.create_all(engine))
    return engine


def upgrade(engine: Engine) -> None:
    """Give a new database today's schema, as the migrations make it."""
    once(engine, "schema", lambda: schema.upgrade(engine))


def once(engine: Engine, name: str, make: Callable[[], object]) -> None:
    """Let a database be what `make` makes of it. On SQLite it is made once a process and copied for
    the tests that follow: `name` tells apart what is made, which has to be the same each time."""
    if engine.dialect.name != "sqlite" or name not in _made:
        make()
    if engine.dialect.name != "sqlite":
        return
    with closing(engine.raw_connection()) as connection:
        driver: Any = connection.driver_connection
        if name in _made:
            _made[name].backup(driver)
        else:
            _made[name] = sqlite3.connect(":memory:", check_same_thread=False)
            driver.backup(_made[name])


_made: dict[str, sqlite3.Connection] = {}


@pytest.fixture
def tx(engine: Engine) -> Iterator[Tx]:
    """A transaction that is committed when the test passes its end."""
    with engine.begin() as tx:
        yield tx


@pytest.fixture
def log_levels() -> Iterator[None]:
    """Put back from which level on things are logged: the product sets it for its whole process."""
    found = {name: logging.getLogger(name).level for name in (None, "alembic", "sqlalchemy")}
    yield
    for name, level in found.items():
        logging.getLogger(name).setLevel(level)


@pytest.fixture(scope="session")
def reactor() -> Iterator[Any]:
    """The process's reactor, running until the last test is over. It has no signals: its children
    are looked for."""
    from twisted.internet import reactor
    from twisted.internet.process import reapAllProcesses
    from twisted.internet.task import LoopingCall

    thread = Thread(target=reactor.run, kwargs={"installSignalHandlers": False}, daemon=True)
    thread.start()
    reactor.callFromThread(LoopingCall(reapAllProcesses).start, 0.05)
    yield reactor
    reactor.callFromThread(reactor.stop)
    thread.join(10)


@pytest.fixture
def in_reactor(reactor: Any) -> Callable[..., Any]:
    """Calls a function in the reactor's thread and waits for its result, or for its Deferred's."""
    return lambda function, *args, **kwargs: blockingCallFromThread(
        reactor, function, *args, **kwargs
    )
