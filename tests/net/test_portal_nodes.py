"""The portal's pages about nodes, types and blocks: what they show and to whom, and what their
forms do."""

# ruff: noqa: F401, F811 (fixtures)

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest

from cod.client import ApiError
from cod.model import Role, Who
from cod.states import BurninState
from cod.store.nodes import blocks, conflicts, nodes
from cod.store.nodes import burnins as burnin_rows
from cod.store.people import groups
from tests.history_rows import note_erased
from tests.net.apiserver import NOW, Served, as_json, run
from tests.net.ownersite import engine, furnished_sqlite, there
from tests.net.portalclient import signed_in
from tests.portal_site import TROUBLE

pytestmark = pytest.mark.slow


def of_group(served: Served, name: str, role: Role, group: str = "physics") -> Who:
    found = served.tx(groups.by_name, group)
    return Who(f"user:{name}", user_id=2, roles={found.id: role})


def node(served: Served, name: str) -> Any:
    return served.tx(nodes.by_name, name)


def test_a_nodes_page_tells_how_its_disks_were_erased(there: Served) -> None:
    disk = {"disk": "sda", "model": "<M>", "serial": "<S1>", "wwid": "", "size": 2**32}
    how = {"method": "overwrite", "seconds": 12.5, "checked": 40 << 20}
    served = there
    served.tx(note_erased, node(served, "node01"), json.dumps([disk | how]))
    words = signed_in(served).get("/nodes/node01").words
    assert "Erased: sda (serial <S1>), 4.0 GiB, by overwrite, in 12 s; 40.0 MiB read back" in words


def test_a_nodes_power_is_shown_with_its_age(there: Served) -> None:
    seen = {"power": "on", "power_seen_at": NOW - 200.0}
    there.tx(nodes.change, node(there, "node01"), **seen)
    assert "on, 3 min 20 s ago" in signed_in(there).get("/nodes/node01").words


def test_an_administrator_sees_all_nodes_and_filters_them(there: Served) -> None:
    browser = signed_in(there)
    page = browser.get("/nodes")
    assert page.status == 200, page.words
    assert "36 nodes" in page.words
    assert "node35" in page.words
    assert TROUBLE in page.words
    off = browser.get("/nodes", state="off", sort="-name")
    names = [each.text_content() for each in off.tree.xpath("//tbody//th")]
    assert len(names) == 8
    assert names == sorted(names, reverse=True)
    assert (
        "No node matches this filter"
        in browser.get("/nodes", state="off", type="huge", q="nothing").words
    )


def test_machines_that_cannot_be_booted_are_listed_for_administrators_alone(
    there: Served,
) -> None:
    assert "cannot be booted" not in signed_in(there).get("/nodes").words
    there.tx(
        conflicts.add, "architecture", "52:54:00:00:aa:00 asked to network-boot: it is ARM", NOW
    )
    there.tx(conflicts.add, "identity", "somebody else", NOW)
    words = signed_in(there).get("/nodes").words
    assert "Machines that cannot be booted" in words
    assert "52:54:00:00:aa:00 asked to network-boot: it is ARM" in words
    assert "somebody else" not in words
    assert (
        "52:54:00:00:aa:00"
        not in signed_in(there, of_group(there, "olga", Role.OWNER)).get("/nodes").words
    )


def test_pages_of_a_list_follow_each_other(there: Served) -> None:
    browser = signed_in(there)
    seen, path = [], "/nodes?limit=10"
    for _ in range(4):
        page = browser.get(path)
        seen += [each.text_content() for each in page.tree.xpath("//tbody//th")]
        path = next(iter(page.tree.xpath("//a[@rel='next']/@href")), "")
    assert path == ""
    assert seen == sorted({f"node{number:02}" for number in range(1, 37)})


def test_an_owner_sees_the_nodes_that_the_group_holds(there: Served) -> None:
    browser = signed_in(there, of_group(there, "olga", Role.OWNER))
    page = browser.get("/nodes")
    assert "node01" in page.words
    assert "node30" not in page.words
    own = browser.get("/nodes/node01")
    assert own.status == 200
    assert "Administration" not in own.words
    theirs = browser.get("/nodes/node30")
    assert theirs.status == 404
    assert theirs.words.replace("node30", "") == browser.get("/nodes/node99").words.replace(
        "node99", ""
    )


