"""One writer at a time: what a process does about the lease of a database of several hosts."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import product
from types import SimpleNamespace

import pytest
from sqlalchemy import exc

from cod.core.database import writer as following
from cod.model import DatabaseLease, database_urls
from cod.policy.database_writer import (
    LEASE_SECONDS,
    NOBODY,
    HostAnswer,
    Renew,
    TakeOver,
    UseWithoutLease,
    Wait,
    WriterView,
    is_writer,
    may_write,
    next_step,
    renewed,
    seen,
)

LEASE = DatabaseLease("a", 3, 70, LEASE_SECONDS)
OLDER = DatabaseLease("b", 2, 900, LEASE_SECONDS)


def said(host: str, lease: DatabaseLease | None, *, writable: bool = True) -> HostAnswer:
    return HostAnswer(host, lease, writable)


NOTHING: tuple[HostAnswer, ...] = ()


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        (NOTHING, Wait),
        ((said("a", LEASE), said("b", LEASE)), Renew("a", 3)),
        ((said("b", LEASE), said("a", LEASE)), Renew("a", 3)),
        ((said("a", LEASE), said("b", OLDER)), Renew("a", 3)),
        # the lease's host does not answer, or is a replica now
        ((said("b", LEASE), said("c", LEASE)), TakeOver("b", LEASE)),
        ((said("a", LEASE, writable=False), said("b", LEASE)), TakeOver("b", LEASE)),
        ((said("b", LEASE, writable=False), said("c", LEASE)), TakeOver("c", LEASE)),
        ((said("b", LEASE, writable=False),), Wait),
        # it has missed what was committed since
        ((said("b", OLDER), said("c", LEASE, writable=False)), Wait),
        # without tables, or with tables and no lease
        ((said("a", None), said("b", None)), UseWithoutLease("a")),
        ((said("a", None, writable=False), said("b", None)), UseWithoutLease("b")),
        ((said("a", None, writable=False),), Wait),
        ((said("a", NOBODY), said("b", NOBODY)), TakeOver("a", NOBODY)),
        ((said("a", None), said("b", LEASE)), TakeOver("b", LEASE)),
    ],
)
def test_what_follows_from_the_answers_once_the_lease_has_expired(
    answers: tuple[HostAnswer, ...], expected: object
) -> None:
    view = seen(WriterView(), answers, 100.0)
    step = next_step(view, answers, 100.0 + LEASE_SECONDS)
    assert step == expected if not isinstance(expected, type) else isinstance(step, expected)


def test_a_lease_is_taken_over_only_when_nobody_has_renewed_it_for_its_whole_time() -> None:
    beats = (replace(LEASE, beat=beat) for beat in (70, 70, 71, 70, 71))
    view = WriterView()
    since = (10.0, 10.0, 14.0, 14.0, 14.0)  # an older beat, of a slower host, counts for nothing
    for time, lease, expected in zip(range(10, 20, 2), beats, since, strict=True):
        view = seen(view, [said("b", lease)], time)
        assert view.since == expected
    answers = [said("b", replace(LEASE, beat=71))]
    assert isinstance(next_step(view, answers, 14.0 + LEASE_SECONDS - 0.01), Wait)
    assert isinstance(next_step(view, answers, 14.0 + LEASE_SECONDS), TakeOver)


@pytest.mark.parametrize("seconds", [0.0, LEASE_SECONDS, 60.0])
def test_a_longer_lease_of_another_version_is_kept(seconds: float) -> None:
    answers = [said("b", replace(LEASE, seconds=seconds))]
    view = seen(WriterView(), answers, 0.5)
    end = 0.5 + max(seconds, LEASE_SECONDS)
    assert isinstance(next_step(view, answers, end - 0.01), Wait)
    assert isinstance(next_step(view, answers, end), TakeOver)


def test_hosts_with_an_older_lease_than_was_ever_seen_are_never_used() -> None:
    view = seen(WriterView(), [said("a", LEASE)], 1.0)
    for lease in (OLDER, NOBODY, None):
        answers = [said("b", lease), said("a", lease)]
        step = next_step(seen(view, answers, 2.0), answers, 1e9)
        assert isinstance(step, Wait)
        assert "lack what was committed at a, the writer of epoch 3" in step.reason


def test_a_process_that_took_a_lease_over_does_not_go_back_to_the_host_that_it_took_it_from() -> (
    None
):
    """A process asks no host while its renewals succeed, until the new host dies."""
    view = renewed(seen(WriterView(), [said("a", LEASE), said("b", LEASE)], 10.0), "b", 4, 20.0)
    old = [said("a", LEASE)]
    assert isinstance(next_step(seen(view, old, 30.0), old, 30.0 + LEASE_SECONDS), Wait)
    # a replica that is late may tell the beat of long ago, while others renew the lease
    late = [said("c", DatabaseLease("b", 4, 0, LEASE_SECONDS))]
    assert isinstance(next_step(seen(view, late, 30.0), late, 30.0), Wait)


def test_a_renewal_is_good_for_half_a_lease_from_its_beginning() -> None:
    assert not may_write(WriterView(), 0.0)
    view = renewed(WriterView(), "a", 3, 10.0)
    assert may_write(view, 10.0 + LEASE_SECONDS / 2 - 0.01)
    assert not may_write(view, 10.0 + LEASE_SECONDS / 2)


def test_what_began_without_a_lease_goes_on_under_the_first_alone() -> None:
    # as `cod init` begins, which makes the lease's table
    first = renewed(WriterView(), "a", 1, 10.0)
    assert is_writer(first, "a", 0)
    assert not is_writer(first, "b", 0)
    assert not is_writer(renewed(first, "a", 2, 20.0), "a", 0)
    assert not is_writer(renewed(first, "a", 2, 20.0), "a", 1)


class Process:
    """A server's process beside a cluster that has one row, as all hosts see it."""

    def __init__(self) -> None:
        self.view = WriterView()

    def step(self, row: DatabaseLease, reached: str, now: float) -> DatabaseLease:
        """Do what a process does once a second, reaching those hosts; return the row."""
        if self.view.host in reached.split() and self.view.host == row.host:
            step: object = Renew(row.host, row.epoch)
        else:
            answers = [said(host, row) for host in reached.split()]
            self.view = seen(self.view, answers, now)
            step = next_step(self.view, answers, now)
        if isinstance(step, Renew):
            self.view = renewed(self.view, step.host, step.epoch, now)
            return replace(row, beat=row.beat + 1)
        if isinstance(step, TakeOver):
            self.view = renewed(self.view, step.host, row.epoch + 1, now)
            return DatabaseLease(step.host, row.epoch + 1, 0, LEASE_SECONDS)
        return row


