"""Results of statements, read from all received packets at once.

PyMySQL reads one packet for each column and each row of a result, and parses the descriptions of
all columns anew for each statement: with a wide table, this is most of a statement's cost. Here the
packets that have arrived completely are taken from the connection's buffer together, and
descriptions with the same bytes as before are parsed once. All other packets (an error, the end, a
packet that has arrived in part) are left to the driver.
"""

from __future__ import annotations

from typing import Any

HEADER = 4  # bytes before a packet: its length, 3 bytes, and its number modulo 256
NULL, SHORT, MEDIUM = 0xFB, 0xFC, 0xFD  # a value's first byte: none, or the form of its length
END = 0xFE  # the first byte of a result's last packet; of an error's it is the next one
MOST_KINDS = 256  # results with different columns whose descriptions are remembered
Converters = list[tuple[str | None, Any]]  # a column's encoding (None: bytes), and its reader


def results(driver: Any) -> type[Any]:
    """Return the driver's class of results, extended to read packets together. All connections must
    use one encoding."""
    known: dict[bytes, tuple[Any, Any, Any]] = {}

    class Results(driver.connections.MySQLResult):  # type: ignore[misc]
        connection: Any  # None when the whole result has been read

        def _get_descriptions(self) -> None:
            """Read the descriptions of the columns, and the packet that ends them."""
            connection = self.connection
            data, length = _buffered(connection), 0
            for _ in range(self.field_count + 1):
                length += HEADER + int.from_bytes(data[length : length + 3], "little")
            packets = data[:length]
            if (made := known.get(packets)) is not None:  # another thread may clear `known`
                connection._rfile.read(length)
                connection._next_seq_id = (packets[3] + self.field_count + 1) % 256
                self.fields, self.converters, self.description = made
                return
            super()._get_descriptions()
            self.converters = [  # numbers are read from bytes, too
                (None if kind in (int, float) else encoding, kind)
                for encoding, kind in self.converters
            ]
            if length <= len(data):
                if len(known) >= MOST_KINDS:  # by rare statements or changed tables
                    known.clear()
                known[packets] = self.fields, self.converters, self.description

        def _read_rowdata_packet(self) -> None:
            """Read all rows, and the packet that ends them."""
            connection, rows = self.connection, []
            while True:
                data = _buffered(connection)
                at, number = 0, connection._next_seq_id
                while at + HEADER < len(data):
                    end = at + HEADER + int.from_bytes(data[at : at + 3], "little")
                    if end > len(data) or data[at + 3] != number or data[at + HEADER] >= END:
                        break
                    rows.append(_row(data, at + HEADER, self.converters))
                    at, number = end, (number + 1) % 256
                connection._rfile.read(at)
                connection._next_seq_id = number
                packet = connection._read_packet()
                if self._check_packet_is_eof(packet):
                    self.server_status = int.from_bytes(packet.get_all_data()[3:5], "little")
                    break
                rows.append(self._read_row_from_packet(packet))
            self.connection = None
            self.affected_rows = len(rows)
            self.rows = tuple(rows)

    return Results


def _buffered(connection: Any) -> bytes:
    """Return the bytes that have arrived and were not read yet, after waiting for some. b'' if the
    connection is broken, so that the driver raises the error."""
    try:
        data: bytes = connection._rfile.peek()
    except OSError:
        return b""
    return data


def _row(data: bytes, at: int, converters: Converters) -> tuple[Any, ...]:
    """Return the values of the row whose packet begins `at` in `data`, after its header."""
    row: list[Any] = []
    for encoding, converter in converters:
        length = data[at]
        at += 1
        if length >= NULL:
            if length == NULL:
                row.append(None)
                continue
            size = 2 if length == SHORT else 3 if length == MEDIUM else 8
            length = int.from_bytes(data[at : at + size], "little")
            at += size
        value: Any = data[at : at + length]
        at += length
        if encoding is not None:
            value = value.decode(encoding)
        row.append(value if converter is None else converter(value))
    return tuple(row)
