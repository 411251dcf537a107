"""SIGHUP: the services that have something to read again do it, and all see the site's new
rules."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import fields, replace
from operator import attrgetter
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import pytest
from twisted.internet.testing import MemoryReactorClock

from cod.model import (
    Account,
    Boot,
    BurninRules,
    ConsoleRules,
    Energy,
    FileServer,
    GroupRules,
    ImageMirror,
    ImageRules,
    KeepRule,
    KerberosRules,
    Nmp,
    Policy,
    PosixRules,
    PowerRule,
    Site,
    SiteRef,
    Switch,
    VolumeRules,
)
from cod.service.parts import PARTS, PartContext
from cod.service.process import CHANGING, Running, take_over
from cod.site import load
from cod.site.changes import SiteChanges
from tests.unit.test_config import GOOD


class Service:
    """One that has something to read."""

    def __init__(self) -> None:
        self.reads = 0

    def reread(self) -> None:
        self.reads += 1


@pytest.mark.usefixtures("log_levels")
def test_services_read_their_files_again_with_the_site_file(tmp_path: Path) -> None:
    path = tmp_path / "site.toml"
    path.write_text(GOOD)
    site, settings = load.load(path)
    nothing: Any = None
    changes = SiteChanges(path, load.tables(path))
    context = PartContext(nothing, nothing, SiteRef(site), settings, nothing, changes=changes)
    running = Running("web", context, [])
    service = Service()
    running._started = [object(), service]
    running.reread()
    assert service.reads == 1
    path.write_text("nonsense")
    running.reread()
    assert service.reads == 1


@pytest.fixture
def garbage() -> Iterator[None]:
    """The collector's thresholds are put back: a part sets its own."""
    found = gc.get_threshold()
    yield
    gc.set_threshold(*found)


def furnished(site: Site, name: str) -> Site:
    """The site with rules and accounts of its own, each an object that is nowhere else."""
    return replace(
        site,
        policy=replace(site.policy, heartbeat=float(len(name))),
        energy=Energy(watts_idle=float(len(name))),
        mail=replace(site.mail, host=name),
        notices=replace(site.notices, ca_file=name),
        types=replace(site.types),
        images=ImageRules(quota=len(name)),
        signin=replace(site.signin, url=name),
        consoles=ConsoleRules(most=len(name)),
        power=(PowerRule(name, "lab", ""),),
        keep=(KeepRule(name, "disk"),),
        accounts=(Account(name, "admin", ""),),
        posix=PosixRules(home=f"/{name}/{{name}}"),
        fileservers=(FileServer(name, "kernel", "10.0.0.1", "/srv"),),
        volumes=VolumeRules(quota=len(name)),
        switches=(Switch(name, "ovs", ""),),
        groups=GroupRules((name,)),
        burnin=BurninRules(every=float(len(name))),
        mirrors=(ImageMirror(name),),
        kerberos=KerberosRules(realm=name),
    )


def holders(old: Site, values: list[object]) -> list[str]:
    """What holds one of the values, beside the old site and the list itself. All objects of the
    process are looked through, also those that other tests have kept out of the collector's way."""
    passed_over = {id(old), id(values)}
    gc.collect()
    gc.unfreeze()
    found = gc.get_referrers(*values)
    gc.freeze()
    return [
        f"{type(one).__name__}: {one!r:.200}"
        for one in found
        if id(one) not in passed_over and not isinstance(one, FrameType)
    ]


@pytest.mark.slow
@pytest.mark.usefixtures("garbage")
@pytest.mark.parametrize("part", sorted(PARTS))
def test_every_part_sees_each_new_rule(part: str, tmp_path: Path) -> None:
    """No service keeps a rule, an account or the site of before: whatever it asks for from now on
    is new."""
    path = tmp_path / "site.toml"
    path.write_text(GOOD.replace("/srv/cod", str(tmp_path)))
    site, settings = load.load(path)
    sites = SiteRef(furnished(site, "before"))
    effects = SimpleNamespace(on=lambda *_: None, effects=lambda *_: None)
    pool: Any = SimpleNamespace()
    context = PartContext(MemoryReactorClock(), pool, sites, settings, effects)
    services = PARTS[part](context)
    assert services
    old, new = sites.current, furnished(site, "afterwards")
    take_over(sites, new)
    for name in CHANGING:
        assert getattr(sites.current, name) is getattr(new, name)
        assert getattr(sites.current, name) is not getattr(old, name)
    assert holders(old, [old, *attrgetter(*CHANGING)(old)]) == []


def test_a_service_that_keeps_a_rule_is_found_out() -> None:
    sites = SiteRef(furnished(Site("test", "cod.test", ()), "before"))
    old, kept = sites.current, [sites.current.policy]
    take_over(sites, replace(old, policy=Policy()))
    assert [one[:4] for one in holders(old, [old.policy])] == ["list"]
    assert kept[0] is old.policy


def test_what_services_listen_on_stays() -> None:
    """All other fields are what they were, whatever the new site file says."""
    old = Site("test", "cod.test", ())
    sites = SiteRef(old)
    take_over(
        sites,
        furnished(replace(old, name="other", domain="other.test", boot=Boot(1), nmp=Nmp(2)), "new"),
    )
    for field in fields(Site):
        same = getattr(sites.current, field.name) == getattr(old, field.name)
        assert same == (field.name not in CHANGING or field.name == "types"), field.name
