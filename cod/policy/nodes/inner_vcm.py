"""A VCM that runs on a node of its vcluster: the choice of the node, and the node's seed. Pure.

The seed has three files for the VCM: a configuration, the certificate of the site's authority, and
an invitation, which `cod vcm` trades for a certificate of its own. Images that read their seed
themselves find these files there. For images with cloud-init, the vendor data has a script that
writes the files. It runs before the scripts of the template's user data, and is not merged with
them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Sequence

from cod.model import Refused
from cod.policy.nodes.seed import SeedPart
from cod.policy.nodes.template import Configuration

FOLDER = "/etc/cod/vcm"  # has a folder for each vcluster, as docs/systemd/cod-vcm@.service expects
CONFIGURATION, AUTHORITY, INVITATION = "vcm.toml", "ca.crt", "invitation"
LASTS = 86400.0  # seconds that an invitation is valid; a repeated order does not extend it
_SCRIPT = """\
#!/bin/sh
# From Cluster-on-Demand: this node runs the manager of vcluster {vcluster}.
umask 077
mkdir -p {folder} && cd {folder} || exit 1
{files}"""


def configuration(
    vcluster: str, servers: Sequence[str], *, tls: bool = True, invited: bool = False
) -> str:
    """Return a VCM's configuration file (docs/vcm).

    servers  COD's servers, ADDRESS:PORT each
    invited  the VCM enrols with an invitation
    """
    lines = [
        "# A virtual cluster manager of COD. The other keys are in docs/vcm.",
        f"vcluster = {json.dumps(vcluster)}",
        f"servers = {json.dumps(list(servers))}",
    ]
    lines += ["tls = false"] * (not tls)
    lines += [f'invitation = "{INVITATION}"', 'more = "pool.toml"'] * invited
    return "\n".join(lines) + "\n"


def head(hostnames: Collection[str], wanted: str | None) -> str:
    """Return the host name of the vcluster's node that its VCM runs on: `wanted` if it is set, else
    the first name, numbers in names being compared as numbers."""

    def order(name: str) -> tuple[str, int]:
        found = re.fullmatch(r"(.*?)([0-9]*)", name)
        assert found is not None
        return found[1], int(found[2] or 0)

    return wanted or min(hostnames, key=order, default="n1")


def check(configuration: Configuration) -> None:
    """Raise `Refused` if a VCM's invitation cannot be given to nodes of the template, or would stay
    on their disks for the next vcluster."""
    if not configuration.seed:
        raise Refused(
            "conflict",
            f"the template {configuration.name} writes no seed in which its nodes could find an "
            'invitation: <personalise seed="nocloud"/>',
            "inside",
        )
    if configuration.seedfrom:
        raise Refused(
            "conflict",
            f"nodes of the template {configuration.name} ask the metadata service for their "
            'data, which tells no invitations: <personalise seed="nocloud"/> without seedfrom',
            "inside",
        )
    if configuration.cache:
        raise Refused(
            "conflict",
            f"nodes of the template {configuration.name} keep their disks (cache), and with them "
            "what the last VCM left there",
            "inside",
        )


def words(vcluster_id: int, enrolled_at: float, order_id: str) -> str:
    """Return the text that an invitation is bound to. A new enrolment or priming changes it."""
    return f"{vcluster_id} {enrolled_at!r} {order_id}"


def seed_part(vcluster: str, servers: Sequence[str], authority: str, invitation: str) -> SeedPart:
    """Return the VCM's part of its node's seed."""
    found = {
        CONFIGURATION: configuration(vcluster, servers, invited=True),
        AUTHORITY: authority,
        INVITATION: invitation + "\n",
    }
    written = "".join(f"cat > {name} <<'COD'\n{text}COD\n" for name, text in found.items())
    script = _SCRIPT.format(vcluster=vcluster, folder=f"{FOLDER}/{vcluster}", files=written)
    return SeedPart(scripts=(script,), files=found, secret=True)
