"""Connections to MariaDB. They extend PyMySQL's: they are encrypted if the host can, notice a host
that is gone, read the packets of a result together, and omit a ROLLBACK without a transaction."""

from __future__ import annotations

import socket
import ssl
from functools import cache
from typing import Any

from cod.store.mariadb.results import results

# Seconds without a sign of life of the host's kernel after which a connection counts as lost. A
# host that works at a long statement, or hangs, still has a kernel that answers.
SILENT = 9
IN_TRANSACTION = 1  # of an answer's status: a transaction is open (SERVER_STATUS_IN_TRANS)


def connection(dialect: Any, args: Any, options: dict[str, Any]) -> Any:
    """Return a connection that is not open yet."""
    kind = _connections(dialect.loaded_dbapi)
    if any(name.startswith(("ssl", "read_default")) for name in options):  # told whom to trust
        return kind(*args, **options, defer_connect=True)
    # The driver by itself would read all certificates of the system for each connection, to compare
    # the host's with none of them.
    made = kind(*args, **options, ssl_disabled=True, defer_connect=True)
    made.ssl, made.ctx = True, _tls_without_proof()
    return made


@cache
def _connections(driver: Any) -> Any:
    """Return the driver's class of connections, extended to notice silence from the host's greeting
    on, to read results together, and to omit a ROLLBACK without a transaction."""
    kind = results(driver)

    class MariaDBConnection(driver.Connection):  # type: ignore[misc]
        # False: the host's last answer says that no transaction is open
        may_be_in_transaction = True

        def escape(self, obj: Any, mapping: Any = None) -> str:
            """Return a value as SQL. The driver's own method is slower for numbers and null,
            because it first compares a value's type with all other types."""
            if obj is None:
                return "NULL"
            return str(obj) if type(obj) is int else super().escape(obj, mapping)

        def _get_server_information(self) -> None:
            _notice_silence(self._sock)
            super()._get_server_information()

        def _read_query_result(self, unbuffered: bool = False) -> Any:
            self.may_be_in_transaction = True
            if unbuffered:
                return super()._read_query_result(unbuffered)
            self._result = None
            result = kind(self)
            result.read()
            self._result = result
            if result.server_status is not None:
                self.server_status = result.server_status
                self.may_be_in_transaction = bool(result.server_status & IN_TRANSACTION)
            return result.affected_rows

        def commit(self) -> None:
            self.may_be_in_transaction = True
            super().commit()
            self.may_be_in_transaction = bool(self.server_status & IN_TRANSACTION)

        def rollback(self) -> None:
            """Roll back if a transaction may be open. SQLAlchemy rolls back each connection that is
            returned to it, also after a commit, which would cost a round trip to the host."""
            if self.may_be_in_transaction:
                super().rollback()
                self.may_be_in_transaction = bool(self.server_status & IN_TRANSACTION)

    return MariaDBConnection


@cache
def _tls_without_proof() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def _notice_silence(line: socket.socket) -> None:
    """Have the kernel end a connection whose other end cannot be reached. By default it waits for a
    quarter of an hour after something was sent, and for two hours when an answer was lost: long
    after the link was mended."""
    if line.family == socket.AF_UNIX:
        return
    for option, value in (
        (socket.TCP_USER_TIMEOUT, SILENT * 1000),
        (socket.TCP_KEEPIDLE, max(SILENT // 3, 1)),
        (socket.TCP_KEEPINTVL, max(SILENT // 3, 1)),
        (socket.TCP_KEEPCNT, 2),
    ):
        line.setsockopt(socket.IPPROTO_TCP, option, value)
