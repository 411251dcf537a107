"""Which settings can be changed while the servers run, and what the site file and changes make
together."""

from __future__ import annotations

import json
import tomllib
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from cod.model import Refused, SettingChange, SiteSetting
from cod.service.process import CHANGING
from cod.site.changes import HIDDEN, SiteChanges, _text
from tests.unit.test_config import GOOD

FILE = Path("site.toml")
CURVED = GOOD + '\n[energy]\ncurve_file = "/etc/cod/curve.csv"\n'
OPEN = """
burnin.after_failures burnin.after_trouble burnin.at_registration burnin.every burnin.least_hdd
burnin.least_link burnin.least_network burnin.least_nvme burnin.least_ssd burnin.seconds
burnin.tests console.match console.most console.record energy.carbon energy.currency
energy.curve_poll energy.curve_stale energy.forecast_quantile energy.forecast_weeks
energy.hold_above energy.idle_time energy.manage energy.price_kwh energy.price_node_hour
energy.wake_step energy.wake_time energy.warm_high energy.warm_low energy.watts_busy
energy.watts_idle energy.watts_off groups.creators groups.hours_limit groups.max_lease groups.most
groups.node_limit groups.parent groups.priority groups.shares images.expansion images.ingest_time
images.largest images.open_captures images.open_uploads images.pass_on images.pass_on_rate
images.quota notices.digest_hour policy.age_step policy.approved_share policy.binding_time
policy.boot_time policy.changes policy.default_lease policy.drain_grace policy.fair
policy.fair_half_life policy.hold_after policy.inertia policy.inertia_by_priority
policy.lease_warnings policy.max_grace policy.max_lease policy.new_burst policy.new_machines
policy.new_rate policy.new_time policy.node_limit policy.patience policy.pending_requests
policy.power_at_once policy.power_cycle policy.power_rate policy.reclaim_grace policy.secret_time
policy.turnaround policy.victims signin.invitation signin.letters signin.letters_in_all
smtp.admins smtp.sender volumes.home_size volumes.quota
"""
"""A key that is added to an open table fails here until somebody has read how it is used: what can
lock everybody out, moves addresses, guards the server, deletes, or needs a restart says so."""
OTHER: dict[str, Any] = {  # a value that is not the default, where one cannot be made of it
    "burnin.tests": ["disk"],
    "console.match": "rack1-*",
    "energy.currency": "CHF",
    "energy.forecast_quantile": 0.5,
    "energy.hold_above": 300.0,
    "energy.warm_low": 2,
    "energy.watts_idle": 90.0,
    "groups.creators": ["physics"],
    "groups.parent": "physics",
    "images.quota": 10**12,
    "policy.approved_share": 0.5,
    "policy.inertia_by_priority": {"10": 60.0},
    "policy.lease_warnings": [60.0],
    "policy.victims": ["whole-block"],
    "smtp.admins": ["root@example.org"],
    "smtp.sender": "cod@example.org",
    "volumes.quota": 10**12,
}


def rules(text: str = GOOD) -> SiteChanges:
    return SiteChanges(FILE, tomllib.loads(text))


def changed(number: int, name: str, value: Any) -> SettingChange:
    text = None if value is None else json.dumps(value)
    return SettingChange(number, 1000.0 + number, "user:ann", name, text)


def found(name: str, *changes: SettingChange, text: str = GOOD) -> SiteSetting:
    return rules(text).setting(name, changes)


def opened() -> list[SiteSetting]:
    return [each for each in rules().settings([]) if not each.fixed]


def another(setting: SiteSetting) -> Any:
    """Return a value of the setting that is not its default."""
    if setting.name in OTHER:
        return OTHER[setting.name]
    if setting.kind == "flag":
        return not setting.default
    if setting.kind == "choice":
        return next(each for each in setting.choices if each != setting.default)
    return setting.default + 1


def test_the_settings_that_can_be_changed_were_chosen() -> None:
    assert sorted(each.name for each in opened()) == OPEN.split()


