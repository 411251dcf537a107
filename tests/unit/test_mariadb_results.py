"""Results that are read together are those that the driver reads packet by packet, however the
bytes come in, and so are errors."""

from __future__ import annotations

import inspect
import io
from collections.abc import Sequence
from typing import Any

import pymysql
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pymysql.constants import FIELD_TYPE
from pymysql.protocol import FieldDescriptorPacket

from cod.store.mariadb.connections import _connections
from cod.store.mariadb.results import MOST_KINDS

KINDS = {  # a column's type, and values as they are on the wire
    FIELD_TYPE.LONGLONG: [b"0", b"-12", b"9223372036854775807"],
    FIELD_TYPE.DOUBLE: [b"0.5", b"1e300"],
    FIELD_TYPE.NEWDECIMAL: [b"12.50"],
    FIELD_TYPE.VAR_STRING: [
        b"",
        "\u00e4\U0001f600".encode(),
        b"x" * 250,
        b"x" * 251,
        b"y" * 70_000,
    ],
    FIELD_TYPE.BLOB: [b"", b"\xff\xfe\xfb\x00", b"z" * 300],
    FIELD_TYPE.DATETIME: [b"2026-11-29 12:00:00"],
}
values = [(kind, one) for kind, each in KINDS.items() for one in [None, *each]]


class Pieces(io.RawIOBase):
    """A stream that comes in pieces of some sizes, the last one again and again."""

    def __init__(self, data: bytes, sizes: Sequence[int]) -> None:
        self._rest, self._sizes = memoryview(data), list(sizes)

    def readable(self) -> bool:
        return True

    def readinto(self, room: Any) -> int:
        size = self._sizes.pop(0) if len(self._sizes) > 1 else self._sizes[0]
        part, self._rest = self._rest[: min(size, len(room))], self._rest[min(size, len(room)) :]
        room[: len(part)] = part
        return len(part)


def length_coded(value: bytes | None) -> bytes:
    if value is None:
        return b"\xfb"
    size = len(value)
    if size < 251:
        return bytes([size]) + value
    return (
        b"\xfc" + size.to_bytes(2, "little")
        if size < 1 << 16
        else b"\xfd" + size.to_bytes(3, "little")
    ) + value


def stream(bodies: Sequence[bytes]) -> bytes:
    """Return the packets with those bodies, as they follow a question."""
    return b"".join(
        len(body).to_bytes(3, "little") + bytes([number % 256]) + body
        for number, body in enumerate(bodies, 1)
    )


def result(kinds: Sequence[int], rows: Sequence[Sequence[bytes | None]]) -> list[bytes]:
    """Return the bodies of a result's packets."""
    described = [
        b"".join(map(length_coded, (b"def", b"db", b"t", b"t", b"c%d" % n, b"c")))
        + b"\x0c"
        + (63 if kind == FIELD_TYPE.BLOB else 45).to_bytes(2, "little")
        + (1000).to_bytes(4, "little")
        + bytes([kind, 0, 0, 0, 0, 0])
        for n, kind in enumerate(kinds)
    ]
    end = b"\xfe\x00\x00\x22\x00"
    lines = [b"".join(map(length_coded, row)) for row in rows]
    return [bytes([len(kinds)]), *described, end, *lines, end]


