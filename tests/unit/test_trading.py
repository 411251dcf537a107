"""What the benchmark of two pools makes of logs, histories and jobs."""

from __future__ import annotations

from datetime import datetime

import pytest

from tests.bench import trading_stages as stages
from tests.bench.bench_trading import alone
from tests.bench.trading_day import HOUR, LOADS, NIGHTLY, OFFICE, Job, arrivals

BEGAN = datetime(2026, 5, 1, 12).timestamp()
LOG = """\
2026-05-01 12:00:01,500 INFO request 7 is granted: n2 (m3)
2026-05-01 12:00:05,250 DEBUG n2 (m3) is active
2026-05-01 12:00:06,000 INFO n2 (m3) takes part now
not a line of the log
2026-05-01 12:01:00,100 INFO reclaim 1: 1 nodes are wanted back: for vcluster office
2026-05-01 12:01:00,300 INFO reclaim 1 is answered: n2
2026-05-01 12:01:02,000 DEBUG n2 (m3) is out of the pool
2026-05-01 12:01:02,100 INFO n2 (m3) was given back: reclaimed
"""
OTHER = "2026-05-01 12:01:09,500 INFO request 8 is granted: n4 (m3)\n"


def history(*rows: tuple[float, str, str]) -> list[dict[str, object]]:
    return [{"at": BEGAN + at, "event": event, "to_state": state} for at, event, state in rows]


ROWS = history(
    (-5, "idled", "inactive"),
    (1.25, "prime_ordered", "prime"),
    (3, "primed", "boot"),
    (5, "booted", "active"),
    (62.0625, "released", "trampoline"),
    (66, "wipe_ordered", "wipe"),
    (68, "wiped", "trampoline"),
    (69, "idled", "inactive"),
)


def test_the_stages_of_a_join() -> None:
    (way,) = stages.joins(stages.said(LOG), {"m3": ROWS}, {7: BEGAN + 1})
    assert way.stages == pytest.approx(
        {"asked, granted, told": 0.5, "order, boot": 3.75, "active, told": 0.25, "takes part": 0.75}
    )
    assert way.how == "warm, empty"
    assert way.own(stages.JOIN) == pytest.approx(0.75)


def test_waiting_until_a_node_is_free_is_no_stage() -> None:
    earlier = history(
        (-9, "booted", "active"), (-2, "released", "trampoline"), (1.125, "idled", "inactive")
    )
    (way,) = stages.joins(stages.said(LOG), {"m3": [*earlier, *ROWS[1:]]}, {7: BEGAN - 10})
    assert way.stages["asked, granted, told"] == pytest.approx(0.375)
    assert way.stages["order, boot"] == pytest.approx(3.75)


def test_where_the_node_waited() -> None:
    rows = history(
        (-5, "powered_down", "off"),
        (1.25, "woken", "trampoline"),
        (2, "boot_ordered", "boot"),
        (5, "booted", "active"),
        (62, "released", "trampoline"),
        (64, "prime_ordered", "prime"),
    )
    (way,) = stages.joins(stages.said(LOG), {"m3": rows}, {7: BEGAN + 1})
    assert way.how == "cold, cached"


@pytest.mark.parametrize("without", ["is active", "takes part", "is granted"])
def test_a_join_that_did_not_end_is_left_out(without: str) -> None:
    log = "\n".join(line for line in LOG.splitlines() if without not in line)
    assert stages.joins(stages.said(log), {"m3": ROWS}, {7: BEGAN + 1}) == []


def test_the_stages_of_a_reclaim() -> None:
    asked = {8: {"submitted_at": BEGAN + 59}}
    rows = [{"id": 1, "request_id": 8, "created_at": BEGAN + 60}]
    (way,) = stages.reclaimed(rows, asked, stages.said(LOG), stages.said(OTHER), {"m3": ROWS})
    assert way.stages == pytest.approx(
        {
            "request, reclaim, told": 0.1,
            "answered": 0.2,
            "jobs requeued, host out": 1.7,
            "released": 0.0625,
            "boot, wipe": 6.9375,
            "granted to the other, told": 0.5,
        }
    )
    assert way.own(stages.RECLAIM) == pytest.approx(0.8625)
    shown = stages.table({"nightly": [way], "office": []}, stages.RECLAIM)
    assert shown[0] == "| Stage | Whose | nightly: median | longest | office: median | longest |"
    assert shown[-1] == "| **COD's own in all** | | 0.86 s | 0.86 s | - | - |"
    another = {"m5": ROWS}
    assert (
        stages.reclaimed(
            rows, asked, stages.said(LOG), stages.said(OTHER.replace("m3", "m5")), another
        )
        == []
    )


def test_a_machine_is_in_two_pools_when_one_has_it_before_it_left_the_other() -> None:
    lines = stages.said(LOG)
    assert stages.memberships(lines) == [("m3", BEGAN + 1.5, BEGAN + 62)]
    assert stages.in_two_pools(lines, stages.said(OTHER)) == []
    early = OTHER.replace("12:01:09", "12:01:01")
    assert stages.in_two_pools(lines, stages.said(early)) == ["m3"]
    assert stages.in_two_pools(stages.said(early), lines) == ["m3"]
    assert stages.in_two_pools(lines, stages.said(early.replace("m3", "m4"))) == []
    both = OTHER.replace("n4 (m3)", "n4 (m3), n5 (m4)")
    assert stages.memberships(stages.said(both)) == [
        (name, BEGAN + 69.5, float("inf")) for name in ("m3", "m4")
    ]


def test_a_pool_of_its_own_serves_in_order() -> None:
    jobs = [
        Job("office", at, seconds, [], []) for at, seconds in ((0, 10), (1, 10), (2, 5), (30, 1))
    ]
    assert alone(jobs, 1) == [0, 9, 18, 0]
    assert alone(jobs, 2) == [0, 0, 8, 0]
    assert alone(jobs, 3) == [0, 0, 0, 0]


def test_a_day_is_the_same_each_time_and_its_peaks_are_where_they_should_be() -> None:
    for load in LOADS:
        assert arrivals(load, 24) == arrivals(load, 24)
        assert arrivals(load, 6) == [job for job in arrivals(load, 24) if job.at < 6 * HOUR]
    at_night = [
        sum(6 * HOUR < job.at < 14 * HOUR for job in arrivals(load, 24))
        for load in (OFFICE, NIGHTLY)
    ]
    assert at_night[0] < len(arrivals(OFFICE, 24)) / 4
    assert at_night[1] > len(arrivals(NIGHTLY, 24)) / 2
