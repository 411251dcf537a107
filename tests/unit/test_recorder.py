"""The recorder, its clock moved: what it follows, when it tries again, whose it writes down what it
hears to be."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import Deferred, fail, maybeDeferred, succeed
from twisted.internet.task import Clock

from cod import consolefiles
from cod.flows import claims
from cod.flows.nodes.consoles import Followed, Typed, followed, is_typed
from cod.model import Account, ConsoleRules, Site, SiteRef
from cod.power import recorder as r
from cod.power.console import Heard, Opened
from cod.power.driver import PowerError, Target
from cod.power.recorder import Recorder


def node(number: int = 1, tenure: str = "free", **more: Any) -> Followed:
    return replace(Followed(number, f"n{number}", "ipmi", f"bmc{number}", None, tenure), **more)


class FakeLine:
    def __init__(self, target: Target, heard: Heard, opened: Opened) -> None:
        self.target, self.heard, self.opened = target, heard, opened
        self.ended: Deferred[None] = Deferred()
        self.closed = False
        self.typed = b""

    def type(self, data: bytes) -> None:
        self.typed += data

    def close(self) -> None:
        self.closed = True

    def gone(self) -> None:
        """End the line, which was closed."""
        assert self.closed
        self.ended.callback(None)

    def lose(self, about: str = "the BMC does not answer", lasting: bool = False) -> None:
        self.ended.errback(PowerError(about, lasting=lasting))


class FakeConsoles:
    """A driver whose lines the test opens, feeds and ends."""

    def __init__(self) -> None:
        self.lines: list[FakeLine] = []

    def follow(self, target: Target, heard: Heard, opened: Opened) -> FakeLine:
        self.lines.append(FakeLine(target, heard, opened))
        return self.lines[-1]


class FakePool:
    """A pool whose one answer the test sets: nodes, or an error."""

    def __init__(self) -> None:
        self.answer: Any = []
        self.asked = 0
        self.typed: list[Typed] = []

    def read(self, flow: Any, *args: Any) -> Deferred[Any]:
        if flow is not followed:
            return succeed(bool(self.typed) if flow is is_typed else None)
        self.asked += 1
        return (
            fail(self.answer) if isinstance(self.answer, Exception) else succeed(list(self.answer))
        )

    def run(self, flow: Any, *args: Any) -> Deferred[Any]:
        if flow is claims.hold:
            return succeed(claims.Claim("consoles", "here", 1, 0.0))
        found, self.typed = self.typed, []
        return succeed(found)

    def is_away(self, error: Exception) -> bool:
        return True


class Bench:
    """A recorder with everything around it."""

    def __init__(self, folder: Path, site: Site) -> None:
        self.clock, self.pool, self.consoles, self.folder = (
            Clock(),
            FakePool(),
            FakeConsoles(),
            folder,
        )
        self.site = replace(site, consoles=ConsoleRules(record=True))
        self.recorder = Recorder(
            self.clock,
            self.pool,
            {"ipmi": self.consoles},
            "here",
            lambda: 1e6 + self.clock.seconds(),
            SiteRef(self.site),
            folder,
            maybeDeferred,
        )

    @property
    def lines(self) -> list[FakeLine]:
        return self.consoles.lines

    def pass_time(self, seconds: float) -> None:
        for _ in range(round(seconds / r.TICK)):
            self.clock.advance(r.TICK)

    def follow(self, *nodes: Followed) -> None:
        """Follow these nodes, and wait until the recorder has looked."""
        self.pool.answer = nodes
        self.pass_time(r.LOOK + r.TICK)

    def read(self, number: int = 1, tenure: str | None = None) -> bytes:
        return consolefiles.read(self.folder, number, tenure, 0, 10**6).data

    def state(self, number: int = 1) -> tuple[str, str] | None:
        found = consolefiles.noted(self.folder, number)
        return None if found is None else (found.state, found.about)


@pytest.fixture
def bench(tmp_path: Path, site: Site) -> Iterator[Bench]:
    bench = Bench(tmp_path / "consoles", site)
    bench.recorder.startService()
    yield bench
    stopped = bench.recorder.stopService()
    for line in bench.lines:
        if line.closed and not line.ended.called:
            line.gone()
    assert stopped.called
    assert not bench.clock.getDelayedCalls()


def test_what_a_console_says_is_kept(bench: Bench) -> None:
    bench.follow(node())
    (line,) = bench.lines
    assert line.target.address == "bmc1"
    assert bench.state() is None
    line.opened()
    line.heard(b"Linux version ")
    line.heard(b"6.1\r\n")
    bench.pass_time(1)
    assert bench.read() == b"Linux version 6.1\r\n"
    assert bench.state() == ("recording", "")


def test_what_is_said_belongs_to_whoever_was_known_to_hold_the_node(bench: Bench) -> None:
    bench.follow(node())
    bench.lines[0].opened()
    bench.lines[0].heard(b"trampoline ")
    bench.follow(node(tenure="v1-5"))
    bench.lines[0].heard(b"first ")
    bench.pool.answer = [node(tenure="v2-9")]  # which it has not seen yet
    bench.lines[0].heard(b"late ")
    bench.follow(node(tenure="v2-9"))
    bench.lines[0].heard(b"second")
    bench.pass_time(1)
    assert len(bench.lines) == 1, "a new holder is no reason to let go of the line"
    assert bench.read(tenure="v1-5") == b"first late "
    assert bench.read(tenure="v2-9") == b"second"
    assert bench.read() == b"trampoline first late second"


def test_what_was_heard_before_a_change_is_not_written_after_it_as_the_new_holders(
    bench: Bench,
) -> None:
    bench.follow(node(tenure="v1-5"))
    bench.lines[0].opened()
    bench.pool.answer = [node(tenure="v2-9")]
    bench.clock.advance(r.LOOK - r.TICK - 0.1)
    bench.lines[0].heard(b"first's")
    bench.clock.advance(0.2)  # it looks, before what it heard is written
    bench.lines[0].heard(b"second's")
    bench.pass_time(1)
    assert bench.read(tenure="v2-9") == b"second's"
    assert bench.read(tenure="v1-5") == b"first's"


def test_what_a_bmc_kept_since_before_the_holder_is_not_the_holders(bench: Bench) -> None:
    """The line was away while the node changed hands, or this server was: what the BMC hands over
    first is nobody's."""
    bench.follow(node(tenure="v1-5"))
    bench.lines[0].opened()
    bench.lines[0].heard(b"said while the server was away ")
    bench.pass_time(r.DOUBT)
    bench.lines[0].heard(b"first's ")
    bench.lines[0].lose()
    bench.follow(node(tenure="v2-9"))
    bench.pass_time(5)
    bench.lines[1].opened()
    bench.lines[1].heard(b"first's last words ")
    bench.pass_time(r.DOUBT)
    bench.lines[1].heard(b"second's ")
    bench.pass_time(1)
    assert bench.read(tenure="v1-5") == b"first's "
    assert bench.read(tenure="v2-9") == b"second's "
    assert bench.read(tenure="free") == b"said while the server was away first's last words "


