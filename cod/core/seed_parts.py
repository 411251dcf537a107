"""Parts of a node's seed and metadata, one for each subject, such as SSH keys or Kerberos."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cod.model import Assignment, Site, SshKey, Subnet, Vcluster
from cod.policy.nodes import isolation, seed, sssd, template
from cod.policy.people import kerberos
from cod.policy.people import sshkeys as policy
from cod.store.engine import Tx
from cod.store.scheduler import networks


def parts(
    vcluster: Vcluster | None,
    subnet: Subnet,
    wanted: Assignment,
    keys: Iterable[tuple[str, SshKey]],
    site: Site,
) -> Sequence[seed.SeedPart]:
    """Return the parts for a node of the vcluster with the assignment `wanted`. New subjects add
    their part to this list.

    subnet  of the vcluster's systems (`system_subnet`)
    keys    of its group's users, each with its user's name
    """
    if vcluster is None:
        return []
    servers = servers_of(site, subnet.servers)
    configuration = template.parse(wanted.document)
    passwords = site.kerberos.logins and kerberos.has_keytab(site.kerberos, configuration)
    return [
        seed.metadata_service(*(metadata_url(each, site) for each in subnet.servers)),
        seed.installation(vcluster.id, vcluster.created_at, wanted.digest),
        seed.login_keys(policy.fitting(key.line for _user, key in keys)),
        kerberos.seed_part(site.kerberos, configuration, site.domain, site.fileservers),
        sssd.seed_part(
            vcluster.name,
            site.domain,
            servers,
            site.authority,
            site.posix,
            site.kerberos if passwords else None,
        ),
    ]


def servers_of(site: Site, first: Sequence[str]) -> list[str]:
    """Return the addresses of all servers of COD, beginning with the addresses in `first`."""
    others = {each for subnet in site.subnets for each in subnet.servers}
    return [*first, *sorted(others - {*first})]


def metadata_url(server: str, site: Site) -> str:
    """Return the URL of the metadata service of the server with this address; it ends in /."""
    return f"http://{server}:{site.boot.http_port}/"


def system_subnet(tx: Tx, vcluster: Vcluster | None, site: Site) -> Subnet:
    """Return the subnet of a vcluster's systems: one of the site's, or the vcluster's own."""
    own = networks.of(tx, vcluster.id) if vcluster and vcluster.isolated else None
    if own is not None and site.isolation is not None:
        return isolation.subnet(own, site.isolation)
    return next(
        (each for each in site.subnets if vcluster and each.name == vcluster.subnet),
        site.subnets[0],
    )
