"""A machine fetches its boot script, or its boot's secret.

Both go only to the address that DHCP has bound to the requested MAC, so no machine can ask in the
name of another. A machine that spoofs an address on its own wire gains a secret that is worthless
from any other address.
"""

from __future__ import annotations

from cod.core.networks import isolation
from cod.core.nodes import blame, boot_nonces, transitions
from cod.model import Binding, BootPlan, BootSecret, Node, Refused, Site, Subnet, owner_of
from cod.policy.nodes import boot, capture, power, template
from cod.policy.nodes.template import Configuration, Ready
from cod.states import OWN_SYSTEM, Disk, NodeEvent, NodeState
from cod.store.engine import Tx
from cod.store.images import images, templates
from cod.store.nodes import bindings, captures, nodes, secrets

GRACE = 60.0  # seconds, at patience 1, until readiness by time is noticed at the latest
LIVE_SECRETS = 4  # a loader may fetch its files more than once; the oldest secrets give way


def script(tx: Tx, mac: str, address: str, site: Site, now: float) -> BootPlan:
    """Return what the machine with that MAC, asking from that address, is to boot now.

    Serving a node's own system is the last step of its boot: a machine that asks DHCP again after
    that (`nodes.boot_served_at`) and fetches its script has failed to boot. An active node that
    waits to be captured boots the trampoline instead of its own system: no power driver could
    reboot the node, so its capture waited for this boot. Raises `Refused` ('forbidden') when the
    address is not bound to that MAC; a loader that has just got its address from DHCP never sees
    this error.
    """
    node, subnet, bound = _who(tx, mac, address, site, now)
    if node.state not in OWN_SYSTEM:
        return _plan(tx, node, subnet, mac, address, site, now)
    if boot.came_back(node, bound):
        since = now - (node.boot_served_at or now)
        why = f"it asked to boot again {since:.0f} s after its boot was served"
        step = blame.on_trouble(tx, node, NodeEvent.BOOT_FAILED, why, site.policy)
        node = transitions.apply(tx, node, step, now=now, actor="boot", policy=site.policy)
    if node.state == NodeState.ACTIVE and captures.is_wanted(tx, node.id):
        step = capture.leave("rebooted while it waited to be captured")
        node = transitions.apply(tx, node, step, now=now, actor="boot", policy=site.policy)
    return _plan(tx, node, subnet, mac, address, site, now)


def unchanged(tx: Tx, mac: str, address: str, site: Site, now: float) -> BootPlan | None:
    """Return the boot plan of a node that is not to run its own system, or None for a node that is:
    `script` makes that plan, because it writes to the database. Reads only."""
    node, subnet, _bound = _who(tx, mac, address, site, now)
    if node.state in OWN_SYSTEM:
        return None
    return _plan(tx, node, subnet, mac, address, site, now)


def _plan(
    tx: Tx, node: Node, subnet: Subnet, mac: str, address: str, site: Site, now: float
) -> BootPlan:
    """Return the node's boot plan. If the plan boots the node's own system, record that."""
    if reason := isolation.elsewhere(tx, node, subnet):
        return BootPlan("none", reason)
    if reason := _lacks_nonce(tx, node, address, site, now):
        return BootPlan("none", reason)
    row = (
        templates.get(tx, node.template_id)
        if node.template_id is not None and node.state in OWN_SYSTEM
        else None
    )
    configuration = template.parse(row.document) if row else None
    named = (  # only a diskless system boots from images
        images.resolve(tx, template.image_names(configuration), owner_of(row.name))
        if row and configuration and configuration.diskless
        else {}
    )
    plan = boot.plan(
        node.state,
        configuration,
        named,
        mac,
        subnet,
        site,
        boot.OwnDisk(node.disk_signature, node.disk in (Disk.DIRTY, Disk.FOREIGN)),
    )
    if node.state in OWN_SYSTEM and plan.action in ("local", "kernel"):
        _served(tx, node, configuration, site, now)
    return plan


def bring(tx: Tx, nonce: str, address: str, site: Site, now: float) -> None:
    """Note that the firmware at that address brings the nonce of a boot that COD ordered.

    Raises `Refused`: the address is bound to no node, or the nonce is not for that node.
    """
    node, _subnet, _bound = _who(tx, bindings.mac_at(tx, address) or "", address, site, now)
    boot_nonces.bring(tx, node, nonce, address, site.policy.secret_time, now)


def _lacks_nonce(tx: Tx, node: Node, address: str, site: Site, now: float) -> str:
    """Return why a boot of the trampoline is not the one that COD ordered; '' where it may be."""
    if node.state in OWN_SYSTEM or not power.needs_nonce(node, site.accounts):
        return ""
    if boot_nonces.was_brought(tx, node, address, now):
        return ""
    return f"{node.name} brought no nonce: COD has to order this boot by its BMC"


def _served(
    tx: Tx, node: Node, configuration: Configuration | None, site: Site, now: float
) -> None:
    node = nodes.change(tx, node, boot_served_at=now)
    if node.state != NodeState.BOOT:
        return
    bindings.unbind(tx, node.id)
    ready = configuration.ready if configuration else Ready()
    if ready.by == "none":
        transitions.booted(
            tx,
            node,
            "its boot was served, and its template wants nothing more",
            now=now,
            actor="boot",
            policy=site.policy,
            unseen=True,
        )
    elif ready.by == "time":  # the deadline must not come before the template's time is over
        due = now + ready.seconds + GRACE * site.policy.patience
        nodes.set_deadline(tx, node, max(node.deadline or 0.0, due))


def mint(
    tx: Tx,
    mac: str,
    address: str,
    secret_id: str,
    salt: bytes,
    stored_key: bytes,
    server_key: bytes,
    site: Site,
    now: float,
) -> None:
    """Keep the verifier of a boot's secret for a machine that is to boot the trampoline.

    At most `LIVE_SECRETS` are live for a machine at once. Raises `Refused` ('forbidden') when the
    address is not bound to that MAC, when the node boots its vcluster's system, which gets none, or
    when the node needs a nonce and its boot brought none.
    """
    found, of_mac = secrets.of_bound(tx, mac, address, now)
    node, _subnet, _bound = _believed(tx, found, mac, address, site)
    if node.state in OWN_SYSTEM:
        raise Refused("forbidden", f"{node.name} boots its vcluster's system, not the trampoline")
    if reason := _lacks_nonce(tx, node, address, site, now):
        raise Refused("forbidden", reason)
    if any(each.id == secret_id for each in of_mac):
        return  # an earlier run of this flow has been committed
    live = [each for each in of_mac if each.kind == "boot" and each.expires_at > now]
    gone = [each for each in of_mac if each.expires_at <= now]
    secrets.spend_all(tx, [each.id for each in (*gone, *live[LIVE_SECRETS - 1 :])])
    expires_at = now + site.policy.secret_time
    secrets.add(
        tx, BootSecret(secret_id, mac, "boot", address, salt, stored_key, server_key, expires_at)
    )


def _who(tx: Tx, mac: str, address: str, site: Site, now: float) -> tuple[Node, Subnet, Binding]:
    return _believed(tx, bindings.with_node(tx, mac, address, now), mac, address, site)


def _believed(
    tx: Tx, found: tuple[Binding, Node] | None, mac: str, address: str, site: Site
) -> tuple[Node, Subnet, Binding]:
    subnet = isolation.subnet_named(tx, found[0].subnet, site) if found else None
    if found is None or subnet is None:
        raise Refused("forbidden", f"{address} is not bound to {mac}")
    return found[1], subnet, found[0]
