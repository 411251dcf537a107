"""Filters as SQL, and nodes by what identifies them, on both databases."""

from __future__ import annotations

from itertools import product

import pytest

from cod.core.nodes import selection
from cod.filters import language
from cod.filters.fields import node_fields
from cod.flows import views
from cod.flows.nodes import actions
from cod.flows.nodes import nodes as node_flows
from cod.model import ActionOutcome, FlowContext, Node, Refused, Result, Role, Site, Who, ipv4
from cod.store import lists
from cod.store import tables as t
from cod.store.engine import Tx
from cod.store.filters import nodes as node_filters
from cod.store.nodes import blocks, nodes
from cod.store.people import groups
from cod.store.views import node_query
from tests.contexts import flow_context
from tests.rows import add_template, add_vcluster

NOW = 1_000_000.0
TEMPLATE = '<template name="debian"><image target="disk" name="d"/></template>'
ADMIN = Who("ann", admin=True)
DONE, REFUSED = ActionOutcome


@pytest.fixture
def tx(tx: Tx, site: Site) -> Tx:
    """Seven nodes: three of chem's vcluster red in rack r1, two free ones in r2, one out of
    service, one that is expected."""
    chem = groups.add(tx, name="chem", now=NOW).id
    template = add_template(tx, "debian", TEMPLATE, now=NOW)
    red = add_vcluster(tx, "red", chem, template.id, site.subnets[0], now=NOW, size=3)
    maria = t.users.insert().values(id=7, name="maria", created_at=NOW)
    tx.execute(maria)
    tx.execute(t.vclusters.update().values(user_id=7))
    rack = {name: blocks.ensure(tx, name) for name in ("r1", "r2")}

    def add(number: int, state: str, block: str | None = None, **columns: object) -> None:
        found = nodes.add(
            tx,
            name=f"n{number}",
            boot_mac=f"52:54:00:00:00:{number:02x}",
            now=NOW - 1000.0 * number,
            cause="test",
            actor="test",
            **{"state": state, "block_id": rack.get(block or ""), "power_driver": "lab"} | columns,
        )
        nodes.add_mac(tx, found.id, f"02:aa:bb:cc:dd:{number:02x}")

    held = {"vcluster_id": red.id, "template_id": template.id}
    for number in (1, 2, 3):
        add(number, "active", "r1", hostname=f"red-{number}", serial=f"SN{number}00", **held)
    gpu = {"rack_position": "17", "tags": " gpu gpu-old "}
    add(4, "inactive", "r2", power_address="10.9.0.4", attempts=2, power="on", **gpu)
    add(
        5,
        "inactive",
        "r2",
        tags=" gpu-old ",
        uuid="0a1b2c3d-0000-4000-8000-00000000000f",
        power="off",
    )
    add(10, "quarantined", reason="fan 100% is_loud", serial="SN500")
    add(11, "registering", serial="SN500")
    tx.execute(
        t.bindings.insert().values(
            address=ipv4("10.1.0.7"),
            mac="52:54:00:00:00:01",
            kind="vcluster",
            node_id=nodes.named(tx, "n1").id,
            subnet="lab",
            state="bound",
            expires_at=NOW + 60,
        )
    )
    in_report = {("part", "s39ynx0k500123"), ("reported_bmc", "10.8.0.5")}
    nodes.set_labels(tx, nodes.named(tx, "n5").id, in_report)
    tx.execute(
        t.switch_ports.insert().values(
            switch="sw1",
            port="Eth1/4",
            node_id=nodes.named(tx, "n4").id,
            mac="52:54:00:00:00:04",
            source="lldp",
            seen_at=NOW,
        )
    )
    return tx


def found(tx: Tx, text: str, who: Who = ADMIN) -> str:
    listed = views.node_list(tx, where=text, who=who, groups=who.groups, now=NOW)
    return " ".join(sorted((view.node.name for view in listed), key=views_key))


def views_key(name: str) -> int:
    return int(name[1:])