def test_a_node_shows_what_it_is_and_what_happened_to_it(there: Served) -> None:
    page = signed_in(there).get("/nodes/node01")
    for text in (
        "batch",
        "10.77.129.1",
        "memory/mib",
        "History",
        "prime ordered",
        "its own system",
        "the node leaves",
    ):
        assert text in page.words, text
    bindings = as_json(there, "node", "show", "node01")["bindings"]
    assert {each["kind"]: each["expires_at"] for each in bindings}["vcluster"] is None


def test_setting_a_node_aside_wants_a_reason(there: Served) -> None:
    browser = signed_in(there)
    path = "/nodes/node19/quarantine"
    page = browser.get("/nodes/node19")
    refused = page.send(path, reason=" " * 2000)
    assert refused.status == 422
    assert node(there, "node19").state == "inactive"
    done = page.send(path, reason="its fan is <loud> & slow")
    assert "is out of service" in done.words
    assert "its fan is <loud> & slow" in done.words
    assert "<loud>" not in done.text
    assert node(there, "node19").state == "quarantined"
    done.send("/nodes/node19/restore")
    assert node(there, "node19").state == "trampoline"


def test_an_expected_machine_is_deleted_and_not_tested(there: Served) -> None:
    machine = {"name": "r9-01", "macs": ["52:54:00:99:00:01"]}
    there.local.post("/nodes", machine)
    page = signed_in(there).get("/nodes/r9-01")
    assert "entered by an administrator; has not reported" in page.words
    assert "Burn-in" not in page.words
    assert "Delete" not in signed_in(there).get("/nodes/node19").words
    assert "r9-01 is deleted." in page.send("/nodes/r9-01/delete").words
    assert node(there, "r9-01") is None


def test_the_places_of_a_node_are_shown_approved_and_forgotten_at_every_door(
    there: Served,
) -> None:
    path, found = "/nodes/node19/moved", node(there, "node19")
    home = {"home_at": NOW - 9, "home_subnet": "lab", "home_circuit": "0004"}
    there.tx(nodes.change, found, **home)
    for circuit in ("0009", "0010"):
        there.tx(
            nodes.add_place,
            found.id,
            NOW - 5,
            subnet="lab",
            circuit=circuit,
            remote=None,
            port=None,
        )
    items = there.local.get("/nodes/node19/places")["items"]
    assert [(each["circuit"], each["approved"]) for each in items] == [
        ("0004", True),
        ("0009", False),
        ("0010", False),
    ]
    page = signed_in(there).get("/nodes/node19")
    refused = page.send(path, also="99")
    assert "was heard in no place 99" in refused.words
    assert not refused.tree.xpath("//details[contains(@class, 'confirm')][@open]"), "not asked"
    assert page.send(path).words.count("node19 may boot there") == 1  # the first form approves
    assert [row.circuit for row in there.tx(nodes.places, found.id) if row.approved] == [
        "0009",
        "0004",
    ]
    run(there, "node", "moved", "node19", "--also", str(items[2]["id"]))
    listed = run(there, "node", "places", "node19").output
    assert listed.count("yes") == 3
    assert all(circuit in listed for circuit in ("0004", "0009", "0010"))
    with pytest.raises(ApiError, match="was heard in no place 99"):
        there.local.post("/nodes/node19/moved", {"also": 99})
    there.local.post("/nodes/node19/moved")  # as before there were places: no body
    assert node(there, "node19").home_at is None
    assert there.local.get("/nodes/node19/places")["items"] == []
    assert "Places" not in signed_in(there).get("/nodes/node19").words


def test_only_administrators_see_the_places_of_a_node(there: Served) -> None:
    there.tx(nodes.change, node(there, "node01"), home_at=NOW, home_circuit="0004")
    owner = of_group(there, "olga", Role.OWNER)
    assert "0004" not in signed_in(there, owner).get("/nodes/node01").words
    assert "0004" in signed_in(there).get("/nodes/node01").words


