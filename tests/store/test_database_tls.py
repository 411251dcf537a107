"""Connections to the database are encrypted where it can, and read no certificates in vain."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine, exc

from cod.store.database import connect
from tests.mariadb import UNSYNCED, MariaDB
from tests.net.certificates import Authority

pytestmark = [pytest.mark.mariadb, pytest.mark.mariadb_always]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture
def encrypted(mariadb: MariaDB, mariadb_tables: Engine, authority: Authority) -> Iterator[str]:
    """The URL of a database whose server has a certificate."""
    pem = authority.certificate("127.0.0.1")
    mariadb.stop()
    mariadb.start(f"--ssl-cert={pem}", f"--ssl-key={pem}", *UNSYNCED)
    yield mariadb.url("tls")
    mariadb.stop()
    mariadb.start("--innodb-flush-log-at-trx-commit=0", *UNSYNCED)
    mariadb_tables.dispose()  # its connections ended with the server


def cipher(url: str) -> str:
    """Return the cipher of a new connection; '': it is not encrypted."""
    engine = connect(url)
    with engine.connect() as tx:
        (row,) = tx.exec_driver_sql("SHOW STATUS LIKE 'Ssl_cipher'")
    engine.dispose()
    return str(row[1])


def test_connections_are_encrypted_and_compare_a_certificate_where_they_are_told(
    encrypted: str, authority: Authority, tmp_path: Path
) -> None:
    assert cipher(encrypted)
    assert cipher(f"{encrypted}?ssl_ca={authority.ca}")
    with pytest.raises(exc.OperationalError, match="certificate verify failed"):
        cipher(f"{encrypted}?ssl_ca={Authority(tmp_path).ca}")


@pytest.mark.parametrize("told", ["ssl_verify_identity=true", "ssl_verify_cert=true", "file"])
def test_a_certificate_is_compared_also_without_an_authority_in_the_url(
    encrypted: str, told: str, tmp_path: Path
) -> None:
    """Show that all options of the driver that tell whom to trust are heeded: none of those that
    the system or the option file trusts has signed the host's certificate."""
    options = tmp_path / "my.cnf"
    options.write_text(f"[client]\nssl-ca = {Authority(tmp_path).ca}\n")
    with pytest.raises(exc.OperationalError, match="certificate verify failed"):
        cipher(f"{encrypted}?{told.replace('file', f'read_default_file={options}')}")


def test_a_url_may_turn_encryption_off(encrypted: str) -> None:
    assert cipher(f"{encrypted}?ssl_disabled=true") == ""


def test_a_server_without_certificate_is_used_without_reading_the_systems(
    mariadb: MariaDB, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[object] = []
    monkeypatch.setattr(ssl.SSLContext, "load_default_certs", lambda *_: read.append(_))
    assert cipher(mariadb.url("plain")) == ""
    assert read == []
