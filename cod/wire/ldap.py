"""LDAP messages (RFC 4511): bytes of requests -> records, answers -> bytes. ldaptor knows their
BER.

Every error in a message is a `PeerError`. ldaptor's decoder reacts to wrong types with assertions
and other errors of Python, and prints unknown tags, so wrong types and tags are rejected before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

from ldaptor.protocols import pureber, pureldap

from cod.model import LdapCode, LdapEntry, LdapFilter, LdapSearch
from cod.wire.errors import PeerError

LONGEST = 65_536  # bytes of a request
DEEPEST = 32  # filters in each other
MOST_FILTERS = 512  # filters in a search
PAGED = "1.2.840.113556.1.4.319"
START_TLS = "1.3.6.1.4.1.1466.20037"
WHO_AM_I = "1.3.6.1.4.1.4203.1.11.3"
_NOTICE = "1.3.6.1.4.1.1466.20036"  # notice of disconnection


@dataclass(frozen=True, slots=True)
class Bind:
    """A sign-in. `simple`: by name and password, else by SASL."""

    version: int
    name: str
    simple: bool
    password: bool


@dataclass(frozen=True, slots=True)
class Unbind:
    """A client's end of the connection."""


@dataclass(frozen=True, slots=True)
class Abandon:
    """A client's wish to abandon an earlier request."""


@dataclass(frozen=True, slots=True)
class Extended:
    """A request that its `name`, an object identifier, defines."""

    name: str


@dataclass(frozen=True, slots=True)
class Change:
    """A request to add, change, rename, delete or compare, which is always refused: its tag."""

    tag: int


@dataclass(frozen=True, slots=True)
class Message:
    """A request. `unknown`: the first critical control that COD does not know, or ''."""

    id: int
    request: Bind | Unbind | Abandon | Extended | Change | LdapSearch
    unknown: str = ""


# ---------------------------------------------------------------- requests


def length(data: bytes | bytearray) -> int | None:
    """Return the length of the message at the beginning of `data`, in bytes; None if its head has
    not arrived completely. Raises `PeerError`."""
    if len(data) < 2:
        return None
    if data[0] != 0x30:
        raise PeerError("a message should be a SEQUENCE")
    first = data[1]
    if first < 0x80:
        return 2 + first
    if not 1 <= first & 0x7F <= 4:
        raise PeerError("a message should have a length of at most four bytes")
    head = 2 + (first & 0x7F)
    if len(data) < head:
        return None
    whole = head + int.from_bytes(data[2:head], "big")
    if whole > LONGEST:
        raise PeerError(f"a message should have at most {LONGEST} bytes")
    return whole


class _Strict(pureber.BERDecoderContext):  # type: ignore[misc]
    """A decoder's context that knows the universal types, and refuses all others."""

    def lookup_id(self, id: int) -> Any:
        """Return the class of a tag."""
        found = self.Identities.get(id) or (self.fallback.lookup_id(id) if self.fallback else None)
        if found is None:
            raise PeerError(f"a message should not have the tag 0x{id:02x} there")
        return found


class _Change:
    """A request that is refused whatever its contents."""

    def __init__(self, tag: int) -> None:
        self.tag = tag

    @classmethod
    def fromBER(cls, tag: int, content: bytes, berdecoder: Any = None) -> _Change:
        """Return the request without reading `content`."""
        return cls(tag)


class _ControlsContext(_Strict):
    Identities: ClassVar[Any] = {pureldap.LDAPControl.tag: pureldap.LDAPControl}


class _Controls(pureldap.LDAPControls):  # type: ignore[misc]
    """ldaptor's class, with strict types."""

    @classmethod
    def fromBER(cls, tag: int, content: bytes, berdecoder: Any = None) -> _Controls:
        return cls(pureber.berDecodeMultiple(content, _ControlsContext(inherit=_Strict())), tag=tag)


_CHANGES: dict[int, Callable[..., Any]] = {
    pureldap.LDAPModifyRequest.tag: pureldap.LDAPModifyResponse,
    pureldap.LDAPAddRequest.tag: pureldap.LDAPAddResponse,
    pureldap.LDAPDelRequest.tag: pureldap.LDAPDelResponse,
    pureldap.LDAPModifyDNRequest.tag: pureldap.LDAPModifyDNResponse,
    pureldap.LDAPCompareRequest.tag: pureldap.LDAPCompareResponse,
}


