"""The messages of confd as records, and their XML (`schema/confd.rng`). See `docs/confd` for an
example of each.

The file travels in the ramdisk: standard library only, and of ElementTree only the methods that
lxml's elements have, too. `decode` trusts that the server has validated the document; it still
raises only ValueError or KeyError for a document that it cannot read. Bytes are written in hex,
seed files in base64 (XML cannot carry every byte), text without the control characters that XML
forbids.
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from typing import Any, get_args
from xml.etree import ElementTree as ET

from cod.orders import (
    BurninPlan,
    ChunkSource,
    Deposit,
    Erasure,
    ImageSource,
    Namesake,
    Order,
    Partition,
    PassOn,
    TestResult,
)

VERSION = 1
SENTENCE = 2000  # characters of a reason; more is cut off


@dataclass(frozen=True, slots=True)
class Hello:
    """Agent: the public id of its secret, the MAC it booted from, its nonce, its X25519 public key
    for this connection (b'' from agents of older releases, which do not encrypt)."""

    id: str
    mac: str
    nonce: bytes
    key: bytes = b""


@dataclass(frozen=True, slots=True)
class Challenge:
    """Server: the secret's salt, its nonce, its X25519 public key for this connection (b'' from
    servers of older releases)."""

    salt: bytes
    nonce: bytes
    key: bytes = b""


@dataclass(frozen=True, slots=True)
class Proof:
    """Agent: the proof that it knows the secret."""

    value: bytes


@dataclass(frozen=True, slots=True)
class Welcome:
    """Server: the proof that it knows the secret. The node's name; seconds between the agent's
    heartbeats."""

    proof: bytes
    node: str
    heartbeat: float


@dataclass(frozen=True, slots=True)
class Report:
    """Agent: its hardware. `document` is the `<node>` element (`schema/report.rng`) as text."""

    document: str


@dataclass(frozen=True, slots=True)
class Progress:
    """Agent: the progress of an order. Bytes, bytes per second; `phase` is wipe, zero, write,
    verify or the like; `source` the node that the image comes from, or 'the server'. An agent names
    a source only if its order says how to share chunks: servers of older releases refuse the
    field."""

    order: str
    phase: str
    done: int
    total: int
    rate: float
    source: str = ""


@dataclass(frozen=True, slots=True)
class Done:
    """Agent: the order is carried out.

    figures    measurements by name (bytes_written, seconds, write_seconds …)
    results    of a burn-in's tests
    erased     the erased disks
    namesakes  volumes of other disks with the name of a volume that was written
    disks      the findings of an order to read disks (`trampoline.disk_contents`)
    """

    order: str
    figures: Mapping[str, float] = field(default_factory=dict)
    results: tuple[TestResult, ...] = ()
    erased: tuple[Erasure, ...] = ()
    namesakes: tuple[Namesake, ...] = ()
    disks: str = ""


@dataclass(frozen=True, slots=True)
class Failed:
    """Agent: the order cannot be carried out; the reason is for people.

    cause  'order': another node could not carry it out either; 'way': a needed file was not served;
           '': unknown
    """

    order: str
    reason: str
    cause: str = ""


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Agent: a sign of life. Server: its echo, by which the agent notices a dead server."""


@dataclass(frozen=True, slots=True)
class Ack:
    """Server: the agent's message about `order` (or its report, with order '') is in the
    database."""

    order: str = ""


@dataclass(frozen=True, slots=True)
class Error:
    """Server: why it closes the connection, or why it has refused a message.

    code  'unknown' (no such secret), 'refused' (a rule says no), 'replaced' (a newer connection),
          'stopping', 'broken'
    """

    code: str
    reason: str


Message = (
    Hello
    | Challenge
    | Proof
    | Welcome
    | Report
    | Order
    | Progress
    | Done
    | Failed
    | Heartbeat
    | Ack
    | Error
)
FROM_AGENT = (Report, Progress, Done, Failed, Heartbeat)
FROM_SERVER = (Order, Heartbeat, Ack, Error)

