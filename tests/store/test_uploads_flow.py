"""Uploads in the database: who may begin one, how it grows, that it becomes an image whole or not
at all."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Engine, text

from cod.flows.images import images, templates, uploads
from cod.flows.people import groups
from cod.model import Effect, Image, ImageRules, Ingested, Refused, Upload
from cod.store.engine import Tx
from cod.store.images import images as rows
from tests.store.busy_site import killed_at
from tests.waiting import until

pytestmark = pytest.mark.slow  # together with its like more than the quick run has time for

RULES = ImageRules(quota=None, keep_uploads=1000.0)
NOW = 100.0
SHA = "ab" * 32
MADE = Ingested("raw", "disk", 900, 500, 300, SHA, "cd" * 32)
DOCUMENT = '<template name="web"><image target="disk" name="debian"/></template>'


def begun(tx: Tx, name: str = "debian", number: int = 1, **more: Any) -> Upload:
    asked = dict(group="", size=1000, actor="user:ann", rules=RULES, now=NOW) | more
    return uploads.create(tx, upload_id=f"{number:032x}", name=name, **asked)


def completed(tx: Tx, upload: Upload, sha256: str = SHA) -> Any:
    return uploads.complete(
        tx,
        upload_id=upload.id,
        name=upload.name,
        source=f"/in/{upload.id}",
        sha256=sha256,
        format="raw",
        size=1000,
        now=NOW,
    )


def refusal(call: Callable[..., Any], *args: Any, **kwargs: Any) -> Refused:
    with pytest.raises(Refused) as caught:
        call(*args, **kwargs)
    return caught.value


# ---------------------------------------------------------------- creation


def test_an_upload_is_promised(tx: Tx) -> None:
    upload = begun(tx, sha256=SHA, plain=True)
    assert upload == Upload(
        f"{1:032x}", "debian", None, 1000, 0, "", SHA, True, False, "user:ann", NOW, 1100.0, "site"
    )
    assert begun(tx) == upload  # the first commit's outcome was unknown
    assert uploads.every(tx) == [upload]
    assert images.every(tx) == []


@pytest.mark.parametrize("name", ["", "A", "../a", "a/b", ".", "..", "a\0", "a" * 64, "-", "ä"])
def test_names_are_checked(tx: Tx, name: str) -> None:
    assert refusal(begun, tx, name).field == "name"


def test_an_empty_file_is_refused(tx: Tx) -> None:
    assert refusal(begun, tx, size=0).field == "size"
    assert refusal(begun, tx, size=-5).field == "size"


def test_a_name_belongs_to_who_asks_first(tx: Tx) -> None:
    begun(tx)
    groups.create(tx, "physics", now=NOW)
    assert (
        refusal(begun, tx, number=2).sentence
        == f"an upload of 'debian' is under way already: go on with {1:032x}, or delete it"
    )
    assert begun(tx, number=3, group="physics").name == "physics/debian"
    assert refusal(images.add, tx, name="debian", source="/x", now=NOW).code == "conflict"
    images.add(tx, name="fedora", source="/x", now=NOW)
    assert refusal(begun, tx, "fedora", 2).sentence == "there is an image 'fedora' already"


def test_a_failed_image_gives_way_to_its_owner_only(tx: Tx) -> None:
    groups.create(tx, "physics", now=NOW)
    image = images.add(tx, name="debian", source="/x", now=NOW).value
    images.fail(tx, image_id=image.id, reason="no")
    completed(tx, begun(tx, group="physics"))
    assert images.show(tx, name="debian").state == "failed"
    upload = begun(tx, number=2)
    assert images.show(tx, name="debian").state == "failed"
    completed(tx, upload)
    assert images.show(tx, name="debian").state == "ingesting"


def test_there_must_be_such_a_group(tx: Tx) -> None:
    assert refusal(begun, tx, group="chemistry").field == "group"
    groups.create(tx, "physics", now=NOW)
    assert begun(tx, group="physics").group == "physics"


# ---------------------------------------------------------------- quotas


def test_a_quota_counts_images_and_open_uploads(tx: Tx) -> None:
    groups.create(tx, "physics", image_quota=2000, now=NOW)
    groups.create(tx, "chemistry", image_quota=0, now=NOW)
    assert refusal(begun, tx, group="chemistry", size=1).code == "quota"
    first = begun(tx, "one", 1, group="physics", size=1200)
    assert (
        "may have 2000 bytes and have 1200"
        in refusal(begun, tx, "two", 2, group="physics", size=801).sentence
    )
    image = completed(tx, first).value
    # nothing is gained by haste
    assert refusal(begun, tx, "two", 2, group="physics", size=801).code == "quota"
    images.finish(tx, image_id=image.id, ingested=MADE)
    begun(tx, "two", 2, group="physics", size=1700)  # 300 in served form
    assert refusal(begun, tx, "three", 3, group="physics", size=1).code == "quota"
    begun(tx, "site-s", 4, size=10**12)


def test_the_site_s_quota_is_for_groups_without_one(tx: Tx) -> None:
    groups.create(tx, "physics", now=NOW)
    tight = ImageRules(quota=500)
    assert refusal(begun, tx, group="physics", size=501, rules=tight).code == "quota"
    groups.change(tx, "physics", {"image_quota": 600}, now=NOW)
    begun(tx, group="physics", size=501, rules=tight)


@pytest.mark.mariadb
def test_of_two_uploads_at_once_one_gets_the_last_of_a_quota(mariadb_engine: Engine) -> None:
    """The second waits at the group's row until the first has committed, and then sees it."""
    with mariadb_engine.begin() as tx:
        groups.create(tx, "quota-race", image_quota=1500, now=NOW)
    outcome: list[object] = []

    def second() -> None:
        with mariadb_engine.begin() as tx:
            try:
                outcome.append(begun(tx, "race-two", 72, group="quota-race"))
            except Refused as no:
                outcome.append(no.code)

    with mariadb_engine.begin() as tx:
        first = begun(tx, "race-one", 71, group="quota-race")
        thread = threading.Thread(target=second)
        thread.start()
        until(lambda: waiting(mariadb_engine), "the second waits for a lock", every=APART)
    thread.join(60)
    assert outcome == ["quota"]
    with mariadb_engine.begin() as tx:
        image = completed(tx, first).value  # and the whole way works there, too
        assert [one.name for one in images.every(tx) if one.group == "quota-race"] == [
            "quota-race/race-one"
        ]
        assert uploads.files(tx) >= {image.source}
        images.delete(tx, name="quota-race/race-one")
        groups.delete(tx, "quota-race")


