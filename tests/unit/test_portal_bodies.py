"""Whatever is sent to the portal's forms, what their bodies are made of is the sender's fault at
worst."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cod.web.http.errors import HttpProblem
from cod.web.portal.forms import Fields
from cod.web.portal.page import Action
from cod.web.portal.registry import ACTIONS
from cod.web.portal.templateform import fields_of

MAKERS = [each for each in ACTIONS if isinstance(each, Action) and each.body is not None]
NAMES = (
    "name",
    "size",
    "lease",
    "default_lease",
    "max_lease",
    "image_quota",
    "priority",
    "group",
    "role",
    "user",
    "document",
    "xml",
    "boxes",
    "tuples",
    "tuples.",
    "tuples.0",
    "tuples.x.count",
    "tuples.-1.count",
    "tuples.0.count",
    "tuples.0.count.0",
    "tuples.1.template",
    "tuples.99999999999.count",
    "p0.size",
    "p9.size",
    "mode",
    "port",
    "seed",
    "image",
    "template",
    "events",
    "cpu",
    "memory",
)
VALUES = (
    "",
    "1",
    "-1",
    "inf",
    "1e999",
    "nan",
    "9" * 5000,
    "x",
    "<requires/>",
    "<a>" * 2000,
    "12 TiB",
    "\x00",
    "0.0.0",
)
FIELDS = st.dictionaries(
    st.sampled_from(NAMES), st.lists(st.sampled_from(VALUES), min_size=1, max_size=2), max_size=6
)


@pytest.mark.parametrize("action", MAKERS, ids=lambda each: each.path)
@settings(max_examples=60, deadline=None)
@given(values=FIELDS)
def test_what_is_sent_makes_a_body_or_is_wrong(
    action: Action, values: dict[str, list[str]]
) -> None:
    assert action.body is not None
    with suppress(HttpProblem):
        action.body(Fields(values))


@pytest.mark.parametrize(
    "text",
    [
        "<a>" * 5000 + "</a>" * 5000,
        '<!DOCTYPE a [<!ENTITY b "bbbbbbbbbb"><!ENTITY c "&b;&b;&b;">]><template name="&c;"/>',
    ],
)
def test_a_document_that_is_not_read_elsewhere_is_not_read_for_the_form(text: str) -> None:
    assert fields_of(text) is None
