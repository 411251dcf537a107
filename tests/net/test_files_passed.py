"""How many files of cod/ a message passes on its way to the database and back: what a reader opens
who follows it.

The goals are 20 for a POST of a request by REST, 15 for a node's first hardware report and 12 for a
repeated one, 12 for a DHCPDISCOVER. The ceilings are what is reached: all goals but that of a first
report (docs/decisions/0082 says what the rest is).
A change that needs another file raises a ceiling, and says why; one that needs a file less lowers
it. What a VCM's request passes is in `test_nmp_server`, what a page does in
`test_portal_vclusters`.
"""

# ruff: noqa: F401, F811 (fixtures)

from __future__ import annotations

import http.client
from collections.abc import Callable
from typing import Any

import pytest

from cod.model import Site
from cod.orders import Order
from cod.store.images import templates
from cod.store.scheduler import vclusters
from cod.web.api.resources import ROUTE_MAP
from cod.web.api.routes import RouteMap
from cod.wire.confd.messages import Ack, Report, Welcome
from tests.net.apiserver import ADMIN, NOW, Served
from tests.net.passed import Threads, files_passed, threads_at_work
from tests.net.test_confd_server import MACS, Timed, World, report, start, timed, world
from tests.net.test_confd_server import site as site
from tests.net.test_dhcp_server import Stand, discover, stand
from tests.waiting import until

TEMPLATE = (
    '<template name="plain"><image target="disk" url="http://10.0.0.9/a" size="1000"'
    f' compression="raw" sha256="{"ab" * 32}"/></template>'
)


def test_a_post_of_a_request_by_rest(
    served: Served,
    site: Site,
    threads_at_work: Threads,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    template = served.tx(
        templates.add,
        name="plain",
        revision=1,
        group_id=None,
        document=TEMPLATE,
        digest="0" * 64,
        created_at=NOW,
    )
    made = served.tx(
        vclusters.add,
        name="web",
        group_id=1,
        template_id=template.id,
        size=1,
        attributes="",
        lease_time=1e6,
        subnet=site.subnets[0],
        now=NOW,
    )
    served.tx(vclusters.change, made, NOW, state="active")
    # the server's first sweep of uploads goes through the same threads; it has ended once the next
    # is scheduled
    until(lambda: served.server._sweep.call)
    looked_up: list[tuple[str, str]] = []
    find = ROUTE_MAP.find
    monkeypatch.setattr(
        RouteMap,
        "find",
        lambda self, *asked: looked_up.append(asked) or find(*asked),
    )
    connection = http.client.HTTPConnection("127.0.0.1", served.server.ports[0], timeout=60)
    with files_passed(*threads_at_work) as found:
        connection.request(
            "POST",
            "/api/v1/vclusters/web/requests",
            b'{"tuples": [{"count": 1}]}',
            {"Authorization": f"Bearer {ADMIN}", "Content-Type": "application/json"},
        )
        answer = connection.getresponse()
        answer.read()
    connection.close()
    assert answer.status == 202
    # once, for all that is done with the request; what shows it is found once in a server's life
    assert [each for each in looked_up if each[0] == "POST"] == [
        ("POST", "/vclusters/web/requests")
    ]
    assert len(found) <= 20, sorted(found)
    assert found.total() < 300, found
    assert not [each for each in found if "upload" in each or "multipart" in each or "form" in each]


def test_a_hardware_report_by_confd(
    world: World, threads_at_work: Threads, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.machine(0)
    agent = world.agent(0)
    agent.next(Welcome)
    # 15 is the goal for the first, which moves the node; the second says the same again, and only
    # its time is noted
    for first, ceiling in ((True, 17), (False, 10)):
        at = NOW if first else NOW + 60
        monkeypatch.setattr(world.server, "clock", lambda at=at: at)
        with files_passed(*threads_at_work) as found:
            agent.say(Report(report(MACS[0])))
            agent.next(Ack)
            if first:
                agent.next(Order)
        assert "flows/agents/report.py" in found
        # an API server of a test before may look at its uploads in the same process
        passed = [each for each in found if not each.startswith("web/")]
        assert len(passed) <= ceiling, sorted(passed)


def test_a_dhcpdiscover(stand: Stand, threads_at_work: Threads) -> None:
    stand.send(discover(1))
    stand.receive()
    with files_passed(*threads_at_work) as found:
        stand.send(discover(1))
        stand.receive()
    assert "flows/boot/dhcp.py" in found
    assert len(found) <= 11, sorted(found)
