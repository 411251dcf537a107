"""Store and flow tests run on both databases: SQLite, and a private MariaDB server that is started
once a run."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine

from cod.model import Site
from cod.store import tables
from cod.store.database import connect
from tests.conftest import quickened
from tests.mariadb import UNSYNCED, MariaDB
from tests.store.busy_site import calm, ruled


@pytest.fixture(scope="session")
def mariadb(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MariaDB]:
    """A running private MariaDB server."""
    server = MariaDB(tmp_path_factory.mktemp("mariadb"))
    server.install()
    server.start("--innodb-flush-log-at-trx-commit=0", *UNSYNCED)
    yield server
    server.stop()


@pytest.fixture(scope="session")
def mariadb_tables(mariadb: MariaDB) -> Iterator[Engine]:
    """An engine on a MariaDB database with every table, and the rows of the test before."""
    engine = connect(mariadb.url("store"))
    tables.metadata.create_all(engine)
    yield engine
    engine.dispose()


@pytest.fixture
def mariadb_engine(mariadb_tables: Engine) -> Engine:
    """An engine on an empty MariaDB database with every table."""
    with mariadb_tables.begin() as tx:
        tx.execute(tables.groups.update().values(parent_id=None))  # a group refers to a group
        filled = set(tx.exec_driver_sql(FILLED).scalars())
        for table in reversed(tables.metadata.sorted_tables):
            if table.name in filled:
                tx.execute(table.delete())
    return mariadb_tables


@pytest.fixture(params=["sqlite", pytest.param("mariadb", marks=pytest.mark.mariadb)])
def engine(request: pytest.FixtureRequest, tmp_path: Path, empty_sqlite: Path) -> Iterator[Engine]:
    """An empty database with every table, of either kind."""
    if request.param == "sqlite":
        shutil.copy(empty_sqlite, tmp_path / "cod.db")
        engine = quickened(connect(f"sqlite:///{tmp_path}/cod.db"))
        yield engine
        engine.dispose()
        return
    yield request.getfixturevalue("mariadb_engine")


# The names of the tables that have rows: most are empty, and a statement for each costs more than
# most tests.
FILLED = " UNION ALL ".join(
    f"SELECT '{name}' WHERE EXISTS (SELECT 1 FROM `{name}`)" for name in tables.metadata.tables
)


@pytest.fixture
def quiet(site: Site) -> Site:
    """Grace of 20 s, inertia of 10 s; the reserve is not managed."""
    return calm(ruled(site))
