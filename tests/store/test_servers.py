"""Rows of the site's servers and of the files that they have, on both databases."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sqlalchemy import Engine

from cod.flows import servers as flows
from cod.flows.images import holders, images
from cod.model import HostPart, Ingested
from cod.pool import in_transaction
from cod.store import servers

pytestmark = pytest.mark.slow

NOW = 1_000_000.0
A = HostPart("a", "images", ("10.77.0.1", "10.78.0.1"), "0.1", "0043", NOW, NOW, "aa")
B = replace(A, server="b", addresses=("10.77.0.2",), key="bb")


def test_a_part_s_row_is_written_over_and_goes_a_week_after_its_end(engine: Engine) -> None:
    later = replace(A, version="0.2", seen_at=NOW + 15.0, key="cc")
    for part in (A, later, B):
        in_transaction(engine, flows.renew, part=part)
    assert in_transaction(engine, servers.every) == [later, B]
    assert in_transaction(engine, servers.image_servers, NOW + 60.0) == {"a": later}
    last = replace(B, seen_at=NOW + flows.FORGOTTEN + 20.0)
    in_transaction(engine, flows.renew, part=last)
    assert in_transaction(engine, servers.every) == [last]


def test_a_host_s_files_follow_what_it_says(engine: Engine) -> None:
    one, two, three = ("1" * 64, "2" * 64, "upload")
    in_transaction(engine, flows.renew, part=B)
    # a is about to say that it runs
    in_transaction(engine, holders.note, server="a", names={one, two})
    in_transaction(engine, holders.note, server="b", names={one})
    in_transaction(engine, holders.note, server="a", names={one, three})
    in_transaction(engine, holders.note, server="a", names={one, three})
    found = in_transaction(engine, servers.holders, [one, two, three, "4" * 64])
    assert found == {one: ["a", "b"], three: ["a"]}


def test_files_of_a_host_that_was_forgotten_are_so_unless_no_other_has_them(engine: Engine) -> None:
    mine, shared, deleted = ("1" * 64, "2" * 64, "3" * 64)
    in_transaction(engine, flows.renew, part=A)
    for name, digest in (("mine", mine), ("shared", shared)):
        added = in_transaction(engine, images.add, name=name, source=f"/in/{name}", now=NOW).value
        ingested = Ingested("raw", "disk", 1, 1, 1, "", digest)
        in_transaction(engine, images.finish, image_id=added.id, ingested=ingested)
    in_transaction(engine, holders.note, server="a", names={mine, shared, deleted})
    in_transaction(engine, flows.renew, part=B)
    in_transaction(engine, holders.note, server="b", names={shared})
    last = replace(B, seen_at=NOW + flows.FORGOTTEN + 20.0)
    in_transaction(engine, flows.renew, part=last)  # a is forgotten
    in_transaction(engine, holders.note, server="b", names={shared})
    found = in_transaction(engine, servers.holders, [mine, shared, deleted])
    assert found == {mine: ["a"], shared: ["b"]}
    reasons = {one.name: one.reason for one in in_transaction(engine, images.every, now=NOW)}
    assert reasons == {"mine": "Its files are only on a, which does not run.", "shared": ""}


def test_at_the_only_server_of_a_site_no_file_is_elsewhere(engine: Engine) -> None:
    added = in_transaction(engine, images.add, name="old", source="/in/old", now=NOW).value
    ingested = Ingested("raw", "disk", 1, 1, 1, "", "1" * 64)
    in_transaction(engine, images.finish, image_id=added.id, ingested=ingested)
    in_transaction(engine, holders.note, server="its-old-name", names={"1" * 64})
    [lost] = in_transaction(engine, images.every, now=NOW)
    assert lost.reason == "Its files are only on its-old-name, which does not run."
    in_transaction(engine, images.unneeded, present=frozenset({"1" * 64}), alone=True)
    [there] = in_transaction(engine, images.every, now=NOW)
    assert there.reason == ""
