"""What COD owes its VCMs: committed with its cause, numbered without gaps however many owe at once,
kept till heard."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Engine, func, select, update
from twisted.internet.defer import Deferred

from cod.flows.scheduler import requests, vclusters
from cod.flows.vcms import vcms
from cod.model import AskedNodes, AskedTuple, AskedVcluster, OutboxMessage, Refused, Site, Vcm
from cod.pool import Pool, in_transaction
from cod.store import tables as t
from cod.store import vcms as store
from cod.store.engine import Tx
from cod.store.scheduler import vclusters as vcluster_rows
from tests.contexts import flow_context
from tests.store import manager_world as world
from tests.waiting import until

pytestmark = pytest.mark.slow

NOW = 1_000_000.0
TAKEN = "a newer connection has taken its place"
ON_MARIADB = pytest.mark.parametrize(
    "engine", [pytest.param("mariadb", marks=pytest.mark.mariadb)], indirect=True
)


def furnished(tx: Tx, site: Site) -> None:
    """An active vcluster 'pool' (id 1) of two nodes with a VCM, and three free nodes."""
    world.furnish(tx, 5)
    vclusters.create(
        tx,
        flow_context(site, NOW),
        AskedVcluster(name="pool", size=2, template="debian", group="site"),
    )
    vcms.enrol(tx, vcluster="pool", serial="a1", address="", now=NOW)
    world.run_pass(tx, site, NOW)
    world.arrive(tx, NOW)


def pool(tx: Tx) -> int:
    """The vcluster's id."""
    found: int = tx.execute(select(t.vclusters.c.id).order_by(t.vclusters.c.id)).first()[0]  # type: ignore[index]
    return found


def owe(tx: Tx, count: int = 1) -> None:
    for number in range(count):
        assert store.enqueue(
            tx, pool(tx), "lease", {"event": "warning", "expires": float(number)}, NOW
        )


def known(tx: Tx) -> Vcm:
    found = store.get(tx, pool(tx))
    assert found is not None
    return found


def numbers(tx: Tx) -> list[int]:
    return [row.sequence for row in store.unacknowledged(tx, {pool(tx): 0}, limit=10_000)]


def greet(tx: Tx, seen: int = 0, server: str = "cod1") -> vcms.Greeted:
    return vcms.greet(
        tx,
        vcluster="pool",
        serial="a1",
        address="10.0.0.1",
        about="test",
        seen=seen,
        server=server,
        now=NOW,
    )


# ---------------------------------------------------------------- with its cause


def test_what_is_owed_stands_or_falls_with_its_cause(engine: Engine, site: Site) -> None:
    in_transaction(engine, furnished, site)
    before = in_transaction(engine, known), in_transaction(engine, numbers)

    def half(tx: Tx) -> None:
        requests.submit(
            tx, flow_context(site, NOW), vcluster="pool", asked=AskedNodes([AskedTuple(1)])
        )
        world.run_pass(tx, site, NOW)
        assert "grant" in [
            row.verb for row in store.unacknowledged(tx, {pool(tx): before[0].sequence})
        ]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        in_transaction(engine, half)
    assert (in_transaction(engine, known), in_transaction(engine, numbers)) == before


def test_the_story_of_a_node_is_told_in_its_order(tx: Tx, site: Site) -> None:
    furnished(tx, site)
    vclusters.release(tx, flow_context(site, NOW, "x"), name="pool", nodes_=["n2"])
    owed = store.unacknowledged(tx, {pool(tx): 0})
    told = [(row.verb, row.body.get("hostname", ""), row.body.get("state", "")) for row in owed]
    assert [verb for verb, _, _ in told].count("grant") == 1
    about = [state for verb, hostname, state in told if verb == "node-state" and hostname == "n2"]
    assert (about[-2:], numbers(tx)) == (["active", "lost"], list(range(1, len(told) + 1)))


