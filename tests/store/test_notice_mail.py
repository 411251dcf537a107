"""Notices by mail as people chose: at once, daily in one mail, never; in both databases."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Engine, select

from cod import notice_texts
from cod.choices import NoticeMail
from cod.core import notices as core_notices
from cod.flows.notices import mail_choices as flow
from cod.flows.notices import notices as notice_flows
from cod.model import Refused, Role, User, Who
from cod.policy.notice_delivery import DAY, SETTLED
from cod.store import pruning
from cod.store import tables as t
from cod.store.engine import Tx
from cod.store.notices import notices
from cod.store.people import groups, people
from tests.store.manager_world import in_tx

pytestmark = pytest.mark.slow  # together with its like more than the quick run has time for

MORNING = 100 * DAY + 6 * 3600.0
NOW = MORNING - 3600.0
AT_ONCE, DAILY, NEVER = NoticeMail.AT_ONCE, NoticeMail.DAILY, NoticeMail.NEVER


@pytest.fixture
def run(engine: Engine) -> Callable[..., Any]:
    """Runs a flow in a transaction of its own."""
    return lambda step, *args, **more: in_tx(engine, step, *args, **more)


def person(tx: Tx, name: str, group: str = "physics", role: Role = Role.MEMBER) -> User:
    made = people.add(tx, name, NOW, email=f"{name}@x.org")
    people.set_role(tx, groups.ensure(tx, group, NOW).id, made.id, role)
    return made


def who(tx: Tx, user: User) -> Who:
    found = people.get(tx, user.id)
    assert found
    return Who(f"user:{user.name}", found.admin, user_id=user.id, roles=people.roles(tx, user.id))


def choose(tx: Tx, user: User, now: float = NOW, /, **kinds: NoticeMail) -> None:
    chosen = {kind.replace("_", "-"): mail for kind, mail in kinds.items()}
    flow.choose(tx, who=who(tx, user), chosen=chosen, now=now)


def tell(tx: Tx, kind: str, group: str | None = "physics", now: float = NOW) -> int:
    group_id = groups.ensure(tx, group, NOW).id if group else None
    told: Any = {"kind": kind, "subject": f"{kind} happened", "about": "About it."}
    return core_notices.add(tx, **told, group_id=group_id, now=now).id


def mails(tx: Tx) -> list[tuple[str, str]]:
    """(kind, target) of each mail, by id."""
    s, n = t.notice_sends.c, t.notices.c
    query = select(n.kind, s.target).join_from(t.notice_sends, t.notices, s.notice_id == n.id)
    return [(kind, target) for kind, target in tx.execute(query.order_by(s.id))]


def digests(tx: Tx, now: float) -> int:
    if not flow.digests_due(tx, 6, now):
        return 0
    return flow.send_digests(tx, 6, now)


def test_mail_goes_to_the_groups_addresses_until_somebody_chooses(tx: Tx) -> None:
    groups.add(tx, "physics", NOW, email="ann@x.org, ops@x.org")
    ann, bob = person(tx, "ann", role=Role.OWNER), person(tx, "bob")
    tell(tx, "ready")
    choose(tx, ann, ready=NEVER)
    choose(tx, bob, ready=AT_ONCE)
    tell(tx, "ready")
    tell(tx, "node-lost")
    both = "ann@x.org, ops@x.org"
    assert mails(tx) == [
        ("ready", both),
        ("ready", "ops@x.org"),
        ("ready", "bob@x.org"),
        ("node-lost", both),
    ]
    choose(tx, ann, ready=NoticeMail.DEFAULT)
    tell(tx, "ready")
    assert ("ready", both) in mails(tx)[4:]


def test_a_member_cannot_silence_an_address_of_the_group(tx: Tx) -> None:
    groups.add(tx, "physics", NOW, email="ops@x.org")
    eve = person(tx, "eve")
    people.change(tx, eve.id, email="OPS@x.org")  # as anybody can say of themselves
    for mail in (NEVER, DAILY):
        choose(tx, eve, ready=mail)
        tell(tx, "ready")
    assert mails(tx) == [("ready", "ops@x.org")] * 2
    choose(tx, eve, ready=AT_ONCE)
    tell(tx, "ready")
    assert mails(tx)[2:] == [("ready", "OPS@x.org")]  # once, not twice


def test_who_has_left_the_group_or_may_not_sign_in_gets_no_mail(tx: Tx) -> None:
    ann, bob = person(tx, "ann"), person(tx, "bob")
    for each in (ann, bob):
        choose(tx, each, ready=AT_ONCE, node_lost=DAILY)
    tell(tx, "node-lost")
    people.set_role(tx, groups.named(tx, "physics").id, ann.id, None)
    people.change(tx, bob.id, disabled_at=NOW)
    tell(tx, "ready")
    assert digests(tx, MORNING + SETTLED) == 0
    assert mails(tx) == []
    assert not flow.digests_due(tx, 6, MORNING + SETTLED), "nothing waits for ever"


def test_a_daily_mail_comes_once_a_day_and_outlives_a_crash(run: Callable[..., Any]) -> None:
    ann = run(person, "ann")
    run(choose, ann, ready=DAILY, node_lost=DAILY)
    run(tell, "ready", now=NOW)
    run(tell, "node-lost", now=NOW + 1)
    run(tell, "ready", now=MORNING + 1)
    assert run(digests, MORNING + SETTLED - 1) == 0

    def dies(tx: Tx) -> None:
        assert digests(tx, MORNING + SETTLED) == 1
        raise RuntimeError

    with pytest.raises(RuntimeError):
        run(dies)
    assert run(mails) == []
    assert run(digests, MORNING + SETTLED) == 1
    assert run(digests, MORNING + SETTLED) == 0
    assert run(mails) == [("digest", "ann@x.org")]
    (delivery,) = run(lambda tx: notice_flows.claim(tx, "a", (), MORNING + SETTLED, 60.0))
    text = delivery.notice.about
    assert (delivery.notice.subject, delivery.whom) == ("2 notices", "you, as your account says")
    assert text.index("group physics: ready happened\nAbout it.") < text.index("node-lost happened")
    assert run(digests, MORNING + DAY + SETTLED) == 1
    assert len(run(mails)) == 2


def test_a_clock_that_was_ahead_holds_up_no_daily_mail(tx: Tx) -> None:
    ann, bob = person(tx, "ann"), person(tx, "bob")
    choose(tx, ann, ready=DAILY)
    tell(tx, "ready", now=NOW + 1000 * DAY)
    choose(tx, ann, ready=NoticeMail.DEFAULT)
    choose(tx, bob, ready=DAILY)
    tell(tx, "ready", now=NOW)
    assert digests(tx, MORNING + SETTLED) == 2
    assert mails(tx) == [("digest", "ann@x.org"), ("digest", "bob@x.org")]
    assert not flow.digests_due(tx, 6, MORNING + DAY + SETTLED)


def test_a_daily_mail_is_shown_to_nobody_else(tx: Tx) -> None:
    ann = person(tx, "ann")
    choose(tx, ann, ready=DAILY)
    tell(tx, "ready")
    digests(tx, MORNING + SETTLED)
    assert [view.notice.kind for view in notice_flows.every(tx)] == ["ready"]
    assert [view.notice.kind for view in notices.every(tx, after=0)] == ["ready"]


def test_a_daily_mail_fits_its_column(tx: Tx) -> None:
    ann = person(tx, "ann")
    choose(tx, ann, ready=DAILY)
    for _ in range(40):
        core_notices.add(
            tx,
            kind="ready",
            group_id=groups.named(tx, "physics").id,
            subject="ü" * 200,
            about="\U0001f4a1" * 2000,
            now=NOW,
        )
    digests(tx, MORNING + SETTLED)
    about = tx.scalar(select(t.notices.c.about).where(t.notices.c.kind == "digest"))
    assert about
    assert "And 35 further notices in the portal." in about
    assert len(about.encode()) < 65_536


def test_administrators_choose_for_the_site_but_not_what_needs_them(tx: Tx) -> None:
    ann = replace(person(tx, "ann"), admin=True)
    people.change(tx, ann.id, admin=True)
    tell(tx, "site-held", None)
    choose(tx, ann, quarantined=NEVER, switch=DAILY, site_held=AT_ONCE)
    for kind in ("quarantined", "switch", "site-held"):
        tell(tx, kind, None, now=NOW + 1)
    for mail in (NEVER, DAILY):
        with pytest.raises(Refused, match="Nothing is granted or erased until an administrator"):
            choose(tx, ann, site_held=mail)
    claimed = []
    while found := notice_flows.claim(tx, "a", (), NOW + 2, 60.0):
        claimed += found
        for each in found:
            notice_flows.succeeded(tx, each, "", NOW + 2)
    left_out = [
        (each.notice.kind, each.send.target, sorted(each.left_out))
        for each in sorted(claimed, key=lambda each: each.send.id)
    ]
    assert left_out == [
        ("site-held", "", []),
        ("quarantined", "", ["ann@x.org"]),
        ("switch", "", ["ann@x.org"]),
        ("site-held", "", []),
        ("site-held", "ann@x.org", []),
    ]
    assert digests(tx, MORNING + SETTLED) == 1


def test_what_was_told_before_goes_by_the_choice_of_before(tx: Tx) -> None:
    ann = person(tx, "ann")
    people.change(tx, ann.id, admin=True)
    tell(tx, "quarantined", None, now=NOW)  # its mail waits: the mail server is away
    choose(tx, ann, NOW + 1, quarantined=DAILY)
    (delivery,) = notice_flows.claim(tx, "a", (), NOW + 2, 60.0)
    assert delivery.left_out == frozenset()


def test_kinds_are_those_that_a_person_is_told(tx: Tx) -> None:
    ann = person(tx, "ann")
    mine = {each.kind for each in flow.mine(tx, who(tx, ann))}
    assert {"ready", "decided", "hardware"} <= mine
    assert not {"site-held", "switch", "test"} & mine
    with pytest.raises(Refused, match="no notices of kind 'switch' for you"):
        choose(tx, ann, switch=DAILY)
    with pytest.raises(Refused, match="only people have an account"):
        flow.mine(tx, Who("token:ci", admin=True))
    people.change(tx, ann.id, email="")
    with pytest.raises(Refused, match="no e-mail address"):
        choose(tx, ann, ready=DAILY)
    assert {name for name, kind in notice_texts.KINDS.items() if kind.stays} == {
        "identity",
        "site-held",
        "directory-held",
        "authority",
    }


def test_notices_that_were_read_or_wait_are_pruned_and_people_removed(tx: Tx) -> None:
    ann, bob = person(tx, "ann"), person(tx, "bob")
    choose(tx, ann, ready=DAILY)
    choose(tx, bob, ready=DAILY)
    old = tell(tx, "ready")
    notices.mark_read(tx, ann.id, [old])
    tell(tx, "ready")
    assert pruning.notices(tx, NOW + 1, 10) == 1
    people.remove(tx, bob.id)
    groups_left = groups.named(tx, "physics").id
    notices.forget(tx, groups_left)
    assert not flow.digests_due(tx, 6, MORNING + SETTLED)
