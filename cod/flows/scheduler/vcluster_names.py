"""Owners' changes to the names (CNAME) of their vclusters. DNS follows from the commit on."""

from __future__ import annotations

from cod.model import FlowContext, NameView, Refused, Site, Vcluster, VclusterName, dotted
from cod.policy import vcluster_names as policy
from cod.policy.dns import full_name
from cod.store import dns_zones, views
from cod.store.engine import Tx
from cod.store.nodes import dns_names
from cod.store.scheduler import vcluster_names, vclusters


def every(tx: Tx, *, vcluster: str, site: Site) -> list[NameView]:
    """Return the names of a vcluster, in their order; none of one that has ended."""
    return of(tx, views.vcluster(tx, vcluster).vcluster, site)


def one(tx: Tx, *, vcluster: str, name: str, site: Site) -> NameView:
    """Return the entry `name` of the vcluster's names. Raises `Refused` where there is none."""
    for found in every(tx, vcluster=vcluster, site=site):
        if found.name.name == name:
            return found
    raise Refused("not_found", f"vcluster {vcluster} has no name {name!r}", "name")


def put(tx: Tx, context: FlowContext, *, vcluster: str, name: str, target: str) -> NameView:
    """Add the name, or point it at another target: a host or a name of the vcluster, or a full name
    elsewhere where the site allows that. Raises `Refused`."""
    site, now, holder = context.site, context.now, _live(tx, vcluster)
    hosts, known = dns_names.of_vcluster(tx, holder.id), vcluster_names.of(tx, holder.id)
    found = policy.check(name, target, vcluster=holder.name, hosts=hosts, known=known, site=site)
    row = VclusterName(holder.id, name, found.name, found.external, now, context.actor)
    vcluster_names.put(tx, row)
    dns_zones.touch(tx, [("vcluster", holder.name)], now)
    return one(tx, vcluster=holder.name, name=name, site=site)


def remove(tx: Tx, *, vcluster: str, name: str, site: Site, now: float) -> None:
    """Remove a name. Other names that point to it lead nowhere then. Raises `Refused`."""
    holder = _live(tx, vcluster)
    one(tx, vcluster=holder.name, name=name, site=site)
    vcluster_names.remove(tx, holder.id, name)
    dns_zones.touch(tx, [("vcluster", holder.name)], now)


def _live(tx: Tx, vcluster: str) -> Vcluster:
    """Return the vcluster, locked, so that changes of its names are checked one after the other:
    two of them at once could make names that point to each other."""
    found = vclusters.by_name(tx, vcluster, lock=True)
    if found is None:
        raise Refused("conflict", f"vcluster {vcluster} has ended", "name")
    return found


def of(tx: Tx, vcluster: Vcluster, site: Site) -> list[NameView]:
    """Return the names of a vcluster, as `every` does."""
    known = vcluster_names.of(tx, vcluster.id)
    hosts = dns_names.of_vcluster(tx, vcluster.id) if known else {}
    shown = []
    for name in known.values():
        last = policy.follow(name.name, known)[-1]
        host = None if last.external else hosts.get(last.target)
        shown.append(
            NameView(
                name,
                full_name(name.name, vcluster.name, site),
                last.target if host else "",
                dotted(host.address) if host else "",
                host is None and not last.external,
            )
        )
    return shown