_REFERENCES = {
    "&": "&amp;",
    "<": "&lt;",
    ">": "&gt;",
    '"': "&quot;",
    "\t": "&#09;",
    "\n": "&#10;",
    "\r": "&#13;",
}
_IN_TEXT, _IN_ATTRIBUTE = re.compile("[&<>]"), re.compile('[&<>"\t\n\r]')
_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


# For each type of a field: how its value is written to an attribute, and how it is read from one.
_WRITTEN: dict[Any, Callable[[Any], str]] = {
    "str": lambda text: _FORBIDDEN.sub("\ufffd", text),
    "int": str,
    "bytes": bytes.hex,
    "float": lambda number: repr(float(number)),
    "bool": lambda yes: "true" if yes else "false",
}
_READ: dict[Any, Callable[[str], Any]] = {
    "str": str,
    "int": int,
    "bytes": bytes.fromhex,
    "float": float,
    "bool": "true".__eq__,
}
_LEFT_OUT = (
    "boot",
    "sector",
    "cause",
    "key",
    "purge",
    "tables",
    "what",
    "patience",
    "mirror",
    "source",
    "disks",
    "installation",
)  # where they say nothing: agents of former versions do not know them
_AS_TEXT = ("reason",)


def _element(tag: str, text: str = "", **attributes: str) -> ET.Element:
    element = ET.Element(tag, {name: _WRITTEN["str"](value) for name, value in attributes.items()})
    element.text = _WRITTEN["str"](text) or None
    return element


@cache
def _plain(kind: type) -> tuple[tuple[str, Callable[[Any], str], Callable[[str], Any], bool], ...]:
    """Return the record's fields that become attributes: (name, function that writes the value,
    function that reads it, whether an empty value is omitted)."""
    return tuple(
        (each.name, _WRITTEN[each.type], _READ[each.type], each.name in _LEFT_OUT)
        for each in fields(kind)
        if each.type in _WRITTEN and each.name not in _AS_TEXT
    )


def _written(tag: str, record: Any) -> ET.Element:
    """Return the element with the record's plain fields as attributes."""
    element = _element(tag, getattr(record, "reason", "")[:SENTENCE])
    for name, write, _, left_out in _plain(record.__class__):
        value = getattr(record, name)
        if value or not left_out:
            element.set(name, write(value))
    return element


def _read(kind: Any, element: Any, **more: Any) -> Any:
    """Return the record with the element's attributes in its plain fields, and `more`."""
    get = element.attrib
    plain = {
        name: read(get[name])
        for name, _, read, left_out in _plain(kind)
        if not left_out or name in get
    }
    as_text = {name: element.text or "" for name in _AS_TEXT if name in kind.__slots__}
    return kind(**plain, **as_text, **more)


def encode(message: Message) -> bytes:
    """Return the message as an XML document, UTF-8, without a declaration."""
    own = _ENCODERS.get(type(message))
    written = own(message) if own else _written(type(message).__name__.lower(), message)
    return element_text(written).encode()


def decode(element: Any) -> Message:
    """Return the message in a root element. Raises ValueError or KeyError."""
    tag = element.tag
    if tag not in _KINDS:
        raise ValueError(f"unknown message {tag!r:.40}")
    message: Message = _DECODERS[tag](element) if tag in _DECODERS else _read(_KINDS[tag], element)
    return message


# ---------------------------------------------------------------- messages with elements inside


def order_element(order: Order) -> ET.Element:
    """Return an order as XML."""
    root = _written("order", order)
    root.extend(_written("partition", each) for each in order.partitions)
    for image in order.images:
        element = _written("image", image)
        element.extend(_written("source", each) for each in image.sources)
        root.append(element)
    root.extend(
        _element("seed", b64encode(text.encode()).decode(), name=name)
        for name, text in order.seed.items()
    )
    root.extend(_element("keep", serial) for serial in order.keep)
    if order.deposit:
        root.append(_written("deposit", order.deposit))
    if order.burnin:
        root.append(_written("burnin", order.burnin))
    if order.pass_on:
        root.append(_written("pass_on", order.pass_on))
    return root


