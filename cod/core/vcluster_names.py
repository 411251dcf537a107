"""Rules for the names of vclusters."""

from __future__ import annotations

from cod.model import Refused
from cod.policy import dns
from cod.policy.people import names
from cod.store.engine import Tx
from cod.store.scheduler import vclusters


def check_new(tx: Tx, name: str, own: str = "") -> None:
    """Raise `Refused` unless a vcluster, whose present name is `own`, can get the name `name`. The
    names of all groups' vclusters, also former names, are labels in one DNS domain. The refusal
    does not tell who has a name."""
    names.check_label(name)
    if dns.is_reserved(name):
        raise Refused(
            "invalid", f"{name} is the name of a name server in DNS: choose another", "name"
        )
    if vclusters.by_name(tx, name) or vclusters.renamed(tx, [name]).get(name, own) != own:
        raise Refused("conflict", f"the name {name!r} is not free: choose another", "name")
