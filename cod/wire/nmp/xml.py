"""NMP: the XML of bodies (`schema/nmp.rng`), converted from and to the records of
`wire/nmp/bodies`.

A record's plain fields are the attributes of its element, under the same names; tuples of records
are child elements; `requires` and `attributes` are documents, embedded. The element of a message's
body is its verb.
"""

from __future__ import annotations

import types
import typing
from dataclasses import fields
from functools import cache
from typing import Any

from lxml import etree

from cod.wire import xmldoc
from cod.wire.nmp.bodies import Body
from cod.wire.nmp.frames import LONGEST_SENT, Fault, Message

LONGEST_SENTENCE = 2000  # as the schema has it; what COD says of the world may be longer
_EMBEDDED = ("requires", "attributes")  # documents; the latter is a hardware report's `node`


def _element(record: Any) -> str:
    """Return the element's name for a record: request-nodes for RequestNodes."""
    return "".join(
        f"-{char.lower()}" if char.isupper() else char for char in record.__name__
    ).lstrip("-")


RECORDS: dict[str, Any] = {_element(record): record for record in typing.get_args(Body)}


def verb(body: Body) -> str:
    """Return the verb of the message that has this body."""
    return _element(type(body))


def write(body: Body) -> bytes:
    """Return the body as bytes."""
    return etree.tostring(_written(body), encoding="utf-8")


def read(message: Message) -> Body:
    """Return the message's body, checked against the schema. Raises `Fault` with the line; the
    connection can go on."""
    record = RECORDS.get(message.verb)
    if record is None:
        raise Fault("unknown-verb", f"there is no verb {message.verb!r}", about=message.id)
    try:
        root = xmldoc.parse(message.body, "nmp", limit=LONGEST_SENT)
    except xmldoc.BadDocument as fault:
        raise Fault("invalid", fault.reason, line=fault.line, about=message.id) from None
    if root.tag != message.verb:
        raise Fault(
            "invalid",
            f"the body of {message.verb!r} is an element of that name, not {root.tag}",
            line=1,
            about=message.id,
        )
    body: Body = _read(record, root)
    return body


# ---------------------------------------------------------------- records <-> elements


@cache
def _shape(record: Any) -> list[tuple[str, Any]]:
    """Return each field of a record with its type; for a tuple of records, the type in a list."""
    hints = typing.get_type_hints(record)
    return [
        (
            field.name,
            (
                [typing.get_args(hints[field.name])[0]]
                if isinstance(hints[field.name], types.GenericAlias)
                else hints[field.name]
            ),
        )
        for field in fields(record)
    ]


def _written(record: Any) -> etree._Element:
    element = etree.Element(_element(type(record)))
    shape: Any = type(record)
    for name, kind in _shape(shape):
        value = getattr(record, name)
        if isinstance(kind, list):
            element.extend(_written(item) for item in value)
        elif name in _EMBEDDED:
            if value:
                element.append(etree.fromstring(value))
        elif kind is bool:
            element.set(name, "yes" if value else "no")
        else:
            element.set(
                name,
                (
                    _words(name, value)
                    if kind is str
                    else f"{value:.6f}"  # the schema takes no exponent
                    if kind is float
                    else str(value)
                ),
            )
    return element


def _words(name: str, text: str) -> str:
    return _clean(text)[:LONGEST_SENTENCE] if name in ("reason", "sentence") else _clean(text)


def _clean(text: str) -> str:
    """Return the text without the control characters that XML forbids."""
    return "".join(char if char >= " " and char not in "\ufffe\uffff" else " " for char in text)


def _read(record: Any, element: etree._Element) -> Any:
    values: dict[str, Any] = {}
    for name, kind in _shape(record):
        if isinstance(kind, list):
            values[name] = tuple(
                _read(kind[0], child) for child in element.findall(_element(kind[0]))
            )
        elif name in _EMBEDDED:
            child = element.find("requires" if name == "requires" else "node")
            values[name] = (
                "" if child is None else etree.tostring(child, encoding="unicode", with_tail=False)
            )
        elif (text := element.get(name)) is not None:
            values[name] = text.strip() == "yes" if kind is bool else kind(text)
    return record(**values)
