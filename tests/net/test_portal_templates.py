"""The portal's pages about templates: the form, the XML, and from one to the other."""

# ruff: noqa: F401, F811 (fixtures)

from __future__ import annotations

import pytest
from sqlalchemy import update

from cod.store import tables as t
from cod.store.images import templates
from cod.web.portal import templateform
from cod.web.portal.forms import Fields
from tests.net.apiserver import Served
from tests.net.ownersite import browse, engine, furnished_sqlite, there
from tests.net.portalclient import signed_in

pytestmark = pytest.mark.slow

NEW, XML, FORM = "/templates/new", "/templates", "/templates/form"


def document(served: Served, name: str) -> str:
    return str(served.tx(templates.find, name).document)


def test_the_list_and_a_page(there: Served) -> None:
    browser = browse(there)
    page = browser.get("/templates")
    assert "execution-host" in page.words
    assert "web-server" not in page.words
    assert browser.get("/templates/web/web-server").status == 404
    one = browser.get("/templates/physics/execution-host")
    assert "A Grid Engine execution host that joins by name." in one.words
    assert '<image target="disk" name="execd"/>' in one.words
    assert "batch active revision 1, 9 nodes" in one.words


def test_it_begins_with_the_image_that_one_comes_from(there: Served) -> None:
    assert (
        dict(browse(there).get(NEW, image="physics/execd").fields(FORM))["image"] == "physics/execd"
    )
    assert dict(browse(there, name="olga").get(NEW, image="web/nginx").fields(FORM))["image"] == ""


def test_a_template_by_the_form(there: Served) -> None:
    page = browse(there).get(NEW)
    done = page.send(
        FORM,
        name="mine",
        description="For <all> of us",
        image="execd",
        memory="128 GiB",
        port="80",
        page="/ok",
        seed="true",
        cache="true",
    )
    assert "physics/mine is saved as revision 1." in done.words, done.words
    made = document(there, "physics/mine")
    for part in (
        '<template name="mine" cache="yes">',
        "<description>For &lt;all&gt; of us</description>",
        '<mib min="128 GiB"/>',
        '<image target="disk" name="execd" />',
        '<ready port="80" path="/ok" />',
        '<personalise seed="nocloud" />',
    ):
        assert part in made


@pytest.mark.parametrize(
    ("typed", "element"),
    [
        ({"by": "time", "seconds": "90"}, '<ready by="time" seconds="90" />'),
        ({"by": "none"}, '<ready by="none" />'),
        ({"by": "port", "port": "22"}, '<ready by="port" port="22" />'),
        ({"port": "80"}, '<ready port="80" />'),
    ],
)
def test_what_makes_nodes_active_by_the_form(
    there: Served, typed: dict[str, str], element: str
) -> None:
    done = browse(there).get(NEW).send(FORM, name="mine", image="execd", **typed)
    assert "physics/mine is saved as revision 1." in done.words, done.words
    assert element in document(there, "physics/mine")
    again = dict(browse(there).get(NEW, like="physics/mine").fields(FORM))
    assert {name: again[name] for name in typed} == typed


def kind_of_image(there: Served, name: str, **columns: str) -> None:
    there.tx(lambda tx: tx.execute(update(t.images).where(t.images.c.name == name).values(columns)))


@pytest.mark.parametrize(
    ("content", "chosen"),
    [
        ("disk", {"image": "debian-12", "mode": "disk", "seed": "true"}),
        ("partition", {"image": "", "p0.image": "debian-12", "mode": "disk", "seed": None}),
        ("file", {"image": "", "kernel": "debian-12", "mode": "diskless", "seed": None}),
    ],
)
def test_a_template_with_an_image_takes_that_image(
    there: Served, content: str, chosen: dict[str, str]
) -> None:
    """Take the image that was chosen: of a partition's image the form silently took the first whole
    disk."""
    kind_of_image(there, "debian-12", content=content)
    fields = dict(browse(there).get(NEW, image="debian-12").fields(FORM))
    assert {name: fields.get(name) for name in chosen} == chosen


def test_an_image_that_cannot_be_used_is_named_and_replaced_by_none(there: Served) -> None:
    kind_of_image(there, "debian-12", state="failed", reason="it is damaged")
    browser = browse(there)
    for name, words in (
        ("debian-12", "The image debian-12 cannot be used: it is failed (it is damaged)."),
        ("none", "There is no image none for you."),
    ):
        page = browser.get(NEW, image=name)
        assert words in page.words
        fields = dict(page.fields(FORM))
        assert (fields["image"], fields["p0.image"], fields["kernel"]) == ("", "", "")