def order_from(element: Any) -> Order:
    """Return an order from its XML."""
    deposit, burnin = element.find("deposit"), element.find("burnin")
    pass_on = element.find("pass_on")
    order: Order = _read(
        Order,
        element,
        partitions=tuple(_read(Partition, each) for each in element.iterfind("partition")),
        images=tuple(
            _read(
                ImageSource,
                each,
                sources=tuple(_read(ChunkSource, one) for one in each.iterfind("source")),
            )
            for each in element.iterfind("image")
        ),
        seed={
            e.attrib["name"]: b64decode(e.text or "", validate=True).decode()
            for e in element.iterfind("seed")
        },
        keep=tuple(e.text or "" for e in element.iterfind("keep")),
        deposit=None if deposit is None else _read(Deposit, deposit),
        burnin=None if burnin is None else _read(BurninPlan, burnin),
        pass_on=None if pass_on is None else _read(PassOn, pass_on),
    )
    return order


def _report(message: Report) -> ET.Element:
    root = ET.Element("report")
    root.append(ET.fromstring(message.document))
    return root


def element_text(element: Any) -> str:
    """Return an element (ElementTree's or lxml's) as text, exactly as ElementTree would write it,
    but without the text behind the element. ElementTree takes several times as long. Raises
    ValueError for namespaces and comments, which no document of COD has."""
    parts: list[str] = []
    _write(element, parts)
    return "".join(parts)


def _write(element: Any, parts: list[str]) -> None:
    tag, text = element.tag, element.text
    if not isinstance(tag, str) or "{" in tag or any("{" in name for name in element.attrib):
        raise ValueError(f"no element of COD's documents: {tag}")
    parts.append(f"<{tag}")
    for name, value in element.attrib.items():
        parts.append(f' {name}="{_IN_ATTRIBUTE.sub(_reference, value)}"')
    if not text and not len(element):
        parts.append(" />")
        return
    parts.append(f">{_IN_TEXT.sub(_reference, text or '')}")
    for child in element:
        _write(child, parts)
    parts.append(f"</{tag}>")


def _reference(found: re.Match[str]) -> str:
    return _REFERENCES[found[0]]


def _done(message: Done) -> ET.Element:
    root = _written("done", message)
    root.extend(_figures(message.figures))
    for result in message.results:
        element = _written("result", replace(result, about=result.about[:SENTENCE]))
        element.extend(_figures(result.figures))
        root.append(element)
    root.extend(_written("erased", each) for each in message.erased)
    root.extend(_written("namesake", each) for each in message.namesakes)
    return root


def _figures(figures: Mapping[str, float]) -> list[ET.Element]:
    return [
        _element("figure", name=name, value=repr(float(value))) for name, value in figures.items()
    ]


def _figures_from(element: Any) -> dict[str, float]:
    return {each.attrib["name"]: float(each.attrib["value"]) for each in element.iterfind("figure")}


def _hello(message: Hello) -> ET.Element:
    root = _element("hello", version=str(VERSION))
    root.attrib.update(_written("hello", message).attrib)
    return root


def _hello_from(element: Any) -> Any:
    if element.attrib["version"] != str(VERSION):
        raise ValueError(f"protocol version {element.attrib['version']!r:.20}; this is {VERSION}")
    return _read(Hello, element)


_KINDS = {kind.__name__.lower(): kind for kind in get_args(Message)}
_ENCODERS: dict[type, Callable[[Any], ET.Element]] = {
    Hello: _hello,
    Report: _report,
    Order: order_element,
    Done: _done,
}
_DECODERS: dict[str, Callable[[Any], Message]] = {
    "hello": _hello_from,
    "report": lambda e: Report(element_text(*e)),
    "order": order_from,
    "done": lambda e: _read(
        Done,
        e,
        figures=_figures_from(e),
        results=tuple(
            _read(TestResult, each, figures=_figures_from(each)) for each in e.iterfind("result")
        ),
        erased=tuple(_read(Erasure, each) for each in e.iterfind("erased")),
        namesakes=tuple(_read(Namesake, each) for each in e.iterfind("namesake")),
    ),
}
