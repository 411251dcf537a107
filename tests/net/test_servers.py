"""The site's hosts: each part says that it runs; the list of the command line, and what `cod
doctor` finds."""

from __future__ import annotations

import socket
import threading
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import insert

from cod.core.database.hosts import DatabaseHosts
from cod.doctor.checks import servers as doctor
from cod.doctor.finding import Context
from cod.flows import servers as flows
from cod.model import DatabaseHost, HostPart, Site
from cod.pool import Pool
from cod.service.process import said_of
from cod.store import claims, schema, watermarks
from cod.store import tables as t
from cod.workers.presence import Presence
from tests.conftest import upgrade
from tests.net.apiserver import NOW, Served, as_json, said, serving
from tests.net.portalclient import signed_in

pytestmark = pytest.mark.slow

EDGE = HostPart("a", "edge", ("10.77.0.1",), "0.1", "0042", NOW - 100.0, NOW)
OTHER = replace(EDGE, server="b", part="manager", addresses=("10.77.0.2",))


def test_hosts_are_listed_with_their_parts_and_who_manages(served: Served) -> None:
    for part in (EDGE, replace(EDGE, part="web", seen_at=NOW - 60.0), OTHER):
        served.tx(flows.renew, part=part)
    served.tx(claims.hold, "manager", "b", NOW, 30.0)
    table = said(served, "server", "list").splitlines()
    assert [line.split()[:5] for line in table[1:]] == [
        ["a", "10.77.0.1", "edge", "web", "-"],
        ["b", "10.77.0.2", "manager", "-", "yes"],
    ]
    page = signed_in(served).get("/faults").words
    assert "a 10.77.0.1 edge web 0.1" in page
    assert "manages 10.77.0.2 manager none 0.1" in page
    values = {"id": 1, "host": "db1:3306", "epoch": 1, "beat": 0, "seconds": 6.0}
    served.tx(lambda tx: tx.execute(insert(t.database_lease).values(values)))
    found = as_json(served, "server", "list")
    assert found["database_writer"] == "db1:3306"
    assert found["items"][0] == {
        "name": "a",
        "addresses": ["10.77.0.1"],
        "parts": ["edge"],
        "silent": ["web"],
        "version": "0.1",
        "database_schema": "0042",
        "started": NOW - 100.0,
        "seen": NOW,
        "manages": False,
    }


def test_hosts_of_the_database_are_listed_with_their_lag(
    pool: Pool, reactor: Any, in_reactor: Any, site: Site
) -> None:
    hosts = (
        DatabaseHost("db1:3306", is_writable=True, behind=0.0),
        DatabaseHost("db2:3306", behind=90.0),
        DatabaseHost("db3:3306", cluster_size=2, node_state="Donor", behind=15.0),
        DatabaseHost("db4:3306", reason="it is off"),
    )
    with serving(pool, reactor, in_reactor, site, database=lambda: hosts) as served:
        values = {"id": 1, "host": "db1:3306", "epoch": 1, "beat": 0, "seconds": 6.0}
        served.tx(lambda tx: tx.execute(insert(t.database_lease).values(values)))
        assert said(served, "server", "list").splitlines()[-4:] == [
            "Database host db1:3306: primary, the servers write to it",
            "Database host db2:3306: replica, 1 min 30 s behind the others",
            "Database host db3:3306: galera, Donor, 15 s behind the others",
            "Database host db4:3306 does not answer: it is off",
        ]
        found = as_json(served, "server", "list")["database"]
        assert [each["is_writer"] for each in found] == [True, False, False, False]
        assert found[3] == {
            "name": "db4:3306",
            "role": None,
            "node_state": None,
            "is_writer": False,
            "behind": None,
            "reason": "it is off",
        }
        page = signed_in(served).get("/faults").words
        assert "written to primary 0 s answers" in page
        assert "db2:3306 replica 1 min 30 s answers" in page
        assert "does not answer: it is off" in page


def test_a_single_host_of_the_database_is_its_writer(served: Served) -> None:
    only = DatabaseHost("proxy:3306", is_writable=True, behind=0.0)
    [found] = served.tx(flows.every, now=NOW, database=(only,)).database
    assert (found.is_writer, found.role) == (True, "primary")


def test_a_part_renews_its_row_and_the_dead_are_forgotten_after_a_week(served: Served) -> None:
    served.tx(flows.renew, part=OTHER)
    later = NOW + flows.FORGOTTEN + 1.0
    for at in (NOW, NOW + 15.0, later):
        served.tx(flows.renew, part=replace(EDGE, seen_at=at))
    [host] = served.tx(flows.every, now=later).items
    assert (host.name, host.parts, host.seen_at) == ("a", ("edge",), later)


