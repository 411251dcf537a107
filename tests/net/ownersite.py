"""The small site behind a portal, and people of it, for tests of the owners' pages: a module that
imports the fixtures `engine`, `furnished_sqlite` and `there` has the site in its database."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine

from cod.model import Role, Who
from cod.pool import in_transaction
from cod.store.database import connect
from cod.store.people import groups
from cod.store.scheduler import requests, vclusters
from tests.net.apiserver import NOW, Served
from tests.net.portalclient import Browser, signed_in
from tests.portal_site import furnish


@pytest.fixture(scope="session")
def furnished_sqlite(empty_sqlite: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SQLite file with the small site in it, to be copied: furnishing takes longer than most
    tests."""
    path = tmp_path_factory.mktemp("furnished") / "cod.db"
    shutil.copy(empty_sqlite, path)
    made = connect(f"sqlite:///{path}")
    in_transaction(made, furnish, NOW)
    made.dispose()
    return path


@pytest.fixture
def engine(tmp_path: Path, furnished_sqlite: Path) -> Iterator[Engine]:
    """A fresh database with the small site."""
    shutil.copy(furnished_sqlite, tmp_path / "cod.db")
    made = connect(f"sqlite:///{tmp_path}/cod.db")
    yield made
    made.dispose()


@pytest.fixture
def there(served: Served) -> Served:
    """The server, with the small site that has something of everything."""
    return served


def browse(served: Served, role: str = "owner", group: str = "physics", name: str = "") -> Browser:
    """The browser of somebody who is that in the group."""
    found = served.tx(groups.by_name, group)
    return signed_in(
        served, Who(f"user:{name or f'{role}-{group}'}", user_id=0, roles={found.id: Role(role)})
    )


def vcluster(served: Served, name: str) -> Any:
    return served.tx(vclusters.by_name, name)


def asked(served: Served, name: str) -> list[Any]:
    """What a vcluster has asked for, the newest first."""
    every = served.tx(requests.every, vcluster_id=vcluster(served, name).id)
    return sorted(every, key=lambda one: -one.id)