def test_a_line_that_was_away_for_a_moment_loses_its_holder_nothing(bench: Bench) -> None:
    bench.follow(node())
    bench.lines[0].opened()
    bench.follow(node(tenure="v1-5"))
    bench.lines[0].heard(b"one ")
    bench.lines[0].lose()
    bench.pass_time(6)
    bench.lines[1].opened()
    bench.lines[1].heard(b"two")
    bench.pass_time(1)
    assert bench.read(tenure="v1-5") == b"one two"


def test_a_lost_line_is_tried_again_ever_more_seldom(bench: Bench) -> None:
    bench.follow(node())
    begun = []
    for _ in range(6):
        bench.lines[-1].lose()
        count, since = len(bench.lines), bench.clock.seconds()
        while len(bench.lines) == count:
            bench.pass_time(r.TICK)
        begun.append(bench.clock.seconds() - since)
    assert begun == [5.0, 10.0, 20.0, 40.0, 80.0, 160.0]
    assert bench.state() == ("lost", "the BMC does not answer")


def test_a_line_that_held_is_tried_again_at_once(bench: Bench) -> None:
    bench.follow(node())
    for _ in range(5):
        bench.lines[-1].lose()
        bench.pass_time(400)
    bench.lines[-1].opened()
    bench.pass_time(r.STEADY)
    count = len(bench.lines)
    bench.lines[-1].lose("the line to the BMC was lost")
    bench.pass_time(5)
    assert len(bench.lines) == count + 1


