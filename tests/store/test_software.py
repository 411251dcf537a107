"""Images and templates in the database: who is taken in next, what may be deleted, how revisions
are found."""

from __future__ import annotations

from functools import partial

import pytest
from sqlalchemy import insert

from cod.flows.images import images, templates
from cod.model import Image, Ingested, Refused, Template
from cod.states import VclusterState
from cod.store import claims
from cod.store import tables as t
from cod.store.engine import Tx
from cod.store.images import images as rows

MADE = Ingested("qcow2", "disk", 5 << 30, 1 << 30, 300 << 20, "ab" * 32, "cd" * 32)
DOCUMENT = '<template name="web"><image target="disk" name="debian"/></template>'


def asked(tx: Tx, name: str = "debian", now: float = 100.0, **more: object) -> Image:
    view = images.add(tx, name=name, source=f"/in/{name}", now=now, **more).value
    image = rows.get(tx, view.id)
    assert image is not None
    return image


def ready(tx: Tx, name: str = "debian") -> Image:
    image = asked(tx, name)
    images.finish(tx, image_id=image.id, ingested=MADE)
    return images.show(tx, name=name)


def template_row(tx: Tx, document: str = DOCUMENT, now: float = 200.0) -> Template:
    return templates.add(tx, document=document, now=now)


def holder(tx: Tx, template: Template, state: str = VclusterState.ACTIVE) -> None:
    group = tx.execute(insert(t.groups).values(name="g", created_at=0.0)).inserted_primary_key
    assert group
    tx.execute(
        insert(t.vclusters).values(
            name="v",
            live_name="v",
            group_id=group[0],
            state=state,
            template_id=template.id,
            size=1,
            creation_size=1,
            lease_time=1.0,
            created_at=0.0,
        )
    )


# ---------------------------------------------------------------- images


def test_an_image_s_life(tx: Tx) -> None:
    image = asked(tx, sha256="12" * 32)
    assert (image.state, image.source, image.sha256) == ("ingesting", "/in/debian", "12" * 32)
    assert images.next_waiting(tx) == image
    images.finish(tx, image_id=image.id, ingested=MADE)
    images.finish(tx, image_id=image.id, ingested=MADE)  # the commit's outcome was unknown
    done = images.show(tx, name="debian")
    assert (done.state, done.source, done.digest, done.used) == (
        "ready",
        "",
        MADE.digest,
        MADE.used,
    )
    assert images.next_waiting(tx) is None
    assert [one.name for one in images.every(tx)] == ["debian"]


def test_only_an_image_that_is_being_taken_in_comes_to_an_end(tx: Tx) -> None:
    done = ready(tx)
    images.fail(tx, image_id=rows.every(tx)[0].id, reason="of a server that was slow")
    assert images.show(tx, name="debian") == done
    failed = asked(tx, "other")
    images.fail(tx, image_id=failed.id, reason="no")
    images.finish(tx, image_id=failed.id, ingested=MADE)
    assert images.show(tx, name="other").state == "failed"


def test_only_the_server_that_has_the_claim_says_what_came_of_an_image(tx: Tx) -> None:
    image = asked(tx)
    late = claims.hold(tx, "ingest", "a", 0.0, 30.0)
    assert late is not None
    claim = claims.hold(tx, "ingest", "b", 60.0, 30.0, over=late)
    assert claim is not None
    for act in (
        partial(images.finish, ingested=MADE),
        partial(images.fail, reason="no space left"),
    ):
        with pytest.raises(claims.Lost):
            act(tx, image_id=image.id, claim=late)
    assert images.next_waiting(tx) == image
    images.finish(tx, image_id=image.id, ingested=MADE, claim=claim)
    assert images.show(tx, name="debian").state == "ready"


def test_images_are_taken_in_one_after_the_other(tx: Tx) -> None:
    second, first = asked(tx, "second", now=2.0), asked(tx, "first", now=1.0)
    assert images.next_waiting(tx) == first
    images.fail(tx, image_id=first.id, reason="the qcow2 file is encrypted")
    assert images.next_waiting(tx) == second
    assert images.show(tx, name="first").reason == "the qcow2 file is encrypted"


def test_names_are_unique_but_a_failed_image_is_replaced(tx: Tx) -> None:
    image = asked(tx)
    with pytest.raises(Refused, match="there is an image 'debian' already"):
        asked(tx)
    images.fail(tx, image_id=image.id, reason="no")
    again = asked(tx, plain=True)
    assert again.id != image.id or again.reason == ""
    assert (again.state, again.content) == ("ingesting", "file")