MEANT = {
    "rack = r1": "n1 n2 n3",
    "rack = r2 and power = on": "n4",
    "rack = none": "n10 n11",
    "rack != r1": "n4 n5 n10 n11",
    "not rack = r1": "n4 n5 n10 n11",
    "vcluster = none state = free": "n4 n5",
    "owner = chem": "n1 n2 n3",
    "person = maria": "n1 n2 n3",
    "person = none and rack = r2": "n4 n5",
    "aria": "n1 n2 n3",
    "owner != chem and not rack = none": "n4 n5",
    "template = debian@1": "n1 n2 n3",
    "template ~ debian": "n1 n2 n3",
    "name in (n[1-2], N5)": "n1 n2 n5",
    "n[2-4],n11": "n2 n3 n4 n11",
    "@r2": "n4 n5",
    "mac = 0252.0000.0000": "",
    "mac = 02-AA-BB-CC-DD-0A": "n10",
    "mac ~ ccdd05": "n5",
    "mac = none": "",
    "address = 10.1.0.7": "n1",
    "address ~ 10.1.": "n1",
    "address = none and rack = r1": "n2 n3",
    "address != 10.1.0.7 and rack = r1": "n2 n3",
    "port ~ eth1/4": "n4",
    "port = 'sw1 Eth1/4'": "n4",
    "bmc = 10.9.0.4": "n4",
    "bmc = none and rack = r2": "n5",
    "attempts > 1": "n4",
    "attempts = 0 and rack = r2": "n5",
    "since > 4000s": "n5 n10 n11",
    "since <= 2000s": "n1 n2",
    "reason ~ '100% is_l'": "n10",
    "reason ~ '100_ is'": "",
    "reason = none and serial = sn500": "n11",
    "serial = none": "n4 n5",
    "serial ~ n5": "n10 n11",
    "uuid = 0A1B2C3D-0000-4000-8000-00000000000F": "n5",
    "state in ('out of service', 'waiting for approval')": "n10 n11",
    "tag = GPU": "n4",
    "tag in (gpu, gpu-old)": "n4 n5",
    "tag != gpu and rack = r2": "n5",
    "tag = none and (rack = r2 or serial = sn500)": "n10 n11",
    "tag ~ old": "n4 n5",
    "position = 17": "n4",
    "position in ([16-20])": "n4",
    "position = none and rack = r2": "n5",
    "part = S39YNX0K500123": "n5",
    "part ~ ynx": "n5",
    "part = none and rack = r2": "n4",
    "reported_bmc ~ 10.8": "n5",
    "watts > 5": "",
    "watts = none and @r2": "n4 n5",
    "red": "n1 n2 n3",
    "red-2": "n2",
    "chem 3": "n3",
    "r2": "n4 n5",
    "sn5": "n10 n11",
    "10.1.0.7": "n1",
    "10.9.0": "n4",
    "pu-o": "n4 n5",
    "0k500": "n5",
    "10.8.0.5": "n5",
    "eth1": "n4",
    "02aabbccdd0a": "n10",
    "dd:0a": "n10",
    "not red and not r2": "n10 n11",
    "red or (r2 and not bmc = none)": "n1 n2 n3 n4",
    "%": "",
    "' or 1=1 --'": "",
}


@pytest.mark.slow
def test_a_filter_means_nodes(tx: Tx) -> None:
    assert {text: found(tx, text) for text in MEANT} == MEANT


ATOMS = (
    *("rack = r1", "rack = none", "vcluster = none", "mac ~ 05", "address ~ 10.", "red", "sn5"),
    *(
        "attempts > 1",
        "since > 4000s",
        "template ~ debian",
        "watts > 1",
        "reason ~ fan",
        "port ~ e",
    ),
)


@pytest.mark.slow
def test_and_or_and_not_are_those_of_sets(tx: Tx) -> None:
    """Nothing that a node lacks makes a condition neither true nor false."""
    every = set(found(tx, "name ~ n").split())
    means = {text: set(found(tx, text).split()) for text in ATOMS}
    for text, meant in means.items():
        assert set(found(tx, f"not {text}").split()) == every - meant, text
    for one, other in product(ATOMS[::2], ATOMS[1::2]):
        both = set(found(tx, f"{one} and not ({other})").split())
        assert both == means[one] - means[other], (one, other)
        either = set(found(tx, f"{one} or not ({other})").split())
        assert either == means[one] | (every - means[other]), (one, other)


@pytest.mark.slow
def test_each_field_that_filters_know_can_be_tested(tx: Tx) -> None:
    for name, field in node_fields(admin=True).items():
        value = {"number": "1", "moment": "1h", "mac": "02:aa:bb:cc:dd:05", "state": "free"}.get(
            field.kind, field.choices[0] if field.choices else "10.0.0.1"
        )
        for sign in field.kind.comparisons:
            written = {"in": f"in ({value})", "=": "= none"}.get(sign, f"{sign} {value}")
            if field.kind == "moment" and sign in ("=", "!=", "in"):
                written = f"{sign} {'(2026-12-01)' if sign == 'in' else '2026-12-01'}"
            lists.node_names(
                tx, None, language.where(f"{name} {written}", node_fields(True), NOW), None, 10
            )


