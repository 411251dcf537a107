"""The messages of confd as records, and their XML (`schema/confd.rng`). See `docs/confd.md` for an example of each.

The file travels in the ramdisk: standard library only, and of ElementTree only what lxml's elements have too. `decode`
trusts that the server has validated the document; it still raises ValueError or KeyError on what it cannot read, never
anything else. Bytes are written in hex, seed files in base64 (XML cannot carry every byte), text without the control
characters that XML forbids.
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from xml.etree import ElementTree as ET

from cod.orders import Deposit, ImageSource, Order, Partition

VERSION = 1
SENTENCE = 2000  # characters of a reason; more is cut off


@dataclass(frozen=True, slots=True)
class Hello:
    """Agent: the public id of its secret, the MAC it booted from, its nonce."""

    id: str
    mac: str
    nonce: bytes


@dataclass(frozen=True, slots=True)
class Challenge:
    """Server: the secret's salt, its nonce."""

    salt: bytes
    nonce: bytes


@dataclass(frozen=True, slots=True)
class Proof:
    """Agent: shows that it knows the secret."""

    value: bytes


@dataclass(frozen=True, slots=True)
class Welcome:
    """Server: shows that it knows the secret. The node's name; seconds between the agent's heartbeats."""

    proof: bytes
    node: str
    heartbeat: float


@dataclass(frozen=True, slots=True)
class Report:
    """Agent: its hardware. `document` is the `<node>` element (`schema/report.rng`) as text."""

    document: str


@dataclass(frozen=True, slots=True)
class Progress:
    """Agent: how far an order is. Bytes, bytes per second; `phase` is wipe, zero, write, verify or the like."""

    order: str
    phase: str
    done: int
    total: int
    rate: float