def test_taking_a_node_in_use_out_of_service_asks_and_says_whose_work_stops(
    there: Served,
) -> None:
    path = "/nodes/node01/quarantine"
    page = signed_in(there).get("/nodes/node01")
    assert "the work of physics on it in the virtual cluster batch stops" in page.words
    asked = page.send(path, reason="")
    assert asked.status == 422
    wrong = " ".join(asked.tree.xpath("//*[@role='alert']/text()"))
    assert "should say why" in wrong
    assert "tick this: the work of batch on it stops" in wrong
    assert asked.send(path, reason="its fan is loud").status == 422
    assert node(there, "node01").state == "active"
    assert "is out of service" in asked.send(path, reason="its fan is loud", sure="batch").words
    assert node(there, "node01").state == "quarantined"
    free = signed_in(there).get("/nodes/node19")
    assert "Nobody uses node19" in free.words
    assert not free.tree.xpath("//input[@name='sure']")


def test_a_search_keeps_the_order(there: Served) -> None:
    browser = signed_in(there)
    for path, query in (
        ("/nodes", {"sort": "-since"}),
        ("/vclusters", {"sort": "-size"}),
        ("/requests", {"sort": "priority"}),
    ):
        fields = dict(
            browser.get(path, **query).tree.xpath("//main//form[@role='search']")[0].form_values()
        )
        assert fields["sort"] == query["sort"], path


def test_a_node_is_renamed_and_switched_otherwise(there: Served) -> None:
    browser = signed_in(there)
    page = browser.get("/nodes/node20").send(
        "/nodes/node20/change",
        name="rack4-7",
        power_driver="ipmi",
        power_address="10.78.0.20",
        block="rack9",
    )
    assert page.path == "/nodes/rack4-7"
    changed = node(there, "rack4-7")
    assert (changed.power_driver, changed.power_address) == ("ipmi", "10.78.0.20")
    assert "rack9" in there.tx(blocks.names).values()
    taken = page.send("/nodes/rack4-7/change", name="node01")
    assert taken.status == 409
    assert "there is a node 'node01' already" in taken.words
    assert taken.tree.xpath("//input[@name='name']/@value") == ["node01"]  # what was typed is kept
    browser.get("/nodes/rack4-7").send("/nodes/rack4-7/change", block="")
    assert node(there, "rack4-7").block_id is None


BMC = '<node><bmc by="ipmi" address="10.1.0.7" mac="52:54:00:00:00:99"/></node>'


def test_a_bmc_that_a_node_reports_is_used_by_a_button(there: Served) -> None:
    there.tx(nodes.change, node(there, "node20"), attributes=BMC, power_driver="none")
    page = signed_in(there).get("/nodes/node20")
    assert "node20 reports a BMC at 10.1.0.7 (ipmi, MAC 52:54:00:00:00:99)" in page.words
    used = page.send("/nodes/node20/change")
    changed = node(there, "node20")
    assert (changed.power_driver, changed.power_address) == ("ipmi", "10.1.0.7")
    assert "reports a BMC" not in used.words


def test_a_bmc_that_switches_another_node_is_not_offered(there: Served) -> None:
    """A node can change what its BMC says of itself: that must not lead to another's power."""
    there.tx(nodes.change, node(there, "node20"), attributes=BMC)
    other = {"power_driver": "redfish", "power_address": "https://10.1.0.7/redfish/v1/Systems/1"}
    there.tx(nodes.change, node(there, "node21"), **other)
    words = signed_in(there).get("/nodes/node20").words
    assert "That address switches node21" in words
    assert "Use this BMC" not in words


def test_a_bmc_is_told_to_administrators_alone(there: Served) -> None:
    there.tx(nodes.change, node(there, "node01"), attributes=BMC)
    owner = signed_in(there, of_group(there, "olga", Role.OWNER))
    words = owner.get("/nodes/node01").words
    assert "node01" in words
    assert "reports a BMC" not in words
    assert "10.1.0.7" not in words, "among its hardware"


