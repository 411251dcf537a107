"""Names of images and templates: nobody takes or learns another group's, and each name means one
thing to its owner."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from sqlalchemy import select

from cod.flows.images import images, templates, uploads
from cod.flows.people import groups
from cod.flows.people.access import RequiredRight, check
from cod.model import ImageRules, Ingested, Refused, Right, Role, Who
from cod.policy.people import names
from cod.store import tables as t
from cod.store.engine import Tx
from cod.store.images import images as image_rows
from cod.store.images import templates as rows
from cod.store.people import groups as group_rows

NOW = 100.0
RULES = ImageRules(quota=None)


@pytest.fixture(autouse=True)
def owners(tx: Tx) -> dict[str, int]:
    return {name: groups.create(tx, name, now=NOW).id for name in ("physics", "chemistry")}


def ready(tx: Tx, name: str, group: str = "", size: int = 900) -> str:
    """An image that can be served; its full name."""
    image = images.add(tx, name=name, source="/x", group=group, now=NOW).value
    images.finish(
        tx,
        image_id=image.id,
        ingested=Ingested("raw", "disk", size, 500, 300, "ab" * 32, "cd" * 32),
    )
    return str(image.name)


def document(name: str = "web", image: str = "debian") -> str:
    return f'<template name="{name}"><image target="disk" name="{image}"/></template>'


def added(tx: Tx, group: str = "", **said: str) -> Any:
    return templates.add(tx, document=document(**said), group=group, now=NOW)


def refusal(call: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[str, str, str]:
    with pytest.raises(Refused) as caught:
        call(*args, **kwargs)
    return caught.value.code, caught.value.field, caught.value.sentence


def meant(tx: Tx, name: str, group: str) -> str | None:
    found = image_rows.resolve(tx, [name], group).get(name)
    return found.name if found else None


# ---------------------------------------------------------------- names are their owner's


def test_each_group_has_its_own_debian_and_so_has_the_site(tx: Tx) -> None:
    made = [ready(tx, "debian", group) for group in ("physics", "", "chemistry")]
    assert made == ["physics/debian", "debian", "chemistry/debian"]
    assert [added(tx, group).name for group in ("physics", "", "chemistry")] == [
        "physics/web",
        "web",
        "chemistry/web",
    ]
    sent = [
        uploads.create(
            tx,
            upload_id=f"{number:032x}",
            name="fedora",
            group=group,
            size=10,
            actor="a",
            rules=RULES,
            now=NOW,
        ).name
        for number, group in enumerate(("physics", "", "chemistry"))
    ]
    assert sent == ["physics/fedora", "fedora", "chemistry/fedora"]


def test_the_full_name_is_the_bare_one_and_another_groups_is_refused_whether_it_is_there_or_not(
    tx: Tx,
) -> None:
    assert ready(tx, "physics/debian", "physics") == "physics/debian"
    assert added(tx, "physics", name="physics/web").name == "physics/web"
    assert added(tx, "physics").revision == 2, (
        "the same template: its document differs in how it says its name"
    )
    for group, whom in (("chemistry", "group chemistry"), ("", "the site")):
        for owner in ("physics", "nobody"):
            add = partial(images.add, tx, source="/x", group=group, now=NOW)
            code, field, sentence = refusal(add, name=f"{owner}/debian")
            assert (code, field) == ("invalid", "name")
            assert sentence.startswith(
                f"'{owner}/debian' is no name for a thing of {whom}: say 'debian'"
            )
            assert refusal(added, tx, group, name=f"{owner}/web")[2].startswith(
                f"'{owner}/web' is no name for"
            )


@pytest.mark.parametrize(
    "name", ["", "a/b/c", "physics/", "/debian", "physics//debian", "physics/A", "PHYSICS/debian"]
)
@pytest.mark.parametrize("group", ["physics", ""])
def test_what_is_no_name_in_full_either(name: str, group: str) -> None:
    with pytest.raises(Refused, match="is no name for"):
        names.full(group, name)


# ---------------------------------------------------------------- what a name means


def test_a_bare_name_is_the_groups_own_image_and_else_the_sites(tx: Tx) -> None:
    ready(tx, "debian")
    assert [meant(tx, "debian", group) for group in ("physics", "chemistry", "")] == ["debian"] * 3
    ready(tx, "debian", "physics")
    assert [meant(tx, "debian", group) for group in ("physics", "chemistry", "")] == [
        "physics/debian",
        "debian",
        "debian",
    ]
    assert meant(tx, "physics/debian", "physics") == "physics/debian"
    assert [meant(tx, "physics/debian", group) for group in ("chemistry", "")] == [None, None]
    ready(tx, "own", "physics")
    assert [meant(tx, "own", group) for group in ("chemistry", "")] == [None, None]


def test_what_is_the_sites_can_be_named_although_the_group_has_its_own(
    tx: Tx, owners: dict[str, int]
) -> None:
    """Answers call it `debian`, which would be the group's own when it is said again."""
    for group in ("", "physics"):
        ready(tx, "debian", group, size=4096 if group else 512)
        added(tx, group)
    assert [meant(tx, "site/debian", group) for group in ("physics", "chemistry", "")] == [
        "debian"
    ] * 3
    assert [
        meant(tx, name, "physics") for name in ("site/none", "site/physics/debian", "/debian")
    ] == [None] * 3
    assert [
        rows.usable(tx, name, owners["physics"]).name for name in ("site/web", "site/web@1", "web")
    ] == ["web", "web", "physics/web"]
    assert refusal(rows.usable, tx, "site/web@2", owners["physics"])[0] == "not_found"
    made = added(tx, "physics", name="plain", image="site/debian")
    assert 'name="site/debian" size="512"' in rows.for_matching(tx, [made.id])[made.id]
    assert "physics/plain@1" in images.show(tx, name="debian").used_by
    templates.retire(tx, name="web", now=NOW)
    assert (
        refusal(images.delete, tx, name="debian")[2]
        == "the image 'debian' is used by physics/plain@1"
    )