def test_each_changes_the_rules_that_a_running_server_takes_over() -> None:
    before, _ = rules(CURVED).site([])
    for setting in opened():
        value = rules(CURVED).checked(setting.name, another(setting), [])
        after, refused = rules(CURVED).site([changed(1, setting.name, value)])
        differ = {
            f.name for f in fields(before) if getattr(before, f.name) != getattr(after, f.name)
        }
        assert differ, setting.name
        assert differ <= set(CHANGING), setting.name
        assert not refused


def test_what_is_fixed_says_what_to_do() -> None:
    for each in rules().settings([]):
        verb = "reload" if "on SIGHUP" in each.table else "restart"
        assert not each.fixed or each.fixed.endswith(f"systemctl {verb} cod."), each.name
    assert found("policy.wipe").fixed.startswith("Not changed here: data that were not erased")
    assert found("notices.ca_file").fixed
    assert found("subnet.0.network").fixed


def test_a_text_of_every_setting_is_read_as_the_same_value() -> None:
    """What a page shows in its form can be sent back."""
    for setting in opened():
        value = rules(CURVED).checked(setting.name, another(setting), [])
        text = _text(value, setting.unit)
        assert rules(CURVED).checked(setting.name, text, []) == value, (setting.name, text)


@pytest.mark.parametrize(
    ("name", "typed", "value"),
    [
        ("policy.inertia", "10 min", 600.0),
        ("policy.inertia", 600, 600),
        ("policy.lease_warnings", "1 d, 2 h", [86400.0, 7200.0]),
        ("policy.inertia_by_priority", "10 = 1 h", {"10": 3600.0}),
        ("policy.power_cycle", "No", False),
        ("images.quota", "500 GB", 500 * 10**9),
        ("burnin.every", "30", 30),
        ("burnin.every", "2 weeks", 14),
        ("energy.watts_off", "7 watts", 7),
        ("groups.creators", "a, b", ["a", "b"]),
        ("groups.parent", "", ""),
    ],
)
def test_values_are_read_as_people_write_them(name: str, typed: Any, value: Any) -> None:
    assert rules().checked(name, typed, []) == value


@pytest.mark.parametrize(
    ("name", "typed", "why"),
    [
        ("policy.inertia", -1, "should be at least 0, not -1"),
        ("policy.inertia", "soon", "should be a length of time"),
        ("policy.inertia", True, "should be a number"),
        ("policy.power_cycle", "perhaps", "should be yes or no"),
        ("policy.fair", "unfair", "should be 'tree', 'classic' or 'dominant'"),
        ("energy.warm_low", 9, "warm_low 9 should not be above warm_high 4"),
        ("policy.victims", "cheap-type, cheap-type", "should name each criterion once"),
        ("smtp.admins", "nobody", "should be"),
        ("energy.watts_off", "many", "should be a number"),
    ],
)
def test_the_site_files_own_rules_refuse(name: str, typed: Any, why: str) -> None:
    with pytest.raises(Refused, match=why):
        rules().checked(name, typed, [])


def test_a_value_may_need_another_change() -> None:
    higher = changed(1, "energy.warm_high", 12)
    assert rules().checked("energy.warm_low", 9, [higher]) == 9


def test_a_change_counts_more_than_the_file_and_says_so() -> None:
    text = GOOD.replace("[policy]", "[policy]\ninertia = 60", 1)
    assert (found("policy.inertia").source, found("policy.inertia").text) == ("default", "5 min")
    said = found("policy.inertia", text=text)
    assert (said.source, said.value, said.problem) == ("file", 60, "")
    both = found("policy.inertia", changed(1, "policy.inertia", 600.0), text=text)
    assert (both.source, both.text, both.file_text) == ("change", "10 min", "1 min")
    assert both.problem.startswith("The site file says 1 min. The change counts;")
    alone = found("policy.inertia", changed(1, "policy.inertia", 600.0))
    assert (alone.source, alone.problem) == ("change", "")
    back = found("policy.inertia", changed(2, "policy.inertia", None), text=text)
    assert (back.source, back.value) == ("file", 60)