def test_cloud_init_is_on_by_default_and_left_out_without_a_disk(there: Served) -> None:
    page = browse(there).get(NEW)
    assert dict(page.fields(FORM))["seed"] == "true"
    xml = page.browser.post("/templates/as-xml", page.filled(FORM, name="mine", image="execd"))
    assert '<personalise seed="nocloud" />' in dict(xml.fields(XML))["document"]
    bare = page.browser.post(
        "/templates/as-xml", page.filled(FORM, name="mine", mode="diskless", kernel="k")
    )
    assert "personalise" not in dict(bare.fields(XML))["document"]


def test_a_time_without_seconds_is_told(there: Served) -> None:
    page = browse(there).get(NEW).send(FORM, name="mine", image="execd", by="time")
    assert page.status == 422
    assert {each.get("name") for each in page.tree.xpath("//*[@aria-invalid]")} == {"seconds"}


def test_what_is_wrong_with_the_form_is_told_and_what_was_typed_stays(there: Served) -> None:
    page = browse(there).get(NEW).send(FORM, name="Mine!", image="execd", description="kept")
    assert page.status == 422
    assert dict(page.fields(FORM))["description"] == "kept"
    assert page.tree.xpath("//p[@class='wrong']")


@pytest.mark.parametrize(
    ("typed", "wrong"),
    [
        ({"name": "", "image": ""}, {"name", "image"}),
        ({"name": "mine", "image": "", "mode": "diskless"}, {"kernel"}),
    ],
)
def test_what_is_not_filled_in_is_told_at_its_field(
    there: Served, typed: dict[str, str], wrong: set[str]
) -> None:
    """And not as a line of a document that nobody has seen."""
    page = browse(there).get(NEW).send(FORM, **typed)
    assert page.status == 422
    assert {each.get("name") for each in page.tree.xpath("//*[@aria-invalid]")} == wrong
    assert "line " not in " ".join(page.tree.xpath("//*[@role='alert']//text()"))


def test_a_change_is_a_new_revision_and_shows_what_differs(there: Served) -> None:
    browser = browse(there)
    page = browser.get(NEW, like="physics/execution-host")
    assert dict(page.fields(FORM))["image"] == "execd"
    done = page.send(FORM, description="Another sentence.")
    assert "physics/execution-host is saved as revision 2." in done.words
    added = [each.text for each in done.tree.xpath("//span[@class='plus']")]
    assert any("Another sentence." in line for line in added)
    assert "revision 1" in browser.get("/templates/physics/execution-host@1").words


def test_from_the_form_to_xml_and_back_nothing_is_stored(there: Served) -> None:
    page = browse(there).get(NEW)
    xml = page.browser.post(
        "/templates/as-xml", page.filled(FORM, name="mine", image="execd", userdata="#x\n  y")
    )
    assert xml.status == 200
    fields = dict(xml.fields(XML))
    assert '<template name="mine">' in fields["document"]
    back = xml.browser.post("/templates/as-form", xml.filled(XML))
    assert dict(back.fields(FORM))["userdata"].strip() == "#x\n  y"
    assert there.tx(templates.find, "physics/mine") is None
    assert "secret" not in dict(back.fields(FORM)), "an unmarked box is not sent"
    marked = xml.filled(
        XML, document=fields["document"].replace("<user-data>", '<user-data secret="yes">')
    )
    again = xml.browser.post(
        "/templates/as-xml", xml.browser.post("/templates/as-form", marked).filled(FORM)
    )
    assert '<user-data secret="yes">#x' in dict(again.fields(XML))["document"]
    more = xml.filled(XML, document='<template name="mine"><installer kind="copy"/></template>')
    refused = xml.browser.post("/templates/as-form", more)
    assert "uses elements that the form does not show" in refused.words


