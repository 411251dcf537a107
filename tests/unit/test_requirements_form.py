"""Choices of attributes, and the document that they and the XML beside them make."""

from __future__ import annotations

import pytest

from cod.model import NodeType, TypeRules, TypeView
from cod.policy.hardware import equal, match
from cod.web.portal import requirements_form
from cod.web.portal.forms import Fields
from tests.portal_site import HARDWARE, report


def types() -> list[TypeView]:
    reports = [equal.canonical(report(each, 1)) for each in HARDWARE]
    return [
        TypeView(NodeType(number, "a", text, "d", 0.0, 1.0), {}, tuple(equal.facts(text)))
        for number, text in enumerate(reports)
    ]


def document(**typed: str) -> str:
    return requirements_form.document(Fields({name: [text] for name, text in typed.items()}))


def test_choices_are_what_the_site_has_the_least_first() -> None:
    found = {
        each.name: [text for _, text in each.options] for each in requirements_form.choices(types())
    }
    assert found == {
        "memory": ["16 GiB or more", "128 GiB or more", "1024 GiB or more"],
        "cpus": ["8 or more", "32 or more", "96 or more"],
        "clock": ["2.4 GHz or more", "2.6 GHz or more", "2.9 GHz or more"],
        "arch": ["x86_64"],
        "nic": ["1 Gb/s or more", "10 Gb/s or more", "100 Gb/s or more"],
        "disk": ["240 GB or more", "960 GB or more", "3.84 TB or more"],
    }
    assert requirements_form.choices([]) == []


def test_every_choice_can_be_asked_for_alone_and_with_all_others() -> None:
    every = requirements_form.choices(types())
    for each in every:
        for value, _text in each.options:
            match.check(document(**{each.name: value}), TypeRules())
    match.check(document(**{each.name: each.options[-1][0] for each in every}), TypeRules())


@pytest.mark.parametrize(
    ("typed", "made"),
    [
        ("", '<requires><memory><mib min="1 GiB"/></memory></requires>'),
        ("<requires/>", '<requires><memory><mib min="1 GiB"/></memory></requires>'),
        (
            "<requires>\n <nic/>\n</requires>",
            '<requires><memory><mib min="1 GiB"/></memory>\n <nic/>\n</requires>',
        ),
        (
            '<?xml version="1.0"?>\n<requires>\n<nic/></requires>',
            '\n<requires><memory><mib min="1 GiB"/></memory>\n<nic/></requires>',
        ),
        ("<nic/>", '<requires><memory><mib min="1 GiB"/></memory><nic/></requires>'),
    ],
)
def test_the_xml_goes_on_after_the_choices(typed: str, made: str) -> None:
    assert document(memory="1 GiB", xml=typed) == made


def test_without_choices_the_xml_is_as_it_was_typed() -> None:
    assert document(xml="<requires\n") == "<requires\n"
    assert document(xml="  \n") == ""
    assert document(
        memory='">'
    ) == "<requires><memory><mib min='\">'/></memory></requires>".replace(">'", "&gt;'")