def test_changes_that_do_not_go_with_an_edited_file_are_passed_over() -> None:
    """The file's own values hold then, and all other changes."""
    text = GOOD + "\n[energy]\nwarm_high = 2\n"
    some = [changed(1, "energy.warm_low", 4), changed(2, "policy.inertia", 600.0)]
    site, refused = rules(text).site(some)
    assert (site.energy.warm_low, site.policy.inertia) == (1, 600.0)
    assert refused == {"energy.warm_low": "energy: warm_low 4 should not be above warm_high 2"}
    seen = found("energy.warm_low", *some, text=text)
    assert (seen.source, seen.value) == ("default", 1)
    assert seen.problem.startswith("The change is not in effect: energy: warm_low 4 should not")


def test_of_changes_that_need_each_other_the_order_does_not_count() -> None:
    some = [
        changed(1, "energy.warm_low", 9),
        changed(2, "energy.warm_high", 12),
        changed(3, "policy.inertia", -1.0),  # as a program with other rules may have left it
    ]
    site, refused = rules().site(some)
    assert (site.energy.warm_low, site.energy.warm_high) == (9, 12)
    assert list(refused) == ["policy.inertia"]


@pytest.mark.parametrize("name", ["policy.from_a_newer_server", "policy.wipe", "subnet.0.name"])
def test_what_this_program_does_not_open_is_passed_over(name: str) -> None:
    site, refused = rules().site([changed(1, name, "tables")])
    assert site == rules().site([])[0]
    assert refused == {name: "this server does not know it as a setting to be changed"}


@pytest.mark.parametrize("row", ["not json", "", "[", '{"a": '])
def test_a_row_that_cannot_be_read_is_passed_over(row: str) -> None:
    """Servers start and show it, so that it can be taken back."""
    broken = SettingChange(1, 1000.0, "user:ann", "policy.inertia", row)
    site, refused = rules().site([broken, changed(2, "policy.fair", "classic")])
    assert (site.policy.inertia, site.policy.fair) == (300.0, "classic")
    assert refused == {"policy.inertia": "what the database has of it cannot be read"}
    seen = found("policy.inertia", broken)
    assert (seen.source, seen.value) == ("default", 300.0)
    assert seen.problem == "The change is not in effect: " + refused["policy.inertia"] + "."
    assert rules().text(broken) == row
    assert rules().checked("policy.inertia", 600.0, [broken]) == 600.0


@pytest.mark.parametrize("value", [10**400, 10**16 + 1])
@pytest.mark.parametrize("name", ["burnin.least_link", "images.quota"])
def test_large_numbers_are_shown_as_they_are(name: str, value: int) -> None:
    shown = found(name, changed(1, name, value))
    assert shown.value == value
    if value < 10**30:
        assert rules().checked(name, shown.text, []) == value


def test_secrets_are_not_shown() -> None:
    text = GOOD.replace(
        "[server]", '[server]\ndatabase = "mysql+pymysql://cod:s3cret@localhost/cod"', 1
    )
    text += '\n[energy]\ncurve_url = "https://grid.example.org/?key=s3cret"\n'
    every = rules(text).settings([])
    assert "s3cret" not in repr(every)
    hidden = {each.name for each in every if each.text == HIDDEN}
    assert hidden == {"server.database", "energy.curve_url"}


def test_a_file_that_cannot_be_read_again_leaves_the_one_before(tmp_path: Path) -> None:
    path = tmp_path / "site.toml"
    path.write_text("nonsense")
    held = SiteChanges(path, tomllib.loads(GOOD))
    with pytest.raises(Exception, match="is not TOML"):
        held.reread()
    assert held.setting("name", []).value == "rack"
    path.write_text(GOOD.replace('"rack"', '"other"'))
    held.reread()
    assert held.setting("name", []).value == "other"
