"""Renewing a VCM's certificate in the database, and who is told of a certificate's end."""

from __future__ import annotations

import pytest
from sqlalchemy import Engine, event, select

from cod.flows.scheduler import vclusters
from cod.flows.vcms import certificates, vcms
from cod.model import AskedVcluster, Refused, Site, Vcm
from cod.policy.people.certificates import DAY, NEAR
from cod.store import tables as t
from cod.store.engine import Tx
from tests.contexts import flow_context
from tests.store import manager_world as world

NOW = 1_000_000.0
END = NOW + 100 * DAY
FAR = NOW + 7000 * DAY


def founded(tx: Tx, site: Site, name: str = "pool") -> None:
    vclusters.create(
        tx,
        flow_context(site, NOW),
        AskedVcluster(name=name, size=1, template="debian", group="site"),
    )


@pytest.fixture(autouse=True)
def pool(tx: Tx, site: Site) -> None:
    """The vcluster 'pool', whose VCM has the certificate 'old'."""
    world.furnish(tx, 2)
    founded(tx, site)
    vcms.enrol(tx, vcluster="pool", serial="old", address="", now=NOW, ends_at=END)


def row(tx: Tx) -> Vcm:
    return vcms.show(tx, "pool").vcm


def greet(
    tx: Tx, serial: str, ends_at: float | None = None, address: str = "10.77.9.9"
) -> vcms.Greeted:
    return vcms.greet(
        tx,
        vcluster="pool",
        serial=serial,
        address=address,
        about="test",
        seen=0,
        server="cod1",
        now=NOW,
        ends_at=ends_at,
    )


def renew(tx: Tx, serial: str, ends_at: float = END + 300 * DAY) -> None:
    one = row(tx)
    certificates.renew(
        tx,
        vcluster_id=one.vcluster_id,
        epoch=one.epoch,
        serial=serial,
        ends_at=ends_at,
        address="10.77.9.9",
        now=NOW,
    )


def test_the_old_one_counts_until_the_new_one_is_shown(tx: Tx) -> None:
    renew(tx, "lost")
    greet(tx, "old")
    renew(tx, "new")
    assert (row(tx).serial, row(tx).ends_at, row(tx).next_serial) == ("old", END, "new")
    greet(tx, "old")
    with pytest.raises(Refused, match="replaced or revoked"):
        greet(tx, "lost")  # nobody has it: its answer was lost
    before = row(tx).epoch
    greet(tx, "new")
    vcm = row(tx)
    assert (vcm.serial, vcm.ends_at, vcm.next_serial, vcm.next_ends_at) == (
        "new",
        END + 300 * DAY,
        None,
        None,
    )
    assert vcm.epoch == before + 1, "a connection that was made with the old one ends"
    with pytest.raises(Refused, match="replaced or revoked"):
        greet(tx, "old")
    greet(tx, "new")


def test_one_that_is_refused_for_its_address_takes_no_place(tx: Tx) -> None:
    vcms.enrol(tx, vcluster="pool", serial="old", address="10.77.9.9", now=NOW, ends_at=END)
    renew(tx, "new")
    with pytest.raises(Refused, match=r"not from 10\.77\.0\.66"):
        greet(tx, "new", address="10.77.0.66")
    assert (row(tx).serial, row(tx).next_serial) == ("old", "new")


def test_enrolled_anew_the_successor_is_worth_nothing(tx: Tx) -> None:
    renew(tx, "new")
    vcms.enrol(tx, vcluster="pool", serial="anew", address="", now=NOW, ends_at=END)
    assert (row(tx).serial, row(tx).next_serial, row(tx).next_ends_at) == ("anew", None, None)
    for serial in ("old", "new"):
        with pytest.raises(Refused, match="replaced or revoked"):
            greet(tx, serial)


def test_revoked_there_is_nothing_to_renew(tx: Tx) -> None:
    greeted = greet(tx, "old")
    vcms.revoke(tx, vcluster="pool")
    with pytest.raises(Refused, match="has taken its place") as refused:
        certificates.renew(
            tx,
            vcluster_id=greeted.vcluster_id,
            epoch=greeted.epoch,
            serial="new",
            ends_at=FAR,
            address="",
            now=NOW,
        )
    assert refused.value.code == "forbidden"
    with pytest.raises(Refused, match="the VCM was revoked"):
        vcms.spoken(tx, greeted, lambda tx: pytest.fail("it was listened to"))


def test_who_was_enrolled_anew_meanwhile_gets_no_successor(tx: Tx) -> None:
    """Refuse a successor, which would shut the newly enrolled VCM out with its first hello."""
    before = greet(tx, "old")
    vcms.enrol(tx, vcluster="pool", serial="anew", address="", now=NOW, ends_at=END)
    with pytest.raises(Refused, match="has taken its place"):
        certificates.renew(
            tx,
            vcluster_id=before.vcluster_id,
            epoch=before.epoch,
            serial="new",
            ends_at=FAR,
            address="",
            now=NOW,
        )
    assert row(tx).next_serial is None


def test_by_address_there_is_nothing_to_renew(tx: Tx) -> None:
    vcms.enrol(tx, vcluster="pool", serial="", address="10.77.9.9", now=NOW)
    with pytest.raises(Refused, match="no certificate to renew"):
        renew(tx, "new")
    assert row(tx).next_serial is None