def test_the_filter_and_the_charts_have_peoples_words(there: Served) -> None:
    browser = signed_in(there)
    page = browser.get("/nodes", state="trampoline,boot")
    options = page.tree.xpath("//select[@name='state']/option")
    assert {"starting", "in use", "asleep"} <= {each.text_content() for each in options}
    assert not {"trampoline", "inactive"} & {each.text_content() for each in options}
    assert page.tree.xpath("//select[@name='state']/option[@selected]/text()") == ["starting"]
    assert len(page.tree.xpath("//tbody//tr")) == 2
    drawn = browser.get("/nodes/node13").tree.xpath("//figure[@aria-label='History of states']")
    assert "trampoline" not in drawn[0].text_content()
    (chart,) = browser.get("/timeline").tree.xpath("//figure[@aria-label='Nodes by state']")
    assert "in use" in chart.text_content()
    assert "inactive" not in chart.text_content()
    for words, tone in (("in use", "good"), ("asleep", "sleep"), ("out of service", "bad")):
        (area,) = chart.xpath(f".//*[local-name()='polygon'][contains(., '{words}')]")
        assert area.get("class") == tone, "as its badge"


def test_an_old_name_leads_to_the_thing(there: Served) -> None:
    browser = signed_in(there)
    for path in ("/nodes/{}", "/types/{}"):
        names = ["node20" if path.startswith("/nodes") else "small", "second", "third"]
        for old, new in pairwise(names):
            browser.get(path.format(old)).send(path.format(old) + "/change", name=new)
        for old in names[:2]:
            assert browser.get(path.format(old)).path == path.format("third")
    assert browser.get("/nodes/node20/burnin").path == "/nodes/third/burnin"
    assert browser.get("/nodes/fourth").status == 404
    stranger = signed_in(there, of_group(there, "sam", Role.MEMBER, group="web"))
    hidden = stranger.get("/nodes/node20")
    assert (hidden.status, "third" in hidden.text) == (404, False), "a name is not told"
    history = there.local.every("/audit", action="node change")
    assert (history[0]["before"]["name"], history[0]["after"]["name"]) == ("second", "third")


def test_a_member_switches_a_node_and_a_viewer_does_not(there: Served) -> None:
    member = signed_in(there, of_group(there, "mei", Role.MEMBER))
    done = member.get("/nodes/node01").send("/nodes/node01/power", desired="cycle")
    assert "being switched" in done.words
    assert node(there, "node01").power_wanted == "cycle"
    assert "being tried" not in done.words
    assert "cycle being tried" in signed_in(there).get("/nodes/node01").words
    viewer = signed_in(there, of_group(there, "vic", Role.VIEWER))
    page = viewer.get("/nodes/node01")
    assert "Power-cycle" not in page.words
    refused = viewer.post(
        "/nodes/node01/power", [*member.get("/nodes/node01").fields("/nodes/node01/power")]
    )
    assert refused.status == 403


def test_a_type_is_priced(there: Served) -> None:
    browser = signed_in(there)
    assert "1024" in browser.get("/types").words or "huge" in browser.get("/types").words
    page = browser.get("/types/huge").send(
        "/types/huge/change", cost="3.5", warm_low="", watts_idle="120"
    )
    assert "is changed" in page.words
    assert page.tree.xpath("//input[@name='cost']/@value") == ["3.5"]
    refused = page.send("/types/huge/change", cost="much")
    assert refused.status == 422
    assert refused.tree.xpath("//input[@name='cost']/@value") == ["much"]


def test_blocks_are_made_filled_and_emptied(there: Served) -> None:
    browser = signed_in(there)
    page = browser.get("/blocks").send("/blocks", name="row9")
    assert "row9" in page.words
    filled = browser.get("/blocks/row9").send("/blocks/row9/add", nodes="node0*\nnode11")
    assert "10 nodes now" in filled.words
    refused = filled.send("/blocks/row9/add", nodes="nothing-*")
    assert refused.status in (404, 422)
    emptied = browser.get("/blocks/row9").send("/blocks/row9/remove", nodes="node*")
    assert "0 nodes now" in emptied.words
    gone = emptied.send("/blocks/row9/delete")
    assert "row9 is deleted" in gone.words


