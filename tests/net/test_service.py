"""`cod serve` as real processes: started, killed, told to read again, stopped. Parts that need no
privileges."""

from __future__ import annotations

import collections
import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import prometheus_client
import pytest
from sqlalchemy import text

from cod import init, logs
from cod.model import SiteRef
from cod.service.process import Running
from cod.site import load
from cod.site.changes import SiteChanges
from cod.store import watermarks
from cod.store.database import connect
from cod.web.api.metrics import Mirror
from tests.net.server_process import WAIT, Serving, alive, founded

pytestmark = pytest.mark.slow  # half a minute of processor time and more, together with its like


CONTRADICTIONS = (
    ("policy", "inertia = -1", "policy.inertia: should be at least 0, not -1"),
    (
        "policy",
        "inertia_by_priority = { 10 = -5 }",
        "policy.inertia_by_priority.10: should be at least",
    ),
    ("energy", "warm_low = 9", "energy: warm_low 9 should not be above warm_high 4"),
    (
        "energy",
        "watts_off = 100",
        "energy: watts_off, watts_idle and watts_busy should not fall: 100, 80, 200",
    ),
)


@pytest.fixture
def serving() -> Iterator[Serving]:
    with founded(Serving) as serving:
        yield serving


@pytest.mark.slow
def test_killed_parts_come_back_and_no_part_outlives_a_killed_server(serving: Serving) -> None:
    serving.start()
    serving.until(serving.answers, "an answer")
    first = serving.parts()
    os.kill(first["web"], signal.SIGKILL)
    serving.says("web ended with signal 9 (SIGKILL); starting it again in 0.5 s")
    serving.until(serving.answers, "another answer")
    second = serving.parts()
    assert second["web"] != first["web"]
    assert second["manager"] == first["manager"]
    serving.until(serving.counts, "the counts of both parts")
    serving.running.kill()
    serving.running.wait(WAIT)
    serving.until(lambda: not any(map(alive, second.values())), "the end of the parts")
    serving.start()
    serving.until(
        serving.answers, "an answer of the next server, though the old one's socket was left behind"
    )
    assert serving.stop() == 0
    assert not any(map(alive, serving.parts().values()))
    assert serving.log.rstrip().endswith("stopped")
    assert "was killed" not in serving.log
    assert "Traceback" not in serving.log
    ended = [
        file.name
        for file in serving.counters.glob("*.db")
        if not Path("/proc", file.stem.rpartition("_")[2]).exists()
    ]
    assert not ended, "counts of processes that are gone stay in memory"


def test_sighup_reads_the_site_file_again_and_a_bad_one_changes_nothing(serving: Serving) -> None:
    serving.only = "web"
    good = serving.site.read_text().replace('# log_format = "text"', 'log_format = "json"')
    serving.site.write_text(good)
    serving.start()
    serving.until(serving.answers, "an answer")
    assert "GET /api/v1/health" not in serving.log
    serving.site.write_text(good.replace("\n[policy]", "\n[policy]\nhartbeat = 3"))
    serving.running.send_signal(signal.SIGHUP)
    serving.says("the old settings stay")
    serving.says("did you mean 'heartbeat'?")
    for number, (table, line, why) in enumerate(CONTRADICTIONS, 2):
        serving.site.write_text(good.replace(f"\n[{table}]", f"\n[{table}]\n{line}"))
        serving.running.send_signal(signal.SIGHUP)
        serving.says("the old settings stay", number)
        serving.says(why)
    assert serving.answers()
    serving.site.write_text(good.replace('# log_level = "info"', 'log_level = "debug"'))
    serving.running.send_signal(signal.SIGHUP)
    serving.says("read the site file again")
    serving.until(serving.answers, "an answer")
    serving.says("user:root GET /api/v1/health: 200")
    assert serving.stop() == 0
    lines = [json.loads(line) for line in serving.log.splitlines()]
    assert {line["part"] for line in lines} == {"web"}


class Rereading:
    """What `Running` needs of its ground to read the site file again."""

    def __init__(self, site: SiteRef, settings: load.Settings) -> None:
        self.site, self.settings, self.reactor = site, settings, None
        self.changes = SiteChanges(settings.path, load.tables(settings.path))


