"""XML from outside, checked for safety before it is used.

The order of the checks makes them safe. First the size is checked, and for documents that people
write also the number of elements and attributes, as far as bytes show it, because validation costs
time for each. Then the bytes are searched for a document type declaration (without it no entities
can be declared). Only then does libxml2 parse the document, with entities, network and `huge_tree`
switched off. Its own limits therefore apply; the important one is that it stops at the 257th
element inside another. A parsed document is validated against `schema/<schema>.rng` (RELAX NG,
OASIS 2001), compiled once for each thread. Every error is a `BadDocument` with a line and a
sentence that a person can act on.

Documents are UTF-8. Other encodings are refused, because the search would not find "<!DOCTYPE" in
UTF-16.
"""

from __future__ import annotations

import functools
import re
from threading import get_ident

from lxml import etree

from cod import data
from cod.wire.errors import PeerError
from cod.wire.xmlfault import MOST, Faults

LIMIT = 4 * 1024 * 1024  # bytes of a document
LONGEST = 600  # characters of a reason
# limits for documents that people write: bytes; tags and attributes
WRITTEN = {"template": (2**18, 4000), "requires": (2**16, 1000)}

_ATTRIBUTE = re.compile(rb"=\s*[\"']")
_ENCODING = re.compile(rb"^\s*<\?xml[^>]*encoding\s*=\s*[\"']([^\"']*)[\"']")


class BadDocument(PeerError):
    """The document is not acceptable: `line` (counted from 1; 0: the whole document) and a readable
    `reason`, which is cut if the document's own names make it too long."""

    def __init__(self, line: int, reason: str) -> None:
        reason = reason if len(reason) <= LONGEST else reason[:LONGEST] + "…"
        super().__init__(f"line {line}: {reason}" if line else reason)
        self.line = line
        self.reason = reason


def parse(document: bytes, schema: str, *, limit: int = LIMIT) -> etree._Element:
    """Return the root element of `document`, valid against `schema/<schema>.rng`. Raises
    `BadDocument`."""
    root = well_formed(document, schema, limit=limit)
    grammar = _grammar(schema, get_ident())
    if not grammar.validate(root):
        # Looking for the fault makes Python objects of elements, 70 MB of them in a hostile
        # document: small ones only.
        if document.count(b"<") <= 2 * MOST and (fault := _faults(schema).first(root)) is not None:
            raise BadDocument(*fault)
        # libxml2 lists the least specific error first; the error is at the last line reached.
        worst = max(grammar.error_log, key=lambda entry: entry.line)
        raise BadDocument(worst.line, worst.message)
    return root


def well_formed(document: bytes, schema: str = "", *, limit: int = LIMIT) -> etree._Element:
    """Return the root element of `document`, safe but not validated. `schema` names its limits.
    Raises `BadDocument`."""
    size, most = WRITTEN.get(schema, (limit, None))
    limit = min(limit, size)
    if len(document) > limit:
        raise BadDocument(0, f"{len(document)} bytes long; at most {limit} are read")
    if b"\0" in document or document[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise BadDocument(0, "not UTF-8 text")
    at = document.find(b"<!DOCTYPE")
    if at >= 0:
        raise BadDocument(
            document.count(b"\n", 0, at) + 1, "a document type declaration is not allowed"
        )
    declared = _ENCODING.match(document)
    if declared and declared[1].lower() not in (b"utf-8", b"utf8", b"us-ascii", b"ascii"):
        raise BadDocument(
            1, f"encoding {declared[1].decode('ascii', 'replace')}: documents are UTF-8"
        )
    if most is not None and (
        document.count(b"<") > most or len(_ATTRIBUTE.findall(document)) > most
    ):
        raise BadDocument(0, f"more than {most} tags or attributes; it is not read")
    parser = etree.XMLParser(
        resolve_entities=False,
        no_network=True,
        load_dtd=False,
        dtd_validation=False,
        huge_tree=False,
        remove_comments=True,
        remove_pis=True,
    )
    try:
        return etree.fromstring(document, parser)
    except etree.XMLSyntaxError as error:
        raise BadDocument(error.lineno or 0, f"not well-formed: {error.msg}") from None
    except ValueError as error:
        raise BadDocument(0, f"not well-formed: {error}") from None


@functools.cache
def _grammar(schema: str, _thread: int) -> etree.RelaxNG:
    """Return a grammar for this thread alone, as a validator keeps the errors that it found
    last."""
    return etree.RelaxNG(etree.parse(str(data.path("schema") / f"{schema}.rng")))


@functools.cache
def _faults(schema: str) -> Faults:
    return Faults(data.path("schema") / f"{schema}.rng")
