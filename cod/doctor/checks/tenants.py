"""Check of what tenants can do to each other's machines on a shared network: docs/security.md."""

from __future__ import annotations

from collections.abc import Iterator

from cod.choices import CANNOT_TELL
from cod.doctor.finding import GOOD, WARNING, Context, Finding


def findings(context: Context) -> Iterator[Finding]:
    """Yield a finding about whether clusters share the provisioning network, one if machines are
    approved automatically, and one if power drivers cannot tell whether a machine is on."""
    site = context.site
    if site.isolates:
        yield Finding(GOOD, "clusters are isolated unless they ask not to be")
    elif site.isolation is not None:
        yield Finding(
            GOOD,
            "clusters can be isolated; the others share the provisioning network (by_default = true"
            " in [isolation] isolates all that do not ask otherwise)",
        )
    else:
        yield Finding(
            WARNING,
            "all clusters share the provisioning network: a root user of one node can take another"
            " node's MAC address and read what is sent unencrypted",
            "let clusters be isolated (docs/isolation), or have the switches put in option 82"
            " and drop foreign addresses (docs/security.md)",
        )
    if site.policy.auto_approve:
        yield Finding(
            WARNING,
            "auto_approve believes any machine that boots from the network",
            "set auto_approve = false in [policy] where tenants are root on nodes",
        )
    blind = sorted({rule.match for rule in site.power if rule.driver in CANNOT_TELL})
    if blind:
        yield Finding(
            WARNING,
            f"the power drivers of {', '.join(blind)} cannot tell whether a machine is on, so a"
            " boot that nobody ordered waits for an administrator",
            "use the machines' BMCs or switched outlets (docs/power)",
        )