# ---------------------------------------------------------------- names


def chosen(tx: Tx, names: str, where: str = "", who: Who = ADMIN) -> str:
    meant = selection.selected(tx, names, where, who, NOW)
    return " ".join(
        [*(name for _, name in meant.nodes), *(f"!{name}" for name, _ in meant.missing)]
    )


NAMED = {
    ("n10,n2 n[4-6]", ""): "n10 n2 n4 n5 !n6",
    ("@r2 n4 @r9", ""): "n4 n5 !@r9",
    ("02:AA:bb:cc:dd:03", ""): "n3",
    ("sn100 0A1B2C3D-0000-4000-8000-00000000000F red-2", ""): "n1 n5 n2",
    ("sn500", ""): "!sn500",
    ("", "state = 'in use' or serial = SN500"): "n1 n2 n3 n10 n11",
    ("n[1-11]", "rack = r2"): "n4 n5 !n6 !n7 !n8 !n9",
}


def test_nodes_are_named_by_what_identifies_them(tx: Tx) -> None:
    assert {asked: chosen(tx, *asked) for asked in NAMED} == NAMED


def test_a_label_of_two_nodes_names_both_in_the_refusal(tx: Tx) -> None:
    [(_, why)] = selection.named(tx, "SN500", ADMIN).missing
    assert why == "'SN500' identifies several nodes: n10, n11"


def test_a_name_goes_before_another_nodes_serial_number(tx: Tx) -> None:
    nodes.change(tx, nodes.named(tx, "n2"), serial="n1")
    assert chosen(tx, "n1") == "n1"


def test_groups_find_what_their_vclusters_hold_alone(tx: Tx) -> None:
    chem = groups.named(tx, "chem").id
    member = Who("bob", user_id=7, roles={chem: Role.MEMBER})
    other = Who("eve", user_id=8, roles={})
    assert found(tx, "n", member) == "n1 n2 n3"
    assert found(tx, "not rack = r1", member) == ""
    nodes.set_labels(tx, nodes.named(tx, "n1").id, {("reported_bmc", "10.8.0.1")})
    assert found(tx, "10.8.0.1", member) == "", "groups are not told where BMCs are"
    assert chosen(tx, "n1 n4 @r2 @r1", "", member) == "n1 n2 n3 !n4"
    assert found(tx, "n", other) == ""
    assert chosen(tx, "n1", "", other) == "!n1"


@pytest.mark.parametrize(
    ("names", "where", "field"),
    [("", "", "names"), ("", "rack = r9", "where"), ("@r1", "rack = r2", "where")],
)
def test_nothing_that_is_meant_is_refused(tx: Tx, names: str, where: str, field: str) -> None:
    with pytest.raises(Refused) as refused:
        selection.selected(tx, names, where, ADMIN, NOW)
    assert refused.value.field == field


def test_more_than_one_action_is_for_are_refused(tx: Tx) -> None:
    for names, where in (("n[1-11]", ""), ("", "name ~ n")):
        with pytest.raises(Refused, match="more than 6 nodes are meant"):
            selection.selected(tx, names, where, ADMIN, NOW, most=6)


# ---------------------------------------------------------------- actions


def many(site: Site, verb: str, names: str, where: str = "", to: str = "") -> actions.ManyNodes:
    def act(tx: Tx, name: str, place: int) -> Result[Node]:
        context = flow_context(site, NOW, "ann")
        match verb:
            case "approve":
                return node_flows.approve(tx, context, name=name)
            case "rename":
                changes = {"name": actions.new_names(to)[place]}
                return node_flows.change(tx, context, name=name, changes=changes)
        return node_flows.quarantine(tx, context, name=name, reason="smoke")

    return actions.ManyNodes(names, where, verb, act, verb == "quarantine", to)


def outcomes(acted: object) -> list[tuple[str, str, str | None, str | None]]:
    assert hasattr(acted, "nodes")
    return [(each.name, each.outcome, each.state, each.stops) for each in acted.nodes]