class _Requests(_Strict):
    Identities: ClassVar[Any] = dict.fromkeys(_CHANGES, _Change) | {
        _Controls.tag: _Controls,
        **{
            each.tag: each
            for each in (
                pureldap.LDAPBindRequest,
                pureldap.LDAPUnbindRequest,
                pureldap.LDAPSearchRequest,
                pureldap.LDAPAbandonRequest,
                pureldap.LDAPExtendedRequest,
            )
        },
    }


class _TopLevel(_Strict):
    Identities: ClassVar[Any] = {pureber.BERSequence.tag: pureldap.LDAPMessage}


_TOP_LEVEL = _TopLevel(inherit=_Requests(fallback=_Strict()))


def decode(data: bytes) -> Message:
    """Return the request in the bytes of one message. Raises `PeerError`."""
    try:
        message, used = pureber.berDecodeObject(_TOP_LEVEL, data)
        if used != len(data):
            raise PeerError("a message should end where its length says")
        return _message(message)
    except PeerError:
        raise
    except (Exception, RecursionError) as error:  # see the module's head
        raise PeerError(f"the message is malformed ({type(error).__name__})") from None


def _message(message: Any) -> Message:
    number = _number(message.id)
    if not 0 < number < 2**31:
        raise PeerError("a message's id should be between 1 and 2147483647")
    page, cookie, unknown = None, b"", ""
    for name, critical, value in message.controls or ():
        if _text(name) == PAGED and isinstance(message.value, pureldap.LDAPSearchRequest):
            page, cookie = _paged(value)
        elif critical:
            unknown = unknown or _text(name)
    return Message(number, _request(message.value, page, cookie), unknown)


def _request(value: Any, page: int | None, cookie: bytes) -> Any:
    if isinstance(value, pureldap.LDAPSearchRequest):
        names = [_text(name).lower() for name in value.attributes]
        scope, size = _number(value.scope), _number(value.sizeLimit)
        if not 0 <= scope <= 2 or size < 0 or _number(value.timeLimit) < 0:
            raise PeerError("scope, size limit or time limit is out of range")
        return LdapSearch(
            _text(value.baseObject),
            scope,
            _filter(value.filter, DEEPEST, [MOST_FILTERS]),
            tuple(dict.fromkeys(names)),
            size,
            bool(_number(value.typesOnly)),
            page,
            cookie.decode("ascii", "replace"),
        )
    if isinstance(value, pureldap.LDAPBindRequest):
        return Bind(_number(value.version), _text(value.dn), not value.sasl, bool(value.auth))
    if isinstance(value, pureldap.LDAPExtendedRequest):
        return Extended(_text(value.requestName))
    if isinstance(value, _Change):
        return Change(value.tag)
    if isinstance(value, pureldap.LDAPAbandonRequest):
        return Abandon()
    if isinstance(value, pureldap.LDAPUnbindRequest):
        return Unbind()
    raise PeerError("that is no request")


def _paged(value: Any) -> tuple[int, bytes]:
    """Return size and cookie of a request for a page of results."""
    parts, used = pureber.berDecodeObject(_Strict(), _octets(value))
    size, cookie = parts
    if used != len(value) or _number(size.value) < 0:
        raise PeerError("the control of pages is malformed")
    return size.value, _octets(cookie.value)


_COMPARISONS = (
    (pureldap.LDAPFilter_equalityMatch, "equal"),
    (pureldap.LDAPFilter_approxMatch, "equal"),
    (pureldap.LDAPFilter_greaterOrEqual, "at_least"),
    (pureldap.LDAPFilter_lessOrEqual, "at_most"),
)