@dataclass(frozen=True, slots=True)
class Done:
    """Agent: the order is carried out. `figures` are measurements by name (bytes_written, seconds, write_seconds …)."""

    order: str
    figures: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Failed:
    """Agent: the order cannot be carried out; the reason is for people."""

    order: str
    reason: str


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Agent: alive. Server: the same back, so that the agent notices a dead server."""


@dataclass(frozen=True, slots=True)
class Ack:
    """Server: what the agent said about `order` (or its report, with order '') is in the database."""

    order: str = ""


@dataclass(frozen=True, slots=True)
class Error:
    """Server: why it closes the connection, or why it refused a message.

    code  'unknown' (no such secret), 'refused' (a rule says no), 'replaced' (a newer connection), 'stopping', 'broken'
    """

    code: str
    reason: str


Message = (
    Hello | Challenge | Proof | Welcome | Report | Order | Progress | Done | Failed | Heartbeat | Ack | Error
)
FROM_AGENT = (Report, Progress, Done, Failed, Heartbeat)
FROM_SERVER = (Order, Heartbeat, Ack, Error)

_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def _text(value: str) -> str:
    return _FORBIDDEN.sub("\ufffd", value)


def _element(tag: str, text: str = "", **attributes: Any) -> ET.Element:
    element = ET.Element(tag, {name: _value(value) for name, value in attributes.items()})
    element.text = _text(text) or None
    return element


def _value(value: Any) -> str:
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, bool):
        return "true" if value else "false"
    return _text(repr(float(value)) if isinstance(value, float) else str(value))


def encode(message: Message) -> bytes:
    """The message as an XML document, UTF-8, without a declaration."""
    return ET.tostring(_ENCODERS[type(message)](message), "unicode").encode()


def decode(element: Any) -> Message:
    """The message that a root element stands for. Raises ValueError or KeyError."""
    tag = element.tag
    if tag not in _DECODERS:
        raise ValueError(f"unknown message {tag!r:.40}")
    return _DECODERS[tag](element)


# ---------------------------------------------------------------- orders


def order_element(order: Order) -> ET.Element:
    """An order as XML."""
    root = _element("order", id=order.id, action=order.action, disk=order.disk, wipe=order.wipe, verify=order.verify,
                    table=order.table)
    if order.sector:
        root.set("sector", str(order.sector))
    for p in order.partitions:
        root.append(_element("partition", number=p.number, size=p.size, type=p.type, name=p.name))
        if p.boot:
            root[-1].set("boot", "true")
    root.extend(_element("image", target=i.target, url=i.url, compression=i.compression, digest=i.digest, size=i.size,
                         installer=i.installer, installer_digest=i.installer_digest) for i in order.images)
    root.extend(_element("seed", b64encode(text.encode()).decode(), name=name) for name, text in order.seed.items())
    root.extend(_element("keep", serial) for serial in order.keep)
    if order.deposit:
        root.append(_element("deposit", url=order.deposit.url, secret=order.deposit.secret, least=order.deposit.least))
    return root


def order_from(element: Any) -> Order:
    """An order from its XML."""
    get = element.attrib
    return Order(
        id=get["id"], action=get["action"], disk=get["disk"], wipe=get["wipe"] == "true",
        verify=get["verify"] == "true", table=get["table"],
        partitions=tuple(_partition(e.attrib) for e in element.iterfind("partition")),
        images=tuple(_image(e.attrib) for e in element.iterfind("image")),
        seed={e.attrib["name"]: b64decode(e.text or "", validate=True).decode() for e in element.iterfind("seed")},
        keep=tuple(e.text or "" for e in element.iterfind("keep")),
        deposit=_deposit(element.find("deposit")), sector=int(get.get("sector", "0")))


def _partition(get: Mapping[str, str]) -> Partition:
    return Partition(int(get["number"]), int(get["size"]), get["type"], get["name"],
                     get.get("boot") == "true")


def _deposit(element: Any) -> Deposit | None:
    if element is None:
        return None
    get = element.attrib
    return Deposit(get["url"], get["secret"], int(get["least"]))


def _image(get: Mapping[str, str]) -> ImageSource:
    return ImageSource(get["target"], get["url"], get["compression"], get["digest"], int(get["size"]),
                       get["installer"], get["installer_digest"])


# ---------------------------------------------------------------- each message, both ways


def _report(message: Report) -> ET.Element:
    root = ET.Element("report")
    root.append(ET.fromstring(message.document))
    return root


def _report_from(element: Any) -> Report:
    (node,) = element
    return Report(element_text(node))


def element_text(element: Any) -> str:
    """An element (ElementTree's or lxml's) as text, in one spelling."""
    return ET.tostring(_copy(element), "unicode")


def _copy(element: Any) -> ET.Element:  # tells nothing of which library parsed it, and leaves the tail behind
    copy = ET.Element(element.tag, dict(element.attrib))
    copy.text = element.text
    copy.extend(_copy(child) for child in element)
    return copy


def _done(message: Done) -> ET.Element:
    root = _element("done", order=message.order)
    root.extend(_element("figure", name=name, value=float(value)) for name, value in message.figures.items())
    return root


def _done_from(element: Any) -> Done:
    return Done(element.attrib["order"],
                {e.attrib["name"]: float(e.attrib["value"]) for e in element.iterfind("figure")})


def _hello_from(element: Any) -> Hello:
    get = element.attrib
    if get["version"] != str(VERSION):
        raise ValueError(f"protocol version {get['version']!r:.20}; this is {VERSION}")
    return Hello(get["id"], get["mac"], bytes.fromhex(get["nonce"]))


def _progress_from(element: Any) -> Progress:
    get = element.attrib
    return Progress(get["order"], get["phase"], int(get["done"]), int(get["total"]), float(get["rate"]))


_ENCODERS: dict[type, Callable[[Any], ET.Element]] = {
    Hello: lambda m: _element("hello", version=VERSION, id=m.id, mac=m.mac, nonce=m.nonce),
    Challenge: lambda m: _element("challenge", salt=m.salt, nonce=m.nonce),
    Proof: lambda m: _element("proof", value=m.value),
    Welcome: lambda m: _element("welcome", proof=m.proof, node=m.node, heartbeat=float(m.heartbeat)),
    Report: _report,
    Order: order_element,
    Progress: lambda m: _element("progress", order=m.order, phase=m.phase, done=m.done, total=m.total,
                                 rate=float(m.rate)),
    Done: _done,
    Failed: lambda m: _element("failed", m.reason[:SENTENCE], order=m.order),
    Heartbeat: lambda m: _element("heartbeat"),
    Ack: lambda m: _element("ack", order=m.order),
    Error: lambda m: _element("error", m.reason[:SENTENCE], code=m.code),
}

_DECODERS: dict[str, Callable[[Any], Message]] = {
    "hello": _hello_from,
    "challenge": lambda e: Challenge(bytes.fromhex(e.attrib["salt"]), bytes.fromhex(e.attrib["nonce"])),
    "proof": lambda e: Proof(bytes.fromhex(e.attrib["value"])),
    "welcome": lambda e: Welcome(bytes.fromhex(e.attrib["proof"]), e.attrib["node"], float(e.attrib["heartbeat"])),
    "report": _report_from,
    "order": order_from,
    "progress": _progress_from,
    "done": _done_from,
    "failed": lambda e: Failed(e.attrib["order"], e.text or ""),
    "heartbeat": lambda e: Heartbeat(),
    "ack": lambda e: Ack(e.attrib["order"]),
    "error": lambda e: Error(e.attrib["code"], e.text or ""),
}
