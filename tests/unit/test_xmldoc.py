"""XML from outside: what is dangerous is refused quickly, what is wrong is refused with a line."""

from __future__ import annotations

import contextlib
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cod.wire import xmldoc
from cod.wire.xmldoc import BadDocument

ACK = b'<ack order="1.2"/>'
BOMB = (
    b'<!DOCTYPE a [<!ENTITY a "aaaaaaaaaa">'
    + b"".join(
        b'<!ENTITY %c "&%c;&%c;&%c;&%c;">' % (x, x - 1, x - 1, x - 1, x - 1) for x in b"bcdefghijk"
    )
    + b"]><a>&k;</a>"
)
DEEP = 100_000


@pytest.mark.parametrize(
    ("document", "sentence"),
    [
        (BOMB, "document type declaration"),
        (b'\n\n<!DOCTYPE a SYSTEM "http://10.0.0.1/x"><a/>', "line 3: a document type declaration"),
        (b"<a>" * DEEP + b"</a>" * DEEP, "depth"),
        (b"<a>" * DEEP, "depth"),
        (b"<!--" * DEEP, "not well-formed"),
        (b"<a " + b"x" * 100_000, "not well-formed"),
        (b'<a b="' + b"&#65;" * DEEP, "not well-formed"),
        ("<!DOCTYPE a><ack/>".encode("utf-16"), "not UTF-8"),
        (b'<?xml version="1.0" encoding="UTF-16"?><a/>', "encoding UTF-16"),
        (b'<?xml version="1.0" encoding="UTF-7"?>+ADw-!DOCTYPE a+AD4-<a/>', "encoding UTF-7"),
        (b"", "not well-formed"),
        (b"<a/><b/>", "not well-formed"),
        (b"<a>\xff</a>", "not well-formed"),
        (b"<a>&undeclared;</a>", "not well-formed"),
        (b" " * (xmldoc.LIMIT + 1), "bytes long"),
        (b"<ack\n order='1.2'\n other='1'/>", "line"),
        (b"<nothing/>", "line 1"),
    ],
)
def test_refused_at_once(document: bytes, sentence: str) -> None:
    started = time.process_time()
    with pytest.raises(BadDocument, match="(?i)" + sentence):
        xmldoc.parse(document, "confd")
    assert time.process_time() - started < 60  # on any machine; a bomb takes hours


def test_the_line_of_the_trouble_is_told() -> None:
    document = (
        b'<done order="1.2">\n<figure name="a" value="1"/>\n<figure name="a" value="NaN"/>\n</done>'
    )
    with pytest.raises(BadDocument) as refused:
        xmldoc.parse(document, "confd")
    assert refused.value.line == 3


def test_what_is_right_comes_through_without_comments() -> None:
    root = xmldoc.parse(
        b'<?xml version="1.0" encoding="utf-8"?><!-- x --><ack order="1.2"/><?pi?>', "confd"
    )
    assert (root.tag, dict(root.attrib)) == ("ack", {"order": "1.2"})


def test_a_smaller_limit_holds() -> None:
    assert xmldoc.parse(ACK, "confd", limit=len(ACK)).tag == "ack"
    with pytest.raises(BadDocument, match="at most"):
        xmldoc.parse(ACK, "confd", limit=len(ACK) - 1)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_document_or_refused(document: bytes) -> None:
    with contextlib.suppress(BadDocument):
        assert xmldoc.parse(document, "confd").tag


@pytest.mark.parametrize(
    ("document", "line", "reason"),
    [
        (
            (
                '<template name="a">\n<image target="disk" name="a"/>\n<ready'
                ' port="70000"/></template>'
            ),
            3,
            'port="70000" of <ready> should be a whole number from 1 to 65535',
        ),
        (
            '<template name="a"\n cache="perhaps"><image target="disk" name="a"/></template>',
            2,
            'cache="perhaps" of <template> should be one of yes, no',
        ),
        (
            '<template name="a">\n <image target="disk" name="a" cash="1"/></template>',
            2,
            (
                "<image> has no attribute cash; it may have target, sector, name, url, size,"
                " sha256, compression"
            ),
        ),
        ('<template name="a">\n <image/></template>', 2, "<image> lacks the attribute target"),
        (
            '<template name="a">\n <flavour/></template>',
            2,
            "<flavour> is not allowed in <template>; it may have <",
        ),
        ('<template name="a">text</template>', 1, 'the text "text" of <template> is not allowed'),
        ("<templat/>", 1, "<templat> is not what the document should be: <template>"),
        (
            (
                '<template name="a">\n<requires><memory>\n<mib'
                ' min="lots"/></memory></requires></template>'
            ),
            3,
            'min="lots" of <mib> should be like',
        ),
    ],
)
def test_the_value_that_is_wrong_is_quoted_with_its_line(
    document: str, line: int, reason: str
) -> None:
    with pytest.raises(xmldoc.BadDocument) as refused:
        xmldoc.parse(document.encode(), "template")
    assert reason in refused.value.reason
    assert refused.value.line == line


@pytest.mark.slow
def test_the_refusal_of_a_large_document_costs_no_more_than_its_length() -> None:
    def cost(images: int) -> float:
        many = "".join(f'<image target="disk" name="a{n}"/>' for n in range(images))
        root = xmldoc.well_formed(f'<template name="a">{many}<flavour/></template>'.encode())
        began = time.process_time()
        found = xmldoc._faults("template").first(root)
        assert found is not None
        assert found[1].startswith("<flavour> is not allowed in <template>")
        return time.process_time() - began

    # four times as much; the square would be sixteen
    assert min(cost(8_000) for _ in range(3)) < 10 * min(cost(2_000) for _ in range(3))


@pytest.mark.parametrize(
    "document",
    [
        b'<ack order="1.2"><%b/></ack>' % (b"A" * 50_000),
        b'<ack %b="1"/>' % (b"A" * 50_000),
        b"<%b/>" % (b"A" * 50_000),
    ],
)
def test_a_refusal_does_not_repeat_a_name_that_is_as_long_as_the_document(document: bytes) -> None:
    with pytest.raises(BadDocument) as caught:
        xmldoc.parse(document, "confd")
    assert len(str(caught.value)) < 700