def test_what_is_refused_for_one_leaves_the_others_alone(tx: Tx, site: Site) -> None:
    context = FlowContext(site, NOW, ADMIN)
    asked = many(site, "quarantine", "n[1,4,10,99]")
    expected = [
        ("n1", DONE, "quarantined", "red"),
        ("n4", DONE, "quarantined", None),
        ("n10", DONE, "quarantined", None),
        ("n99", REFUSED, None, None),
    ]
    assert outcomes(actions.check(tx, context, many=asked)) == expected
    assert nodes.named(tx, "n1").state == "active", "a look changes nothing"
    done = actions.carry_out(tx, context, many=asked)
    assert outcomes(done.value) == expected
    assert done.value.nodes[3].about == "there is no node 'n99'"
    assert nodes.named(tx, "n1").state == nodes.named(tx, "n4").state == "quarantined"
    assert len(done.effects) == len(set(done.effects))


def test_what_a_refused_one_has_written_is_undone(tx: Tx, site: Site) -> None:
    def act(tx: Tx, name: str, place: int) -> Result[Node]:
        done = node_flows.change(
            tx, flow_context(site, NOW, "ann"), name=name, changes={"block": "r3"}
        )
        if name == "n2":
            raise Refused("conflict", "no")
        return done

    asked = actions.ManyNodes("n[1-3]", "", "change", act)
    done = actions.carry_out(tx, FlowContext(site, NOW, ADMIN), many=asked)
    assert [each.outcome for each in done.value.nodes] == [DONE, REFUSED, DONE]
    assert found(tx, "rack = r3") == "n1 n3"


def test_names_are_given_by_a_pattern(tx: Tx, site: Site) -> None:
    context = FlowContext(site, NOW, ADMIN)
    asked = many(site, "rename", "@r1", to="m[08-10]")
    assert outcomes(actions.carry_out(tx, context, many=asked).value) == [
        ("m08", DONE, "active", None), ("m09", DONE, "active", None), ("m10", DONE, "active", None)
    ]  # fmt: skip
    assert nodes.named(tx, "m10").hostname == "red-3"
    for to, sentence in (("x[1-2]", "these are 2 names, and 3 nodes are meant"), ("x[", "ends")):
        with pytest.raises(Refused, match=sentence):
            actions.carry_out(tx, context, many=many(site, "rename", "@r1", to=to))


def test_a_filter_reads_no_rows_for_words(tx: Tx) -> None:
    """What words are looked for in are indexes that cover the question: a row of a node has a
    hardware report in it."""
    if tx.dialect.name != "sqlite":
        pytest.skip("SQLite tells it in words")
    for name in ("name", "hostname", "serial", "uuid", "power_address"):
        query = node_filters._LABELS[name]("x")
        assert query is not None
        text = str(query.compile(tx.engine, compile_kwargs={"literal_binds": True}))
        plan = " ".join(str(row) for row in tx.exec_driver_sql(f"EXPLAIN QUERY PLAN {text}"))
        assert "USING COVERING INDEX" in plan, (name, plan)


def test_what_words_find_is_read_by_its_key(tx: Tx) -> None:
    """A list of few nodes does not read the rows of all."""
    if tx.dialect.name != "sqlite":
        pytest.skip("SQLite tells it in words")
    for where in ("sn100", "mac = 02-AA-BB-CC-DD-0A", "gpu", "part ~ ynx"):
        tree = selection.filter_of(where, ADMIN, NOW)
        assert tree is not None
        query = node_query(None, {}).where(node_filters.condition(tx, tree))
        text = str(query.compile(tx.engine, compile_kwargs={"literal_binds": True}))
        plan = [str(row) for row in tx.exec_driver_sql(f"EXPLAIN QUERY PLAN {text}")]
        assert any("SEARCH nodes USING INTEGER PRIMARY KEY" in row for row in plan), (where, plan)


def test_words_beside_each_other_are_not_joined(tx: Tx, monkeypatch: pytest.MonkeyPatch) -> None:
    """MariaDB would seek the best order of all tables: for ten words that takes half a minute."""
    if tx.dialect.name == "sqlite":
        pytest.skip("SQLite joins none")
    monkeypatch.setattr(node_filters, "FEW", -1)

    def joined(where: str) -> int:
        tree = selection.filter_of(where, ADMIN, NOW)
        assert tree is not None
        query = node_query(None, {}).where(node_filters.condition(tx, tree))
        text = str(query.compile(tx.engine, compile_kwargs={"literal_binds": True}))
        rows = tx.exec_driver_sql(f"EXPLAIN {text}")
        return [row[1] for row in rows].count("PRIMARY")

    assert joined("red and mac ~ 02aa and n1") == joined("red")
