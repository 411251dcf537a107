"""What a group may have under way at once, so that one member ends nothing for others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cod.flows.images import uploads
from cod.flows.scheduler import requests as request_flows
from cod.flows.scheduler import vclusters as flows
from cod.model import AskedNodes, AskedTuple, AskedVcluster, ImageRules, Refused, Site
from cod.store.engine import Tx
from cod.store.people import groups
from cod.store.scheduler import requests
from tests.contexts import flow_context
from tests.store.manager_world import furnish, run_pass


def create(tx: Tx, site: Site, name: str, group: str = "physics", **rest: Any) -> None:
    flows.create(
        tx,
        flow_context(site, 1.0),
        AskedVcluster(name=name, size=1, template="debian", group=group, **rest),
    )


@pytest.fixture
def rationed(tx: Tx, site: Site) -> Site:
    furnish(tx, 1)
    for name in ("physics", "chemistry"):
        groups.ensure(tx, name, 0.0)
    return replace(site, policy=replace(site.policy, pending_requests=3))


def test_requests_that_wait_are_rationed_for_each_group(tx: Tx, rationed: Site) -> None:
    create(tx, rationed, "works")
    run_pass(tx, rationed, 2.0)
    create(tx, rationed, "waits")
    for number in range(2):
        request_flows.submit(
            tx,
            flow_context(rationed, 3.0 + number),
            vcluster="works",
            asked=AskedNodes([AskedTuple(1)]),
        )
    with pytest.raises(Refused, match="group physics has 3 requests that wait, and may have 3"):
        create(tx, rationed, "more")
    with pytest.raises(Refused, match="and may have 3") as refused:
        request_flows.submit(
            tx, flow_context(rationed, 5.0), vcluster="works", asked=AskedNodes([AskedTuple(1)])
        )
    assert refused.value.code == "slow_down"
    create(tx, rationed, "theirs", "chemistry")  # others go on
    for number in range(5):
        create(tx, rationed, f"site{number}", "site")  # and administrators
    flows.delete(tx, flow_context(rationed, 6.0, "user:ann"), name="waits")
    create(tx, rationed, "more")


def test_a_ration_of_0_is_none(tx: Tx, rationed: Site) -> None:
    free = replace(rationed, policy=replace(rationed.policy, pending_requests=0))
    for number in range(5):
        create(tx, free, f"many{number}")
    assert requests.waiting(tx, groups.named(tx, "physics", "group").id) == 5


def test_open_uploads_are_rationed(tx: Tx, rationed: Site) -> None:
    rules = ImageRules(open_uploads=2)

    def upload(number: int, group: str) -> None:
        uploads.create(
            tx,
            upload_id=f"{group}{number}",
            name=f"image{number}",
            group=group,
            size=10,
            actor="user:ann",
            rules=rules,
            now=1.0,
        )

    for number in range(2):
        upload(number, "physics")
    with pytest.raises(Refused, match="group physics has 2 open uploads, and may have 2"):
        upload(2, "physics")
    upload(0, "chemistry")
    for number in range(3):
        upload(number, "site")
