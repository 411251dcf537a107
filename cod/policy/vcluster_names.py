"""Names (CNAME) that an owner may add to a vcluster, and the target of each. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from cod.model import DNS_NAME, Refused, Site, VclusterName
from cod.policy.people import names as labels

_GIVEN = re.compile(r"n[0-9]+")  # host names by `store.scheduler.vclusters.free_hostnames`
_LONGEST = 253  # characters of a full name
_STEPS = 8  # most names in a chain to a node: resolvers follow about as many


@dataclass(frozen=True, slots=True)
class NameTarget:
    """The target of a name. `external`: `name` is a full DNS name outside of the vcluster;
    otherwise it is a label in the vcluster."""

    name: str
    external: bool


def check(
    name: str,
    target: str,
    *,
    vcluster: str,
    hosts: Collection[str],
    known: Mapping[str, VclusterName],
    site: Site,
) -> NameTarget:
    """Return the target for a new or changed name `name`. Raises `Refused` if name or target is not
    allowed.

    hosts   host names of the vcluster's nodes
    known   the names that the vcluster has
    """
    labels.check_label(name)
    if _GIVEN.fullmatch(name) or name in hosts:
        raise Refused(
            "conflict",
            f"{name} is a node's host name, now or later: choose a name unlike n1, n2 …",
            "name",
        )
    if name not in known and len(known) >= site.dns.names:
        raise Refused(
            "conflict",
            f"vcluster {vcluster} has {len(known)} names, and may have {site.dns.names}: remove "
            "one, or ask the administrator ([dns] names in the site file)",
            "name",
        )
    found = _target(target.lower().removesuffix("."), vcluster, site)
    if not found.external:
        if found.name not in hosts and found.name not in known:
            raise Refused(
                "not_found", f"vcluster {vcluster} has no node and no name {found.name!r}", "target"
            )
        targets = {one.name: one.target for one in known.values() if not one.external} | {
            name: found.name
        }
        if name in _chain(found.name, targets):
            raise Refused("conflict", f"{name} would lead back to itself", "target")
        if any(len(_chain(each, targets)) > _STEPS + 1 for each in targets):
            raise Refused(
                "conflict",
                f"more than {_STEPS} names would lead to each other, which DNS clients do not "
                "follow: name the node",
                "target",
            )
    return found


def follow(name: str, known: Mapping[str, VclusterName]) -> list[VclusterName]:
    """Return the chain of names from `name` on, `name` itself first; empty if `name` is no name of
    the vcluster."""
    targets = {one.name: one.target for one in known.values() if not one.external}
    return [known[each] for each in _chain(name, targets) if each in known]


def _target(text: str, vcluster: str, site: Site) -> NameTarget:
    inside = text.removesuffix(f".{vcluster}.{site.domain}")
    if "." not in inside:
        labels.check_label(inside)
        return NameTarget(inside, False)
    if f".{text}".endswith(f".{site.domain}"):
        raise Refused(
            "invalid",
            f"{text} is not of vcluster {vcluster}: name a node of it, such as n1",
            "target",
        )
    if not re.fullmatch(DNS_NAME, text) or len(text) > _LONGEST:
        raise Refused(
            "invalid",
            f"{text!r} is neither a node of vcluster {vcluster} nor a full DNS name",
            "target",
        )
    if not site.dns.external:
        raise Refused(
            "conflict",
            f"this site lets names lead to nodes of their own vcluster only, and {text} is not "
            "([dns] external in the site file)",
            "target",
        )
    return NameTarget(text, True)


def _chain(name: str, targets: Mapping[str, str]) -> list[str]:
    """Return `name`, its target, the target's target and so on, each once."""
    chain = [name]
    while (following := targets.get(chain[-1])) is not None and following not in chain:
        chain.append(following)
    return chain
