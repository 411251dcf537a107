"""Reads a file by NFSv4.0 with RPCSEC_GSS (RFC 7530, RFC 2203), as who has a ticket. A program for
the system's Python, which has the module gssapi.

    /usr/bin/python3 nfs_gss.py SERVER HOST SERVICE PATH

SERVER is an address, HOST the name in its principal nfs/HOST, SERVICE none (krb5), integrity
(krb5i) or privacy (krb5p). Prints what READ gives, or the error's number. With privacy it fails if
the content can be read on the wire.
"""

import socket
import struct
import sys
from collections.abc import Iterator

import gssapi

NFS, VERSION = 100003, 4
RPCSEC_GSS, DATA, INIT = 6, 0, 1
SERVICES = {"none": 1, "integrity": 2, "privacy": 3}
PUTROOTFH, LOOKUP, READ = 24, 15, 25


def opaque(data: bytes) -> bytes:
    """Return the data as XDR: its length before, zeros behind."""
    return struct.pack(">I", len(data)) + data + bytes(-len(data) % 4)


class Reader:
    """Takes XDR apart."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def number(self) -> int:
        """Return the next number."""
        self._at += 4
        return int(struct.unpack_from(">I", self._data, self._at - 4)[0])

    def opaque(self) -> bytes:
        """Return the next bytes with a length."""
        size = self.number()
        found = self._data[self._at : self._at + size]
        self._at += -(-size // 4) * 4
        return found

    def rest(self) -> bytes:
        """Return what is left."""
        return self._data[self._at :]


class GssClient:
    """A connection whose calls a context of GSS protects."""

    def __init__(self, server: str, host: str, service: str) -> None:
        self._socket = socket.create_connection((server, 2049), 20)
        self._service, self._handle, self._number, self._xid = SERVICES[service], b"", 0, 7
        self.wire = b""  # of the last reply
        name = gssapi.Name(f"nfs@{host}", gssapi.NameType.hostbased_service)
        # no order of tokens (RFC 2203, 5.2.2): a call's body is wrapped before its head is signed
        flags = gssapi.RequirementFlag
        wanted = [flags.mutual_authentication, flags.integrity, flags.confidentiality]
        self._context = gssapi.SecurityContext(name=name, usage="initiate", flags=wanted)
        token = self._context.step()
        while True:
            reader = Reader(self._call(0, INIT, opaque(token)))
            self._handle = reader.opaque()
            major, minor, _window = reader.number(), reader.number(), reader.number()
            if major not in (0, 1):
                raise SystemExit(f"the server refuses the context: {major} {minor}")
            token = self._context.step(reader.opaque())
            if self._context.complete:
                break

    def call(self, procedure: int, arguments: bytes) -> bytes:
        """Return the results of a procedure of NFS."""
        self._number += 1
        body = struct.pack(">I", self._number) + arguments
        if self._service == 3:
            body = opaque(self._context.wrap(body, True).message)
        elif self._service == 2:
            body = opaque(body) + opaque(self._context.get_signature(body))
        else:
            body = arguments
        reader = Reader(self._call(procedure, DATA, body))
        if self._service == 1:
            return reader.rest()
        found = reader.opaque()
        if self._service == 3:
            unwrapped = self._context.unwrap(found)
            assert unwrapped.encrypted
            found = unwrapped.message
        else:
            self._context.verify_signature(found, reader.opaque())
        assert struct.unpack(">I", found[:4])[0] == self._number
        return bytes(found[4:])

    def _call(self, procedure: int, kind: int, body: bytes) -> bytes:
        self._xid += 1
        service = self._service if kind == DATA else 1
        credential = struct.pack(">4I", 1, kind, self._number, service) + opaque(self._handle)
        head = struct.pack(">6I", self._xid, 0, 2, NFS, VERSION, procedure)
        head += struct.pack(">I", RPCSEC_GSS) + opaque(credential)
        verifier = struct.pack(">2I", 0, 0)
        if kind == DATA:
            verifier = struct.pack(">I", RPCSEC_GSS) + opaque(self._context.get_signature(head))
        message = head + verifier + body
        self._socket.sendall(struct.pack(">I", 1 << 31 | len(message)) + message)
        self.wire = b"".join(self._fragments())
        reader = Reader(self.wire)
        assert (reader.number(), reader.number()) == (self._xid, 1)
        if reader.number():
            raise SystemExit(f"denied {reader.number()} {reader.rest().hex()}")
        _flavour, _verifier, status = reader.number(), reader.opaque(), reader.number()
        if status:
            raise SystemExit(f"RPC error {status}")
        return reader.rest()

    def _fragments(self) -> Iterator[bytes]:
        last = False
        while not last:
            (head,) = struct.unpack(">I", self._exactly(4))
            last = bool(head >> 31)
            yield self._exactly(head & 0x7FFFFFFF)

    def _exactly(self, size: int) -> bytes:
        found = b""
        while len(found) < size:
            piece = self._socket.recv(size - len(found))
            if not piece:
                raise SystemExit("the server closed the connection")
            found += piece
        return found


def main(server: str, host: str, service: str, path: str) -> None:
    """Print a file's content."""
    client = GssClient(server, host, service)
    names = path.strip("/").split("/")
    operations = [struct.pack(">I", PUTROOTFH)]
    operations += [struct.pack(">I", LOOKUP) + opaque(name.encode()) for name in names]
    # the anonymous stateid; from the beginning, 4096 bytes
    operations.append(struct.pack(">I", READ) + bytes(16) + struct.pack(">QI", 0, 4096))
    compound = opaque(b"") + struct.pack(">2I", 0, len(operations)) + b"".join(operations)
    reader = Reader(client.call(1, compound))
    status = reader.number()
    reader.opaque()
    if status:
        raise SystemExit(f"NFS4 error {status}")
    for _ in range(reader.number()):
        operation, _status = reader.number(), reader.number()
        if operation == READ:
            reader.number()
            content = reader.opaque()
            assert service != "privacy" or content not in client.wire
            sys.stdout.write(content.decode())


if __name__ == "__main__":
    main(*sys.argv[1:])