def test_a_part_that_is_ready_looks_for_garbage_again(tmp_path: Path) -> None:
    """`cod serve` loads its modules without."""
    program = """
import gc
from types import SimpleNamespace
from cod.service.process import Running
gc.disable()
Running("manager", SimpleNamespace(reactor=None), []).start()
print(gc.isenabled(), gc.get_freeze_count() > 0)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "True True\n", done.stderr


@pytest.mark.usefixtures("log_levels")
@pytest.mark.parametrize(("table", "line", "why"), CONTRADICTIONS)
def test_a_contradictory_policy_changes_nothing_on_reread(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, table: str, line: str, why: str
) -> None:
    init.found(tmp_path, tmp_path / "site.toml", {}, 1000.0)
    site, settings = load.load(tmp_path / "site.toml")
    sites = SiteRef(site)
    running = Running("manager", Rereading(sites, settings), [])
    good = settings.path.read_text()
    before = site.policy, site.energy
    settings.path.write_text(
        good.replace(
            f"\n[{table}]",
            (
                f"\n[{table}]\nmanage = true\n{line}"
                if table == "energy"
                else f"\n[{table}]\nheartbeat = 1.0\n{line}"
            ),
        )
    )
    running.reread()
    assert sites.current is site
    assert "the old settings stay" in caplog.text
    assert why in caplog.text
    settings.path.write_text(
        good.replace("\n[energy]", "\n[energy]\nmanage = true").replace(
            "\n[policy]", "\n[policy]\nheartbeat = 1.0"
        )
    )
    running.reread()
    assert (sites.current.policy, sites.current.energy) == (
        replace(before[0], heartbeat=1.0),
        replace(before[1], manage=True),
    )


@pytest.mark.slow
def test_a_server_with_a_contradictory_policy_does_not_start(serving: Serving) -> None:
    good = serving.site.read_text()
    serving.site.write_text(
        good.replace("\n[energy]", "\n[energy]\nwarm_low = 9").replace(
            "\n[policy]", "\n[policy]\ninertia = -1"
        )
    )
    refuses(serving, "energy: warm_low 9 should not be above warm_high 4")
    assert "policy.inertia: should be at least 0, not -1" in serving.log


def refuses(serving: Serving, words: str) -> None:
    serving.start()
    assert serving.running.wait(WAIT) == 1
    assert words in serving.log
    assert "Traceback" not in serving.log


@pytest.mark.slow
def test_a_server_on_another_schema_says_so_and_stops(serving: Serving) -> None:
    engine = connect(f"sqlite:///{serving.folder}/cod.db")
    with engine.begin() as tx:
        tx.execute(text("UPDATE alembic_version SET version_num = '9999'"))
        mark = watermarks.OLDEST_SCHEMA
        watermarks.move(tx, mark, watermarks.at(tx, mark), 9999.0)
    engine.dispose()
    refuses(serving, "upgraded by a newer version of COD")


@pytest.mark.slow
def test_an_unreachable_database_stops_the_server_and_its_password_stays_secret(
    serving: Serving,
) -> None:
    url = "mysql+pymysql://cod:geheim@127.0.0.1:1/cod"
    serving.site.write_text(
        serving.site.read_text().replace('# database = ""', f'database = "{url}"')
    )
    refuses(serving, "the database cannot be used")
    assert "geheim" not in serving.log


@pytest.mark.slow
def test_a_part_that_cannot_start_says_why(serving: Serving) -> None:
    """The boot server's address is not on this machine."""
    serving.only = "images"
    refuses(serving, "HttpServer cannot start: ")


def test_a_mirror_carries_over_what_was_added() -> None:
    counts = collections.Counter(opened=2)
    counter = prometheus_client.Counter("test_mirror", "", ["what"], registry=None)
    mirror = Mirror(counter, counts)
    mirror()
    mirror()
    counts["opened"] += 3
    counts["lost"] += 1
    mirror()
    found = {
        sample.labels["what"]: sample.value
        for metric in counter.collect()
        for sample in metric.samples
        if sample.name.endswith("_total")
    }
    assert found == {"opened": 5.0, "lost": 1.0}


@pytest.mark.parametrize(
    "control", ["\x1b[31m", "\x07", "\b\b", "\x9b2J", "\x00", "\u2028", "\u202e", "\t", "\x7f"]
)
def test_no_control_character_reaches_a_text_log(control: str) -> None:
    try:
        raise ValueError(control)
    except ValueError:
        record = logging.LogRecord(
            "cod.x", logging.INFO, "", 0, "said %s", (control,), sys.exc_info()
        )
    line = logs.TextLine("edge").format(record)
    assert [each for each in line if each != "\n" and not each.isprintable()] == []
    assert line.splitlines() == line.split("\n")


def test_logs_are_one_line_each_and_keep_passwords(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        logging.getLogger("cod.x").warning(
            "a\nforged line, mysql+pymysql://cod:geheim@db/cod", extra={"node": "n1", "mac": None}
        )
    record = caplog.records[-1]
    line = logs.TextLine("edge").format(record)
    assert line.endswith(
        r"Z warning edge x: a\nforged line, mysql+pymysql://cod:***@db/cod [node=n1]"
    )
    record.node = "line"
    assert logs.TextLine("edge").format(record).endswith("@db/cod"), "the message says so itself"
    record.node = "n\x1b[2J1"
    assert "\x1b" not in logs.TextLine("edge").format(record)
    record.node = "n1"
    value = json.loads(logs.JsonLine("edge").format(record))
    assert (value["node"], value["level"]) == ("n1", "warning")
    assert value["message"] == "a\nforged line, mysql+pymysql://cod:***@db/cod"


def test_running_servers_obey_a_changed_setting(serving: Serving) -> None:
    """Parts of two servers on one database, of which the second is not woken; a server that starts
    obeys from the start, and one that reads its site file again goes on with the change."""
    with founded(Serving) as other:
        other.only = "web"
        shared = f'[server]\nname = "s2"\ndatabase = "sqlite:///{serving.folder}/cod.db"'
        other.site.write_text(other.site.read_text().replace("\n[server]", f"\n{shared}", 1))
        for each in (serving, other):
            each.start()
            each.until(each.answers, "an answer")
        serving.client.post("/groups", {"name": "physics", "priority": 1})

        def invited(by: Serving) -> float:
            """Return for how long a link is good that the server makes."""
            made = by.client.post("/groups/physics/invitations", {"role": "member"})
            return float(made["expires_at"] - made["created_at"])

        assert round(invited(other)) == 604_800
        serving.client.patch("/settings/signin.invitation", {"value": "2 h"})
        serving.says("takes over changed settings: signin.invitation", 2)  # both parts
        other.says("takes over changed settings: signin.invitation")
        assert round(invited(other)) == round(invited(serving)) == 7200
        other.running.send_signal(signal.SIGHUP)
        other.says("read the site file again")
        assert round(invited(other)) == 7200
        assert other.stop() == 0
        (other.folder / "log").unlink()
        other.start()
        other.until(other.answers, "an answer")
        assert round(invited(other)) == 7200
        other.client.patch("/settings/signin.invitation", {"value": None})
        serving.says("takes over changed settings: none", 2)  # it was taken back
        assert round(invited(serving)) == 604_800