def test_what_nodes_of_the_group_site_were_captured_as_is_its_own(tx: Tx) -> None:
    owner = group_rows.ensure(tx, "site", NOW)
    for name in ("site/golden", "golden", "plain"):
        image_rows.add(
            tx,
            name=name,
            group_id=owner.id if "/" in name else None,
            state="ready",
            format="raw",
            content="disk",
            size=9,
            created_at=NOW,
        )
    assert [
        meant(tx, name, "site") for name in ("golden", "site/golden", "plain", "site/plain")
    ] == ["site/golden", "site/golden", "plain", "plain"]
    assert [meant(tx, "site/golden", group) for group in ("physics", "")] == ["golden"] * 2


@pytest.mark.parametrize("fails", [False, True])
def test_an_own_image_that_is_not_ready_leaves_templates_with_the_sites(
    tx: Tx, fails: bool
) -> None:
    ready(tx, "debian", size=4096)
    made = added(tx, "physics")
    image = images.add(tx, name="debian", source="/y", group="physics", now=NOW).value
    if fails:
        images.fail(tx, image_id=image.id, reason="no")
    assert meant(tx, "debian", "physics") == "debian"
    assert 'size="4096"' in rows.for_matching(tx, [made.id])[made.id]


@pytest.mark.parametrize(
    ("content", "size", "why"),
    [
        ("file", 900, "the image 'debian' holds a file, which does not go there"),
        (
            "disk",
            2 << 20,
            "the image 'debian' (2097152 bytes) is larger than its partition (1048576 bytes)",
        ),
    ],
)
def test_an_image_takes_no_name_by_which_templates_could_not_be_installed(
    tx: Tx, content: str, size: int, why: str
) -> None:
    """Else nodes fail on it, one after the other, until they are out of service."""
    ready(tx, "debian")
    layout = '<layout table="gpt"><partition number="1" type="linux" size="1MiB"/></layout>'
    text = f'<template name="web">{layout}<image target="1" name="debian"/></template>'
    for group in ("physics", "chemistry"):
        templates.add(tx, document=text, group=group, now=NOW)
    image = images.add(tx, name="debian", source="/x", group="physics", now=NOW).value
    made = Ingested("raw", content, size, 500, 300, "ab" * 32, "cd" * 32)
    assert refusal(images.finish, tx, image_id=image.id, ingested=made) == (
        "conflict",
        "name",
        f"template physics/web@1 names it, and could not be installed with it: {why}",
    )
    images.fail(tx, image_id=image.id, reason="as refused")
    assert meant(tx, "debian", "physics") == "debian"
    templates.retire(tx, name="physics/web", now=NOW)
    image = images.add(tx, name="debian", source="/x", group="physics", now=NOW).value
    images.finish(tx, image_id=image.id, ingested=made)
    assert meant(tx, "debian", "physics") == "physics/debian"


def test_what_is_known_of_an_image_is_that_of_the_templates_owner(tx: Tx) -> None:
    for size, group in ((1024, ""), (2048, "physics"), (4096, "chemistry")):
        ready(tx, "debian", group, size)
    made = {group: added(tx, group).id for group in ("", "physics", "chemistry")}
    found = rows.for_matching(tx, made.values())
    for size, group in ((1024, ""), (2048, "physics"), (4096, "chemistry")):
        assert f'<known name="debian" size="{size}"' in found[made[group]]