def test_blocks_are_the_administrators(there: Served) -> None:
    browser = signed_in(there, of_group(there, "olga", Role.OWNER))
    assert browser.get("/blocks").status == 403
    assert browser.get("/types").status == 200


def test_reserve_and_energy(there: Served) -> None:
    page = signed_in(there).get("/energy")
    assert page.status == 200, page.words
    assert "kWh saved" in page.words
    assert "the reserve" in page.words
    assert len(page.tree.xpath("//figure//*[local-name()='svg']")) == 1
    assert signed_in(there, of_group(there, "olga", Role.OWNER)).get("/energy").status == 403


def test_policy_and_the_next_pass(there: Served) -> None:
    page = signed_in(there).get("/policy")
    assert page.status == 200, page.words
    assert "staging" in page.words  # waits
    assert "Protection of newly granted nodes" in page.words
    assert signed_in(there, of_group(there, "olga", Role.OWNER)).get("/policy").status == 403


def test_the_timeline_shows_an_owner_the_own_groups(there: Served) -> None:
    page = signed_in(there).get("/timeline")
    assert page.status == 200, page.words
    assert len(page.tree.xpath("//figure//*[local-name()='svg']")) == 2
    assert {"batch", "notebooks", "farm"} <= set(page.tree.xpath("//tbody/tr/th/text()"))
    theirs = signed_in(there, of_group(there, "olga", Role.OWNER)).get(
        "/timeline", window="week", by="vcluster"
    )
    assert "batch" in theirs.words
    assert "farm" not in theirs.words


def test_a_nodes_states_in_time_are_drawn(there: Served) -> None:
    page = signed_in(there).get("/nodes/node01")
    assert len(page.tree.xpath("//figure//*[local-name()='rect']")) > 5


def test_an_administrator_says_which_disks_are_kept(there: Served) -> None:
    browser = signed_in(there)
    page = browser.get("/nodes/node35")
    done = page.send("/nodes/node35/keep", keep="serial:A1\r\nmodel:INTEL SSD*")
    assert "The kept disks of node35 are changed." in done.words, done.words
    assert node(there, "node35").keep == "serial:A1\nmodel:INTEL SSD*"
    refused = done.send("/nodes/node35/keep", keep="sdb")
    assert refused.status == 422
    assert "should be serial:SERIAL, path:/dev/NAME or model:PATTERN" in refused.words
    emptied = browser.get("/nodes/node35").send("/nodes/node35/keep", keep="")
    assert "are changed" in emptied.words
    assert node(there, "node35").keep == ""
    assert (
        "Disks to keep"
        not in signed_in(there, of_group(there, "mary", Role.MEMBER)).get("/nodes/node1").words
    )


def test_marks_that_somebody_changed_meanwhile_are_not_replaced_unseen(there: Served) -> None:
    browser = signed_in(there)
    stale = browser.get("/nodes/node35")
    assert (
        "are changed"
        in browser.get("/nodes/node35")
        .send("/nodes/node35/keep", keep="serial:A1\nmodel:X Y*")
        .words
    )
    refused = stale.send("/nodes/node35/keep", keep="serial:B2")
    assert refused.status == 409
    assert "the present marks are: serial:A1, model:X Y*." in refused.words
    assert node(there, "node35").keep == "serial:A1\nmodel:X Y*"
    assert ("keep", "serial:B2") in refused.fields("/nodes/node35/keep"), "what was typed is kept"
    assert "are changed" in refused.send("/nodes/node35/keep").words, (
        "whoever has seen the marks may replace them"
    )
    assert node(there, "node35").keep == "serial:B2"


def test_a_form_of_disks_to_keep_that_is_sent_twice_is_one_change(there: Served) -> None:
    page = signed_in(there).get("/nodes/node35")
    for _ in range(2):
        assert "are changed" in page.send("/nodes/node35/keep", keep="serial:B2").words
    cleared = page.send("/nodes/node35/keep", keep="")
    assert cleared.status == 409
    assert node(there, "node35").keep == "serial:B2"


