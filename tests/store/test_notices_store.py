"""Notices and their deliveries in both databases: who is told by what, what is due, claims,
retries, dead targets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Engine, func, select, update

from cod.core import notices as core_notices
from cod.flows.images import templates
from cod.flows.notices import notices as flow
from cod.flows.notices.notices import Delivery
from cod.flows.people import groups as group_flows
from cod.flows.scheduler import vclusters as vcluster_flows
from cod.model import AskedVcluster, Effect, Group, NoticeRules, Page, Refused, Site
from cod.policy.notice_delivery import GIVEN_UP
from cod.store import tables as t
from cod.store import views
from cod.store.engine import Tx
from cod.store.nodes import nodes
from cod.store.notices import notices
from cod.store.people import groups
from tests.contexts import flow_context
from tests.store.manager_world import add_template, in_tx

pytestmark = pytest.mark.slow  # together with its like more than the quick run has time for

NOW = 1_000_000.0
HOOK, OTHER = "https://hooks.example.org/a?s=1", "https://other.example.org/"


def add_group(tx: Tx, name: str = "physics", **columns: Any) -> Group:
    return groups.add(tx, name, NOW, **columns)


def tell(tx: Tx, group: Group | None, now: float = NOW, subject: str = "s") -> int:
    return core_notices.add(
        tx, kind="test", group_id=group and group.id, subject=subject, about="About.", now=now
    ).id


def claim(tx: Tx, now: float = NOW, running: Any = (), server: str = "a") -> list[Delivery]:
    return flow.claim(tx, server, running, now, 60.0)


def states(tx: Tx) -> list[tuple[str, int, bool, bool, str]]:
    """(channel, attempts, is it over, delivered, error) of each delivery, by id."""
    s = t.notice_sends.c
    rows = tx.execute(select(s.channel, s.attempts, s.done_at, s.delivered, s.error).order_by(s.id))
    return [(row[0], row[1], row[2] is not None, row[3], row[4]) for row in rows]


@pytest.fixture
def run(engine: Engine) -> Callable[..., Any]:
    """Runs a flow in a transaction of its own."""
    return lambda step, *args, **kwargs: in_tx(engine, step, *args, **kwargs)


# ---------------------------------------------------------------- who is told


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ({}, []),
        ({"webhook": HOOK}, [("webhook", HOOK)]),
        ({"email": "a@x.org, b@x.org"}, [("email", "a@x.org, b@x.org")]),
        ({"webhook": HOOK, "email": "a@x.org"}, [("webhook", HOOK), ("email", "a@x.org")]),
    ],
)
def test_a_group_is_told_by_each_channel_that_it_has(tx: Tx, columns: Any, expected: Any) -> None:
    group = add_group(tx, **columns)
    view = flow.one(tx, tell(tx, group))
    assert [(send.channel, send.target) for send in view.sends] == expected
    assert (view.group, view.vcluster, view.notice.at) == ("physics", None, NOW)


def test_a_webhook_gets_the_form_that_its_group_has_when_the_notice_is_posted(tx: Tx) -> None:
    group = add_group(tx, webhook=HOOK)
    tell(tx, group)
    groups.change(tx, group.id, webhook_format="slack")
    (delivery,) = claim(tx)
    assert delivery.form == "slack"


def test_the_site_is_told_by_mail(tx: Tx) -> None:
    view = flow.one(tx, tell(tx, None))
    assert (view.group, [(send.channel, send.target) for send in view.sends]) == (
        None,
        [("email", "")],
    )


def test_a_notice_that_is_rolled_back_is_never_sent(run: Callable[..., Any]) -> None:
    group = run(add_group, webhook=HOOK)

    def step(tx: Tx) -> None:
        tell(tx, group)
        raise RuntimeError

    with pytest.raises(RuntimeError):
        run(step)
    assert run(claim) == []
    assert run(lambda tx: tx.scalar(select(func.count()).select_from(t.notices))) == 0


def test_notices_are_listed(tx: Tx, site: Site) -> None:
    groups.ensure(tx, "site", NOW)
    add_template(tx)
    vcluster_flows.create(
        tx,
        flow_context(site, NOW),
        AskedVcluster(name="web", size=1, template="debian", group="site"),
    )
    web = tx.scalar(select(t.vclusters.c.id))
    before = notices.newest(tx)
    ids = [tell(tx, group) for group in (add_group(tx, "one"), add_group(tx, "two"), None)]
    site_group = groups.by_name(tx, "site")
    assert site_group is not None
    told = core_notices.add(
        tx, kind="ready", group_id=site_group.id, vcluster_id=web, subject="s", about="a", now=NOW
    )
    ids.append(told.id)

    def listed(**kwargs: Any) -> list[int]:
        return [view.notice.id for view in flow.every(tx, **{"above": before, **kwargs})][::-1]

    assert listed() == ids
    assert listed(above=None)[-4:] == ids
    assert listed(group="two") == ids[1:2]
    assert listed(vcluster="web") == ids[3:]
    assert listed(kind="ready") == ids[3:]
    assert listed(kind="ready,test") == ids
    assert listed(above=ids[1]) == ids[2:]
    assert listed(page=Page(2)) == ids[2:], "the newest"
    assert listed(page=Page(2, "id")) == ids[1::-1], "the oldest after an id"
    assert listed(page=Page(q="S")) == ids
    assert listed(page=Page(q="S%")) == []
    assert listed(group="none") == []
    with pytest.raises(Refused, match="no notice 999"):
        flow.one(tx, 999)


# ---------------------------------------------------------------- claims


def test_a_claim_is_one_servers_and_runs_out(run: Callable[..., Any]) -> None:
    run(tell, run(add_group, webhook=HOOK))
    (first,) = run(claim)
    assert (first.send.attempts, first.group, first.to) == (1, "physics", ("webhook", HOOK))
    assert run(claim, NOW + 59, server="b") == []
    (second,) = run(claim, NOW + 61, server="b")
    assert second.send.attempts == 2
    run(flow.succeeded, first, "", NOW + 62)
    assert run(states) == [("webhook", 2, False, False, "")], (
        "the first server's word counts no more"
    )
    assert run(flow.failed, first, "late", False, True, NOW + 62) is not None
    assert run(states) == [("webhook", 2, False, False, "")]
    run(flow.succeeded, second, "", NOW + 63)
    assert run(states) == [("webhook", 2, True, True, "")]
    assert run(claim, NOW + 10_000) == []


def test_one_at_a_time_to_a_target_in_order(run: Callable[..., Any]) -> None:
    group, other = run(add_group, webhook=HOOK), run(add_group, "other", webhook=OTHER)
    first, second = run(tell, group), run(tell, group)
    third = run(tell, other)
    claimed = run(claim)
    assert [each.notice.id for each in claimed] == [first, third]
    assert run(claim, server="b") == [], "neither does another server send to them"
    run(flow.succeeded, claimed[0], "", NOW)
    assert run(claim, running=[("webhook", HOOK)]) == []
    assert [each.notice.id for each in run(claim)] == [second]


def test_a_server_that_comes_back_under_its_name_does_not_answer_for_its_predecessor(
    run: Callable[..., Any],
) -> None:
    run(tell, run(add_group, webhook=HOOK))
    (before,), (after,) = run(claim), run(claim, NOW + 61)
    run(flow.failed, before, "late", True, False, NOW + 62)
    assert run(states) == [("webhook", 2, False, False, "")]
    run(flow.succeeded, after, "", NOW + 63)
    assert run(states) == [("webhook", 2, True, True, "")]


def test_what_falls_due_again_waits_for_what_is_under_way(run: Callable[..., Any]) -> None:
    group = run(add_group, webhook=HOOK)
    first, second = run(tell, group), run(tell, group)
    (refused,) = run(claim)
    run(flow.failed, refused, "400", False, False, NOW)
    (under_way,) = run(claim)
    assert (refused.notice.id, under_way.notice.id) == (first, second)
    assert run(claim, NOW + 3, server="b") == []
    run(flow.succeeded, under_way, "", NOW + 4)
    assert [each.notice.id for each in run(claim, NOW + 4, server="b")] == [first]


def test_a_failure_is_tried_again_later_and_given_up_after_a_day(run: Callable[..., Any]) -> None:
    run(tell, run(add_group, webhook=HOOK))
    now, pauses = NOW, []
    while True:
        (delivery,) = run(claim, now)
        again = run(flow.failed, delivery, "no answer", False, True, now + 1)
        if again is None:
            break
        pauses.append(again - now - 1)
        assert run(claim, again - 0.5) == []
        now = again
    assert pauses[:12] == [2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 3600]
    assert set(pauses[12:]) == {3600}
    assert GIVEN_UP <= now - NOW < GIVEN_UP + 3601
    assert run(states) == [("webhook", len(pauses) + 1, True, False, "no answer")]


def test_what_lasts_is_given_up_at_once(run: Callable[..., Any]) -> None:
    run(tell, run(add_group, email="a@x.org"))
    (delivery,) = run(claim)
    assert run(flow.failed, delivery, "no such user", True, False, NOW) is None
    assert run(states) == [("email", 1, True, False, "no such user")]


def test_a_dead_webhook_rests_as_a_whole_and_keeps_up_nobody_else(run: Callable[..., Any]) -> None:
    dead, good = run(add_group, webhook=HOOK), run(add_group, "good", webhook=OTHER)
    for _ in range(30):
        run(tell, dead)
    (first,) = run(claim)
    run(flow.failed, first, "no answer", False, True, NOW)
    run(tell, good, NOW + 1)
    assert [each.group for each in run(claim, NOW + 1.9)] == ["good"]
    assert [each.send.attempts for each in run(claim, NOW + 2)] == [2], (
        "the oldest is tried again first"
    )


def test_one_bad_notice_does_not_hold_up_the_rest(run: Callable[..., Any]) -> None:
    group = run(add_group, webhook=HOOK)
    run(tell, group)
    second = run(tell, group)
    (first,) = run(claim)
    run(flow.failed, first, "400", False, False, NOW)
    assert [each.notice.id for each in run(claim, NOW)] == [second]


def test_a_mail_server_that_is_away_rests_for_all_groups(run: Callable[..., Any]) -> None:
    run(tell, run(add_group, email="a@x.org", webhook=HOOK))
    run(tell, run(add_group, "other", email="b@x.org"))
    claimed = {each.to: each for each in run(claim)}
    run(flow.failed, claimed["email", "a@x.org"], "away", False, True, NOW)
    run(tell, run(add_group, "third", email="c@x.org"), NOW + 3)
    assert [each.to for each in run(claim, NOW + 3)] == [("email", "a@x.org"), ("email", "c@x.org")]
    assert run(states)[2][1:3] == (1, False), "what was under way meanwhile is nobody else's"


def test_after_a_day_all_that_old_is_given_up_together(run: Callable[..., Any]) -> None:
    group = run(add_group, webhook=HOOK)
    for _ in range(5):
        run(tell, group)
    late = NOW + GIVEN_UP + 1
    young = run(tell, group, late - 10)
    (first,) = run(claim, late)
    assert run(flow.failed, first, "no answer", False, True, late) is None
    assert [state[2:] for state in run(states)] == [(True, False, "no answer")] * 5 + [
        (False, False, "")
    ]
    assert [each.notice.id for each in run(claim, late)] == [young]


def test_a_flow_that_is_run_twice_does_no_harm(run: Callable[..., Any]) -> None:
    """The pool runs a flow again when it does not know whether it was committed."""
    run(tell, run(add_group, webhook=HOOK))
    (delivery,) = run(claim)
    for _ in range(2):
        run(flow.succeeded, delivery, "", NOW)
    assert run(states) == [("webhook", 1, True, True, "")]


# ---------------------------------------------------------------- a group's settings


def change(tx: Tx, name: str = "physics", now: float = NOW, **changes: Any) -> Group:
    result = group_flows.change(tx, name, changes, now=now)
    assert Effect("wake", "notices") in result.effects
    changed: Group = result.value
    return changed


def test_a_group_is_changed_and_what_is_left_out_stays(tx: Tx) -> None:
    add_group(tx, priority=5, default_lease=60.0)
    changed = change(tx, max_lease=600.0, email="a@x.org,b@x.org", webhook=HOOK)
    assert (changed.priority, changed.default_lease, changed.max_lease) == (5, 60.0, 600.0)
    assert (changed.email, changed.webhook) == ("a@x.org, b@x.org", HOOK)
    changed = change(tx, priority=-1, default_lease=None, email="")
    assert (changed.priority, changed.default_lease, changed.max_lease, changed.email) == (
        -1,
        None,
        600.0,
        "",
    )
    assert group_flows.one(tx, "physics") == changed


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"default_lease": 601.0}, "default_lease"),
        ({"max_lease": 30.0}, "default_lease"),
        ({"email": "nonsense"}, "email"),
        ({"webhook": "http://127.0.0.1/"}, "webhook"),
        ({"webhook": "x"}, "webhook"),
    ],
)
def test_what_cannot_be_is_refused_and_nothing_stored(tx: Tx, changes: Any, field: str) -> None:
    group = add_group(tx, default_lease=60.0, max_lease=600.0)
    with pytest.raises(Refused) as caught:
        change(tx, **changes, priority=9)
    assert (caught.value.code, caught.value.field) == ("invalid", field)
    assert groups.get(tx, group.id) == group
    with pytest.raises(Refused):
        group_flows.create(
            tx, "other", **{"default_lease": 60.0, "max_lease": 600.0, **changes}, now=NOW
        )
    assert groups.by_name(tx, "other") is None


def test_a_local_webhook_where_the_site_allows_it(tx: Tx) -> None:
    made = group_flows.create(
        tx, "g", webhook="http://127.0.0.1:9/", rules=NoticeRules(local_webhooks=True), now=NOW
    )
    assert made.webhook == "http://127.0.0.1:9/"


def test_what_waits_goes_where_the_group_says_now(run: Callable[..., Any]) -> None:
    group = run(add_group, webhook=HOOK, email="a@x.org")
    for _ in range(2):
        run(tell, group)
    run(tell, run(add_group, "other", webhook=HOOK))
    for delivery in run(claim):
        run(flow.failed, delivery, "away", False, True, NOW)
    run(change, webhook=OTHER, email="")
    assert [each.to for each in run(claim)] == [("webhook", OTHER)], (
        "at once, where it has not failed yet"
    )
    assert [state[2:] for state in run(states) if state[0] == "email"] == [
        (True, False, "the group has no email now")
    ] * 2
    assert [each.group for each in run(claim, NOW + 10)] == ["other"], "the other group's stays"


def test_a_group_that_owns_nothing_is_removed_with_what_it_was_told(tx: Tx) -> None:
    keep = add_group(tx, "keep", webhook=HOOK)
    tell(tx, add_group(tx, webhook=HOOK, email="a@x.org"))
    kept = tell(tx, keep)
    group_flows.delete(tx, "physics")
    assert groups.by_name(tx, "physics") is None
    assert [view.notice.id for view in flow.every(tx)] == [kept]
    with pytest.raises(Refused, match="no group 'physics'"):
        group_flows.delete(tx, "physics")
    newest = tell(tx, add_group(tx, webhook=HOOK))
    group_flows.delete(tx, "physics")
    assert tell(tx, keep) > newest, "no id is given twice"


def test_a_group_that_owns_something_stays(tx: Tx, site: Site) -> None:
    group = add_group(tx)
    groups.ensure(tx, "site", NOW)
    tx.execute(
        update(t.config_templates)
        .where(t.config_templates.c.id == add_template(tx))
        .values(group_id=group.id)
    )
    vcluster_flows.create(
        tx,
        flow_context(site, NOW),
        AskedVcluster(name="web", size=1, template="debian", group="physics"),
    )
    with pytest.raises(Refused, match="owns 1 vclusters, 1 templates"):
        group_flows.delete(tx, "physics")
    with pytest.raises(Refused, match="own group stays"):
        group_flows.delete(tx, "site")
    vcluster_flows.delete(tx, flow_context(site, NOW, "test"), name="web")
    with pytest.raises(
        Refused,
        match="owns 1 templates: end its vclusters and series, delete its images and volumes and retire",
    ):
        group_flows.delete(tx, "physics")
    templates.retire(tx, name="debian", now=NOW)
    ended = views.vclusters(tx, name="web", ended=True)[0].vcluster.id
    group_flows.delete(tx, "physics")
    left = views.vclusters(tx, name="web", ended=True)[0]
    assert (left.vcluster.id, left.group) == (ended, "site"), "its history stays, the site's"
    shared = tx.scalar(select(func.count()).where(t.config_templates.c.group_id.is_(None)))
    assert shared == 0, "a retired template of the group is not everybody's to see"


def test_a_test_notice(tx: Tx) -> None:
    add_group(tx, webhook=HOOK)
    add_group(tx, "deaf")
    result = flow.test(tx, "physics", "user:ann", NOW)
    assert result.effects == (Effect("wake", "notices"),)
    assert (result.value.notice.kind, len(result.value.sends)) == ("test", 1)
    assert "user:ann" in result.value.notice.about
    with pytest.raises(Refused, match="neither e-mail addresses nor a webhook"):
        flow.test(tx, "deaf", "user:ann", NOW)
    with pytest.raises(Refused, match="no group 'nobody'"):
        flow.test(tx, "nobody", "user:ann", NOW)


# ---------------------------------------------------------------- for followers


def test_a_follower_that_comes_back_misses_no_notice(tx: Tx) -> None:
    group = add_group(tx)
    assert notices.newest(tx) == notices.newest_before(tx, 1) == 0
    ids = []
    for n in range(4):
        nodes.add(
            tx,
            name=f"n{n}",
            boot_mac=f"52:54:00:00:00:0{n}",
            now=NOW + n,
            cause="seen",
            actor="test",
        )
        ids.append(tell(tx, group, NOW + n))
    transitions = list(tx.scalars(select(t.node_history.c.id).order_by(t.node_history.c.id)))
    assert notices.newest(tx) == ids[3]
    assert notices.newest_before(tx, transitions[0]) == 0
    assert notices.newest_before(tx, transitions[2]) == ids[1]
    assert notices.newest_before(tx, transitions[3] + 1) == ids[3]
