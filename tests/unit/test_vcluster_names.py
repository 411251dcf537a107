"""Which names an owner may add to a vcluster, and where they lead."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cod.model import Dns, Refused, Site, VclusterName
from cod.policy.vcluster_names import NameTarget, check, follow


def name(label: str, target: str, external: bool = False) -> VclusterName:
    return VclusterName(1, label, target, external, 0.0, "")


KNOWN = {
    one.name: one
    for one in (name("www", "n1"), name("web", "www"), name("out", "example.org", True))
}


def wanted(
    label: str, target: str, site: Site, known: dict[str, VclusterName] = KNOWN
) -> NameTarget:
    return check(label, target, vcluster="farm", hosts=["n1", "n2", "head"], known=known, site=site)


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("n2", "n2"),
        ("N2", "n2"),
        ("n2.farm.cod.test", "n2"),
        ("n2.farm.cod.test.", "n2"),
        ("web", "web"),
    ],
)
def test_a_host_or_a_name_of_the_vcluster(site: Site, target: str, expected: str) -> None:
    assert wanted("api", target, site) == NameTarget(expected, False)


@pytest.mark.parametrize(
    ("label", "target", "why"),
    [
        ("n1", "n2", "host name"),
        ("n77", "n2", "now or later"),
        ("head", "n2", "host name"),
        ("www", "web", "back to itself"),
        ("www", "www", "back to itself"),
        ("api", "n3", "no node and no name 'n3'"),
        ("a.b", "n1", "no DNS label"),
        ("-a", "n1", "no DNS label"),
        ("a_b", "n1", "no DNS label"),
        ("", "n1", "DNS label"),
        ("W", "n1", "no DNS label"),
        ("x" * 64, "n1", "no DNS label"),
        ("api", "n1.pool.cod.test", "not of vcluster farm"),
        ("api", "cod.test", "not of vcluster farm"),
        ("api", "bad..name", "neither"),
        ("api", "under_score.org", "neither"),
        ("api", "a" * 250 + ".org", "neither"),
        ("api", "example.org", "[dns] external"),
        ("api", "*", "no DNS label"),
    ],
)
def test_what_is_refused(site: Site, label: str, target: str, why: str) -> None:
    site = replace(site, domain="cod.test", dns=replace(site.dns, external="neither" in why))
    with pytest.raises(Refused) as refused:
        wanted(label, target, site)
    assert why in refused.value.sentence


def test_a_site_may_let_names_lead_elsewhere(site: Site) -> None:
    site = replace(site, dns=Dns(external=True))
    assert wanted("api", "Example.org.", site) == NameTarget("example.org", True)


def test_there_are_as_many_as_the_site_says(site: Site) -> None:
    few = replace(site, dns=Dns(names=len(KNOWN)))
    with pytest.raises(Refused, match="may have 3"):
        wanted("api", "n1", few)
    assert wanted("www", "n2", few).name == "n2", "one that is there may lead elsewhere"


def test_names_lead_on_step_by_step() -> None:
    assert [one.name for one in follow("web", KNOWN)] == ["web", "www"]
    assert [one.name for one in follow("out", KNOWN)] == ["out"]
    assert follow("n1", KNOWN) == []
    circle = {"a": name("a", "b"), "b": name("b", "a")}  # which `check` refuses
    assert [one.name for one in follow("a", circle)] == ["a", "b"]


def test_a_chain_is_no_longer_than_resolvers_follow(site: Site) -> None:
    known = {
        f"a{number}": name(f"a{number}", f"a{number - 1}" if number else "n1")
        for number in range(8)
    }
    check("b", "a6", vcluster="pool", hosts={"n1"}, known=known, site=site)
    with pytest.raises(Refused, match="more than 8 names"):
        check("b", "a7", vcluster="pool", hosts={"n1"}, known=known, site=site)
    known["b"] = name("b", "n1")
    with pytest.raises(Refused, match="more than 8 names"):
        check("a0", "b", vcluster="pool", hosts={"n1"}, known=known, site=site)