# seconds between two looks: InnoDB shows those who look again within 0.1 s the same as before
APART = 0.25


def waiting(engine: Engine) -> bool:
    """Return whether a transaction waits for a lock."""
    with engine.connect() as connection:
        return bool(
            connection.scalar(
                text(
                    "SELECT COUNT(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK"
                    " WAIT'"
                )
            )
        )


def test_what_failed_or_is_gone_does_not_count(tx: Tx) -> None:
    groups.create(tx, "physics", image_quota=1000, now=NOW)
    image = completed(tx, begun(tx, group="physics")).value
    images.fail(tx, image_id=image.id, reason="no")
    upload = begun(tx, "other", 2, group="physics")
    uploads.drop(tx, upload_id=upload.id)
    begun(tx, "other", 3, group="physics")


# ---------------------------------------------------------------- growing


def begin(tx: Tx, upload_id: str, **how: Any) -> Upload:
    """Begin a piece of the upload as it is now."""
    return uploads.begin(tx, seen=uploads.one(tx, upload_id, now=NOW), **how)


def test_an_upload_grows_and_lives_longer(tx: Tx) -> None:
    upload = begun(tx)
    assert begin(tx, upload.id, length=0, boot="A", now=NOW).offset == 0
    grown = uploads.grown(tx, upload_id=upload.id, offset=400, rules=RULES, now=900.0)
    assert (grown.offset, grown.expires_at) == (400, 1900.0)
    assert uploads.one(tx, upload.id, now=1899.0) == grown
    assert refusal(uploads.one, tx, upload.id, now=1900.0).code == "not_found"
    assert (
        refusal(uploads.grown, tx, upload_id=upload.id, offset=500, rules=RULES, now=1900.0).code
        == "not_found"
    )


@pytest.mark.parametrize(
    ("boot", "length", "offset"),
    [("A", 700, 700), ("B", 700, 400), ("A", 300, 300), ("B", 300, 300), ("A", 5000, 1000)],
)
def test_after_a_crash_the_row_is_mended_from_the_file(
    tx: Tx, boot: str, length: int, offset: int
) -> None:
    upload = begun(tx)
    begin(tx, upload.id, length=0, boot="A", now=NOW)
    uploads.grown(tx, upload_id=upload.id, offset=400, rules=RULES, now=NOW)
    mended = begin(tx, upload.id, length=length, boot=boot, now=NOW)
    assert (mended.offset, mended.boot) == (offset, boot)
    assert uploads.one(tx, upload.id, now=NOW) == mended