@pytest.mark.parametrize("ends_at", [END - DAY, END, END + DAY - 1])
def test_what_would_last_no_longer_is_refused(tx: Tx, ends_at: float) -> None:
    with pytest.raises(Refused, match="would last no longer"):
        renew(tx, "new", ends_at)
    renew(tx, "new", END + DAY)


def test_an_end_that_was_not_known_is_learned_from_what_is_shown(tx: Tx) -> None:
    """Learn the ends of VCMs that were enrolled before ends were written down."""
    vcms.enrol(tx, vcluster="pool", serial="old", address="", now=NOW)
    greet(tx, "old", END + 1)
    assert row(tx).ends_at == END + 1
    greet(tx, "old", END + 2)
    assert row(tx).ends_at == END + 1


def test_who_changed_it_is_written_down(tx: Tx) -> None:
    renew(tx, "new")
    a = t.audit.c
    found = tx.execute(
        select(a.actor, a.address, a.thing, a.before, a.after).where(a.action == "vcm renew")
    ).one()
    assert tuple(found) == (
        "vcm:pool",
        "10.77.9.9",
        "pool",
        '{"serial": "old"}',
        '{"serial": "new"}',
    )


# ---------------------------------------------------------------- who is told


def told(tx: Tx, kind: str) -> list[str]:
    n = t.notices.c
    return list(tx.scalars(select(n.subject).where(n.kind == kind).order_by(n.id)))


def test_a_group_is_told_once_before_and_once_after(tx: Tx) -> None:
    looks = [
        (END - NEAR - 1, 0),
        (END - NEAR, 1),
        (END - NEAR + 3600, 0),
        (END - 1, 0),
        (END, 1),
        (END + DAY, 0),
    ]
    assert [(now, certificates.look(tx, FAR, now)) for now, _ in looks] == looks
    assert told(tx, "vcm-certificate") == [
        "pool: its VCM's certificate ends in 30 d",
        "pool: its VCM's certificate has ended",
    ]
    assert row(tx).warned_at == END
    n = t.notices.c
    holders = select(t.vclusters.c.name).join_from(
        t.notices, t.vclusters, n.vcluster_id == t.vclusters.c.id
    )
    assert set(
        tx.scalars(holders.where(n.group_id == t.vclusters.c.group_id, n.kind == "vcm-certificate"))
    ) == {"pool"}


def test_renewed_it_is_told_anew_and_of_the_new_one(tx: Tx) -> None:
    certificates.look(tx, FAR, END - DAY)
    renew(tx, "new", END + 365 * DAY)
    assert certificates.look(tx, FAR, END - DAY + 1) == 0
    greet(tx, "new")
    assert row(tx).warned_at is None
    assert certificates.look(tx, FAR, END) == 0
    assert certificates.look(tx, FAR, END + 340 * DAY) == 1


def test_of_those_without_a_certificate_nothing_is_told(tx: Tx) -> None:
    for address in ("10.77.9.9", ""):
        vcms.enrol(tx, vcluster="pool", serial="x" * (not address), address=address, now=NOW)
        assert certificates.look(tx, FAR, END + 9 * DAY) == 0
    vcms.revoke(tx, vcluster="pool")
    assert certificates.look(tx, FAR, END) == 0


def test_those_that_were_told_leave_room_for_others(
    tx: Tx, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many there are of them."""
    monkeypatch.setattr(certificates, "MOST", 1)
    founded(tx, site, "batch")
    vcms.enrol(tx, vcluster="batch", serial="b", address="", now=NOW, ends_at=END)
    assert [certificates.look(tx, FAR, END - DAY) for _ in range(3)] == [1, 1, 0]
    assert sorted(told(tx, "vcm-certificate"), reverse=True) == [
        "pool: its VCM's certificate ends in 1 d",
        "batch: its VCM's certificate ends in 1 d",
    ]


def test_the_administrators_are_told_of_the_authority_s_end_every_month(tx: Tx) -> None:
    vcms.revoke(tx, vcluster="pool")
    looks = [(FAR - 801 * DAY, 0), (FAR - 800 * DAY, 1), (FAR - 799 * DAY, 0), (FAR - 769 * DAY, 1)]
    assert [(now, certificates.look(tx, FAR, now)) for now, _ in looks] == looks
    assert told(tx, "authority") == ["the authority for VCMs ends"] * 2
    n = t.notices.c
    assert tx.scalars(select(n.group_id).where(n.kind == "authority")).all() == [None, None]
    assert certificates.look(tx, FAR + 7000 * DAY, FAR - 700 * DAY) == 0, "it was renewed"


# ---------------------------------------------------------------- one is found by one query


def test_one_vcm_is_found_without_reading_all(tx: Tx, engine: Engine, site: Site) -> None:
    for number in range(5):
        founded(tx, site, f"other{number}")
        vcms.enrol(tx, vcluster=f"other{number}", serial=str(number), address="", now=NOW)
    asked: list[str] = []

    def count(connection: object, cursor: object, statement: str, *rest: object) -> None:
        asked.append(statement)

    event.listen(engine, "before_cursor_execute", count)
    try:
        assert vcms.show(tx, "other3").vcm.serial == "3"
    finally:
        event.remove(engine, "before_cursor_execute", count)
    (statement,) = asked
    assert "vclusters.name = " in statement
    assert vcms.find(tx, "none") is None
    with pytest.raises(Refused, match="nobody is enrolled"):
        vcms.show(tx, "none")