def test_two_hosts_of_one_name_are_told(
    served: Served, caplog: pytest.LogCaptureFixture, in_reactor: Any
) -> None:
    twin = replace(EDGE, addresses=("10.77.0.2",), started_at=NOW - 50.0)
    assert served.tx(flows.renew, part=EDGE) == ()
    assert served.tx(flows.renew, part=twin) == ()  # it may be the first, started anew elsewhere
    first = Presence(None, served.pool, EDGE, lambda: NOW + 15.0, lambda: pytest.fail("ended"))
    in_reactor(lambda: first._look())
    assert "a host with the addresses 10.77.0.2 runs edge under this host's name, a" in caplog.text


def test_a_part_that_slept_through_an_upgrade_ends(
    served: Served, caplog: pytest.LogCaptureFixture, in_reactor: Any
) -> None:
    ended: list[bool] = []
    part = Presence(None, served.pool, EDGE, lambda: NOW, lambda: ended.append(True))
    for before, oldest, ends in ((None, 42.0, []), (42.0, 43.0, [True])):
        served.tx(watermarks.move, watermarks.OLDEST_SCHEMA, before, oldest)
        in_reactor(lambda: part._look())
        assert ended == ends
    assert "that this program, for 0042, does not work with: install the newer" in caplog.text


def test_a_part_says_where_nodes_reach_its_host(site: Site) -> None:
    here = SimpleNamespace(
        site=SimpleNamespace(current=site), settings=SimpleNamespace(name="a"), clock=lambda: NOW
    )
    part = said_of("web", here)
    assert (part.server, part.part, part.database_schema) == ("a", "web", schema.head())
    assert part.addresses == (site.subnets[0].server,)


def test_the_doctor_compares_this_host_with_the_others(tmp_path: Path, site: Site) -> None:
    from cod.pool import in_transaction
    from cod.store.database import connect

    url = f"sqlite:///{tmp_path}/cod.db"
    settings: Any = SimpleNamespace(database=url, name="a")
    assert list(doctor.findings(Context(site, settings, None, NOW, False))) == []
    assert list(tmp_path.iterdir()) == []  # it makes no database
    engine = connect(url)
    upgrade(engine)
    subnet = replace(site.subnets[0], others=("10.77.0.2",))

    def found(**changes: Any) -> list[tuple[str, str]]:
        current = version("cod"), schema.head()
        ours = replace(OTHER, version=current[0], database_schema=current[1])
        in_transaction(engine, flows.renew, part=replace(ours, **changes))
        context = Context(replace(site, subnets=(subnet,)), settings, None, NOW, False)
        return [(each.state, each.found) for each in doctor.findings(context)]

    assert found() == [("good", "other servers: b")]
    assert found(seen_at=NOW - 3600.0) == [("warning", "b (10.77.0.2) has not been seen for 1 h")]
    assert found(seen_at=NOW + 90.0) == [
        ("warning", "the clock of b is 1 min 30 s ahead of this host's")
    ]
    [(state, words)] = found(version="0.0.1")
    assert (state, words.partition(",")[0]) == (
        "warning",
        f"b runs version 0.0.1 (schema {schema.head()})",
    )
    assert found(addresses=("10.77.0.3",)) == [
        (
            "warning",
            "no server has been seen at 10.77.0.2, which `server` in [[subnet]] of the site file"
            " lists",
        )
    ]
    again = {"server": "a", "part": "web", "addresses": ("10.77.0.1",)}
    found(**again, started_at=NOW - 7200.0)
    restarted = found(**(again | {"part": "edge"}), started_at=NOW - 11.0)[0]
    assert restarted == (
        "warning",
        "edge of a was started 11 s ago, 1 h 59 min after the host's first part",
    )
    assert found(**(again | {"part": "edge"}), started_at=NOW - 3700.0)[0][1].startswith(
        "no server"
    )
    # all were started anew; web has not come to say so, or is not wanted any more
    found(**again, started_at=NOW - 7200.0, seen_at=NOW - 20.0)
    assert found(**(again | {"part": "edge"}), started_at=NOW - 11.0)[0][1].startswith("no server")
    back = found(**(again | {"part": "edge"}), started_at=NOW + 9.0)  # its clock was set back
    assert back[0][1].startswith("no server")
    engine.dispose()


def test_a_host_that_is_no_database_is_one_that_does_not_answer() -> None:
    """The look is repeated by a timer, which an exception would end for good."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        host = f"127.0.0.1:{listening.getsockname()[1]}"

        def greet() -> None:
            with listening.accept()[0] as connection:
                connection.sendall(b"\x01\x00\x00\x00\x0a")  # a greeting that is cut off

        greeting = threading.Thread(target=greet)
        greeting.start()
        [found] = DatabaseHosts({host: f"mysql+pymysql://root@{host}/cod"}).look()
        greeting.join()
    assert (found.name, found.role) == (host, "")
    assert found.reason
