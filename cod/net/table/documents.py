"""XML documents in questions, checked before a flow sees them."""

from __future__ import annotations

from cod import model
from cod.wire import xmldoc


def checked(document: str, schema: str, field: str) -> str:
    """An XML document from outside, safe and valid against `schema`; '' stays. Raises `Refused` with the line."""
    if document:
        try:
            xmldoc.parse(document.encode(), schema)
        except xmldoc.Refused as fault:
            raise model.Refused("invalid", str(fault), field) from None
    return document
