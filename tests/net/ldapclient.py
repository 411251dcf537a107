"""An LDAP client of few lines, which speaks from a chosen address of loopback."""

from __future__ import annotations

import socket
import ssl
import warnings
from typing import Any

from ldaptor.protocols import pureber, pureldap

from cod.wire import ldap as wire

with warnings.catch_warnings():  # of pyparsing
    warnings.simplefilter("ignore")
    from ldaptor.ldapfilter import parseFilter

_CONTEXT = pureldap.LDAPBERDecoderContext_TopLevel(
    inherit=pureldap.LDAPBERDecoderContext_LDAPMessage(
        fallback=pureldap.LDAPBERDecoderContext(fallback=pureber.BERDecoderContext()),
        inherit=pureldap.LDAPBERDecoderContext(fallback=pureber.BERDecoderContext()),
    )
)
Entries = dict[str, dict[str, list[str]]]


class LdapClient:
    """A connection from `source`."""

    def __init__(
        self, port: int, source: str = "127.0.7.1", tls: ssl.SSLContext | None = None
    ) -> None:
        self.sock: socket.socket = socket.create_connection(("127.0.0.1", port), 60, (source, 0))
        self.tls, self._number, self._left = tls, 0, b""
        if tls is not None:
            self.secure(tls)

    def secure(self, tls: ssl.SSLContext) -> None:
        """Begin TLS."""
        self.sock = tls.wrap_socket(self.sock, server_hostname="127.0.0.1")

    def close(self) -> None:
        """End the connection."""
        self.sock.close()

    def send(self, value: Any, controls: Any = None) -> int:
        """Send a request; its id."""
        self._number += 1
        self.sock.sendall(pureldap.LDAPMessage(value, controls=controls, id=self._number).toWire())
        return self._number

    def message(self) -> Any:
        """The next message. Raises EOFError at the end of the connection."""
        while (length := wire_length(self._left)) is None or len(self._left) < length:
            more = self.sock.recv(65536)
            if not more:
                raise EOFError
            self._left += more
        message, used = pureber.berDecodeObject(_CONTEXT, self._left[:length])
        self._left = self._left[used:]
        return message

    def ask(self, value: Any, controls: Any = None) -> Any:
        """Send a request; its answer."""
        number = self.send(value, controls)
        message = self.message()
        assert message.id == number
        return message.value

    def search(
        self,
        filter: str = "(objectClass=*)",
        base: str = "dc=pool,dc=cod,dc=test",
        scope: int = 2,
        attributes: tuple[str, ...] = (),
        controls: Any = None,
        size: int = 0,
        types_only: bool = False,
    ) -> tuple[int, Entries]:
        """The result code and the entries found; `controls` of the last message are in `last`."""
        number = self.send(
            pureldap.LDAPSearchRequest(
                baseObject=base,
                scope=scope,
                filter=parseFilter(filter),
                attributes=list(attributes),
                sizeLimit=size,
                typesOnly=int(types_only),
            ),
            controls,
        )
        found: Entries = {}
        while True:
            message = self.message()
            assert message.id == number
            if isinstance(message.value, pureldap.LDAPSearchResultDone):
                self.last = message
                return message.value.resultCode, found
            found[message.value.objectName.decode()] = {
                name.decode(): [value.decode() for value in values]
                for name, values in message.value.attributes
            }

    def page(
        self, size: int, cookie: bytes = b"", filter: str = "(objectClass=*)"
    ) -> tuple[int, Entries, bytes]:
        """Code, entries and cookie of one page."""
        value = pureber.BERSequence(
            [pureber.BERInteger(size), pureber.BEROctetString(cookie)]
        ).toWire()
        code, found = self.search(filter, controls=[(wire.PAGED.encode(), True, value)])
        controls = self.last.controls
        if not controls:
            return code, found, b""
        parts, _ = pureber.berDecodeObject(pureber.BERDecoderContext(), controls[0][2])
        return code, found, parts[1].value


def wire_length(data: bytes) -> int | None:
    """Return how many bytes the message at the beginning has: answers may be longer than
    requests."""
    if len(data) < 2 or len(data) < 2 + (data[1] & 0x7F if data[1] & 0x80 else 0):
        return None
    if data[1] < 0x80:
        return 2 + data[1]
    head = 2 + (data[1] & 0x7F)
    return head + int.from_bytes(data[2:head], "big")