@pytest.mark.parametrize("name", ["", "A", "a b", "a/b", "../a", "-a", "a@1", "ä", "a" * 64])
def test_bad_names(tx: Tx, name: str) -> None:
    with pytest.raises(Refused, match="is no name for") as refused:
        asked(tx, name)
    assert refused.value.field == "name"


def test_an_image_that_a_template_names_is_not_deleted(tx: Tx) -> None:
    ready(tx)
    template_row(tx)
    with pytest.raises(Refused, match="the image 'debian' is used by web@1"):
        images.delete(tx, name="debian")
    templates.retire(tx, name="web", now=300.0)
    images.delete(tx, name="debian")
    with pytest.raises(Refused, match="there is no image"):
        images.delete(tx, name="debian")


def test_folders_are_removed_when_the_last_image_with_their_digest_is_gone(tx: Tx) -> None:
    ready(tx), ready(tx, "same")
    present = frozenset({MADE.digest, "ef" * 32})
    assert images.unneeded(tx, present=present) == {"ef" * 32}
    images.delete(tx, name="debian")
    assert images.unneeded(tx, present=present) == {"ef" * 32}
    images.delete(tx, name="same")
    assert images.unneeded(tx, present=present) == present


def test_finishing_a_deleted_image_does_no_harm(tx: Tx) -> None:
    image = asked(tx)
    images.delete(tx, name="debian")
    images.finish(tx, image_id=image.id, ingested=MADE)
    assert images.every(tx) == []


# ---------------------------------------------------------------- templates


def test_revisions(tx: Tx) -> None:
    ready(tx)
    first = template_row(tx)
    assert (first.name, first.revision) == ("web", 1)
    assert template_row(tx) == first  # nothing changed
    second = template_row(tx, DOCUMENT.replace("<image", "<description>two</description><image"))
    assert second.revision == 2
    assert templates.resolve(tx, name="web") == second
    assert templates.resolve(tx, name="web@1") == first
    assert template_row(tx).revision == 3  # back to the first document: a new revision
    assert [row.revision for row in templates.every(tx)] == [3]
    assert [row.revision for row in templates.every(tx, name="web")] == [1, 2, 3]


@pytest.mark.parametrize("name", ["web@4", "web@x", "web@", "nothing", "web@99999999999999999999"])
def test_templates_that_are_not_there(tx: Tx, name: str) -> None:
    ready(tx)
    template_row(tx)
    with pytest.raises(Refused, match="there is no template"):
        templates.resolve(tx, name=name)


def test_a_template_needs_its_images(tx: Tx) -> None:
    with pytest.raises(Refused, match="there is no image 'debian'"):
        template_row(tx)
    image = asked(tx)
    with pytest.raises(Refused, match="is ingesting"):
        template_row(tx)
    images.finish(tx, image_id=image.id, ingested=MADE)
    templates.check(tx, configuration=templates.read(DOCUMENT))
    assert templates.every(tx) == []
    template_row(tx)


def test_a_template_of_another_group_is_not_changed(tx: Tx) -> None:
    ready(tx)
    group = tx.execute(insert(t.groups).values(name="g", created_at=0.0)).inserted_primary_key
    assert group
    template_row(tx)
    # nor learnt of by repeating what it says
    own = templates.add(tx, document=DOCUMENT, group="g", now=1.0)
    assert (own.name, own.revision) == ("g/web", 1)
    assert [row.name for row in templates.every(tx, name="web")] == ["web"]


def test_retiring(tx: Tx) -> None:
    ready(tx)
    template_row(tx)
    template_row(tx, DOCUMENT + "\n")
    assert [row.revision for row in templates.retire(tx, name="web@2", now=300.0)] == [2]
    assert templates.resolve(tx, name="web").revision == 1
    assert templates.resolve(tx, name="web@2").retired_at == 300.0
    assert [row.revision for row in templates.retire(tx, name="web", now=301.0)] == [1]
    with pytest.raises(Refused, match="there is no template 'web'"):
        templates.resolve(tx, name="web")
    with pytest.raises(Refused, match="to retire"):
        templates.retire(tx, name="web", now=302.0)
    assert template_row(tx).revision == 3


@pytest.mark.parametrize(
    "state", [VclusterState.PENDING, VclusterState.ACTIVE, VclusterState.ENDED]
)
def test_a_template_in_use_is_not_retired(tx: Tx, state: str) -> None:
    ready(tx)
    holder(tx, template_row(tx), state)
    if state == VclusterState.ENDED:
        templates.retire(tx, name="web", now=300.0)
        return
    with pytest.raises(Refused, match="web@1 is in use"):
        templates.retire(tx, name="web", now=300.0)