REACHES = ("", "a", "b", "a b")
PHASES = 4  # of five seconds each, in which each of two processes reaches the same hosts


@pytest.mark.slow
def test_no_two_processes_write_at_two_hosts_whichever_hosts_each_can_reach() -> None:
    moved = 0
    for schedule in product(product(REACHES, repeat=2), repeat=PHASES - 1):
        row, first, second = NOBODY, Process(), Process()
        for now in range(1, 1 + 5 * PHASES):
            phase = (now - 1) // 5
            # both reach all hosts in the end
            reached = schedule[phase] if phase < len(schedule) else ("a b", "a b")
            for process, hosts in zip((first, second), reached, strict=True):
                row = process.step(row, hosts, now)
                writing = {each.view.host for each in (first, second) if may_write(each.view, now)}
                assert writing <= {row.host}, (schedule, now)
        assert may_write(first.view, now)
        assert may_write(second.view, now)
        moved += row.epoch > 1
    assert moved > 100


@pytest.mark.parametrize(
    ("url", "hosts"),
    [
        ("sqlite:////var/lib/cod/cod.db", [":3306"]),
        ("mysql+pymysql://cod@db/cod", ["db:3306"]),
        (
            "mysql+pymysql://cod:p%40,w@db1,db2:33,[fd00::1]/cod?x=1",
            "db1:3306 db2:33 [fd00::1]:3306",
        ),
    ],
)
def test_a_url_of_several_hosts_is_one_for_each(url: str, hosts: list[str] | str) -> None:
    urls = database_urls(url)
    assert list(urls) == (hosts.split() if isinstance(hosts, str) else hosts)
    if len(urls) == 3:
        assert urls["db2:33"] == "mysql+pymysql://cod:p%40,w@db2:33/cod?x=1"


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("nonsense", "should be a URL"),
        ("mysql+pymysql://cod@db,db:3306/cod", "each host once"),
        ("mysql+pymysql://cod@db,/cod", "each host once"),
        ("mysql+mysqldb://cod@db1,db2/cod", "mysql\\+pymysql://"),
    ],
)
def test_a_url_that_names_hosts_wrongly_is_refused(url: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        database_urls(url)


def test_the_thread_outlives_an_error_of_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    urls = database_urls("mysql+pymysql://cod@127.0.0.1:1,127.0.0.1:2/cod")
    writer, went_on = following.DatabaseWriter(urls), threading.Event()
    steps: list[int] = []

    def step() -> None:
        steps.append(len(steps))
        if len(steps) == 1:
            raise RuntimeError("planted")
        went_on.set()

    monkeypatch.setattr(following, "LOOK_PERIOD", 0.01)
    monkeypatch.setattr(writer, "step", step)
    writer.look()
    assert went_on.wait(30)
    writer.close()


@dataclass
class Host:
    """A host of a cluster, as each of its hosts sees the one row. It hangs while `goes_on` is not
    set: whoever asks then waits, and is told after `PATIENCE` that nothing was heard; or, where it
    is not `silent`, has the answer late."""

    cluster: SimpleNamespace
    hangs: bool = False
    silent: bool = True
    goes_on: threading.Event = field(default_factory=threading.Event)

    @contextmanager
    def begin(self) -> Iterator[Host]:
        if self.hangs:
            if not self.goes_on.wait(60):
                pytest.fail("a host that hangs was waited for")
            if self.silent:
                self.cluster.now += following.PATIENCE
                raise exc.OperationalError(None, None, Exception(2013))
        yield self

    def dispose(self) -> None:
        pass


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """A cluster of the hosts a, b and c and a process that follows its writer, a."""
    made = SimpleNamespace(now=1000.0, lease=LEASE)

    def renew(_: Host, host: str, epoch: int) -> bool:
        made.lease = replace(made.lease, beat=made.lease.beat + 1)
        return (host, epoch) == (made.lease.host, made.lease.epoch)

    def take_over(_: Host, host: str, seen: DatabaseLease, seconds: float) -> bool:
        made.lease = DatabaseLease(host, seen.epoch + 1, 0, seconds)
        return True

    rows = SimpleNamespace(
        lease=lambda host, _: host.cluster.lease,
        is_writable=lambda _: True,
        renew=renew,
        take_over=take_over,
    )
    monkeypatch.setattr(following, "store", rows)
    made.hosts = {name: Host(made) for name in "abc"}
    made.writer = following.DatabaseWriter(
        database_urls("mysql+pymysql://cod@a,b,c/cod"), lambda: made.now
    )
    monkeypatch.setattr(made.writer, "_hosts", made.hosts)
    made.writer.step()
    assert made.writer.where() == ("a", 3)
    yield made
    for host in made.hosts.values():
        host.goes_on.set()
    made.writer.close()


def test_a_host_that_hangs_is_waited_for_once(cluster: SimpleNamespace) -> None:
    a, writer = cluster.hosts["a"], cluster.writer
    a.hangs = True
    a.goes_on.set()
    cluster.now += LEASE_SECONDS / 2
    writer.step()
    with pytest.raises(exc.OperationalError, match="as far as this server can see"):
        writer.confirm(("a", 3))

    a.goes_on.clear()  # it would be waited for until the minute is over
    cluster.now += LEASE_SECONDS
    writer.step()
    assert writer.where() == ("b", 4)


def test_the_time_without_a_renewal_counts_from_when_one_is_late(
    cluster: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "RENEWAL_LATE", 0.0)
    a, writer, since = cluster.hosts["a"], cluster.writer, cluster.now + 1.0
    see = writer._see

    def seen_by_it(view: WriterView) -> None:
        see(view)
        a.goes_on.set()  # its renewal fails as soon as the answer of another host was seen

    monkeypatch.setattr(writer, "_see", seen_by_it)
    a.hangs, cluster.now = True, since
    writer.step()
    assert cluster.now >= since + following.PATIENCE
    assert writer._view.since == since


def test_a_host_is_not_gone_on_with_whose_renewal_ends_after_a_newer_epoch_was_seen(
    cluster: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host commits although it has missed the newer epoch: it is no member of the cluster."""
    monkeypatch.setattr(following, "RENEWAL_LATE", 0.0)
    a, writer, see = cluster.hosts["a"], cluster.writer, cluster.writer._see
    a.hangs, a.silent = True, False

    def seen_by_it(view: WriterView) -> None:
        see(view)
        a.goes_on.set()

    def renew(at: Host, host: str, epoch: int) -> bool:
        return at is a or epoch == 4

    monkeypatch.setattr("cod.core.database.writer.store.renew", renew)
    monkeypatch.setattr(writer, "_see", seen_by_it)
    cluster.lease = replace(LEASE, host="b", epoch=4)
    cluster.now += 1.0
    writer.step()
    assert writer.where() == ("b", 4)


def test_hosts_that_hang_leave_a_thread_for_the_renewal(cluster: SimpleNamespace) -> None:
    writer = cluster.writer
    for host in cluster.hosts.values():
        host.hangs = True
    writer._hanging.update("abc")
    assert writer._answers("abc") == []  # a question to each is under way
    cluster.hosts["a"].hangs = False
    cluster.now += LEASE_SECONDS / 2
    step = threading.Thread(target=writer.step, daemon=True)
    step.start()
    step.join(20)
    assert not step.is_alive()
    assert writer.where() == ("a", 3)
