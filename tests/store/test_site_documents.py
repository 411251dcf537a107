"""The site's documents, planned and carried out in both databases."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine

from cod.flows import replies
from cod.model import Site, Switch, Who
from cod.pool import in_transaction
from cod.store import tables as t
from cod.store.engine import Tx
from cod.store.nodes import nodes, types
from cod.store.people import groups, people
from cod.store.site import documents as store
from cod.web.api.resources.documents import documents
from cod.web.api.resources.documents.documents import DocumentApply, DocumentQuery, DocumentsReply
from cod.web.api.resources.documents.kinds import KINDS
from cod.web.api.routes import Call, Names
from cod.web.http.errors import HttpProblem
from tests.repeats import contents

pytestmark = pytest.mark.slow

NOW = 1_000_000.0
LEAF = Switch("leaf", "ovs", "unix:/run/ovs/db.sock", provisioning_vlan=10)
PHYSICS = {"kind": "group", "name": "physics", "priority": 5, "max_lease": "2 d"}
OWNER = {"kind": "member", "name": "physics/ann", "role": "owner"}
SHARE = {
    "kind": "share",
    "name": "physics",
    "shares": 2,
    "guarantee": 0,
    "type_limits": {"large": 3},
    "type_guarantees": {"large": 1},
    "type_shares": {"large": 4.5},
    "parent": "science",
}
RACK = {"kind": "block", "name": "rack1", "nodes": ["n2", "n1"]}
PORT = {"kind": "port", "name": "n1", "switch": "leaf", "port": "p1"}
TYPE = {"kind": "type", "name": "large", "cost": 2, "warm_low": 0}
ALL: list[Any] = [PORT, RACK, SHARE, TYPE, OWNER, PHYSICS, {"kind": "group", "name": "science"}]


@pytest.fixture
def there(engine: Engine) -> Engine:
    """A site with a user, a type and two nodes."""
    with engine.begin() as tx:
        groups.ensure(tx, groups.SITE, 0.0)
        people.add(tx, "ann", NOW)
        large = types.of(tx, '<node><memory mib="2048"/></node>', NOW).id
        tx.execute(t.node_types.update().values(name="large"))
        for number in (1, 2):
            nodes.add(
                tx,
                name=f"n{number}",
                boot_mac=f"52:54:00:00:00:0{number}",
                now=NOW,
                cause="seen",
                actor="test",
                state="inactive",
                type_id=large,
            )
    return engine


def ask(site: Site, wanted: list[dict[str, Any]], **more: Any) -> Call[Names, DocumentApply]:
    question: Call[Names, DocumentApply] = Call(
        replace(site, switches=(LEAF,)),
        NOW,
        Who("user:root", admin=True),
        Path("/"),
        Names(),
        DocumentApply(documents=wanted, **more),
        None,
    )
    return replace(question, prepared=documents._read(question))


def check(there: Engine, question: Call[Names, DocumentApply]) -> DocumentsReply:
    return in_transaction(there, lambda tx: documents._check(question, tx))


def apply(there: Engine, question: Call[Names, DocumentApply]) -> DocumentsReply:
    return in_transaction(there, lambda tx: documents._apply(question, tx).value)


def told(reply: DocumentsReply) -> list[str]:
    return [f"{each.action} {each.kind} {each.thing}" for each in reply.changes]


def test_a_comparison_says_what_is_done_and_changes_nothing(there: Engine, site: Site) -> None:
    question = ask(site, ALL)
    before = in_transaction(there, contents)
    compared = check(there, question)
    assert in_transaction(there, contents) == before
    assert told(compared) == [
        "create group physics",
        "create group science",
        "create member physics/ann",
        "change type large",
        "create share physics",
        "create block rack1",
        "create port n1",
    ]
    assert apply(there, ask(site, ALL, plan=compared.plan)) == compared
    after = in_transaction(there, contents)
    assert told(apply(there, question)) == []
    assert in_transaction(there, contents) == after
    assert check(there, question).plan != compared.plan


def test_a_share_is_read_alone(there: Engine, site: Site) -> None:
    apply(there, ask(site, ALL))
    every = in_transaction(there, KINDS["share"].things, None)
    assert every.keys() == {"physics", "science", "site"}
    assert in_transaction(there, KINDS["share"].things, "physics") == {"physics": every["physics"]}
    assert in_transaction(there, KINDS["share"].things, "nope") == {}


def test_an_application_plans_once_and_looks_once_more_at_its_end(
    there: Engine, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans = []
    plan = documents._plan
    monkeypatch.setattr(documents, "_plan", lambda *args: plans.append(plan(*args)) or plans[-1])
    made = apply(there, ask(site, ALL))
    assert [len(each.steps) for each in plans] == [len(made.changes), 0]
    plans.clear()
    assert apply(there, ask(site, ALL)).idle
    assert len(plans) == 1


def test_what_is_written_is_read_without_a_difference(there: Engine, site: Site) -> None:
    apply(there, ask(site, ALL))
    query = replace(ask(site, []), query=DocumentQuery())
    written = in_transaction(there, lambda tx: documents._documents(query, tx))
    assert {each.kind for each in written} == KINDS.keys() - {"template", "volume", "vcm"}
    again = [{"kind": each.kind, "name": each.name, **each.fields} for each in written]
    reply = check(there, ask(site, again))
    assert (told(reply), reply.adopted) == ([], 0)
    [share] = [each for each in written if each.kind == "share" and each.name == "physics"]
    assert share.fields == {
        "shares": 2.0,
        "guarantee": 0,
        "node_limit": None,
        "type_limits": {"large": 3},
        "type_guarantees": {"large": 1},
        "type_shares": {"large": 4.5},
        "hours_limit": None,
        "parent": "science",
        "user_shares": False,
    }


def test_one_refusal_undoes_all_and_each_is_told(there: Engine, site: Site) -> None:
    before = in_transaction(there, contents)
    share, rack = {**SHARE, "type_guarantees": {"large": 9}}, {**RACK, "nodes": ["n1", "n9"]}
    with pytest.raises(HttpProblem) as error:
        apply(there, ask(site, [share, rack, OWNER, PHYSICS, *ALL[-1:]]))
    assert error.value.faults.keys() == {"documents.0.type_guarantees", "documents.1.nodes"}
    assert in_transaction(there, contents) == before


def test_a_plan_that_has_changed_is_refused(there: Engine, site: Site) -> None:
    compared = check(there, ask(site, ALL))

    def meanwhile(tx: Tx) -> None:
        groups.change(tx, groups.ensure(tx, "physics", NOW).id, priority=3)

    in_transaction(there, meanwhile)
    with pytest.raises(replies.Changed):
        apply(there, ask(site, ALL, plan=compared.plan))
    assert in_transaction(there, groups.by_name, "science") is None


def test_what_was_named_before_is_pruned_in_the_order_of_what_hangs_on_it(
    there: Engine, site: Site
) -> None:
    in_transaction(there, groups.add, "byhand", NOW)
    apply(there, ask(site, ALL))
    reply = check(there, ask(site, [RACK]))
    assert (told(reply), len(reply.left)) == ([], 4)
    reply = apply(there, ask(site, [RACK], prune=True))
    assert told(reply) == ["delete port n1", "delete group physics", "delete group science"]
    names = in_transaction(there, lambda tx: [each.name for each in groups.every(tx)])
    assert names == ["byhand", "site"]
    assert in_transaction(there, store.every) == {("block", "rack1")}


def test_documents_that_would_differ_again_are_refused(there: Engine, site: Site) -> None:
    both = [RACK, {"kind": "block", "name": "rack2", "nodes": ["n1"]}]
    with pytest.raises(HttpProblem) as error:
        apply(there, ask(site, both))
    assert "see that no other document says" in error.value.detail
    group = {**PHYSICS, "email": "a@example.org,b@example.org"}
    with pytest.raises(HttpProblem) as error:
        apply(there, ask(site, [group]))
    [(place, sentence)] = error.value.faults.items()
    assert place == "documents.0.email"
    assert sentence.startswith("COD makes 'a@example.org, b@example.org' of it")


def test_a_guarantee_passes_from_one_group_to_another_in_one_go(there: Engine, site: Site) -> None:
    def shares(science: int, physics: int, parent: str | None) -> list[dict[str, Any]]:
        of = {"science": science, "physics": physics}
        found: list[dict[str, Any]] = [
            {"kind": "share", "name": name, "type_guarantees": {"large": count} if count else {}}
            for name, count in of.items()
        ]
        found[0]["parent"], found[1]["parent"] = parent, None if parent else "science"
        return found

    apply(there, ask(site, [*ALL[-2:], *shares(0, 2, None)]))
    assert told(apply(there, ask(site, shares(2, 0, "physics")))) == [
        "change share science",
        "change share physics",
    ]
    assert told(apply(there, ask(site, shares(2, 0, "physics")))) == []