def test_a_vcluster_without_a_vcm_is_owed_nothing(tx: Tx, site: Site) -> None:
    furnished(tx, site)
    vcms.revoke(tx, vcluster="pool")
    vclusters.release(tx, flow_context(site, NOW, "x"), name="pool", nodes_=["n2"])
    assert not store.enqueue(tx, pool(tx), "lease", {}, NOW)
    assert tx.scalar(select(func.count()).select_from(t.outbox)) == 0


# ---------------------------------------------------------------- numbers


@ON_MARIADB
def test_numbers_have_no_gaps_and_are_seen_in_their_order(engine: Engine, site: Site) -> None:
    """Three threads owe to one VCM at once, some flows are rolled back; a reader never sees a
    number before a smaller one."""
    in_transaction(engine, furnished, site)
    start = in_transaction(engine, known).sequence
    gone_wrong: list[str] = []
    over = threading.Event()

    def flow(tx: Tx, turn: int, fails: bool) -> None:
        owe(tx, 1 + turn % 3)
        if fails:
            raise ZeroDivisionError

    def watch() -> None:
        seen = start
        while not over.is_set():
            fresh = [row.sequence for row in in_transaction(engine, after, seen)]
            if fresh and fresh != list(range(seen + 1, fresh[-1] + 1)):
                gone_wrong.append(f"{fresh} after {seen}")
            seen = fresh[-1] if fresh else seen

    watcher = threading.Thread(target=watch)
    watcher.start()
    pool = Pool(engine, AtOnce(), threads=3)
    turns = [(turn, (turn + who) % 4 == 0) for turn in range(40) for who in range(3)]
    ended = [outcome(pool.run(flow, *each)) for each in turns]
    until(lambda: all(ended), "all flows have ended", 300)
    pool.close()
    over.set()
    watcher.join()
    owed = in_transaction(engine, numbers)
    assert gone_wrong == []
    assert [each[0] for each in ended] == [
        ZeroDivisionError if fails else None for _, fails in turns
    ]
    assert owed == list(range(1, owed[-1] + 1))
    assert (
        owed[-1]
        == in_transaction(engine, known).sequence
        == start + sum(1 + turn % 3 for turn, fails in turns if not fails)
    )


class AtOnce:
    """A reactor as far as the pool needs one: what threads hand over is done there and then."""

    def callFromThread(self, function: Callable[..., Any], *args: Any) -> None:
        function(*args)


def outcome(flow: Deferred[None]) -> list[type[BaseException] | None]:
    """Filled, when the flow has ended, with the kind of its error, or None."""
    ended: list[type[BaseException] | None] = []
    flow.addCallbacks(lambda _: ended.append(None), lambda failure: ended.append(failure.type))
    return ended


def after(tx: Tx, seen: int) -> list[OutboxMessage]:
    return store.unacknowledged(tx, {pool(tx): seen}, limit=10_000)


@ON_MARIADB
def test_acknowledging_while_more_is_owed_loses_nothing(engine: Engine, site: Site) -> None:
    in_transaction(engine, furnished, site)
    last, pool_id = in_transaction(engine, known).sequence, in_transaction(engine, pool)
    entered, go_on = threading.Event(), threading.Event()

    def slow(tx: Tx) -> None:
        owe(tx)
        entered.set()
        go_on.wait(60)

    flows = Pool(engine, AtOnce(), threads=2)
    ended = [outcome(flows.run(slow))]
    assert entered.wait(60)
    ended.append(outcome(flows.run(store.acknowledge, pool_id, last)))
    go_on.set()
    until(lambda: all(ended), "both have ended", 120)
    flows.close()
    vcm = in_transaction(engine, known)
    assert ended == [[None], [None]]
    assert (vcm.acked, vcm.sequence, in_transaction(engine, numbers)) == (
        last,
        last + 1,
        [last + 1],
    )


# ---------------------------------------------------------------- kept until heard, but not for
# ever