def _filter(value: Any, deep: int, left: list[int]) -> LdapFilter:
    """Return a filter. `left` counts down the filters that the search may still contain."""
    left[0] -= 1
    if not deep or left[0] < 0:
        raise PeerError(
            f"a search should have at most {MOST_FILTERS} filters, {DEEPEST} in each other"
        )
    for kind, name in ((pureldap.LDAPFilter_and, "and"), (pureldap.LDAPFilter_or, "or")):
        if isinstance(value, kind):
            return LdapFilter(name, parts=tuple(_filter(each, deep - 1, left) for each in value))
    if isinstance(value, pureldap.LDAPFilter_not):
        return LdapFilter("not", parts=(_filter(value.value, deep - 1, left),))
    for kind, name in _COMPARISONS:
        if isinstance(value, kind):
            return LdapFilter(
                name, _attribute(value.attributeDesc.value), (_text(value.assertionValue.value),)
            )
    if isinstance(value, pureldap.LDAPFilter_present):
        return LdapFilter("present", _attribute(value.value))
    if isinstance(value, pureldap.LDAPFilter_substrings):
        return LdapFilter("substrings", _attribute(value.type), _pieces(value.substrings))
    if isinstance(value, pureldap.LDAPFilter_extensibleMatch):
        return LdapFilter("unknown")
    raise PeerError("that is no filter")


def _pieces(found: Iterable[Any]) -> tuple[str, ...]:
    first, last = "", ""
    middle: list[str] = []
    for each in found:
        if isinstance(each, pureldap.LDAPFilter_substrings_initial) and not (
            first or middle or last
        ):
            first = _text(each.value)
        elif isinstance(each, pureldap.LDAPFilter_substrings_any) and not last:
            middle.append(_text(each.value))
        elif isinstance(each, pureldap.LDAPFilter_substrings_final) and not last:
            last = _text(each.value)
        else:
            raise PeerError("the parts of a substring match should be in order")
    return (first, *middle, last)


def _attribute(value: Any) -> str:
    return _text(value).lower().partition(";")[0]


def _octets(value: Any) -> bytes:
    if not isinstance(value, bytes):
        raise PeerError("an OCTET STRING should be there")
    return value


def _text(value: Any) -> str:
    return _octets(value).decode(errors="replace")


def _number(value: Any) -> int:
    if not isinstance(value, int):
        raise PeerError("an INTEGER should be there")
    return value


# ---------------------------------------------------------------- answers


def entry(number: int, found: LdapEntry) -> bytes:
    made = pureldap.LDAPSearchResultEntry(
        found.dn.encode(),
        [
            (name.encode(), [value.encode() for value in values])
            for name, values in found.attributes.items()
        ],
    )
    return _encoded(number, made)


def done(number: int, code: LdapCode, text: str = "", cookie: str | None = None) -> bytes:
    """Return the end of a search. `cookie`: the place where the next page begins; None: the search
    is not paged."""
    controls = None
    if cookie is not None:
        value = pureber.BERSequence(
            [pureber.BERInteger(0), pureber.BEROctetString(cookie.encode())]
        ).toWire()
        controls = [(PAGED.encode(), None, value)]
    return _encoded(
        number, pureldap.LDAPSearchResultDone(resultCode=int(code), errorMessage=text), controls
    )


def answer(
    number: int, request: object, code: LdapCode, text: str = "", value: bytes | None = None
) -> bytes:
    """Return the answer to any other request. `value`: the value of the answer to an extended
    request."""
    if isinstance(request, LdapSearch):
        return done(number, code, text)
    if isinstance(request, Bind):
        return _encoded(number, pureldap.LDAPBindResponse(resultCode=int(code), errorMessage=text))
    if isinstance(request, Change):
        return _encoded(number, _CHANGES[request.tag](resultCode=int(code), errorMessage=text))
    return _encoded(
        number,
        pureldap.LDAPExtendedResponse(resultCode=int(code), errorMessage=text, response=value),
    )


def notice(code: LdapCode, text: str) -> bytes:
    """Return the notice of disconnection (RFC 4511 section 4.4.1)."""
    return _encoded(
        0,
        pureldap.LDAPExtendedResponse(
            resultCode=int(code), errorMessage=text, responseName=_NOTICE
        ),
    )


def _encoded(number: int, value: Any, controls: Any = None) -> bytes:
    made: bytes = pureldap.LDAPMessage(value, controls=controls, id=number).toWire()
    return made