def test_a_line_that_opens_and_breaks_is_not_tried_for_ever_at_once(bench: Bench) -> None:
    bench.follow(node())
    for _ in range(4):
        bench.lines[-1].opened()
        bench.lines[-1].lose("the line to the BMC was lost")
        bench.pass_time(100)
    count = len(bench.lines)
    bench.lines[-1].lose("the line to the BMC was lost")
    bench.pass_time(50)
    assert len(bench.lines) == count


def test_a_refused_password_is_left_alone_until_the_site_file_is_read_again(bench: Bench) -> None:
    bench.follow(node())
    bench.lines[0].lose("the BMC refuses the password", lasting=True)
    bench.pass_time(3000)
    assert len(bench.lines) == 1
    bench.recorder.reread()
    bench.pass_time(1)
    assert len(bench.lines) == 2
    bench.lines[1].lose("the BMC refuses the password", lasting=True)
    bench.pass_time(3700)
    assert len(bench.lines) == 3


def test_another_address_is_another_console(bench: Bench) -> None:
    bench.follow(node())
    bench.lines[0].opened()
    bench.follow(node(address="elsewhere"))
    assert bench.lines[0].closed
    assert [line.target.address for line in bench.lines] == ["bmc1", "elsewhere"]
    bench.follow(node(address="elsewhere", node="renamed"))
    assert len(bench.lines) == 2, "another name is not"


def test_what_is_not_to_be_followed_any_more_is_let_go(bench: Bench) -> None:
    bench.follow(node(1), node(2))
    bench.follow(node(2))
    assert [line.closed for line in bench.lines] == [True, False]
    bench.lines[0].gone()
    object.__setattr__(bench.site, "consoles", ConsoleRules(record=False))
    asked = bench.pool.asked
    bench.pass_time(r.LOOK)
    assert bench.lines[1].closed
    assert bench.pool.asked == asked, (
        "nothing is asked, and no claim held, where nothing is recorded"
    )


def test_a_database_that_is_away_is_no_reason_to_let_go(bench: Bench) -> None:
    bench.follow(node())
    bench.lines[0].opened()
    bench.pool.answer = OSError("away")
    bench.pass_time(60)
    bench.lines[0].heard(b"still")
    bench.pass_time(1)
    assert not bench.lines[0].closed
    assert bench.read() == b"still"


def test_many_nodes_are_no_storm(bench: Bench) -> None:
    bench.pool.answer = [node(number) for number in range(1, 201)]
    most, opened, since = 0, 0, bench.clock.seconds()
    while opened < 200:
        count = len(bench.lines)
        bench.pass_time(1)
        most = max(most, len(bench.lines) - count)
        assert len(bench.lines) - opened <= r.OPENING
        for line in bench.lines[opened:]:
            line.opened()
            opened += 1
    assert most <= 2 * r.AT_ONCE
    assert bench.clock.seconds() - since < 40


def test_those_that_do_not_answer_do_not_keep_others_out_for_ever(bench: Bench) -> None:
    bench.pool.answer = [node(number) for number in range(1, 41)]
    for _ in range(20):
        bench.pass_time(30)
        for line in bench.lines:
            if line.closed and not line.ended.called:
                line.gone()
    assert {line.target.address for line in bench.lines} == {
        f"bmc{number}" for number in range(1, 41)
    }
    assert bench.state(1) == ("lost", "it was not heard within 60 s")