def test_what_is_acknowledged_goes_and_what_is_not_stays(tx: Tx, site: Site) -> None:
    furnished(tx, site)
    owe(tx, 5)
    last = known(tx).sequence
    vcms.acknowledge(tx, pool(tx), last - 2)
    assert (known(tx).acked, numbers(tx)) == (last - 2, [last - 1, last])
    vcms.acknowledge(tx, pool(tx), last - 4)  # comes late
    assert (known(tx).acked, numbers(tx)) == (last - 2, [last - 1, last])
    assert greet(tx, seen=last - 1).acked == last - 1
    # from another life: what it does not know, it asks for
    assert greet(tx, seen=10**9).acked == last


def test_a_vcm_that_is_away_for_too_long_is_owed_the_newest_only(
    tx: Tx, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    furnished(tx, site)
    monkeypatch.setattr(store, "MOST_UNACKNOWLEDGED", 10)
    connected = greet(tx)
    owe(tx, 30)
    left = numbers(tx)
    assert len(left) <= 10
    assert left == list(range(left[0], known(tx).sequence + 1))
    assert (
        vcms.why_over(tx, connected)
        == "more than 10 messages were owed and were dropped: ask for the whole picture"
    )
    # so `welcome` tells it that it has missed something
    assert greet(tx, seen=1).acked == left[0] - 1
    with pytest.raises(Refused, match="taken its place"):
        vcms.spoken(tx, connected, lambda tx: None)


# ---------------------------------------------------------------- whose connection counts


def test_the_newest_connection_counts_on_whichever_server(tx: Tx, site: Site) -> None:
    furnished(tx, site)
    first, second = greet(tx), greet(tx, server="cod2")
    assert vcms.fresh(tx, "cod1", {pool(tx): (first, 0)}) == ([], {pool(tx): TAKEN})
    owed, stale = vcms.fresh(tx, "cod2", {pool(tx): (second, 0)})
    assert ([row.sequence for row in owed], stale) == (numbers(tx), {})
    assert vcms.fresh(tx, "cod2", {pool(tx): (second, None)}) == ([], {})
    vcms.gone(tx, pool(tx), "cod1", first.epoch, NOW)  # its end is noted late
    assert known(tx).server == "cod2"
    vcms.started(tx, "cod2", NOW + 1)
    assert known(tx).server is None


def test_what_is_read_at_once_is_limited(
    tx: Tx, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    furnished(tx, site)
    owe(tx, 300)
    assert len(store.unacknowledged(tx, {pool(tx): 0, pool(tx) + 1: 0})) == 100
    assert len(store.unacknowledged(tx, {pool(tx): 0, pool(tx) + 1: 0}, limit=10, most=10)) == 10


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("enrol", "the VCM was enrolled anew"),
        ("revoke", "the VCM was revoked"),
        ("end", "the vcluster has ended"),
    ],
)
def test_who_spoke_before_speaks_no_more_and_is_told_the_true_reason(
    tx: Tx, site: Site, change: str, reason: str
) -> None:
    furnished(tx, site)
    greeted = greet(tx)
    assert vcms.spoken(tx, greeted, lambda tx: "done") == "done"
    if change == "enrol":
        vcms.enrol(tx, vcluster="pool", serial="b2", address="", now=NOW)
    elif change == "revoke":
        vcms.revoke(tx, vcluster="pool")
    else:
        ended(tx, site)
    with pytest.raises(Refused, match=reason):
        vcms.spoken(tx, greeted, lambda tx: "done")
    assert vcms.fresh(tx, "cod1", {pool(tx): (greeted, 0)})[1] == {pool(tx): reason}
    with pytest.raises(Refused, match=r"replaced or revoked|nobody is enrolled"):
        greet(tx)


def test_an_enrolment_after_a_revocation_is_newer_than_any_connection_before(
    tx: Tx, site: Site
) -> None:
    """Numbers that began again made the old connection look newer: the new one was sent away, the
    old one heard."""
    furnished(tx, site)
    old = [greet(tx) for _ in range(5)][-1]
    vcms.revoke(tx, vcluster="pool")
    vcms.enrol(tx, vcluster="pool", serial="a1", address="", now=NOW + 1)
    new = greet(tx)
    assert new.epoch > old.epoch
    assert vcms.fresh(tx, "cod1", {pool(tx): (new, 0)})[1] == {}
    assert vcms.fresh(tx, "cod1", {pool(tx): (old, 0)})[1] == {
        pool(tx): "the VCM was enrolled anew"
    }
    with pytest.raises(Refused, match="enrolled anew"):
        vcms.spoken(tx, old, lambda tx: pytest.fail("it was listened to"))


