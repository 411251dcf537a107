"""What outside does not do its part: the table of the command line, the portal and the metrics."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from unittest.mock import Mock

from prometheus_client.parser import text_string_to_metric_families

from cod import notice_texts
from cod.core import notices
from cod.doctor.checks import faults as check
from cod.doctor.finding import Context
from cod.flows.nodes import faults, power
from cod.model import OutsideFault, Site
from cod.states import IMAGE_SERVER, KERBEROS, POWER_CONTROL
from cod.store import energy_curve, volumes, watermarks
from cod.store.energy_curve import Stored
from cod.store.nodes import conflicts, nodes, switch_ports, switches
from cod.store.people import groups
from cod.web.api import metrics
from tests.net.apiserver import NOW, Served, add_node, as_json, run
from tests.net.portalclient import signed_in
from tests.net.test_event_streams import held

ABOUT = "the file server does not answer"
BMC = "power: the BMC does not answer; it is tried again"


def tell(served: Served, text: notice_texts.NoticeText, at: float) -> None:
    served.tx(notices.add, **text, group_id=None, now=at)


def lasting(served: Served) -> list[Any]:
    """Make one fault of each kind that is not told by notices alone; returns the nodes."""
    found = [
        add_node(served, "n1", 1),
        add_node(served, "n2", 2, reason=BMC, waits_for=POWER_CONTROL, waits_since=NOW - 50.0),
        add_node(served, "n3", 3, reason=BMC, waits_for=POWER_CONTROL, waits_since=NOW - 40.0),
        add_node(served, "n4", 4, reason=power.FOUND_OFF),
        add_node(served, "n5", 5, reason="404", waits_for=IMAGE_SERVER, waits_since=NOW - 20.0),
        add_node(served, "n6", 6, reason="no KDC", waits_for=KERBEROS, waits_since=NOW - 25.0),
    ]
    tell(served, notice_texts.found_off("n4"), NOW - 30.0)
    served.tx(energy_curve.put, Stored("/curve", "", NOW - 90.0, NOW - 90.0, "no such file"))
    served.tx(watermarks.move, watermarks.HOLD, None, NOW - 100.0)
    served.tx(switches.keep, ["leaf", "spine"])
    served.tx(switches.ended, "leaf", 0, failures=5, reason="timed out", answered_at=NOW - 70.0)
    for number, name in enumerate(("leaf", "spine")):
        node, port = found[number], {"switch": name, "port": "p1"}
        row = served.tx(
            switch_ports.add,
            **port,
            node_id=node.id,
            mac=node.boot_mac,
            source="manual",
            now=NOW - 60.0,
        )
        row = served.tx(switch_ports.wish, row, 20, NOW - 60.0)
        if name == "spine":
            served.tx(switch_ports.change, row, given_up=True, reason="no such VLAN")
    group = served.tx(groups.by_name, "site")
    columns = {"group_id": group.id, "fileserver": "nas", "size": 2**30, "created_at": NOW}
    columns |= {"kind": "data", "sequence": 1, "next_at": NOW}
    made = served.tx(volumes.add, name="site/b", path="/b", export_id=1000, **columns)
    served.tx(volumes.change, made.id, reason=ABOUT, told=True)
    tell(served, notice_texts.volume_trouble("site/b", "nas", ABOUT), NOW - 80.0)
    tell(served, notice_texts.volume_trouble("site/b", "nas", ABOUT), NOW - 80.0)
    mac = found[0].boot_mac
    served.tx(conflicts.add, "dhcp", "takes an address", NOW - 10.0, subnet="lab", mac=mac)
    return found


def test_each_fault_says_since_when_and_whom_it_affects(served: Served) -> None:
    lasting(served)
    assert served.tx(faults.every, now=NOW) == [
        OutsideFault(
            "dhcp",
            "another DHCP server on lab",
            NOW - 10.0,
            None,
            ("n1",),
            (),
            "takes an address",
        ),
        OutsideFault("image-server", IMAGE_SERVER, NOW - 20.0, None, ("n5",), (), "n5: 404"),
        OutsideFault("kerberos", KERBEROS, NOW - 25.0, None, ("n6",), (), "n6: no KDC"),
        OutsideFault(
            "found-off",
            "nodes found off",
            NOW - 30.0,
            None,
            ("n4",),
            (),
            f"n4: {power.FOUND_OFF}",
        ),
        OutsideFault(
            "power-control", POWER_CONTROL, NOW - 50.0, None, ("n2", "n3"), (), f"n2: {BMC}"
        ),
        OutsideFault(
            "switch-port",
            "ports of switch spine",
            NOW - 60.0,
            None,
            ("n2",),
            (),
            "port p1: no such VLAN",
        ),
        OutsideFault("switch", "switch leaf", NOW - 70.0, None, ("n1",), (), "timed out"),
        OutsideFault("file-server", "file server nas", NOW - 80.0, None, ("site/b",), (), ABOUT),
        OutsideFault(
            "energy-curve", "energy curve", NOW - 90.0, None, (), (), "/curve: no such file"
        ),
        OutsideFault("site-held", "the site", NOW - 100.0, None, (), (), ""),
    ]


def test_a_fault_says_which_cluster_waits(served: Served) -> None:
    served.tx(groups.ensure, "physics", NOW)
    served.tx(held, "n1", 1, "physics")
    node = served.tx(nodes.named, "n1")
    served.tx(nodes.change, node, reason="404", waits_for=IMAGE_SERVER, waits_since=NOW - 20.0)
    (fault,) = served.tx(faults.every, now=NOW)
    assert (fault.affects, fault.waits) == (("n1",), ("of-physics",))
    (line,) = run(served, "fault", "list").stdout.splitlines()[1:]
    assert "of-physics" in line
    assert "of-physics" in signed_in(served).get("/faults").words


def test_a_command_that_was_given_up_is_a_fault_from_its_wish_on(served: Served) -> None:
    """Not since the node came into its state, which may be weeks ago."""
    node = add_node(served, "n1", 1, reason=BMC, power_driver="sim", power_address="n1")
    served.tx(nodes.wish_power, node, "cycle", NOW + 40.0)
    [fault] = served.tx(faults.every, now=NOW + 100.0)
    assert fault.since == NOW + 40.0


def ends(served: Served) -> None:
    """Tell of the beginning and the end of each fault whose end is told."""
    for number, (begins, ended) in enumerate(
        (
            (notice_texts.switch_away("leaf-1", ["n1"], "?"), notice_texts.switch_back("leaf-1")),
            (notice_texts.power_control_away(["n1"]), notice_texts.power_control_back()),
            (notice_texts.images_not_served(["n1"], "?"), notice_texts.images_served()),
            (notice_texts.found_off("n 1"), notice_texts.found_on("n 1")),
            (
                notice_texts.volume_trouble("site/c", "nas", "?"),
                notice_texts.volume_trouble_over("site/c", "nas"),
            ),
        )
    ):
        assert notice_texts.KINDS[ended["kind"]].ends == begins["kind"]
        assert begins["link"] == ended["link"]
        tell(served, begins, NOW - 100.0 - number)
        tell(served, ended, NOW - 50.0 - number)


def test_each_fault_that_was_told_has_an_end(served: Served) -> None:
    ends(served)
    found = served.tx(faults.every, now=NOW)
    assert [(one.what, one.since, one.ended, one.affects) for one in found] == [
        ("switch leaf-1", NOW - 100.0, NOW - 50.0, ()),
        ("power control", NOW - 101.0, NOW - 51.0, ()),
        ("the image server", NOW - 102.0, NOW - 52.0, ()),
        ("node n 1", NOW - 103.0, NOW - 53.0, ("n 1",)),
        ("volume site/c", NOW - 104.0, NOW - 54.0, ("site/c",)),
    ]
    assert served.tx(faults.every, now=NOW + faults.ENDED) == []


def test_a_fault_that_began_again_is_not_over(served: Served) -> None:
    for text in (
        notice_texts.found_off("n1"),
        notice_texts.found_on("n1"),
        notice_texts.found_off("n1"),
    ):
        tell(served, text, NOW)
    assert served.tx(faults.every, now=NOW) == []


def test_another_dhcp_server_is_gone_when_it_gave_no_address_for_an_hour(served: Served) -> None:
    served.tx(conflicts.add, "dhcp", "takes an address", NOW, subnet="lab", mac="?")
    [fault] = served.tx(faults.every, now=NOW + faults.RECENT - 1)
    assert fault.ended is None
    [fault] = served.tx(faults.every, now=NOW + faults.RECENT)
    assert fault.ended == NOW


def test_the_metrics_count_faults_by_kind_and_are_zero_without(served: Served) -> None:
    def gauges() -> dict[str, dict[str, float]]:
        text = metrics.text(metrics.MetricsRows(faults=served.tx(faults.gauges, NOW))).decode()
        return {
            family.name: {one.labels["kind"]: one.value for one in family.samples}
            for family in text_string_to_metric_families(text)
            if family.name.startswith("cod_outside")
        }

    ends(served)
    none = dict.fromkeys(faults.KINDS, 0.0)
    assert set(gauges()) == {f"cod_outside_faults{rest}" for rest in ("", "_affected", "_seconds")}
    assert all(found == none for found in gauges().values())
    lasting(served)
    tell(served, notice_texts.directory_held(["ann", "bob"], 3), NOW)
    tell(served, notice_texts.secondary_late("192.0.2.53@cod1", "it does not answer"), NOW)
    found = gauges()
    assert found["cod_outside_faults"] == dict.fromkeys(faults.KINDS, 1.0)
    assert found["cod_outside_faults_affected"] == found["cod_outside_faults"] | {
        "power-control": 2.0,
        "directory": 0.0,
        "dns-secondary": 0.0,
        "energy-curve": 0.0,
        "site-held": 0.0,
    }
    assert found["cod_outside_faults_seconds"]["switch"] == 70.0


def test_the_command_and_the_page_show_the_table(served: Served) -> None:
    assert as_json(served, "fault", "list") == []
    assert "No faults." in signed_in(served).get("/faults").words
    ends(served)
    lasting(served)
    lines = run(served, "fault", "list").stdout.splitlines()
    assert lines[0].split() == ["FAULT", "SINCE", "ENDED", "AFFECTS", "WAITING", "ABOUT"]
    names = [each["what"] for each in as_json(served, "fault", "list")]
    assert len(lines) == len(names) + 1
    page = signed_in(served).get("/faults")
    assert all(name in page.words for name in names)
    assert page.tree.xpath("//a[@href='/volumes/site/b']")
    assert page.tree.xpath("//a[@href='/nodes/n3']")
    part = signed_in(served).get("/faults", part="faults")
    assert (part.status, "power control" in part.text) == (200, True)


def test_the_doctor_tells_what_lasts(served: Served, site: Site, tmp_path: Path) -> None:
    settings = Mock(socket=served.socket)
    context = Context(site, settings, None, NOW, True)
    assert [each.state for each in check.findings(context)] == ["good"]
    ends(served)
    lasting(served)
    found = list(check.findings(context))
    assert {each.state for each in found} == {"bad"}
    assert len(found) == len([one for one in served.tx(faults.every, now=NOW) if not one.ended])
    told = {each.found.partition(":")[0]: each.found for each in found}
    assert told["power control"] == f"power control: n2: {BMC}; since 50 s; affects n2, n3"
    settings.socket = tmp_path / "none"
    assert [each.state for each in check.findings(context)] == ["not seen"]
    many = {"what": "x", "about": "y", "since": None, "affects": list("abcdefg"), "waits": ["w"]}
    assert check.sentence(many, NOW) == "x: y; affects a, b, c, d, e and 2 more; waiting w"


def test_notices_of_faults_lead_to_their_line(served: Served) -> None:
    lasting(served)
    text = signed_in(served).get("/faults").text
    for told in (
        notice_texts.switch_away("leaf", ["n1"], "?"),
        notice_texts.power_control_away(["n1"]),
        notice_texts.images_not_served(["n1"], "?"),
    ):
        page, _, line = told["link"].partition("#")
        assert (page, bool(re.search(f'id="{line}"', text))) == ("/faults", True), line