def test_a_piece_that_is_begun_again_believes_no_more_of_the_file(tx: Tx) -> None:
    """The first commit was done, and its answer lost: the row has this host's boot now."""
    upload = begun(tx)
    begin(tx, upload.id, length=0, boot="A", now=NOW)
    seen = uploads.grown(tx, upload_id=upload.id, offset=400, rules=RULES, now=NOW)
    for _ in range(2):
        begun_again = uploads.begin(tx, seen=seen, length=700, boot="B", now=NOW)
        assert begun_again.offset == 400


def test_a_piece_with_a_checksum_is_believed_when_it_was_compared(tx: Tx) -> None:
    upload = begun(tx)
    begin(tx, upload.id, length=0, boot="A", checked=True, now=NOW)
    # killed with 300 bytes in the file
    assert begin(tx, upload.id, length=300, boot="A", now=NOW).offset == 0
    # without a checksum again, killed at 300, then with one: those 300 are believed
    assert begin(tx, upload.id, length=300, boot="A", checked=True, now=NOW).offset == 300


# ---------------------------------------------------------------- the end


def test_a_complete_upload_becomes_an_image_of_its_group(tx: Tx) -> None:
    groups.create(tx, "physics", now=NOW)
    upload = begun(tx, group="physics", plain=True)
    result = completed(tx, upload)
    image = result.value
    assert isinstance(image, Image)
    assert (image.state, image.source, image.sha256, image.content) == (
        "ingesting",
        f"/in/{upload.id}",
        SHA,
        "file",
    )
    assert (image.group_id, image.size, image.format) == (upload.group_id, 1000, "raw")
    assert result.effects == (Effect("wake", "images"),)
    assert uploads.every(tx) == []
    assert images.next_waiting(tx) == image
    assert completed(tx, upload).value == image  # the first commit's outcome was unknown
    images.finish(tx, image_id=image.id, ingested=MADE)
    assert completed(tx, upload).value.id == image.id
    images.delete(tx, name="physics/debian")
    assert refusal(completed, tx, upload).code == "not_found"


def test_a_file_with_another_sha256_becomes_nothing(tx: Tx) -> None:
    upload = begun(tx, sha256="12" * 32)
    assert refusal(completed, tx, upload).field == "sha256"
    assert uploads.every(tx) == [upload]
    completed(tx, upload, "12" * 32)


def test_another_image_of_the_name_is_not_replaced(tx: Tx) -> None:
    upload = begun(tx)
    # two servers at the same moment
    rows.add(tx, name="debian", state="ready", format="raw", created_at=NOW)
    with pytest.raises(Refused, match="there is an image"), tx.begin_nested():
        completed(tx, upload)
    assert uploads.every(tx) == [upload]


def test_giving_up(tx: Tx) -> None:
    first, second = begun(tx, "one", 1), begun(tx, "two", 2, now=NOW + 500)
    assert uploads.sweep(tx, now=1099.0) == []
    assert uploads.sweep(tx, now=1100.0) == [first]
    assert uploads.every(tx) == [second]
    uploads.drop(tx, upload_id=second.id)
    assert refusal(uploads.drop, tx, upload_id=second.id).code == "not_found"
    begun(tx, "one", 3)


def test_the_files_that_are_needed(tx: Tx) -> None:
    upload, other = begun(tx), begun(tx, "other", 2)
    image = completed(tx, other).value
    images.add(tx, name="local", source="/srv/x", now=NOW)
    assert uploads.files(tx) == {upload.id, f"/in/{other.id}", "/srv/x"}
    images.finish(tx, image_id=image.id, ingested=MADE)
    assert uploads.files(tx) == {upload.id, "/srv/x"}


def test_lists_show_what_one_may_see(tx: Tx) -> None:
    physics, chemistry = (
        groups.create(tx, "physics", now=NOW),
        groups.create(tx, "chemistry", now=NOW),
    )
    for number, group in enumerate(["", "physics", "chemistry"]):
        begun(tx, f"i{number}", number, group=group)
    seen = lambda only: [upload.group for upload in uploads.every(tx, only)]  # noqa: E731
    assert seen(None) == ["chemistry", "site", "physics"]
    assert seen(frozenset({physics.id})) == ["physics"]
    assert seen(frozenset({physics.id, chemistry.id})) == ["chemistry", "physics"]
    assert seen(frozenset()) == []