def ended(tx: Tx, site: Site) -> None:
    """The vcluster is deleted, and its last node is back."""
    vclusters.delete(tx, flow_context(site, NOW, "x"), name="pool")
    vcluster = vcluster_rows.get(tx, pool(tx))
    assert vcluster is not None
    # until then it is told
    assert {"lost"} <= {row.body.get("state") for row in store.unacknowledged(tx, {pool(tx): 0})}
    vcluster_rows.end(tx, vcluster, NOW)


def test_a_vcluster_that_ends_takes_its_vcm_with_it(tx: Tx, site: Site) -> None:
    furnished(tx, site)
    ended(tx, site)
    left: list[Any] = [
        tx.scalar(select(func.count()).select_from(table)) for table in (t.vcms, t.outbox)
    ]
    assert left == [0, 0]
    vclusters.create(
        tx,
        flow_context(site, NOW),
        AskedVcluster(name="pool", size=1, template="debian", group="site"),
    )
    with pytest.raises(Refused, match="nobody is enrolled"):
        greet(tx)


def test_requests_that_wait_are_limited_by_the_vcluster_s_addresses(tx: Tx, site: Site) -> None:
    """However often a VCM asks under ever new keys."""
    block = replace(site.subnets[0], block_pool=("10.77.128.0", "10.77.128.63"))
    site = replace(site, subnets=(block,))
    furnished(tx, site)
    made = 0
    with suppress(Refused):
        while made < 1000:
            key = vcms.request_key(pool(tx), f"k{made}")
            requests.submit(
                tx,
                flow_context(site, NOW, key=key),
                vcluster="pool",
                asked=AskedNodes([AskedTuple(1)]),
            )
            made += 1
    assert 50 < made < block.block_size


def test_a_grant_has_the_attributes_of_each_type_once(tx: Tx, site: Site) -> None:
    """Or a grant of thousands of nodes would be larger than a message may be, and than a row of the
    outbox."""
    world.furnish(tx, 4)
    for number in (7, 8):
        world.add_node(tx, number, mib=8192)
    vclusters.create(
        tx,
        flow_context(site, NOW),
        AskedVcluster(name="pool", size=6, template="debian", group="site", spread=True),
    )
    vcms.enrol(tx, vcluster="pool", serial="a1", address="", now=NOW)
    world.run_pass(tx, site, NOW)
    grant = next(row.body for row in store.unacknowledged(tx, {pool(tx): 0}) if row.verb == "grant")
    members = grant["members"]
    assert len({member["type"] for member in members}) == 2
    given = [member["attributes"] for member in members if member["attributes"]]
    assert (len(members), len(given), len(set(given))) == (6, 2, 2)
    for member in members:
        first = next(one for one in members if one["type"] == member["type"])
        assert bool(member["attributes"]) == (member is first)
    assert not any(member["attributes"] for member in vcms.picture(tx, pool(tx)).members)


def test_how_far_disks_are_written_is_told_where_the_connection_is(tx: Tx, site: Site) -> None:
    furnished(tx, site)
    requests.submit(tx, flow_context(site, NOW), vcluster="pool", asked=AskedNodes([AskedTuple(1)]))
    world.run_pass(tx, site, NOW)
    tx.execute(
        update(t.nodes)
        .where(t.nodes.c.state == "prime")
        .values(progress_done=40, progress_total=100)
    )
    assert vcms.progress(tx, "cod1") == []  # it is away
    greet(tx)
    ((vcluster_id, _, *figures),) = vcms.progress(tx, "cod1")
    assert (vcluster_id, figures) == (pool(tx), ["prime", 40, 100])
    assert vcms.progress(tx, "cod2") == []
