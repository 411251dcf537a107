"""`cod simulate`: what it prints and writes, that equal seeds give equal bytes, and what it says to
wrong input."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner, Result

from cod.cli.root import cod
from cod.cli.server import simulate as command
from cod.sim.results.plots import metric, of_sweep
from cod.svg import Axis, Line, areas, lines
from tests.unit.swf_lines import HEADER, line

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).resolve().parents[2] / "docs/examples"
SMALL = """
days = 0.5
[policy]
inertia = 60
[energy]
manage = true
[[type]]
name = "node"
blocks = [3, 3]
[[group]]
name = "low"
[[group]]
name = "high"
priority = 10
[[demand]]
name = "queue"
group = "low"
model = "queue"
arrivals = { per_day = 200 }
runtime = { median = 900 }
[[demand]]
name = "jobs"
group = "high"
model = "jobs"
nodes = [1, 2]
arrivals = { per_day = 60 }
runtime = { median = 900 }
"""


@pytest.fixture
def small(tmp_path: Path) -> str:
    (tmp_path / "small.toml").write_text(SMALL)
    return str(tmp_path / "small.toml")


def run(*words: str, code: int = 0) -> Result:
    result = CliRunner().invoke(cod, ["simulate", *words])
    assert result.exit_code == code, result.output
    return result


def as_json(*words: str) -> Any:
    return json.loads(run(*words, "--json").stdout)


def svg(path: Path) -> list[str]:
    """The texts in a chart."""
    return [
        one.text or ""
        for one in ElementTree.parse(path).getroot().iter("{http://www.w3.org/2000/svg}text")
    ]


# ---------------------------------------------------------------- one run


def test_a_table_for_people(small: str) -> None:
    said = run(small, "--check").stdout
    assert said.startswith("small: 6 nodes, 0.5 days, seed 1\n")
    rows = [row.split() for row in said.splitlines() if row[:1].isdigit()]
    assert [row[0] for row in rows] == ["10", "0"]
    for word in ("nodes: active ", "taken: ", "energy: "):
        assert word in said
    assert "boots that failed" not in said


def test_reservations_and_moves_have_their_tables() -> None:
    said = run(str(EXAMPLES / "bookings.toml"), "--days", "0.6").stdout
    head, row = said[said.index("RESERVATIONS") :].splitlines()[:2]
    assert head.split()[1:4] == ["ASKED", "ACCEPTED", "REFUSED"]
    assert row.startswith("courses")
    assert said[said.index("MOVES ") :].splitlines()[1].split()[:4] == ["morning", "1", "-", "1"]


def test_the_cost_of_wrong_templates_is_told(small: str) -> None:
    words = (small, "--set", "wrong_templates=0.3", "--check")
    faults = as_json(*words)["faults"]
    assert faults["wrong_templates"] > 3
    said = run(*words).stdout.replace("\n", " ")
    assert f"boots that failed: {faults['wrong_templates']} wrong templates;" in said
    assert f"{100 * faults['healthy_lost']:.3f} % of healthy nodes' time lost" in said


def test_equal_seeds_give_equal_bytes(small: str) -> None:
    first, again = run(small, "--json"), run(small, "--json")
    assert first.stdout == again.stdout
    other = run(small, "--json", "--seed", "2")
    assert json.loads(other.stdout)["seed"] == 2
    assert other.stdout.replace('"seed": 2', '"seed": 1') != first.stdout


def test_charts_too_are_the_same_and_are_svg(small: str, tmp_path: Path) -> None:
    for folder in ("one", "two"):
        run(small, "--out", str(tmp_path / folder))
    names = {path.name for path in (tmp_path / "one").iterdir()}
    assert names == {
        "nodes.svg",
        "power.svg",
        "waiting.svg",
        "groups.svg",
        "jobs_by_group.svg",
        "jobs_by_queue.svg",
        "result.json",
    }
    for name in names:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    assert "small: nodes by state" in svg(tmp_path / "one/nodes.svg")
    assert {"priority 10", "priority 0"} <= set(svg(tmp_path / "one/waiting.svg"))
    for chart, labels in (
        ("groups", {"low", "high"}),
        ("jobs_by_group", {"low", "high"}),
        ("jobs_by_queue", {"queue", "jobs"}),
    ):
        assert labels <= set(svg(tmp_path / "one" / f"{chart}.svg"))
    assert json.loads((tmp_path / "one/result.json").read_text()) == as_json(small)


def test_keys_are_set(small: str) -> None:
    result = as_json(
        small, "--set", "policy.inertia=900", "--set", "type.node.blocks=[5]", "--days", "0.25"
    )
    assert (result["policy"]["inertia"], result["nodes"], result["days"]) == (900, 5, 0.25)


def test_a_scenario_that_ships_is_known_by_name() -> None:
    assert as_json("web", "--days", "0.1")["nodes"] == 60


def test_rules_come_from_a_site_file(small: str, tmp_path: Path) -> None:
    site = tmp_path / "site.toml"
    site.write_text(SITE)
    result = as_json(small, "--rules", str(site))
    assert (result["policy"]["inertia"], result["energy"]["warm_high"]) == (1234, 9)
    result = as_json(small, "--rules", str(site), "--set", "policy.inertia=5")
    assert (result["policy"]["inertia"], result["energy"]["warm_high"]) == (5, 9)
    site.write_text(SITE.replace("warm_low = 1", "warm_low = 99"))
    assert "should not be above warm_high" in run(small, "--rules", str(site), code=1).output


SITE = """
[policy]
inertia = 1234
[energy]
warm_low = 1
warm_high = 9
[[subnet]]
name = "lab"
interface = "eth1"
network = "10.77.0.0/16"
server = "10.77.0.1"
boot_pool = ["10.77.1.0", "10.77.1.255"]
block_pool = ["10.77.16.0", "10.77.31.255"]
"""


def test_a_broken_promise_ends_the_run(small: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from cod.sim.check import rules

    monkeypatch.setattr(rules, "broken", lambda *_: ["request 1: too much"])
    assert "at 0 s: request 1: too much" in run(small, "--check", code=1).output


def test_long_runs_show_their_progress(capsys: pytest.CaptureFixture[str]) -> None:
    now = [0.0]
    with command._Progress("long run", clock=lambda: now[0]) as progress:
        progress.at(0.1)
        assert progress._bar is None
        now[0] = 2.1
        progress.at(0.5)
        assert progress._bar is not None
        progress.at(1.0)
    captured = capsys.readouterr()
    assert "long run" in captured.err
    assert captured.out == ""


def test_all_keys_are_shown() -> None:
    said = run("--keys").stdout
    rows = {" ".join(row.split()) for row in said.splitlines()}
    assert "days 30 how long jobs are submitted" in rows
    assert "type.NAME.times.wake 150 from off to its report" in rows
    assert "demand.NAME.nodes (queue) [1] sizes of jobs, each as likely as the others" in rows
    assert any(row.startswith("demand.NAME.file (trace) - ") for row in rows)


# ---------------------------------------------------------------- sweeps


def test_a_sweep_runs_once_for_each_value(small: str, tmp_path: Path) -> None:
    result = as_json(small, "--sweep", "policy.inertia=0,1800", "--out", str(tmp_path / "out"))
    assert result["sweep"] == "policy.inertia"
    assert [(one["value"], one["policy"]["inertia"]) for one in result["runs"]] == [
        ("0", 0),
        ("1800", 1800),
    ]
    texts = svg(tmp_path / "out/sweep.svg")
    assert {"small: policy.inertia", "0", "1800", "reallocations per node-hour"} <= set(texts)
    assert {"0", "1800"} <= set(svg(tmp_path / "out/tradeoff.svg"))


def test_keys_are_swept_together(small: str) -> None:
    result = as_json(small, "--sweep", "energy.warm_low+energy.warm_high=0,3", "--days", "0.1")
    assert [(one["energy"]["warm_low"], one["energy"]["warm_high"]) for one in result["runs"]] == [
        (0, 0),
        (3, 3),
    ]
    apart = as_json(small, "--sweep", "energy.warm_low+energy.warm_high=0+2,1+3", "--days", "0.1")
    assert [(one["energy"]["warm_low"], one["energy"]["warm_high"]) for one in apart["runs"]] == [
        (0, 2),
        (1, 3),
    ]


def test_a_sweep_for_people(small: str) -> None:
    said = run(small, "--sweep", "policy.inertia=0,1800", "--days", "0.2").stdout
    assert [row.split()[0] for row in said.splitlines()] == ["POLICY.INERTIA", "0", "1800"]


def test_a_curve_is_chosen(small: str, tmp_path: Path) -> None:
    run(
        small,
        "--sweep",
        "policy.inertia=0,60",
        "--days",
        "0.1",
        "--curve",
        "events,waiting.ready.top.max",
        "--out",
        str(tmp_path),
    )
    assert {"events", "waiting.ready.top.max"} <= set(svg(tmp_path / "sweep.svg"))


# ---------------------------------------------------------------- traces


@pytest.fixture
def trace(tmp_path: Path) -> str:
    text = (
        HEADER
        + "\n".join(line(n, n * 300, runtime=900, procs=8 * (1 + n % 3)) for n in range(1, 40))
        + "\n"
    )
    with gzip.open(tmp_path / "log.swf.gz", "wt") as file:
        file.write(text)
    return str(tmp_path / "log.swf.gz")


@pytest.mark.parametrize("by", ["queue", "user", "group", "job"])
def test_a_trace_is_replayed(trace: str, by: str) -> None:
    result = as_json("--swf", trace, "--by", by, "--check", "--days", "1")
    assert result["nodes"] == 64  # of its header, eight processors each
    assert result["jobs"]["0"]["submitted"] == 39
    assert result["jobs"]["0"]["done"] == 39


def test_a_trace_on_a_site_of_another_size(trace: str) -> None:
    result = as_json("--swf", trace, "--nodes", "4", "--cores", "8")
    assert result["nodes"] == 4
    assert result["days_of_demand"] == pytest.approx((38 * 300 + 900) / 86400, abs=1e-3)
    assert result["days"] > 1.5 * result["days_of_demand"]  # until the last job has ended
    assert result["jobs"]["0"]["done"] == 39
    assert result["waiting"]["jobs"]["0"]["mean"] > 500


def test_a_trace_is_run_until_its_last_job_has_ended_or_a_limit_that_is_told(trace: str) -> None:
    words = ("--swf", trace, "--nodes", "4", "--cores", "8")
    said = run(*words).stdout
    assert "all jobs of 0.143 days have ended; the limit is 1.43 days (run_on)\n" in said
    said = run(*words, "--set", "run_on=0.02").stdout
    assert "jobs that had not ended at the limit of 0.163 days (run_on): " in said
    cut = as_json(*words, "--set", "run_on=0")
    assert cut["days"] == cut["limit_days"] == cut["days_of_demand"]
    jobs = cut["jobs"]["0"]
    assert cut["unfinished_jobs"] == 39 - jobs["done"] > 10
    assert jobs["never_started"] == 39 - jobs["started"] > 5
    assert cut["waiting"]["jobs"]["0"]["so_far"] == jobs["never_started"]
    assert cut["waiting"]["jobs"]["0"]["count"] == 39


def test_only_jobs_of_the_days_of_demand_are_submitted(trace: str) -> None:
    assert as_json("--swf", trace, "--days", "0.05")["jobs"]["0"]["submitted"] == 1 + int(
        0.05 * 86400 / 300
    )


def test_tables_by_group_queue_and_user(tmp_path: Path, small: str) -> None:
    jobs = [line(n, n * 60, runtime=600, procs=1, user=n % 15, queue=n % 2) for n in range(60)]
    (tmp_path / "log.swf").write_text(HEADER + "\n".join(jobs) + "\n")
    rows = [
        row.split()
        for row in run("--swf", str(tmp_path / "log.swf"), "--cores", "1").stdout.splitlines()
    ]
    assert ["trace-0", "30", "30"] in [row[:3] for row in rows]
    heads = [place for place, row in enumerate(rows) if row[:1] in (["GROUP"], ["QUEUE"], ["USER"])]
    assert [rows[place][0] for place in heads] == ["GROUP", "QUEUE", "USER"]
    users = rows[heads[2] + 1 :]
    assert [row[1:3] for row in users[:12]] == [["4", "4"]] * 12
    assert users[12][:3] == ["15", "in", "all,"]
    said = run(small).stdout
    assert "GROUP " in said
    assert "QUEUE " in said
    assert "USER " not in said


def test_a_trace_that_does_not_tell_its_size(tmp_path: Path) -> None:
    (tmp_path / "bare.swf").write_text(line() + "\n")
    assert "give --nodes" in run("--swf", str(tmp_path / "bare.swf"), code=2).output
    assert as_json("--swf", str(tmp_path / "bare.swf"), "--nodes", "4")["nodes"] == 4


def test_what_is_left_out_of_a_trace_is_told(tmp_path: Path) -> None:
    (tmp_path / "log.swf").write_text(
        "\n".join((line(1), line(2, runtime=-1), line(3, procs=-1))) + "\n"
    )
    told = run("--swf", str(tmp_path / "log.swf"), "--nodes", "4", "--json")
    assert "no job that ran: 2" in told.stderr
    assert json.loads(told.stdout)["jobs"]["0"]["submitted"] == 1


def test_longer_lines_are_told_once(tmp_path: Path) -> None:
    (tmp_path / "log.swf").write_text("\n".join(line(n) + " 4096 -1 -1" for n in range(9)) + "\n")
    told = run(
        "--swf",
        str(tmp_path / "log.swf"),
        "--nodes",
        "4",
        "--json",
        "--sweep",
        "policy.inertia=0,60",
    )
    (said,) = [row for row in told.stderr.splitlines() if "fields" in row]
    assert said.endswith(
        "log.swf: lines with more than 18 fields, of which the first 18 were read: 9"
    )


def test_a_malformed_trace_names_its_line(tmp_path: Path) -> None:
    (tmp_path / "bad.swf").write_text(HEADER + line() + "\n1 2 3\n")
    said = run("--swf", str(tmp_path / "bad.swf"), code=1).output
    assert "bad.swf: line 8: a job has 18 fields, this line has 3" in said


# ---------------------------------------------------------------- wrong usage


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ((), "name one scenario, or give --swf FILE"),
        (("{small}", "--set", "policy.inertia"), "should be KEY=VALUE"),
        (("{small}", "--sweep", "policy.inertia"), "--sweep should be KEY=VALUE,VALUE"),
        (("{small}", "--sweep", "policy.inertia=0,,5"), "--sweep should be KEY=VALUE,VALUE"),
        (
            ("{small}", "--sweep", "energy.warm_low+energy.warm_high=1+2+3"),
            "has 3 values for 2 keys",
        ),
        (
            ("{small}", "--sweep", "policy.inertia=0", "--curve", "events"),
            "--curve should name two figures",
        ),
        (
            ("{small}", "--sweep", "policy.inertia=0", "--curve", "events,nonsense"),
            "there is no figure 'nonsense'",
        ),
        (
            ("{small}", "--sweep", "policy.inertia=0", "--curve", "events,power"),
            "there is no figure 'power'",
        ),
    ],
)
def test_wrong_usage(small: str, words: tuple[str, ...], sentence: str) -> None:
    result = run(*(word.format(small=small) for word in words), code=2)
    assert sentence in result.output


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("nothing",), "scenarios that ship with COD: bursts, campus, web"),
        (
            ("{small}", "--set", "policy.inerta=1"),
            "policy.inerta: no such key; did you mean 'inertia'?",
        ),
        (("{small}", "--set", "type.fat.cost=1"), "type.fat: there is no such table"),
        (
            ("{small}", "--sweep", "policy.inertia=0,-1", "--days", "0.1"),
            "policy.inertia: should be at least 0",
        ),
    ],
)
def test_a_scenario_that_cannot_be_used(small: str, words: tuple[str, ...], sentence: str) -> None:
    assert sentence in run(*(word.format(small=small) for word in words), code=1).output


# ---------------------------------------------------------------- charts


def points(chart: str) -> list[list[tuple[float, float]]]:
    """Where the lines of a chart go."""
    root = ElementTree.fromstring(chart)
    return [
        [
            (float(x), float(y))
            for x, y in (pair.split(",") for pair in one.attrib["points"].split())
        ]
        for one in root
        if one.tag.endswith(("polyline", "polygon"))
    ]


def test_lines_go_where_the_numbers_are() -> None:
    chart = lines("t", [Line("a", [(0, 0), (5, 10), (10, 5)])], Axis("x"), Axis("y"))
    ((first, middle, last),) = points(chart)
    assert first[0] < middle[0] < last[0]
    assert middle[0] - first[0] == pytest.approx(last[0] - middle[0])
    assert first[1] > last[1] > middle[1]  # upwards is less
    assert first[1] - last[1] == pytest.approx(last[1] - middle[1])


def test_each_axis_has_its_own_scale() -> None:
    chart = lines(
        "t",
        [Line("a", [(0, 0), (1, 1)]), Line("b", [(0, 0), (1, 1000)], right=True)],
        Axis("x"),
        Axis("y"),
        Axis("z"),
    )
    left, right = points(chart)
    assert left == right
    assert "1000" in chart


def test_decades_are_equally_wide() -> None:
    ((a, b, c),) = points(
        lines("t", [Line("a", [(1, 0), (10, 1), (100, 2)])], Axis("x", log=True), Axis("y"))
    )
    assert b[0] - a[0] == pytest.approx(c[0] - b[0])


def test_areas_stand_on_each_other() -> None:
    low, high = points(
        areas("t", [("a", [(0, 1), (1, 1)]), ("b", [(0, 2), (1, 2)])], Axis("x"), Axis("y"))
    )
    assert low[:2] == list(reversed(high[2:]))  # the rim of one is the floor of the next


@pytest.mark.parametrize(
    "drawn", [[], [Line("a", [])], [Line("a", [(3, 3)])], [Line("a", [(0, 0), (1, 0)])]]
)
def test_charts_of_next_to_nothing(drawn: list[Line]) -> None:
    ElementTree.fromstring(lines("t", drawn, Axis("x"), Axis("y")))


def test_texts_are_escaped() -> None:
    chart = lines("<t> & more", [Line("a<b", [(0, 1)])], Axis("x"), Axis("y"))
    assert "<t>" not in chart
    assert ElementTree.fromstring(chart) is not None


def test_figures_are_found_by_their_path() -> None:
    result = {
        "waiting": {"ready": {"10": {"mean": 5.0}, "0": {"mean": 1.0}, "all": {"mean": 2.0}}},
        "events": 3,
    }
    assert metric(result, "waiting.ready.top.mean") == 5.0
    assert metric(result, "waiting.ready.all.mean") == 2.0
    assert metric(result, "events") == 3.0
    with pytest.raises(KeyError):
        metric(result, "waiting.ready")
    charts = of_sweep(
        "s", "k", [("1", result), ("2", result)], ("events", "waiting.ready.top.mean")
    )
    assert set(charts) == {"sweep.svg", "tradeoff.svg"}