def test_images_say_whose_they_are_and_who_uses_them(tx: Tx) -> None:
    physics = groups.create(tx, "physics", now=NOW)
    image = completed(tx, begun(tx)).value
    images.finish(tx, image_id=image.id, ingested=MADE)
    templates.add(tx, document=DOCUMENT, now=NOW)
    templates.add(tx, document=DOCUMENT + "\n", now=NOW)
    templates.add(tx, document=DOCUMENT.replace('"web"', '"own"'), group="physics", now=NOW)
    (shown,) = images.every(tx)
    assert (shown.group, shown.used_by) == ("site", ("physics/own@1", "web@1", "web@2"))
    assert images.show(tx, name="debian") == shown
    assert images.show(tx, name="debian", groups=frozenset()).used_by == ("web@1", "web@2")
    assert images.every(tx, frozenset({physics.id}))[0].used_by == shown.used_by
    assert "physics/own@1, web@1, web@2" in refusal(images.delete, tx, name="debian").sentence


# ---------------------------------------------------------------- killed at any statement


def state(engine: Engine) -> Any:
    with engine.begin() as tx:
        return uploads.every(tx), rows.every(tx)


def test_a_flow_killed_between_any_two_statements_has_done_nothing(engine: Engine) -> None:
    with engine.begin() as tx:
        groups.create(tx, "physics", image_quota=10_000, now=NOW)
        failed = images.add(tx, name="debian", group="physics", source="/x", now=NOW).value
        images.fail(tx, image_id=failed.id, reason="no")
        rows.change(tx, failed.id, format="raw")
    upload_id = f"{1:032x}"
    asked = dict(
        upload_id=upload_id,
        name="debian",
        group="physics",
        size=1000,
        actor="a",
        rules=RULES,
        now=NOW,
    )
    with engine.connect() as tx:
        seen = uploads.create(tx, **asked)
    steps: list[tuple[Any, dict[str, Any]]] = [
        (uploads.create, asked),
        (uploads.begin, dict(seen=seen, length=0, boot="A", now=NOW)),
        (uploads.grown, dict(upload_id=upload_id, offset=1000, rules=RULES, now=NOW)),
        (
            uploads.complete,
            dict(
                upload_id=upload_id,
                name="physics/debian",
                source="/in/1",
                sha256=SHA,
                format="raw",
                size=1000,
                now=NOW,
            ),
        ),
    ]
    for step, arguments in steps:
        before, statement = state(engine), 0
        while killed_at(engine, step, statement, **arguments):
            assert state(engine) == before
            statement += 1
        after = state(engine)
        assert after != before
        assert statement > 1
        with engine.begin() as tx:
            step(tx, **arguments)  # the commit's outcome was unknown: run again
        assert state(engine) == after


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.tuples(
            st.sampled_from("ABC"),
            st.sampled_from(["create", "grow", "finish", "fail", "drop"]),
            st.integers(1, 600),
        ),
        max_size=14,
    )
)
def test_no_sequence_exceeds_a_quota(engine: Engine, acts: list[tuple[str, str, int]]) -> None:
    """Bytes of open uploads and of images, as they are counted: never more than the quota, whatever
    is done."""
    connection = engine.connect()
    outer = connection.begin()
    groups.create(connection, "g", image_quota=1000, now=NOW)
    for number, (name, act, size) in enumerate(acts):
        try:
            with connection.begin_nested():
                _do(connection, number, name.lower(), act, size)
        except Refused:
            pass
        total = sum(upload.size for upload in uploads.every(connection))
        assert total + sum(image.stored for image in images.every(connection)) <= 1000
    outer.rollback()
    connection.close()


def _do(tx: Tx, number: int, name: str, act: str, size: int) -> None:
    here = next((upload for upload in uploads.every(tx) if upload.name == f"g/{name}"), None)
    if act == "create":
        begun(tx, name, number, group="g", size=size)
    elif act == "grow" and here:
        uploads.grown(tx, upload_id=here.id, offset=size, rules=RULES, now=NOW)
    elif act == "finish" and here:
        completed(tx, here)
    elif act == "drop" and here:
        uploads.drop(tx, upload_id=here.id)
    elif act == "fail" and (image := rows.named(tx, [f"g/{name}"]).get(f"g/{name}")):
        images.fail(tx, image_id=image.id, reason="no")
