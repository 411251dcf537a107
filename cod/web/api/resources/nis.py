"""A vcluster's accounts as NIS maps."""

from __future__ import annotations

from functools import partial

from cod import model
from cod.flows.people import ldap
from cod.web.api.models import Reply
from cod.web.api.routes import Shaped, named_route, see


class NisReply(Reply):
    """The accounts of a vcluster's nodes for an NIS server, without passwords and SSH keys.

    domain        name of the NIS domain
    networks      the vcluster's addresses, as ADDRESS/BITS; none after its end
    maps          lines "KEY VALUE" for makedbm, by the map's name
    securenets    lines for ypserv's securenets
    access_rules  lines for ypserv.conf
    """

    domain: str
    networks: list[str]
    maps: dict[str, list[str]]
    securenets: list[str]
    access_rules: list[str]

    @classmethod
    def of(cls, found: model.NisDomain) -> NisReply:
        """Return the reply for a domain."""
        return cls(
            domain=found.name,
            networks=list(found.networks),
            maps=dict(found.maps),
            securenets=list(found.securenets),
            access_rules=list(found.access_rules),
        )


NIS = (
    named_route(
        "GET /vclusters/{name}/nis",
        see("vcluster"),
        "Show the accounts of a vcluster's nodes as NIS maps",
        lambda a: partial(ldap.nis_domain, name=a.names.name, site=a.site),
        reply=Shaped(NisReply, NisReply.of),
    ),
)