def test_the_xml_is_checked_with_its_lines(there: Served) -> None:
    page = browse(there).get(NEW, view="xml")
    wrong = (
        '<template name="mine">\n  <image target="disk" name="execd"/>\n  <nonsense/>\n</template>'
    )
    looked = page.browser.post("/templates/check?part=faults", page.filled(XML, document=wrong))
    assert looked.status == 200
    assert "Line 3" in looked.text
    assert "&lt;nonsense/&gt;" in looked.text
    whole = page.browser.post("/templates/check", page.filled(XML, document=wrong))
    assert dict(whole.fields(XML))["document"].strip() == wrong
    refused = whole.send(XML)
    assert refused.status == 422
    assert "line 3" in refused.words
    right = refused.browser.post(
        "/templates/check?part=faults",
        refused.filled(XML, document=wrong.replace("  <nonsense/>\n", "")),
    )
    assert "The template is valid." in right.text
    assert there.tx(templates.find, "physics/mine") is None


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        (
            '<image target="disk" name="execd" size="8Gib"/>',
            'Line 3: size="8Gib" of <image> should be like',
        ),
        (
            '<image target="disk" name="execd"/><boot mode="tape"/>',
            'Line 3: mode="tape" of <boot> should be one of disk',
        ),
        ('<image target="disk" name="gone"/>', "Line 3: there is no image 'gone'"),
    ],
)
def test_an_invalid_value_is_quoted_with_its_line(there: Served, line: str, sentence: str) -> None:
    page = browse(there).get(NEW, view="xml")
    document = f'<template name="mine">\n  <description>x</description>\n  {line}\n</template>'
    looked = page.browser.post("/templates/check?part=faults", page.filled(XML, document=document))
    assert sentence in looked.words


def test_the_form_is_checked_and_shows_what_it_writes(there: Served) -> None:
    page = browse(there).get(NEW)
    part = page.browser.post(
        "/templates/form/check?part=faults", page.filled(FORM, name="mine", image="nginx")
    )
    assert "nginx" in part.text
    assert "What is wrong" in part.text
    assert 'formaction="/templates/form/check"' in part.text


def test_an_image_of_another_group_is_none(there: Served) -> None:
    page = browse(there).get(NEW, view="xml")
    refused = page.send(
        XML, document='<template name="t"><image target="disk" name="nginx"/></template>'
    )
    assert refused.status == 404
    assert "nginx" in refused.words


def test_retiring_is_refused_while_it_is_used(there: Served) -> None:
    page = browse(there).get("/templates/physics/execution-host")
    refused = page.send("/templates/physics/execution-host/retire")
    assert refused.status == 409
    browser = browse(there, name="olga")
    browser.get(NEW).send(FORM, name="mine", image="execd")
    mine = browser.get("/templates/physics/mine")
    assert "physics/mine is retired" in mine.send("/templates/physics/mine/retire").words


def test_who_looks_writes_none_and_the_sites_are_the_administrators(there: Served) -> None:
    assert "You may not write templates" in browse(there, "viewer").get(NEW).words
    page = browse(there).get(NEW)
    assert page.send(FORM, name="mine", image="debian-12", group="").status == 403
    assert (
        not browse(there, name="olga")
        .get("/templates/debian")
        .tree.xpath("//form[contains(@action, 'retire')]")
    )
    assert "Retire" in signed_in(there).get("/templates/debian").words


# ---------------------------------------------------------------- form <-> document

PARTED = """<template name="t" verify="yes">
  <disk select="smallest"/>
  <layout table="mbr"><partition number="1" type="linux" size="8GiB" name="root"/>
    <partition number="2" type="swap"/></layout>
  <image target="1" name="root-image"/>
</template>"""
DISKLESS = """<template name="live"><boot mode="diskless"><kernel image="k"/><ramdisk image="r"/>
<cmdline>console=ttyS0</cmdline></boot></template>"""


@pytest.mark.parametrize(
    "text", [PARTED, DISKLESS, '<template name="a"><image target="disk" name="b"/></template>']
)
def test_what_the_form_can_say_goes_through_it_unchanged(text: str) -> None:
    fields = templateform.fields_of(text)
    assert fields is not None
    again = templateform.fields_of(templateform.document(fields))
    assert again == fields


@pytest.mark.parametrize(
    "text",
    [
        "no XML",
        (
            '<template name="a"><image target="disk" url="http://a/b" size="1" sha256=""'
            ' compression="raw"/></template>'
        ),
        (
            '<template name="a"><image target="disk"'
            ' name="b"><when><memory/></when></image></template>'
        ),
        (
            '<template name="a"><boot mode="diskless"><kernel image="k"/><ramdisk'
            ' image="r"/><ramdisk image="s"/></boot></template>'
        ),
    ],
)
def test_what_it_cannot_say_is_left_to_the_xml(text: str) -> None:
    assert templateform.fields_of(text) is None


def test_requirements_that_are_no_xml_stay_for_the_server_to_refuse() -> None:
    made = templateform.document(
        Fields({"name": ["a"], "image": ["b"], "xml": ["<requires><memory>"]})
    )
    assert "<requires><memory>\n" in made