def test_a_node_is_tested_and_its_results_are_shown_over_time(there: Served) -> None:
    browser, name = signed_in(there), "node19"
    assert "Burn-in" in browser.get(f"/nodes/{name}").words
    place = f"/nodes/{name}/burnin"
    form = browser.get(place)
    assert form.send(place, minutes="many").status == 422
    none = browser.post(
        place, [each for each in form.filled(place, erase="yes") if each[0] != "tests"]
    )
    assert none.status == 422, "nothing is tested that was not ticked"
    assert none.tree.xpath("//input[@name='erase']/@checked")
    assert not none.tree.xpath("//input[@name='tests']/@checked")
    page = browser.post(
        place,
        [each for each in form.filled(place, minutes="5", erase="yes") if each[1] != "network"],
    )
    assert "On demand" in page.words
    found = there.tx(burnin_rows.open_of, node(there, name).id)
    assert (found.tests, found.seconds, found.erase) == ("memory,disk", 300, True)
    assert "is cancelled" in page.send(f"{place}/cancel").words
    results = [
        {
            "test": "disk",
            "part": "sda",
            "kind": "ssd",
            "outcome": "failed",
            "about": "it ticks",
            "figures": {"read_mb_s": 512.4, "tested_percent": 100.0},
        }
    ]

    def past(tx: Any) -> None:
        for number in (1, 2):
            burnin_rows.add(
                tx,
                node_id=node_id,
                cause="on demand",
                tests="disk",
                seconds=60,
                erase=False,
                actor="user:ann",
                asked_at=NOW + number * 100,
            )
            row = burnin_rows.open_of(tx, node_id)
            assert row is not None
            burnin_rows.change(tx, row.id, results=json.dumps(results))
            burnin_rows.end(
                tx,
                row.id,
                BurninState.FAILED,
                "burn-in failed: disk sda: it ticks",
                NOW + number * 100,
            )

    node_id = node(there, name).id
    there.tx(past)
    page = browser.get(place)
    for text in (
        "burn-in failed: disk sda: it ticks",
        "512 MB/s read",
        "100 % tested",
        "Speeds over time",
        "Earlier burn-ins",
    ):
        assert text in page.words, text
    assert "512 MB/s read" in browser.get(f"{place}?part=last").words, (
        "a part that is fetched alone"
    )


def test_a_node_in_use_is_not_offered_for_a_test(there: Served) -> None:
    page = signed_in(there).get("/nodes/node01/burnin")
    assert "Only a free node can be tested. This node is in use by batch." in page.words


def test_a_node_s_hardware_is_in_tables_with_ports_and_wear(there: Served) -> None:
    one = node(there, "node13")
    lldp = '<neighbour switch="leaf-3" port="Ethernet17"/></nic><nic name="eth1"/>'
    there.tx(
        nodes.change, one, attributes=one.attributes.replace('boot="yes"/>', f'boot="yes">{lldp}')
    )
    page = signed_in(there).get("/nodes/node13")
    (nic, bare) = page.tree.xpath("//*[@aria-label='Network interfaces']//tbody/tr")
    cells = [each.text_content() for each in nic]
    assert cells == [
        "eth0, boots",
        "02:00:00:00:00:0d",
        "ixgbe",
        "up, 1 Gb/s",
        "leaf-3 Ethernet17",
    ]
    assert [each.text_content() for each in bare] == ["eth1", *4 * ["\N{EN DASH}"]]
    (disk,) = page.tree.xpath("//*[@aria-label='Disks']//tbody/tr")
    cells = [each.text_content() for each in disk]
    assert cells[0:2] == ["sda", "Disk, serial D000013"]
    assert cells[3:] == ["sata, SSD", "37 % used", "21,400 h", "3 media errors"]
    assert not page.tree.xpath("//dt[starts-with(., 'disk/') or starts-with(., 'nic/')]")
    owner = signed_in(there, of_group(there, "olga", Role.OWNER)).get("/nodes/node01")
    heads = owner.tree.xpath("//*[@aria-label='Disks']//th[@scope='col']")
    assert "Wear" not in [each.text_content().strip() for each in heads]
    assert len(heads) == 4