def test_no_more_are_followed_than_the_site_allows(bench: Bench) -> None:
    object.__setattr__(bench.site, "consoles", ConsoleRules(record=True, most=2))
    bench.follow(node(1), node(2), node(3))
    assert len(bench.lines) == 2
    assert bench.state(3) == (
        "lost",
        "this server follows 2 consoles already: [console] most of the site file",
    )
    bench.lines[0].opened()
    bench.follow(node(2), node(3))
    assert [line.target.address for line in bench.lines] == ["bmc1", "bmc2", "bmc3"]


def test_what_comes_too_fast_is_cut_and_said_to_be(bench: Bench) -> None:
    bench.follow(node())
    bench.lines[0].opened()
    bench.lines[0].heard(b"x" * (r.HELD - 1))
    bench.lines[0].heard(b"y" * 100)
    bench.pass_time(1)
    found = bench.read()
    assert found.count(b"y") == 1 + b"bytes".count(b"y")
    assert b"[99 bytes came too fast and were not recorded]" in found


def test_a_missing_account_is_said(bench: Bench) -> None:
    bench.follow(node(account="rack1"))
    assert bench.lines == []
    assert bench.state() == ("lost", "the site file has no [[account]] named 'rack1'")
    object.__setattr__(bench.site, "accounts", (Account("rack1", "root", "/nowhere"),))
    bench.recorder.reread()
    bench.pass_time(1)
    assert "cannot be read" in str(bench.state()) or "nowhere" in str(bench.state())


def test_a_driver_that_is_broken_is_not_the_end(bench: Bench) -> None:
    bench.follow(node(1, driver="none such"), node(2))
    bench.lines[0].ended.errback(ZeroDivisionError())
    bench.pass_time(20)
    assert bench.state(1) == ("lost", "the none such console failed: KeyError")
    assert bench.state(2) == ("lost", "the ipmi console failed: ZeroDivisionError")
    assert len(bench.lines) == 2


