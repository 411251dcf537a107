"""XML documents in questions, checked before a flow sees them."""

from __future__ import annotations

from cod import model
from cod.wire import xmldoc


def checked(document: str, schema: str, field: str) -> str:
    """Return an XML document from outside, safe and valid against `schema`; '' stays. Raises
    `Refused` with the line.

    Requirements are only made safe here: the flows check them by `policy.hardware.requirements`,
    which is stricter than their grammar and names the attribute.
    """
    if document:
        try:
            if schema == "requires":
                xmldoc.well_formed(document.encode(), schema)
            else:
                xmldoc.parse(document.encode(), schema)
        except xmldoc.BadDocument as fault:
            raise model.Refused("invalid", str(fault), field) from None
    return document