def test_an_image_is_used_by_the_templates_that_mean_it(tx: Tx) -> None:
    for group in ("", "physics"):
        ready(tx, "debian", group)
    for group in ("", "physics", "chemistry"):
        added(tx, group)
    assert images.show(tx, name="debian").used_by == ("chemistry/web@1", "web@1")
    assert images.show(tx, name="physics/debian").used_by == ("physics/web@1",)
    assert (
        refusal(images.delete, tx, name="physics/debian")[2]
        == "the image 'physics/debian' is used by physics/web@1"
    )
    templates.retire(tx, name="physics/web", now=NOW)
    images.delete(tx, name="physics/debian")


def test_templates_name_images_of_their_own_group_and_the_sites_alone(tx: Tx) -> None:
    ready(tx, "secret", "physics")
    for group in ("chemistry", ""):
        for name in ("secret", "physics/secret", "physics/none", "nobody/none", "none"):
            assert refusal(added, tx, group, image=name) == (
                "not_found",
                "image",
                f"there is no image {name!r}",
            )
            read = templates.read(document(image=name))
            assert (
                refusal(templates.check, tx, configuration=read, group=group)[2]
                == f"there is no image {name!r}"
            )
    assert added(tx, "physics", image="physics/secret").name == "physics/web"
    assert added(tx, "physics", name="two", image="secret").name == "physics/two"


def test_a_bare_template_is_the_groups_own_and_else_the_sites(
    tx: Tx, owners: dict[str, int]
) -> None:
    ready(tx, "debian")
    added(tx)
    added(tx, name="plain")
    added(tx, "physics")
    usable = lambda name, group="physics": rows.usable(tx, name, owners[group]).name  # noqa: E731
    assert [usable(name) for name in ("web", "web@1", "physics/web", "physics/web@1", "plain")] == [
        "physics/web"
    ] * 4 + ["plain"]
    assert usable("web", "chemistry") == "web"
    templates.add(tx, document=document() + "\n", now=NOW)
    assert refusal(usable, "web@2")[0] == "not_found", (
        "revisions are those of the one template that is meant"
    )
    told = [
        refusal(usable, name, "chemistry")[2].replace(name, "*")
        for name in ("physics/web", "physics/web@1", "physics/none", "nobody/none", "none")
    ]
    assert set(told) == {told[0]}
    templates.retire(tx, name="physics/web", now=NOW)
    assert usable("web") == "web"


# ---------------------------------------------------------------- nothing is learnt


def test_a_bare_name_is_answered_with_the_full_ones_of_ones_own_groups(
    tx: Tx, owners: dict[str, int]
) -> None:
    ready(tx, "debian", "physics")
    ready(tx, "debian_", "chemistry")
    added(tx, "physics")

    def told(kind: str, key: str, **roles: Role) -> str:
        who = Who("user:m", roles={owners[group]: role for group, role in roles.items()})
        return refusal(check, tx, who, RequiredRight(Right.SEE, kind, key))[2]

    assert (
        told("image", "debian", physics=Role.VIEWER)
        == "there is no image 'debian': is 'physics/debian' meant?"
    )
    assert (
        told("template", "web@1", physics=Role.VIEWER)
        == "there is no template 'web@1': is 'physics/web@1' meant?"
    )
    for key in ("debian", "physics/debian", "none", "nobody/none", "ebian"):
        assert told("image", key, chemistry=Role.OWNER) == f"there is no image {key!r}"
    ready(tx, "plain")
    for key, said in (
        ("site/plain", ": is 'plain' meant?"),
        ("site/debian", ""),
        ("site/none", ""),
    ):
        assert told("image", key, chemistry=Role.OWNER) == f"there is no image {key!r}{said}"
    both = refusal(
        check, tx, Who("user:root", admin=True), RequiredRight(Right.SEE, "image", "debian")
    )[2]
    assert both == "there is no image 'debian': is 'physics/debian' meant?"


# ---------------------------------------------------------------- a group that comes after


def test_a_group_gets_no_templates_of_an_earlier_one_of_its_name(
    tx: Tx, owners: dict[str, int]
) -> None:
    ready(tx, "debian")
    for _time in range(2):
        first = added(tx, "physics")
        assert first.revision == 1
        templates.retire(tx, name="physics/web", now=NOW)
        groups.delete(tx, "physics")
        with pytest.raises(Refused, match="there is no template 'physics/web'"):
            templates.every(tx, name="physics/web")
        groups.create(tx, "physics", now=NOW)
    c = t.config_templates.c
    left = tx.execute(select(c.name, c.group_id).where(c.name.like("site/%")).order_by(c.id)).all()
    site = group_rows.by_name(tx, "site")
    assert site is not None
    assert [tuple(row) for row in left] == [
        ("site/physics.web", site.id),
        ("site/physics.web.2", site.id),
    ]