class Line:
    """A socket that keeps what is sent."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []

    def settimeout(self, _seconds: float | None) -> None:
        pass

    def sendall(self, data: bytes) -> None:
        self.sent.append(data[5:])

    def close(self) -> None:
        pass


def read(connections: Any, data: bytes, sizes: Sequence[int]) -> Any:
    """Return what such a connection reads out of the stream, and whether it read all."""
    connection = connections(defer_connect=True, ssl_disabled=True)
    connection._sock, connection._rfile = Line(), io.BufferedReader(Pieces(data, sizes))
    connection._next_seq_id, connection._current_timeout = 1, connection._read_timeout
    try:
        count = connection._read_query_result()
    except pymysql.MySQLError as error:
        return type(error), error.args
    found = connection._result
    rest = connection._rfile.read()
    connection._force_close()
    return found.rows, found.description, count, found.warning_count, found.has_next, rest


OURS = _connections(pymysql)


@given(
    st.lists(st.lists(st.sampled_from(values), min_size=1, max_size=5), max_size=4),
    st.lists(st.integers(5, 9000), min_size=1, max_size=9),
    st.integers(0, 2),
)
def test_results_are_the_drivers(
    drawn: list[list[tuple[int, bytes | None]]], sizes: list[int], times: int
) -> None:
    kinds = [kind for kind, _value in drawn[0]] if drawn else [FIELD_TYPE.LONGLONG]
    rows = [
        [
            value if kind == wanted else None
            for wanted, (kind, value) in zip(kinds, row, strict=True)
        ]
        for row in drawn
        if len(row) == len(kinds)
    ]
    data = stream(result(kinds, rows * (1 + 9 * times)))
    expected = read(pymysql.connections.Connection, data, [1 << 20])
    for _ in range(2):  # the second time with the descriptions that are known
        assert read(OURS, data, sizes) == expected
        assert read(OURS, data, [1 << 20]) == expected


@pytest.mark.parametrize("size", [1, 40, 1 << 20])
@pytest.mark.parametrize("cut", ["descriptions", "rows", "end"])
def test_a_connection_that_breaks_is_the_drivers_error(size: int, cut: str) -> None:
    bodies = result([FIELD_TYPE.LONGLONG] * 3, [[b"1", b"2", b"3"]] * 5)
    whole = stream(bodies)
    length = {"descriptions": 30, "rows": len(whole) - 30, "end": len(whole) - 1}[cut]
    read(OURS, whole, [1 << 20])
    kind, args = read(OURS, whole[:length], [size])
    assert (kind, args[0]) == (pymysql.OperationalError, 2013)


@pytest.mark.parametrize("size", [1, 1 << 20])
def test_an_error_among_rows_and_a_packet_out_of_order_are_the_drivers_errors(size: int) -> None:
    bodies = result([FIELD_TYPE.LONGLONG], [[b"1"]] * 3)
    killed = b"\xff" + (1317).to_bytes(2, "little") + b"#70100interrupted"
    kind, args = read(OURS, stream([*bodies[:4], killed]), [size])
    assert (kind, args) == (pymysql.OperationalError, (1317, "interrupted"))
    swapped = stream(bodies[:4]) + stream([bodies[4]])
    kind, args = read(OURS, swapped, [size])
    assert kind is pymysql.InternalError


def test_columns_of_a_statement_are_parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed = []
    kind: Any = FieldDescriptorPacket
    parse = kind._parse_field_descriptor

    def counted(self: Any, encoding: str) -> None:
        parsed.append(encoding)
        parse(self, encoding)

    monkeypatch.setattr(kind, "_parse_field_descriptor", counted)
    data = stream(result([FIELD_TYPE.INT24] * 70, [[b"7"] * 70]))
    first = read(OURS, data, [1 << 20])
    assert len(parsed) == 70
    assert read(OURS, data, [1 << 20]) == first
    assert len(parsed) == 70


def remembered() -> dict[bytes, object]:
    """Return the descriptions that all connections remember."""
    kind = inspect.getclosurevars(OURS._read_query_result).nonlocals["kind"]
    known: dict[bytes, object] = inspect.getclosurevars(kind._get_descriptions).nonlocals["known"]
    return known


def test_descriptions_that_another_thread_forgets_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = stream(result([FIELD_TYPE.INT24] * 3, [[b"7"] * 3]))
    first = read(OURS, data, [1 << 20])

    class Meanwhile(io.BufferedReader):
        """A stream. While it is read, another thread clears the remembered descriptions."""

        def read(self, size: int | None = -1, /) -> bytes:
            if size is not None and size > 50:
                assert remembered()
                remembered().clear()
            return super().read(size)

    with monkeypatch.context() as patched:
        patched.setattr(io, "BufferedReader", Meanwhile)
        assert read(OURS, data, [1 << 20]) == first
    assert not remembered()


def test_descriptions_that_threads_have_added_beyond_the_bound_are_forgotten() -> None:
    data = stream(result([FIELD_TYPE.INT24] * 4, [[b"7"] * 4]))
    remembered().clear()
    remembered().update((b"%d" % n, None) for n in range(MOST_KINDS + 1))
    read(OURS, data, [1 << 20])
    assert len(remembered()) == 1


def answered(*bodies: bytes) -> Any:
    """Return a connection that waits for a question, of which these are all answers."""
    connection = OURS(defer_connect=True, ssl_disabled=True)
    connection._sock, connection._rfile = Line(), io.BufferedReader(Pieces(b"".join(bodies), [99]))
    connection._current_timeout = connection._read_timeout
    return connection


def okay(status: int) -> bytes:
    return stream([b"\x00\x00\x00" + status.to_bytes(2, "little") + b"\x00\x00"])


def test_nothing_is_rolled_back_after_a_commit() -> None:
    selected = result([FIELD_TYPE.LONGLONG], [[b"1"]])
    within = [*selected[:-1], b"\xfe\x00\x00\x23\x00"]
    refused = b"\xff" + (1062).to_bytes(2, "little") + b"#23000there already"
    connection = answered(
        okay(0), okay(3), okay(2), stream(within), okay(2), stream([refused]), okay(2), okay(2)
    )
    line = connection._sock

    def sent() -> list[bytes]:
        said, line.sent = line.sent, []
        return said

    connection.rollback()
    assert sent() == [b"ROLLBACK"], "nothing is known of a new connection"
    connection.rollback()
    assert sent() == []
    connection.query("INSERT")
    connection.commit()
    connection.rollback()
    assert sent() == [b"INSERT", b"COMMIT"]
    connection.query("SELECT")
    connection.rollback()
    assert sent() == [b"SELECT", b"ROLLBACK"], "what was read is locked, or of one moment"
    with pytest.raises(pymysql.IntegrityError):
        connection.query("INSERT")
    connection.rollback()
    assert sent() == [b"INSERT", b"ROLLBACK"], "an error does not say whether a transaction is open"
    connection.commit()
    connection.rollback()
    assert sent() == [b"COMMIT"]
