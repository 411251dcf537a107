"""Rows of the site's servers and of the files that they have, on both databases."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sqlalchemy import Engine

from cod.flows import servers as flows
from cod.flows.images import holders
from cod.model import HostPart
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
    in_transaction(engine, holders.note, server="a", names={one, two})
    in_transaction(engine, holders.note, server="b", names={one})
    in_transaction(engine, holders.note, server="a", names={one, three})
    in_transaction(engine, holders.note, server="a", names={one, three})
    found = in_transaction(engine, servers.holders, [one, two, three, "4" * 64])
    assert found == {one: ["a", "b"], three: ["a"]}