def test_a_full_disk_is_said_once_and_not_the_end(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.folder.write_text("a file where the folder should be")
    bench.follow(node())
    bench.lines[0].opened()
    bench.lines[0].heard(b"lost")
    bench.pass_time(1)
    assert "consoles cannot be written" in caplog.text
    bench.folder.unlink()
    bench.lines[0].heard(b"kept")
    bench.pass_time(1)
    assert bench.read() == b"kept"


def test_the_end_waits_for_the_lines_and_writes_what_came(tmp_path: Path, site: Site) -> None:
    bench = Bench(tmp_path / "consoles", site)
    bench.recorder.startService()
    bench.follow(node())
    bench.lines[0].opened()
    bench.lines[0].heard(b"last words")
    stopped = bench.recorder.stopService()
    assert bench.lines[0].closed
    assert not stopped.called, "ipmitool has to tell the BMC first"
    bench.lines[0].gone()
    assert stopped.called
    assert bench.read() == b"last words"


def test_old_files_are_deleted_once_an_hour(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []

    def sweep(folder: Path, before: float) -> int:
        asked.append(before)
        return 0

    monkeypatch.setattr(consolefiles, "sweep", sweep)
    began = bench.clock.seconds()
    bench.pass_time(2 * 3600)
    assert len(asked) == 2
    assert asked[0] == pytest.approx(1e6 + began + 3600 - 30 * 86400, abs=10)


def test_a_clock_that_was_set_back_puts_their_end_off_by_no_more_than_an_hour(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[float] = []
    monkeypatch.setattr(consolefiles, "sweep", lambda folder, before: asked.append(before))
    bench.pass_time(60)
    monkeypatch.setattr(bench.recorder, "_clock", lambda: 1e5 + bench.clock.seconds())
    bench.pass_time(3700)
    assert len(asked) == 2


def test_what_people_type_goes_to_the_console_whose_holder_it_was(bench: Bench) -> None:
    bench.follow(node(1, "v1-5"), node(2, "v2-5"))
    for line in bench.lines:
        line.opened()
    bench.pool.typed = [
        Typed(1, "v1-5", "root\r"),
        Typed(2, "v9-5", "other"),
        Typed(3, "free", "x"),
    ]
    bench.pass_time(1)
    assert [line.typed for line in bench.lines] == [b"root\r", b""]
    bench.pass_time(1)
    assert bench.lines[0].typed == b"root\r", "once"


def test_what_is_typed_faster_than_the_line_takes_it_is_dropped_with_the_holder(
    bench: Bench,
) -> None:
    bench.follow(node(1, "v1-5"))
    bench.lines[0].opened()
    bench.pool.typed = [Typed(1, "v1-5", "x" * 1000)] * 40
    bench.pass_time(1)
    assert len(bench.lines[0].typed) <= 3 * r.PACE
    bench.follow(node(1, "v2-9"))
    typed_ = len(bench.lines[0].typed)
    assert 0 < typed_ < 10_000
    bench.pass_time(60)
    assert len(bench.lines[0].typed) == typed_


def test_what_is_heard_is_written_while_the_database_does_not_answer(bench: Bench) -> None:
    bench.follow(node())
    bench.lines[0].opened()
    bench.pass_time(r.DOUBT)
    unanswered: Deferred[bool] = Deferred()
    bench.pool.read = lambda flow: unanswered  # type: ignore[method-assign]
    bench.pass_time(1)
    bench.lines[0].heard(b"panic")
    bench.pass_time(1)
    written = bench.read()
    unanswered.callback(False)
    assert written == b"panic"


def test_what_is_typed_does_not_wait_for_the_tick_nor_does_its_answer(bench: Bench) -> None:
    bench.follow(node(1, "v1-5"))
    (line,) = bench.lines
    line.opened()
    bench.pass_time(r.DOUBT)
    bench.clock.advance(0.1)  # between two ticks
    line.heard(b"login: ")
    bench.clock.advance(0.1)
    assert bench.read() == b"", "nobody waits for it"
    bench.pool.typed = [Typed(1, "v1-5", "r")]
    bench.recorder.wake()
    assert line.typed == b"r"
    line.heard(b"r")
    bench.clock.advance(r.GATHER)
    assert bench.read() == b"login: r"
    bench.pass_time(r.ANSWERING)
    before = bench.read()
    bench.clock.advance(0.1)
    line.heard(b"late")
    bench.clock.advance(0.1)
    assert bench.read() == before
    bench.pass_time(r.TICK)


def test_however_often_it_is_woken_a_line_gets_no_more_than_it_takes(bench: Bench) -> None:
    bench.follow(node(1, "v1-5"))
    bench.lines[0].opened()
    for _ in range(5):
        bench.pool.typed = [Typed(1, "v1-5", "x" * 300)]
        bench.recorder.wake()
    assert len(bench.lines[0].typed) == r.PACE
    bench.pass_time(r.TICK)
    assert len(bench.lines[0].typed) == 2 * r.PACE


def test_what_is_typed_keeps_its_order_while_the_database_is_slow(bench: Bench) -> None:
    bench.follow(node(1, "v1-5"))
    bench.lines[0].opened()
    answers: list[Deferred[bool]] = []

    def slow(flow: object) -> Deferred[bool]:
        answers.append(Deferred())
        return answers[-1]

    bench.pool.read = slow  # type: ignore[method-assign]
    for letter in "abc":
        bench.pool.typed.append(Typed(1, "v1-5", letter))
        bench.recorder.wake()
    assert len(answers) == 1, "one look after the other"
    answers[0].callback(True)
    assert len(answers) == 2
    answers[1].callback(True)
    assert bench.lines[0].typed == b"abc"
    assert len(answers) == 2, "one more look answers all that woke it meanwhile"
