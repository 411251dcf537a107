"""A vcluster gets another name; the former one is held for it until it ends."""

from __future__ import annotations

from itertools import pairwise

import pytest
from sqlalchemy import insert

from cod.flows.people import audit, ldap
from cod.flows.scheduler import vclusters as flows
from cod.flows.vcms import vcms
from cod.model import AskedVcluster, LdapFilter, LdapSearch, Refused, Site
from cod.store import dns_zones
from cod.store import tables as t
from cod.store.engine import Tx
from cod.store.notices import notices
from cod.store.people import audit as audit_rows
from cod.store.people import groups
from cod.store.scheduler import series as series_rows
from cod.store.scheduler import vclusters
from tests.contexts import flow_context
from tests.ldap_site import physics_and_chemistry
from tests.store.manager_world import OWNER, furnish, run_pass

NOW = 5.0


@pytest.fixture
def one(tx: Tx, site: Site) -> int:
    """A vcluster `one` with two nodes; its id."""
    furnish(tx, 4)
    return create(tx, site, "one")


def create(tx: Tx, site: Site, name: str, size: int = 2) -> int:
    asked = AskedVcluster(name=name, size=size, template="debian", group="site")
    made = flows.create(tx, flow_context(site, 1.0, OWNER), asked).value[0].vcluster.id
    if size == 2:
        run_pass(tx, site, 2.0)
    return made


def rename(tx: Tx, site: Site, name: str, new: str) -> None:
    flows.describe(tx, flow_context(site, NOW, OWNER), name=name, changes={"name": new})


def test_the_name_and_the_zones_change_and_the_group_is_told(tx: Tx, site: Site, one: int) -> None:
    [(_, subnet)] = [key for key in dns_zones.serials(tx) if key[0] == "subnet"]
    before = dns_zones.serials(tx)
    rename(tx, site, "one", "two")
    assert vclusters.by_name(tx, "one") is None
    found = vclusters.by_name(tx, "two")
    assert found is not None
    assert (found.id, found.name) == (one, "two")
    after = dns_zones.serials(tx)
    for zone in (dns_zones.SITE, ("vcluster", "one"), ("subnet", subnet)):
        assert after[zone] > before[zone]
    assert after["vcluster", "two"] >= 1
    [said] = [each.notice for each in notices.every(tx) if each.notice.kind == "renamed"]
    assert (said.subject, said.link) == ("one: called two now", "/vclusters/two")


@pytest.mark.slow
def test_a_former_name_is_nobody_elses_until_the_vcluster_ends(
    tx: Tx, site: Site, one: int
) -> None:
    rename(tx, site, "one", "two")
    create(tx, site, "other")
    for name in ("one", "two"):
        with pytest.raises(Refused, match=f"the name '{name}' is not free"):
            create(tx, site, name)
        with pytest.raises(Refused, match=f"the name '{name}' is not free"):
            rename(tx, site, "other", name)
    rename(tx, site, "two", "one")  # its own it gets back
    assert vclusters.renamed(tx, ["one", "two"]) == {"two": "one"}
    create(tx, site, "late", size=9)  # it waits, and ends with its request
    rename(tx, site, "late", "later")
    flows.delete(tx, flow_context(site, NOW, OWNER), name="later")
    assert vclusters.renamed(tx, ["one", "two", "late"]) == {"two": "one"}
    create(tx, site, "late", size=9)


@pytest.mark.slow
def test_a_vcluster_has_ten_former_names_at_most(tx: Tx, site: Site, one: int) -> None:
    names = ["one", *(f"name{number}" for number in range(10))]
    for name, new in pairwise(names):
        rename(tx, site, name, new)
    with pytest.raises(Refused, match=r"renamed 10 times.*\(name0, name1, .*one\)"):
        rename(tx, site, "name9", "another")
    rename(tx, site, "name9", "one")


def test_names_are_labels_and_a_vcm_has_to_go_first(tx: Tx, site: Site, one: int) -> None:
    for wrong in ("ns1", "Two", "a.b", ""):
        with pytest.raises(Refused):
            rename(tx, site, "one", wrong)
    vcms.enrol(tx, vcluster="one", serial="1f", address="", now=NOW)
    with pytest.raises(Refused, match="revoke it, and enrol it anew afterwards"):
        rename(tx, site, "one", "two")
    assert vclusters.by_name(tx, "one") is not None


def test_the_cluster_of_a_series_goes_on_to_be_its_own(tx: Tx, site: Site, one: int) -> None:
    owner = groups.named(tx, "site").id
    columns = {"group_id": owner, "starts_at": 1e6, "duration": 3600.0, "days": ["mon"]}
    made = tx.execute(
        insert(t.reservation_series).values(
            name="weekly", zone="UTC", asked="{}", created_at=1.0, **columns
        )
    ).inserted_primary_key
    assert made is not None
    tx.execute(
        insert(t.series_occurrences).values(
            series_id=made[0], starts_at=1e6, vcluster="one", refused=""
        )
    )
    rename(tx, site, "one", "two")
    assert [each.vcluster for each in series_rows.occurrences(tx, 0.0)] == ["two"]


def test_nodes_installed_before_find_their_accounts_below_the_former_name(
    tx: Tx, site: Site
) -> None:
    physics_and_chemistry(tx)
    rename(tx, site, "pool", "lake")

    def people(base: str, address: str = "127.0.7.1") -> list[str]:
        wanted = LdapSearch(base, 2, LdapFilter("present", "uidnumber"), ())
        found = ldap.search(tx, address=address, search=wanted, site=site)
        return [each.dn for each in found.entries]

    domain = ",".join(f"dc={label}" for label in site.domain.split("."))
    before, after = people(f"dc=pool,{domain}"), people(f"dc=lake,{domain}")
    assert before[0].endswith(f"ou=people,dc=pool,{domain}")
    assert [one.replace("dc=pool", "dc=lake") for one in before] == after
    assert people(f"dc=pool,{domain}", "127.0.8.1") == []  # another vcluster's node


def test_a_name_leads_to_what_the_vcluster_is_called_after_all_changes(tx: Tx) -> None:
    for name, new in pairwise(("one", "two", "three", "two", "one", "two")):
        audit_rows.add(
            tx,
            actor=OWNER,
            address="",
            action="vcluster change",
            thing=name,
            before={"name": name},
            after={"name": new},
            now=NOW,
        )
    for former in ("one", "three"):
        assert audit.now_called(tx, "vcluster", former) == "two"
    assert audit.now_called(tx, "vcluster", "four") == ""
